//! Buckets as rows: which of their jobs run, which wait, and how workers notice that a waiting one may start.
//!
//! *Model.* A running job has a row in each of its buckets ([`of_job`]), which is written with its claim and cleared with
//! it. A claim counts these rows, and is refused if a bucket is full. A refused job leaves the queue for [`Place::Limited`],
//! an index by bucket that keeps its time in the queue ([`hold_back`]). The reason is the same as for paused jobs
//! ([`crate::filters`]). When a bucket with limited jobs gets a free place, it is marked. A pass reads the marked buckets
//! first ([`release_limited`]) and returns jobs to their places in the queue, as many as the buckets have room for.
//!
//! *No more than the limit.* Rows are counted in a snapshot, so that an end makes no claim repeat. Two claims of one bucket
//! conflict: each reads and writes its *guard*. There are few guards, which buckets share by a hash, so that no row remains
//! of an unused bucket.
//!
//! *No job is missed.* A bucket with room and limited jobs has a mark. An end reads whether there are limited jobs, and
//! proves it if there are none: a job that becomes limited concurrently conflicts with it. If a bucket limits jobs of
//! several types, the end only notes that in a row, and servers mark the bucket for all types ([`mark_rest`]). The reason is
//! that an end may have eleven buckets, and a store may accept few rows per step. A job that becomes limited also marks the
//! bucket, because the place may already be free. The worker that finds the bucket full or without limited jobs clears the
//! mark, and conflicts with a transaction that sets it again.
//!
//! [`crate::rates`] limits starts in the same way.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_policy::contention::hash;
use turnwise_policy::eligibility::concurrency::{Bucket, Limit, MAX_LIMIT, of_job};
use turnwise_policy::eligibility::filters::Limits;
use turnwise_policy::eligibility::rate::{self, Rate, RateLimit};
use turnwise_store::{Isolation, Transaction};

use crate::encoding::hex;
use crate::filters::Cursor;
pub use crate::keyspace::LimitedPlace;
use crate::keyspace::{KeyRange, behind};
use crate::place::Place;
use crate::rates::{self, Places, Starts};
use crate::reads::{self, rows};
use crate::rows::{decode, encode, read_job, read_pending, write_job};
use crate::tasks::Tasks;
use crate::transition::move_to;
use crate::{Claim, Job, Keyspace, Result};

/// The number of guards, for all buckets.
pub(crate) const GUARDS: u64 = 256;
/// Marked buckets that one call of [`release_limited`] reads, of which it handles [`BUCKETS_AT_ONCE`]. The next one continues after them.
const MAX_MARKED: usize = 200;
const BUCKETS_AT_ONCE: usize = 16;
/// Buckets with more than [`MAX_TENANTS`] tenants for which [`Rotation`] keeps a position. With more such buckets it drops
/// all positions.
const MAX_TURNS: usize = 1_000;
/// Tenants of a bucket that one call compares; a tenant with several limits counts once for each. The next call continues
/// after them.
const MAX_TENANTS: usize = 100;
/// Jobs of one tenant in which a call searches for jobs of the worker's own part.
const LOOKED_AT: usize = 32;
/// The same where jobs state their rates themselves: those with one limit may have different periods, and the first ones the longest.
const LOOKED_AT_OF_REASONS: usize = 500;
/// The most jobs that one call returns to the queue.
const MAX_RELEASED: usize = 200;

/// The row of a running job in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRow {
    /// The job's claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// The job's tenant.
    pub tenant: String,
    /// Since when it runs, in µs.
    pub since_us: i64,
    /// The limit that applied to it.
    pub most: u32,
}

/// The row of a limited job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedRow {
    /// The versionstamp of the filters at that time, in hexadecimal digits; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
    /// The rate that it obeys, if it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// A bucket without room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Full {
    /// The limit that the job obeys.
    pub limit: Limit,
    /// How many jobs of the bucket run.
    pub running: usize,
    /// If too many have started: the rate, and when the job may start, in µs.
    pub rate: Option<(Rate, i64)>,
}

/// The number of running jobs per bucket, and of starts, as counted by one transaction.
#[derive(Debug, Default)]
pub struct Tally {
    running: BTreeMap<Bucket, usize>,
    starts: BTreeMap<Bucket, Starts>,
    guarded: BTreeSet<u64>,
    /// What the worker that claims takes.
    tasks: Tasks,
}

impl Tally {
    /// For a worker that takes these tasks.
    pub fn of(tasks: Tasks) -> Self {
        Tally { tasks, ..Tally::default() }
    }

    async fn running(&mut self, tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<usize> {
        if let Some(running) = self.running.get(bucket) {
            return Ok(*running);
        }
        let running = count(tx, keys, bucket).await?;
        self.running.insert(bucket.clone(), running);
        Ok(running)
    }

    async fn starts(&mut self, tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<&mut Starts> {
        Ok(match self.starts.entry(bucket.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(Starts::read(tx, keys, bucket).await?),
        })
    }

    /// The first bucket without room for a job of this task that obeys these limits: that of its task, if the worker takes no more of it. Adds
    /// no read conflict.
    pub(crate) async fn full(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        task: Option<&str>,
        (limits, rates): (&[Limit], &[RateLimit]),
        now_us: i64,
    ) -> Result<Option<Full>> {
        if let Some(limit) = self.tasks.refuses(task) {
            return Ok(Some(Full { limit, running: 0, rate: None }));
        }
        for limit in limits {
            let running = self.running(tx, keys, &limit.bucket).await?;
            if !limit.admits(running) {
                return Ok(Some(Full { limit: limit.clone(), running, rate: None }));
            }
        }
        for RateLimit { bucket, rate } in rates {
            let free_us = self.starts(tx, keys, bucket).await?.next_us(tx, keys, rate).await?;
            if free_us > now_us {
                let limit = Limit { bucket: bucket.clone(), most: rate.at_most };
                return Ok(Some(Full { limit, running: 0, rate: Some((rate.clone(), free_us)) }));
            }
        }
        Ok(None)
    }

    /// Takes a place in each of the buckets for a job that is claimed, and proves that there is room, which [`Tally::full`]
    /// has found.
    pub(crate) async fn take(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        job: &Job,
        claim: &Claim,
        (limits, rates): (&[Limit], &[RateLimit]),
        now_us: i64,
    ) -> Result<()> {
        self.tasks.starts(job.task.as_deref());
        for Limit { bucket, most } in limits {
            let guard = guard(bucket);
            if self.guarded.insert(guard) {
                let guard = keys.bucket_guard(guard);
                tx.get(&guard).await?;
                tx.set(guard, encode(claim))?;
            }
            let row =
                BucketRow { claim: claim.clone(), tenant: job.tenant.clone(), since_us: now_us, most: *most };
            tx.set(keys.bucket_holder(bucket, &job.job_type, &job.id), encode(&row))?;
            *self.running.entry(bucket.clone()).or_default() += 1;
        }
        for RateLimit { bucket, rate } in rates {
            self.starts(tx, keys, bucket).await?.take(tx, keys, rate, now_us).await?;
        }
        Ok(())
    }
}

/// How many jobs of a bucket run, up to the highest limit. Adds no read conflict.
#[boxed]
pub async fn count(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<usize> {
    Ok(rows(tx, keys.bucket_holders(bucket), MAX_LIMIT as usize).await?.len())
}

/// How many jobs wait because a bucket has no room, up to `limit`. Adds no read conflict.
#[boxed]
pub async fn waiting(tx: &Transaction, keys: &Keyspace, bucket: &Bucket, limit: usize) -> Result<usize> {
    Ok(rows(tx, keys.limited_in(bucket), limit).await?.len())
}

/// Up to `limit` running jobs of a bucket, each with its row. Adds no read conflict.
#[boxed]
pub async fn running(
    tx: &Transaction,
    keys: &Keyspace,
    bucket: &Bucket,
    limit: usize,
) -> Result<Vec<(String, String, BucketRow)>> {
    let read = |key: &Bytes, value: &Bytes| {
        let (_, job_type, id) = keys.parse_bucket_holder(key)?;
        Ok((job_type, id, decode("bucket row", value)?))
    };
    reads::list(tx, keys.bucket_holders(bucket), limit, read).await
}

/// The guard of a bucket: the same in every release.
fn guard(bucket: &Bucket) -> u64 {
    hash(bucket.name(), u64::from(matches!(bucket, Bucket::Filter(_)))) % GUARDS
}

/// Takes a pending job out of the queue until its bucket has room. Returns whether it was pending. `stamp` is that of the
/// filters, if there are any: a filter's limit applies only as long as the filters stay the same.
#[boxed]
pub async fn hold_back(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    limit: &Limit,
    stamp: Option<&[u8]>,
    now_us: i64,
) -> Result<bool> {
    let full = Full { limit: limit.clone(), running: 0, rate: None };
    hold_back_until(tx, keys, job_type, id, &full, stamp, now_us).await
}

/// The same; a job that waits for a rate returns when it may start.
#[boxed]
pub async fn hold_back_until(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    Full { limit, rate, .. }: &Full,
    stamp: Option<&[u8]>,
    now_us: i64,
) -> Result<bool> {
    let Some(mut job) = read_pending(tx, keys, job_type, id).await? else { return Ok(false) };
    let order_us = job.order_us();
    job.changed_us = now_us;
    move_to(tx, keys, &mut job, Place::Limited { order_us, limit: limit.clone() })?;
    let row = LimitedRow { stamp: stamp.map(hex), rate: rate.as_ref().map(|(rate, _)| rate.clone()) };
    if let Some(place) = job.limited_place() {
        tx.set(keys.limited_entry(job_type, &place, id), encode(&row))?;
    }
    write_job(tx, keys, &job)?;
    match rate {
        Some((rate, at_us)) => mark_at(tx, keys, job_type, &limit.bucket, (*at_us, rate.per_us()))?,
        None => mark(tx, keys, job_type, &limit.bucket)?,
    }
    Ok(true)
}

/// Marks a bucket, so that the workers of a type check it. Reads nothing.
fn mark(tx: &Transaction, keys: &Keyspace, job_type: &str, bucket: &Bucket) -> Result<()> {
    tx.set_versionstamp(keys.roomy_entry(job_type, bucket))?;
    Ok(tx.set_versionstamp(keys.wake(job_type))?)
}

/// The same for a bucket of starts, at a time and with its period, in µs.
fn mark_at(tx: &Transaction, keys: &Keyspace, job_type: &str, bucket: &Bucket, at: (i64, i64)) -> Result<()> {
    rates::mark(tx, keys, job_type, bucket, at)?;
    Ok(tx.set_versionstamp(keys.wake(job_type))?)
}

/// Releases the places of a claim that ends, and removes them from the record, which it does not write. Does nothing for a
/// job without places.
pub(crate) async fn release(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    let buckets = job.run_mut().map(|run| std::mem::take(&mut run.buckets)).unwrap_or_default();
    for bucket in buckets {
        tx.clear(keys.bucket_holder(&bucket, &job.job_type, &job.id))?;
        let Some(types) = waiting_types(tx, keys, &bucket).await? else {
            mark_later(tx, keys, &bucket)?;
            continue;
        };
        for job_type in types {
            mark(tx, keys, &job_type, &bucket)?;
        }
    }
    Ok(())
}

/// Lets a server mark a bucket for all types of its limited jobs ([`mark_rest`]). Reads nothing.
pub(crate) fn mark_later(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<()> {
    tx.set(keys.unmarked_entry(bucket), encode(&None::<String>))?;
    Ok(tx.set_versionstamp(keys.unsettled_wake())?)
}

/// Wakes the workers of a type at the end of a job of a task, if jobs of the task wait: its worker may have reached its cap. A job that begins to
/// wait concurrently wakes them itself.
pub(crate) async fn wake_for_task(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let Some(task) = &job.task else { return Ok(()) };
    let mark = keys.roomy_entry(&job.job_type, &Bucket::Task(task.clone()));
    match tx.get_with(&mark, Isolation::Snapshot).await? {
        Some(_) => Ok(tx.set_versionstamp(keys.wake(&job.job_type))?),
        None => Ok(()),
    }
}

/// The type of the jobs that a bucket limits, if there is one type or none; `None` for more types. Proves that no other type
/// arrives before or after it, so that no newly limited job is missed. A newly limited job of the same type is released with
/// the others, and causes no conflict.
async fn waiting_types(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<Option<Vec<String>>> {
    let (begin, end) = keys.limited_in(bucket);
    let Some(job_type) = first_type(tx, keys, (begin.clone(), end.clone())).await? else {
        // The same read again, now with a conflict.
        tx.range(&(begin, end), 1).await?;
        return Ok(Some(Vec::new()));
    };
    let (first, next) = keys.limited_of(bucket, &job_type);
    if first_type(tx, keys, (next.clone(), end.clone())).await?.is_some() {
        return Ok(None);
    }
    for gap in [(begin, first), (next, end)] {
        tx.range(&gap, 1).await?;
    }
    Ok(Some(vec![job_type]))
}

/// The type of the first limited job of a range. Adds no read conflict.
async fn first_type(tx: &Transaction, keys: &Keyspace, range: KeyRange) -> Result<Option<String>> {
    let found = rows(tx, range, 1).await?;
    found.first().map(|(key, _)| Ok(keys.parse_limited(key)?.0)).transpose()
}

/// Marks a bucket for the types of its limited jobs, if an end found more than one type, or a pause of its rate ends earlier. Marks as many as the
/// transaction has room for. Returns whether there was such a bucket. Use a transaction of its own.
#[boxed]
pub async fn mark_rest(tx: &Transaction, keys: &Keyspace) -> Result<bool> {
    let found = rows(tx, keys.unmarked(), 1).await?;
    let Some((row, _)) = found.first() else { return Ok(false) };
    let bucket = keys.parse_unmarked(row)?;
    // An end that frees a place concurrently writes this row again, and conflicts.
    let Some(mut done) = reads::value::<Option<String>>(tx, row, "unmarked row").await? else {
        return Ok(true);
    };
    let timed = match bucket {
        Bucket::Rate(_) => Some(rates::end_of_pause(tx, keys, &bucket).await?),
        _ => None,
    };
    let (mut begin, end) = keys.limited_in(&bucket);
    if let Some(done) = &done {
        begin = keys.limited_of(&bucket, done).1;
    }
    while tx.has_room() {
        let Some(job_type) = first_type(tx, keys, (begin, end.clone())).await? else {
            tx.clear(row.clone())?;
            return Ok(true);
        };
        match timed {
            Some(at) => mark_at(tx, keys, &job_type, &bucket, at)?,
            None => mark(tx, keys, &job_type, &bucket)?,
        }
        begin = keys.limited_of(&bucket, &job_type).1;
        done = Some(job_type);
    }
    tx.set(row.clone(), encode(&done))?;
    Ok(true)
}

/// The result of [`release_limited`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleaseResult {
    /// The tenants of the jobs that are pending now.
    pub released: BTreeSet<String>,
    /// The first marked bucket that was skipped for another worker.
    pub left: Option<String>,
    /// There is more to handle immediately.
    pub more: bool,
    /// When the next bucket of starts has room, in µs.
    pub next_us: Option<i64>,
}

/// Where the calls for one type continue. A call handles some of the marked buckets, and some of the tenants of each. The
/// next call starts after them, so that no name is preferred. The position is kept in memory: after a restart, calls start
/// from the beginning.
#[derive(Debug, Default)]
pub struct Rotation(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    /// The mark that was read last, if there are more after it.
    mark: Option<Bytes>,
    /// For buckets with more tenants than one call compares: where the next tenant begins.
    tenants: BTreeMap<Bucket, Bytes>,
}

impl Rotation {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn go_on(&self, bucket: &Bucket, at: Option<Bytes>) {
        let mut turns = self.turns();
        match at {
            None => drop(turns.tenants.remove(bucket)),
            Some(at) => {
                if turns.tenants.len() >= MAX_TURNS {
                    turns.tenants.clear();
                }
                turns.tenants.insert(bucket.clone(), at);
            }
        }
    }
}

/// How many limited jobs of a type the next calls of [`release_limited`] would return to the queue; counts up to
/// [`BUCKETS_AT_ONCE`] buckets, and [`MAX_RELEASED`] jobs of each. Adds no read conflict.
#[boxed]
pub async fn releasable(tx: &Transaction, keys: &Keyspace, job_type: &str, now_us: i64) -> Result<usize> {
    let mut releasable = 0;
    for (mark, _) in rows(tx, keys.roomy(job_type), BUCKETS_AT_ONCE).await? {
        let (_, bucket, at_us) = keys.parse_roomy(&mark)?;
        if at_us.is_some_and(|at_us| at_us > now_us) {
            break;
        }
        let mut taken = Taken::read(tx, keys, &bucket, now_us).await?;
        let mut of_bucket = 0;
        for (key, value) in rows(tx, keys.limited_of(&bucket, job_type), MAX_RELEASED).await? {
            let (_, place, _) = keys.parse_limited(&key)?;
            if taken.room(tx, keys, &place.limit, &value, MAX_RELEASED).await? > of_bucket {
                of_bucket += 1;
            }
        }
        releasable += of_bucket;
    }
    Ok(releasable)
}

/// How limited jobs are released.
#[derive(Debug, Clone, Copy)]
pub struct ReleaseOptions<'a> {
    /// Where it continues.
    pub rotation: &'a Rotation,
    /// The most jobs that it returns to the queue.
    pub most: usize,
    /// Whether it clears the marks of buckets without room. That conflicts with every end in such a bucket, and nothing
    /// depends on it: a mark that stays costs the next call some reads. So a pass that has had a conflict leaves them.
    pub clears: bool,
    /// What the worker of the pass takes.
    pub tasks: &'a Tasks,
    /// The time of the pass, in µs.
    pub now_us: i64,
}

/// Returns limited jobs to the queue, as many of each bucket as it has room for. `mine` decides which buckets this worker
/// handles at a time in µs, and which of their jobs come first: several workers divide them. `next` gets the tenants, each with its number
/// of jobs, and how many jobs to choose. It returns one index of a tenant for each job, in the order of their turns.
pub async fn release_limited(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    ReleaseOptions { rotation, most, clears, tasks, now_us }: ReleaseOptions<'_>,
    mine: impl Fn(&str, i64) -> bool,
    next: impl Fn(&[(String, usize)], usize) -> Vec<usize>,
) -> Result<ReleaseResult> {
    let mut result = ReleaseResult::default();
    if most == 0 {
        return Ok(result);
    }
    let seen = rotation.turns().mark.take();
    let marked = rows(tx, behind(keys.roomy(job_type), seen.clone()), MAX_MARKED).await?;
    let (most, mut buckets, mut released) = (most.min(MAX_RELEASED), 0, 0);
    let mut last = None;
    let (mut is_end, mut foreign) = (marked.len() < MAX_MARKED, 0);
    for (mark, value) in &marked {
        let (_, bucket, at_us) = keys.parse_roomy(mark)?;
        if let Some(at_us) = at_us {
            // Those that follow are not earlier.
            if at_us > now_us && result.next_us.is_some_and(|next_us| next_us <= at_us) {
                is_end = true;
                break;
            }
            // The same worker in all passes: that of the time at which the bucket has room.
            let due_us = at_us.saturating_add(match mine(bucket.name(), at_us) {
                true => 0,
                false => rates::others_delay_us(decode("roomy row", value)?),
            });
            if due_us > now_us {
                result.next_us = result.next_us.into_iter().chain([due_us]).min();
                (last, foreign) = (Some(mark), foreign + 1);
                continue;
            }
        }
        // A worker that takes the task handles its bucket, whichever part of the names is its own.
        let of_task = match &bucket {
            Bucket::Task(task) => {
                Some(tasks.room(Some(task).filter(|task| !task.is_empty()).map(String::as_str)))
            }
            Bucket::Filter(_) | Bucket::Reason(_) | Bucket::Rate(_) => None,
        };
        if of_task == Some(0) {
            last = Some(mark);
            continue;
        }
        let is_mine = of_task.is_some() || at_us.is_some() || mine(bucket.name(), now_us);
        if is_mine && released == most {
            is_end = false;
            break;
        }
        if is_mine && (buckets == BUCKETS_AT_ONCE || buckets > 0 && !tx.has_room()) {
            (result.more, is_end) = (true, false);
            break;
        }
        last = Some(mark);
        if !is_mine {
            result.left.get_or_insert_with(|| format!("{bucket}"));
            foreign += 1;
            continue;
        }
        buckets += 1;
        let mut taken = Taken::read(tx, keys, &bucket, now_us).await?;
        let room = (most - released).min(of_task.unwrap_or(usize::MAX));
        let wanted = Wanted { bucket: &bucket, most: room };
        let mut groups =
            groups(tx, keys, job_type, &wanted, &mut taken, rotation, &|id: &str| mine(id, now_us)).await?;
        let has_room = !groups.is_empty();
        let room = room.min(groups.iter().map(|group| group.room).max().unwrap_or(0));
        let mut of_bucket = 0;
        let tenants: Vec<(String, usize)> =
            groups.iter().map(|group| (group.tenant.clone(), group.jobs.len())).collect();
        let mut is_cut = false;
        for group in next(&tenants, room).into_iter().take(room) {
            let Some(group) = groups.get_mut(group).filter(|group| group.room > of_bucket) else { continue };
            let Some((_, row)) = group.jobs.find(|(room, _)| *room > of_bucket) else { continue };
            if released > 0 && !tx.has_room() {
                (result.more, is_cut) = (true, true);
                break;
            }
            (released, of_bucket) = (released + 1, of_bucket + 1);
            result.released.extend(put_back(tx, keys, &row).await?);
        }
        // The bucket has no room for any of its jobs, or has none.
        match &taken {
            Taken::Running(_) if !has_room && clears && tx.get(mark).await?.is_some() => {
                tx.clear(mark.clone())?
            }
            Taken::Running(_) => {}
            Taken::Starts { found, .. } => {
                // With jobs and places left, the mark stays: it is due.
                let now = found.iter().map(|(_, places)| places.now).max();
                let used = now.is_some_and(|now| of_bucket >= now);
                let next_us = found.iter().map(|(_, places)| places.next_us).min();
                let next_us = next_us.filter(|next_us| used && *next_us > now_us);
                result.more |= used && next_us.is_none() && released == MAX_RELEASED;
                let per_us: i64 = decode("roomy row", value)?;
                // What has returned may not start: then its place is still free. Of other rates of the bucket, all jobs may have returned.
                let is_out = has_room && !is_cut && of_bucket < room;
                let soon_us = (of_bucket > 0).then(|| now_us.saturating_add(rates::recheck_us(per_us)));
                let soon_us = soon_us.filter(|_| is_out || next_us.is_some());
                let next_us = next_us.into_iter().chain(soon_us).min();
                if (next_us.is_some() || !has_room) && tx.get(mark).await?.is_some() {
                    tx.clear(mark.clone())?;
                }
                if let Some(next_us) = next_us {
                    rates::mark(tx, keys, job_type, &bucket, (next_us, per_us))?;
                    result.next_us = result.next_us.into_iter().chain([next_us]).min();
                }
            }
        }
    }
    // After the last mark, the next call starts again. Behind marks that are all left to others, it goes on when these are due: several
    // calls in turn would never end.
    result.more |= is_end && seen.is_some() || !is_end && marked.len() == MAX_MARKED && foreign < MAX_MARKED;
    rotation.turns().mark = last.filter(|_| !is_end).cloned();
    Ok(result)
}

/// Jobs of one tenant that obey one limit with room.
struct Group {
    tenant: String,
    /// How many more jobs of the bucket may run under that limit.
    room: usize,
    /// Each with its own room: jobs with one limit may have different periods.
    jobs: std::vec::IntoIter<(usize, Bytes)>,
}

/// What a call wants of a bucket.
struct Wanted<'a> {
    bucket: &'a Bucket,
    /// The most jobs to return to the queue.
    most: usize,
}

/// What is taken of a bucket.
enum Taken {
    /// So many of its jobs run.
    Running(usize),
    /// The starts of its jobs; and the places that their rates find.
    Starts { starts: Box<Starts>, now_us: i64, found: Vec<(Rate, Places)> },
}

impl Taken {
    async fn read(tx: &Transaction, keys: &Keyspace, bucket: &Bucket, now_us: i64) -> Result<Taken> {
        Ok(match bucket {
            Bucket::Rate(_) => {
                let starts = Box::new(Starts::read(tx, keys, bucket).await?);
                Taken::Starts { starts, now_us, found: Vec::new() }
            }
            _ => Taken::Running(count(tx, keys, bucket).await?),
        })
    }

    /// The lowest limit that may have room.
    fn lowest(&self) -> u32 {
        match self {
            Taken::Running(running) => u32::try_from(*running).unwrap_or(u32::MAX).saturating_add(1),
            Taken::Starts { .. } => 0,
        }
    }

    /// How many more jobs with a limit may run, or start now. `row` is the value of such a job's row.
    async fn room(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        limit: &Limit,
        row: &Bytes,
        most: usize,
    ) -> Result<usize> {
        match self {
            Taken::Running(running) => Ok((limit.most as usize).saturating_sub(*running)),
            Taken::Starts { starts, now_us, found } => {
                let row: LimitedRow = decode("limited row", row)?;
                let Some(rate) = row.rate else { return Ok(most) };
                if let Some((_, places)) = found.iter().find(|(known, _)| *known == rate) {
                    return Ok(places.now);
                }
                // Jobs with different numbers may share a bucket: the next pass is at the first of their times.
                let places = starts.places(tx, keys, &rate, most, *now_us).await?;
                found.push((rate, places));
                Ok(places.now)
            }
        }
    }
}

/// Some of the tenants of a bucket whose limits have room; at least one, if there is one. Each comes with some of its jobs,
/// those of this worker's part first.
async fn groups(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    &Wanted { bucket, most }: &Wanted<'_>,
    taken: &mut Taken,
    rotation: &Rotation,
    mine: &impl Fn(&str) -> bool,
) -> Result<Vec<Group>> {
    // Lower limits have no room.
    let (first, _) = keys.limited_by(&Limit { bucket: bucket.clone(), most: taken.lowest() }, job_type);
    let (_, end) = keys.limited_of(bucket, job_type);
    let from = rotation.turns().tenants.get(bucket).cloned();
    let from = from.filter(|from| (&first..&end).contains(&from)).unwrap_or_else(|| first.clone());
    let looked_at = match bucket {
        Bucket::Rate(name) if rate::parts(name).0.is_none() => LOOKED_AT_OF_REASONS,
        _ => LOOKED_AT,
    };
    let mut groups = Vec::new();
    let mut go_on = None;
    'all: for (mut begin, end) in [(from.clone(), end), (first, from)] {
        while begin < end {
            if groups.len() == MAX_TENANTS {
                go_on = Some(begin);
                break 'all;
            }
            let found = rows(tx, (begin.clone(), end.clone()), most.max(looked_at)).await?;
            let Some((key, _)) = found.first() else { break };
            let (_, LimitedPlace { tenant, limit, .. }, _) = keys.parse_limited(key)?;
            let (mut own, mut others, mut most_room) = (Vec::new(), Vec::new(), 0);
            for (key, value) in &found {
                let (_, place, id) = keys.parse_limited(key)?;
                if place.tenant != tenant || place.limit != limit {
                    break;
                }
                let room = taken.room(tx, keys, &limit, value, most).await?;
                most_room = most_room.max(room);
                if mine(&id) { own.push((room, key.clone())) } else { others.push((room, key.clone())) }
            }
            own.append(&mut others);
            begin = keys.limited_for(&limit, job_type, &tenant).1;
            groups.push(Group { tenant, room: most_room, jobs: own.into_iter() });
        }
    }
    rotation.go_on(bucket, go_on);
    Ok(groups)
}

/// Returns a limited job to its place in the queue, and returns its tenant. `None` if the job has left since the snapshot,
/// as its record then states.
async fn put_back(tx: &Transaction, keys: &Keyspace, row: &Bytes) -> Result<Option<String>> {
    let (job_type, place, id) = keys.parse_limited(row)?;
    let job = read_job(tx, keys, &job_type, &id).await?;
    let Some(mut job) = job.filter(|job| job.limited_place().as_ref() == Some(&place)) else {
        return Ok(None);
    };
    move_to(tx, keys, &mut job, Place::pending(place.order_us))?;
    write_job(tx, keys, &job)?;
    Ok(Some(job.into_fields().spec.tenant))
}

/// Reads up to `limit` jobs that filters limit, after `after`. Returns those to the queue that an older version of the
/// filters limited, as many as the transaction has room for: the new filters decide. Returns where to continue; `None` at
/// the end.
#[boxed]
pub async fn release_old(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Option<Cursor>> {
    let now = crate::filters::stamp(tx, keys).await?.map(|stamp| hex(&stamp));
    let found = rows(tx, behind(keys.limited_by_filters(), after.cloned()), limit).await?;
    let mut seen = None;
    for (key, value) in &found {
        if seen.is_some() && !tx.has_room() {
            return Ok(seen);
        }
        seen = Some(key.clone());
        let row: LimitedRow = decode("limited row", value)?;
        if row.stamp != now {
            put_back(tx, keys, key).await?;
        }
    }
    Ok(seen.filter(|_| found.len() == limit))
}

impl Job {
    /// The limits that the job obeys: its reasons', and those of `filter`.
    pub(crate) fn limits(&self, filter: Option<&Limits>) -> (Vec<Limit>, Vec<RateLimit>) {
        let concurrency = filter.and_then(|filter| filter.concurrency.clone());
        let starts = filter.and_then(|filter| filter.rate.clone());
        (of_job(concurrency, &self.reasons), rate::of_job(starts, &self.reasons))
    }
}
