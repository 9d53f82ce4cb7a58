//! The tenants with pending jobs, and their queues: one per tenant.
//!
//! *Model.* Each tenant of a type has its own queue, and a pass first reads which tenants wait. The row that states this is
//! written whenever a job becomes pending, as a versionstamp and without a read. So adds never conflict over it, not even on
//! etcd, where commits that stamp the same key share a transaction. The worker that finds the queue empty removes the row,
//! in a transaction that proves it ([`no_longer_waiting`]). So the row may exist for a while without a pending job, but
//! never a pending job without the row.
//!
//! *Forces.* A queue per tenant costs one more row per pending job than one queue for all tenants. No row is rewritten when
//! the order of the tenants changes, however many jobs they have.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use async_recursion::async_recursion as boxed;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_store::{Transaction, Versionstamp};

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::error::corrupt;
use crate::job::Job;
use crate::keyspace::{KeyRange, QueuePlace, SortKey, behind};
use crate::locks::{of_pending_value, pending_value};
use crate::place::Place;
use crate::reads;
use crate::rows::{read_job, write_job};
use crate::{Error, Keyspace, Result};

/// A job in the queue of its tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The job.
    pub id: String,
    /// When it was last started, or added, in µs: lower runs first.
    pub order_us: i64,
    /// A key that sorts the job before its priority and time; jobs without a key come first.
    pub key: Option<f64>,
    /// Its priority: lower ones run first.
    pub priority: i8,
    /// The locks that it declares.
    pub locks: Arc<Requests>,
}

/// Calls `each` with every tenant that may have pending jobs, by name, after the tenant `after` if given. Each comes with the stamp of its
/// latest pending job. Reads `page` rows at a time, and stops after `most`: then it returns the last tenant. Adds no read conflict.
///
/// Not for a transaction that has made a job pending: such a stamp is unknown before the commit, and the store returns
/// [`turnwise_store::Error::Misuse`].
pub async fn each_waiting(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    bounds: (usize, usize),
    mut each: impl FnMut(String, Versionstamp),
) -> Result<Option<String>> {
    let after = after.map(|after| keys.waiting_entry(job_type, after));
    let read = |key: &Bytes, value: &Bytes| {
        let stamp = value.as_ref().try_into().map_err(|_| corrupt("waiting row", "no versionstamp"))?;
        each(keys.parse_waiting(key)?, Versionstamp(stamp));
        Ok(())
    };
    let last = reads::each(tx, behind(keys.waiting(job_type), after), bounds, read).await?;
    Ok(last.map(|last| keys.parse_waiting(&last)).transpose()?)
}

/// Removes a tenant from [`each_waiting`] if its queue is empty, and returns whether it is. A concurrent add of a job of the
/// tenant makes this transaction conflict, not the add. Use a transaction of its own, so that nothing else is repeated.
#[boxed]
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

/// The first `limit` jobs of a tenant's queue. Adds no read conflict: claiming a job adds one.
#[boxed]
pub async fn front(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    limit: usize,
) -> Result<Vec<Pending>> {
    DecodedRows::default().read(tx, keys, keys.pending_of(job_type, tenant), limit).await
}

/// The first `limit` jobs in a tenant's queue that are sorted by keys; their rows come last. Adds no read conflict.
#[boxed]
pub async fn keyed(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    limit: usize,
) -> Result<Vec<Pending>> {
    DecodedRows::default().read(tx, keys, keys.keyed_of(job_type, tenant), limit).await
}

/// The most rows that [`DecodedRows`] keeps.
const MAX_DECODED: usize = 4_096;
/// The longest value of a kept row, in bytes.
const MAX_DECODED_BYTES: usize = 1_024;
/// The number of reads of queues at the same time.
const CONCURRENT_READS: usize = 64;
/// The most queues that are read together.
const NEIGHBOURS: usize = 64;
/// How many more rows of each queue than wanted such a read may return.
const SPARE: usize = 8;
/// Reads of several queues after which all queues are read together again.
const FORGOTTEN_AFTER: usize = 256;

/// Rows of jobs that lock, decoded by earlier reads. A pass reads the head of the queue again each time, and decoding the
/// locks of a row costs several times as much as reading it.
#[derive(Debug, Default)]
pub struct DecodedRows {
    /// By key.
    rows: Mutex<HashMap<Box<[u8]>, DecodedRow>>,
    alone: Mutex<Alone>,
}

/// The queues that are read alone for a while.
#[derive(Debug, Default)]
struct Alone {
    /// The first keys of queues that hid others when they were read with them, or that were hidden first.
    begins: HashSet<Bytes>,
    /// The reads of several queues since this was forgotten.
    reads: usize,
}

#[derive(Debug)]
struct DecodedRow {
    /// The value that was decoded.
    value: Box<[u8]>,
    pending: Pending,
}

impl DecodedRows {
    /// The first `limit` jobs of a part of a tenant's queue: [`Keyspace::pending_of`] or [`Keyspace::keyed_of`]. Adds no read
    /// conflict.
    pub async fn read(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        range: KeyRange,
        limit: usize,
    ) -> Result<Vec<Pending>> {
        self.decode(keys, &reads::rows(tx, range, limit).await?)
    }

    /// The first jobs of several tenants' queues of a type: as many of each as wanted. Adds no read conflict.
    ///
    /// Where each read waits for another machine, queues that are neighbours by name are read together, unless they are long: then a
    /// read would return jobs that nobody wants.
    pub async fn read_each(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        job_type: &str,
        wanted: &[(Arc<str>, usize)],
    ) -> Result<Vec<Vec<Pending>>> {
        let queues: Vec<Queue> = wanted
            .iter()
            .map(|(tenant, wanted)| Queue { range: keys.pending_of(job_type, tenant), wanted: *wanted })
            .collect();
        let mut rows: Vec<Option<Vec<(Bytes, Bytes)>>> = vec![None; queues.len()];
        let groups = if tx.is_remote() { self.neighbours(&queues) } else { Vec::new() };
        let read = |group: Vec<usize>| read_together(tx, &queues, group);
        let together: Vec<_> =
            stream::iter(groups).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        for group in together {
            self.alone().begins.extend(group.alone.into_iter().map(|place| queues[place].range.0.clone()));
            for (place, found) in group.found {
                rows[place] = Some(found);
            }
        }
        let rest: Vec<usize> = (0..queues.len()).filter(|place| rows[*place].is_none()).collect();
        let read = |place: usize| {
            let Queue { range, wanted } = &queues[place];
            async move { Ok::<_, Error>((place, reads::rows(tx, range.clone(), *wanted).await?)) }
        };
        let alone: Vec<_> = stream::iter(rest).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        for (place, found) in alone {
            rows[place] = Some(found);
        }
        rows.iter().flatten().map(|rows| self.decode(keys, rows)).collect()
    }

    /// Groups of queues that are neighbours by name, without those that are read alone.
    fn neighbours(&self, queues: &[Queue]) -> Vec<Vec<usize>> {
        let mut by_name: Vec<usize> = (0..queues.len()).collect();
        by_name.sort_by(|a, b| queues[*a].range.0.cmp(&queues[*b].range.0));
        let mut alone = self.alone();
        alone.reads += 1;
        if alone.reads.is_multiple_of(FORGOTTEN_AFTER) {
            alone.begins.clear();
        }
        let runs = by_name.split(|place| alone.begins.contains(&queues[*place].range.0));
        let groups = runs.flat_map(|run| run.chunks(NEIGHBOURS)).filter(|group| group.len() > 1);
        groups.map(<[usize]>::to_vec).collect()
    }

    fn alone(&self) -> MutexGuard<'_, Alone> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decode(&self, keys: &Keyspace, rows: &[(Bytes, Bytes)]) -> Result<Vec<Pending>> {
        let mut known = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let decode = |(key, value): &(Bytes, Bytes)| {
            if value.is_empty() {
                return Ok(read_pending(keys, key, read_declared(value)?)?.1);
            }
            if let Some(row) = known.get(&**key).filter(|row| *row.value == **value) {
                return Ok(row.pending.clone());
            }
            let (_, pending) = read_pending(keys, key, read_declared(value)?)?;
            if value.len() <= MAX_DECODED_BYTES {
                if known.len() >= MAX_DECODED {
                    known.clear();
                }
                // Copied, because the row may be part of a larger block.
                let row = DecodedRow { value: value.as_ref().into(), pending: pending.clone() };
                known.insert(key.as_ref().into(), row);
            }
            Ok(pending)
        };
        rows.iter().map(decode).collect()
    }
}

/// A queue to be read.
#[derive(Debug)]
struct Queue {
    range: KeyRange,
    /// The most jobs.
    wanted: usize,
}

/// Queues that were read together.
#[derive(Debug, Default)]
struct Group {
    /// The rows that were wanted of each queue that was seen: a long one may hide those behind it.
    found: Vec<(usize, Vec<(Bytes, Bytes)>)>,
    /// The queues that shall be read alone next time.
    alone: Vec<usize>,
}

/// Reads queues that are neighbours by name, in this order, with one read.
async fn read_together(tx: &Transaction, queues: &[Queue], group: Vec<usize>) -> Result<Group> {
    let mut read = Group::default();
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(read) };
    let range = (queues[*first].range.0.clone(), queues[*last].range.1.clone());
    let limit = group.iter().map(|place| queues[*place].wanted + SPARE).sum();
    let rows = reads::rows(tx, range, limit).await?;
    let is_whole = rows.len() < limit;
    for place in group {
        let Queue { range: (begin, end), wanted } = &queues[place];
        let from = rows.partition_point(|(key, _)| key < begin);
        let to = rows.partition_point(|(key, _)| key < end);
        let of_queue = &rows[from..to.min(from + wanted)];
        let is_seen = of_queue.len() == *wanted || to < rows.len() || is_whole;
        // Behind a long queue of a tenant that is not wanted, the first one that is not seen ends the next read.
        if !is_whole && (to - from > wanted + SPARE || !is_seen && read.alone.is_empty()) {
            read.alone.push(place);
        }
        if is_seen {
            read.found.push((place, of_queue.to_vec()));
        }
    }
    Ok(read)
}

/// A part of the pending rows of a type.
#[derive(Debug, Default)]
pub struct Page {
    /// The jobs that were wanted, each with its tenant.
    pub jobs: Vec<(String, Pending)>,
    /// How many rows were read.
    pub rows: usize,
    /// Where to continue; `None` at the end.
    pub next: Option<Bytes>,
}

/// Reads up to `limit` pending rows of a type, tenant by tenant, in the order of their keys, from `from` or from the start.
/// Returns the jobs whose declared locks are `wanted`. Of many blocked jobs, many declare the same: each declaration is
/// decoded once, and the keys of other jobs are not. Adds no read conflict.
pub async fn page(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    from: Option<Bytes>,
    limit: usize,
    wanted: impl Fn(&Requests) -> bool,
) -> Result<Page> {
    let (begin, end) = keys.pending(job_type);
    let rows = reads::rows(tx, (from.unwrap_or(begin), end), limit).await?;
    let next =
        rows.last().filter(|_| rows.len() == limit).map(|(key, _)| turnwise_store::key::successor(key));
    let mut declared: HashMap<&[u8], Option<Arc<Requests>>> = HashMap::new();
    let mut jobs = Vec::new();
    for (key, value) in &rows {
        let known = match declared.get(&**value) {
            Some(known) => known.clone(),
            None => {
                let known = Some(read_declared(value)?).filter(|locks| wanted(locks));
                declared.insert(value, known.clone());
                known
            }
        };
        if let Some(known) = known {
            jobs.push(read_pending(keys, key, known)?);
        }
    }
    Ok(Page { jobs, rows: rows.len(), next })
}

/// The locks that the value of a pending row declares.
fn read_declared(value: &[u8]) -> Result<Arc<Requests>> {
    static NOTHING: LazyLock<Arc<Requests>> = LazyLock::new(Arc::default);
    if value.is_empty() {
        return Ok(NOTHING.clone());
    }
    of_pending_value(value).map(Arc::new)
}

/// The tenant and the job of a pending row.
fn read_pending(keys: &Keyspace, key: &[u8], locks: Arc<Requests>) -> Result<(String, Pending)> {
    let (QueuePlace { tenant, key, priority, order_us }, id) = keys.parse_pending(key)?;
    Ok((tenant, Pending { id, order_us, key: key.map(SortKey::get), priority, locks }))
}

/// How many pending jobs a tenant has; counts up to `most`. Adds no read conflict.
#[boxed]
pub async fn count_pending(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    most: usize,
) -> Result<usize> {
    Ok(reads::rows(tx, keys.pending_of(job_type, tenant), most).await?.len())
}

/// How many jobs are before a pending one in its tenant's queue; counts up to `most`. Adds no read conflict.
#[boxed]
pub async fn rank(tx: &Transaction, keys: &Keyspace, job: &Job, most: usize) -> Result<usize> {
    let (job_type, tenant) = (&job.job_type, &job.tenant);
    let Some(place) = job.queue_place() else { return Ok(0) };
    let (begin, _) = keys.pending_of(job_type, tenant);
    let (keyed, end) = keys.keyed_of(job_type, tenant);
    let own = keys.pending_entry(job_type, &place, &job.id);
    // Jobs with keys are of priority 0, although their rows come last: they are before the jobs of priorities from 1 on.
    let later = QueuePlace { priority: 1, ..QueuePlace::by_time(tenant, i64::MIN) };
    let later = keys.pending_entry(job_type, &later, "");
    let (first, second) = match (place.key.is_some(), place.priority) {
        (true, 0) => ((begin, later), Some((keyed, own))),
        (false, 1..) => ((begin, own), Some((keyed, end))),
        _ => ((begin, own), None),
    };
    let before = reads::rows(tx, first, most).await?.len();
    match second.filter(|_| before < most) {
        Some(range) => Ok(before + reads::rows(tx, range, most - before).await?.len()),
        None => Ok(before),
    }
}

/// Sorts a pending job by a key, or by its time alone, and returns whether that was a change. Does nothing to a job that is
/// no longer pending. Wakes no worker: there is no more work than before.
///
/// # Errors
/// [`Error::Invalid`] for a key that is not a finite number.
#[boxed]
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
    // A job that loses its key keeps its priority: it may be sorted by it again.
    job.sort_key = key.map(SortKey::get).or(job.sort_key);
    if let Place::Pending { keyed, .. } = &mut job.place {
        *keyed = key.is_some();
    }
    tx.clear(keys.pending_entry(job_type, &was, id))?;
    tx.set(keys.pending_entry(job_type, &QueuePlace { key, ..was }, id), pending_value(&job))?;
    write_job(tx, keys, &job)?;
    Ok(true)
}

const NOT_FINITE: &str = "must be a finite number";
