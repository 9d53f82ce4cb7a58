//! Known locks, which a job takes with its claim, all or none; and reservations for jobs that could not get them for too
//! long.

use std::collections::HashSet;

use async_recursion::async_recursion as boxed;
use turnwise_policy::predictive_queue::locks::{Levels, Requests};
use turnwise_store::{RangeRead, Transaction};

use super::held::{Held, LockAt};
use super::rows::{QueueRow, View, put_all, put_holder};
use super::search::{Blocked, Rule, Search};
use crate::job::Job;
use crate::place::Place;
use crate::rows::{encode, read_job, write_job};
use crate::{Claim, Keyspace, Result};

/// Rows that a claim writes and reads beside those of its locks.
const OTHER_ROWS: usize = 32;

/// Whether a job can have the locks that it knows it wants.
pub(crate) enum Availability {
    /// It wants no locks.
    None,
    /// All of them are free, and this transaction proves it.
    Free(Box<Held>),
    /// One of them is not free.
    Blocked(Box<Blocked>),
    /// This transaction has no room for them.
    NoRoom,
}

/// Checks whether a pending job can have its known locks. Adds conflicts only if it can.
pub(crate) async fn known(
    tx: &Transaction,
    keys: &Keyspace,
    levels: &Levels,
    job: &Job,
) -> Result<Availability> {
    let Some(held) = Held::known(&job.locks) else { return Ok(Availability::None) };
    let most_levels = job.locks.levels.len();
    // Per lock and per level: two ranges of holders and a queue. Per lock also its row, and that of its reservation.
    let conflicts = 3 * (held.count() + most_levels) + OTHER_ROWS;
    if !tx.has_room_for(2 * held.count() + OTHER_ROWS, conflicts) {
        return Ok(Availability::NoRoom);
    }
    let mut search = claim_search((tx, keys, levels), job, 1);
    if let Some(blocked) = look(&mut search, job, &held).await? {
        return Ok(Availability::Blocked(Box::new(blocked)));
    }
    if !tx.has_room_for(2 * held.count() + OTHER_ROWS, search.conflicts() + OTHER_ROWS) {
        return Ok(Availability::NoRoom);
    }
    search.prove();
    Ok(Availability::Free(Box::new(held)))
}

/// Reads at the same time what [`known`] reads for each of these pending jobs, which have no reservations
/// ([`Transaction::prefetch_ranges`]).
pub async fn prefetch<'a>(
    tx: &Transaction,
    keys: &Keyspace,
    levels: &Levels,
    jobs: impl Iterator<Item = (&'a str, &'a str, &'a Requests)>,
) -> Result<()> {
    let reads = jobs.flat_map(|(job_type, id, requests)| {
        let search = Search::new((tx, keys, levels), (job_type, id), Rule::Claim(None), 1);
        let locks = Held::known(requests).map(|held| held.locks()).unwrap_or_default();
        search.first_reads(&locks)
    });
    // Many jobs want the same locks.
    let reads: HashSet<RangeRead> = reads.collect();
    Ok(tx.prefetch_ranges(reads).await?)
}

fn claim_search<'a>(view: View<'a>, job: &'a Job, most: usize) -> Search<'a> {
    Search::new(view, (&job.job_type, &job.id), Rule::Claim(job.reserved()), most)
}

/// What blocks the job.
async fn look(search: &mut Search<'_>, job: &Job, held: &Held) -> Result<Option<Blocked>> {
    match search.first_of(&held.locks()).await? {
        Some(blocked) => Ok(Some(blocked)),
        None => search.unknown(&job.locks).await,
    }
}

/// What blocks a pending job: up to `most` blockers of the first of its locks that it cannot have. `None` if nothing does.
/// Adds no read conflict.
#[boxed]
pub async fn blocked(
    tx: &Transaction,
    keys: &Keyspace,
    levels: &Levels,
    job: &Job,
    most: usize,
) -> Result<Option<Blocked>> {
    let Some(held) = Held::known(&job.locks) else { return Ok(None) };
    look(&mut claim_search((tx, keys, levels), job, most), job, &held).await
}

/// Writes the rows of the locks that a job's new claim holds, as listed in its record.
pub(crate) fn take(
    tx: &Transaction,
    keys: &Keyspace,
    levels: &Levels,
    job: &Job,
    claim: &Claim,
    now_us: i64,
) -> Result<()> {
    for lock in job.held().into_iter().flat_map(Held::locks).filter(|lock| lock.spot.level.is_some()) {
        put_holder((tx, keys, levels), job, claim, &lock, now_us)?;
    }
    put_all(tx, keys, job)
}

/// Reserves the known locks of a pending job, and returns its ticket. From then on no job can be claimed whose declaration
/// conflicts with the reservation, unless it has an earlier one. Running jobs are not affected. A job that already has a
/// reservation keeps its ticket. `None` for a job that is no longer pending, or wants no locks.
///
/// The reservation ends when the job stops being pending in any way, or declares other locks.
#[boxed]
pub async fn reserve(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    now_us: i64,
) -> Result<Option<i64>> {
    let Some(mut job) = read_job(tx, keys, job_type, id).await? else { return Ok(None) };
    let Some(held) = Held::known(&job.locks).filter(|_| job.is_pending()) else { return Ok(None) };
    if job.reserved().is_some() {
        return Ok(job.reserved());
    }
    for LockAt { spot, mode, units } in held.locks() {
        let row = QueueRow { mode, units, tenant: job.tenant.clone(), since_us: now_us, waits: None };
        tx.set(keys.lock_queue_entry(&spot, now_us, job_type, id), encode(&row))?;
    }
    if let Place::Pending { reserved, .. } = &mut job.place {
        *reserved = Some(now_us);
    }
    write_job(tx, keys, &job)?;
    Ok(job.reserved())
}
