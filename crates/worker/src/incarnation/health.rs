//! This worker's heartbeats, and the check of its neighbours' heartbeats ([`crate::neighbours`]).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinSet;
use turnwise_policy::contention::MAX_CONTENDERS;
use turnwise_queue::{Error, workers};

use super::Incarnation;
use crate::event::Event;
use crate::neighbours::{Observations, WIDE_WINDOW, WINDOW, in_process, mine};
use crate::run::Shared;

/// When the next heartbeat is due, and the observations of the neighbours.
pub(super) struct Health {
    pub due: Event,
    neighbours: Observations,
    /// Tasks that give back the jobs of dead neighbours. Each returns the neighbours that it has processed.
    removals: JoinSet<Vec<String>>,
    /// The neighbours that these tasks process.
    being_removed: BTreeSet<String>,
}

impl Health {
    pub fn new(interval: Duration) -> Health {
        Health {
            due: Event::default(),
            neighbours: Observations::new(interval),
            removals: JoinSet::new(),
            being_removed: BTreeSet::new(),
        }
    }
}

impl Incarnation {
    pub(super) fn schedule_ping(&mut self) {
        self.health.due = self.after(self.shared.options.health_interval);
    }

    /// Writes a heartbeat. Returns false if the worker is not a member any more. Another error counts as success: the
    /// next heartbeat retries.
    pub(super) async fn ping(&mut self) -> bool {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let (id, now_us) = (&self.id, self.now_us());
        let pinged = self
            .shared
            .store
            .transact(|tx| async move { workers::ping(&tx, keys, job_type, id, now_us).await });
        match pinged.await {
            Ok(mode) => {
                self.learn_mode(mode);
                true
            }
            Err(Error::Halt) => false,
            Err(error) => {
                tracing::error!(%error, "cannot write the health counter");
                true
            }
        }
    }

    /// Writes a heartbeat and checks the neighbours, in one transaction. Removes the dead ones, after giving back their
    /// jobs. Returns whether this worker is still a member.
    pub(super) async fn ping_and_check_neighbours(&mut self) -> bool {
        let shared = self.shared.clone();
        let Shared { store, keys, job_type, .. } = &*shared;
        let (id, neighbours, now_us) = (&self.id, &self.health.neighbours, store.runtime().now_us());
        let ring = store
            .transact(|tx| async move {
                let mode = workers::ping(&tx, keys, job_type, id, now_us).await?;
                let contenders = workers::contenders(&tx, keys, job_type, MAX_CONTENDERS).await?;
                let ring = workers::neighbours(&tx, keys, job_type, id, WINDOW).await?;
                let full = ring.len() == WINDOW;
                let ring = in_process(ring);
                if full && neighbours.none_moved(&ring) {
                    let wide = workers::neighbours(&tx, keys, job_type, id, WIDE_WINDOW).await?;
                    return Ok((in_process(wide), contenders, mode));
                }
                Ok((ring, contenders, mode))
            })
            .await;
        let ring = match ring {
            Ok((ring, contenders, mode)) => {
                self.learn_contenders(contenders);
                self.learn_mode(mode);
                ring
            }
            Err(Error::Halt) => return false,
            Err(error) => {
                tracing::error!(%error, "cannot write the health counter");
                return true;
            }
        };
        let mut dead = mine(self.health.neighbours.check(ring));
        let done = std::iter::from_fn(|| self.health.removals.try_join_next());
        for worker in done.filter_map(std::result::Result::ok).flatten() {
            // If it could not be removed, the next check finds it again.
            self.health.being_removed.remove(&worker);
        }
        dead.retain(|(worker, _)| self.health.being_removed.insert(worker.clone()));
        if !dead.is_empty() {
            let shared = shared.clone();
            self.health.removals.spawn(async move {
                for (worker, health) in &dead {
                    shared.leaving(worker).remove_dead(*health, &shared.options.metrics, |_| ()).await;
                }
                dead.into_iter().map(|(worker, _)| worker).collect()
            });
        }
        true
    }
}
