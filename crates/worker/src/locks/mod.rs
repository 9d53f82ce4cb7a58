//! Jobs that lock: how a pass orders them, and how they take further locks while they run.
//!
//! - [`QueueRules`]: the settings.
//! - [`view`]: the locks that jobs of all types hold, wait for and reserve, as one pass sees them.
//! - [`scan`]: which jobs can start behind more blocked ones than a window holds.
//! - [`likely`]: what past runs predict for jobs that do not know what they lock.
//! - [`run`]: the locks that a running job requests.
//! - [`wake`]: one watch of the store for all waits for locks in a process.

mod external;
mod likely;
mod run;
mod scan;
mod view;
mod wake;

use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_policy::predictive_queue::{self, aging};

pub(crate) use likely::LockHistory;
pub use likely::{Weight, startable, weigh};
pub use run::LockError;
pub(crate) use run::{JobLocks, Slots, WaitState};
pub(crate) use scan::{Scan, ScanResult};
pub(crate) use view::LocksView;
pub(crate) use wake::LockWake;

/// The order of jobs that lock, and what can be locked. Jobs that declare no locks are not affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRules {
    /// What can be locked, in lock order. The same on all nodes of a store.
    pub levels: Levels,
    /// The minimum number of jobs at the head of the queue that one pass compares. It compares more if it has room for
    /// more than a quarter of them, or if none of them can start. At most 1,000.
    pub window: usize,
    /// How jobs are weighed, and how they age.
    pub rules: aging::Rules,
    /// Whether a running job that waits for a lock keeps its slot; otherwise another job may start in it.
    pub waiting_uses_slot: bool,
}

impl Default for QueueRules {
    fn default() -> Self {
        QueueRules {
            levels: Levels::default(),
            window: predictive_queue::window::DEFAULT,
            rules: aging::Rules::default(),
            waiting_uses_slot: false,
        }
    }
}

impl QueueRules {
    /// The number of jobs that a pass with this room compares first.
    pub fn window(&self, room: usize) -> usize {
        predictive_queue::window::first(self.window, room)
    }

    /// The number of lent slots, when `waiting` of the jobs in them wait for locks. A job in a lent slot may begin to
    /// wait, too, and lend it again. At most `slots` are lent, so that a worker never has more than twice as many jobs.
    pub(crate) fn lent(&self, slots: usize, waiting: usize) -> usize {
        if self.waiting_uses_slot { 0 } else { waiting.min(slots) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_slots_are_lent_than_there_are() {
        let rules = QueueRules::default();
        assert_eq!([0, 1, 4, 9].map(|waiting| rules.lent(4, waiting)), [0, 1, 4, 4]);
        let keeps = QueueRules { waiting_uses_slot: true, ..rules };
        assert_eq!(keeps.lent(4, 3), 0);
    }
}
