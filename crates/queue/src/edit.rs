//! What clients change at jobs that do not run: edits, holds and releases.
//!
//! *Edits.* An edit replaces what the client stated. The job stays in its place, at its time, unless the edit states a start time. A job that a filter or a
//! limit keeps returns to its place in the queue: they may decide otherwise now.
//!
//! *Holds.* A held job is in [`Place::Paused`], under the name of its [`Holder`], which no filter may have. It keeps the time of the place that it left: a release puts it back to its
//! place in the queue, or delays it until that time. A change of the filters does not release it. The hold of a job that waits for others is a note ([`Job::hold`](crate::JobFields::hold)): the job is
//! held when it would return to the queue. So is a job that an operator holds when it ends, for example because its client cancels it, and that runs again.
//!
//! The history states who changed which members, and never their values. A line that depended on values would tell a client that guesses
//! hidden options whether it was right.

use async_recursion::async_recursion as boxed;
use serde_json::value::RawValue;
use turnwise_store::Transaction;

use crate::job::{EventKind, bounded_reason};
use crate::jobs::{move_in_queue, set_options};
use crate::place::{Holder, Place};
use crate::rows::write_job;
use crate::spec::check_priority;
use crate::transition::{self, move_to};
use crate::{Job, JobSpec, Keyspace, Result, events, lifetime_rows, unique_rows};

/// Why options are refused to which another job's unique key belongs.
const KEY_TAKEN: &str = "another job has the unique key of these options";

/// An edit of a job.
#[derive(Debug)]
pub struct Edit {
    /// What the job keeps from now on. Its tenant, its task and what makes it unique are those that the job has: they are in keys.
    pub spec: JobSpec,
    /// Its options, if they change.
    pub options: Option<Box<RawValue>>,
    /// Its priority, if it changes.
    pub priority: Option<i8>,
    /// The time before which it does not start, if that changes, in µs. A time that is over starts it as soon as possible.
    pub start_us: Option<i64>,
    /// Which members change, and who changes them: for the history.
    pub note: String,
}

/// Whether a job can be edited.
///
/// # Errors
/// Why not.
pub fn check(job: &Job) -> Result<(), &'static str> {
    match job.place {
        Place::Active(_) => Err("it runs"),
        Place::Ended(_) => Err("it has ended"),
        Place::Parked { .. } => Err("it waits for a change of its source"),
        _ => Ok(()),
    }
}

/// Changes a job, or returns why it does not ([`check`]). The caller has checked the spec and the options.
///
/// # Errors
/// `Invalid` for a priority out of range.
#[boxed]
pub async fn edit(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    edit: Edit,
    now_us: i64,
) -> Result<Result<(), &'static str>> {
    if let Err(reason) = check(job) {
        return Ok(Err(reason));
    }
    let Edit { spec, options, priority, start_us, note } = edit;
    let priority = priority.unwrap_or(job.priority);
    check_priority(priority)?;
    let key = match &options {
        Some(options) => unique_rows::find_edited(tx, keys, job, options, now_us).await?,
        None => Ok(None),
    };
    let Ok(key) = key else { return Ok(Err(KEY_TAKEN)) };
    // The row of a pending job states its locks, and the job may no longer want those that it has reserved.
    let wants_others = job.locks != spec.locks;
    let to = match edited_place(job, start_us, now_us) {
        Place::Pending { order_us, .. } if wants_others => Place::pending(order_us),
        to => to,
    };
    let stays = job.is_pending() && to == job.place && !wants_others;
    let is_moved = std::mem::discriminant(&job.place) != std::mem::discriminant(&to);
    if !stays {
        transition::leave(tx, keys, job)?;
    } else if job.priority != priority {
        move_in_queue(tx, keys, job, priority)?;
    }
    let before = (job.lifetime, start_us.is_some());
    let from_us = start_us.unwrap_or_else(|| job.order_us());
    (job.spec, job.priority) = (spec, priority);
    lifetime_rows::changed(tx, keys, job, before, from_us, now_us).await?;
    if let Some(options) = &options {
        set_options(tx, keys, job, options)?;
    }
    if key.is_some() {
        unique_rows::take(tx, keys, job, key)?;
    }
    let kind = EventKind::Edited { reason: bounded_reason(&note) };
    job.record_edit(now_us, kind.clone());
    if is_moved {
        job.changed_us = now_us;
    }
    if !stays {
        transition::enter(tx, keys, job, to)?;
    }
    events::happened(tx, keys, job, &kind, job.state(), now_us)?;
    write_job(tx, keys, job)?;
    Ok(Ok(()))
}

/// The place of a job after an edit.
fn edited_place(job: &Job, start_us: Option<i64>, now_us: i64) -> Place {
    let later = start_us.filter(|start_us| *start_us > now_us);
    match (&job.place, later) {
        (Place::Blocked { until_us, unmet }, _) => {
            Place::Blocked { until_us: start_us.unwrap_or(*until_us), unmet: *unmet }
        }
        (Place::Paused { order_us, filter }, _) if job.held_by().is_some() => {
            let soon_us = start_us.map(|_| (*order_us).min(now_us));
            let order_us = later.or(soon_us).unwrap_or(*order_us);
            Place::Paused { order_us, filter: filter.clone() }
        }
        (Place::Crashing { .. }, Some(until_us)) => Place::Crashing { until_us },
        (_, Some(until_us)) => Place::Delayed { until_us },
        (Place::Paused { order_us, .. } | Place::Limited { order_us, .. }, None) => Place::pending(*order_us),
        (Place::Delayed { .. } | Place::Crashing { .. }, None) if start_us.is_some() => {
            Place::pending(now_us)
        }
        (place, None) => place.clone(),
    }
}

/// Whether a job can be held.
///
/// # Errors
/// Why not.
pub(crate) fn check_hold(job: &Job) -> Result<(), &'static str> {
    match &job.place {
        Place::Active(_) | Place::Ended(_) | Place::Parked { .. } => check(job),
        _ => Ok(()),
    }
}

/// Whether a job is held already, by this holder or by one whose holds it cannot release.
pub(crate) fn holds_for(job: &Job, holder: Holder) -> bool {
    job.holder().is_some_and(|by| by == holder || by == Holder::Operator)
}

/// Takes a waiting job out of the queue until it is released, or returns why it does not. One that waits for other jobs goes on waiting, and is
/// held then. A job that an operator holds stays held by the operator.
#[boxed]
pub async fn hold(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    holder: Holder,
    by: Option<String>,
    now_us: i64,
) -> Result<Result<(), &'static str>> {
    if let Err(reason) = check_hold(job) {
        return Ok(Err(reason));
    }
    if holds_for(job, holder) {
        return Ok(Ok(()));
    }
    let kind = EventKind::Held { reason: by.as_deref().map(bounded_reason) };
    let to = match &job.place {
        Place::Blocked { .. } => {
            job.hold = Some(holder);
            None
        }
        _ => Some(Place::Paused { order_us: job.order_us(), filter: holder.name().to_owned() }),
    };
    change(tx, keys, job, to, kind, now_us)?;
    Ok(Ok(()))
}

/// What a release did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The job is in its place in the queue, or waits for its time.
    Now,
    /// No client or operator holds it, and nothing was changed.
    NotHeld,
    /// An operator holds it, and nothing was changed.
    ByOperator,
}

/// Releases a held job.
#[boxed]
pub async fn release(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    holder: Holder,
    by: Option<String>,
    now_us: i64,
) -> Result<Released> {
    match job.holder() {
        None => return Ok(Released::NotHeld),
        Some(Holder::Operator) if holder == Holder::Client => return Ok(Released::ByOperator),
        Some(_) => {}
    }
    job.hold = None;
    let to = job.held_by().map(|_| match job.order_us() {
        until_us if until_us > now_us => Place::Delayed { until_us },
        order_us => Place::pending(order_us),
    });
    let kind = EventKind::Released { reason: by.as_deref().map(bounded_reason) };
    change(tx, keys, job, to, kind, now_us)?;
    Ok(Released::Now)
}

/// Moves a job to another place at the request of a client, or only notes what has changed.
fn change(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    to: Option<Place>,
    kind: EventKind,
    now_us: i64,
) -> Result<()> {
    job.record_edit(now_us, kind.clone());
    if let Some(to) = to {
        job.changed_us = now_us;
        move_to(tx, keys, job, to)?;
    }
    events::happened(tx, keys, job, &kind, job.state(), now_us)?;
    write_job(tx, keys, job)
}
