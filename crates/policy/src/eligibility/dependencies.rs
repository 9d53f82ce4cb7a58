//! Jobs that wait for the end of others.
//!
//! *Model.* A job names others, and for each of them the ends that it accepts. It is pending when all of them have ended so. One that
//! ends otherwise settles the matter at once: the job is cancelled, or this one counts as if it had ended well ([`Otherwise`]).
//!
//! *Forces.* A job that is removed will never end: to those that wait it has ended in a way that nobody accepts. A job whose run ends and
//! that runs again has not ended.

use serde::{Deserialize, Serialize};

/// How a job came to its end, as those that wait for it see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Well.
    Completed,
    /// With an error that will not pass.
    Failed,
    /// By its user, or because it was refused.
    Cancelled,
    /// It was removed before it had ended. Nobody can accept that.
    Removed,
}

impl Outcome {
    /// What became of the job, after its name.
    pub fn told(self) -> &'static str {
        match self {
            Outcome::Completed => "has completed",
            Outcome::Failed => "has failed",
            Outcome::Cancelled => "was cancelled",
            Outcome::Removed => "was removed",
        }
    }
}

/// What happens to a job when one that it waits for ends in a way that it does not accept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// It is cancelled.
    #[default]
    Cancel,
    /// It does not wait for that one any more.
    Free,
}

/// What an end means for a job that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does not wait for this one any more.
    Freed,
    /// It is to be cancelled.
    Cancelled,
}

/// What the end `outcome` means for a job that accepts `accepted`.
pub fn judge(outcome: Outcome, accepted: &[Outcome], otherwise: Otherwise) -> Verdict {
    match otherwise {
        _ if outcome != Outcome::Removed && accepted.contains(&outcome) => Verdict::Freed,
        Otherwise::Free => Verdict::Freed,
        Otherwise::Cancel => Verdict::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Outcome; 4] = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::Removed];

    #[test]
    fn only_an_accepted_end_frees_a_job_that_would_be_cancelled() {
        for accepted in ALL {
            for outcome in ALL {
                let is_free = outcome == accepted && outcome != Outcome::Removed;
                let expected = if is_free { Verdict::Freed } else { Verdict::Cancelled };
                assert_eq!(judge(outcome, &[accepted], Otherwise::Cancel), expected, "{outcome:?}");
                assert_eq!(judge(outcome, &[accepted], Otherwise::Free), Verdict::Freed, "{outcome:?}");
            }
        }
    }
}
