//! How long a crashed job waits before it is tried again.
//!
//! A job that keeps crashing must not take slots from jobs that succeed, and must resume by itself when its peer
//! works again. So each consecutive crash doubles the wait, up to a limit:
//!
//! ```text
//! wait(n) = base · 2^min(n − 1, max_exponent)        n: consecutive crashes
//! ```
//!
//! With 30 s and 10 doublings the longest wait is 30 720 s, about 8.5 hours. A run longer than `health_threshold`
//! proves that the job is healthy, however the run ends: the next crash counts as the first one. If the worker of a
//! run is lost, the run counts as a crash, unless its job type says otherwise ([`OnLost`]). Source: the description
//! of CouchDB's scheduling replicator, "jobs which keep crashing".

use serde::{Deserialize, Serialize};

/// The parameters of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// The wait after a first crash, in µs.
    pub base_us: i64,
    /// The most doublings.
    pub max_exponent: u32,
    /// A run longer than this resets the number of consecutive crashes, in µs.
    pub health_threshold_us: i64,
}

/// What happens to a job whose worker is lost: the worker died, or misses its heartbeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// The run counts as an attempt that crashed: the job may be what makes its workers die.
    #[default]
    Count,
    /// The job becomes pending again at its place in the queue, and no attempt is counted.
    Requeue,
}

impl OnLost {
    /// All values.
    pub const ALL: [OnLost; 2] = [OnLost::Count, OnLost::Requeue];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            OnLost::Count => "count",
            OnLost::Requeue => "requeue",
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Rules { base_us: 30_000_000, max_exponent: 10, health_threshold_us: 120_000_000 }
    }
}

impl Rules {
    /// The number of consecutive crashes during a run that has lasted `ran_us`. `before` is the number before the
    /// run.
    pub fn streak(&self, before: u32, ran_us: i64) -> u32 {
        if ran_us > self.health_threshold_us { 0 } else { before }
    }

    /// The number of consecutive crashes after a run of `ran_us` has crashed. `before` is the number before the run.
    pub fn crashes_in_row(&self, before: u32, ran_us: i64) -> u32 {
        self.streak(before, ran_us).saturating_add(1)
    }

    /// The wait after `crashes` consecutive crashes, in µs; 0 without a crash.
    pub fn wait_us(&self, crashes: u32) -> i64 {
        match crashes {
            0 => 0,
            n => {
                let doublings = (n - 1).min(self.max_exponent).min(62);
                self.base_us.saturating_mul(1_i64 << doublings)
            }
        }
    }
}

/// Longest list of waits. A record has the list of the job, and that of its run.
pub const MAX_WAITS: usize = 30;
/// Longest wait, in µs: a year.
pub const MAX_WAIT_US: i64 = 365 * 24 * 3_600 * 1_000_000;
/// Largest factor of exponential waits.
pub const MAX_FACTOR: f64 = 100.0;
/// A wait with jitter is up to this part of itself longer, so that jobs that crashed together do not all start together.
const JITTER_PART: i64 = 10;

/// The waits that a job states itself, in place of [`Rules`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    /// `first · factor^(n − 1)` after the n-th consecutive crash, up to `most`.
    Exponential {
        /// The wait after a first crash, in µs.
        first_us: i64,
        /// From 1 to [`MAX_FACTOR`].
        factor: f64,
        /// The longest wait, in µs.
        most_us: i64,
    },
    /// One for each consecutive crash, in µs; the last one for all that follow. Not empty.
    List(Vec<i64>),
}

impl Waits {
    /// Why these are no waits, if they are none.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        let is_wait = |us: &i64| (0..=MAX_WAIT_US).contains(us);
        match self {
            Waits::Exponential { first_us, most_us, .. } if !is_wait(first_us) || !is_wait(most_us) => {
                Err("its waits must be from 0 ms to a year".to_owned())
            }
            Waits::Exponential { factor, .. } if !(1.0..=MAX_FACTOR).contains(factor) => {
                Err(format!("its factor must be from 1 to {MAX_FACTOR}"))
            }
            Waits::List(list) if list.is_empty() || list.len() > MAX_WAITS => {
                Err(format!("has {} waits; 1 to {MAX_WAITS} are allowed", list.len()))
            }
            Waits::List(list) if !list.iter().all(is_wait) => {
                Err("its waits must be from 0 ms to a year".to_owned())
            }
            Waits::Exponential { .. } | Waits::List(_) => Ok(()),
        }
    }

    /// The wait after `crashes` consecutive crashes, in µs; 0 without a crash.
    pub fn wait_us(&self, crashes: u32) -> i64 {
        let Some(before) = crashes.checked_sub(1) else { return 0 };
        match self {
            Waits::Exponential { first_us, factor, most_us } => {
                // Beyond 2^53 µs, 285 years, a number would not be exact; `most_us` is far below.
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    reason = "bounded by most_us"
                )]
                let wait_us = (*first_us as f64 * factor.powi(before.min(1_000).cast_signed()))
                    .min(*most_us as f64) as i64;
                wait_us
            }
            Waits::List(list) => {
                let n = usize::try_from(before).unwrap_or(usize::MAX).min(list.len().saturating_sub(1));
                list.get(n).copied().unwrap_or(0)
            }
        }
    }
}

/// A wait with jitter. It is the same for the same `seed`: what is decided again is decided alike.
pub fn jittered_us(wait_us: i64, seed: u64) -> i64 {
    let most = (wait_us / JITTER_PART).max(0);
    let part = i64::try_from(seed % most.unsigned_abs().saturating_add(1)).unwrap_or(most);
    wait_us.saturating_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_a_job_states_grow_up_to_their_bound_or_repeat_their_last() {
        let doubling = Waits::Exponential { first_us: S, factor: 2.0, most_us: 3_600 * S };
        let waits = [0, 1, 2, 3, 12, 13, u32::MAX].map(|crashes| doubling.wait_us(crashes) / S);
        assert_eq!(waits, [0, 1, 2, 4, 2_048, 3_600, 3_600]);
        let list = Waits::List(vec![5 * S, 30 * S, 300 * S]);
        assert_eq!(
            [0, 1, 2, 3, 4, u32::MAX].map(|crashes| list.wait_us(crashes) / S),
            [0, 5, 30, 300, 300, 300]
        );
        for (wrong, why) in [
            (Waits::List(Vec::new()), "has 0 waits"),
            (Waits::List(vec![-1]), "from 0 ms"),
            (Waits::Exponential { first_us: 1, factor: 0.5, most_us: 2 }, "factor"),
            (Waits::Exponential { first_us: 1, factor: f64::NAN, most_us: 2 }, "factor"),
            (Waits::Exponential { first_us: 1, factor: 2.0, most_us: MAX_WAIT_US + 1 }, "a year"),
        ] {
            assert!(wrong.check().is_err_and(|problem| problem.contains(why)), "{wrong:?}");
        }
    }

    #[test]
    fn jitter_adds_at_most_a_tenth() {
        let waits: Vec<i64> = (0..100).map(|seed| jittered_us(100, seed * 7_919)).collect();
        assert!(
            waits.iter().all(|wait| (100..=110).contains(wait)) && waits.iter().max() > waits.iter().min()
        );
        assert_eq!((jittered_us(0, 9), jittered_us(i64::MAX, u64::MAX)), (0, i64::MAX));
    }

    const S: i64 = 1_000_000;

    #[test]
    fn waits_double_from_thirty_seconds_to_eight_and_a_half_hours() {
        let rules = Rules::default();
        let waits: Vec<i64> = (0..=13).map(|n| rules.wait_us(n) / S).collect();
        let expected = [0, 30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, 30720, 30720, 30720];
        assert_eq!(waits, expected);
    }

    #[test]
    fn an_absurd_configuration_saturates() {
        let rules = Rules { base_us: i64::MAX / 2, max_exponent: u32::MAX, health_threshold_us: 0 };
        assert_eq!(rules.wait_us(u32::MAX), i64::MAX);
    }

    #[test]
    fn a_run_beyond_the_threshold_resets_the_crashes() {
        let rules = Rules::default();
        assert_eq!((rules.streak(5, 120 * S), rules.streak(5, 120 * S + 1)), (5, 0));
        assert_eq!(rules.crashes_in_row(0, 0), 1);
        assert_eq!(rules.crashes_in_row(5, 120 * S), 6);
        assert_eq!(rules.crashes_in_row(5, 120 * S + 1), 1);
        assert_eq!(rules.crashes_in_row(u32::MAX, 0), u32::MAX);
    }
}
