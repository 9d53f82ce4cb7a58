//! Removes the records of finished `_replicate` requests that no client waits for any more.

use turnwise_queue::{Job, Keyspace, jobs};
use turnwise_store::Store;

use super::Summary;
use crate::spec::JOB_TYPE;

/// How long a result is kept for the clients that wait for it. They get it within a second; the rest is for slow clients.
const KEPT_US: i64 = 600_000_000;
/// Jobs that one transaction reads.
const BATCH: usize = 500;

/// Removes the records of requests that ended some time ago. Records of documents' jobs are removed at their end.
///
/// # Errors
/// Errors of the store.
pub async fn remove_finished_requests(store: &Store, keys: &Keyspace) -> turnwise_queue::Result<usize> {
    let (mut after, mut removed): (Option<String>, usize) = (None, 0);
    let old = |job: &Job, now_us: i64| {
        let transient = Summary::of(job).is_some_and(|summary| summary.document().is_none());
        // The records of a schedule's jobs stay as long as those of other jobs.
        transient && job.schedule.is_none() && job.state().is_final() && now_us - job.changed_us > KEPT_US
    };
    loop {
        let (from, now_us) = (after.as_deref(), store.runtime().now_us());
        let (last, count) = store
            .transact(|tx| async move {
                let batch = jobs::list(&tx, keys, JOB_TYPE, from, BATCH).await?;
                let (mut count, mut last) = (0, None);
                for job in batch.iter().filter(|job| old(job, now_us)) {
                    if count > 0 && !tx.has_room() {
                        // The rest follows in another transaction.
                        return Ok((last, count));
                    }
                    // Read again, with a conflict, because a client may add it again at this moment.
                    if jobs::get(&tx, keys, JOB_TYPE, &job.id).await?.is_some_and(|job| old(&job, now_us)) {
                        jobs::remove(&tx, keys, JOB_TYPE, &job.id).await?;
                        count += 1;
                    }
                    last = Some(job.id.clone());
                }
                let last = if batch.len() == BATCH {
                    batch.into_iter().next_back().map(|job| job.into_fields().id)
                } else {
                    None
                };
                Ok::<_, turnwise_queue::Error>((last, count))
            })
            .await?;
        removed += count;
        match last {
            Some(last) => after = Some(last),
            None => return Ok(removed),
        }
    }
}
