//! Queries about a running job: what blocks it, and which locks it may request.

use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_store::Transaction;

use super::held::{LockAt, allows};
use super::rows::capacity;
use super::search::{Blocked, Rule, Search};
use crate::job::Job;
use crate::{Keyspace, Result};

/// The jobs that block a running job that waits, up to `most`: the holders of its lock, and then the jobs before it in a
/// queue. `None` if it does not wait, or if nothing blocks it. Adds no read conflict.
pub async fn blockers_of_run(
    tx: &Transaction,
    keys: &Keyspace,
    levels: &Levels,
    job: &Job,
    most: usize,
) -> Result<Option<Blocked>> {
    let (Some(waits), Some(held)) = (job.waits(), job.held()) else { return Ok(None) };
    let rule = Rule::Run(Some(waits.ticket), held);
    let by = (job.job_type.as_str(), job.id.as_str());
    Search::new((tx, keys, levels), by, rule, most).lock(&waits.lock).await
}

/// Whether a running job holds this lock, or has declared that it may want it.
pub fn may_request(levels: &Levels, job: &Job, lock: &LockAt) -> bool {
    let counted = capacity(levels, &lock.spot).is_some();
    job.held().is_some_and(|held| held.covers(lock, counted)) || allows(&job.locks, lock)
}
