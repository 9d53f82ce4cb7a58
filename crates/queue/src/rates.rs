//! Rates as rows: the last starts of a bucket, and when its limited jobs return to the queue.
//!
//! *Model.* The starts of a bucket ([`turnwise_policy::eligibility::rate`]) are numbered, those of a job with a weight by as many numbers. A row per
//! transaction has the last number of its starts, and their time; a row per bucket has the number of all ([`StartCount`]). So the start that
//! the next one would be one too many with is found by its number, with one read, whatever the limit is. The rows of older starts than the limit
//! needs are removed by the claims that follow, and all rows of a bucket once its last start is long over ([`remove_expired`]).
//!
//! *Never more than the limit.* Claims of one bucket conflict over its count. A start has the later one of the time of its pass and of the start
//! before it, so numbers and times have one order. A pass compares the times with its own clock ([`crate::clock`]): a node whose clock is behind
//! admits later, by at most as much. So no period, by the times at which jobs started, has more starts than the limit. A clock that is set back is not
//! followed, and runs at 7/8 until the machine's has caught up: a wait takes at most 8/7 of its time.
//!
//! *No job is missed, and none is polled.* A refused job leaves the queue for [`Place::Limited`](crate::Place::Limited), and its bucket gets a mark with the
//! time at which it has room. Passes read these marks with those of concurrency limits, and a worker's next pass begins at the first of these times. It
//! returns as many jobs as there are places, and moves the mark to the time of the next place, or soon after, because a returned job may not start
//! ([`recheck_us`]). The worker of whose part the bucket is comes
//! first; others follow after a hundredth of the period ([`others_delay_us`]).

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_policy::eligibility::condition::Value;
pub use turnwise_policy::eligibility::rate::StartCount;
use turnwise_policy::eligibility::rate::{Algorithm, NextStart, Rate, RateLimit, key_of, of_filter};
use turnwise_store::{Isolation, Transaction};

use crate::concurrency::{self, LimitedRow};
use crate::keyspace::behind;
use crate::reads::{self, rows};
use crate::rows::{decode, encode};
use crate::{Error, Job, Keyspace, Result};

/// Rows of the log that one read returns.
const LOG_BATCH: usize = 128;
/// Rows of old starts that a transaction removes; it adds one.
const REMOVED_AT_ONCE: usize = 2;
/// The longest pause of a rate: a day, in ms.
pub const MAX_PAUSE_MS: u64 = 86_400_000;
/// The longest pause that a run asks for: an hour, in ms. That of a reason's rate cannot be ended early.
pub const MAX_PAUSE_OF_RUN_MS: u64 = 3_600_000;
/// How much longer than their period starts are kept, in µs: by far more than the clocks of two nodes differ, so that no node removes
/// a start that still counts by another one's clock.
const KEPT_US: i64 = 60_000_000;

/// What one transaction knows of the starts of a bucket.
#[derive(Debug)]
pub struct Starts {
    bucket: Bucket,
    count: StartCount,
    /// Consecutive rows of the log, from the one with this number on.
    from: u64,
    log: Vec<(u64, i64)>,
    /// Whether no rows follow them.
    is_whole: bool,
    /// This transaction's row.
    own: Option<(u64, i64)>,
}

/// The room that a bucket has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// How many jobs may start now.
    pub now: usize,
    /// When the next job after these may start, in µs.
    pub next_us: i64,
}

impl Starts {
    /// The starts of a bucket. Adds no read conflict.
    pub async fn read(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<Starts> {
        let row = keys.start_count(bucket.name());
        let count = reads::value_with(tx, &row, "start count", Isolation::Snapshot).await?;
        let count: StartCount = count.unwrap_or_default();
        Ok(Starts { bucket: bucket.clone(), count, from: 0, log: Vec::new(), is_whole: false, own: None })
    }

    /// When the `n`-th more job of this rate may start, in µs. Adds no read conflict.
    async fn free_us(&mut self, tx: &Transaction, keys: &Keyspace, rate: &Rate, n: u32) -> Result<i64> {
        let free_us = match self.count.next_start(rate, n) {
            NextStart::At(at_us) => at_us,
            NextStart::PeriodAfter(number) => {
                self.at_us(tx, keys, number).await?.saturating_add(rate.per_us())
            }
        };
        Ok(free_us.max(self.count.paused_until_us))
    }

    /// When the start with this number was. A start without a row counts as the last one: the token bucket writes none.
    async fn at_us(&mut self, tx: &Transaction, keys: &Keyspace, number: u64) -> Result<i64> {
        let mut found = self.log.partition_point(|(until, _)| *until < number);
        if number < self.from || found == self.log.len() && !self.is_whole {
            let name = self.bucket.name();
            let range = (keys.start_entry(name, number), keys.starts(name).1);
            let read = rows(tx, range, LOG_BATCH).await?;
            self.is_whole = read.len() < LOG_BATCH;
            self.log = read
                .iter()
                .map(|(key, value)| Ok((keys.parse_start(key)?, decode("start", value)?)))
                .collect::<Result<_>>()?;
            (self.from, found) = (number, 0);
        }
        Ok(self.log.get(found).map_or(self.count.last_us, |(_, at_us)| *at_us))
    }

    /// How many jobs of this rate may start now, up to `most`. Adds no read conflict.
    pub async fn places(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        rate: &Rate,
        most: usize,
        now_us: i64,
    ) -> Result<Places> {
        let fit = rate.at_most / rate.weight.max(1);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        for n in 0..=fit.min(most) {
            let next_us = match n == fit {
                true => now_us.saturating_add(rate.per_us()),
                false => self.free_us(tx, keys, rate, n + 1).await?,
            };
            if n == most || next_us > now_us {
                return Ok(Places { now: n as usize, next_us });
            }
        }
        Ok(Places { now: fit as usize, next_us: now_us.saturating_add(rate.per_us()) })
    }

    /// When the next job of this rate may start, in µs; in the past if it may start now. Adds no read conflict.
    pub async fn next_us(&mut self, tx: &Transaction, keys: &Keyspace, rate: &Rate) -> Result<i64> {
        self.free_us(tx, keys, rate, 1).await
    }

    /// Counts a start, and proves that the count is still that of [`Starts::read`]. Removes rows of older starts.
    pub(crate) async fn take(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        rate: &Rate,
        now_us: i64,
    ) -> Result<()> {
        let (name, row) = (self.bucket.name(), keys.start_count(self.bucket.name()));
        let is_first = self.own.is_none();
        if is_first {
            tx.get(&row).await?;
        }
        let count = &mut self.count;
        let own = count.take(rate, now_us);
        // The starts of one transaction leave the period together.
        if let Some((before, _)) = self.own.filter(|(_, at_us)| *at_us == own.1) {
            tx.clear(keys.start_entry(name, before))?;
            self.log.retain(|(until, _)| *until != before);
        }
        if rate.algorithm == Algorithm::Window {
            tx.set(keys.start_entry(name, own.0), encode(&own.1))?;
            if self.is_whole {
                self.log.push(own);
            }
        }
        self.own = Some(own);
        if is_first {
            let kept = count.total.saturating_sub(u64::from(count.most));
            let old = (keys.starts(name).0, keys.start_entry(name, kept.saturating_add(1)));
            for (key, _) in rows(tx, old, REMOVED_AT_ONCE).await? {
                count.removed = keys.parse_start(&key)?;
                tx.clear(key)?;
            }
        }
        Ok(tx.set(row, encode(&self.count))?)
    }
}

/// How much later than the worker of whose part a bucket is, others return its jobs, in µs: a hundredth of the period, from 10 ms to 1 s.
pub(crate) fn others_delay_us(per_us: i64) -> i64 {
    (per_us / 100).clamp(10_000, 1_000_000)
}

/// How long after a pass that returned jobs the next one compares again, in µs: if a job waits for something else, its place is still free. A
/// tenth of the period, from 10 ms to 10 s.
pub(crate) fn recheck_us(per_us: i64) -> i64 {
    (per_us / 10).clamp(10_000, 10_000_000)
}

/// Marks a bucket of starts at a time at which it has room for its limited jobs of a type. Reads nothing.
pub(crate) fn mark(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    bucket: &Bucket,
    (at_us, per_us): (i64, i64),
) -> Result<()> {
    Ok(tx.set(keys.roomy_at(job_type, at_us.max(0), bucket.name()), encode(&per_us))?)
}

/// The rate that a limited job waits for, and when it may start next, in µs. `None` if it waits for something else. Adds no read conflict.
#[boxed]
pub async fn awaited(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Option<(Rate, i64)>> {
    let Some(place) = job.limited_place() else { return Ok(None) };
    let row = keys.limited_entry(&job.job_type, &place, &job.id);
    let row: Option<LimitedRow> = reads::value_with(tx, &row, "limited row", Isolation::Snapshot).await?;
    let Some(rate) = row.and_then(|row| row.rate) else { return Ok(None) };
    let next_us = Starts::read(tx, keys, &place.limit.bucket).await?.next_us(tx, keys, &rate).await?;
    Ok(Some((rate, next_us)))
}

/// Lets no job of a filter's rate start before a time, in µs; a time that has passed ends this. With a key, only those with this value of it.
///
/// # Errors
/// `Invalid` if the filter has no rate, or a key where the request has none, or the reverse.
#[boxed]
pub async fn pause(
    tx: &Transaction,
    keys: &Keyspace,
    rule: &turnwise_policy::eligibility::filters::Rule,
    key: Option<&str>,
    until_us: i64,
) -> Result<()> {
    let invalid = |field, problem: &str| Err(Error::Invalid { field, problem: problem.to_owned() });
    let Some(rate) = &rule.rate else { return invalid("filter", "has no rate that could be paused") };
    match (&rate.key, key) {
        (Some(_), None) => {
            return invalid("key", "is missing: the filter has a bucket for each value of its key");
        }
        (None, Some(_)) => return invalid("key", "is none of this filter: leave it out"),
        _ => {}
    }
    // A long value is named by its hash.
    let key = key.map(|key| key_of(Some(Value::Text(key.to_owned()))));
    let bucket = &of_filter(&rule.id, key.as_deref());
    let row = keys.start_count(bucket.name());
    let mut count: StartCount = reads::value(tx, &row, "start count").await?.unwrap_or_default();
    // Limited jobs may start earlier than their marks say.
    if until_us < count.paused_until_us {
        concurrency::mark_later(tx, keys, bucket)?;
    }
    count.per_us = count.per_us.max(rate.per_us());
    count.paused_until_us = until_us;
    Ok(tx.set(row, encode(&count))?)
}

/// When the pause of a bucket ends, and its period, in µs. Adds no read conflict.
pub(crate) async fn end_of_pause(tx: &Transaction, keys: &Keyspace, bucket: &Bucket) -> Result<(i64, i64)> {
    let StartCount { paused_until_us, per_us, .. } = Starts::read(tx, keys, bucket).await?.count;
    Ok((paused_until_us, per_us))
}

/// Lets no job of a rate start before a time, in µs, or before the end of a longer pause.
#[boxed]
pub async fn lengthen_pause(
    tx: &Transaction,
    keys: &Keyspace,
    RateLimit { bucket, rate }: &RateLimit,
    until_us: i64,
) -> Result<()> {
    let row = keys.start_count(bucket.name());
    let mut count: StartCount = reads::value(tx, &row, "start count").await?.unwrap_or_default();
    if count.paused_until_us < until_us {
        count.per_us = count.per_us.max(rate.per_us());
        count.paused_until_us = until_us;
        tx.set(row, encode(&count))?;
    }
    Ok(())
}

/// Reads up to `limit` buckets after `after`, and removes the rows of those whose starts have not counted for a minute. Returns where to continue; `None` at
/// the end.
#[boxed]
pub async fn remove_expired(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Bytes>,
    limit: usize,
    now_us: i64,
) -> Result<Option<Bytes>> {
    let found = rows(tx, behind(keys.start_counts(), after.cloned()), limit).await?;
    let mut seen = None;
    for (key, value) in &found {
        if seen.is_some() && !tx.has_room() {
            return Ok(seen);
        }
        seen = Some(key.clone());
        let count: StartCount = decode("start count", value)?;
        // A token bucket is full again by then, too.
        let until_us = count.last_us.saturating_add(count.per_us).saturating_add(KEPT_US);
        let until_us = until_us.max(count.paused_until_us);
        // A claim that counts a start meanwhile conflicts.
        if until_us <= now_us && tx.get(key).await?.as_ref() == Some(value) {
            tx.clear_range(keys.starts(&keys.parse_start_count(key)?))?;
            tx.clear(key.clone())?;
        }
    }
    Ok(seen.filter(|_| found.len() == limit))
}
