//! The scheduling decision, whole, on one page.
//!
//! The worker reads a window of the pending queue's front, in the queue's order, and asks here what to do
//! with it. Whatever is not started gets its reason, so that a waiting job can always say why.
//!
//! 1. *Near the front?* The window is the front; its order is the queue's.
//! 2. *Room?* Free slots are filled in that order, on every arrival and every ending.
//!
//! Eligibility, fair share, lock contention and rotation become further steps of this pipeline.

/// What the worker sees.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Jobs this worker runs now.
    pub running: usize,
    /// Ids of the first pending jobs, first to run first.
    pub front: &'a [String],
}

/// What the configuration demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Jobs that one worker runs at most.
    pub max_jobs: usize,
}

/// Why a pending job does not start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Every slot is taken, and this many jobs are before it.
    NoFreeSlot {
        /// Jobs of the window that come before it and were not started either.
        ahead: usize,
    },
}

/// What shall happen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Start these, in this order.
    pub start: Vec<String>,
    /// Leave these where they are; each with its reason.
    pub hold: Vec<(String, Reason)>,
}

/// Decides about every job in the view.
pub fn select(view: View<'_>, rules: Rules) -> Decision {
    let free = rules.max_jobs.saturating_sub(view.running);
    let (start, hold) = view.front.split_at(free.min(view.front.len()));
    let held = |(ahead, id): (usize, &String)| (id.clone(), Reason::NoFreeSlot { ahead });
    Decision { start: start.to_vec(), hold: hold.iter().enumerate().map(held).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &str) -> Vec<String> {
        names.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn free_slots_are_filled_in_the_order_of_the_queue() {
        let front = ids("a b c d");
        let decision = select(View { running: 1, front: &front }, Rules { max_jobs: 3 });
        assert_eq!(decision.start, ids("a b"));
        let expected =
            [("c".into(), Reason::NoFreeSlot { ahead: 0 }), ("d".into(), Reason::NoFreeSlot { ahead: 1 })];
        assert_eq!(decision.hold, expected);
    }

    #[test]
    fn every_job_is_started_or_held_with_a_reason() {
        for running in 0..6 {
            for pending in 0..6 {
                let front: Vec<String> = (0..pending).map(|n| n.to_string()).collect();
                let decision = select(View { running, front: &front }, Rules { max_jobs: 4 });
                let held = decision.hold.into_iter().map(|(id, _)| id);
                let seen: Vec<String> = decision.start.iter().cloned().chain(held).collect();
                assert_eq!(seen, front);
                assert!(decision.start.is_empty() || running + decision.start.len() <= 4);
            }
        }
    }
}
