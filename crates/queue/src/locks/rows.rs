//! The rows of locks: holders, queues, and the key that wakes waiting jobs.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_policy::predictive_queue::locks::{Levels, Mode, Requests};
use turnwise_policy::predictive_queue::summary::Running;
use turnwise_store::Transaction;

use super::held::{Held, LockAt, Spot};
use crate::rows::{decode, encode};
use crate::{Claim, Job, Keyspace, Result};

/// The transaction, where its rows are, and the configured levels.
pub(super) type View<'a> = (&'a Transaction, &'a Keyspace, &'a Levels);

/// The value of a row of [`Keyspace::locks`]: a job holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRow {
    /// The claim that holds it.
    #[serde(flatten)]
    pub claim: Claim,
    /// The job's tenant.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
    /// Shared: the number of units.
    pub units: u32,
    /// Shared: the resource's capacity when they were taken, if units were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Only in the row of the big lock, which every claim with locks has: all its locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Box<AllOf>>,
}

/// All that the rows state about one claim with locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllOf {
    /// The job's declaration.
    pub locks: Requests,
    /// The locks that it holds.
    pub held: Held,
    /// The lock that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<LockAt>,
}

impl AllOf {
    /// The same in the policy's form, for a pass that weighs other jobs against it.
    pub fn running(&self, levels: &Levels) -> Running {
        let locks = self.held.locks().into_iter().chain(self.waits.clone());
        Running::new(locks.filter_map(|lock| lock.lock(levels)), &self.locks, levels)
    }
}

/// The value of a row of [`Keyspace::lock_queues`]: a job waits for a lock, or has reserved it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// The mode that it wants.
    pub mode: Mode,
    /// Shared: the number of units.
    pub units: u32,
    /// The job's tenant.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
    /// Set for a running job that waits. Otherwise the job is pending, and this is a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waiter>,
}

/// A running job that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// It holds something of the level of the lock that it waits for.
    pub inside: bool,
}

/// The units of a resource. `None` if they are not counted, as for everything except resources of a configured level with a
/// capacity.
pub(crate) fn capacity(levels: &Levels, spot: &Spot) -> Option<u32> {
    let (level, name) = (spot.level.as_deref()?, spot.name.as_deref()?);
    levels.capacity(levels.position(level)?, name)
}

/// The value of a pending row: the job's locks, so that a pass needs no record.
pub(crate) fn pending_value(job: &Job) -> Bytes {
    if job.locks.is_none() { Bytes::new() } else { encode(&job.locks) }
}

/// The reverse of [`pending_value`].
pub(crate) fn of_pending_value(value: &[u8]) -> Result<Requests> {
    if value.is_empty() { Ok(Requests::default()) } else { decode("pending row", value) }
}

/// Writes the row of a lock that a job holds. The row of the big lock has all its locks; [`put_all`] writes it.
pub(super) fn put_holder(
    (tx, keys, levels): View<'_>,
    job: &Job,
    claim: &Claim,
    lock: &LockAt,
    since_us: i64,
) -> Result<()> {
    let capacity = capacity(levels, &lock.spot).filter(|_| lock.mode == Mode::Shared);
    // A job that wants more units than the current capacity gets all of them.
    let units = capacity.map_or(lock.units, |most| lock.units.min(most));
    let tenant = job.tenant.clone();
    let row = HolderRow { claim: claim.clone(), tenant, since_us, units, capacity, all: None };
    Ok(tx.set(keys.lock_holder(&lock.spot, lock.mode, &job.job_type, &job.id), encode(&row))?)
}

/// Writes the row of the big lock, with the record's data about locks. Does nothing if the job holds no locks.
pub(crate) fn put_all(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let (Some(held), Some(claim)) = (job.held(), job.claim()) else { return Ok(()) };
    let waits = job.waits().map(|waits| waits.lock.clone());
    let all = AllOf { locks: job.locks.clone(), held: held.clone(), waits };
    let row = HolderRow {
        claim: claim.clone(),
        tenant: job.tenant.clone(),
        since_us: job.started_us.unwrap_or(job.changed_us),
        units: 1,
        capacity: None,
        all: Some(Box::new(all)),
    };
    Ok(tx.set(keys.lock_holder(&Spot::BIG_LOCK, held.big_lock, &job.job_type, &job.id), encode(&row))?)
}

/// Wakes the jobs that wait for locks, so that they check again.
pub(crate) fn wake(tx: &Transaction, keys: &Keyspace) -> Result<()> {
    Ok(tx.set_versionstamp(keys.lock_wake())?)
}

/// Clears the rows of the locks that an ending claim holds and waits for, and removes them from the record, which it does
/// not write. Does nothing for a job without locks.
pub(crate) fn release(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    let Some(run) = job.run_mut() else { return Ok(()) };
    let (locks, held, waits) = (run.next.locks.take(), run.held.take(), run.waits.take());
    if let Some(locks) = locks {
        // Nothing below reads this: held locks have their own list.
        job.spec.locks = locks;
    }
    let Some(held) = held else { return Ok(()) };
    if let Some(waits) = waits {
        tx.clear(keys.lock_queue_entry(&waits.lock.spot, waits.ticket, &job.job_type, &job.id))?;
    }
    for lock in held.locks() {
        tx.clear(keys.lock_holder(&lock.spot, lock.mode, &job.job_type, &job.id))?;
    }
    wake(tx, keys)
}

/// Clears the reservation of a job that is about to stop being pending; the caller changes its record. Does nothing without
/// a reservation.
pub(crate) fn unreserve(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let Some(ticket) = job.reserved() else { return Ok(()) };
    for lock in Held::known(&job.locks).iter().flat_map(Held::locks) {
        tx.clear(keys.lock_queue_entry(&lock.spot, ticket, &job.job_type, &job.id))?;
    }
    wake(tx, keys)
}
