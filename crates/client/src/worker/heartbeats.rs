//! Heartbeats, from a thread with a runtime and connections of its own.
//!
//! Handlers that keep the threads of the worker's runtime busy delay no heartbeat. If they do so for longer than the server's health timeout, the
//! worker cannot report their ends either: heartbeats then stop, and the server gives the jobs to other workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use turnwise_protocol::Pinged;

use super::shared::Shared;
use crate::{Client, Error, Result};

/// How often the runtime shows at least that it does not hang.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

/// The heartbeats of a worker, which end when this is dropped.
pub(super) struct Heartbeats {
    _thread: DropGuard,
    _watch: AbortOnDropHandle<()>,
}

/// When the worker's runtime was last seen to run tasks.
struct Runtime {
    begun: Instant,
    seen_ms: AtomicU64,
    /// How long it may hang.
    patience: Duration,
}

impl Runtime {
    fn saw(&self) {
        self.seen_ms.store(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    fn hangs(&self) -> bool {
        let seen = self.begun + Duration::from_millis(self.seen_ms.load(Relaxed));
        seen.elapsed() > self.patience
    }
}

impl Heartbeats {
    /// Begins to send heartbeats at this interval.
    pub fn start(shared: &Arc<Shared>, interval: Duration, health_timeout: Duration) -> Result<Heartbeats> {
        let runtime = Runtime { begun: Instant::now(), seen_ms: AtomicU64::new(0), patience: health_timeout };
        let runtime = Arc::new(runtime);
        let (client, over) = (shared.client.with_own_connections()?, CancellationToken::new());
        let pinging = ping(shared.clone(), client, interval, runtime.clone());
        let (ended, thread) = (over.clone(), std::thread::Builder::new().name("turnwise-heartbeats".into()));
        let own = tokio::runtime::Builder::new_current_thread().enable_all().build();
        own.and_then(|own| thread.spawn(move || own.block_on(ended.run_until_cancelled(pinging))))
            .map_err(|error| Error::Invalid(format!("no thread for heartbeats: {error}")))?;
        let pause = SHOWN_EVERY.min(interval / 2);
        let watch = tokio::spawn(async move {
            loop {
                runtime.saw();
                tokio::time::sleep(pause).await;
            }
        });
        Ok(Heartbeats { _thread: over.drop_guard(), _watch: AbortOnDropHandle::new(watch) })
    }
}

/// Sends pings, and stops the runs that the answers name.
async fn ping(shared: Arc<Shared>, client: Client, interval: Duration, runtime: Arc<Runtime>) {
    let mut request = shared.request(&["ping"]);
    // A slower ping is useless: the next one is due.
    request.timeout = interval.max(Duration::from_secs(1));
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut backoff = client.backoff();
    let mut hung = false;
    loop {
        ticks.tick().await;
        let hangs = runtime.hangs();
        if hangs && !hung {
            tracing::error!("handlers block the runtime: no heartbeats, so that other workers get the jobs");
        }
        hung = hangs;
        if hangs {
            continue;
        }
        match client.once::<Pinged>(&request).await {
            Ok(Pinged { cancel, mode }) => {
                shared.follow(mode);
                backoff = client.backoff();
                let runs = shared.runs();
                for stop in cancel.iter().filter_map(|claim| runs.get(claim)) {
                    stop.cancel();
                }
            }
            Err(error) if error.is_expired() => return shared.expired.cancel(),
            Err(error) => {
                tracing::debug!("a ping was not answered: {error}");
                // Sooner than the next ping is due, because the server may have just restarted.
                ticks.reset_after(backoff.next().min(interval));
            }
        }
    }
}
