//! Who holds what, who waits and who has reserved, of all job types, as one pass sees it.
//!
//! It is read once in a pass that has jobs with locks before it, from two families of rows: one row for each claim with locks, and the lock
//! queues. It takes no conflict, and decides about nothing but the order: whether a lock is free is proven by the claim. Of more rows
//! than are read, those that are not seen only cost claims that are refused.

use std::collections::BTreeMap;

use turnwise_policy::predictive_queue::locks::{AtLevel, Levels, Mode, Request, Requests};
use turnwise_policy::predictive_queue::summary::{Running, Summary};
use turnwise_queue::locks::{self, How, LockAt};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::Transaction;

/// Claims with locks that a pass sees.
const MAX_RUNNING: usize = 10_000;
/// Rows of lock queues that a pass sees: one for each lock of each job that stands there.
const MAX_QUEUED: usize = 10_000;

/// What a pass sees of locks.
pub(crate) struct LocksView {
    /// What running jobs lock, and wait for.
    pub(super) running: Summary,
    /// What pending jobs have reserved, first come first.
    pub(super) queued: Vec<Requests>,
    /// Where they stand there, by type and id.
    places: BTreeMap<(String, String), usize>,
}

impl LocksView {
    pub async fn read(tx: &Transaction, keys: &Keyspace, levels: &Levels) -> Result<LocksView> {
        let mut running = Summary::new(levels);
        for job in locks::running(tx, keys, MAX_RUNNING).await? {
            let held = job.all.held.locks();
            let all = held.iter().chain(&job.all.waits).filter_map(|lock| lock.lock(levels));
            running.add(&Running::new(all, &job.all.locks, levels));
        }
        // Each of them has rows in several queues.
        let mut rows: BTreeMap<(i64, String, String), Requests> = BTreeMap::new();
        for entry in locks::list(tx, keys, Some(&keys.lock_queues().0), MAX_QUEUED).await? {
            // What running jobs wait for counts as theirs already.
            let Some(ticket) = entry.ticket.filter(|_| entry.how == How::Reserved) else { continue };
            let wants = rows.entry((ticket, entry.job_type, entry.id)).or_default();
            *wants = std::mem::take(wants).merge(requests(&entry.lock));
        }
        let (mut queued, mut places) = (Vec::with_capacity(rows.len()), BTreeMap::new());
        for ((_, job_type, id), wants) in rows {
            places.insert((job_type, id), queued.len());
            queued.push(wants);
        }
        Ok(LocksView { running, queued, places })
    }

    /// The pending jobs of a type that have reserved.
    pub fn reserved<'a>(&'a self, job_type: &'a str) -> impl Iterator<Item = &'a str> {
        let of_type = self.places.keys().filter(move |(of, _)| of == job_type);
        of_type.map(|(_, id)| id.as_str())
    }

    /// Where a pending job stands among those in queues, if it has reserved.
    pub(super) fn place(&self, job_type: &str, id: &str) -> Option<usize> {
        // Most passes see no reservations at all.
        if self.places.is_empty() {
            None
        } else {
            self.places.get(&(job_type.to_owned(), id.to_owned())).copied()
        }
    }
}

/// One lock as a declaration.
fn requests(lock: &LockAt) -> Requests {
    let Some(level) = &lock.spot.level else {
        return Requests { big_lock: lock.mode == Mode::Exclusive, levels: BTreeMap::new() };
    };
    let request = match (&lock.spot.name, lock.mode) {
        (None, Mode::Shared) => Request::AllShared,
        (None, Mode::Exclusive) => Request::AllExclusive,
        (Some(name), Mode::Shared) => Request::Shared([(name.clone(), lock.units)].into()),
        (Some(name), Mode::Exclusive) => Request::Exclusive([name.clone()].into()),
    };
    // Nothing is refused of a request for one name.
    let at = AtLevel::new([request]).unwrap_or_default();
    Requests { big_lock: false, levels: [(level.clone(), at)].into() }
}
