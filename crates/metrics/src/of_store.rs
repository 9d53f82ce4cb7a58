//! What the metrics say about the store as a whole: workers, slots, and the standing of tenants. Every node says the same.
//!
//! This reads many rows, so it happens in the background, and a request for the metrics gets the latest result. It happens
//! only while clients ask for metrics, and takes at most a twentieth of the time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use turnwise_explain::types::OfType;
use turnwise_queue::nodes;
use turnwise_queue::schedules::{self, Tally};

use crate::Metrics;
use crate::groups::{GroupTally, Groups};

/// The pause between two collections.
const PAUSE: Duration = Duration::from_secs(5);
/// A pause is at least this many times as long as the collection before it.
const PAUSE_FACTOR: u32 = 20;
/// Nothing is collected if nobody has asked for this long.
const WANTED_FOR: Duration = Duration::from_secs(300);
/// How long a request waits for the first collection.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);

/// The result of a collection.
#[derive(Debug)]
pub struct StoreMetrics {
    pub taken: Instant,
    pub took: Duration,
    pub nodes: usize,
    pub types: Vec<OfType>,
    pub schedules: Tally,
    pub groups: GroupTally,
}

/// Collects while clients ask.
pub struct Collector {
    latest: watch::Sender<Option<Arc<StoreMetrics>>>,
    asked: Mutex<Option<Instant>>,
    wanted: Notify,
}

impl Default for Collector {
    fn default() -> Self {
        Collector { latest: watch::Sender::new(None), asked: Mutex::default(), wanted: Notify::new() }
    }
}

impl Collector {
    /// The latest result. `None` if there is none within two seconds.
    pub async fn latest(&self) -> Option<Arc<StoreMetrics>> {
        let before = self.asked().replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() >= WANTED_FOR) {
            // A result from before a long pause is no longer of use.
            self.latest.send_replace(None);
        }
        self.wanted.notify_one();
        let mut latest = self.latest.subscribe();
        let first = tokio::time::timeout(FIRST_PATIENCE, latest.wait_for(Option::is_some)).await;
        first.ok()?.ok()?.clone()
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_wanted(&self) -> bool {
        self.asked().is_some_and(|asked| asked.elapsed() < WANTED_FOR)
    }

    /// Collects until the server stops.
    pub async fn run(&self, metrics: &Metrics, stop: CancellationToken) {
        let mut groups = Groups::default();
        loop {
            let begun = Instant::now();
            if self.is_wanted() {
                match collect(metrics, &mut groups).await {
                    Ok(now) => drop(self.latest.send_replace(Some(Arc::new(now)))),
                    Err(error) => {
                        tracing::warn!(error, "cannot read the state of the store for the metrics");
                        self.latest.send_replace(None);
                    }
                }
                let pause = PAUSE.max(begun.elapsed().saturating_mul(PAUSE_FACTOR));
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
            } else {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.wanted.notified() => {}
                }
            }
        }
    }
}

async fn collect(metrics: &Metrics, groups: &mut Groups) -> Result<StoreMetrics, String> {
    let begun = Instant::now();
    let tx = metrics.web.store.begin().await.map_err(|error| error.to_string())?;
    let nodes = nodes::list(&tx, &metrics.web.keys).await.map_err(|error| error.to_string())?.len();
    drop(tx);
    let mut types = Vec::new();
    for job_type in metrics.web.types().await.map_err(|error| error.to_string())? {
        types.push(metrics.web.of_type(&job_type).await.map_err(|error| error.to_string())?);
    }
    let tx = metrics.web.store.begin().await.map_err(|error| error.to_string())?;
    let schedules = schedules::tally(&tx, &metrics.web.keys, metrics.web.now_us()).await;
    let schedules = schedules.map_err(|error| error.to_string())?;
    drop(tx);
    let groups = groups.look(&metrics.web.store, &metrics.web.keys, metrics.web.now_us()).await;
    let groups = groups.map_err(|error| error.to_string())?;
    Ok(StoreMetrics { taken: Instant::now(), took: begun.elapsed(), nodes, types, schedules, groups })
}
