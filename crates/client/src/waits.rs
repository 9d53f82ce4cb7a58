//! How long requests wait on the server.
//!
//! A gateway between the client and the server ends a request that is not answered for a while: nginx after 60 s by default, Envoy after
//! 15 s. The client learns this limit from the requests that were cut, and then waits for less, so that the server answers before the
//! gateway cuts. A restart of a server cuts requests, too, so the waits become longer again.
//!
//! ```text
//! cut after `t`                      ─▶ the longest wait is `t / 2`
//! 16 such waits were not cut         ─▶ it doubles
//! ```

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::Error;

/// The shortest limit that the client learns. A request that failed in less than twice this time was not held by a gateway.
const SHORTEST: Duration = Duration::from_millis(100);
/// The waits that must pass uncut before the client tries longer ones. At Envoy's 15 s, one request in two minutes is cut.
const UNCUT_BEFORE_LONGER: u32 = 16;

/// The longest wait that passes the gateways; shared by all requests of a client.
#[derive(Debug)]
pub(crate) struct Waits(Mutex<Learned>);

#[derive(Debug)]
struct Learned {
    longest: Duration,
    /// The waits of this length that were not cut.
    uncut: u32,
}

impl Default for Waits {
    fn default() -> Self {
        Waits(Mutex::new(Learned { longest: Duration::MAX, uncut: 0 }))
    }
}

impl Waits {
    /// How long a request may wait that wants to wait for this long.
    pub fn longest(&self, wanted: Duration) -> Duration {
        wanted.min(self.learned().longest)
    }

    /// Learns from a request that was to wait for `wait`, and ended after `took`.
    pub fn learn(&self, wait: Duration, took: Duration, error: Option<&Error>) {
        let mut learned = self.learned();
        match error {
            Some(error) if is_cut(wait, took, error) => {
                *learned = Learned { longest: learned.longest.min(took / 2), uncut: 0 };
            }
            None if wait == learned.longest && took >= wait => {
                learned.uncut += 1;
                if learned.uncut >= UNCUT_BEFORE_LONGER {
                    *learned = Learned { longest: learned.longest.saturating_mul(2), uncut: 0 };
                }
            }
            _ => {}
        }
    }

    fn learned(&self) -> std::sync::MutexGuard<'_, Learned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a request was cut while it waited as it was meant to. The next one may follow at once, and the time that this one took is no time
/// of retries: it says nothing about the server. Cuts in a row come to an end, because each wait is at most half as long as the one before.
pub(crate) fn is_cut(wait: Duration, took: Duration, error: &Error) -> bool {
    matches!(error, Error::NoAnswer { maybe_sent: true, .. }) && took < wait && took >= SHORTEST * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn no_answer(maybe_sent: bool) -> Error {
        Error::NoAnswer { server: String::new(), cause: String::new(), maybe_sent }
    }

    #[test]
    fn waits_are_shorter_than_what_is_cut_and_become_longer_again() {
        let (waits, cut) = (Waits::default(), no_answer(true));
        assert_eq!(waits.longest(MINUTE), MINUTE);
        waits.learn(MINUTE, ms(15_000), Some(&cut));
        assert_eq!((waits.longest(MINUTE), waits.longest(ms(10))), (ms(7_500), ms(10)));
        // Another request that waited for longer was cut at the same time.
        waits.learn(MINUTE, ms(30_000), Some(&cut));
        assert_eq!(waits.longest(MINUTE), ms(7_500));
        for _ in 1..UNCUT_BEFORE_LONGER {
            waits.learn(ms(7_500), ms(7_600), None);
        }
        // A job came early, or the wait was a shorter one: neither shows that the limit is longer.
        waits.learn(ms(7_500), ms(10), None);
        waits.learn(ms(1_000), ms(1_000), None);
        assert_eq!(waits.longest(MINUTE), ms(7_500));
        waits.learn(ms(7_500), ms(7_500), None);
        assert_eq!(waits.longest(MINUTE), ms(15_000));
    }

    #[test]
    fn only_a_request_that_was_held_is_cut_and_not_for_ever() {
        let waits = Waits::default();
        for (took, error) in [
            (ms(199), no_answer(true)),
            (ms(9_000), no_answer(false)),
            // It took longer than it was to wait: the server does not answer.
            (MINUTE, no_answer(true)),
        ] {
            waits.learn(MINUTE, took, Some(&error));
            assert_eq!(waits.longest(MINUTE), MINUTE, "{took:?}");
        }
        // A gateway cuts each request after `took`, or just before the end of its wait: there are few cuts in a row.
        let mut cuts = 0;
        loop {
            let wait = waits.longest(MINUTE);
            let took = wait.saturating_sub(ms(1));
            if !is_cut(wait, took, &no_answer(true)) {
                break;
            }
            waits.learn(wait, took, Some(&no_answer(true)));
            cuts += 1;
        }
        assert!(cuts < 10, "{cuts}");
    }
}
