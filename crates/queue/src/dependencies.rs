//! Jobs that wait for the end of others.
//!
//! *Model.* A job that waits for others is *blocked*: [`State::Delayed`], in no index that time moves, with a row `("after", …)` for
//! each job that has not ended, and their number in its record ([`Job::unmet`]). Each of those has a row back, `("dependents", …)`.
//! Whatever ends a job looks at its dependents in the same transaction ([`settle_ended`]): a row of theirs goes, and with the last one
//! they are pending, or cancelled with the first that ends in a way they do not accept.
//!
//! *Only who is waited for pays.* The record of a job that others wait for says so ([`Job::awaited`]): whoever ends any other job reads
//! nothing more. The first who waits for a job writes that, and so collides with its end: none is forgotten. It names a *group*: those that
//! wait for this end, and not for a later one of a job with the same id.
//!
//! *Many dependents.* One transaction settles [`AT_ONCE`] of them, fewer where it has no room. For the others it leaves a row
//! `("unsettled", …)`, which the servers watch ([`settle`]). So does an end that cancels a job for which others wait in turn: a chain of any
//! length is a sequence of small transactions.
//!
//! *No circles.* Nobody can wait for a job that is not there. So there can only be a circle where somebody waits for the job that is added; then
//! what it waits for is searched, up to [`MAX_SEARCHED`] jobs.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_policy::eligibility::dependencies::{Otherwise, Outcome, Verdict, judge};
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::error::corrupt;
use crate::job::{MAX_ID_BYTES, MAX_TYPE_BYTES, check_name};
use crate::jobs::{make_final, make_pending_from};
use crate::rows::{decode, encode, read_job, write_job};
use crate::{Error, EventKind, Job, Keyspace, Result, State, Then};

/// Jobs that one job waits for at most.
pub const MAX_AFTER: usize = 100;
/// Dependents that one transaction settles at most.
pub const AT_ONCE: usize = 100;
/// Jobs that a search for a circle looks at, at most.
pub const MAX_SEARCHED: usize = 1_000;

/// A job that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// Its type.
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// The ends that are accepted: at least one of them, and not [`Outcome::Removed`].
    pub accepted: Vec<Outcome>,
    /// What happens when it ends otherwise.
    pub otherwise: Otherwise,
}

impl After {
    /// Waits until a job has completed, and is cancelled if it ends otherwise.
    pub fn completed(job_type: &str, id: &str) -> After {
        After {
            job_type: job_type.to_owned(),
            id: id.to_owned(),
            accepted: vec![Outcome::Completed],
            otherwise: Otherwise::Cancel,
        }
    }
}

/// The row `("after", …)`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AfterRow {
    accepted: Vec<Outcome>,
    otherwise: Otherwise,
    /// The group of the other job's dependents that this one is in.
    pub(crate) group: i64,
}

/// What a group waited for, and how that ended.
struct Group {
    on: (String, String),
    group: i64,
    outcome: Outcome,
}

fn invalid(problem: String) -> Error {
    Error::Invalid { field: "after", problem }
}

/// Whether a job could wait for these, as far as its own fields tell.
pub(crate) fn check(job_type: &str, id: &str, after: &[After]) -> Result<()> {
    if after.len() > MAX_AFTER {
        return Err(invalid(format!(
            "has {} jobs; at most {MAX_AFTER} are allowed: let one job wait for many, and others for that one",
            after.len()
        )));
    }
    let mut named = BTreeSet::new();
    for (n, one) in after.iter().enumerate() {
        check_name("after.type", &one.job_type, MAX_TYPE_BYTES)?;
        check_name("after.id", &one.id, MAX_ID_BYTES)?;
        let told = format!("[{n}]: job `{}` of type `{}`", one.id, one.job_type);
        if one.accepted.is_empty() || one.accepted.contains(&Outcome::Removed) {
            return Err(invalid(format!(
                "{told}: `accepted` must name one or more of completed, failed and cancelled"
            )));
        }
        if (one.job_type.as_str(), one.id.as_str()) == (job_type, id) {
            return Err(invalid(format!("{told} is the job itself: leave it out")));
        }
        if !named.insert((&one.job_type, &one.id)) {
            return Err(invalid(format!(
                "{told} is named twice: leave one out, and let the other accept both"
            )));
        }
    }
    Ok(())
}

/// Writes what a job waits for, of which nothing is written yet, and counts it in its record, which the caller writes. Why
/// the job is to be cancelled, if one of the others has ended in a way that it does not accept: then nothing is written.
///
/// # Errors
/// `Invalid` if one is not there, or waits for this one.
pub(crate) async fn enter(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    after: &[After],
    now_us: i64,
) -> Result<Option<String>> {
    let mut others = Vec::new();
    let mut refused = None;
    for (n, one) in after.iter().enumerate() {
        let Some(other) = read_job(tx, keys, &one.job_type, &one.id).await? else {
            return Err(invalid(format!(
                "[{n}]: there is no job `{}` of type `{}`: add it first, or leave this out if it has ended and was removed",
                one.id, one.job_type
            )));
        };
        match final_outcome(other.state) {
            None => others.push((one, other)),
            Some(outcome) => match judge(outcome, &one.accepted, one.otherwise) {
                Verdict::Freed => {}
                Verdict::Cancelled => {
                    let _ = refused.get_or_insert_with(|| told(&one.job_type, &one.id, outcome));
                }
            },
        }
    }
    if job.awaited.is_some() {
        refuse_circle(tx, keys, job, &others).await?;
    }
    if refused.is_some() {
        return Ok(refused);
    }
    for (one, mut other) in others {
        let on = (one.job_type.as_str(), one.id.as_str());
        let group = match other.awaited {
            Some(group) => group,
            None => {
                let group = free_group(tx, keys, on, now_us).await?;
                other.awaited = Some(group);
                write_job(tx, keys, &other)?;
                group
            }
        };
        let row = AfterRow { accepted: one.accepted.clone(), otherwise: one.otherwise, group };
        tx.set(keys.after_entry(&job.job_type, &job.id, on), encode(&row))?;
        tx.set(keys.dependents_entry(on, group, &job.job_type, &job.id), Bytes::new())?;
        job.unmet += 1;
    }
    Ok(None)
}

/// A number for a new group: none that is still to be settled has it.
async fn free_group(tx: &Transaction, keys: &Keyspace, on: (&str, &str), now_us: i64) -> Result<i64> {
    let mut group = now_us;
    while tx.get(&keys.unsettled_entry(on, group)).await?.is_some() {
        group += 1;
    }
    Ok(group)
}

/// Whether one of `others` waits for the job, or for one that does.
async fn refuse_circle(tx: &Transaction, keys: &Keyspace, job: &Job, others: &[(&After, Job)]) -> Result<()> {
    let own = (job.job_type.clone(), job.id.clone());
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    let mut open: VecDeque<((String, String), u32)> = VecDeque::new();
    for (_, other) in others {
        let other_key = (other.job_type.clone(), other.id.clone());
        if seen.insert(other_key.clone()) {
            open.push_back((other_key, other.unmet));
        }
    }
    while let Some(((job_type, id), unmet)) = open.pop_front() {
        if unmet == 0 {
            continue;
        }
        for (key, _) in tx.range(&keys.after(&job_type, &id), MAX_AFTER).await? {
            let next = keys.parse_after(&key).ok_or_else(|| corrupt("after key", "not a tuple of five"))?;
            if next == own {
                return Err(invalid(format!(
                    "job `{id}` of type `{job_type}` waits for this one: the circle would never end; leave one of them out"
                )));
            }
            if seen.len() == MAX_SEARCHED {
                return Err(invalid(format!(
                    "more than {MAX_SEARCHED} jobs are to end before this one, for which others wait: whether that is a circle is not searched; add it under a new id"
                )));
            }
            if seen.insert(next.clone()) {
                let unmet = read_job(tx, keys, &next.0, &next.1).await?.map_or(0, |job| job.unmet);
                open.push_back((next, unmet));
            }
        }
    }
    Ok(())
}

/// Puts a job that is nowhere among the blocked ones; once it is free, it does not start before `not_before_us`. Does not write
/// the record.
pub(crate) fn block(tx: &Transaction, keys: &Keyspace, job: &mut Job, not_before_us: i64) -> Result<()> {
    job.enter(State::Delayed);
    job.order_us = not_before_us;
    Ok(tx.set(keys.blocked_entry(&job.job_type, &job.id), Bytes::new())?)
}

/// Forgets what a job waits for. It is in no place, or runs. Does not write the record.
pub(crate) async fn leave(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    if job.unmet == 0 {
        return Ok(());
    }
    for (key, value) in tx.range(&keys.after(&job.job_type, &job.id), MAX_AFTER).await? {
        let on = keys.parse_after(&key).ok_or_else(|| corrupt("after key", "not a tuple of five"))?;
        let row: AfterRow = decode("after row", &value)?;
        tx.clear(keys.dependents_entry((&on.0, &on.1), row.group, &job.job_type, &job.id))?;
        tx.clear(key)?;
    }
    job.unmet = 0;
    Ok(())
}

/// What a job waits for, up to [`MAX_AFTER`] others. Takes no conflict.
pub async fn unmet(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Vec<After>> {
    if job.unmet == 0 {
        return Ok(Vec::new());
    }
    let (begin, end) = keys.after(&job.job_type, &job.id);
    let read = RangeRead { begin, end, limit: MAX_AFTER, reverse: false };
    let rows = tx.range_with(read, Isolation::Snapshot).await?;
    rows.iter()
        .map(|(key, value)| {
            let (job_type, id) =
                keys.parse_after(key).ok_or_else(|| corrupt("after key", "not a tuple of five"))?;
            let AfterRow { accepted, otherwise, .. } = decode("after row", value)?;
            Ok(After { job_type, id, accepted, otherwise })
        })
        .collect()
}

/// Lets those that wait for a job know that it has ended, or is about to be gone. Its record, or the end of it, is the caller's to write.
pub(crate) async fn settle_ended(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    outcome: Outcome,
    now_us: i64,
) -> Result<()> {
    match job.awaited.take() {
        None => Ok(()),
        Some(group) => {
            let on = (job.job_type.clone(), job.id.clone());
            settle_groups(tx, keys, Group { on, group, outcome }, now_us).await.map(drop)
        }
    }
}

/// The same, in a transaction of [`settle`]'s.
pub(crate) fn settle_later(tx: &Transaction, keys: &Keyspace, job: &mut Job, outcome: Outcome) -> Result<()> {
    let Some(group) = job.awaited.take() else { return Ok(()) };
    leave_unsettled(tx, keys, &Group { on: (job.job_type.clone(), job.id.clone()), group, outcome })
}

fn leave_unsettled(tx: &Transaction, keys: &Keyspace, group: &Group) -> Result<()> {
    let on = (group.on.0.as_str(), group.on.1.as_str());
    tx.set(keys.unsettled_entry(on, group.group), encode(&group.outcome))?;
    Ok(tx.set_versionstamp(keys.unsettled_wake())?)
}

/// Settles some of those that could not be in the transaction that ended what they wait for. Returns how many; none means that there
/// are none.
pub async fn settle(tx: &Transaction, keys: &Keyspace, now_us: i64) -> Result<usize> {
    let rows = tx.range(&keys.unsettled(), 1).await?;
    let Some((key, value)) = rows.first() else { return Ok(0) };
    let (on_type, on_id, group) =
        keys.parse_unsettled(key).ok_or_else(|| corrupt("unsettled key", "not a tuple of four"))?;
    let outcome: Outcome = decode("unsettled row", value)?;
    // A group of which nobody is left counts, too: its row has gone.
    Ok(settle_groups(tx, keys, Group { on: (on_type, on_id), group, outcome }, now_us).await? + 1)
}

/// Settles a group, and those of the jobs that this cancels, as far as one transaction goes.
async fn settle_groups(tx: &Transaction, keys: &Keyspace, first: Group, now_us: i64) -> Result<usize> {
    let mut groups = VecDeque::from([first]);
    let mut settled = 0;
    while let Some(group) = groups.pop_front() {
        let on = (group.on.0.as_str(), group.on.1.as_str());
        let rows = tx.range(&keys.dependents(on, group.group), AT_ONCE - settled + 1).await?;
        let mut is_done = true;
        for (key, _) in rows {
            if settled == AT_ONCE || !tx.has_room() {
                is_done = false;
                break;
            }
            settled += 1;
            let dependent =
                keys.parse_dependents(&key).ok_or_else(|| corrupt("dependents key", "not a tuple of six"))?;
            tx.clear(key)?;
            groups.extend(settle_one(tx, keys, &group, &dependent, now_us).await?);
        }
        match is_done {
            true => tx.clear(keys.unsettled_entry(on, group.group))?,
            false => leave_unsettled(tx, keys, &group)?,
        }
    }
    Ok(settled)
}

/// Lets one job know how one of those that it waits for has ended. If that cancels it, those who wait for it are next.
async fn settle_one(
    tx: &Transaction,
    keys: &Keyspace,
    group: &Group,
    (job_type, id): &(String, String),
    now_us: i64,
) -> Result<Option<Group>> {
    let row = keys.after_entry(job_type, id, (&group.on.0, &group.on.1));
    let Some(value) = tx.get(&row).await? else { return Ok(None) };
    let after: AfterRow = decode("after row", &value)?;
    if after.group != group.group {
        return Ok(None);
    }
    let job = read_job(tx, keys, job_type, id).await?;
    let mut job = job.ok_or_else(|| corrupt("after row", "its job has no record"))?;
    if job.unmet == 0 {
        return Err(corrupt("job record", "waits for nobody, and has an after row"));
    }
    let is_blocked = job.state == State::Delayed;
    let verdict = judge(group.outcome, &after.accepted, after.otherwise);
    let mut next = None;
    match verdict {
        Verdict::Freed => {
            tx.clear(row)?;
            job.unmet -= 1;
            if job.unmet == 0 && is_blocked {
                tx.clear(keys.blocked_entry(job_type, id))?;
                let not_before_us = job.order_us;
                job.changed_us = now_us;
                make_pending_from(tx, keys, &mut job, Some(not_before_us), now_us)?;
            }
        }
        Verdict::Cancelled => {
            leave(tx, keys, &mut job).await?;
            if is_blocked {
                tx.clear(keys.blocked_entry(job_type, id))?;
                job.refused =
                    Some(crate::job::bounded_reason(&told(&group.on.0, &group.on.1, group.outcome)));
                job.record_request(now_us, EventKind::Cancelled);
                make_final(tx, keys, &mut job, State::Cancelled)?;
                next = job.awaited.take().map(|group| Group {
                    on: (job_type.clone(), id.clone()),
                    group,
                    outcome: Outcome::Cancelled,
                });
            } else {
                // It runs, and what was to wait is its next run.
                job.then = Then::Keep;
            }
        }
    }
    write_job(tx, keys, &job)?;
    Ok(next)
}

/// How a job has ended, by its state; `None` if it has not.
fn final_outcome(state: State) -> Option<Outcome> {
    match state {
        State::Completed => Some(Outcome::Completed),
        State::Failed => Some(Outcome::Failed),
        State::Cancelled => Some(Outcome::Cancelled),
        _ => None,
    }
}

fn told(job_type: &str, id: &str, outcome: Outcome) -> String {
    format!("job `{id}` of type `{job_type}`, which it was to wait for, {}", outcome.told())
}
