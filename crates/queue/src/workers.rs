//! Membership and liveness of workers, as rows.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::Deserialize;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::claims::{RevocationCause, take_back};
use crate::error::corrupt;
use crate::keyspace::{KeyRange, behind};
use crate::locks::Held;
use crate::names::check_name;
use crate::reads::{self, groups};
use crate::rows::{decode, encode, read_job};
use crate::spec::MAX_TYPE_BYTES;
use crate::trace::TraceContext;
use crate::worker_row::Mode;
pub use crate::worker_row::{Bounds, DEFAULT_HEALTH_TIMEOUT_US, Health, Worker};
use crate::{Claim, Context, Error, Job, Keyspace, Result, claims, worker_row};

/// The most workers that a listing reads.
const MAX_WORKERS: usize = 10_000;
/// The most jobs that one transaction of a removal gives back: it adds conflicts for each job's record and active row.
const MAX_GIVEN_BACK: usize = 40;
/// The most rows and conflicts of giving one job back, beside those of its locks and buckets.
const ROWS_GIVEN_BACK: usize = 16;
/// Longest name of a worker, in bytes.
pub const MAX_WORKER_NAME_BYTES: usize = 128;

/// Adds a worker to the membership, under an id that was never used before. A repeated attempt uses another id, or conflicts
/// with the first one over what it has read: the first one may commit after the worker has registered and left.
pub fn register(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &Worker) -> Result<()> {
    check_name("type", job_type, MAX_TYPE_BYTES)?;
    if let Some(name) = &worker.name {
        check_name("name", name, MAX_WORKER_NAME_BYTES)?;
    }
    let Worker { health_timeout_us: timeout_us, external, started_us, .. } = *worker;
    let health = Health { counter: 0, timeout_us, external, seen_us: started_us };
    tx.set(keys.worker(job_type, &worker.id), encode(worker))?;
    tx.set(keys.health(job_type, &worker.id), encode(&health))?;
    Ok(tx.set_versionstamp(keys.workers_versionstamp(job_type))?)
}

/// A heartbeat: moves a worker's health counter, and returns the worker's mode. [`Error::Halt`] if the worker is not a member.
#[boxed]
pub async fn ping(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    now_us: i64,
) -> Result<Mode> {
    let mode = mode(tx, keys, job_type, worker).await?;
    let mut health = health(tx, keys, job_type, worker)
        .await?
        .ok_or_else(|| corrupt("worker row", "has no health row"))?;
    health.counter += 1;
    health.seen_us = now_us;
    tx.set(keys.health(job_type, worker), encode(&health))?;
    Ok(mode)
}

/// Whether a member takes new jobs. [`Error::Halt`] if the worker is not a member. A change of the mode conflicts.
#[boxed]
pub async fn mode(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<Mode> {
    #[derive(Deserialize)]
    struct Row {
        #[serde(default)]
        mode: Mode,
    }
    let value = tx.get(&keys.worker(job_type, worker)).await?.ok_or(Error::Halt)?;
    Ok(decode::<Row>("worker row", &value)?.mode)
}

/// Changes a member's number of slots and their bounds; does nothing if the worker is not a member.
#[boxed]
pub async fn set_slots(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    slots: usize,
    bounds: Option<Bounds>,
) -> Result<()> {
    match get(tx, keys, job_type, worker).await? {
        Some(row) if row.slots != slots || row.bounds != bounds => {
            Ok(tx.set(keys.worker(job_type, worker), encode(&Worker { slots, bounds, ..row }))?)
        }
        _ => Ok(()),
    }
}

/// After this has committed, no transaction that the worker began earlier can commit: all of them read its membership row,
/// which this writes again. For a worker that must know whether such a transaction committed.
#[boxed]
pub async fn fence(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<()> {
    let row = keys.worker(job_type, worker);
    let value = tx.get(&row).await?.ok_or(Error::Halt)?;
    Ok(tx.set(row, value)?)
}

/// A worker's heartbeat; `None` once no row of the worker is left.
#[boxed]
pub async fn health(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
) -> Result<Option<Health>> {
    reads::value(tx, &keys.health(job_type, worker), "health row").await
}

/// One registered worker.
#[boxed]
pub async fn get(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<Option<Worker>> {
    let row: Option<Worker> = reads::value(tx, &keys.worker(job_type, worker), "worker row").await?;
    Ok(row.map(|row| Worker { id: worker.to_owned(), ..row }))
}

/// Up to `limit` workers that follow `worker` in the order of ids, closed to a ring, without `worker` itself. They include
/// workers whose removal has begun. Adds no read conflict.
#[boxed]
pub async fn neighbours(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    limit: usize,
) -> Result<Vec<(String, Health)>> {
    let own = keys.health(job_type, worker);
    let all = keys.healths(job_type);
    let mut ring = read_healths(tx, keys, behind(all.clone(), Some(own.clone())), limit).await?;
    let wrapped = read_healths(tx, keys, (all.0, own), limit - ring.len()).await?;
    ring.extend(wrapped);
    Ok(ring)
}

/// Up to `limit` workers of a type in the order of their ids, after the worker `after` if given. They include workers whose
/// removal has begun. Adds no read conflict.
#[boxed]
pub async fn healths(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, Health)>> {
    let after = after.map(|after| keys.health(job_type, after));
    read_healths(tx, keys, behind(keys.healths(job_type), after), limit).await
}

async fn read_healths(
    tx: &Transaction,
    keys: &Keyspace,
    range: KeyRange,
    limit: usize,
) -> Result<Vec<(String, Health)>> {
    let read = |key: &Bytes, value: &Bytes| Ok((keys.parse_health(key)?.1, decode("health row", value)?));
    reads::list(tx, range, limit, read).await
}

/// Up to `limit` workers of all types, each with its type, in the order of types and ids, after the worker `after` if given.
/// They include workers whose removal has begun. Adds no read conflict.
#[boxed]
pub async fn all_healths(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<(&str, &str)>,
    limit: usize,
) -> Result<Vec<(String, String, Health)>> {
    let after = after.map(|(job_type, worker)| keys.health(job_type, worker));
    let read = |key: &Bytes, value: &Bytes| {
        let (job_type, worker) = keys.parse_health(key)?;
        Ok((job_type, worker, decode("health row", value)?))
    };
    reads::list(tx, behind(keys.all_healths(), after), limit, read).await
}

/// Up to `limit` job types that have workers, or workers whose removal is not complete, after the type `after` if given. One read per
/// type.
#[boxed]
pub async fn types_after(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>> {
    let (first, end) = keys.all_healths();
    let begin = after.map_or(first, |after| keys.healths(after).1);
    let of_worker = |key: &Bytes| {
        let (job_type, _) = keys.parse_health(key)?;
        let (_, end) = keys.healths(&job_type);
        Ok((job_type, end))
    };
    groups(tx, (begin, end), limit, of_worker).await
}

/// All registered workers of a type, sorted by id. Adds no read conflict.
#[boxed]
pub async fn list(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Vec<Worker>> {
    worker_row::list(tx, keys, job_type, MAX_WORKERS).await
}

/// The workers of a type as they see each other, by the names under which they contend and charge. Workers that claim for
/// themselves are named by their ids. A node that claims for external workers is named by [`node_contender`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contenders {
    /// Those that claim from the queue, sorted, each once. A quiet worker is none of them: no part of the queue waits for it.
    pub names: Vec<String>,
    /// All of them, with the quiet ones, whose running jobs count. Sorted, each once.
    pub members: Vec<String>,
}

impl Contenders {
    /// The contenders among these workers of a type.
    pub fn of(workers: &[Worker]) -> Contenders {
        let (mut names, mut members) = (BTreeSet::new(), BTreeSet::new());
        // A worker without slots claims nothing.
        for worker in workers.iter().filter(|worker| worker.slots > 0) {
            let name = if worker.external { node_contender(&worker.node) } else { worker.id.clone() };
            if !worker.mode.is_quiet() {
                names.insert(name.clone());
            }
            members.insert(name);
        }
        Contenders { names: names.into_iter().collect(), members: members.into_iter().collect() }
    }
}

/// The contenders for the queue of a type. Reads `limit` workers. Adds no read conflict.
#[boxed]
pub async fn contenders(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    limit: usize,
) -> Result<Contenders> {
    Ok(Contenders::of(&worker_row::list(tx, keys, job_type, limit).await?))
}

/// The name of a node that claims jobs for external workers, among [`contenders`].
pub fn node_contender(node: &str) -> String {
    format!("node {node}")
}

/// Removes a worker that leaves from the membership. Its jobs are pending again. Handles up to `limit` of them; returns
/// whether the removal is complete. If not, the caller continues in another transaction.
///
/// After the first transaction the worker is no member: all of its writes return `Halt`, so it gets no further jobs. Its
/// health row, which no longer moves, stays until the last transaction: its watcher completes the removal if the remover
/// dies.
#[boxed]
pub async fn remove<'a>(context: Context<'a>, worker: &'a str, limit: usize) -> Result<bool> {
    Ok(remove_some(context, worker, Removal::Left, limit).await?.done)
}

/// Why a worker is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It leaves: its jobs are pending again.
    Left,
    /// It is dead: their [`Terms`](crate::Terms) decide what happens to its jobs.
    Lost,
}

/// The result of one transaction of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// No row of the worker is left.
    pub done: bool,
    /// The runs that the transaction ended.
    pub given_back: Vec<RunSummary>,
}

/// A run in short: what it is charged and traced by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    /// The job's id.
    pub id: String,
    /// The job's tenant.
    pub tenant: String,
    /// What the job does within its type.
    pub task: Option<String>,
    /// The claim's number.
    pub claim: u64,
    /// When the run began, in µs.
    pub started_us: i64,
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// The span that added the job.
    pub trace: Option<TraceContext>,
}

impl RunSummary {
    /// The run of a job under a claim.
    pub fn of(job: &Job, claim: &Claim, now_us: i64) -> RunSummary {
        RunSummary {
            id: job.id.clone(),
            tenant: job.tenant.clone(),
            task: job.task.clone(),
            claim: claim.number,
            started_us: job.started_us.unwrap_or(now_us),
            attempt: job.attempts.saturating_add(1),
            trace: job.trace,
        }
    }
}

/// Removes a worker for one of two reasons, and returns the runs that this ended, so that they can be charged.
#[boxed]
pub async fn remove_some<'a>(
    context: Context<'a>,
    worker: &'a str,
    why: Removal,
    limit: usize,
) -> Result<Removed> {
    let Context { tx, keys, job_type, now_us, .. } = context;
    let membership = keys.worker(job_type, worker);
    // A claim that began earlier may commit until this transaction does, and would add a row. Later transactions see that
    // the worker is no member: then rows only disappear, and each row that is read conflicts by itself.
    let mut is_first = false;
    if tx.get(&membership).await?.is_some() {
        tx.clear(membership)?;
        tx.set_versionstamp(keys.workers_versionstamp(job_type))?;
        is_first = true;
    }
    let cause = match why {
        Removal::Left => RevocationCause::Left,
        Removal::Lost => RevocationCause::Lost {
            seen_us: last_seen_us(tx, keys, job_type, worker).await?.unwrap_or(now_us),
        },
    };
    let (begin, end) = keys.active_of(job_type, worker);
    let limit = limit.min(MAX_GIVEN_BACK);
    let (rows, proof) = tx.range_to_prove(RangeRead { begin, end, limit, reverse: false }).await?;
    if is_first {
        tx.prove_arrivals(proof);
    }
    let ids: Vec<String> = rows.iter().filter_map(|(key, _)| Some(keys.parse_active(key).ok()?.1)).collect();
    claims::prefetch_ends(tx, keys, job_type, ids.iter().map(|id| (id.as_str(), worker))).await?;
    let mut done = rows.len() < limit;
    let mut given_back = Vec::with_capacity(rows.len());
    for (n, (key, _)) in rows.into_iter().enumerate() {
        if n > 0 && !tx.has_room() {
            done = false;
            break;
        }
        let (_, id) = keys.parse_active(&key)?;
        let Some(mut job) = read_job(tx, keys, job_type, &id).await? else {
            return Err(corrupt("active row", "has no job record"));
        };
        let Some(claim) = job.claim().cloned().filter(|claim| claim.worker == worker) else {
            return Err(corrupt("active row", "its job has another claim"));
        };
        // The job's locks and places in buckets are cleared in the same step.
        let locks = job.held().map_or(0, Held::count);
        let buckets = job.buckets().len();
        if n > 0 && !tx.has_room_for(locks + 3 * buckets + ROWS_GIVEN_BACK, 2 * buckets + ROWS_GIVEN_BACK) {
            done = false;
            break;
        }
        given_back.push(RunSummary::of(&job, &claim, now_us));
        take_back(context, &mut job, &claim, cause).await?;
    }
    if done {
        // The signal goes last: until the last job is given back, cancelling a job writes it again.
        tx.clear(keys.signal(job_type, worker))?;
        tx.clear(keys.claim_number(job_type, worker))?;
        tx.clear(keys.health(job_type, worker))?;
    }
    Ok(Removed { done, given_back })
}

/// When the worker was last seen, in µs; `None` for a worker that is gone. Adds no read conflict.
async fn last_seen_us(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
) -> Result<Option<i64>> {
    let row = keys.health(job_type, worker);
    let health: Option<Health> = reads::value_with(tx, &row, "health row", Isolation::Snapshot).await?;
    Ok(health.map(|health| health.seen_us))
}
