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
use crate::place::Place;
use crate::rows::{read_job, write_job};
use crate::{Error, Keyspace, Result};

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

/// Up to `limit` pending jobs of all tenants of a type, each with its tenant, in the order of their keys: tenant by tenant, from `from` on or from
/// the first one. With them, where to go on; `None` at the end. Takes no conflict.
pub async fn page(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    from: Option<Bytes>,
    limit: usize,
) -> Result<(Vec<(String, Pending)>, Option<Bytes>)> {
    let (begin, end) = keys.pending(job_type);
    let rows = read_queue(tx, (from.unwrap_or(begin), end), limit).await?;
    let next =
        rows.last().filter(|_| rows.len() == limit).map(|(key, _)| turnwise_store::key::successor(key));
    let jobs = rows.iter().map(|(key, value)| read_pending(keys, key, value)).collect::<Result<_>>()?;
    Ok((jobs, next))
}

async fn read_jobs(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Vec<Pending>> {
    let rows = read_queue(tx, range, limit).await?;
    rows.iter().map(|(key, value)| Ok(read_pending(keys, key, value)?.1)).collect()
}

/// A pending row: its tenant, and the job.
fn read_pending(keys: &Keyspace, key: &[u8], value: &[u8]) -> Result<(String, Pending)> {
    let (QueuePlace { tenant, key, class, order_us }, id) =
        keys.parse_pending(key).ok_or_else(|| corrupt("pending key", "no place in a queue"))?;
    let (locks, traits) = of_pending_value(value)?;
    Ok((tenant, Pending { id, order_us, key: key.map(SortKey::get), class, locks, traits }))
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
    let Job { job_type, tenant, .. } = job;
    let Some(place) = job.queue_place() else { return Ok(0) };
    let (begin, _) = keys.pending_of(job_type, tenant);
    let (keyed, end) = keys.keyed_of(job_type, tenant);
    let own = keys.pending_entry(job_type, &place, &job.id);
    // Those with keys are of class 0, and stand behind all others: later classes, too.
    let later = QueuePlace { class: 1, ..QueuePlace::by_time(tenant, i64::MIN) };
    let later = keys.pending_entry(job_type, &later, "");
    let (first, second) = match (place.key.is_some(), place.class) {
        (true, 0) => ((begin, later), Some((keyed, own))),
        (false, 1..) => ((begin, own), Some((keyed, end))),
        _ => ((begin, own), None),
    };
    let before = read_queue(tx, first, most).await?.len();
    match second.filter(|_| before < most) {
        Some(range) => Ok(before + read_queue(tx, range, most - before).await?.len()),
        None => Ok(before),
    }
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
    let Some(was) = job.queue_place().filter(|was| was.key != key) else { return Ok(false) };
    // Its priority stays with a job that loses its key: it may be sorted by it again.
    job.priority = key.map(SortKey::get).or(job.priority);
    if let Place::Pending { keyed, .. } = &mut job.place {
        *keyed = key.is_some();
    }
    tx.clear(keys.pending_entry(job_type, &was, id))?;
    tx.set(keys.pending_entry(job_type, &QueuePlace { key, ..was }, id), pending_value(&job))?;
    write_job(tx, keys, &job)?;
    Ok(true)
}

const NOT_FINITE: &str = "must be a finite number";
