//! Buckets as rows: which jobs of each run, which are held back, and how those learn that there is room.
//!
//! *Model.* A job that runs has a row in each bucket that it is in ([`of_job`]), written with its claim and cleared with it, whatever ends that. A
//! claim counts them, and is refused if a bucket is full. A job that is refused leaves the queue: it is *held back*, [`State::Delayed`] in an
//! index by bucket that keeps its place ([`hold_back`]), for the reason why paused jobs leave it ([`crate::filters`]). Where jobs are held back,
//! whatever gives a place of the bucket back marks it; and whoever looks for work looks at the marked ones first ([`look`]): as long as
//! a bucket has room, jobs of it go back to where they stood in the queue, so many as there is room for.
//!
//! *No more than may.* Rows are counted in a snapshot, so that an end makes no claim run again. Two claims of one bucket collide: each reads
//! and writes its *guard*. There are few guards, which buckets share by a hash, so that no row stays of a bucket that nobody uses any more.
//!
//! *Nobody is forgotten.* A bucket has a mark if it has room and holds jobs back. An end reads whether there are any, and proves it if there are
//! none: who is held back meanwhile collides with it. Whoever holds a job back marks the bucket, too: the place may have been given back
//! already. The mark goes by the hand of one who sees that the bucket is full or holds nothing back, and collides with who sets it anew.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_policy::contention::hash;
use turnwise_policy::eligibility::rate_limits::{Bucket, Limit, MAX_LIMIT, of_job};
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::error::corrupt;
use crate::filters::Cursor;
use crate::jobs::{leave_place, make_pending};
use crate::keyspace::KeyRange;
use crate::rows::{decode, encode, read_job, write_job};
use crate::{Claim, Job, Keyspace, Result, State};

/// Guards of all buckets.
pub(crate) const GUARDS: u64 = 256;
/// Marked buckets that one look sees, of which it looks at [`BUCKETS_AT_ONCE`].
const MAX_MARKED: usize = 200;
const BUCKETS_AT_ONCE: usize = 16;
/// Different limits of one bucket that an end or a look tells apart, and job types of which jobs are held back: beyond so many, the
/// others wait until one of these has none left.
const MAX_KINDS: usize = 64;
/// Tenants of a bucket that are compared, the first by name.
const MAX_TENANTS: usize = 100;
/// Jobs of one tenant that are looked at for one's own.
const LOOKED_AT: usize = 32;
/// Jobs that one look puts back into the queue, at most.
const MAX_RELEASED: usize = 200;

/// That a job of a bucket runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateRow {
    /// Under which claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// Whose job it is.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
    /// The limit that it obeyed.
    pub most: u32,
}

/// The row of a job that is held back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedRow {
    /// The stamp of the filters then, in hexadecimal digits; without, there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
}

/// Where a job that is held back stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitedPlace {
    /// What it obeys.
    pub limit: Limit,
    /// Whose queue it goes back to.
    pub tenant: String,
    /// Its priority class.
    pub class: i8,
    /// Where it stands there, in µs.
    pub order_us: i64,
}

/// A bucket without room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Full {
    /// What the job obeys.
    pub limit: Limit,
    /// So many of the bucket run.
    pub running: usize,
}

/// How many of each bucket run, as one transaction has counted them.
#[derive(Debug, Default)]
pub struct Tally {
    running: BTreeMap<Bucket, usize>,
    guarded: BTreeSet<u64>,
}

impl Tally {
    async fn running(&mut self, tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<usize> {
        if let Some(running) = self.running.get(bucket) {
            return Ok(*running);
        }
        let running = count(tx, keys, bucket).await?;
        self.running.insert(bucket.clone(), running);
        Ok(running)
    }

    /// The first bucket without room for a job that obeys these limits. Takes no conflict.
    pub(crate) async fn full(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        limits: &[Limit],
    ) -> Result<Option<Full>> {
        for limit in limits {
            let running = self.running(tx, keys, &limit.bucket).await?;
            if !limit.admits(running) {
                return Ok(Some(Full { limit: limit.clone(), running }));
            }
        }
        Ok(None)
    }

    /// Takes a place in each of the buckets for a job that is claimed, and proves that there is room. They were found to have some.
    pub(crate) async fn take(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        job: &Job,
        claim: &Claim,
        limits: &[Limit],
        now_us: i64,
    ) -> Result<()> {
        for Limit { bucket, most } in limits {
            let guard = guard(bucket);
            if self.guarded.insert(guard) {
                let guard = keys.rate_guard(guard);
                tx.get(&guard).await?;
                tx.set(guard, encode(claim))?;
            }
            let row =
                RateRow { claim: claim.clone(), tenant: job.tenant.clone(), since_us: now_us, most: *most };
            tx.set(keys.rate_holder(bucket, &job.job_type, &job.id), encode(&row))?;
            *self.running.entry(bucket.clone()).or_default() += 1;
        }
        Ok(())
    }
}

/// How many jobs of a bucket run, up to the highest limit. Takes no conflict.
pub async fn count(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<usize> {
    Ok(rows(tx, keys.rate_holders(bucket), MAX_LIMIT as usize).await?.len())
}

/// Up to `limit` jobs of a bucket that run, each with its row. Takes no conflict.
pub async fn running(
    tx: &Transaction,
    keys: &Keyspace,
    bucket: &Bucket,
    limit: usize,
) -> Result<Vec<(String, String, RateRow)>> {
    let read = rows(tx, keys.rate_holders(bucket), limit).await?.into_iter().map(|(key, value)| {
        let (_, job_type, id) =
            keys.parse_rate(&key).ok_or_else(|| corrupt("rate key", "not a tuple of five"))?;
        Ok((job_type, id, decode("rate row", &value)?))
    });
    read.collect()
}

async fn rows(tx: &Transaction, (begin, end): KeyRange, limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
    Ok(tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?)
}

/// Which guard a bucket has: the same in every release.
fn guard(bucket: &Bucket) -> u64 {
    hash(bucket.name(), u64::from(matches!(bucket, Bucket::Filter(_)))) % GUARDS
}

/// Takes a pending job out of the queue until its bucket has room; whether it was pending. `stamp` is that of the filters, if there are any: a
/// limit of theirs holds for as long as they do.
pub async fn hold_back(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    limit: &Limit,
    stamp: Option<&[u8]>,
    now_us: i64,
) -> Result<bool> {
    let job = read_job(tx, keys, job_type, id).await?.filter(|job| job.state == State::Pending);
    let Some(mut job) = job else { return Ok(false) };
    leave_place(tx, keys, &job)?;
    job.enter(State::Delayed);
    job.changed_us = now_us;
    job.limited = Some(limit.clone());
    let row = LimitedRow { stamp: stamp.map(crate::filters::hex) };
    if let Some(place) = job.limited_place() {
        tx.set(keys.limited_entry(job_type, &place, id), encode(&row))?;
    }
    write_job(tx, keys, &job)?;
    mark(tx, keys, job_type, &limit.bucket)?;
    Ok(true)
}

/// Lets those who look for jobs of a type look at a bucket. Reads nothing.
fn mark(tx: &Transaction, keys: &Keyspace, job_type: &str, bucket: &Bucket) -> Result<()> {
    tx.set_versionstamp(keys.roomy_entry(job_type, bucket))?;
    Ok(tx.set_versionstamp(keys.wake(job_type))?)
}

/// Gives back the places of a claim that ends. Does not write the record, from which they go. Nothing for a job that has none.
pub(crate) async fn release(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    for bucket in std::mem::take(&mut job.buckets) {
        tx.clear(keys.rate_holder(&bucket, &job.job_type, &job.id))?;
        for job_type in waiting_types(tx, keys, &bucket).await? {
            mark(tx, keys, &job_type, &bucket)?;
        }
    }
    Ok(())
}

/// The types of which a bucket holds jobs back. That there are no others, before, between and behind them, is proven, so that one that is held
/// back now is not missed; one more of a type that is found is told with the others, and makes no end run again.
async fn waiting_types(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<Vec<String>> {
    let mut types: Vec<String> = Vec::new();
    let (mut begin, end) = keys.limited_in(bucket);
    while types.len() < MAX_KINDS {
        let found = rows(tx, (begin.clone(), end.clone()), 1).await?;
        let Some((key, _)) = found.first() else {
            // The same again, and this time it counts.
            tx.range(&(begin, end), 1).await?;
            break;
        };
        let (job_type, ..) = parse_limited(keys, key)?;
        let (first, next) = keys.limited_of(bucket, &job_type);
        if begin < first {
            tx.range(&(begin, first), 1).await?;
        }
        begin = next;
        types.push(job_type);
    }
    Ok(types)
}

fn parse_limited(keys: &Keyspace, key: &Bytes) -> Result<(String, LimitedPlace, String)> {
    keys.parse_limited(key).ok_or_else(|| corrupt("limited key", "not a tuple of nine"))
}

/// What a look at marked buckets came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    /// The tenants of jobs that are pending now.
    pub released: BTreeSet<String>,
    /// The first marked bucket that is somebody else's.
    pub left: Option<String>,
    /// There is more to look at, at once.
    pub more: bool,
}

/// Puts jobs that are held back into the queue again where their buckets have room: as many of each as there is room for, up to `most`
/// together. `mine` says which buckets, and which of the jobs first: where several look, each leaves some to the others. `next` says
/// whose jobs: of tenants with so many jobs each, whose turn it is, one place of the answer for each of up to so many jobs.
pub async fn look(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    most: usize,
    mine: impl Fn(&str) -> bool,
    next: impl Fn(&[(String, usize)], usize) -> Vec<usize>,
) -> Result<Looked> {
    let mut looked = Looked::default();
    let marked = rows(tx, keys.roomy(job_type), MAX_MARKED).await?;
    let (mut buckets, mut released) = (0, 0);
    for (mark, _) in &marked {
        let (_, bucket) =
            keys.parse_roomy(mark).ok_or_else(|| corrupt("roomy key", "not a tuple of four"))?;
        if !mine(bucket.name()) {
            looked.left.get_or_insert_with(|| format!("{bucket}"));
            continue;
        }
        if buckets == BUCKETS_AT_ONCE || buckets > 0 && !tx.has_room() {
            looked.more = true;
            break;
        }
        buckets += 1;
        let running = count(tx, keys, &bucket).await?;
        let mut has_room = false;
        let (mut begin, end) = keys.limited_of(&bucket, job_type);
        for _ in 0..MAX_KINDS {
            let found = rows(tx, (begin.clone(), end.clone()), 1).await?;
            let Some((key, _)) = found.first() else { break };
            let (_, LimitedPlace { limit, .. }, _) = parse_limited(keys, key)?;
            begin = keys.limited_by(&limit, job_type).1;
            let room = (limit.most as usize).saturating_sub(running);
            let room = room.min(most.min(MAX_RELEASED).saturating_sub(released));
            has_room |= limit.admits(running);
            for row in choose(tx, keys, job_type, &limit, room, &mine, &next).await? {
                if released > 0 && !tx.has_room() {
                    looked.more = true;
                    break;
                }
                released += 1;
                looked.released.extend(put_back(tx, keys, &row).await?);
            }
        }
        // Nobody is to be let go, or nobody was there.
        if !has_room && tx.get(mark).await?.is_some() {
            tx.clear(mark.clone())?;
        }
    }
    looked.more |= marked.len() == MAX_MARKED;
    Ok(looked)
}

/// The rows of up to `room` jobs that obey a limit.
async fn choose(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    limit: &Limit,
    room: usize,
    mine: &impl Fn(&str) -> bool,
    next: &impl Fn(&[(String, usize)], usize) -> Vec<usize>,
) -> Result<Vec<Bytes>> {
    let mut tenants = Vec::new();
    let mut queues: Vec<std::vec::IntoIter<Bytes>> = Vec::new();
    let (mut begin, end) = keys.limited_by(limit, job_type);
    while room > 0 && tenants.len() < MAX_TENANTS {
        let found = rows(tx, (begin.clone(), end.clone()), room.max(LOOKED_AT)).await?;
        let Some((key, _)) = found.first() else { break };
        let (_, LimitedPlace { tenant, .. }, _) = parse_limited(keys, key)?;
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (key, _) in &found {
            let (_, place, id) = parse_limited(keys, key)?;
            if place.tenant != tenant {
                break;
            }
            if mine(&id) { own.push(key.clone()) } else { others.push(key.clone()) }
        }
        begin = keys.limited_for(limit, job_type, &tenant).1;
        own.append(&mut others);
        tenants.push((tenant, own.len()));
        queues.push(own.into_iter());
    }
    let order = next(&tenants, room).into_iter().take(room);
    Ok(order.filter_map(|tenant| queues.get_mut(tenant)?.next()).collect())
}

/// Puts a job that is held back where it stood in the queue. Its tenant, if it is still there: it may have gone since the snapshot, and its
/// record then says so.
async fn put_back(tx: &Transaction, keys: &Keyspace, row: &Bytes) -> Result<Option<String>> {
    let (job_type, place, id) = parse_limited(keys, row)?;
    let job = read_job(tx, keys, &job_type, &id).await?;
    let Some(mut job) = job.filter(|job| job.limited_place().as_ref() == Some(&place)) else {
        return Ok(None);
    };
    leave_place(tx, keys, &job)?;
    make_pending(tx, keys, &mut job, place.order_us)?;
    write_job(tx, keys, &job)?;
    Ok(Some(job.tenant))
}

/// Looks at up to `limit` jobs that filters hold back, after `after`, and puts those back into the queue whose filters are not those that there are
/// now, as many as the transaction has room for: they are judged anew. Returns where to go on; `None` at the end.
pub async fn release_old(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Option<Cursor>> {
    let now = crate::filters::stamp(tx, keys).await?.map(|stamp| crate::filters::hex(&stamp));
    let (mut begin, end) = keys.limited_by_filters();
    if let Some(after) = after {
        begin = successor(after);
    }
    let found = rows(tx, (begin, end), limit).await?;
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
    /// Where it stands, if it is held back.
    pub fn limited_place(&self) -> Option<LimitedPlace> {
        let limit = self.limited.clone().filter(|_| self.state == State::Delayed)?;
        Some(LimitedPlace { limit, tenant: self.tenant.clone(), class: self.class, order_us: self.order_us })
    }

    /// The limits that it obeys, beside the one of a filter.
    pub(crate) fn limits(&self, filter: Option<&Limit>) -> Vec<Limit> {
        of_job(filter.cloned(), &self.reasons)
    }
}
