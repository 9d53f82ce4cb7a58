//! Parked jobs: jobs that have nothing to do until something outside changes.
//!
//! *Model.* A continuous job that has done all its work leaves its worker. It is delayed until a distant time. Its row
//! `("parked", type, group, key, id)` states what wakes it: a change of `key`, as reported by the watcher of `group`. A
//! parked job costs only rows: no task, no slot, no connection.
//!
//! *No change is lost.* The row holds a token: the state of its source that the job last saw. A change may come between
//! that read and the commit of the row, when no watcher listens for this job. So the job is *unwatched* at first. The
//! watcher of the group first listens for the key, *then* compares the token with the current state. It wakes the job, or
//! clears the mark ([`settle`]). After anything that may have lost changes (a watcher that starts, a feed that broke) the
//! watcher compares all tokens again.
//!
//! *One way out.* Every transaction that moves a parked job to another place clears these rows, too. That happens when its
//! time comes, when a client adds, cancels or removes it, or on [`wake`]. Waking a job twice, or a job that is not parked,
//! does nothing.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::{Isolation, Transaction};

use crate::claims::Park;
use crate::job::Parked;
use crate::keyspace::{KeyRange, behind};
use crate::names::check_name;
use crate::place::Place;
use crate::reads;
use crate::rows::{decode, encode, read_job, write_job};
use crate::spec::{MAX_ID_BYTES, MAX_NAME_BYTES};
use crate::transition::{clear_parked, move_to};
use crate::{Job, Keyspace, Result};

/// Longest token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 4_096;

/// A parked job, as stored in its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedJob {
    /// What wakes it.
    pub at: Parked,
    /// The job.
    pub id: String,
    /// The state of its source that it last saw.
    pub token: String,
}

/// Whether a job can be parked with these values.
pub(crate) fn check(park: &Park) -> Result<()> {
    check_name("group", &park.at.group, MAX_NAME_BYTES)?;
    check_name("key", &park.at.key, MAX_ID_BYTES)?;
    check_name("token", &park.token, MAX_TOKEN_BYTES)
}

/// Writes what wakes a job that is parked now.
pub(crate) fn enter(tx: &Transaction, keys: &Keyspace, job: &Job, park: &Park) -> Result<()> {
    tx.set(keys.parked_entry(&job.job_type, &park.at, &job.id), encode(&park.token))?;
    tx.set(keys.unwatched_entry(&job.job_type, &park.at, &job.id), Bytes::new())?;
    Ok(tx.set_versionstamp(keys.unwatched_wake(&job.job_type))?)
}

/// Up to `limit` groups that have parked jobs, in order, after the group `after` if given. Adds no read conflict.
#[boxed]
pub async fn groups(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>> {
    let (first, end) = keys.parked(job_type);
    let begin = after.map_or(first, |after| keys.parked_of(job_type, after).1);
    groups_in(tx, keys, (begin, end), limit, |group| keys.parked_of(job_type, group)).await
}

/// The same for groups with unwatched jobs.
#[boxed]
pub async fn unwatched_groups(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    limit: usize,
) -> Result<Vec<String>> {
    groups_in(tx, keys, keys.unwatched(job_type), limit, |group| keys.unwatched_of(job_type, group)).await
}

async fn groups_in(
    tx: &Transaction,
    keys: &Keyspace,
    range: KeyRange,
    limit: usize,
    of_group: impl Fn(&str) -> KeyRange,
) -> Result<Vec<String>> {
    let read = |key: &Bytes| {
        let (Parked { group, .. }, _) = keys.parse_parked(key)?;
        let (_, end) = of_group(&group);
        Ok((group, end))
    };
    reads::groups(tx, range, limit, read).await
}

/// Up to `limit` parked jobs of a group, by key and id, after the job `after` if given. Adds no read conflict.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    group: &str,
    after: Option<&ParkedJob>,
    limit: usize,
) -> Result<Vec<ParkedJob>> {
    let after = after.map(|ParkedJob { at, id, .. }| keys.parked_entry(job_type, at, id));
    let range = behind(keys.parked_of(job_type, group), after);
    reads::list(tx, range, limit, |key, token| parked_job(keys, key, token)).await
}

/// Up to `limit` unwatched jobs of a group. Adds no read conflict.
#[boxed]
pub async fn unwatched(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    group: &str,
    limit: usize,
) -> Result<Vec<ParkedJob>> {
    let rows = reads::rows(tx, keys.unwatched_of(job_type, group), limit).await?;
    let mut jobs = Vec::with_capacity(rows.len());
    for (key, _) in &rows {
        let (at, id) = keys.parse_parked(key)?;
        // Both rows are cleared together.
        let row = keys.parked_entry(job_type, &at, &id);
        if let Some(token) = reads::value_with(tx, &row, "parked row", Isolation::Snapshot).await? {
            jobs.push(ParkedJob { at, id, token });
        }
    }
    Ok(jobs)
}

/// Up to `limit` jobs that are parked at a key. Adds no read conflict: a job that parks concurrently is unwatched, and
/// compared later.
#[boxed]
pub async fn at(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    at: &Parked,
    limit: usize,
) -> Result<Vec<ParkedJob>> {
    let range = keys.parked_at(job_type, &at.group, &at.key);
    reads::list(tx, range, limit, |key, token| parked_job(keys, key, token)).await
}

/// Wakes a parked job: it is pending from now on. Returns whether it was parked at this key. If it was not, this clears its
/// rows, because a node of a version without parking leaves them behind.
#[boxed]
pub async fn wake(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    parked: &ParkedJob,
    now_us: i64,
) -> Result<bool> {
    let job = read_job(tx, keys, job_type, &parked.id).await?;
    let Some(mut job) = job.filter(|job| job.parked() == Some(&parked.at)) else {
        clear_parked(tx, keys, job_type, &parked.at, &parked.id)?;
        return Ok(false);
    };
    move_to(tx, keys, &mut job, Place::pending(now_us))?;
    job.changed_us = now_us;
    write_job(tx, keys, &job)?;
    Ok(true)
}

/// Clears the mark of an unwatched job, once a watcher listens for it and has then found the compared state unchanged.
#[boxed]
pub async fn settle(tx: &Transaction, keys: &Keyspace, job_type: &str, parked: &ParkedJob) -> Result<()> {
    let sign = keys.unwatched_entry(job_type, &parked.at, &parked.id);
    // The job may have run and parked again: then its token differs, and the mark is for the new token.
    let row = keys.parked_entry(job_type, &parked.at, &parked.id);
    match reads::value::<String>(tx, &row, "parked row").await? {
        Some(token) if token == parked.token => Ok(tx.clear(sign)?),
        _ => Ok(()),
    }
}

fn parked_job(keys: &Keyspace, key: &[u8], token: &[u8]) -> Result<ParkedJob> {
    let (at, id) = keys.parse_parked(key)?;
    Ok(ParkedJob { at, id, token: decode("parked row", token)? })
}
