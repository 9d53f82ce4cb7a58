//! How many requests an identity may send: `[limits] requests_per_second`.
//!
//! The generic cell rate algorithm: of each identity, one time is kept. Operators are not limited.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An identity may send the requests of this time at once.
const BURST: Duration = Duration::from_secs(1);
/// The most identities that are remembered.
const MAX_KNOWN: usize = 100_000;

/// When the requests of each identity would be evenly spread.
#[derive(Default)]
pub(crate) struct Pace(Mutex<HashMap<String, Instant>>);

impl Pace {
    /// Takes a request into account; the time to wait if it is one too many.
    pub fn admit(&self, identity: &str, per_second: u32, now: Instant) -> Result<(), Duration> {
        let each = Duration::from_secs(1) / per_second.max(1);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN && !known.contains_key(identity) {
            known.retain(|_, at| *at > now);
        }
        let at = known.get(identity).copied().unwrap_or(now).max(now);
        let ahead = at.duration_since(now);
        if ahead + each > BURST.max(each) {
            return Err(ahead + each - BURST.max(each));
        }
        known.insert(identity.to_owned(), at + each);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_beyond_the_rate_wait() {
        let (pace, start) = (Pace::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let sent = |identity: &str, ms| pace.admit(identity, 10, at(ms));
        for n in 0..10 {
            assert_eq!(sent("a", 0), Ok(()), "{n}");
        }
        assert_eq!(sent("a", 0), Err(Duration::from_millis(100)));
        assert_eq!(sent("b", 0), Ok(()), "each identity for itself");
        assert_eq!((sent("a", 100), sent("a", 100)), (Ok(()), Err(Duration::from_millis(100))));
        // Over a long time, as many as the rate.
        let admitted = (100..10_100).filter(|ms| sent("a", *ms).is_ok()).count();
        assert!((99..=101).contains(&admitted), "{admitted}");
        assert_eq!((sent("a", 60_000), sent("a", 60_000)), (Ok(()), Ok(())), "a pause gives a burst again");
        assert_eq!((pace.admit("slow", 1, start), pace.admit("slow", 1, start).is_err()), (Ok(()), true));
    }
}
