//! Parked jobs: those that have nothing to do until there are news of something outside.
//!
//! *Model.* A job that never ends, and has done all that there was to do, leaves its worker. It is delayed until a time far away, and
//! its row `("parked", type, group, key, id)` says what would wake it: news of `key`, as whoever watches `group` hears of
//! them. It costs rows and nothing else: no task, no slot, no connection.
//!
//! *No news are lost.* The row holds a token: what the job compared its source with when it last looked. Something may have happened between that
//! look and the commit of the row, when nobody was watching for this job. So it is *unwatched* at first. Whoever watches
//! the group listens for the key from then on, *then* compares the token with what is there now, and wakes the job or takes the sign
//! away ([`settle`]). After anything that may have cost news (a watcher that starts, a feed that broke) tokens are compared again.
//!
//! *One way out.* Whatever takes a job out of the delayed ones clears these rows with it: its time has come, somebody adds, cancels
//! or removes it, or [`wake`]s it. Waking twice, or one that is not parked any more, does nothing.

use bytes::Bytes;
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::claims::Park;
use crate::error::corrupt;
use crate::job::{MAX_ID_BYTES, MAX_NAME_BYTES, Parked, check_name};
use crate::keyspace::KeyRange;
use crate::place::{Place, move_to};
use crate::rows::{decode, encode, read_job, write_job};
use crate::{Job, Keyspace, Result};

/// Longest token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 4_096;

/// A parked job, as its row tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedJob {
    /// What wakes it.
    pub at: Parked,
    /// The job.
    pub id: String,
    /// What it was compared with.
    pub token: String,
}

/// Whether a job can be parked so.
pub(crate) fn check(park: &Park) -> Result<()> {
    check_name("group", &park.at.group, MAX_NAME_BYTES)?;
    check_name("key", &park.at.key, MAX_ID_BYTES)?;
    check_name("token", &park.token, MAX_TOKEN_BYTES)
}

/// Parks a job whose run ends. Does not write the record.
pub(crate) fn enter(tx: &Transaction, keys: &Keyspace, job: &mut Job, park: &Park) -> Result<()> {
    move_to(tx, keys, job, Place::Parked { until_us: park.not_before_us, at: park.at.clone() })?;
    tx.set(keys.parked_entry(&job.job_type, &park.at, &job.id), encode(&park.token))?;
    tx.set(keys.unwatched_entry(&job.job_type, &park.at, &job.id), Bytes::new())?;
    Ok(tx.set_versionstamp(keys.unwatched_wake(&job.job_type))?)
}

/// Up to `limit` groups that have parked jobs, in order, after the group `after` if it is given. Takes no conflict.
pub async fn groups(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>> {
    first_of_groups(tx, keys, keys.parked(job_type), after, limit, |group| keys.parked_of(job_type, group))
        .await
}

/// The same, of groups that have jobs which nobody has looked at since they were parked.
pub async fn unwatched_groups(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    limit: usize,
) -> Result<Vec<String>> {
    first_of_groups(tx, keys, keys.unwatched(job_type), None, limit, |group| {
        keys.unwatched_of(job_type, group)
    })
    .await
}

async fn first_of_groups(
    tx: &Transaction,
    keys: &Keyspace,
    (mut begin, end): KeyRange,
    after: Option<&str>,
    limit: usize,
    of_group: impl Fn(&str) -> KeyRange,
) -> Result<Vec<String>> {
    if let Some(after) = after {
        begin = of_group(after).1;
    }
    let mut groups = Vec::new();
    while groups.len() < limit {
        // The first job after the last group: one row read per group, however many jobs it has.
        let read = RangeRead { begin, end: end.clone(), limit: 1, reverse: false };
        let rows = tx.range_with(read, Isolation::Snapshot).await?;
        let Some((key, _)) = rows.first() else { break };
        let (Parked { group, .. }, _) = parse(keys, key)?;
        begin = of_group(&group).1;
        groups.push(group);
    }
    Ok(groups)
}

/// Up to `limit` parked jobs of a group, by key and id, after the job `after` if it is given. Takes no conflict.
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    group: &str,
    after: Option<&ParkedJob>,
    limit: usize,
) -> Result<Vec<ParkedJob>> {
    let (mut begin, end) = keys.parked_of(job_type, group);
    if let Some(ParkedJob { at, id, .. }) = after {
        begin = successor(&keys.parked_entry(job_type, at, id));
    }
    let rows = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    rows.iter().map(|(key, token)| parked_job(keys, key, token)).collect()
}

/// Up to `limit` parked jobs of a group that nobody has looked at since they were parked. Takes no conflict.
pub async fn unwatched(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    group: &str,
    limit: usize,
) -> Result<Vec<ParkedJob>> {
    let (begin, end) = keys.unwatched_of(job_type, group);
    let rows = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    let mut jobs = Vec::with_capacity(rows.len());
    for (key, _) in &rows {
        let (at, id) = parse(keys, key)?;
        // It goes with the other one.
        if let Some(token) = tx.get_with(&keys.parked_entry(job_type, &at, &id), Isolation::Snapshot).await? {
            jobs.push(ParkedJob { at, id, token: decode("parked row", &token)? });
        }
    }
    Ok(jobs)
}

/// The jobs that are parked at a key, up to `limit`. Takes no conflict: who parks meanwhile is unwatched, and compared later.
pub async fn at(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    at: &Parked,
    limit: usize,
) -> Result<Vec<ParkedJob>> {
    let (begin, end) = keys.parked_at(job_type, &at.group, &at.key);
    let rows = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    rows.iter().map(|(key, token)| parked_job(keys, key, token)).collect()
}

/// Wakes a parked job: it is pending from now on. Whether it was parked there. If it was not, no row says so any longer: a node of a
/// version that knows nothing of parking clears none.
pub async fn wake(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    parked: &ParkedJob,
    now_us: i64,
) -> Result<bool> {
    let job = read_job(tx, keys, job_type, &parked.id).await?;
    let Some(mut job) = job.filter(|job| job.parked() == Some(&parked.at)) else {
        clear(tx, keys, job_type, &parked.at, &parked.id)?;
        return Ok(false);
    };
    move_to(tx, keys, &mut job, Place::pending(now_us))?;
    job.changed_us = now_us;
    write_job(tx, keys, &job)?;
    Ok(true)
}

/// Clears the rows of a job that is parked there no longer.
pub(crate) fn clear(tx: &Transaction, keys: &Keyspace, job_type: &str, at: &Parked, id: &str) -> Result<()> {
    tx.clear(keys.parked_entry(job_type, at, id))?;
    Ok(tx.clear(keys.unwatched_entry(job_type, at, id))?)
}

/// Somebody watches for this job, and has found what it was compared with unchanged after that.
pub async fn settle(tx: &Transaction, keys: &Keyspace, job_type: &str, parked: &ParkedJob) -> Result<()> {
    let sign = keys.unwatched_entry(job_type, &parked.at, &parked.id);
    // It may have run and parked again since: then its token is another one, and the sign is about that.
    match tx.get(&keys.parked_entry(job_type, &parked.at, &parked.id)).await? {
        Some(token) if decode::<String>("parked row", &token)? == parked.token => Ok(tx.clear(sign)?),
        _ => Ok(()),
    }
}

fn parked_job(keys: &Keyspace, key: &[u8], token: &[u8]) -> Result<ParkedJob> {
    let (at, id) = parse(keys, key)?;
    Ok(ParkedJob { at, id, token: decode("parked row", token)? })
}

fn parse(keys: &Keyspace, key: &[u8]) -> Result<(Parked, String)> {
    keys.parse_parked(key).ok_or_else(|| corrupt("parked key", "not a tuple of five"))
}
