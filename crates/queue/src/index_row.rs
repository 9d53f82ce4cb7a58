//! The row of a job's place in the index of that place.

use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::Limit;

use crate::cover::{Cover, partition_of};
use crate::encoding::encode;
use crate::job::Job;
use crate::keyspace::{Keyspace, LimitedPlace, QueuePlace, SortKey};
use crate::place::Place;

/// The row of a job's place in the index of that place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexRow {
    /// In its tenant's queue.
    Pending(QueuePlace),
    /// Waits for a time, in µs: delayed, parked, or crashing.
    Delayed(i64),
    /// Waits for dependencies.
    Blocked,
    /// Paused by a filter, with its time in the queue, in µs.
    Paused(i64),
    /// Waits for room in a bucket.
    Limited(LimitedPlace),
    /// Runs at this worker.
    Active(String),
    /// Has ended: its partition, and the time in µs.
    Ended(u16, i64),
}

impl IndexRow {
    /// The row's key.
    pub fn key(&self, keys: &Keyspace, (job_type, id): &(String, String)) -> Bytes {
        self.key_of(keys, job_type, id)
    }

    fn key_of(&self, keys: &Keyspace, job_type: &str, id: &str) -> Bytes {
        match self {
            IndexRow::Pending(place) => keys.pending_entry(job_type, place, id),
            IndexRow::Delayed(until_us) => keys.delayed_entry(job_type, *until_us, id),
            IndexRow::Blocked => keys.blocked_entry(job_type, id),
            IndexRow::Paused(order_us) => keys.paused_entry(job_type, *order_us, id),
            IndexRow::Limited(place) => keys.limited_entry(job_type, place, id),
            IndexRow::Active(worker) => keys.active_entry(job_type, worker, id),
            IndexRow::Ended(partition, ended_us) => keys.ended_entry(job_type, *partition, *ended_us, id),
        }
    }
}

impl Job {
    /// Its place in the queue of its tenant; `None` if it is not pending.
    pub fn queue_place(&self) -> Option<QueuePlace> {
        match &self.place {
            Place::Pending { order_us, keyed, .. } => Some(self.sorted(*order_us, *keyed)),
            _ => None,
        }
    }

    /// Its place among the limited jobs; `None` if it is not limited.
    pub fn limited_place(&self) -> Option<LimitedPlace> {
        match &self.place {
            Place::Limited { order_us, limit } => Some(self.held_back(*order_us, limit)),
            _ => None,
        }
    }

    /// The row of its place.
    pub fn index_row(&self) -> IndexRow {
        match &self.place {
            Place::Pending { order_us, keyed, .. } => IndexRow::Pending(self.sorted(*order_us, *keyed)),
            Place::Delayed { until_us } | Place::Crashing { until_us } | Place::Parked { until_us, .. } => {
                IndexRow::Delayed(*until_us)
            }
            Place::Blocked { .. } => IndexRow::Blocked,
            Place::Paused { order_us, .. } => IndexRow::Paused(*order_us),
            Place::Limited { order_us, limit } => IndexRow::Limited(self.held_back(*order_us, limit)),
            Place::Active(run) => IndexRow::Active(run.claim.worker.clone()),
            Place::Ended(end) => IndexRow::Ended(partition_of(*end, self), self.changed_us),
        }
    }

    fn sorted(&self, order_us: i64, keyed: bool) -> QueuePlace {
        let key = self.sort_key.filter(|_| keyed).and_then(SortKey::new);
        QueuePlace { tenant: self.tenant.clone(), key, priority: self.priority, order_us }
    }

    fn held_back(&self, order_us: i64, limit: &Limit) -> LimitedPlace {
        LimitedPlace { limit: limit.clone(), tenant: self.tenant.clone(), priority: self.priority, order_us }
    }

    /// What the row of its place says about the job, so that lists need no record ([`crate::listing`]). Empty where rows have other
    /// values.
    pub fn row_value(&self) -> Bytes {
        match &self.place {
            Place::Ended(_) | Place::Delayed { .. } | Place::Crashing { .. } | Place::Parked { .. } => {
                Cover::of(self).bytes()
            }
            Place::Blocked { .. } => encode(&(&self.tenant, self.changed_us)),
            Place::Pending { .. } | Place::Paused { .. } | Place::Limited { .. } | Place::Active(_) => {
                Bytes::new()
            }
        }
    }

    /// Whether the row of its place may have this value.
    pub(crate) fn may_have(&self, value: &[u8]) -> bool {
        let expected = self.row_value();
        // A row may be from before rows told the task.
        let without_task = || match self.place {
            Place::Blocked { .. } => expected.clone(),
            _ => Cover { task: None, ..Cover::of(self) }.bytes(),
        };
        expected.is_empty() || value == expected || value == without_task()
    }

    /// The key of that row.
    pub(crate) fn index_key(&self, keys: &Keyspace) -> Bytes {
        self.index_row().key_of(keys, &self.job_type, &self.id)
    }
}
