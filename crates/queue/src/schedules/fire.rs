//! Fires: the transactions that add the jobs of schedules.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_policy::fire::{LastJob, Step, jitter_us};
use turnwise_store::Transaction;

use super::plan::{Plan, is_late, plan};
use super::row::{FireRecord, Missed, Outcome, Overlap, Paused, PausedBy, Schedule, job_id};
use super::waiting::Waiting;
use super::{ends, get, options, save};
use crate::after::After;
use crate::dependencies;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::jobs::{self, Added, Cancelled, PREFETCHED};
use crate::keyspace::{Keyspace, behind};
use crate::pieces::PIECE_BYTES;
use crate::place::Place;
use crate::reads;
use crate::spec::{NewJob, Scheduled};
use crate::unique;

/// Of so many rows, one can be read.
const READABLE_OF: usize = 16;

/// A schedule whose next instant has come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    /// The instant, in µs.
    pub at_us: i64,
    /// Its name.
    pub name: String,
}

/// What [`fire`] did.
#[derive(Debug, Default)]
pub struct Fired {
    /// How many of the due schedules it is done with, from the first one on.
    pub done: usize,
    /// What came of each instant, with the name of its schedule.
    pub fires: Vec<(String, FireRecord)>,
    /// The schedules that pause from now on, because their jobs have failed.
    pub paused: Vec<String>,
    /// The schedules whose zone is unknown here: another node may know it.
    pub unknown: Vec<String>,
}

/// What [`backfill`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Backfilled {
    /// The ids of the jobs that it has added.
    pub added: Vec<String>,
    /// How many jobs were there already, or had a unique key that another job has.
    pub existed: usize,
    /// The first instant that is left for another transaction, in µs.
    pub next_us: Option<i64>,
}

/// Up to `limit` schedules whose next instant has come, earliest first. Adds no read conflict.
#[boxed]
pub async fn due(tx: &Transaction, keys: &Keyspace, now_us: i64, limit: usize) -> Result<Vec<Due>> {
    Ok(due_behind(tx, keys, None, now_us, limit).await?.0)
}

/// The same behind a row. Also returns the last row that was read, if there may be more. Rows that cannot be read are left out: they keep no others.
#[boxed]
pub async fn due_behind(
    tx: &Transaction,
    keys: &Keyspace,
    row: Option<Bytes>,
    now_us: i64,
    limit: usize,
) -> Result<(Vec<Due>, Option<Bytes>)> {
    let rows = reads::rows(tx, behind(keys.schedules_due_until(now_us), row), limit).await?;
    let due = rows.iter().filter_map(|(key, _)| keys.parse_schedule_due(key).ok());
    let due = due.map(|(at_us, name)| Due { at_us, name }).collect();
    Ok((due, rows.last().filter(|_| rows.len() == limit).map(|(key, _)| key.clone())))
}

/// When the next schedule fires, in µs; if given, the next one after a time. Adds no read conflict.
#[boxed]
pub async fn next_due(tx: &Transaction, keys: &Keyspace, after_us: Option<i64>) -> Result<Option<i64>> {
    let (begin, end) = keys.schedules_due();
    let begin = after_us.map_or(begin, |after_us| keys.schedules_due_until(after_us).1);
    let rows = reads::rows(tx, (begin, end), READABLE_OF).await?;
    Ok(rows.iter().find_map(|(key, _)| keys.parse_schedule_due(key).ok()).map(|(at_us, _)| at_us))
}

/// Fires due schedules, as many as the transaction has room for. An instant whose job would be one too many for its tenant adds none.
#[boxed]
pub async fn fire(
    tx: &Transaction,
    keys: &Keyspace,
    due: &[Due],
    mut waiting: Option<Waiting>,
    now_us: i64,
) -> Result<Fired> {
    let mut fired = Fired::default();
    for (n, Due { at_us, name }) in due.iter().enumerate() {
        if n % PREFETCHED == 0 {
            let next = due[n..].iter().take(PREFETCHED);
            tx.prefetch(next.map(|due| keys.schedule(&due.name))).await?;
        }
        if n > 0 && !tx.has_room() {
            break;
        }
        let Some(schedule) = get(tx, keys, name).await?.filter(|schedule| schedule.next == Some(*at_us))
        else {
            // Another node has fired it, or this is a stray row.
            let row = keys.schedule_due_entry(*at_us, name);
            if tx.get(&row).await?.is_some() {
                tx.clear(row)?;
            }
            fired.done += 1;
            continue;
        };
        // Large options have a transaction of their own.
        if n > 0 && schedule.options_bytes > PIECE_BYTES {
            break;
        }
        fire_due(tx, keys, schedule, (&mut waiting, now_us), &mut fired).await?;
        fired.done += 1;
    }
    Ok(fired)
}

async fn fire_due(
    tx: &Transaction,
    keys: &Keyspace,
    old: Schedule,
    (waiting, now_us): (&mut Option<Waiting>, i64),
    fired: &mut Fired,
) -> Result<()> {
    let Some(next_us) = old.next else { return Ok(()) };
    if old.calendar.fires(next_us).is_err() {
        fired.unknown.push(old.name);
        return Ok(());
    }
    let mut new = old.clone();
    if let Some(most) = old.pause_after
        && ends::read(tx, keys, &old.name).await?.is_some_and(|ends| ends.failures >= most)
    {
        new.paused = Some(Paused { by: PausedBy::Failures, at_us: now_us });
        new.await_next(now_us);
        fired.paused.push(new.name.clone());
        return save(tx, keys, Some(&old), &new);
    }
    let Plan { dropped, fires } = plan(&old.calendar, old.missed, next_us, now_us);
    let makes_up = matches!(old.missed, Missed::All { .. }) && is_late(next_us, now_us);
    if let Some(at_us) = dropped {
        let missed = FireRecord { at_us, fired_us: now_us, outcome: Outcome::Missed, job: None };
        fired.fires.push((new.name.clone(), missed.clone()));
        new.note(missed);
    }
    let options = match fires.is_empty() {
        true => RawValue::NULL.to_owned(),
        false => options(tx, keys, &old).await?,
    };
    new.await_next(now_us);
    for (n, at_us) in fires.into_iter().enumerate() {
        if n > 0 && (!tx.has_room() || old.options_bytes > PIECE_BYTES) {
            // The others follow in the next transaction.
            new.next = Some(at_us);
            break;
        }
        let record = fire_at(tx, keys, &mut new, (&options, at_us), waiting, (now_us, makes_up)).await?;
        fired.fires.push((new.name.clone(), record));
    }
    save(tx, keys, Some(&old), &new)
}

/// Adds the job of an instant, unless the schedule states otherwise, and notes what came of it.
async fn fire_at(
    tx: &Transaction,
    keys: &Keyspace,
    schedule: &mut Schedule,
    (options, at_us): (&RawValue, i64),
    waiting: &mut Option<Waiting>,
    (now_us, makes_up): (i64, bool),
) -> Result<FireRecord> {
    let mut job = job_of(schedule, options, at_us, now_us);
    let checked = jobs::check(tx, &job);
    let is_full = match waiting {
        Some(waiting) if checked.is_ok() => waiting.refuses(tx, keys, &job, now_us).await?,
        _ => false,
    };
    let done = match checked {
        // Before the last one is cancelled for it.
        Err(error) => Err(error),
        Ok(()) if is_full && schedule.overlap == Overlap::CancelRunning => Ok((Outcome::Full, None)),
        Ok(()) => match after_last(tx, keys, schedule, (now_us, makes_up)).await? {
            None => Ok((Outcome::Skipped, None)),
            Some(_) if is_full => Ok((Outcome::Full, None)),
            Some(after) => {
                job.after = after;
                add(tx, keys, &job, now_us).await.map(|(outcome, id)| (outcome, Some(id)))
            }
        },
    };
    let (outcome, id) = match done {
        Err(Error::Invalid { field, problem }) => (Outcome::refused(&format!("{field}: {problem}")), None),
        done => done?,
    };
    if matches!(outcome, Outcome::Added | Outcome::Exists) {
        schedule.last.clone_from(&id);
    }
    if let (Outcome::Added, Some(waiting)) = (&outcome, waiting) {
        waiting.added(&job);
    }
    let record = FireRecord { at_us, fired_us: now_us, outcome, job: id };
    schedule.note(record.clone());
    Ok(record)
}

/// Adds the job of an instant, unless it is there, or another one has its unique key: then that happens which the job states. Returns the id of
/// the job, or of the other one. Nothing is written before what can make it `Invalid`.
async fn add(tx: &Transaction, keys: &Keyspace, job: &NewJob, now_us: i64) -> Result<(Outcome, String)> {
    Ok(match unique::add(tx, keys, job, false, now_us).await? {
        unique::Outcome::Found(found) => (Outcome::Found, found.id),
        unique::Outcome::Added(Added::KeyTaken(taken)) => (Outcome::Found, taken.row.id),
        unique::Outcome::Added(Added::AlreadyThere) => (Outcome::Exists, job.id.clone()),
        unique::Outcome::Added(
            Added::Queued
            | Added::Delayed
            | Added::AlreadyWaiting
            | Added::Blocked
            | Added::Cancelled
            | Added::RunsAgain,
        ) => (Outcome::Added, job.id.clone()),
    })
}

/// The job of an instant.
fn job_of(schedule: &Schedule, options: &RawValue, at_us: i64, now_us: i64) -> NewJob {
    let Schedule { name, template, jitter_us: most_us, .. } = schedule;
    let id = job_id(name, at_us);
    let mut spec = template.spec.clone();
    spec.schedule = Some(Scheduled { name: name.clone(), at_us, fired_us: now_us });
    NewJob {
        spec,
        priority: template.priority,
        not_before_us: (*most_us > 0).then(|| at_us.saturating_add(jitter_us(&id, *most_us))),
        ..NewJob::new(&template.job_type, &id, options.to_owned())
    }
}

/// What the next job of a schedule waits for; `None` if it is not added, because the last one has not ended.
async fn after_last(
    tx: &Transaction,
    keys: &Keyspace,
    schedule: &Schedule,
    (now_us, makes_up): (i64, bool),
) -> Result<Option<Vec<After>>> {
    let job_type = &schedule.template.job_type;
    let last = match schedule.overlap {
        Overlap::Allow => None,
        _ => open_last(tx, keys, schedule).await?,
    };
    let Some(last) = last else { return Ok(Some(Vec::new())) };
    let id = &last.id;
    let state = if last.awaits_start() { LastJob::Waits } else { LastJob::Started };
    match schedule.overlap.step(state, makes_up) {
        Step::Add => Ok(Some(Vec::new())),
        Step::Skip => Ok(None),
        Step::AddBehind => Ok(Some(vec![any_end(job_type, id)])),
        Step::CancelLast => {
            // One that waits for the end of another one, which stops: so does the next one.
            let mut after = dependencies::unmet(tx, keys, &last).await?;
            if jobs::cancel(tx, keys, job_type, id, now_us).await? == Cancelled::Requested {
                after.push(any_end(job_type, id));
            }
            let mut open_ones = Vec::with_capacity(after.len());
            for one in after {
                if open(tx, keys, &one.job_type, &one.id).await?.is_some() {
                    open_ones.push(one);
                }
            }
            Ok(Some(open_ones))
        }
    }
}

/// The last job of a schedule, if it has not ended.
async fn open_last(tx: &Transaction, keys: &Keyspace, schedule: &Schedule) -> Result<Option<Job>> {
    let Some(id) = &schedule.last else { return Ok(None) };
    // What a transaction changes that ends it now is the same as if it ended a moment later.
    let last = open(tx, keys, &schedule.template.job_type, id).await?;
    // One that was there already may be another tenant's, which this schedule neither waits for nor cancels.
    Ok(last.filter(|job| job.tenant == schedule.tenant))
}

/// A job that has not ended.
async fn open(tx: &Transaction, keys: &Keyspace, job_type: &str, id: &str) -> Result<Option<Job>> {
    let job = jobs::peek(tx, keys, job_type, id).await?;
    Ok(job.filter(|job| !matches!(job.place, Place::Ended(_))))
}

fn any_end(job_type: &str, id: &str) -> After {
    After {
        job_type: job_type.to_owned(),
        id: id.to_owned(),
        accepted: vec![DependencyEnd::Completed, DependencyEnd::Failed, DependencyEnd::Cancelled],
        otherwise: Otherwise::Free,
    }
}

/// Adds a job now, whether the schedule is paused or its last job runs. Later instants still look at that last job. Returns what came of it.
///
/// # Errors
/// `NotFound` if there is no such schedule; `Invalid` if its job cannot be added.
#[boxed]
pub async fn fire_now(tx: &Transaction, keys: &Keyspace, name: &str, now_us: i64) -> Result<FireRecord> {
    let old = get(tx, keys, name).await?.ok_or(Error::NotFound)?;
    let options = options(tx, keys, &old).await?;
    let job = NewJob { not_before_us: None, ..job_of(&old, &options, now_us, now_us) };
    let mut new = old.clone();
    let is_last = open_last(tx, keys, &old).await?.is_none();
    let (outcome, id) = add(tx, keys, &job, now_us).await?;
    if is_last && outcome != Outcome::Found {
        new.last = Some(id.clone());
    }
    let record = FireRecord { at_us: now_us, fired_us: now_us, outcome, job: Some(id) };
    new.note(record.clone());
    save(tx, keys, Some(&old), &new)?;
    Ok(record)
}

/// Adds the jobs of instants that have passed, from one to another and both included, if they are not there: up to `limit`, or as many as the
/// transaction has room for. The overlap of jobs is not looked at.
///
/// # Errors
/// `NotFound` if there is no such schedule; `Invalid` for a time that has not come, and if a job cannot be added.
#[boxed]
pub async fn backfill(
    tx: &Transaction,
    keys: &Keyspace,
    name: &str,
    (from_us, to_us): (i64, i64),
    limit: usize,
    now_us: i64,
) -> Result<Backfilled> {
    // Without a conflict: the schedule may fire meanwhile.
    let schedule = super::peek(tx, keys, name).await?.ok_or(Error::NotFound)?;
    let invalid = |field, problem: &str| Err(Error::Invalid { field, problem: problem.to_owned() });
    if to_us > now_us {
        return invalid("to", "must not be after now: what lies ahead fires by itself");
    }
    if from_us > to_us {
        return invalid("from", "must not be after `to`");
    }
    let options = options(tx, keys, &schedule).await?;
    let fires = schedule.calendar.fires(from_us.saturating_sub(1));
    let fires = fires.map_err(|wrong| Error::Invalid { field: wrong.field, problem: wrong.problem })?;
    let mut filled = Backfilled::default();
    for (n, fire) in fires.take_while(|fire| fire.at_us <= to_us).enumerate() {
        let is_full = n == limit || n > 0 && (!tx.has_room() || schedule.options_bytes > PIECE_BYTES);
        if is_full {
            filled.next_us = Some(fire.at_us);
            break;
        }
        let job = NewJob { not_before_us: None, ..job_of(&schedule, &options, fire.at_us, now_us) };
        match add(tx, keys, &job, now_us).await? {
            (Outcome::Added, id) => filled.added.push(id),
            _ => filled.existed += 1,
        }
    }
    Ok(filled)
}
