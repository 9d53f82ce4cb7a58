//! Jobs that wait outside of their tenant's queue, by reason: for listings and counts. Each reason has its own index, so
//! that a listing reads only the rows that it returns.

use async_recursion::async_recursion as boxed;
use turnwise_store::Transaction;

use crate::keyspace::KeyRange;
use crate::selection::Source;
use crate::{Keyspace, Result, reads};

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
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    kept_by: KeptBy,
    limit: usize,
) -> Result<OffQueue> {
    let source = match kept_by {
        KeptBy::Time => Source::Delayed,
        KeptBy::Jobs => Source::Blocked,
        KeptBy::Filter => Source::Paused,
        KeptBy::Concurrency => return limited(tx, keys, job_type, limit).await,
    };
    read(tx, source.range(keys, job_type), limit, |key| source.id(keys, key)).await
}

async fn read(
    tx: &Transaction,
    range: KeyRange,
    limit: usize,
    id: impl Fn(&[u8]) -> Result<String>,
) -> Result<OffQueue> {
    let mut ids = reads::list(tx, range, limit + 1, |key, _| id(key)).await?;
    let more = ids.len() > limit;
    ids.truncate(limit);
    Ok(OffQueue { ids, more })
}

/// One read per bucket: the rows are sorted by bucket first, then by type.
async fn limited(tx: &Transaction, keys: &Keyspace, job_type: &str, limit: usize) -> Result<OffQueue> {
    let (mut found, mut rest) = (OffQueue::default(), keys.limited());
    for _ in 0..MAX_BUCKETS {
        let first = reads::rows(tx, rest.clone(), 1).await?;
        let Some((key, _)) = first.first() else { return Ok(found) };
        let bucket = keys.parse_limited(key)?.1.limit.bucket;
        let id = |key: &[u8]| Ok(keys.parse_limited(key)?.2);
        let some = read(tx, keys.limited_of(&bucket, job_type), limit - found.ids.len(), id).await?;
        found.ids.extend(some.ids);
        if some.more {
            return Ok(OffQueue { more: true, ..found });
        }
        rest.0 = keys.limited_in(&bucket).1;
    }
    Ok(OffQueue { more: true, ..found })
}
