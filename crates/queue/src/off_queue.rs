//! Jobs that wait outside of their tenant's queue, by reason: for listings and counts. Each reason has its own index, so
//! that a listing reads only the rows that it returns.

use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::error::corrupt;
use crate::keyspace::KeyRange;
use crate::{Keyspace, Result};

/// The most buckets that one listing visits. With more buckets, a listing is incomplete, and reports `more`.
const MAX_BUCKETS: usize = 1_000;

/// Why a job waits outside of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBy {
    /// Its time has not come, or its backoff is not over.
    Time,
    /// Its dependencies have not ended.
    Jobs,
    /// A filter has paused it.
    Filter,
    /// A bucket has no room.
    Concurrency,
}

/// Some of the jobs outside of the queue.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct OffQueue {
    /// Their ids, in the order of the index: by time, id, time in the queue, or bucket.
    pub ids: Vec<String>,
    /// There are more.
    pub more: bool,
}

/// Up to `limit` jobs of a type that are outside of the queue for this reason. Adds no read conflict.
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    kept_by: KeptBy,
    limit: usize,
) -> Result<OffQueue> {
    match kept_by {
        KeptBy::Time => {
            read(tx, keys.delayed(job_type), limit, |key| keys.parse_delayed(key).map(|(_, id)| id)).await
        }
        KeptBy::Jobs => read(tx, keys.blocked(job_type), limit, |key| keys.parse_blocked(key)).await,
        KeptBy::Filter => {
            read(tx, keys.paused_of(job_type), limit, |key| keys.parse_paused(key).map(|(_, _, id)| id)).await
        }
        KeptBy::Concurrency => limited(tx, keys, job_type, limit).await,
    }
}

async fn read(
    tx: &Transaction,
    (begin, end): KeyRange,
    limit: usize,
    id: impl Fn(&[u8]) -> Option<String>,
) -> Result<OffQueue> {
    let rows = tx
        .range_with(RangeRead { begin, end, limit: limit + 1, reverse: false }, Isolation::Snapshot)
        .await?;
    let more = rows.len() > limit;
    let ids = rows
        .iter()
        .take(limit)
        .map(|(key, _)| id(key).ok_or_else(|| corrupt("index key", "not of its index")));
    Ok(OffQueue { ids: ids.collect::<Result<_>>()?, more })
}

/// One read per bucket: the rows are sorted by bucket first, then by type.
async fn limited(tx: &Transaction, keys: &Keyspace, job_type: &str, limit: usize) -> Result<OffQueue> {
    let (mut found, mut after) = (OffQueue::default(), None::<Bucket>);
    for _ in 0..MAX_BUCKETS {
        let (begin, end) = keys.limited_after(after.as_ref());
        let first = RangeRead { begin, end, limit: 1, reverse: false };
        let rows = tx.range_with(first, Isolation::Snapshot).await?;
        let Some((key, _)) = rows.first() else { return Ok(found) };
        let (_, place, _) =
            keys.parse_limited(key).ok_or_else(|| corrupt("limited key", "not a tuple of nine"))?;
        let bucket = place.limit.bucket;
        let id = |key: &[u8]| keys.parse_limited(key).map(|(_, _, id)| id);
        let some = read(tx, keys.limited_of(&bucket, job_type), limit - found.ids.len(), id).await?;
        found.ids.extend(some.ids);
        if some.more {
            return Ok(OffQueue { more: true, ..found });
        }
        after = Some(bucket);
    }
    Ok(OffQueue { more: true, ..found })
}
