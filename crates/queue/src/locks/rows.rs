//! The rows of locks: who holds them, who waits for them, and what wakes whoever does.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_policy::predictive_queue::experience::Traits;
use turnwise_policy::predictive_queue::locks::{Levels, Mode, Requests};
use turnwise_policy::predictive_queue::summary::Running;
use turnwise_store::Transaction;

use super::held::{Held, LockAt, Spot};
use crate::rows::{decode, encode};
use crate::{Claim, Job, Keyspace, Result};

/// That a job holds a lock: the value of a row of [`Keyspace::locks`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRow {
    /// Under which claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// Whose job it is.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
    /// Shared: so many units.
    pub units: u32,
    /// Shared: units that there were when they were taken, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Of the big lock, of which every claim with locks has one row: what the job declares, and what it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Box<AllOf>>,
}

/// What there is to know of one claim with locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllOf {
    /// What the job declares.
    pub locks: Requests,
    /// What it holds.
    pub held: Held,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<LockAt>,
    /// What it has in common with others.
    #[serde(default, skip_serializing_if = "Traits::is_empty")]
    pub traits: Traits,
}

impl AllOf {
    /// The same for whoever weighs other jobs against it.
    pub fn running(&self, levels: &Levels) -> Running {
        let locks = self.held.locks().into_iter().chain(self.waits.clone());
        Running::new(locks.filter_map(|lock| lock.lock(levels)), &self.locks, levels)
    }
}

/// That a job waits for a lock, or has reserved it: the value of a row of [`Keyspace::lock_queues`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// How it wants it.
    pub mode: Mode,
    /// Shared: so many units.
    pub units: u32,
    /// Whose job it is.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
    /// It runs, and waits; without, it is pending, and this is a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waiter>,
}

/// Of a job that waits while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// It holds something of the level of the lock that it waits for.
    pub inside: bool,
}

/// What a job waits for while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The lock.
    #[serde(flatten)]
    pub lock: LockAt,
    /// Its number in the lock's queue: lower comes first.
    pub ticket: i64,
    /// Since when, in µs.
    pub since_us: i64,
}

/// Units that a resource has; `None` if they are not counted, as of everything but resources of a level that there is.
pub(crate) fn capacity(levels: &Levels, spot: &Spot) -> Option<u32> {
    let (level, name) = (spot.level.as_deref()?, spot.name.as_deref()?);
    levels.capacity(levels.position(level)?, name)
}

/// The value of a pending row: what the job wants, so that who comes next is told without its record; in a list with what it has in common
/// with others, if it has something.
pub(crate) fn pending_value(job: &Job) -> Bytes {
    if job.locks.is_none() {
        Bytes::new()
    } else if job.traits.is_empty() {
        encode(&job.locks)
    } else {
        encode(&(&job.locks, &job.traits))
    }
}

/// The way back.
pub(crate) fn of_pending_value(value: &[u8]) -> Result<(Requests, Traits)> {
    match value.first() {
        None => Ok(Default::default()),
        Some(b'[') => decode("pending row", value),
        Some(_) => Ok((decode("pending row", value)?, Traits::default())),
    }
}

/// Writes the row that says that a job holds this lock. The one of the big lock says what else it holds, and is [`put_all`]'s.
pub(crate) fn put_holder(
    tx: &Transaction,
    keys: &Keyspace,
    levels: &Levels,
    job: &Job,
    claim: &Claim,
    lock: &LockAt,
    since_us: i64,
) -> Result<()> {
    let capacity = capacity(levels, &lock.spot).filter(|_| lock.mode == Mode::Shared);
    // Who wants more than there is, as it is configured now, has all of it.
    let units = capacity.map_or(lock.units, |most| lock.units.min(most));
    let tenant = job.tenant.clone();
    let row = HolderRow { claim: claim.clone(), tenant, since_us, units, capacity, all: None };
    Ok(tx.set(keys.lock_holder(&lock.spot, lock.mode, &job.job_type, &job.id), encode(&row))?)
}

/// Writes the row that says that a job holds the big lock, and with it what else the record says; nothing if it holds none.
pub(crate) fn put_all(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let (Some(held), Some(claim)) = (job.held(), job.claim()) else { return Ok(()) };
    let waits = job.waits().map(|waits| waits.lock.clone());
    let all = AllOf { locks: job.locks.clone(), held: held.clone(), waits, traits: job.traits.clone() };
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

/// Lets whoever waits for locks look again.
pub(crate) fn wake(tx: &Transaction, keys: &Keyspace) -> Result<()> {
    Ok(tx.set_versionstamp(keys.lock_wake())?)
}

/// Clears what a claim that ends holds, and what it waits for. Does not write the record, from which all of it goes. Nothing for
/// a job without locks.
pub(crate) fn release(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    let Some(run) = job.run_mut() else { return Ok(()) };
    let (locks, traits) = (run.next.locks.take(), run.next.traits.take());
    let (held, waits) = (run.held.take(), run.waits.take());
    if let Some(locks) = locks {
        // Read by nobody below: what is held is in a list of its own.
        job.locks = locks;
    }
    if let Some(traits) = traits {
        job.traits = traits;
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

/// Clears what a job that is about to leave the pending ones has reserved; its record must say so. Nothing for one that has
/// reserved nothing.
pub(crate) fn unreserve(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let Some(ticket) = job.reserved() else { return Ok(()) };
    for lock in Held::known(&job.locks).iter().flat_map(Held::locks) {
        tx.clear(keys.lock_queue_entry(&lock.spot, ticket, &job.job_type, &job.id))?;
    }
    wake(tx, keys)
}
