//! Jobs that must start within a time, and records that are kept for a time of their own.
//!
//! *Model.* A job that waits for its first start may have a time at which it fails ([`crate::Lifetime::start_within_us`]), and a job that has ended
//! one at which its record is removed ([`crate::Lifetime::keep_us`]). The record states it ([`Job::due_us`](crate::JobFields::due_us)), and an index has it:
//!
//! ```text
//!   add ──▶ ("lifetimes", at, type, id) ──▶ claim: cleared
//!                                      └──▶ due: the job fails, and is kept as long as it states
//!   end ──▶ ("lifetimes", at, type, id) ──▶ due: the record is removed; while its result is needed, a minute later
//! ```
//!
//! A job without such terms costs nothing here. What is stated of a type is read when a job is added; it holds for jobs that are added from then on.
//! A type's own time to keep records is not here: [`crate::jobs::prune`] removes all its jobs by it.
//!
//! *Late.* No worker claims a job that is due, so a job never starts too late, also after a time without any server. A pass that meets one in the queue
//! sets it aside, so that thousands of them hide no other jobs. If the clock was wrong, the job returns to the queue.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_policy::eligibility::dependencies::DependencyEnd;
use turnwise_store::Transaction;

use crate::followers::{self, Need};
use crate::jobs::{PREFETCHED, erase, prefetch};
use crate::lifetime_rows::set;
use crate::place::{End, Place};
use crate::rows::{read_job, write_job};
use crate::transition::move_to;
use crate::{EventKind, Job, Keyspace, Result, dependencies, events, reads, schedules};

/// The class of the error of a job that has not started in time.
pub const EXPIRED: &str = "expired";

/// How long a job that is due stays out of the queue, in µs. It ends earlier, unless the clock is wrong.
const SET_ASIDE_US: i64 = 120_000_000;
/// After how long the record of a job whose result is needed ([`crate::followers`]) is looked at again, in µs.
const NEEDED_US: i64 = 60_000_000;
/// The most rows that the end of a job without dependencies writes.
const MOST_WRITES: usize = 31;

/// A job that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// When, in µs.
    pub at_us: i64,
    /// Its type.
    pub job_type: String,
    /// Its id.
    pub id: String,
}

/// Up to `limit` jobs that are due, earliest first. Adds no read conflict.
#[boxed]
pub async fn due(tx: &Transaction, keys: &Keyspace, now_us: i64, limit: usize) -> Result<Vec<Due>> {
    let read = |key: &Bytes, _: &Bytes| {
        let (at_us, job_type, id) = keys.parse_lifetime(key)?;
        Ok(Due { at_us, job_type, id })
    };
    reads::list(tx, keys.lifetimes_until(now_us), limit, read).await
}

/// Fails the jobs among these that have not started in time, and removes the records whose time is over. Does as many as the
/// transaction has room for, and returns how many.
#[boxed]
pub async fn settle(tx: &Transaction, keys: &Keyspace, due: &[Due], now_us: i64) -> Result<usize> {
    let mut settled = 0;
    for (n, Due { at_us, job_type, id }) in due.iter().enumerate() {
        if n % PREFETCHED == 0 {
            let next = due[n..].iter().take(PREFETCHED);
            prefetch(tx, keys, next.map(|due| (due.job_type.as_str(), due.id.as_str()))).await?;
        }
        let job = read_job(tx, keys, job_type, id).await?.filter(|job| job.due_us == Some(*at_us));
        let rows = |job: &Job| MOST_WRITES + job.group_rows() + job.inputs.len() + 2 * job.unmet() as usize;
        let rows = job.as_ref().map_or(1, rows);
        if n > 0 && !(tx.has_room() && tx.has_room_for(rows, rows)) {
            break;
        }
        settled += 1;
        let Some(mut job) = job else {
            // Another server has settled it, or this is a stray row.
            let row = keys.lifetime_entry(*at_us, job_type, id);
            if tx.get(&row).await?.is_some() {
                tx.clear(row)?;
            }
            continue;
        };
        match job.place {
            Place::Ended(_) => match followers::need(tx, keys, &job).await? {
                Need::No => erase(tx, keys, &job)?,
                Need::Yes => {
                    set(tx, keys, &mut job, Some(now_us.saturating_add(NEEDED_US)))?;
                    write_job(tx, keys, &job)?;
                }
                Need::Unknown => {}
            },
            // It has started: what it waits for now has no bound.
            Place::Active(_) | Place::Crashing { .. } | Place::Parked { .. } => {
                set(tx, keys, &mut job, None)?;
                write_job(tx, keys, &job)?;
            }
            _ => expire(tx, keys, job, now_us).await?,
        }
    }
    Ok(settled)
}

/// Takes a job that is due out of the queue, until it has ended. If the clock that says so is wrong, it returns to the queue later.
#[boxed]
pub async fn set_aside(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    now_us: i64,
) -> Result<()> {
    let Some(mut job) = read_job(tx, keys, job_type, id).await? else { return Ok(()) };
    if !job.is_pending() || job.due_us.is_none_or(|due_us| due_us > now_us) {
        return Ok(());
    }
    move_to(tx, keys, &mut job, Place::Delayed { until_us: now_us.saturating_add(SET_ASIDE_US) })?;
    write_job(tx, keys, &job)
}

/// Fails a job that has not started in time.
async fn expire(tx: &Transaction, keys: &Keyspace, mut job: Job, now_us: i64) -> Result<()> {
    dependencies::leave(tx, keys, &mut job).await?;
    job.record_request(now_us, EventKind::Expired);
    job.error_class = Some(EXPIRED.to_owned());
    move_to(tx, keys, &mut job, Place::Ended(End::Failed))?;
    events::happened(tx, keys, &job, &EventKind::Expired, job.state(), now_us)?;
    schedules::job_ended(tx, keys, &job, Some(End::Failed), now_us).await?;
    dependencies::settle_ended(tx, keys, &mut job, DependencyEnd::Failed, now_us).await?;
    write_job(tx, keys, &job)
}
