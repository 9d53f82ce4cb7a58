//! Dependencies: jobs that wait for the end of other jobs.
//!
//! *Model.* A job names other jobs, and for each of them the outcomes that it accepts. It is pending once all of them
//! have ended with an accepted outcome. If one ends with another outcome, the job is cancelled at once, or stops
//! waiting for this one ([`Otherwise`]).
//!
//! *Forces.* A removed job will never end, so its removal is an outcome that no job can accept. A job whose run ends,
//! and that runs again, has not ended.

use serde::{Deserialize, Serialize};

/// How a job ended, as the jobs that wait for it see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DependencyEnd {
    /// It completed.
    Completed,
    /// It failed for good.
    Failed,
    /// A client or a filter cancelled it, or one of its own dependencies ended with an outcome that it does not
    /// accept.
    Cancelled,
    /// It was removed before it ended. No job can accept that.
    Removed,
}

impl DependencyEnd {
    /// The outcome as a phrase that follows the job's name.
    pub fn phrase(self) -> &'static str {
        match self {
            DependencyEnd::Completed => "has completed",
            DependencyEnd::Failed => "has failed",
            DependencyEnd::Cancelled => "was cancelled",
            DependencyEnd::Removed => "was removed",
        }
    }
}

/// What happens to a job when a dependency ends with an outcome that it does not accept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// The job is cancelled.
    #[default]
    Cancel,
    /// The job no longer waits for this dependency.
    Free,
}

/// What the end of a dependency means for a job that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The job no longer waits for this dependency.
    Freed,
    /// The job must be cancelled.
    Cancelled,
}

/// What a dependency's `outcome` means for a job that accepts the outcomes in `accepted`.
pub fn judge(outcome: DependencyEnd, accepted: &[DependencyEnd], otherwise: Otherwise) -> Verdict {
    match otherwise {
        _ if outcome != DependencyEnd::Removed && accepted.contains(&outcome) => Verdict::Freed,
        Otherwise::Free => Verdict::Freed,
        Otherwise::Cancel => Verdict::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [DependencyEnd; 4] =
        [DependencyEnd::Completed, DependencyEnd::Failed, DependencyEnd::Cancelled, DependencyEnd::Removed];

    #[test]
    fn only_an_accepted_end_frees_a_job_that_would_be_cancelled() {
        for accepted in ALL {
            for outcome in ALL {
                let is_free = outcome == accepted && outcome != DependencyEnd::Removed;
                let expected = if is_free { Verdict::Freed } else { Verdict::Cancelled };
                assert_eq!(judge(outcome, &[accepted], Otherwise::Cancel), expected, "{outcome:?}");
                assert_eq!(judge(outcome, &[accepted], Otherwise::Free), Verdict::Freed, "{outcome:?}");
            }
        }
    }
}
