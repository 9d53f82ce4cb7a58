//! The row of a job that fails, or whose record is removed, at a time ([`crate::lifetimes`]).

use bytes::Bytes;
use turnwise_store::Transaction;

use crate::lifetime::Lifetime;
use crate::place::Place;
use crate::type_terms;
use crate::{Job, Keyspace, Result};

/// States when a job fails that has just been added (again), if it must start within a time. That time begins at `from_us`, if it is
/// later than now.
pub(crate) async fn await_start(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    from_us: i64,
    now_us: i64,
) -> Result<()> {
    let mut within_us = job.lifetime.start_within_us;
    if within_us.is_none() && !type_terms::is_of_server(&job.job_type) {
        let stated = type_terms::stated(tx, keys, &job.job_type).await?;
        within_us = stated.and_then(|stated| stated.lifetime(job.task.as_deref()).start_within_us);
    }
    let due_us = within_us.map(|within_us| from_us.max(now_us).saturating_add(within_us));
    set(tx, keys, job, due_us)
}

/// States anew when a job fails: if its terms have changed from these, or if its start time has changed and it waits for its first start.
pub(crate) async fn changed(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    (before, is_moved): (Lifetime, bool),
    from_us: i64,
    now_us: i64,
) -> Result<()> {
    let may_expire = !matches!(
        job.place,
        Place::Active(_) | Place::Ended(_) | Place::Crashing { .. } | Place::Parked { .. }
    );
    let is_stated = job.lifetime.start_within_us != before.start_within_us;
    let waits = is_stated || is_moved && (job.due_us.is_some() || job.awaits_start());
    match may_expire && waits {
        true => await_start(tx, keys, job, from_us, now_us).await,
        false => Ok(()),
    }
}

/// States when a job is due next.
pub(crate) fn set(tx: &Transaction, keys: &Keyspace, job: &mut Job, due_us: Option<i64>) -> Result<()> {
    if job.due_us != due_us {
        clear(tx, keys, job)?;
        job.due_us = due_us;
        if let Some(at_us) = due_us {
            tx.set(keys.lifetime_entry(at_us, &job.job_type, &job.id), Bytes::new())?;
        }
    }
    Ok(())
}

/// Clears the row of a job that is being removed.
pub(crate) fn clear(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    match job.due_us {
        Some(at_us) => Ok(tx.clear(keys.lifetime_entry(at_us, &job.job_type, &job.id))?),
        None => Ok(()),
    }
}
