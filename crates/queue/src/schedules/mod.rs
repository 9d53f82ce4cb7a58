//! Schedules: jobs that are added at the instants of a calendar.
//!
//! *Model.* A schedule is a row with its calendar and the template of its jobs ([`Schedule`]). The instant at which it fires next is in that row, and in an index of
//! due ones that all nodes watch. To fire is one transaction ([`fire()`]): it adds the job `{schedule}@{instant}` and moves the next instant. So an instant
//! fires once, on whichever node, and however often it is tried. The id of the job makes this hold even if the rows of the schedule are restored from a
//! copy.
//!
//! ```text
//!   put ──▶ ("schedule_due", next, name) ──▶ due: the job is added, and the row moves to the next instant
//!             ▲                        └──▶ paused, or over: cleared
//!             └── resumed
//! ```
//!
//! *What lies before.* A schedule that is new, that gets another calendar, or that is resumed fires only what lies after that moment. Which instants
//! fire after a time without servers is a decision of its own (`plan.rs`).
//!
//! *Ends.* The transaction that ends a job of a schedule notes that in a row of the schedule (`ends.rs`), from which the next fire learns how many have
//! failed in a row. Only jobs of schedules pay for it.
//!
//! *Bounds.* An index by tenant has one small row for each schedule, so that they can be counted.

mod ends;
mod fire;
mod plan;
mod row;
mod waiting;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_calendar::When;
use turnwise_store::{Isolation, Transaction};

pub(crate) use ends::job_ended;
pub use ends::{Success, ends};
pub use fire::{Backfilled, Due, Fired, backfill, due, due_behind, fire, fire_now, next_due};
pub use plan::GRACE_US;
pub use row::{
    FireRecord, MAX_FIRES, MAX_JITTER_US, MAX_MISSED, MAX_NOTE_BYTES, MAX_PAUSE_AFTER,
    MAX_SCHEDULE_NAME_BYTES, Missed, NewSchedule, Outcome, Overlap, Paused, PausedBy, Schedule, Template,
    check_schedule_name, job_id,
};
pub use waiting::Waiting;

use crate::encoding::{decode, encode};
use crate::error::{Error, Result};
use crate::jobs::PREFETCHED;
use crate::keyspace::{Keyspace, behind};
use crate::pieces::{read_pieces, write_pieces};
use crate::reads;

/// The most schedules of a store.
pub const MAX_SCHEDULES: usize = 20_000;
/// The most schedules of a tenant, unless a setting states another number.
pub const MAX_SCHEDULES_OF_TENANT: usize = 1_000;
/// All schedules are counted with each so many of a tenant: it may exceed the bound by fewer.
const COUNT_ALL_EACH: usize = 16;
/// Schedules that one read returns.
const PAGE: usize = 500;

/// What [`put`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is new.
    Created,
    /// It has changed.
    Changed,
    /// It was there already, exactly so: nothing was written.
    Same,
}

/// What [`pause`] and [`resume`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It is so now.
    Now,
    /// It was so before, and nothing was written.
    Already,
    /// An operator has paused it, and nothing was written.
    ByOperator,
}

/// How many schedules there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Those that fire again.
    pub active: usize,
    /// Those that are paused.
    pub paused: usize,
    /// Those whose last instant has passed.
    pub over: usize,
    /// Those that should have fired more than [`GRACE_US`] ago.
    pub late: usize,
}

/// A schedule, if it exists.
#[boxed]
pub async fn get(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<Option<Schedule>> {
    let schedule: Option<Schedule> = reads::value(tx, &keys.schedule(name), "schedule").await?;
    Ok(schedule.map(|schedule| named(schedule, name)))
}

/// The same, without a read conflict.
async fn peek(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<Option<Schedule>> {
    let read = reads::value_with(tx, &keys.schedule(name), "schedule", Isolation::Snapshot).await?;
    Ok(read.map(|schedule: Schedule| named(schedule, name)))
}

fn named(schedule: Schedule, name: &str) -> Schedule {
    let tenant = schedule.template.spec.tenant.clone();
    Schedule { name: name.to_owned(), tenant, ..schedule }
}

/// Up to `limit` schedules by name, after the one with the name `after` if given; only those of a tenant if given. Adds no read conflict.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    tenant: Option<&str>,
    limit: usize,
) -> Result<Vec<Schedule>> {
    let Some(tenant) = tenant else {
        let range = behind(keys.schedules(), after.map(|after| keys.schedule(after)));
        let read =
            |key: &Bytes, value: &Bytes| Ok(named(decode("schedule", value)?, &keys.parse_schedule(key)?));
        return reads::list(tx, range, limit, read).await;
    };
    let range = keys.tenant_schedules(tenant);
    let range = behind(range, after.map(|after| keys.tenant_schedule(tenant, after)));
    let name = |key: &Bytes, _: &Bytes| Ok(keys.parse_tenant_schedule(key)?.1);
    let names: Vec<String> = reads::list(tx, range, limit, name).await?;
    let mut found = Vec::with_capacity(names.len());
    for (n, name) in names.iter().enumerate() {
        if n % PREFETCHED == 0 {
            tx.prefetch(names[n..].iter().take(PREFETCHED).map(|name| keys.schedule(name))).await?;
        }
        found.extend(peek(tx, keys, name).await?);
    }
    Ok(found)
}

/// The options of the jobs of a schedule. They may hold secrets.
#[boxed]
pub async fn options(tx: &Transaction, keys: &Keyspace, schedule: &Schedule) -> Result<Box<RawValue>> {
    let value = read_pieces(tx, &keys.schedule_options(&schedule.name)).await?;
    decode("options of a schedule", &value)
}

/// Writes a schedule, new or in place of the one with its name. With another calendar it fires only what lies after now.
///
/// # Errors
/// `Invalid` with the field that is wrong; `schedule` if there are too many; `tenant` if the name is that of another tenant's schedule.
#[boxed]
pub async fn put(tx: &Transaction, keys: &Keyspace, new: &NewSchedule, now_us: i64) -> Result<Put> {
    new.check()?;
    let old = get(tx, keys, &new.name).await?;
    if old.as_ref().is_none_or(|old| old.calendar != new.calendar) {
        let checked = new.calendar.check(now_us);
        checked.map_err(|wrong| Error::Invalid { field: wrong.field, problem: wrong.problem })?;
    }
    let mut template = new.template.clone();
    // These are of the request, and of each job.
    (template.spec.trace, template.spec.schedule) = (None, None);
    let stated = Schedule {
        name: new.name.clone(),
        tenant: template.spec.tenant.clone(),
        calendar: new.calendar.clone(),
        jitter_us: new.jitter_us,
        missed: new.missed,
        overlap: new.overlap,
        pause_after: new.pause_after,
        paused: new.paused.filter(|paused| *paused).map(|_| Paused { by: new.pauses_as, at_us: now_us }),
        note: new.note.clone(),
        template,
        next: None,
        dealt_us: None,
        zone_data: String::new(),
        created_us: now_us,
        changed_us: now_us,
        by: new.by.clone(),
        fires: Vec::new(),
        last: None,
        options_bytes: new.options.get().len(),
    };
    let Some(old) = old else {
        check_room(tx, keys, new).await?;
        let mut created = stated;
        created.await_next(now_us);
        let ends = ends::Ends { created_us: now_us, ..ends::Ends::default() };
        ends::write(tx, keys, &new.name, &ends)?;
        write_options(tx, keys, new)?;
        save(tx, keys, None, &created)?;
        tx.set_versionstamp(keys.schedules_versionstamp())?;
        return Ok(Put::Created);
    };
    if old.tenant != stated.tenant {
        let problem =
            "is not the one of the schedule with this name: remove that one first, or choose another name";
        return Err(Error::Invalid { field: "tenant", problem: problem.to_owned() });
    }
    let paused = match (new.paused, &old.paused) {
        (Some(true), before) if may_pause(before.as_ref(), new.pauses_as) => stated.paused.clone(),
        (Some(false), Some(paused)) if may_resume(paused, new.pauses_as) => None,
        (_, before) => before.clone(),
    };
    let same_type = old.template.job_type == stated.template.job_type;
    let mut changed = Schedule {
        paused,
        next: old.next,
        dealt_us: old.dealt_us,
        zone_data: old.zone_data.clone(),
        created_us: old.created_us,
        changed_us: old.changed_us,
        by: old.by.clone(),
        fires: old.fires.clone(),
        last: old.last.clone().filter(|_| same_type),
        ..stated
    };
    let same_options = changed.options_bytes == old.options_bytes
        && options(tx, keys, &old).await?.get() == new.options.get();
    if same_options && encode(&changed) == encode(&old) {
        return Ok(Put::Same);
    }
    (changed.changed_us, changed.by) = (now_us, new.by.clone());
    if !same_options {
        write_options(tx, keys, new)?;
    }
    if changed.calendar != old.calendar || changed.paused.is_some() != old.paused.is_some() {
        changed.await_next(now_us);
    }
    if old.paused.is_some() && changed.paused.is_none() {
        forget_failures(tx, keys, &new.name).await?;
    }
    save(tx, keys, Some(&old), &changed)?;
    tx.set_versionstamp(keys.schedules_versionstamp())?;
    Ok(Put::Changed)
}

fn write_options(tx: &Transaction, keys: &Keyspace, new: &NewSchedule) -> Result<()> {
    let value = Bytes::copy_from_slice(new.options.get().as_bytes());
    let piece = |n| keys.schedule_options_piece(&new.name, n);
    Ok(write_pieces(tx, keys.schedule_options(&new.name), piece, &value)?)
}

/// Whether the tenant, and the store, may have one more.
async fn check_room(tx: &Transaction, keys: &Keyspace, new: &NewSchedule) -> Result<()> {
    let (tenant, most) = (&new.template.spec.tenant, new.most_of_tenant);
    let of_tenant = reads::rows(tx, keys.tenant_schedules(tenant), most).await?.len();
    let full = |problem| Err(Error::Invalid { field: "schedule", problem });
    if of_tenant >= most {
        return full(format!("tenant `{tenant}` has {most} schedules, which is the most: remove one"));
    }
    if of_tenant.is_multiple_of(COUNT_ALL_EACH)
        && reads::rows(tx, keys.all_tenant_schedules(), MAX_SCHEDULES).await?.len() >= MAX_SCHEDULES
    {
        return full(format!("there are {MAX_SCHEDULES} schedules, which is the most: remove one"));
    }
    Ok(())
}

/// Writes the row of a schedule, and what the indices state of it.
fn save(tx: &Transaction, keys: &Keyspace, old: Option<&Schedule>, new: &Schedule) -> Result<()> {
    let name = &new.name;
    if let Some(at_us) = old.and_then(|old| old.next).filter(|at_us| new.next != Some(*at_us)) {
        tx.clear(keys.schedule_due_entry(at_us, name))?;
    }
    if let Some(at_us) = new.next.filter(|at_us| old.and_then(|old| old.next) != Some(*at_us)) {
        tx.set(keys.schedule_due_entry(at_us, name), Bytes::new())?;
    }
    if old.is_none_or(|old| old.paused.is_some() != new.paused.is_some()) {
        tx.set(keys.tenant_schedule(&new.tenant, name), index_value(new))?;
    }
    Ok(tx.set(keys.schedule(name), encode(new))?)
}

/// The value of the row by tenant: `true` while the schedule is paused.
pub(crate) fn index_value(schedule: &Schedule) -> Bytes {
    if schedule.paused.is_some() { encode(&true) } else { Bytes::new() }
}

/// Removes a schedule; its jobs stay. Returns whether it was there.
#[boxed]
pub async fn remove(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<bool> {
    let Some(schedule) = get(tx, keys, name).await? else { return Ok(false) };
    if let Some(at_us) = schedule.next {
        tx.clear(keys.schedule_due_entry(at_us, name))?;
    }
    tx.clear(keys.tenant_schedule(&schedule.tenant, name))?;
    tx.clear(keys.schedule_ends(name))?;
    tx.clear_range(keys.schedule_options(name))?;
    tx.clear(keys.schedule(name))?;
    tx.set_versionstamp(keys.schedules_versionstamp())?;
    Ok(true)
}

fn may_resume(paused: &Paused, by: PausedBy) -> bool {
    paused.by != PausedBy::Operator || by == PausedBy::Operator
}

/// Whether a pause by another one than before counts as theirs from now on.
fn may_pause(before: Option<&Paused>, by: PausedBy) -> bool {
    before.is_none_or(|before| before.by != by && may_resume(before, by))
}

/// Pauses a schedule: it fires no more until it is resumed. One that a client has paused can be paused by an operator as well.
///
/// # Errors
/// `NotFound` if it does not exist.
#[boxed]
pub async fn pause(
    tx: &Transaction,
    keys: &Keyspace,
    name: &str,
    by: PausedBy,
    now_us: i64,
) -> Result<Changed> {
    let old = get(tx, keys, name).await?.ok_or(Error::NotFound)?;
    if !may_pause(old.paused.as_ref(), by) {
        return Ok(Changed::Already);
    }
    let mut new = Schedule { paused: Some(Paused { by, at_us: now_us }), ..old.clone() };
    new.await_next(now_us);
    save(tx, keys, Some(&old), &new)?;
    tx.set_versionstamp(keys.schedules_versionstamp())?;
    Ok(Changed::Now)
}

/// Resumes a schedule: it fires what lies after now.
///
/// # Errors
/// `NotFound` if it does not exist.
#[boxed]
pub async fn resume(
    tx: &Transaction,
    keys: &Keyspace,
    name: &str,
    by: PausedBy,
    now_us: i64,
) -> Result<Changed> {
    let old = get(tx, keys, name).await?.ok_or(Error::NotFound)?;
    match &old.paused {
        None => return Ok(Changed::Already),
        Some(paused) if !may_resume(paused, by) => return Ok(Changed::ByOperator),
        Some(_) => {}
    }
    let mut new = Schedule { paused: None, ..old.clone() };
    new.await_next(now_us);
    forget_failures(tx, keys, name).await?;
    save(tx, keys, Some(&old), &new)?;
    tx.set_versionstamp(keys.schedules_versionstamp())?;
    Ok(Changed::Now)
}

/// A schedule that is resumed has as many failures before it as it states.
async fn forget_failures(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<()> {
    match ends::read(tx, keys, name).await? {
        Some(before) if before.failures > 0 => {
            ends::write(tx, keys, name, &ends::Ends { failures: 0, ..before })
        }
        _ => Ok(()),
    }
}

/// What [`recompute`] did.
#[derive(Debug, Default)]
pub struct Recomputed {
    /// The schedules that fire at another time: the instant before, and now.
    pub moved: Vec<(String, i64, Option<i64>)>,
    /// The schedules whose rows cannot be read.
    pub unreadable: Vec<String>,
    /// The last row that it is done with, if there are more.
    pub rest: Option<Bytes>,
}

/// Computes the next instants again that were computed with other zone data than those of this process, unless their time has come: of a page of
/// schedules behind a row, as many as the transaction has room for.
#[boxed]
pub async fn recompute(
    tx: &Transaction,
    keys: &Keyspace,
    row: Option<Bytes>,
    now_us: i64,
) -> Result<Recomputed> {
    let data = turnwise_calendar::zone_data();
    let rows = reads::rows(tx, behind(keys.schedules(), row.clone()), PAGE).await?;
    let (mut done, mut read) = (Recomputed { rest: row, ..Recomputed::default() }, 0);
    for (key, value) in &rows {
        if !tx.has_room() {
            break;
        }
        (done.rest, read) = (Some(key.clone()), read + 1);
        let Ok(name) = keys.parse_schedule(key) else {
            done.unreadable.push(String::from_utf8_lossy(key).into_owned());
            continue;
        };
        let Ok(schedule) = decode::<Schedule>("schedule", value) else {
            done.unreadable.push(name);
            continue;
        };
        let fires = schedule.next.is_some() && matches!(schedule.calendar.when, When::Cron { .. });
        if fires && schedule.zone_data != data {
            done.moved.extend(recompute_one(tx, keys, name, now_us).await?);
        }
    }
    if !done.moved.is_empty() {
        // Servers sleep until the earlier instant.
        tx.set_versionstamp(keys.schedules_versionstamp())?;
    }
    if rows.len() < PAGE && read == rows.len() {
        done.rest = None;
    }
    Ok(done)
}

async fn recompute_one(
    tx: &Transaction,
    keys: &Keyspace,
    name: String,
    now_us: i64,
) -> Result<Option<(String, i64, Option<i64>)>> {
    let Some(old) = get(tx, keys, &name).await? else { return Ok(None) };
    let Some(before) = old.next.filter(|at_us| *at_us > now_us) else { return Ok(None) };
    let mut new = old.clone();
    // An instant that lies earlier now, and has passed, is late and not lost.
    let dealt_us = old.dealt_us.unwrap_or(now_us);
    // A zone that is unknown here is not over.
    if new.calendar.fires(dealt_us).is_err() {
        return Ok(None);
    }
    new.await_next(dealt_us);
    save(tx, keys, Some(&old), &new)?;
    Ok((new.next != Some(before)).then_some((name, before, new.next)))
}

/// How many schedules there are. Adds no read conflict.
#[boxed]
pub async fn tally(tx: &Transaction, keys: &Keyspace, now_us: i64) -> Result<Tally> {
    let all = reads::rows(tx, keys.all_tenant_schedules(), MAX_SCHEDULES * 2).await?;
    let due = reads::rows(tx, keys.schedules_due(), MAX_SCHEDULES * 2).await?;
    let paused = all.iter().filter(|(_, value)| !value.is_empty()).count();
    let late_us = now_us.saturating_sub(GRACE_US);
    let is_late = |key: &Bytes| keys.parse_schedule_due(key).is_ok_and(|(at_us, _)| at_us < late_us);
    let late = due.iter().take_while(|(key, _)| is_late(key)).count();
    let over = all.len().saturating_sub(paused + due.len());
    Ok(Tally { active: due.len(), paused, over, late })
}
