//! A worker's membership: it joins under a new id, and removes the rows and claims of earlier processes.

use std::time::Duration;

use turnwise_queue::workers::{Removal, RunSummary};
use turnwise_queue::{Context, Error, Health, Keyspace, Result, modes, workers};
use turnwise_store::Store;

use crate::Options;
use crate::metrics::{CrashKind, Metrics, RunResult};
use crate::spans::{RunOutcome, Spans};
use crate::times::duration_us;

/// The number of jobs that one transaction gives back for a lost worker.
pub(crate) const REMOVE_BATCH: usize = 50;
/// The number of workers that one read of the predecessors returns.
const PREDECESSORS_BATCH: usize = 1_000;

/// Checks that a dead worker's jobs can be pending again within two timeouts. Its watcher sees its counter unchanged
/// for the first time up to one interval after its death. After that it waits for one timeout, rounded up to whole
/// intervals.
///
/// # Errors
/// `Invalid`, with the correct values.
pub(crate) fn check_health_times(interval: Duration, timeout: Duration) -> Result<()> {
    let problem = match interval {
        Duration::ZERO => "must not be zero".to_owned(),
        _ if interval > timeout / 2 => format!(
            "is {interval:?}, but must be at most half of health_timeout ({timeout:?}): lower it, or raise the timeout"
        ),
        _ => return Ok(()),
    };
    Err(Error::Invalid { field: "health_interval", problem })
}

/// A unique id, and the time when it was made.
pub(crate) fn new_id(store: &Store) -> (String, i64) {
    let runtime = store.runtime();
    // The time comes first, so that ids sort by age. The random half makes a collision practically impossible.
    let now_us = runtime.now_us();
    (format!("{now_us:016x}-{:016x}", runtime.random()), now_us)
}

/// The membership row of a worker in this process.
pub(crate) fn row(id: &str, started_us: i64, options: &Options) -> workers::Worker {
    workers::Worker {
        bounds: options.tunables.bounds,
        health_timeout_us: duration_us(options.health_timeout),
        node_options: options.node_options.clone(),
        ..workers::Worker::new(id, &options.node, started_us, options.tunables.max_jobs)
    }
}

/// Registers under a new id.
pub(crate) async fn join(
    store: &Store,
    keys: &Keyspace,
    job_type: &str,
    options: &Options,
) -> Result<String> {
    store
        .transact(|tx| async move {
            // Each attempt uses a new id: an earlier attempt with an unknown outcome may have registered a worker that
            // has since been removed as dead.
            let (id, started_us) = new_id(store);
            let mode = modes::of_node(&tx, keys, &options.node).await?;
            let row = workers::Worker { mode, ..row(&id, started_us, options) };
            workers::register(&tx, keys, job_type, &row)?;
            Ok(id)
        })
        .await
}

/// A worker that is removed.
#[derive(Clone, Copy)]
pub(crate) struct Leaving<'a> {
    pub store: &'a Store,
    pub keys: &'a Keyspace,
    pub job_type: &'a str,
    pub worker: &'a str,
    /// The number of history entries that its jobs keep.
    pub max_history: usize,
    /// Where the spans of its runs go.
    pub spans: &'a Spans,
}

impl Leaving<'_> {
    /// Removes it, in as many transactions as necessary, and passes the runs that this ends, with the time, to `report`. If `seen` is
    /// given, does so only as long as its health is that. Returns whether it has removed it.
    pub async fn remove(
        &self,
        why: Removal,
        seen: Option<Health>,
        report: impl Fn(&[RunSummary], i64),
    ) -> Result<bool> {
        let Leaving { store, keys, job_type, worker, max_history, spans } = *self;
        let outcome = match why {
            Removal::Left => RunOutcome::STOPPED,
            Removal::Lost => RunOutcome::lost(worker),
        };
        loop {
            let now_us = store.runtime().now_us();
            let removed = store
                .transact(|tx| async move {
                    if seen.is_some() && workers::health(&tx, keys, job_type, worker).await? != seen {
                        return Ok(None);
                    }
                    let context = Context::new(&tx, keys, job_type, now_us, max_history);
                    workers::remove_some(context, worker, why, REMOVE_BATCH).await.map(Some)
                })
                .await?;
            let Some(removed) = removed else { return Ok(false) };
            report(&removed.given_back, now_us);
            spans.given_back(job_type, worker, &removed.given_back, &outcome, now_us);
            if removed.done {
                return Ok(true);
            }
        }
    }

    /// Removes it because it was found dead, unless its counter has moved since then, or another watcher has removed it. Passes the runs
    /// that this ends to `charge`. If the removal fails, the next check of its watcher retries it.
    pub async fn remove_dead(&self, seen: Health, metrics: &Metrics, charge: impl Fn(&[RunSummary])) {
        let Leaving { job_type, worker, .. } = *self;
        tracing::warn!(worker, job_type, "misses its heartbeats: it is removed, and its jobs are taken away");
        let report = |runs: &[RunSummary], now_us: i64| {
            count_lost(metrics, job_type, runs, now_us);
            charge(runs);
        };
        match self.remove(Removal::Lost, Some(seen), report).await {
            Ok(true) => metrics.of(job_type).workers_lost.add(1),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(worker, job_type, %error, "cannot remove a dead worker: tries again later");
            }
        }
    }
}

/// Counts the runs that the removal of a lost worker has ended.
fn count_lost(metrics: &Metrics, job_type: &str, runs: &[RunSummary], now_us: i64) {
    for run in runs {
        let ran_us = now_us.saturating_sub(run.started_us);
        metrics.ended((job_type, run.task.as_deref()), RunResult::Crashed, CrashKind::Lost, ran_us);
    }
}

/// Removes every worker of earlier processes on an exclusive store: these processes must have ended. External workers
/// survive a restart and stay. Removals that have begun are completed, also those of external workers.
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
        for worker in &page {
            tracing::info!(%worker, job_type, "an earlier worker did not leave by itself: its jobs are taken away");
            let (metrics, max_history) = (&options.metrics, options.tunables.max_history);
            let leaving = Leaving { store, keys, job_type, worker, max_history, spans: &options.spans };
            leaving
                .remove(Removal::Lost, None, |runs, now_us| count_lost(metrics, job_type, runs, now_us))
                .await?;
            metrics.of(job_type).workers_lost.add(1);
        }
        if last.is_none() {
            return Ok(());
        }
        after = last;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use turnwise_store::{embedded, runtime};

    use super::*;

    #[tokio::test]
    async fn a_worker_whose_counter_moved_after_it_was_found_dead_is_not_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let options = embedded::Options { durable: false, ..embedded::Options::default() };
        let engine = embedded::Embedded::open_with(dir.path(), options).expect("a store");
        let store = Store::new(engine, Arc::new(runtime::System));
        let (keys, row) = (&Keyspace::default(), &workers::Worker::new("w", "n", 0, 1));
        let health = async || {
            let tx = store.begin().await.expect("a transaction");
            workers::health(&tx, keys, "t", "w").await.expect("a row")
        };
        store.transact(|tx| async move { workers::register(&tx, keys, "t", row) }).await.expect("registers");
        let seen = health().await.expect("a member");
        store.transact(|tx| async move { workers::ping(&tx, keys, "t", "w", 1).await }).await.expect("pings");
        let (metrics, spans) = (Metrics::default(), Spans::default());
        let leaving =
            Leaving { store: &store, keys, job_type: "t", worker: "w", max_history: 20, spans: &spans };
        leaving.remove_dead(seen, &metrics, |_| ()).await;
        let moved = health().await.expect("removed though it lives");
        assert_eq!(metrics.of("t").workers_lost.get(), 0);
        leaving.remove_dead(moved, &metrics, |_| ()).await;
        assert_eq!((health().await, metrics.of("t").workers_lost.get()), (None, 1));
    }
}
