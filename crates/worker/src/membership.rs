//! A worker's membership: joining under a fresh id, and settling what earlier processes left.

use std::collections::BTreeSet;

use turnwise_queue::{Keyspace, Result, jobs, workers};
use turnwise_store::Store;

use crate::Options;

/// Jobs that one transaction gives back for a lost worker.
pub(crate) const REMOVE_BATCH: usize = 50;
/// Active rows that one look at the past reads.
const ACTIVE_BATCH: usize = 100_000;

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
    let worker =
        workers::Worker { id: id.clone(), node: options.node.clone(), started_us, slots: options.max_jobs };
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
    options: &Options,
) -> Result<()> {
    let max_history = options.max_history;
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

/// Removes every worker that is registered or still has active rows: for the owner of an exclusive store,
/// where whoever came before must be dead.
pub(crate) async fn remove_predecessors(
    store: &Store,
    keys: &Keyspace,
    job_type: &str,
    options: &Options,
) -> Result<()> {
    let dead = store
        .transact(|tx| async move {
            let registered = workers::list(&tx, keys, job_type).await?;
            let active = jobs::active(&tx, keys, job_type, ACTIVE_BATCH).await?;
            let mut dead: BTreeSet<String> = registered.into_iter().map(|worker| worker.id).collect();
            dead.extend(active.into_iter().map(|(worker, _, _)| worker));
            Ok::<_, turnwise_queue::Error>(dead)
        })
        .await?;
    for worker in dead {
        tracing::info!(%worker, job_type, "an earlier worker did not leave by itself: its jobs are pending again");
        remove(store, keys, job_type, &worker, options).await?;
    }
    Ok(())
}
