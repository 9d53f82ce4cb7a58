//! Jobs that lock: how a pass orders them, and how they take further locks while they run.
//!
//! - [`QueueRules`]: the settings.
//! - [`view`]: the locks that jobs of all types hold, wait for and reserve, as one pass sees them.
//! - [`scan`]: which jobs can start behind more blocked jobs than a window holds.
//! - [`mod@weigh`]: how many pending jobs locks let start, and what one pending job weighs.
//! - [`run`]: the locks that a running job requests.
//! - [`wake`]: one watch of the store for all waits for locks in a process.

mod external;
mod run;
mod scan;
mod view;
mod wake;
mod weigh;

use bytes::Bytes;
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_policy::predictive_queue::{self, aging};
use turnwise_queue::locks::{Asked, LockAt};
use turnwise_queue::{Keyspace, Result, RunKey};
use turnwise_store::{Isolation, Store};

pub use run::LockError;
pub(crate) use run::{JobLocks, Slots, WaitState};
pub(crate) use scan::{Scan, ScanResult};
pub(crate) use view::LocksView;
pub(crate) use wake::LockWake;
pub use weigh::{Startable, Weight, startable, weigh};

/// The order of jobs that lock, and the levels of locks. Jobs that declare no locks are not affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRules {
    /// The levels of locks, in lock order. They must be the same on all nodes of a store.
    pub levels: Levels,
    /// The minimum number of jobs at the head of the queue that one pass compares; at most 1,000. A pass compares more
    /// jobs if it has free slots for more than a quarter of them, or if none of them can start.
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
    /// The number of jobs that a pass with `room` free slots compares first.
    pub fn window(&self, room: usize) -> usize {
        predictive_queue::window::first(self.window, room)
    }

    /// The number of lent slots, if `waiting` of a worker's jobs wait for locks. A job in a lent slot may begin to
    /// wait, too, and lend the slot again. At most `slots` slots are lent, so a worker never has more than twice as
    /// many jobs as slots.
    pub(crate) fn lent(&self, slots: usize, waiting: usize) -> usize {
        if self.waiting_uses_slot { 0 } else { waiting.min(slots) }
    }
}

/// Requests the locks that a run does not hold yet, after it has left the queue of an earlier request if it `has_left`. Also returns
/// the stamp that must change before a repeated request can succeed.
async fn request(
    (store, keys, levels): (&Store, &Keyspace, &Levels),
    run: RunKey<'_>,
    wanted: &[LockAt],
    has_left: bool,
) -> Result<(Asked, Option<Bytes>)> {
    store
        .transact(|tx| async move {
            let now_us = store.runtime().now_us();
            let seen = tx.get_with(&keys.lock_wake(), Isolation::Snapshot).await?;
            if has_left {
                turnwise_queue::locks::withdraw(&tx, keys, run, now_us).await?;
            }
            let asked = turnwise_queue::locks::request(&tx, keys, levels, run, wanted, now_us).await?;
            Ok((asked, seen))
        })
        .await
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
