//! Job filters as rows, and the jobs that they pause.
//!
//! *Model.* A filter is a row, and all filters share one versionstamp. A worker reads the versionstamp in each pass, and the
//! filters only when it has changed. A job that a filter pauses leaves the queue for [`Place::Paused`]. That index keeps
//! its time in the queue and the versionstamp of the filters that paused it. When the filters change, each job that was
//! paused by an older version returns to its place in the queue. The new filters then decide ([`release`]).
//!
//! *Forces.* If a paused job stayed in the queue, every pass would read it, and it would hide the jobs behind it. Rotation
//! would preempt jobs for it in vain. So a paused job costs two moves, however long it waits, and no reads in between.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::{MAX_LIMIT, check_limit};
use turnwise_policy::eligibility::condition::Condition;
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_store::Transaction;

use crate::encoding::hex;
use crate::jobs::refuse;
use crate::keyspace::behind;
use crate::names::check_name;
use crate::paused_row::{self, PausedRow};
use crate::place::{Holder, Place};
use crate::reads;
use crate::rows::{decode, encode, read_job, read_pending, write_job};
use crate::transition::{self, move_to};
use crate::{Error, Job, Keyspace, Result};

/// The most filters of a store.
pub const MAX_FILTERS: usize = 100;
/// The most that the patterns of all filters cost together ([`Condition::pattern_bytes`]).
const MAX_PATTERNS_BYTES: usize = 64 << 10;
/// Longest name of a filter, in bytes.
pub const MAX_FILTER_NAME_BYTES: usize = 128;
/// Longest note of a filter, in bytes.
pub const MAX_NOTE_BYTES: usize = 500;
/// The priority of a filter is at most this far from 0.
pub const MAX_PRIORITY: i32 = 1_000;

/// Whether a filter can be stored.
///
/// # Errors
/// `Invalid` with the field, and the position in a condition.
pub fn check(rule: &Rule) -> Result<()> {
    let invalid = |field, problem| Err(Error::Invalid { field, problem });
    check_name("id", &rule.id, MAX_FILTER_NAME_BYTES)?;
    if Holder::named(&rule.id).is_some() {
        let problem = format!("`{}` names who holds a job: choose another name", rule.id);
        return invalid("id", problem);
    }
    if let Some(note) = &rule.note {
        check_name("note", note, MAX_NOTE_BYTES)?;
    }
    if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&rule.priority) {
        return invalid("priority", format!("must be from -{MAX_PRIORITY} to {MAX_PRIORITY}"));
    }
    if rule.watermark_us < 0 {
        return invalid("watermark_us", "must be 0 (for all jobs), or a time after 1970".to_owned());
    }
    check_rate(rule)?;
    let limits = matches!(rule.action, Action::Concurrency | Action::Rate);
    match rule.limit {
        None if rule.action == Action::Concurrency => {
            let problem = format!("is missing: how many jobs may run at the same time, 1 to {MAX_LIMIT}");
            return invalid("limit", problem);
        }
        Some(_) if !limits => {
            return invalid(
                "limit",
                "belongs to `concurrency` and `rate`: leave it out, or make one of these the action"
                    .to_owned(),
            );
        }
        Some(most) => {
            check_limit(most).map_err(|problem| Error::Invalid { field: "limit", problem })?;
        }
        None => {}
    }
    match Condition::parse(&rule.when) {
        Ok(_) => Ok(()),
        Err(mistake) => invalid("when", mistake.to_string()),
    }
}

fn check_rate(rule: &Rule) -> Result<()> {
    let problem = match (&rule.rate, rule.action) {
        (Some(rate), Action::Rate) => match rate.check() {
            Ok(()) => return Ok(()),
            Err(problem) => problem,
        },
        (None, Action::Rate) => "is missing: how many jobs may start per period".to_owned(),
        (Some(_), _) => "belongs to `rate`: leave it out, or make that the action".to_owned(),
        (None, _) => return Ok(()),
    };
    Err(Error::Invalid { field: "rate", problem })
}

/// Writes a filter, new or in place of the one with its name.
///
/// # Errors
/// `Invalid`, as [`check`], and if there are too many filters.
#[boxed]
pub async fn put(tx: &Transaction, keys: &Keyspace, rule: &Rule) -> Result<()> {
    check(rule)?;
    // Two transactions that both add the last filter conflict.
    stamp(tx, keys).await?;
    let rules = list(tx, keys).await?;
    if rules.len() >= MAX_FILTERS && rules.iter().all(|known| known.id != rule.id) {
        let problem =
            format!("there are {MAX_FILTERS} filters, which is the most: remove one, or put two into one");
        return Err(Error::Invalid { field: "id", problem });
    }
    // A worker asks all of them for each job that it would start.
    let others = rules.iter().filter(|known| known.id != rule.id);
    let bytes = |rule: &Rule| Condition::parse(&rule.when).map_or(0, |condition| condition.pattern_bytes());
    let (own, others) = (bytes(rule), others.map(bytes).sum::<usize>());
    if own > 0 && own + others > MAX_PATTERNS_BYTES {
        let problem = format!(
            "the patterns of all filters take {} bytes; at most {MAX_PATTERNS_BYTES} are allowed: shorten them, or compare with = and in",
            own + others
        );
        return Err(Error::Invalid { field: "when", problem });
    }
    tx.set(keys.filter(&rule.id), encode(rule))?;
    Ok(tx.set_versionstamp(keys.filters_versionstamp())?)
}

/// Lets all filters decide again about the jobs that they have paused or limited: conditions test other options now.
pub(crate) async fn ask_again(tx: &Transaction, keys: &Keyspace) -> Result<()> {
    match stamp(tx, keys).await? {
        Some(_) => Ok(tx.set_versionstamp(keys.filters_versionstamp())?),
        None => Ok(()),
    }
}

/// Removes a filter; returns whether there was one.
#[boxed]
pub async fn remove(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<bool> {
    if tx.get(&keys.filter(id)).await?.is_none() {
        return Ok(false);
    }
    tx.clear(keys.filter(id))?;
    tx.set_versionstamp(keys.filters_versionstamp())?;
    Ok(true)
}

/// All filters, by name. Adds no read conflict: their [`stamp`] adds one for all of them.
#[boxed]
pub async fn list(tx: &Transaction, keys: &Keyspace) -> Result<Vec<Rule>> {
    let read =
        |key: &Bytes, value: &Bytes| Ok(Rule { id: keys.parse_filter(key)?, ..decode("filter", value)? });
    reads::list(tx, keys.filters(), MAX_FILTERS + 1, read).await
}

/// The versionstamp that changes with every change of a filter; `None` before the first. Adds a read conflict: a transaction
/// that applies filters applies the current ones.
#[boxed]
pub async fn stamp(tx: &Transaction, keys: &Keyspace) -> Result<Option<Bytes>> {
    Ok(tx.get(&keys.filters_versionstamp()).await?)
}

/// How many jobs each filter has paused, of the first `limit` paused jobs, and whether there are more. Adds no read conflict.
#[boxed]
pub async fn held(
    tx: &Transaction,
    keys: &Keyspace,
    limit: usize,
) -> Result<(BTreeMap<String, usize>, bool)> {
    let rows = reads::rows(tx, keys.paused(), limit.saturating_add(1)).await?;
    let mut held = BTreeMap::new();
    for (_, value) in rows.iter().take(limit) {
        let row: PausedRow = decode("paused row", value)?;
        *held.entry(row.filter).or_default() += 1;
    }
    Ok((held, rows.len() > limit))
}

/// Takes a pending job out of the queue, as long as the filters are those of `stamp`. Returns whether it was pending.
#[boxed]
pub async fn pause(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    filter: &str,
    stamp: &[u8],
    now_us: i64,
) -> Result<bool> {
    let Some(mut job) = read_pending(tx, keys, job_type, id).await? else { return Ok(false) };
    let order_us = job.order_us();
    job.changed_us = now_us;
    move_to(tx, keys, &mut job, Place::Paused { order_us, filter: filter.to_owned() })?;
    paused_row::write(tx, keys, &job, filter, stamp)?;
    write_job(tx, keys, &job)?;
    Ok(true)
}

/// Cancels a pending job. Returns whether it was pending.
#[boxed]
pub async fn reject(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    reason: &str,
    now_us: i64,
) -> Result<bool> {
    let Some(mut job) = read_pending(tx, keys, job_type, id).await? else { return Ok(false) };
    transition::leave(tx, keys, &job)?;
    refuse(tx, keys, &mut job, reason, now_us).await?;
    write_job(tx, keys, &job)?;
    Ok(true)
}

/// Where a search for jobs to release continues.
pub type Cursor = Bytes;

/// Reads up to `limit` paused jobs after `after`. Puts jobs that an older version of the filters paused back into the
/// queue, as many as the transaction has room for. Returns where to continue; `None` at the end.
#[boxed]
pub async fn release(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Option<Cursor>> {
    let now = stamp(tx, keys).await?.map(|stamp| hex(&stamp)).unwrap_or_default();
    let rows = reads::rows(tx, behind(keys.paused(), after.cloned()), limit).await?;
    let mut seen = None;
    for (key, value) in &rows {
        if seen.is_some() && !tx.has_room() {
            return Ok(seen);
        }
        seen = Some(key.clone());
        let row: PausedRow = decode("paused row", value)?;
        if Holder::named(&row.filter).is_some() {
            continue;
        }
        if row.stamp == now {
            continue;
        }
        let (job_type, order_us, id) = keys.parse_paused(key)?;
        // The job may have left since this transaction's snapshot; its record then says so.
        let job = read_job(tx, keys, &job_type, &id).await?;
        let is_there = |job: &Job| job.paused().is_some() && job.order_us() == order_us;
        if let Some(mut job) = job.filter(is_there) {
            move_to(tx, keys, &mut job, Place::pending(order_us))?;
            write_job(tx, keys, &job)?;
        }
    }
    Ok(seen.filter(|_| rows.len() == limit))
}
