//! A worker's membership: joining under a fresh id, and settling what earlier processes left.

use turnwise_queue::{Keyspace, Result, workers};
use turnwise_store::Store;

use crate::Options;

/// Jobs that one transaction gives back for a lost worker.
pub(crate) const REMOVE_BATCH: usize = 50;
/// Workers that one look at the past reads.
const PREDECESSORS_BATCH: usize = 1_000;

/// Registers under an id that was never used before.
pub(crate) async fn join(
    store: &Store,
    keys: &Keyspace,
    job_type: &str,
    options: &Options,
) -> Result<String> {
    let runtime = store.runtime();
    // Time first, so that ids sort by age; two random halves make a collision unthinkable.
    let started_us = runtime.now_us();
    let id = format!("{started_us:016x}-{:016x}", runtime.random());
    let worker = workers::Worker::new(&id, &options.node, started_us, options.max_jobs);
    let worker = &worker;
    store.transact(|tx| async move { workers::register(&tx, keys, job_type, worker) }).await?;
    Ok(id)
}

/// Removes a worker, in as many transactions as it takes.
pub(crate) async fn remove(
    store: &Store,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    max_history: usize,
) -> Result<()> {
    loop {
        let now_us = store.runtime().now_us();
        let done = store
            .transact(|tx| async move {
                workers::remove(&tx, keys, job_type, worker, REMOVE_BATCH, now_us, max_history).await
            })
            .await?;
        if done {
            return Ok(());
        }
    }
}

/// Removes every worker that an earlier process of an exclusive store left behind: it must be dead. External ones
/// go on across a restart and stay; but a removal that has begun is finished, whose ever it is.
pub(crate) async fn remove_predecessors(
    store: &Store,
    keys: &Keyspace,
    job_type: &str,
    options: &Options,
) -> Result<()> {
    let mut after: Option<String> = None;
    loop {
        let from = after.as_deref();
        let (page, last) = store
            .transact(|tx| async move {
                let page = workers::healths(&tx, keys, job_type, from, PREDECESSORS_BATCH).await?;
                let last = (page.len() == PREDECESSORS_BATCH).then(|| page[page.len() - 1].0.clone());
                let mut dead = Vec::new();
                for (worker, health) in page {
                    if !health.external || workers::get(&tx, keys, job_type, &worker).await?.is_none() {
                        dead.push(worker);
                    }
                }
                Ok::<_, turnwise_queue::Error>((dead, last))
            })
            .await?;
        for worker in page {
            tracing::info!(%worker, job_type, "an earlier worker did not leave by itself: its jobs are pending again");
            remove(store, keys, job_type, &worker, options.max_history).await?;
        }
        if last.is_none() {
            return Ok(());
        }
        after = last;
    }
}
