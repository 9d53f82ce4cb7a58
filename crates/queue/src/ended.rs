//! The jobs that have ended: their rows, and the removal of old ones.
//!
//! *Model.* Users ask for the latest ends of one tenant, in one state, or for one reason; retention asks for the oldest ends of all.
//! A row per question would cost each job several rows. So each ended job has one row, in one of [`PARTITIONS`] partitions of its type,
//! and each partition is sorted by time. The state decides about a range of partitions, and the tenant about one of them. The partition of
//! a failed job depends on its tenant and on the class of its reason. The row's value has both, so that a search skips foreign rows without
//! reading records.
//!
//! *Arithmetic.* A list of all jobs merges [`PARTITIONS`] ranges per type. A list of one tenant of many reads one range, in which every
//! 64th row of the other tenants is: with 1,000 tenants, 100 jobs are found in 1,600 rows. More partitions help the second list, and burden
//! the first.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::key::{children, successor};
use turnwise_store::tuple::Element;
use turnwise_store::{Isolation, RangeRead, Transaction};

pub use crate::cover::PARTITIONS;
pub(crate) use crate::cover::{Cover, partitions};
use crate::cover::{FIRST_CANCELLED, FIRST_FAILED};
use crate::error::corrupt;
use crate::followers::{self, Need};
use crate::jobs::{PREFETCHED, erase, prefetch};
use crate::keyspace::{KeyRange, Keyspace};
use crate::rows::read_job;
use crate::{Place, Result, counts, reads};

/// The most rows of a partition that one transaction removes where each read waits for another machine.
const REMOTE_BATCH: usize = 25;

/// The jobs that are in a range of partitions of one state.
pub(crate) fn kinds(partitions: &RangeInclusive<u16>) -> &'static [counts::Kind] {
    match *partitions.start() {
        FIRST_FAILED.. => &[counts::Kind::Failed],
        FIRST_CANCELLED.. => &[counts::Kind::Cancelled],
        _ => &[counts::Kind::Completed],
    }
}

/// A row by its key: the partition, the time of the end, and the job's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedKey {
    pub partition: u16,
    pub ended_us: i64,
    pub id: String,
}

impl Keyspace {
    /// The jobs in some partitions of a type.
    pub(crate) fn ended_in(&self, job_type: &str, partitions: &RangeInclusive<u16>) -> KeyRange {
        let of = |partition: u16| children(&self.space, &("ended", job_type, i64::from(partition)));
        (of(*partitions.start()).0, of(*partitions.end()).1)
    }

    /// The meaning of a key of [`Keyspace::ended`].
    pub(crate) fn parse_ended(&self, key: &[u8]) -> Result<EndedKey> {
        let (_, _, partition, ended_us, id): (Element<'_>, Element<'_>, u16, i64, String) = self.read(key)?;
        match partition {
            0..PARTITIONS => Ok(EndedKey { partition, ended_us, id }),
            _ => Err(self.unreadable(key).into()),
        }
    }
}

/// How far a round of the retention has come behind records that must stay, in each partition of a type.
pub type Behind = BTreeMap<u16, Bytes>;

/// Removes up to `limit` jobs of a type that ended before `before_us`, oldest end first in each partition, or as many as the transaction
/// has room for. Passes over those whose results are still needed ([`crate::followers`]), and enters them in `behind`. Returns how many it
/// has dealt with; 0 only if none are left.
#[boxed]
pub async fn prune(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    before_us: i64,
    limit: usize,
    behind: &mut Behind,
) -> Result<usize> {
    let found = match tx.is_remote() {
        true => old_of_all_partitions(tx, keys, job_type, before_us, limit, behind).await?,
        false => old_of_filled_partitions(tx, keys, job_type, before_us, limit, behind).await?,
    };
    let mut pruned = 0;
    for (n, (key, EndedKey { partition, id, .. })) in found.iter().enumerate() {
        if pruned > 0 && !tx.has_room() {
            break;
        }
        if n % PREFETCHED == 0 {
            let next = found[n..].iter().take(PREFETCHED);
            prefetch(tx, keys, next.map(|(_, key)| (job_type, key.id.as_str()))).await?;
        }
        pruned += 1;
        let job = read_job(tx, keys, job_type, id).await?;
        let job = job.ok_or_else(|| corrupt("ended key", "has no job record"))?;
        if !matches!(job.place, Place::Ended(_)) {
            return Err(corrupt("ended key", "its job has not ended"));
        }
        match followers::need(tx, keys, &job).await? {
            Need::No => erase(tx, keys, &job)?,
            Need::Yes => drop(behind.insert(*partition, successor(key))),
            Need::Unknown => {}
        }
    }
    Ok(pruned)
}

/// The rows of jobs that ended before a time, up to `limit`: one read per partition that has jobs, and one more if some of them are old.
async fn old_of_filled_partitions(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    before_us: i64,
    limit: usize,
    behind: &Behind,
) -> Result<Vec<(Bytes, EndedKey)>> {
    let (mut begin, end) = keys.ended(job_type);
    let mut found = Vec::new();
    while found.len() < limit {
        let first = reads::rows(tx, (begin, end.clone()), 1).await?;
        let Some((key, _)) = first.into_iter().next() else { break };
        let EndedKey { partition, ended_us, .. } = keys.parse_ended(&key)?;
        let (_, old) = old_in(keys, job_type, partition, before_us);
        begin = keys.ended_in(job_type, &(partition..=partition)).1;
        if ended_us < before_us {
            let key = behind.get(&partition).cloned().unwrap_or(key);
            let read = |key: &Bytes, _: &Bytes| Ok((key.clone(), keys.parse_ended(key)?));
            found.extend(reads::list(tx, (key, old), limit - found.len(), read).await?);
        }
    }
    Ok(found)
}

/// The same where each read waits for another machine: all reads at the same time.
async fn old_of_all_partitions(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    before_us: i64,
    limit: usize,
    behind: &Behind,
) -> Result<Vec<(Bytes, EndedKey)>> {
    let reads: Vec<RangeRead> = (0..PARTITIONS)
        .map(|partition| {
            let (begin, end) = old_in(keys, job_type, partition, before_us);
            let begin = behind.get(&partition).cloned().unwrap_or(begin);
            RangeRead { begin, end, limit: limit.min(REMOTE_BATCH), reverse: false }
        })
        .collect();
    tx.prefetch_ranges(reads.iter().cloned()).await?;
    let mut found = Vec::new();
    for read in reads {
        for (key, _) in tx.range_with(read, Isolation::Snapshot).await? {
            let ended = keys.parse_ended(&key)?;
            found.push((key, ended));
        }
        if found.len() >= limit {
            found.truncate(limit);
            break;
        }
    }
    Ok(found)
}

/// The jobs of a partition that ended before a time.
fn old_in(keys: &Keyspace, job_type: &str, partition: u16, before_us: i64) -> KeyRange {
    let (begin, _) = keys.ended_in(job_type, &(partition..=partition));
    (begin, keys.ended_entry(job_type, partition, before_us, ""))
}
