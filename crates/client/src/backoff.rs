//! The pauses between attempts.

use std::time::Duration;

/// The first pause is at most this long.
const FIRST: Duration = Duration::from_millis(100);
/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double, with jitter: clients that lost their server together do not come back together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// How long to wait now.
    pub fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.attempts.min(10)).min(LONGEST);
        self.attempts += 1;
        pause.mul_f64(rand::random_range(0.5..1.0))
    }

    /// How many times it was waited.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let mut limit = FIRST;
        for _ in 0..100 {
            let pause = backoff.next();
            assert!(pause >= limit / 2 && pause < limit, "{pause:?} at {limit:?}");
            limit = (limit * 2).min(LONGEST);
        }
    }
}
