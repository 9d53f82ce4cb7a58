//! Times of many jobs, and numbers of several rounds.

/// Times in ms, in order.
pub struct Times(Vec<f64>);

impl Times {
    /// These times, sorted.
    pub fn of(mut times: Vec<f64>) -> Times {
        times.sort_by(f64::total_cmp);
        Times(times)
    }

    /// The time that this part of all is not above. NaN if there are none.
    pub fn quantile(&self, of_all: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * of_all) as usize).copied().unwrap_or(f64::NAN)
    }

    /// Their number, and three of them.
    pub fn text(&self) -> String {
        let [p50, p99, most] = [0.5, 0.99, 1.0].map(|of_all| self.quantile(of_all));
        format!("{} jobs, p50 {p50:.2} ms, p99 {p99:.2} ms, at most {most:.2} ms", self.0.len())
    }
}

/// The middle number, or the mean of the two middle ones. NaN if there are none.
pub fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_unstable_by(f64::total_cmp);
    match numbers.len() {
        0 => f64::NAN,
        count => (numbers[(count - 1) / 2] + numbers[count / 2]) / 2.0,
    }
}

/// The median of ratios, and their range.
pub fn ratios(ratios: impl Iterator<Item = f64>) -> String {
    let ratios: Vec<f64> = ratios.collect();
    let [least, most] =
        [f64::min, f64::max].map(|of: fn(f64, f64) -> f64| ratios.iter().copied().fold(f64::NAN, of));
    format!("{:.3} ({least:.3} to {most:.3})", median(ratios.iter().copied()))
}

/// Now, in µs since the Unix epoch.
///
/// # Panics
/// Before the year 1970.
pub fn now_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is after 1970");
    i64::try_from(now.as_micros()).expect("it is before the year 290000")
}
