//! Who holds what, who waits and who has reserved, of all job types, as one pass sees it.
//!
//! It is read once in a pass that has jobs with locks before it, from two families of rows: one row for each claim with locks, and the lock
//! queues. It takes no conflict, and decides about nothing but the order: whether a lock is free is proven by the claim. Of more rows
//! than are read, those that are not seen only cost claims that are refused.
//!
//! Who runs and has yet to find out what it locks counts as unknown where it is asked what must be free, and as what it will probably lock
//! where it is asked what a job weighs: that is `likely`.

use std::collections::BTreeMap;

use turnwise_policy::predictive_queue::locks::{Levels, Requests};
use turnwise_policy::predictive_queue::summary::Summary;
use turnwise_queue::locks::{self, AllOf, How};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::Transaction;

use super::likely::LockHistory;

/// Claims with locks that a pass sees.
const MAX_RUNNING: usize = 10_000;
/// Rows of lock queues that a pass sees: one for each lock of each job that stands there.
const MAX_QUEUED: usize = 10_000;

/// What a pass sees of locks.
pub(crate) struct LocksView {
    /// What running jobs lock, and wait for.
    pub(super) running: Summary,
    /// The same, where something is known of what they will lock; `None` if nothing is.
    likely: Option<Summary>,
    /// What pending jobs have reserved, first come first.
    pub(super) queued: Vec<Requests>,
    /// Where they stand there, by type and id.
    places: BTreeMap<(String, String), usize>,
}

impl LocksView {
    pub async fn read(
        tx: &Transaction,
        keys: &Keyspace,
        levels: &Levels,
        (lock_history, now_us): (&LockHistory, i64),
    ) -> Result<LocksView> {
        let mut running = Summary::new(levels);
        let claims = locks::running(tx, keys, MAX_RUNNING).await?;
        let learning = || claims.iter().filter(|job| !job.all.traits.is_empty());
        lock_history.look(tx, keys, learning().map(|job| &job.all.traits), now_us).await?;
        for job in &claims {
            running.add(&job.all.running(levels));
        }
        let mut likely: Option<Summary> = None;
        for job in learning() {
            let AllOf { locks, traits, .. } = &job.all;
            let Some((guessed, _)) = lock_history.guess(locks, traits) else { continue };
            let known = job.all.running(levels);
            let likely = likely.get_or_insert_with(|| running.clone());
            likely.remove(&known);
            likely.add(&known.expecting(locks, &guessed, levels));
        }
        // Each of them has rows in several queues.
        let mut rows: BTreeMap<(i64, String, String), Requests> = BTreeMap::new();
        for entry in locks::list(tx, keys, Some(&keys.lock_queues().0), MAX_QUEUED).await? {
            // What running jobs wait for counts as theirs already.
            let Some(ticket) = entry.ticket.filter(|_| entry.how == How::Reserved) else { continue };
            let wants = rows.entry((ticket, entry.job_type, entry.id)).or_default();
            *wants = std::mem::take(wants).merge(entry.lock.requests());
        }
        let (mut queued, mut places) = (Vec::with_capacity(rows.len()), BTreeMap::new());
        for ((_, job_type, id), wants) in rows {
            places.insert((job_type, id), queued.len());
            queued.push(wants);
        }
        Ok(LocksView { running, likely, queued, places })
    }

    /// What running jobs lock, wait for, and will probably lock: what weights are compared with.
    pub fn foreseen(&self) -> &Summary {
        self.likely.as_ref().unwrap_or(&self.running)
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
