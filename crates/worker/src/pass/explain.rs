//! Explains why a job waits, by the decision about the head of its queue.

use async_recursion::async_recursion as boxed;
use turnwise_policy::schedule::{self, HoldReason};
use turnwise_queue::tenants::Pending;
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Store, Transaction};

use super::CLAIM_BATCH;
use super::view::{Source, View};
use crate::QueueRules;
use crate::fair_share::Front;

/// The head of a job type's queue.
pub struct QueueHead {
    /// The first pending jobs, in the order of fair share, each with a number that identifies its tenant here.
    pub jobs: Vec<(Pending, usize)>,
    /// Whether there may be more jobs behind them.
    pub beyond: bool,
}

/// How many jobs of the queue a pass compares if it has `room` free slots. If none of the first `room` jobs declares
/// locks, it compares only these.
pub fn compared(rules: &QueueRules, first: &[&Pending], room: usize) -> usize {
    let room = room.min(CLAIM_BATCH);
    match first.iter().take(room).all(|job| job.locks.is_none()) {
        true => room,
        false => rules.window(room),
    }
}

/// Why each job at the head of a queue waits; `None` for a job that the next pass would start. The pass is that of the
/// only worker of the queue, with `room` free slots. If there are several workers, each makes the same decision about
/// its part of the queue.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn explain(
    store: &Store,
    tx: &Transaction,
    keys: &Keyspace,
    rules: &QueueRules,
    job_type: &str,
    head: QueueHead,
    room: usize,
) -> Result<Vec<Option<HoldReason>>> {
    let QueueHead { jobs, beyond } = head;
    let asked = jobs.len();
    let room = room.min(CLAIM_BATCH);
    let now_us = store.runtime().now_us();
    let source = Source { tx, keys, job_type, queue: rules, now_us };
    let locking = jobs.iter().any(|(job, _)| !job.locks.is_none());
    let queue = Front { jobs, beyond, ..Front::default() };
    let view = match locking {
        true => View::with_locks(&source, queue, |_| true).await?,
        false => View::without_locks(queue),
    };
    let mut reasons = vec![None; asked];
    for hold in view.decide(&source, schedule::View::new(&[], room), |_| false).hold {
        if let Some(reason) = reasons.get_mut(hold.candidate) {
            *reason = Some(hold.reason);
        }
    }
    Ok(reasons)
}
