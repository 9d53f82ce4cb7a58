//! Watches external workers. They do not see the store and cannot watch each other, so every server watches all
//! of them, of every job type.
//!
//! The rule is that of [`crate::neighbours`]: a look is worth one interval, and no clock is compared with another
//! one. A server that has just started knows nothing, so it gives everyone a full timeout. Where several servers
//! watch the same worker, the first to find it dead removes it.
//!
//! While no commit succeeds nobody can show that it lives, so that nobody is judged, and everyone has a full timeout after it.
//!
//! Workers in a process are their neighbours' business. But all of a type may be gone, its last one without a
//! neighbour: whoever has been silent for twice its timeout, and was removed by nobody, is removed here.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_queue::workers::GivenBack;
use turnwise_queue::{DEFAULT_MAX_HISTORY, Health, Keyspace, Result, workers as rows};
use turnwise_store::{Condition as StoreCondition, Store};

use crate::membership::{DEFAULT_HEALTH_INTERVAL, duration_us, remove_dead_and};
use crate::neighbours::{Condition, Observations};
use crate::{External, Live};

/// Workers, of whichever types, that one read takes at most.
const BATCH: usize = 1_000;

/// Settings of the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MonitorOptions {
    /// Between two looks; at most half of any worker's timeout.
    pub interval: Duration,
    /// History entries that a job keeps.
    pub max_history: usize,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        MonitorOptions { interval: DEFAULT_HEALTH_INTERVAL, max_history: DEFAULT_MAX_HISTORY }
    }
}

/// What is remembered from one look to the next.
#[derive(Default)]
struct Seen {
    types: BTreeMap<String, Observations>,
    /// Commits that had been tried.
    commits: u64,
}

/// Watches the workers of all types.
#[derive(Clone)]
pub struct Monitor {
    /// Where they are.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// Settings.
    pub options: Live<MonitorOptions>,
    /// Charges what the jobs of those that it removes have run.
    pub external: External,
}

impl Monitor {
    /// Removes whoever shows no sign of life, until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        let runtime = self.store.runtime().clone();
        let mut seen = Seen::default();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = runtime.sleep(self.options.get().interval) => {}
            }
            let removed = async {
                if let Err(error) = self.look(&mut seen).await {
                    tracing::error!(%error, "cannot look after the workers: looks again soon");
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = removed => {}
            }
        }
    }

    /// One look at all of them, and the removal of the dead.
    async fn look(&self, seen: &mut Seen) -> Result<()> {
        let keys = &self.keys;
        let MonitorOptions { interval, max_history } = self.options.get();
        if self.nobody_can_ping(seen, interval) {
            seen.types.clear();
            return Ok(());
        }
        let types = &mut seen.types;
        let by_type = self.workers().await?;
        types.retain(|name, _| by_type.contains_key(name));
        for (job_type, workers) in by_type {
            let patient = workers.iter().map(|(worker, health)| {
                let patience = if health.external { 1 } else { 2 };
                let timeout_us = health.timeout_us.saturating_mul(patience);
                (worker.clone(), Health { timeout_us, ..*health })
            });
            let observations = types.entry(job_type.clone()).or_insert_with(|| Observations::new(interval));
            let looks = observations.look(patient.collect());
            for ((worker, health), (_, _, condition)) in workers.into_iter().zip(looks) {
                if condition == Condition::Dead {
                    // A worker in a process charges what it runs by itself.
                    let charge = |runs: &[GivenBack]| {
                        if health.external {
                            self.external.given_back(&job_type, &worker, runs);
                        }
                    };
                    remove_dead_and(&self.store, keys, &job_type, &worker, health, max_history, charge).await;
                }
            }
        }
        self.external.tend().await;
        Ok(())
    }

    /// Whether no commit has succeeded here for an interval, though some were tried. A store may be full, and answer reads
    /// nevertheless: then everyone stands still, and nobody is dead.
    fn nobody_can_ping(&self, seen: &mut Seen, interval: Duration) -> bool {
        let commits = self.store.counters().commits;
        let tried = std::mem::replace(&mut seen.commits, commits) != commits;
        let StoreCondition::Failing { since_us, .. } = self.store.condition() else { return false };
        tried && self.store.runtime().now_us().saturating_sub(since_us) >= duration_us(interval)
    }

    /// All workers there are, by type: as many as ping all the time.
    async fn workers(&self) -> Result<BTreeMap<String, Vec<(String, Health)>>> {
        let mut workers: BTreeMap<String, Vec<(String, Health)>> = BTreeMap::new();
        let mut last: Option<(String, String)> = None;
        loop {
            let (keys, after) = (&self.keys, last.as_ref());
            let after = after.map(|(job_type, worker)| (job_type.as_str(), worker.as_str()));
            let page = self
                .store
                .transact(|tx| async move { rows::all_healths(&tx, keys, after, BATCH).await })
                .await?;
            let is_last = page.len() < BATCH;
            last = page.last().map(|(job_type, worker, _)| (job_type.clone(), worker.clone()));
            for (job_type, worker, health) in page {
                workers.entry(job_type).or_default().push((worker, health));
            }
            if is_last {
                return Ok(workers);
            }
        }
    }
}
