//! One pass of the scheduler: read → decide → claim, in one transaction.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_policy::select::{Rules, View, select};
use turnwise_queue::{Claim, Job, Keyspace, Result, claims, jobs};
use turnwise_store::{Isolation, Transaction};

/// Jobs that one pass claims at most. Even with every record at its largest it fits a transaction of 10 MB.
const CLAIM_BATCH: usize = 50;
/// A pass claims no further job once the options of those it has are this large together.
const CLAIM_OPTIONS_BYTES: usize = 8 << 20;
/// Delayed jobs that one pass releases at most.
const RELEASE_BATCH: usize = 50;

/// Who claims, and how much.
#[derive(Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub job_type: &'a str,
    pub worker: &'a str,
    /// Jobs that it runs now.
    pub running: usize,
    /// Jobs that it runs at most.
    pub max_jobs: usize,
    pub numbers: Numbers<'a>,
    /// History entries that a job keeps.
    pub max_history: usize,
}

/// Where the numbers of its claims come from.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    /// Counted in memory. Each attempt of a transaction takes new ones, so that none is ever used twice.
    Counted(&'a AtomicU64),
    /// From the worker's row, for one whose incarnation outlives this process.
    Stored,
}

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

/// One pass. The jobs are the worker's once the transaction is committed.
pub(crate) async fn pass(
    tx: &Transaction,
    keys: &Keyspace,
    claimant: Claimant<'_>,
    now_us: i64,
) -> Result<Pass> {
    let Claimant { job_type, worker, running, max_jobs, numbers, max_history } = claimant;
    let wake_seen = tx.get_with(&keys.wake(job_type), Isolation::Snapshot).await?;
    let next_due_us = claims::release_due(tx, keys, job_type, now_us, RELEASE_BATCH).await?;
    let window = max_jobs.saturating_sub(running).min(CLAIM_BATCH);
    let front = claims::front(tx, keys, job_type, window).await?;
    let front: Vec<String> = front.into_iter().map(|pending| pending.id).collect();
    let decision = select(View { running, front: &front }, Rules { max_jobs });
    let mut claimed = Vec::with_capacity(decision.start.len());
    let mut options_bytes = 0;
    for id in &decision.start {
        if options_bytes >= CLAIM_OPTIONS_BYTES {
            break;
        }
        let number = match numbers {
            Numbers::Counted(next) => next.fetch_add(1, Relaxed),
            Numbers::Stored => claims::next_number(tx, keys, job_type, worker).await?,
        };
        let claim = Claim { worker: worker.to_owned(), number };
        if let Some(job) = claims::claim(tx, keys, job_type, id, &claim, now_us, max_history).await? {
            let options = jobs::options(tx, keys, &job).await?;
            options_bytes += options.get().len();
            claimed.push((job, options));
        }
    }
    let more = front.len() == window && running + claimed.len() < max_jobs;
    Ok(Pass { claimed, more, next_due_us, wake_seen })
}
