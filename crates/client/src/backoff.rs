//! The pauses between attempts.

use std::time::Duration;

/// The upper limit of the first pause.
const FIRST: Duration = Duration::from_millis(100);
/// The upper limit of every pause.
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double, with jitter, so that clients that lost their server at the same time do not all reconnect at the
/// same time.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: usize,
    /// The number of first attempts that have no pause before them.
    at_once: usize,
}

impl Backoff {
    /// Pauses that begin after this many attempts without a pause.
    pub fn after(at_once: usize) -> Backoff {
        Backoff { attempts: 0, at_once }
    }

    /// The next pause.
    pub fn next(&mut self) -> Duration {
        self.attempts += 1;
        let Some(pauses) = self.attempts.checked_sub(self.at_once + 1) else { return Duration::ZERO };
        let pause = FIRST.saturating_mul(1 << pauses.min(10)).min(LONGEST);
        pause.mul_f64(rand::random_range(0.5..1.0))
    }

    /// The number of calls of [`Backoff::next`].
    pub fn attempts(&self) -> usize {
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let mut backoff = Backoff::after(2);
        assert_eq!([backoff.next(), backoff.next()], [Duration::ZERO; 2]);
        let mut limit = FIRST;
        for _ in 0..100 {
            let pause = backoff.next();
            assert!(pause >= limit / 2 && pause < limit, "{pause:?} at {limit:?}");
            limit = (limit * 2).min(LONGEST);
        }
    }
}
