//! The jobs that the rows of a lock name.

use bytes::Bytes;

use super::held::LockAt;
use super::rows::{HolderRow, QueueRow};
use crate::encoding::decode;
use crate::{Claim, Keyspace, Result};

/// A job that holds a lock, waits for it, or has reserved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its row's key: a listing continues after it.
    pub key: Bytes,
    /// The lock.
    pub lock: LockAt,
    /// Whether it holds, waits for, or has reserved the lock.
    pub how: How,
    /// The job's type.
    pub job_type: String,
    /// The job.
    pub id: String,
    /// The job's tenant.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
    /// Its claim; `None` for a reservation.
    pub claim: Option<Claim>,
    /// Its ticket in the queue, lowest first, if it waits or has a reservation.
    pub ticket: Option<i64>,
}

/// How a lock names a job, and how the job blocks others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum How {
    /// It holds the lock.
    Holds,
    /// It runs, waits for the lock, and came first.
    Waits,
    /// It is pending, has reserved the lock, and came first.
    Reserved,
}

impl Entry {
    /// A row of [`Keyspace::locks`].
    pub(super) fn of_holder(keys: &Keyspace, key: &Bytes, value: &[u8]) -> Result<Entry> {
        let (spot, mode, job_type, id) = keys.parse_lock(key)?;
        let HolderRow { claim, tenant, since_us, units, .. } = decode("lock row", value)?;
        let lock = LockAt { spot, mode, units };
        let (key, how, claim) = (key.clone(), How::Holds, Some(claim));
        Ok(Entry { key, lock, how, job_type, id, tenant, since_us, claim, ticket: None })
    }

    /// A row of [`Keyspace::lock_queues`], and whether its job runs and holds something of the level.
    pub(super) fn of_queue(keys: &Keyspace, key: &Bytes, value: &[u8]) -> Result<(Entry, bool)> {
        let (spot, ticket, job_type, id) = keys.parse_lock_queue(key)?;
        let QueueRow { mode, units, tenant, since_us, waits } = decode("lock queue row", value)?;
        let lock = LockAt { spot, mode, units };
        let how = if waits.is_some() { How::Waits } else { How::Reserved };
        let is_inside = waits.as_ref().is_some_and(|waiter| waiter.inside);
        let (key, claim, ticket) = (key.clone(), waits.map(|waiter| waiter.claim), Some(ticket));
        Ok((Entry { key, lock, how, job_type, id, tenant, since_us, claim, ticket }, is_inside))
    }
}
