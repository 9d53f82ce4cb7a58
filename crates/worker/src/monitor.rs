//! Monitors external workers. They have no access to the store and cannot monitor each other, so every server monitors
//! all of them, of every job type.
//!
//! The rule is that of [`crate::neighbours`]: a check counts as one interval, and no clock is compared with another
//! one. A server that has just started knows nothing, so it gives each worker a full timeout. If several servers
//! monitor a worker, the first one that finds it dead removes it.
//!
//! While no commit succeeds, no worker can ping. So the monitor removes none then, and each has a full timeout
//! afterwards.
//!
//! The neighbours of a worker inside a server check it. If all workers of a type die, no neighbour is left. So this
//! monitor removes such a worker when it has missed its heartbeats for twice its timeout.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::workers::RunSummary;
use turnwise_queue::{Health, Keyspace, Result, workers as rows};
use turnwise_store::{Condition as StoreCondition, Store};

use crate::membership::Leaving;
use crate::neighbours::{Condition, Observations};
use crate::service::until_stopped;
use crate::times::duration_us;
use crate::{External, Options};

/// The maximum number of workers, of any type, that one read returns.
const BATCH: usize = 1_000;

/// State that is kept from one check to the next.
#[derive(Default)]
struct MonitorState {
    types: BTreeMap<String, Observations>,
    /// The number of attempted commits by the last check.
    commits: u64,
}

/// Monitors the workers of all types.
#[derive(Clone)]
pub struct Monitor {
    /// The store that holds them.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// Charges the runs of the workers that are removed, and has the settings: a check follows each interval of heartbeats.
    pub external: External,
}

impl Monitor {
    /// Removes workers that miss their heartbeats, until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let mut state = MonitorState::default();
            loop {
                self.store.runtime().sleep(self.external.options.health_interval).await;
                if let Err(error) = self.check(&mut state).await {
                    tracing::error!(%error, "cannot check the workers: tries again soon");
                }
            }
        })
    }

    /// Checks all workers once, and removes the dead ones.
    async fn check(&self, state: &mut MonitorState) -> Result<()> {
        let keys = &self.keys;
        let Options { health_interval: interval, spans, metrics, .. } = &*self.external.options;
        let (interval, max_history) = (*interval, self.external.tunables().get().max_history);
        if self.no_worker_can_ping(state, interval) {
            state.types.clear();
            return Ok(());
        }
        let types = &mut state.types;
        let by_type = self.workers().await?;
        types.retain(|name, _| by_type.contains_key(name));
        for (job_type, workers) in by_type {
            let patient = workers.iter().map(|(worker, health)| {
                let patience = if health.external { 1 } else { 2 };
                let timeout_us = health.timeout_us.saturating_mul(patience);
                (worker.clone(), Health { timeout_us, ..*health })
            });
            let observations = types.entry(job_type.clone()).or_insert_with(|| Observations::new(interval));
            let checked = observations.check(patient.collect());
            for ((worker, health), (_, _, condition)) in workers.into_iter().zip(checked) {
                if condition == Condition::Dead {
                    let (job_type, worker) = (&job_type, &worker);
                    let dead = Leaving { store: &self.store, keys, job_type, worker, max_history, spans };
                    // A worker inside a process charges its own runs.
                    let charge = |runs: &[RunSummary]| {
                        if health.external {
                            self.external.given_back(job_type, worker, runs);
                        }
                    };
                    dead.remove_dead(health, metrics, charge).await;
                }
            }
        }
        self.external.maintain().await;
        Ok(())
    }

    /// Whether no commit has succeeded here for an interval, although some were tried. A store whose disk is full may
    /// still answer reads: no counter moves then, although the workers live.
    fn no_worker_can_ping(&self, state: &mut MonitorState, interval: Duration) -> bool {
        let commits = self.store.counters().commits;
        let tried = std::mem::replace(&mut state.commits, commits) != commits;
        let StoreCondition::Failing { since_us, .. } = self.store.condition() else { return false };
        tried && self.store.runtime().now_us().saturating_sub(since_us) >= duration_us(interval)
    }

    /// All current workers, by type. Reading all is affordable: each of them also writes a heartbeat once per interval.
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
