//! Buckets as rows: which jobs of each run, which are held back, and how those learn that there is room.
//!
//! *Model.* A job that runs has a row in each bucket that it is in ([`of_job`]), written with its claim and cleared with it, whatever ends that. A
//! claim counts them, and is refused if a bucket is full. A job that is refused leaves the queue: it is *held back*, [`Place::Limited`] in an
//! index by bucket that keeps its place ([`hold_back`]), for the reason why paused jobs leave it ([`crate::filters`]). Where jobs are held back,
//! whatever gives a place of the bucket back marks it; and whoever looks for work looks at the marked ones first ([`look`]): as long as
//! a bucket has room, jobs of it go back to where they stood in the queue, so many as there is room for.
//!
//! *No more than may.* Rows are counted in a snapshot, so that an end makes no claim run again. Two claims of one bucket collide: each reads
//! and writes its *guard*. There are few guards, which buckets share by a hash, so that no row stays of a bucket that nobody uses any more.
//!
//! *Nobody is forgotten.* A bucket has a mark if it has room and holds jobs back. An end reads whether there are any, and proves it if there are
//! none: who is held back meanwhile collides with it. Where a bucket holds jobs of several types back, an end notes that in a row, and
//! servers mark it for all of them ([`mark_rest`]): an end has up to eleven buckets, and a store may take few rows at once. Whoever holds a job back marks the bucket, too: the place may have been given back
//! already. The mark goes by the hand of one who sees that the bucket is full or holds nothing back, and collides with who sets it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_policy::contention::hash;
use turnwise_policy::eligibility::rate_limits::{Bucket, Limit, MAX_LIMIT, of_job};
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::error::corrupt;
use crate::filters::Cursor;
use crate::keyspace::KeyRange;
use crate::place::{Place, move_to};
use crate::rows::{decode, encode, read_job, write_job};
use crate::{Claim, Job, Keyspace, Result};

/// Guards of all buckets.
pub(crate) const GUARDS: u64 = 256;
/// Marked buckets that one look sees, of which it looks at [`BUCKETS_AT_ONCE`]. The next one goes on after them.
const MAX_MARKED: usize = 200;
const BUCKETS_AT_ONCE: usize = 16;
/// Buckets with more tenants than that of which [`Rotation`] knows where the next look goes on; with more of them it begins anew.
const MAX_TURNS: usize = 1_000;
/// Tenants of a bucket that one look compares; those with several limits count once for each. The next look goes on after them.
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
    let job = read_job(tx, keys, job_type, id).await?.filter(Job::is_pending);
    let Some(mut job) = job else { return Ok(false) };
    let order_us = job.order_us();
    job.changed_us = now_us;
    move_to(tx, keys, &mut job, Place::Limited { order_us, limit: limit.clone() })?;
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
    let buckets = job.run_mut().map(|run| std::mem::take(&mut run.buckets)).unwrap_or_default();
    for bucket in buckets {
        tx.clear(keys.rate_holder(&bucket, &job.job_type, &job.id))?;
        let Some(types) = waiting_types(tx, keys, &bucket).await? else {
            tx.set(keys.unmarked_entry(&bucket), encode(&None::<String>))?;
            tx.set_versionstamp(keys.unsettled_wake())?;
            continue;
        };
        for job_type in types {
            mark(tx, keys, &job_type, &bucket)?;
        }
    }
    Ok(())
}

/// The type of which a bucket holds jobs back, if it is one alone, or none; `None` for more. That there are no others, before and behind it, is
/// proven, so that one that is held back now is not missed; one more of the type that is found is told with the others, and makes no end
/// run again.
async fn waiting_types(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<Option<Vec<String>>> {
    let (begin, end) = keys.limited_in(bucket);
    let Some(job_type) = first_type(tx, keys, (begin.clone(), end.clone())).await? else {
        // The same again, and this time it counts.
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

/// The type of the first job of a range that is held back. Takes no conflict.
async fn first_type(tx: &Transaction, keys: &Keyspace, range: KeyRange) -> Result<Option<String>> {
    let found = rows(tx, range, 1).await?;
    found.first().map(|(key, _)| Ok(parse_limited(keys, key)?.0)).transpose()
}

/// Marks a bucket for the types of which it holds jobs back, where they were too many for an end: as many as the transaction has room for.
/// Whether there was one. In a transaction of its own.
pub async fn mark_rest(tx: &Transaction, keys: &Keyspace) -> Result<bool> {
    let found = rows(tx, keys.unmarked(), 1).await?;
    let Some((row, _)) = found.first() else { return Ok(false) };
    let bucket = keys.parse_unmarked(row).ok_or_else(|| corrupt("unmarked key", "not a tuple of three"))?;
    // An end that has room to give away meanwhile writes it again, and collides.
    let Some(value) = tx.get(row).await? else { return Ok(true) };
    let mut done: Option<String> = decode("unmarked row", &value)?;
    let (mut begin, end) = keys.limited_in(&bucket);
    if let Some(done) = &done {
        begin = keys.limited_of(&bucket, done).1;
    }
    while tx.has_room() {
        let Some(job_type) = first_type(tx, keys, (begin, end.clone())).await? else {
            tx.clear(row.clone())?;
            return Ok(true);
        };
        mark(tx, keys, &job_type, &bucket)?;
        begin = keys.limited_of(&bucket, &job_type).1;
        done = Some(job_type);
    }
    tx.set(row.clone(), encode(&done))?;
    Ok(true)
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

/// Where the looks for one type go on. A look sees some of the marked buckets, and some of the tenants of each; what the next one sees
/// begins behind that, so that nothing is first by its name. It is kept in memory: whoever forgets it begins anew.
#[derive(Debug, Default)]
pub struct Rotation(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    /// The mark that was seen last, if there are others behind it.
    mark: Option<Bytes>,
    /// Of buckets with more tenants than one look compares: where the next tenant begins.
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

/// Puts jobs that are held back into the queue again where their buckets have room: as many of each as there is room for, up to `most`
/// together. `mine` says which buckets, and which of the jobs first: where several look, each leaves some to the others. `next` says
/// whose jobs: of tenants with so many jobs each, whose turn it is, one place of the answer for each of up to so many jobs.
///
/// Marks of buckets without room are cleared only if the look `clears`. That collides with every end in such a bucket, and nothing depends
/// on it: a mark that stays costs the next look some reads. So a pass that has collided leaves them.
#[allow(clippy::too_many_arguments, reason = "a look's own parts")]
pub async fn look(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    rotation: &Rotation,
    most: usize,
    clears: bool,
    mine: impl Fn(&str) -> bool,
    next: impl Fn(&[(String, usize)], usize) -> Vec<usize>,
) -> Result<Looked> {
    let mut looked = Looked::default();
    if most == 0 {
        return Ok(looked);
    }
    let (mut begin, end) = keys.roomy(job_type);
    let seen = rotation.turns().mark.take();
    if let Some(seen) = &seen {
        begin = successor(seen);
    }
    let marked = rows(tx, (begin, end), MAX_MARKED).await?;
    let (most, mut buckets, mut released) = (most.min(MAX_RELEASED), 0, 0);
    let mut last = None;
    let mut is_end = marked.len() < MAX_MARKED;
    for (mark, _) in &marked {
        let (_, bucket) =
            keys.parse_roomy(mark).ok_or_else(|| corrupt("roomy key", "not a tuple of four"))?;
        let is_mine = mine(bucket.name());
        if is_mine && released == most {
            is_end = false;
            break;
        }
        if is_mine && (buckets == BUCKETS_AT_ONCE || buckets > 0 && !tx.has_room()) {
            (looked.more, is_end) = (true, false);
            break;
        }
        last = Some(mark);
        if !is_mine {
            looked.left.get_or_insert_with(|| format!("{bucket}"));
            continue;
        }
        buckets += 1;
        let running = count(tx, keys, &bucket).await?;
        let room = most - released;
        let mut groups = groups(tx, keys, job_type, &bucket, running, room, rotation, &mine).await?;
        let has_room = !groups.is_empty();
        let room = room.min(groups.iter().map(|group| group.room).max().unwrap_or(0));
        let mut of_bucket = 0;
        let tenants: Vec<(String, usize)> =
            groups.iter().map(|group| (group.tenant.clone(), group.jobs.len())).collect();
        for group in next(&tenants, room).into_iter().take(room) {
            let Some(group) = groups.get_mut(group).filter(|group| group.room > of_bucket) else { continue };
            let Some(row) = group.jobs.next() else { continue };
            if released > 0 && !tx.has_room() {
                looked.more = true;
                break;
            }
            (released, of_bucket) = (released + 1, of_bucket + 1);
            looked.released.extend(put_back(tx, keys, &row).await?);
        }
        // Nobody is to be let go, or nobody was there.
        if !has_room && clears && tx.get(mark).await?.is_some() {
            tx.clear(mark.clone())?;
        }
    }
    // Behind the last one it begins anew.
    looked.more |= is_end && seen.is_some() || marked.len() == MAX_MARKED;
    rotation.turns().mark = last.filter(|_| !is_end).cloned();
    Ok(looked)
}

/// Jobs of one tenant that obey one limit, which has room.
struct Group {
    tenant: String,
    /// How many more of the bucket may run, by that limit.
    room: usize,
    jobs: std::vec::IntoIter<Bytes>,
}

/// Some of the tenants of a bucket whose limits have room, each with up to `room` jobs; at least one, if there is one.
#[allow(clippy::too_many_arguments, reason = "a look's own parts")]
async fn groups(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    bucket: &Bucket,
    running: usize,
    room: usize,
    rotation: &Rotation,
    mine: &impl Fn(&str) -> bool,
) -> Result<Vec<Group>> {
    // Lower limits have no room.
    let lowest = u32::try_from(running).unwrap_or(u32::MAX).saturating_add(1);
    let (first, _) = keys.limited_by(&Limit { bucket: bucket.clone(), most: lowest }, job_type);
    let (_, end) = keys.limited_of(bucket, job_type);
    let from = rotation.turns().tenants.get(bucket).cloned();
    let from = from.filter(|from| (&first..&end).contains(&from)).unwrap_or_else(|| first.clone());
    let mut groups = Vec::new();
    let mut go_on = None;
    'all: for (mut begin, end) in [(from.clone(), end), (first, from)] {
        while begin < end {
            if groups.len() == MAX_TENANTS {
                go_on = Some(begin);
                break 'all;
            }
            let found = rows(tx, (begin.clone(), end.clone()), room.max(LOOKED_AT)).await?;
            let Some((key, _)) = found.first() else { break };
            let (_, LimitedPlace { tenant, limit, .. }, _) = parse_limited(keys, key)?;
            let (mut own, mut others) = (Vec::new(), Vec::new());
            for (key, _) in &found {
                let (_, place, id) = parse_limited(keys, key)?;
                if place.tenant != tenant || place.limit != limit {
                    break;
                }
                if mine(&id) { own.push(key.clone()) } else { others.push(key.clone()) }
            }
            own.append(&mut others);
            begin = keys.limited_for(&limit, job_type, &tenant).1;
            let room = (limit.most as usize).saturating_sub(running);
            groups.push(Group { tenant, room, jobs: own.into_iter() });
        }
    }
    rotation.go_on(bucket, go_on);
    Ok(groups)
}

/// Puts a job that is held back where it stood in the queue. Its tenant, if it is still there: it may have gone since the snapshot, and its
/// record then says so.
async fn put_back(tx: &Transaction, keys: &Keyspace, row: &Bytes) -> Result<Option<String>> {
    let (job_type, place, id) = parse_limited(keys, row)?;
    let job = read_job(tx, keys, &job_type, &id).await?;
    let Some(mut job) = job.filter(|job| job.limited_place().as_ref() == Some(&place)) else {
        return Ok(None);
    };
    move_to(tx, keys, &mut job, Place::pending(place.order_us))?;
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
    /// The limits that it obeys, beside the one of a filter.
    pub(crate) fn limits(&self, filter: Option<&Limit>) -> Vec<Limit> {
        of_job(filter.cloned(), &self.reasons)
    }
}
