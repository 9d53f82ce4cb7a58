//! How many requests an identity may send: `[limits] requests_per_second`.
//!
//! The generic cell rate algorithm: of each budget, one time is kept. Operators are not limited.
//!
//! A worker whose heartbeats were refused would lose its jobs because of what another program of its identity sends. So the requests of each
//! worker have a budget of their own, and its heartbeats one more, which its ends and reports cannot use up.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An identity may send the requests of this time at once.
const BURST: Duration = Duration::from_secs(1);
/// The most budgets that are remembered, but for those that were used within [`BURST`].
const MAX_KNOWN: usize = 100_000;
/// The heartbeats that one worker may send in a `[workers] health_interval`, and at least in a second.
const PINGS_PER_INTERVAL: f64 = 10.0;
/// The requests of an identity for workers that this node has not seen before: each costs a read. After a restart these are its own workers.
pub const LOOKUPS_PER_SECOND: u32 = 5_000;
/// The requests of an identity for workers that do not exist, or are not its own.
pub const REFUSED_WORKERS_PER_SECOND: u32 = 200;

/// How many heartbeats one worker may send, with this `[workers] health_interval`.
pub fn pings_per_second(health_interval: Duration) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
    let pings = (PINGS_PER_INTERVAL / health_interval.as_secs_f64().clamp(0.001, 1.0)).ceil() as u32;
    pings
}

/// What a request is charged to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Budget {
    /// An identity's requests, but for those of its workers.
    Identity(String),
    /// The requests of one worker, by type and id, but for heartbeats.
    Worker(String, String),
    /// The heartbeats of one worker, by type and id.
    Pings(String, String),
    /// An identity's requests for workers that this node must look up.
    Lookups(String),
    /// An identity's requests for workers that do not exist, or are not its own.
    RefusedWorkers(String),
}

/// When the requests of each budget would be evenly spread.
#[derive(Default)]
pub struct Pace(Mutex<HashMap<Budget, Instant>>);

impl Pace {
    /// Takes a request into account; the time to wait if it is one too many.
    pub fn admit(&self, budget: Budget, per_second: u32, now: Instant) -> Result<(), Duration> {
        let each = Duration::from_secs(1) / per_second.max(1);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN && !known.contains_key(&budget) {
            known.retain(|_, at| *at > now);
        }
        let at = known.get(&budget).copied().unwrap_or(now).max(now);
        let ahead = at.duration_since(now);
        if ahead + each > BURST.max(each) {
            return Err(ahead + each - BURST.max(each));
        }
        known.insert(budget, at + each);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn heartbeats_fit_any_interval() {
        let of = |ms| pings_per_second(Duration::from_millis(ms));
        assert_eq!([0, 10, 100, 1_000, 3_600_000].map(of), [10_000, 1_000, 100, 10, 10]);
    }

    #[test]
    fn requests_beyond_the_rate_wait() {
        let (pace, start) = (Pace::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let of = |identity: &str| Budget::Identity(identity.to_owned());
        let sent = |identity: &str, ms| pace.admit(of(identity), 10, at(ms));
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
        assert_eq!(
            (pace.admit(of("slow"), 1, start), pace.admit(of("slow"), 1, start).is_err()),
            (Ok(()), true)
        );
    }
}
