//! Jobs of which only one may exist at a time for a key.
//!
//! *Model.* A client states how long a job holds its key ([`Mode`]), what the key is made of ([`By`]), and within which jobs it counts ([`Within`]). The key
//! is a row, which names its job:
//!
//! ```text
//!   while_waiting   add ──▶ ("unique", hash) ──▶ claim, end, removal: cleared ──▶ crash, stop, snooze: written again, if it is free
//!   until_end       add ──▶ ("unique", hash) ──▶ end, removal: cleared
//!   period          add ──▶ ("unique", hash) and ("unique_until", at, hash) ──▶ removal by a client: cleared ──▶ at that time: free, and soon cleared
//! ```
//!
//! The job's record states whether it holds the key, and the transaction that moves the job writes or clears the row
//! ([`move_to`](crate::transition::move_to)). So no key outlives its job, except for a period, which has its time in the row. A job without a
//! key reads and writes nothing for this.
//!
//! *Tenants.* The tenant is part of every key, so no key of one tenant meets that of another one. *Secrets.* The hash of a key is made with a text that only
//! the store has: who reads rows cannot find out by guessing what options it is made of.
//!
//! *Lost keys.* A job that waits for another run after a crash does not hold its key if another job has taken it meanwhile. What a client asks for
//! is refused in this case: running a job again that has ended, and an edit to options whose key another job holds.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::{Isolation, Transaction};

use crate::edit::{self, Edit};
use crate::place::Place;
pub use crate::unique_key::{By, Key, MAX_KEY_BYTES, MAX_OF, MAX_OF_BYTES, Mode, OnConflict, Unique, Within};
pub use crate::unique_rows::UniqueRow;
use crate::unique_rows::find_free;
use crate::{Job, JobSpec, Keyspace, NewJob, Result, group_row, jobs, reads};

/// What the history states of a job that takes the options of another one.
const REPLACED: &str = "options, summary, locks and start time, by an add with its unique key";

/// The result of [`add`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// No other job has its key.
    Added(jobs::Added),
    /// Another job has its key.
    Found(Found),
}

/// The job that has the key of a job that was to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its type.
    pub job_type: String,
    /// Its id. For a period, its record may be gone.
    pub id: String,
    /// How long it has the key; of a period, what is left.
    pub mode: Mode,
    /// The end of its period, in µs.
    pub until_us: Option<i64>,
    /// What happened to it.
    pub did: Did,
}

/// What happened to a job because another one with its key was to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// Nothing.
    Kept,
    /// It has the options, the summary, the locks and the start time of the other one.
    Replaced,
    /// It runs once more after its run.
    RunsAgain,
    /// Nothing, and the request is to be refused.
    Rejected,
}

/// Adds a job as [`jobs::add`] does, or as [`jobs::add_once`] if not `again`. If another job has its key, that happens which the job states.
#[boxed]
pub async fn add(
    tx: &Transaction,
    keys: &Keyspace,
    new: &NewJob,
    again: bool,
    now_us: i64,
) -> Result<Outcome> {
    let added = match again {
        true => jobs::add(tx, keys, new, now_us).await?,
        false => jobs::add_once(tx, keys, new, now_us).await?,
    };
    match added {
        jobs::Added::KeyTaken(taken) => Ok(Outcome::Found(found(tx, keys, new, *taken, now_us).await?)),
        added => Ok(Outcome::Added(added)),
    }
}

/// Does to the job that has a key what the other one states. Boxed, since most jobs have no key.
#[boxed]
async fn found(
    tx: &Transaction,
    keys: &Keyspace,
    new: &NewJob,
    jobs::KeyTaken { hash, row }: jobs::KeyTaken,
    now_us: i64,
) -> Result<Found> {
    // The id may have been used again for another job since, also by another tenant.
    let has_key = |job: &Job| job.unique_key.as_ref().is_some_and(|key| key.hash == hash);
    let holder = jobs::get(tx, keys, &row.job_type, &row.id).await?.filter(has_key);
    let stated = holder.as_ref().and_then(|job| job.unique.as_ref()).map(|unique| unique.mode);
    let on_conflict = new.unique.as_ref().map_or(OnConflict::Keep, |unique| unique.on_conflict);
    let did = match (on_conflict, holder) {
        (OnConflict::Reject, _) => Did::Rejected,
        (OnConflict::Keep, _) | (_, None) => Did::Kept,
        // What is for one type is not for another one.
        (_, Some(job)) if job.job_type != new.job_type => Did::Rejected,
        (OnConflict::Replace, Some(job)) => replace(tx, keys, job, new, now_us).await?,
        (OnConflict::After, Some(job)) if job.run().is_some() => {
            // What was not added is in no group, and the job that is found stays in its own one.
            let (unique, group) = (job.spec.unique.clone(), job.spec.group.clone());
            let mut spec = JobSpec { unique, group, ..new.spec.clone() };
            let old = jobs::get(tx, keys, &new.job_type, &new.id).await?;
            if let Some(left) = old.and_then(|old| old.into_fields().spec.group) {
                group_row::leave(&mut spec, &left);
            }
            if let Some(own) = &job.spec.group {
                let limits = job.spec.reasons.iter().filter(|reason| own.is_limit(reason));
                spec.reasons.extend(limits.cloned());
            }
            let new = NewJob { id: job.id.clone(), spec, ..new.clone() };
            jobs::add_to_run(tx, keys, job, &new, now_us).await?;
            Did::RunsAgain
        }
        (OnConflict::After, Some(_)) => Did::Kept,
    };
    let mode = match row.until_us {
        Some(until_us) => Mode::Period(until_us.saturating_sub(now_us)),
        None => stated.unwrap_or(Mode::UntilEnd),
    };
    let UniqueRow { job_type, id, until_us } = row;
    Ok(Found { job_type, id, mode, until_us, did })
}

/// Gives a job that waits what is stated now. The wait for the end of a backoff stays, unless a start time is stated.
async fn replace(tx: &Transaction, keys: &Keyspace, mut job: Job, new: &NewJob, now_us: i64) -> Result<Did> {
    let start_us = match job.place {
        Place::Crashing { .. } => new.not_before_us,
        _ => Some(new.not_before_us.unwrap_or(now_us)),
    };
    let spec = JobSpec { summary: new.summary.clone(), locks: new.locks.clone(), ..job.spec.clone() };
    let edit = Edit {
        spec,
        options: Some(new.options.clone()),
        priority: None,
        start_us,
        note: REPLACED.to_owned(),
    };
    let edited = edit::edit(tx, keys, &mut job, edit, now_us).await?;
    Ok(edited.map_or(Did::Kept, |()| Did::Replaced))
}

/// The hash of a job's key, if it has one and no other job has it. `Err` if another one has.
#[boxed]
pub async fn key_of_new(
    tx: &Transaction,
    keys: &Keyspace,
    new: &NewJob,
    old: Option<&Job>,
    now_us: i64,
) -> Result<Result<Option<String>, String>> {
    let free = find_free(tx, keys, new, old, now_us).await?;
    Ok(free.map(|free| free.map(|free| free.into_hash())).map_err(|(hash, _)| hash))
}

/// The row of a job's key: the job that has it now may be another one. Adds no read conflict.
#[boxed]
pub async fn row_of(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Option<UniqueRow>> {
    let Some(key) = &job.unique_key else { return Ok(None) };
    reads::value_with(tx, &keys.unique(&key.hash), "unique row", Isolation::Snapshot).await
}

/// Clears rows of keys whose period is over: up to `limit`, or as many as the transaction has room for. Returns how many.
#[boxed]
pub async fn sweep(tx: &Transaction, keys: &Keyspace, now_us: i64, limit: usize) -> Result<usize> {
    let read = |key: &Bytes, _: &Bytes| Ok(keys.parse_unique_until(key)?);
    let over: Vec<(i64, String)> = reads::list(tx, keys.unique_over(now_us), limit, read).await?;
    for (n, (at_us, hash)) in over.iter().enumerate() {
        if n > 0 && !tx.has_room() {
            return Ok(n);
        }
        let row: Option<UniqueRow> = reads::value(tx, &keys.unique(hash), "unique row").await?;
        if row.is_some_and(|row| row.until_us == Some(*at_us)) {
            tx.clear(keys.unique(hash))?;
        }
        tx.clear(keys.unique_until(*at_us, hash))?;
    }
    Ok(over.len())
}
