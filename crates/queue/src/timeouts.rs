//! The timeouts of a run.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest timeout of a run, in µs: a year.
pub const MAX_TIMEOUT_US: i64 = 365 * 24 * 3_600 * 1_000_000;

/// The timeouts of a run; by default there are none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeouts {
    /// The whole run, in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_us: Option<i64>,
    /// Between its start and its first report, and between two of them, in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_us: Option<i64>,
}

/// Which timeout is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The whole run has lasted this long, in µs.
    Run(i64),
    /// The run has not reported for this long, in µs.
    Heartbeat(i64),
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = |us: &i64| std::time::Duration::from_micros(us.unsigned_abs());
        match self {
            Over::Run(us) => write!(f, "it ran for longer than its timeout of {:?}", seconds(us)),
            Over::Heartbeat(us) => {
                write!(f, "it reported nothing for its heartbeat_timeout of {:?}", seconds(us))
            }
        }
    }
}

impl Timeouts {
    /// Whether there are no timeouts.
    pub fn is_none(&self) -> bool {
        *self == Timeouts::default()
    }

    /// These timeouts; those of `others` where there is none.
    #[must_use]
    pub fn or(self, others: Timeouts) -> Timeouts {
        let Timeouts { run_us, heartbeat_us } = others;
        Timeouts { run_us: self.run_us.or(run_us), heartbeat_us: self.heartbeat_us.or(heartbeat_us) }
    }

    /// The time until the first timeout of a run that has lasted `ran_us` and has not reported for `silent_us`. An error is
    /// the timeout that it has exceeded. `None` if it has no timeout.
    pub fn left_us(self, ran_us: i64, silent_us: Option<i64>) -> Option<std::result::Result<i64, Over>> {
        let left = |most: Option<i64>, is: i64| most.map(|most| most.saturating_sub(is));
        let run = left(self.run_us, ran_us);
        let heartbeat = silent_us.map_or(self.heartbeat_us, |silent_us| left(self.heartbeat_us, silent_us));
        if let (Some(..=0), Some(most)) = (run, self.run_us) {
            return Some(Err(Over::Run(most)));
        }
        if let (Some(..=0), Some(most)) = (heartbeat, self.heartbeat_us) {
            return Some(Err(Over::Heartbeat(most)));
        }
        run.into_iter().chain(heartbeat).min().map(Ok)
    }

    /// Whether these are valid timeouts of a job.
    pub(crate) fn check(self) -> Result<()> {
        for (field, timeout) in [("timeout", self.run_us), ("heartbeat_timeout", self.heartbeat_us)] {
            if timeout.is_some_and(|us| !(1..=MAX_TIMEOUT_US).contains(&us)) {
                return Err(Error::Invalid { field, problem: "must be from 1 ms to 365 days".to_owned() });
            }
        }
        Ok(())
    }
}

/// When a server checks a run, and its timeouts: part of its active row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// The time of its row in the index, in µs.
    pub at_us: i64,
    /// The timeouts to enforce.
    #[serde(flatten)]
    pub timeouts: Timeouts,
}
