//! What a fire of a schedule does: when its job may start, and what happens to an earlier job that has not ended.

use serde::{Deserialize, Serialize};

use crate::contention::hash;

/// What a schedule does while the job that it added last has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It adds none, and notes that.
    #[default]
    Skip,
    /// It adds the next one.
    Allow,
    /// It adds the next one, which waits for the end of the last one. At most one waits.
    Queue,
    /// It cancels the last one. The next one waits for its end.
    CancelRunning,
}

/// The job that a schedule added last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastJob {
    /// It has ended, or there is none.
    Ended,
    /// It has not started.
    Waits,
    /// It has started, and has not ended.
    Started,
}

/// What a fire does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It adds a job.
    Add,
    /// It adds a job that waits for the end of the last one.
    AddBehind,
    /// It cancels the last job, and adds one that waits for its end.
    CancelLast,
    /// It adds none.
    Skip,
}

impl Overlap {
    /// What a fire does. Those that make up for missed instants wait for each other, however many.
    pub fn step(self, last: LastJob, makes_up: bool) -> Step {
        match (self, last) {
            (Overlap::Allow, _) | (_, LastJob::Ended) => Step::Add,
            (Overlap::Skip, _) => Step::Skip,
            // It waits itself.
            (Overlap::Queue, LastJob::Waits) if !makes_up => Step::Skip,
            (Overlap::Queue, _) => Step::AddBehind,
            (Overlap::CancelRunning, _) => Step::CancelLast,
        }
    }
}

/// How much later than its instant the job of a fire may start, in µs: up to `most_us`, by chance, and always the same for a job's id.
pub fn jitter_us(job_id: &str, most_us: i64) -> i64 {
    let spread = u64::try_from(most_us).unwrap_or(0).saturating_add(1);
    i64::try_from(hash(job_id, 0) % spread).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_job_that_has_not_ended_decides() {
        for overlap in [Overlap::Skip, Overlap::Allow, Overlap::Queue, Overlap::CancelRunning] {
            assert_eq!(overlap.step(LastJob::Ended, false), Step::Add);
        }
        assert_eq!(Overlap::Allow.step(LastJob::Started, false), Step::Add);
        assert_eq!(Overlap::Skip.step(LastJob::Waits, false), Step::Skip);
        assert_eq!(Overlap::Queue.step(LastJob::Waits, false), Step::Skip);
        assert_eq!(Overlap::Queue.step(LastJob::Waits, true), Step::AddBehind);
        assert_eq!(Overlap::Queue.step(LastJob::Started, false), Step::AddBehind);
        assert_eq!(Overlap::CancelRunning.step(LastJob::Waits, false), Step::CancelLast);
    }

    #[test]
    fn jitter_spreads_jobs_and_repeats_itself() {
        let all: Vec<i64> = (0..1_000).map(|n| jitter_us(&format!("s-{n}"), 999)).collect();
        assert!(all.iter().all(|us| (0..1_000).contains(us)));
        let late = all.iter().filter(|us| **us >= 500).count();
        assert!((400..600).contains(&late), "{late}");
        assert_eq!(jitter_us("s-7", 999), all[7]);
        assert_eq!(jitter_us("s-7", 0), 0);
    }
}
