//! How long a job may wait for its first start, and how long its record is kept.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest of these times, in µs: ten years.
pub const MAX_LIFETIME_US: i64 = 10 * 365 * 24 * 3_600 * 1_000_000;

/// What is stated of the time before and after a job's runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lifetime {
    /// It fails unless it starts within this time, in µs, after it was added, or after the time before which it must not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_within_us: Option<i64>,
    /// Its record is removed this long after its end, in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_us: Option<i64>,
}

impl Lifetime {
    /// Whether nothing is stated.
    pub fn is_none(&self) -> bool {
        *self == Lifetime::default()
    }

    /// These times; those of `others` where there is none.
    #[must_use]
    pub fn or(self, others: Lifetime) -> Lifetime {
        let Lifetime { start_within_us, keep_us } = others;
        Lifetime {
            start_within_us: self.start_within_us.or(start_within_us),
            keep_us: self.keep_us.or(keep_us),
        }
    }

    pub(crate) fn check(self) -> Result<()> {
        for (field, us, least) in [("start_within", self.start_within_us, 1), ("keep", self.keep_us, 0)] {
            if us.is_some_and(|us| !(least..=MAX_LIFETIME_US).contains(&us)) {
                return Err(Error::Invalid { field, problem: "must be at most ten years".to_owned() });
            }
        }
        Ok(())
    }
}
