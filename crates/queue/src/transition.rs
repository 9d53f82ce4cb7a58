//! The one function that moves a job from one place to another ([`Place`] has the state machine).

use serde_json::value::RawValue;
use turnwise_store::Transaction;

use crate::counts;
use crate::error::Result;
use crate::group_counts;
use crate::job::{Hidden, Job};
use crate::keyspace::Keyspace;
use crate::lifetime::Lifetime;
use crate::lifetime_rows;
use crate::locks::{pending_value, unreserve};
use crate::parked::Parked;
use crate::paused_row;
use crate::place::{Holder, Place};
use crate::unique_rows;

/// Moves a job from its place to another one. Reads nothing, so that it conflicts with other transactions only over the job.
/// Does not write the record. The caller handles the dependencies ([`crate::dependencies::leave`]) and the rows of a run
/// that ends.
///
/// # Panics
/// If there is no such edge, which is a bug in the caller.
pub(crate) fn move_to(tx: &Transaction, keys: &Keyspace, job: &mut Job, to: Place) -> Result<()> {
    let to = held(job, to);
    assert!(job.place.leads_to(&to), "a job goes from {:?} to {:?}", job.state(), to.state());
    counts::change(tx, keys, job, &to)?;
    group_counts::change(tx, keys, job, &to)?;
    clear_row(tx, keys, job)?;
    let lifetime = job.run().map_or(job.lifetime, |run| run.terms.lifetime);
    write_row(tx, keys, job, lifetime, to)
}

/// Clears the row of a job's place. The caller must then call [`enter`]; in between it may change what the row's key
/// contains, such as the tenant.
pub(crate) fn leave(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    group_counts::leave(tx, keys, job)?;
    counts::leave(tx, keys, job)?;
    clear_row(tx, keys, job)
}

/// The same for a job whose record is removed.
pub(crate) fn leave_for_good(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    group_counts::erase(tx, keys, job)?;
    counts::leave(tx, keys, job)?;
    clear_row(tx, keys, job)
}

fn clear_row(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    match &job.place {
        Place::Pending { .. } => unreserve(tx, keys, job)?,
        Place::Parked { at, .. } => clear_parked(tx, keys, &job.job_type, at, &job.id)?,
        // The active row belongs to the worker; the end of the run clears it.
        Place::Active(run) => {
            let is_released = run.held.is_none() && run.waits.is_none() && run.buckets.is_empty();
            assert!(is_released, "a run ends with locks, or places in buckets");
            return Ok(());
        }
        _ => {}
    }
    Ok(tx.clear(job.index_key(keys))?)
}

/// Clears the rows of a job that is no longer parked there.
pub(crate) fn clear_parked(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    at: &Parked,
    id: &str,
) -> Result<()> {
    tx.clear(keys.parked_entry(job_type, at, id))?;
    Ok(tx.clear(keys.unwatched_entry(job_type, at, id))?)
}

/// Puts a job that is in no place into a place.
pub(crate) fn enter(tx: &Transaction, keys: &Keyspace, job: &mut Job, to: Place) -> Result<()> {
    let to = held(job, to);
    counts::enter(tx, keys, job, &to)?;
    group_counts::enter(tx, keys, job, &to)?;
    let lifetime = job.lifetime;
    write_row(tx, keys, job, lifetime, to)
}

/// The place of a job that goes to `to`: what has a hold does not return to the queue. The hold of an operator outlasts the job's end.
fn held(job: &mut Job, to: Place) -> Place {
    match (&to, job.hold) {
        (Place::Ended(_), _) => {
            job.hold = job.holder().filter(|holder| *holder == Holder::Operator);
            to
        }
        (Place::Pending { order_us, .. } | Place::Delayed { until_us: order_us }, Some(holder)) => {
            job.hold = None;
            Place::Paused { order_us: *order_us, filter: holder.name().to_owned() }
        }
        _ => to,
    }
}

fn write_row(tx: &Transaction, keys: &Keyspace, job: &mut Job, lifetime: Lifetime, to: Place) -> Result<()> {
    job.place = to;
    match &job.place {
        Place::Active(_) => {
            lifetime_rows::set(tx, keys, job, None)?;
            unique_rows::stop_waiting(tx, keys, job)?;
        }
        Place::Ended(_) => {
            let removed_us = lifetime.keep_us.map(|keep_us| job.changed_us.saturating_add(keep_us));
            lifetime_rows::set(tx, keys, job, removed_us)?;
            unique_rows::release(tx, keys, job)?;
        }
        _ => {}
    }
    let wake = || tx.set_versionstamp(keys.wake(&job.job_type));
    match &job.place {
        Place::Pending { .. } => {
            tx.set(job.index_key(keys), pending_value(job))?;
            tx.set_versionstamp(keys.waiting_entry(&job.job_type, &job.tenant))?;
            wake()?;
        }
        // The workers learn the next due time.
        Place::Delayed { .. } | Place::Crashing { .. } | Place::Parked { .. } => {
            tx.set(job.index_key(keys), job.row_value())?;
            wake()?;
        }
        Place::Blocked { unmet, .. } => {
            assert!(*unmet > 0, "a job is blocked, and waits for none");
            tx.set(job.index_key(keys), job.row_value())?;
        }
        Place::Paused { filter, .. } if Holder::named(filter).is_some() => {
            paused_row::write(tx, keys, job, filter, &[])?;
        }
        // These rows hold more than the record does: the code that moves a job there writes them.
        Place::Paused { .. } | Place::Limited { .. } | Place::Active(_) => {}
        Place::Ended(_) => {
            tx.set(job.index_key(keys), job.row_value())?;
            if job.forgets_options {
                if job.options.is_none() {
                    tx.clear_range(keys.options(&job.job_type, &job.id))?;
                }
                job.options = Some(Hidden(RawValue::NULL.to_owned()));
            }
        }
    }
    Ok(())
}

/// Writes what the row of a job's place says, after a change of the job that has not moved it.
pub(crate) fn rewrite_row(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    match job.place {
        Place::Crashing { .. } => Ok(tx.set(job.index_key(keys), job.row_value())?),
        _ => Ok(()),
    }
}

/// The first place of a job that should start as soon as possible: blocked by dependencies, delayed, or pending.
pub(crate) fn place_from(unmet: u32, not_before_us: Option<i64>, now_us: i64) -> Place {
    match not_before_us {
        _ if unmet > 0 => Place::Blocked { until_us: not_before_us.unwrap_or(now_us), unmet },
        Some(until_us) if until_us > now_us => Place::Delayed { until_us },
        _ => Place::pending(now_us),
    }
}
