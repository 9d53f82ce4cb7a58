//! The costs of replications: measured, printed, and compared.

/// The cost of one replication, or the median of several. Values that cannot be measured from here are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub seconds: f64,
    pub cpu_seconds: Option<f64>,
    pub peak_mb: Option<f64>,
    pub source_cpu_seconds: Option<f64>,
    pub target_cpu_seconds: Option<f64>,
}

/// The number of units in a work, and the unit of its rates.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    pub units: f64,
    pub name: &'static str,
}

impl Cost {
    /// The median of each value.
    pub fn median(costs: &[Self]) -> Self {
        let median = |field: fn(&Self) -> Option<f64>| {
            let mut values = costs.iter().map(field).collect::<Option<Vec<f64>>>()?;
            values.sort_by(f64::total_cmp);
            let (low, high) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
            Some(f64::midpoint(*low, *high))
        };
        Self {
            seconds: median(|cost| Some(cost.seconds)).unwrap_or_default(),
            cpu_seconds: median(|cost| cost.cpu_seconds),
            peak_mb: median(|cost| cost.peak_mb),
            source_cpu_seconds: median(|cost| cost.source_cpu_seconds),
            target_cpu_seconds: median(|cost| cost.target_cpu_seconds),
        }
    }

    pub fn print_head(amount: Amount) {
        let rate = format!("{}/s", amount.name);
        println!(
            "{:<8}{:<10}{rate:>14}{:>10}{:>10}{:>10}{:>14}{:>14}",
            "round", "by", "seconds", "CPU s", "peak MB", "source CPU s", "target CPU s"
        );
    }

    pub fn print(&self, round: &str, name: &str, amount: Amount) {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        println!(
            "{round:<8}{name:<10}{:>14.1}{:>10.2}{:>10}{:>10}{:>14}{:>14}",
            amount.units / self.seconds,
            self.seconds,
            number(self.cpu_seconds),
            number(self.peak_mb),
            number(self.source_cpu_seconds),
            number(self.target_cpu_seconds)
        );
    }

    /// Prints this cost relative to `other`.
    pub fn print_ratio(&self, other: &Self, name: &str, amount: Amount) {
        let rate = other.seconds / self.seconds;
        print!(
            "turnwise against {name}: {rate:.2} times the {}/s, {:.0} % of the time",
            amount.name,
            100.0 / rate
        );
        for (mine, others, what) in [
            (self.cpu_seconds, other.cpu_seconds, "CPU seconds"),
            (self.peak_mb, other.peak_mb, "memory"),
            (self.source_cpu_seconds, other.source_cpu_seconds, "source's CPU"),
            (self.target_cpu_seconds, other.target_cpu_seconds, "target's CPU"),
        ] {
            if let (Some(mine), Some(others)) = (mine, others)
                && others > 0.0
            {
                print!(", {:.2} times the {what}", mine / others);
            }
        }
        println!();
    }
}
