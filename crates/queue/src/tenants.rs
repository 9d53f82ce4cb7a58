//! Who has pending jobs, and which: a queue per tenant.
//!
//! *Model.* Each tenant of a type has a queue of its own, and whoever looks for work asks first who waits. The row that says so is
//! written with every pending row, as a versionstamp and without a look at what it was: those who add jobs never conflict over
//! it, not even on etcd, where commits that stamp the same key share a transaction. It goes by the hand of whoever found the
//! queue empty, in a transaction that proves it ([`no_longer_waiting`]). So it may be there without a pending job, for a while; there is never
//! a pending job without it.
//!
//! *Forces.* A queue per tenant costs one row more per pending job than one for all, and none of them is rewritten when the
//! order of the tenants changes, however many jobs they have.

use turnwise_policy::predictive_queue::experience::Traits;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_store::{Isolation, RangeRead, Transaction, Versionstamp};

use bytes::Bytes;

use crate::error::corrupt;
use crate::job::Job;
use crate::keyspace::{KeyRange, QueuePlace, SortKey};
use crate::locks::{of_pending_value, pending_value};
use crate::rows::{read_job, write_job};
use crate::{Error, Keyspace, Result, State};

/// A job in the queue of its tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The job.
    pub id: String,
    /// When it was last started, or added, in µs: lower runs first.
    pub order_us: i64,
    /// What sorts it before its class and time, if something does; those without come first.
    pub key: Option<f64>,
    /// Its priority class: lower ones run first.
    pub class: i8,
    /// What it wants to lock.
    pub locks: Requests,
    /// What it has in common with others, if it does not know all of that.
    pub traits: Traits,
}

/// Up to `limit` tenants that may have pending jobs, by name, after the tenant `after` if it is given; each with the stamp of
/// the latest pending row that it was given. Takes no conflict.
///
/// Not in a transaction that has made a job pending before: such a stamp is not known before the commit, and the store says so
/// ([`turnwise_store::Error::Misuse`]).
pub async fn waiting(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, Versionstamp)>> {
    let (mut begin, end) = keys.waiting(job_type);
    if let Some(after) = after {
        begin = turnwise_store::key::successor(&keys.waiting_entry(job_type, after));
    }
    let rows = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    rows.iter()
        .map(|(key, value)| {
            let tenant =
                keys.parse_waiting(key).ok_or_else(|| corrupt("waiting key", "not a tuple of three"))?;
            let stamp = value.as_ref().try_into().map_err(|_| corrupt("waiting row", "no versionstamp"))?;
            Ok((tenant, Versionstamp(stamp)))
        })
        .collect()
}

/// Takes a tenant out of [`waiting`] if its queue is empty, and returns whether it is. Whoever adds a job of the tenant meanwhile makes this
/// conflict, and does not notice. In a transaction of its own, so that nothing else has to run again.
pub async fn no_longer_waiting(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
) -> Result<bool> {
    let is_empty = tx.range(&keys.pending_of(job_type, tenant), 1).await?.is_empty();
    if is_empty {
        tx.clear(keys.waiting_entry(job_type, tenant))?;
    }
    Ok(is_empty)
}

/// The first `limit` jobs of a tenant's queue. Takes no conflict: claiming a job is what conflicts.
pub async fn front(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    limit: usize,
) -> Result<Vec<Pending>> {
    read_jobs(tx, keys, keys.pending_of(job_type, tenant), limit).await
}

/// The first `limit` of those in a tenant's queue that are sorted by keys, behind all others. Takes no conflict.
pub async fn keyed(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    limit: usize,
) -> Result<Vec<Pending>> {
    read_jobs(tx, keys, keys.keyed_of(job_type, tenant), limit).await
}

async fn read_jobs(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Vec<Pending>> {
    let rows = read_queue(tx, range, limit).await?;
    rows.iter()
        .map(|(key, value)| {
            let (QueuePlace { key, class, order_us, .. }, id) =
                keys.parse_pending(key).ok_or_else(|| corrupt("pending key", "no place in a queue"))?;
            let (locks, traits) = of_pending_value(value)?;
            Ok(Pending { id, order_us, key: key.map(SortKey::get), class, locks, traits })
        })
        .collect()
}

/// How many pending jobs a tenant has; counts up to `most`. Takes no conflict.
pub async fn count_pending(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    most: usize,
) -> Result<usize> {
    Ok(read_queue(tx, keys.pending_of(job_type, tenant), most).await?.len())
}

/// How many jobs are before a pending one in its tenant's queue; counts up to `most`. Takes no conflict.
pub async fn rank(tx: &Transaction, keys: &Keyspace, job: &Job, most: usize) -> Result<usize> {
    let (begin, _) = keys.pending_of(&job.job_type, &job.tenant);
    let end = keys.pending_entry(&job.job_type, &job.queue_place(), &job.id);
    Ok(read_queue(tx, (begin, end), most).await?.len())
}

/// The rows of a range, up to `limit` of them.
async fn read_queue(tx: &Transaction, (begin, end): KeyRange, limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
    let read = RangeRead { begin, end, limit, reverse: false };
    Ok(tx.range_with(read, Isolation::Snapshot).await?)
}

/// Sorts a pending job by a key, or by its time alone, and returns whether that was a change. Nothing happens to a job that is not
/// pending any more. Wakes nobody: there is no more to do than before.
///
/// # Errors
/// [`Error::Invalid`] for a key that is not a finite number.
pub async fn set_key(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    key: Option<f64>,
) -> Result<bool> {
    let sorted = key.map(|key| SortKey::new(key).ok_or(NOT_FINITE)).transpose();
    let key = sorted.map_err(|problem| Error::Invalid { field: "priority", problem: problem.to_owned() })?;
    let Some(mut job) = read_job(tx, keys, job_type, id).await? else { return Ok(false) };
    let was = job.queue_place();
    if job.state != State::Pending || was.key == key {
        return Ok(false);
    }
    // Its priority stays with a job that loses its key: it may be sorted by it again.
    job.priority = key.map(SortKey::get).or(job.priority);
    job.keyed = key.is_some();
    tx.clear(keys.pending_entry(job_type, &was, id))?;
    tx.set(keys.pending_entry(job_type, &job.queue_place(), id), pending_value(&job))?;
    write_job(tx, keys, &job)?;
    Ok(true)
}

const NOT_FINITE: &str = "must be a finite number";
