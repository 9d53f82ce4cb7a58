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

#[cfg(test)]
mod tests {
    use super::*;

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
