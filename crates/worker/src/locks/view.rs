//! The locks that jobs of all types hold, wait for and reserve, as one pass sees them.
//!
//! A pass with jobs that lock reads them once, from two families of rows: one row for each claim with locks, and the
//! lock queues. These are snapshot reads, without conflicts, and they only affect the order: the claim checks whether a
//! lock is free. Rows beyond the limits are not read, which only costs rejected claims.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use turnwise_policy::predictive_queue::locks::{Levels, Lock, Requests};
use turnwise_policy::predictive_queue::summary::{Running, Summary};
use turnwise_queue::locks::{self, How};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::Transaction;

/// The maximum number of claims with locks that a pass reads.
const MAX_RUNNING: usize = 10_000;
/// The maximum number of lock queue rows that a pass reads: one for each lock of each job in a queue.
const MAX_QUEUED: usize = 10_000;

/// A pass's view of the locks.
pub(crate) struct LocksView {
    /// The locks that running jobs hold and wait for.
    pub running: Summary,
    /// The locks that pending jobs have reserved, in the order of their reservations.
    pub reservations: Vec<Running>,
    /// Their positions in `reservations`, by type and id.
    positions: BTreeMap<(String, String), usize>,
}

impl LocksView {
    #[boxed]
    pub async fn read(tx: &Transaction, keys: &Keyspace, levels: &Levels) -> Result<LocksView> {
        let mut running = Summary::new(levels);
        for job in locks::running(tx, keys, MAX_RUNNING).await? {
            running.add(&job.all.running(levels));
        }
        // Each job has rows in several queues.
        let mut rows: BTreeMap<(i64, String, String), Vec<Lock>> = BTreeMap::new();
        for entry in locks::list(tx, keys, Some(&keys.lock_queues().0), MAX_QUEUED).await? {
            // What running jobs wait for is already counted with them.
            let Some(ticket) = entry.ticket.filter(|_| entry.how == How::Reserved) else { continue };
            let wants = rows.entry((ticket, entry.job_type, entry.id)).or_default();
            wants.extend(entry.lock.lock(levels));
        }
        let (mut reservations, mut positions) = (Vec::with_capacity(rows.len()), BTreeMap::new());
        for ((_, job_type, id), wants) in rows {
            positions.insert((job_type, id), reservations.len());
            reservations.push(Running::new(wants, &Requests::default(), levels));
        }
        Ok(LocksView { running, reservations, positions })
    }

    /// Whether no running job blocks a job with these locks. It may still be blocked by a reservation.
    pub fn is_free(&self, requests: &Requests) -> bool {
        self.running.obstacle(&requests.known(self.running.levels())).is_none()
    }

    /// The pending jobs of a type that have reservations.
    pub fn reserved<'a>(&'a self, job_type: &'a str) -> impl Iterator<Item = &'a str> {
        let of_type = self.positions.keys().filter(move |(of, _)| of == job_type);
        of_type.map(|(_, id)| id.as_str())
    }

    /// A pending job's position among the jobs with reservations, if it has one.
    pub fn position(&self, job_type: &str, id: &str) -> Option<usize> {
        // Most passes see no reservations.
        if self.positions.is_empty() {
            None
        } else {
            self.positions.get(&(job_type.to_owned(), id.to_owned())).copied()
        }
    }
}
