//! The jobs that need something of a job after its end: its result, or another try.
//!
//! *Model.* `("followers", on_type, on_id, type, id)` has a job that gets the result of another one ([`crate::Inputs`]), or that was cancelled because
//! of its end. Such a row belongs to the job that is followed, and goes with its record, which states that there may be some
//! ([`Job::followed`](crate::JobFields::followed)). So the end of a follower writes nothing here, a job that no one follows costs nothing, and many followers of one job
//! share no row that each of them writes. A follower that is removed, or no longer names an input, clears its row there: a job that is added again
//! every day is never removed, and would collect them.
//!
//! *Results stay.* Before a record is removed because its time is over, [`need`] looks for a follower that has not ended and names the job as
//! an input. It reads [`AT_ONCE`] rows. If none of these is a reason to keep the record, it clears them, and the next look goes on behind
//! them. A follower that is added, or runs again, writes its row, which conflicts with a look at the same time.
//!
//! *Another try.* The row of a job that was cancelled has what the job waited for, so that it can wait for this again
//! ([`crate::rerun_followers`]).

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_store::key::successor;
use turnwise_store::{Isolation, Transaction};

use crate::after::After;
use crate::input::{Input, Inputs};
use crate::keyspace::behind;
use crate::place::Place;
use crate::rows::{decode, encode, read_job, read_job_with, write_job};
use crate::{Job, Keyspace, Result, jobs, reads};

/// The most rows that one look reads.
pub const AT_ONCE: usize = 25;
/// The most bytes of what a cancelled job waited for: less than a value may have, and more than what [`crate::dependencies::MAX_AFTER`] jobs need,
/// unless their ids are almost only quotes. Of more, there is no row: it would run again too early.
const MAX_WAITED_BYTES: usize = 90_000;

/// What a cancelled job waited for.
#[derive(Debug, Serialize, Deserialize)]
struct Waited(String, String, Vec<DependencyEnd>, Otherwise);

/// States in a record that there may be followers.
pub(crate) fn mark(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    if !job.followed {
        job.followed = true;
        write_job(tx, keys, job)?;
    }
    Ok(())
}

/// Enters a job that has been added, or runs again, at each of its inputs. Leaves out an input that does not exist, or belongs to another
/// tenant: [`inputs`] does the same.
pub(crate) async fn enter(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    prefetch(tx, keys, job).await?;
    for Input { job_type, id } in job.inputs.values() {
        let other = read_job(tx, keys, job_type, id).await?;
        if let Some(mut other) = other.filter(|other| other.tenant == job.tenant) {
            mark(tx, keys, &mut other)?;
            tx.set(keys.follower((job_type, id), &job.job_type, &job.id), Bytes::new())?;
        }
    }
    Ok(())
}

/// Reads the jobs whose results are inputs at the same time.
async fn prefetch(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let named = job.inputs.values().map(|input| (input.job_type.as_str(), input.id.as_str()));
    match job.inputs.len() > 1 {
        true => jobs::prefetch(tx, keys, named).await,
        false => Ok(()),
    }
}

/// Clears the rows of a job at its inputs, except those that it keeps, because it is removed or changes.
pub(crate) fn leave(tx: &Transaction, keys: &Keyspace, job: &Job, kept: &Inputs) -> Result<()> {
    for input in job.inputs.values().filter(|input| !kept.values().any(|other| other == *input)) {
        tx.clear(keys.follower((&input.job_type, &input.id), &job.job_type, &job.id))?;
    }
    Ok(())
}

/// Enters a job that is cancelled because of the end of the job `on`, whose record states that it may have followers. `after` is what it has
/// waited for.
pub(crate) fn cancelled(
    tx: &Transaction,
    keys: &Keyspace,
    on: (&str, &str),
    (job_type, id): (&str, &str),
    after: &[After],
) -> Result<()> {
    let waited =
        |one: &After| Waited(one.job_type.clone(), one.id.clone(), one.accepted.clone(), one.otherwise);
    let value = encode(&after.iter().map(waited).collect::<Vec<_>>());
    match value.len() > MAX_WAITED_BYTES {
        true => Ok(()),
        false => Ok(tx.set(keys.follower(on, job_type, id), value)?),
    }
}

/// The same, for a job that is added after that end.
pub(crate) fn refused(
    tx: &Transaction,
    keys: &Keyspace,
    other: &mut Job,
    job: &Job,
    after: &[After],
) -> Result<()> {
    mark(tx, keys, other)?;
    cancelled(tx, keys, (&other.job_type, &other.id), (&job.job_type, &job.id), after)
}

/// Whether the record of a job must stay for a follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// No.
    No,
    /// A job that has not ended is to get the result.
    Yes,
    /// The first followers are no reason, and their rows are cleared. There are more.
    Unknown,
}

/// Looks for a follower that needs the result of a job that has ended.
pub(crate) async fn need(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Need> {
    if !job.followed {
        return Ok(Need::No);
    }
    let range = keys.followers(&job.job_type, &job.id);
    // With a conflict: who follows anew writes a row. So the followers' records need none.
    let rows = tx.range(&range, AT_ONCE + 1).await?;
    for (key, _) in rows.iter().take(AT_ONCE) {
        let (job_type, id) = keys.parse_follower(key)?;
        let follower = read_job_with(tx, keys, &job_type, &id, Isolation::Snapshot).await?;
        let wants = |follower: &Job| {
            let mut inputs = follower.inputs.values();
            let names = inputs.any(|input| (&input.job_type, &input.id) == (&job.job_type, &job.id));
            names && follower.tenant == job.tenant
        };
        if follower.is_some_and(|follower| !matches!(follower.place, Place::Ended(_)) && wants(&follower)) {
            return Ok(Need::Yes);
        }
    }
    match rows.get(AT_ONCE - 1) {
        Some((last, _)) if rows.len() > AT_ONCE => {
            tx.clear_range((range.0, successor(last)))?;
            Ok(Need::Unknown)
        }
        _ => Ok(Need::No),
    }
}

/// Clears the rows of the followers of a job that is removed.
pub(crate) fn clear(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    match job.followed {
        true => Ok(tx.clear_range(keys.followers(&job.job_type, &job.id))?),
        false => Ok(()),
    }
}

/// An input of a job, and the job whose result it is: `None` if that was removed.
pub type Given = (String, Input, Option<Job>);

/// The inputs of a job, by name. Adds no read conflict.
#[boxed]
pub async fn inputs(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Vec<Given>> {
    prefetch(tx, keys, job).await?;
    let mut given = Vec::with_capacity(job.inputs.len());
    for (name, input) in &job.inputs {
        let other = read_job_with(tx, keys, &input.job_type, &input.id, Isolation::Snapshot).await?;
        // The id may have become that of another tenant's job.
        let other = other.filter(|other| other.tenant == job.tenant);
        given.push((name.clone(), input.clone(), other));
    }
    Ok(given)
}

/// A follower of a job: its type and id, and what it waited for, if it was cancelled because of the job's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follower {
    /// Its type and id.
    pub job: (String, String),
    /// What it waited for; empty if it only gets the result.
    pub after: Vec<After>,
}

/// The followers of a job, up to `limit`, after this one if given. Adds no read conflict.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    after: Option<&(String, String)>,
    limit: usize,
) -> Result<Vec<Follower>> {
    let last = after.map(|(of_type, of_id)| keys.follower((job_type, id), of_type, of_id));
    let read = |key: &Bytes, value: &Bytes| {
        let waited: Vec<Waited> = match value.is_empty() {
            true => Vec::new(),
            false => decode("row of a follower", value)?,
        };
        let after = waited.into_iter().map(|Waited(job_type, id, accepted, otherwise)| After {
            job_type,
            id,
            accepted,
            otherwise,
        });
        Ok(Follower { job: keys.parse_follower(key)?, after: after.collect() })
    };
    reads::list(tx, behind(keys.followers(job_type, id), last), limit, read).await
}
