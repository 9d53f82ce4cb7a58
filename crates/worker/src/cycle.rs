//! One pass of the scheduler: read → decide → claim, in one transaction.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_policy::select::{Rules, View, select};
use turnwise_queue::{Claim, Job, Keyspace, Result, claims, jobs};
use turnwise_store::{Isolation, Store};

use crate::Options;

/// Jobs that one pass claims at most. Even with every record at its largest it fits a transaction of 10 MB.
const CLAIM_BATCH: usize = 50;
/// Delayed jobs that one pass releases at most.
const RELEASE_BATCH: usize = 50;

/// What a pass found and did.
pub(crate) struct Pass {
    /// Jobs that are this worker's now, with their options.
    pub claimed: Vec<(Job, Box<RawValue>)>,
    /// There may be more to claim at once.
    pub more: bool,
    /// When the next delayed job is due, in µs.
    pub next_due_us: Option<i64>,
    /// The wake key's value before the pass: work that comes later changes it.
    pub wake_seen: Option<Bytes>,
}

/// Runs one pass for a worker that has `running` jobs. `next_claim` counts its claims: each attempt of the
/// transaction takes new numbers, so that no number is ever used twice.
pub(crate) async fn pass(
    store: &Store,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    running: usize,
    next_claim: &AtomicU64,
    options: &Options,
) -> Result<Pass> {
    let runtime = store.runtime();
    store
        .transact(|tx| async move {
            let now_us = runtime.now_us();
            let wake_seen = tx.get_with(&keys.wake(job_type), Isolation::Snapshot).await?;
            let next_due_us = claims::release_due(&tx, keys, job_type, now_us, RELEASE_BATCH).await?;
            let free = options.max_jobs.saturating_sub(running);
            let window = free.min(CLAIM_BATCH);
            let front = claims::front(&tx, keys, job_type, window).await?;
            let front: Vec<String> = front.into_iter().map(|pending| pending.id).collect();
            let decision = select(View { running, front: &front }, Rules { max_jobs: options.max_jobs });
            let mut claimed = Vec::with_capacity(decision.start.len());
            for id in &decision.start {
                let claim = Claim { worker: worker.to_owned(), number: next_claim.fetch_add(1, Relaxed) };
                let job = claims::claim(&tx, keys, job_type, id, &claim, now_us, options.max_history).await?;
                if let Some(job) = job {
                    let job_options = jobs::options(&tx, keys, &job).await?;
                    claimed.push((job, job_options));
                }
            }
            let more = front.len() == window && running + claimed.len() < options.max_jobs;
            Ok(Pass { claimed, more, next_due_us, wake_seen })
        })
        .await
}
