//! The worker's loop.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::future::{Either, pending};
use tokio::task::{self, JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use turnwise_policy::backoff;
use turnwise_queue::{DEFAULT_MAX_HISTORY, Error, Keyspace, Result, jobs, workers};
use turnwise_store::{Isolation, Store, Watch};

use crate::JobHandler;
use crate::cycle::{Pass, pass};
use crate::membership::{join, remove, remove_predecessors};
use crate::run::{Controls, Ended, Shared, run};

/// The pause after a transaction that failed for good, before the loop goes on.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// Beyond the handlers' grace period a shutdown takes at most this long; what is left then is found by the
/// next process.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(3);

/// A worker's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of this node, as the API shows it.
    pub node: String,
    /// Jobs that run at the same time at most.
    pub max_jobs: usize,
    /// Between two moves of the health counter.
    pub health_interval: Duration,
    /// Between two writes of a job's report, at least.
    pub report_interval: Duration,
    /// What a handler that was asked to stop has before it is aborted.
    pub stop_grace: Duration,
    /// History entries that a job keeps.
    pub max_history: usize,
    /// How long crashed jobs wait.
    pub backoff: backoff::Rules,
    /// No other process can use the store: workers found in it at the start are dead.
    pub exclusive: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            node: "turnwise@127.0.0.1".to_owned(),
            max_jobs: 500,
            health_interval: Duration::from_secs(5),
            report_interval: Duration::from_secs(2),
            stop_grace: Duration::from_secs(5),
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
            exclusive: false,
        }
    }
}

/// A running worker. Dropping it ends it and its runs at once, like a crash; [`Worker::shutdown`] stops it cleanly.
pub struct Worker {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Worker {
    /// Registers, settles what dead predecessors left if the store is exclusive, and starts to work.
    pub async fn start(
        store: Store,
        keys: Keyspace,
        job_type: &str,
        handler: Arc<dyn JobHandler>,
        options: Options,
    ) -> Result<Worker> {
        if options.exclusive {
            remove_predecessors(&store, &keys, job_type, &options).await?;
        }
        let shared = Arc::new(Shared { store, keys, job_type: job_type.to_owned(), handler, options });
        let id = join(&shared.store, &shared.keys, job_type, &shared.options).await?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(incarnations(shared, id, stop.clone()));
        Ok(Worker { stop, task })
    }

    /// Stops every job, gives all of them back, and leaves: no row stays behind. Returns when that is done.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the worker's loop ended badly");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One incarnation after the other: a worker that finds itself removed starts over under a new id.
async fn incarnations(shared: Arc<Shared>, mut id: String, stop: CancellationToken) {
    loop {
        let mut incarnation = Incarnation::new(shared.clone(), id);
        match incarnation.work(&stop).await {
            End::Stopped => return incarnation.leave().await,
            End::Removed => {
                tracing::warn!(worker = %incarnation.id, "removed from the membership: starts over under a new id");
                incarnation.halt().await;
            }
        }
        id = loop {
            match join(&shared.store, &shared.keys, &shared.job_type, &shared.options).await {
                Ok(id) => break id,
                Err(error) => tracing::error!(%error, "cannot register"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = shared.store.runtime().sleep(ERROR_PAUSE) => {}
            }
        };
    }
}

/// Why an incarnation ends.
enum End {
    /// It was asked to.
    Stopped,
    /// Others removed it.
    Removed,
}

struct Incarnation {
    shared: Arc<Shared>,
    id: String,
    next_claim: AtomicU64,
    /// The runs, as tasks that are aborted when this is dropped.
    runs: JoinSet<Ended>,
    /// By run, not by job: a job may be claimed again before the end of its last run has been heard of.
    running: HashMap<task::Id, Running>,
}

struct Running {
    claim: u64,
    controls: Controls,
}

/// How the task of a run ended.
type RunEnded = std::result::Result<(task::Id, Ended), JoinError>;

/// A sleep that ends on the runtime's clock.
type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Incarnation {
    fn new(shared: Arc<Shared>, id: String) -> Self {
        let next_claim = AtomicU64::new(1);
        Incarnation { shared, id, next_claim, runs: JoinSet::new(), running: HashMap::new() }
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let runtime = self.shared.store.runtime().clone();
        Box::pin(async move { runtime.sleep(duration).await })
    }

    /// Works until it is stopped or removed.
    async fn work(&mut self, stop: &CancellationToken) -> End {
        let mut health = self.sleep(self.shared.options.health_interval);
        let mut signal = self.watch_signal().await;
        // Look at once: there may be work from before.
        let mut look = true;
        let mut wake: Option<Watch> = None;
        let mut due: Option<Sleep> = None;
        loop {
            if stop.is_cancelled() {
                return End::Stopped;
            }
            if look && self.running.len() < self.shared.options.max_jobs {
                match self.fill_slots().await {
                    Ok(pass) => {
                        look = pass.more;
                        due = pass.next_due_us.map(|at_us| self.sleep(self.until(at_us)));
                        wake = self.watch_wake(&pass).await;
                    }
                    Err(Error::Halt) => return End::Removed,
                    Err(error) => {
                        tracing::error!(%error, "a scheduling pass failed");
                        (look, wake) = (false, None);
                        due = Some(self.sleep(ERROR_PAUSE));
                    }
                }
                if look {
                    continue;
                }
            }
            let full = self.running.len() >= self.shared.options.max_jobs;
            tokio::select! {
                biased;
                () = stop.cancelled() => return End::Stopped,
                Some(ended) = self.runs.join_next_with_id() => {
                    if self.forget(ended) && !self.ping().await {
                        return End::Removed;
                    }
                    look = true;
                }
                () = &mut health => {
                    if !self.ping().await {
                        return End::Removed;
                    }
                    health = self.sleep(self.shared.options.health_interval);
                }
                () = or_never(&mut signal) => {
                    // Watched again before looking, so that nothing falls in between.
                    signal = self.watch_signal().await;
                    if let Err(error) = self.stop_cancelled().await {
                        tracing::error!(%error, "cannot read which jobs shall stop: looks again soon");
                        signal = Some(self.sleep(ERROR_PAUSE));
                    }
                }
                () = or_never(&mut wake), if !full => { wake = None; look = true; }
                () = or_never(&mut due), if !full => { due = None; look = true; }
            }
        }
    }

    fn until(&self, at_us: i64) -> Duration {
        let wait_us = at_us.saturating_sub(self.shared.store.runtime().now_us());
        Duration::from_micros(u64::try_from(wait_us).unwrap_or(0))
    }

    /// One pass, and a task for every job that it claimed.
    async fn fill_slots(&mut self) -> Result<Pass> {
        let shared = self.shared.clone();
        let running = self.running.len();
        let (keys, job_type) = (&shared.keys, &shared.job_type);
        let next_claim = &self.next_claim;
        let mut pass =
            pass(&shared.store, keys, job_type, &self.id, running, next_claim, &shared.options).await?;
        for (job, options) in pass.claimed.drain(..) {
            let claim = job.claim.as_ref().expect("a claimed job has a claim").number;
            let controls = Controls::default();
            let task = self.runs.spawn(run(shared.clone(), job, options, controls.clone()));
            self.running.insert(task.id(), Running { claim, controls });
        }
        Ok(pass)
    }

    /// Frees the slot of a run that has ended, and of all others that have. Whether any of them was halted.
    fn forget(&mut self, ended: RunEnded) -> bool {
        let mut halted = false;
        let mut next = Some(ended);
        while let Some(ended) = next {
            let id = match ended {
                Ok((id, ended)) => {
                    halted |= ended == Ended::Halted;
                    id
                }
                Err(error) => {
                    tracing::error!(%error, "a run ended badly: its job is recovered by the next start");
                    error.id()
                }
            };
            self.running.remove(&id);
            next = self.runs.try_join_next_with_id();
        }
        halted
    }

    async fn watch_wake(&self, pass: &Pass) -> Option<Watch> {
        let key = self.shared.keys.wake(&self.shared.job_type);
        self.watch(key, pass.wake_seen.clone()).await
    }

    async fn watch_signal(&self) -> Option<Watch> {
        let key = self.shared.keys.signal(&self.shared.job_type, &self.id);
        let seen = match self.shared.store.begin().await {
            Ok(tx) => tx.get_with(&key, Isolation::Snapshot).await.unwrap_or_default(),
            Err(_) => None,
        };
        self.watch(key, seen).await
    }

    async fn watch(&self, key: bytes::Bytes, seen: Option<bytes::Bytes>) -> Option<Watch> {
        match self.shared.store.watch(key, seen).await {
            Ok(watch) => Some(watch),
            Err(error) => {
                // Without a watch the worker looks again after a pause instead.
                tracing::error!(%error, "cannot watch the store");
                Some(self.sleep(ERROR_PAUSE))
            }
        }
    }

    /// Stops those of its jobs whose users want them to.
    async fn stop_cancelled(&self) -> Result<()> {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let cancelled = self
            .shared
            .store
            .transact(|tx| async move { jobs::cancel_requests(&tx, keys, job_type, &self.id).await })
            .await?;
        for run in self.running.values().filter(|run| cancelled.contains(&run.claim)) {
            run.controls.stop.cancel();
        }
        Ok(())
    }

    /// Whether it could show that it lives; an error that may pass counts as such.
    async fn ping(&self) -> bool {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let pinged = self
            .shared
            .store
            .transact(|tx| async move { workers::ping(&tx, keys, job_type, &self.id).await });
        match pinged.await {
            Ok(()) => true,
            Err(Error::Halt) => false,
            Err(error) => {
                tracing::error!(%error, "cannot write the health counter");
                true
            }
        }
    }

    /// A clean shutdown: every job is given back, every row cleared.
    async fn leave(&mut self) {
        for run in self.running.values() {
            run.controls.stop.cancel();
        }
        let mut deadline = self.sleep(self.shared.options.stop_grace + SHUTDOWN_MARGIN);
        while !self.running.is_empty() {
            tokio::select! {
                Some(ended) = self.runs.join_next_with_id() => { self.forget(ended); }
                () = &mut deadline => {
                    tracing::error!(jobs = self.running.len(), "some jobs did not stop: the next start recovers them");
                    return;
                }
            }
        }
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        if let Err(error) =
            remove(&self.shared.store, keys, job_type, &self.id, self.shared.options.max_history).await
        {
            tracing::error!(%error, "cannot leave the membership");
        }
    }

    /// Its claims are gone: aborts everything and waits until it is still.
    async fn halt(&mut self) {
        for run in self.running.values() {
            run.controls.halt.cancel();
        }
        while let Some(ended) = self.runs.join_next_with_id().await {
            self.forget(ended);
        }
    }
}

/// Waits for a future that may not be there.
fn or_never<F: Future<Output = ()> + Unpin>(future: &mut Option<F>) -> impl Future<Output = ()> + '_ {
    match future {
        Some(future) => Either::Left(future),
        None => Either::Right(pending()),
    }
}
