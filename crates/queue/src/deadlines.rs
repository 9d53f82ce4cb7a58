//! How long a run may last, and how long it may go without a report.
//!
//! *Model.* A job, or its type, may have a `timeout` for the whole run and a `heartbeat_timeout` between two reports. A
//! worker inside a process enforces them for its own runs. The runs of external workers are in an index, sorted by the time
//! at which a server checks them:
//!
//! ```text
//!   claim ──▶ ("deadlines", at, type, id) ──▶ due: has it reported since? ──▶ yes: moved on
//!                                                                        └──▶ no: the claim is taken away
//! ```
//!
//! The row is only an alarm. A report does not move it, and no server checks the run earlier. So a run costs one check and
//! one move per timeout, however many runs there are and however often they report. The server that checks decides whether
//! the run has really exceeded a timeout, on a clock that cannot jump.
//!
//! *What counts.* A run that waits for a lock cannot report. Its heartbeat timeout starts again when it has the lock, and
//! the timeout of the whole run continues. A parked job has no run. A continuous job has no timeout for the whole run.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::key::successor;
use turnwise_store::{Isolation, Transaction};

use crate::claims::{RevocationCause, take_back};
use crate::rows::{decode, decode_active, decode_job, encode, read_active, read_job};
pub use crate::timeouts::{Deadline, MAX_TIMEOUT_US, Over, Timeouts};
use crate::workers::RunSummary;
use crate::{Claim, Context, Job, Keyspace, Result, reads};

impl Deadline {
    /// For a run that starts now, if it has timeouts.
    pub(crate) fn of_start(timeouts: Timeouts, now_us: i64) -> Option<Deadline> {
        let left_us = timeouts.left_us(0, Some(0))?.unwrap_or(0);
        Some(Deadline { at_us: now_us.saturating_add(left_us), timeouts })
    }

    pub(crate) fn enter(self, tx: &Transaction, keys: &Keyspace, job: &Job, claim: &Claim) -> Result<()> {
        Ok(tx.set(keys.deadline(self.at_us, &job.job_type, &job.id), encode(claim))?)
    }

    pub(crate) fn leave(self, tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
        Ok(tx.clear(keys.deadline(self.at_us, &job.job_type, &job.id))?)
    }
}

/// A run that must be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Its job's type.
    pub job_type: String,
    /// Its job's id.
    pub id: String,
    /// Its claim.
    pub claim: Claim,
    /// Its timeouts, and when it was to be checked.
    pub deadline: Deadline,
    /// When it began, in µs, by the clock of the server that assigned the job.
    pub started_us: i64,
    /// When it last reported, or began, in µs, by the clock of the server that wrote that.
    pub updated_us: i64,
    /// When it last began, began to wait for a lock, or got one, in µs, by the clock of the server that wrote that.
    pub changed_us: i64,
    /// It waits for a lock.
    pub waits: bool,
}

/// Up to `limit` runs that are due at `now_us`, earliest due first, starting at the position `from` if given. Also returns
/// the position after them if there may be more. Adds no read conflict.
#[boxed]
pub async fn due(
    tx: &Transaction,
    keys: &Keyspace,
    from: Option<Bytes>,
    now_us: i64,
    limit: usize,
) -> Result<(Vec<Due>, Option<Bytes>)> {
    let (begin, end) = keys.deadlines_until(now_us);
    let begin = from.map_or(begin.clone(), |from| from.max(begin));
    let rows = reads::rows(tx, (begin, end), limit).await?;
    let next = rows.get(limit.saturating_sub(1)).map(|(key, _)| successor(key));
    let mut found = Vec::with_capacity(rows.len());
    for (key, value) in rows {
        let (at_us, job_type, id) = keys.parse_deadline(&key)?;
        let claim: Claim = decode("deadline row", &value)?;
        let (row, record) = (keys.active_entry(&job_type, &claim.worker, &id), keys.job(&job_type, &id));
        let active = tx.get_with(&row, Isolation::Snapshot).await?;
        let (Some(active), Some(record)) = (active, tx.get_with(&record, Isolation::Snapshot).await?) else {
            // Skipped: a stray row, which `store check` finds.
            continue;
        };
        // Rows that cannot be read are skipped as well: the other runs must still be checked.
        let (Ok(active), Ok(job)) = (decode_active(&active), decode_job(&record)) else {
            continue;
        };
        let (started_us, updated_us) = (active.started_us, active.updated_us());
        let Some(deadline) = active.deadline.filter(|deadline| deadline.at_us == at_us) else {
            continue;
        };
        let (waits, changed_us) = (job.waits().is_some(), job.changed_us);
        found.push(Due { job_type, id, claim, deadline, started_us, updated_us, changed_us, waits });
    }
    Ok((found, next))
}

/// Moves the check of a run to `at_us`. Does nothing if it has been moved since, or the run has ended.
#[boxed]
pub async fn postpone(tx: &Transaction, keys: &Keyspace, due: &Due, at_us: i64) -> Result<()> {
    let Due { job_type, id, claim, deadline, .. } = due;
    let active = read_active(tx, keys, job_type, &claim.worker, id).await?;
    let Some(mut active) = active.filter(|active| active.claim == claim.number) else { return Ok(()) };
    if active.deadline != Some(*deadline) {
        return Ok(());
    }
    active.deadline = Some(Deadline { at_us, ..*deadline });
    tx.clear(keys.deadline(deadline.at_us, job_type, id))?;
    tx.set(keys.deadline(at_us, job_type, id), encode(claim))?;
    Ok(tx.set(keys.active_entry(job_type, &claim.worker, id), encode(&active))?)
}

/// Revokes the claim of a run that has exceeded a timeout: that is a crash, with a backoff. Does nothing if the run has
/// reported since, has ended, or, for a heartbeat timeout, has begun to wait for a lock or got one. The worker stays a
/// member; its further writes for this run return [`Error::Halt`](crate::Error::Halt).
#[boxed]
pub async fn expire(
    tx: &Transaction,
    keys: &Keyspace,
    due: &Due,
    over: Over,
    now_us: i64,
    max_history: usize,
) -> Result<Option<RunSummary>> {
    let Due { job_type, id, claim, updated_us, changed_us, .. } = due;
    let Some(mut job) = read_job(tx, keys, job_type, id).await? else { return Ok(None) };
    let active = read_active(tx, keys, job_type, &claim.worker, id).await?;
    let is_same = job.claim() == Some(claim);
    let has_waited = matches!(over, Over::Heartbeat(_)) && job.changed_us != *changed_us;
    if !is_same || has_waited || active.is_none_or(|active| active.updated_us() != *updated_us) {
        return Ok(None);
    }
    let run = RunSummary::of(&job, claim, now_us);
    let context = Context::new(tx, keys, job_type, now_us, max_history);
    take_back(context, &mut job, claim, RevocationCause::Expired(over)).await?;
    Ok(Some(run))
}
