//! Jobs that lock: what a pass makes of them, and how they take further locks while they run.
//!
//! - [`QueueRules`]: the settings.
//! - [`view`]: who holds what, who waits and who has reserved, of all job types, as one pass sees it.
//! - [`window`]: which jobs of the queue's front start, reserve, or are left for another time.
//! - [`scan`]: which jobs can start behind more that cannot than a window holds.
//! - [`likely`]: what past runs tell of jobs that do not know what they lock.
//! - [`run`]: the locks that a running job asks for.
//! - [`wake`]: one watch of the store for all that wait for locks in a process.

mod external;
mod likely;
mod run;
mod scan;
mod view;
mod wake;
mod window;

use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_policy::predictive_queue::{self, aging};

pub(crate) use likely::LockHistory;
pub use likely::{Weight, startable, weigh};
pub use run::LockError;
pub(crate) use run::{JobLocks, Slots, Waits};
pub(crate) use scan::{Scan, Scanned};
pub(crate) use view::LocksView;
pub(crate) use wake::LockWake;
pub(crate) use window::{Chosen, choose};

/// How jobs that lock are ordered, and what can be locked. Jobs that declare no locks know nothing of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRules {
    /// What can be locked, in the order in which it is. The same on all nodes of a store.
    pub levels: Levels,
    /// Jobs of the queue's front that one pass compares, at least: it takes more where it has room for more than a quarter of them, or if none of
    /// them can start. At most 1,000.
    pub window: usize,
    /// What a job weighs, and how it ages.
    pub rules: aging::Rules,
    /// A job that waits for a lock while it runs keeps its slot; otherwise another job may start in it.
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
    /// How many jobs are compared first by a pass that has room for so many.
    pub fn window(&self, room: usize) -> usize {
        predictive_queue::window::first(self.window, room)
    }

    /// How many of so many slots are lent, when so many of the jobs in them wait for locks. A job that starts in a lent slot may come to wait, too, and
    /// lend it again: no more are lent than there are, so that a worker never has more than twice as many jobs.
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
