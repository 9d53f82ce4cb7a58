//! A worker's public interface: its settings, start and shutdown.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use turnwise_policy::backoff::{self, OnLost};
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::{Bounds, DEFAULT_MAX_HISTORY, Keyspace, NodeOptions, Result, Terms, clock};
use turnwise_store::{Runtime, Store};

use crate::incarnation::{ERROR_PAUSE, End, Incarnation};
use crate::locks::LockWake;
use crate::membership::{
    DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, check_health_times, join, remove_predecessors,
};
use crate::record::RunEnds;
use crate::run::Shared;
use crate::{FairRules, JobHandler, Live, Metrics, Passes, QueueRules, Spans};

/// A shutdown takes at most this much longer than the handlers' two grace periods. Another worker, or the next process,
/// recovers jobs that are still claimed then.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(3);

/// A worker's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of this node, as the API shows it.
    pub node: String,
    /// The maximum number of jobs that run at the same time.
    pub max_jobs: usize,
    /// See [`Tunables::bounds`].
    pub bounds: Option<Bounds>,
    /// The time between two heartbeats, at most half of the timeout.
    pub health_interval: Duration,
    /// How long the worker may miss its heartbeats before another worker removes it.
    pub health_timeout: Duration,
    /// The minimum time between two writes of a job's report.
    pub report_interval: Duration,
    /// The time that a handler has to stop before the worker aborts it.
    pub stop_grace: Duration,
    /// The number of history entries that a job keeps.
    pub max_history: usize,
    /// The backoff of crashed jobs.
    pub backoff: backoff::Rules,
    /// What happens to a job whose worker is lost.
    pub on_lost: OnLost,
    /// The timeouts of jobs that set none themselves.
    pub timeouts: Timeouts,
    /// How tenants share the slots, and whether jobs can be preempted.
    pub fair: FairRules,
    /// The order of jobs that lock.
    pub queue: Arc<QueueRules>,
    /// Whether no other process can use the store. Workers found in it at the start are then dead, unless they are
    /// external.
    pub exclusive: bool,
    /// The passes of this process, if several of its workers have the same job type. Without it, they contend for jobs like
    /// workers of different processes.
    pub passes: Option<Arc<Passes>>,
    /// Counts what the workers of this process do.
    pub metrics: Arc<Metrics>,
    /// What a node publishes about itself ([`join_nodes`](crate::join_nodes)); workers publish nothing.
    pub node_options: Option<NodeOptions>,
    /// Where the spans of traced jobs go.
    pub spans: Spans,
}

impl Options {
    /// The same options, with these settings.
    #[must_use]
    pub fn tuned(self, tunables: Tunables) -> Self {
        let Tunables { max_jobs, bounds, max_history, backoff, on_lost, timeouts, fair, queue } = tunables;
        Options { max_jobs, bounds, max_history, backoff, on_lost, timeouts, fair, queue, ..self }
    }
}

/// The settings that may change while a worker runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Tunables {
    /// The maximum number of jobs that run at the same time. If jobs of this type rotate, the next cycle after a
    /// reduction stops the excess. Otherwise no job is stopped, and none starts until enough have ended.
    pub max_jobs: usize,
    /// The bounds of `max_jobs`, if it follows the demand. A reduction then never stops a job, unless more jobs run than the
    /// upper bound.
    pub bounds: Option<Bounds>,
    /// The number of history entries that a job keeps, from its next entry on.
    pub max_history: usize,
    /// The backoff of crashed jobs, from their next start on.
    pub backoff: backoff::Rules,
    /// What happens to a job whose worker is lost, from the job's next start on.
    pub on_lost: OnLost,
    /// The timeouts of jobs that set none themselves, from their next start on.
    pub timeouts: Timeouts,
    /// How tenants share the slots, from the next cycle on at the latest.
    pub fair: FairRules,
    /// The order of jobs that lock, from the next pass on.
    pub queue: Arc<QueueRules>,
}

impl Tunables {
    /// How many of `running` jobs may continue; at least as many as there are slots.
    pub(crate) fn may_continue(&self, running: usize) -> usize {
        self.bounds.map_or(self.max_jobs, |bounds| running.min(bounds.most).max(self.max_jobs))
    }

    /// The terms of a run that starts now.
    pub(crate) fn terms(&self) -> Terms {
        let Tunables { backoff, on_lost, timeouts, .. } = *self;
        Terms { backoff, on_lost, timeouts }
    }
}

impl Options {
    fn tunables(&self) -> Tunables {
        Tunables {
            max_jobs: self.max_jobs,
            bounds: self.bounds,
            max_history: self.max_history,
            backoff: self.backoff,
            on_lost: self.on_lost,
            timeouts: self.timeouts,
            fair: self.fair.clone(),
            queue: self.queue.clone(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            node: "turnwise@127.0.0.1".to_owned(),
            max_jobs: 500,
            bounds: None,
            health_interval: DEFAULT_HEALTH_INTERVAL,
            health_timeout: DEFAULT_HEALTH_TIMEOUT,
            report_interval: Duration::from_secs(2),
            stop_grace: Duration::from_secs(5),
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
            on_lost: OnLost::default(),
            timeouts: Timeouts::default(),
            fair: FairRules::default(),
            queue: Arc::default(),
            exclusive: false,
            passes: None,
            metrics: Arc::default(),
            node_options: None,
            spans: Spans::default(),
        }
    }
}

/// A running worker. Dropping it ends it and its runs immediately, like a crash; [`Worker::shutdown`] stops it cleanly.
pub struct Worker {
    stop: CancellationToken,
    task: JoinHandle<()>,
    runtime: Arc<dyn Runtime>,
    tunables: Live<Tunables>,
    /// The maximum duration of a shutdown.
    patience: Duration,
}

impl Worker {
    /// Registers and starts to work. If the store is exclusive, first gives back the jobs of dead predecessors.
    ///
    /// # Errors
    /// `Invalid` for a health interval that is too long for its timeout.
    pub fn start<'a>(
        store: Store,
        keys: Keyspace,
        job_type: &'a str,
        handler: Arc<dyn JobHandler>,
        options: Options,
    ) -> BoxFuture<'a, Result<Worker>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            check_health_times(options.health_interval, options.health_timeout)?;
            clock::compare(&store, &keys).await?;
            if options.exclusive {
                remove_predecessors(&store, &keys, job_type, &options).await?;
            }
            let id = join(&store, &keys, job_type, &options).await?;
            Ok(Worker::registered(store, keys, job_type, handler, options, id))
        })
    }

    /// Starts a worker under an id that is already registered.
    pub(crate) fn registered(
        store: Store,
        keys: Keyspace,
        job_type: &str,
        handler: Arc<dyn JobHandler>,
        options: Options,
        id: String,
    ) -> Worker {
        let job_type = job_type.to_owned();
        let recorder = RunEnds::default();
        let tunables = Live::from(options.tunables());
        let lock_wake = LockWake::new(store.clone(), keys.clone());
        let shared = Arc::new(Shared {
            store,
            keys,
            job_type,
            handler,
            options,
            tunables: tunables.clone(),
            recorder,
            lock_wake,
        });
        let stop = CancellationToken::new();
        let runtime = shared.store.runtime().clone();
        let patience = shared.options.stop_grace.saturating_mul(2).saturating_add(SHUTDOWN_MARGIN);
        let task = tokio::spawn(incarnations(shared, id, stop.clone()));
        Worker { stop, task, runtime, tunables, patience }
    }

    /// The settings that may change while it runs.
    pub fn tunables(&self) -> &Live<Tunables> {
        &self.tunables
    }

    /// Stops every job, gives all of them back, and removes the worker's rows. Returns when that is done, or after two
    /// grace periods and 3 s even if a handler or the store hangs.
    pub async fn shutdown(mut self) {
        let deadline = self.runtime.sleep(self.patience);
        self.stop.cancel();
        tokio::select! {
            biased;
            ended = &mut self.task => if let Err(error) = ended {
                tracing::error!(%error, "the worker's loop ended badly");
            },
            () = deadline => {
                tracing::error!("the worker could not leave in time: its jobs are recovered once it is found dead");
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs one incarnation after the other: a worker that was removed registers again under a new id.
async fn incarnations(shared: Arc<Shared>, mut id: String, stop: CancellationToken) {
    loop {
        let mut incarnation = Incarnation::new(shared.clone(), id);
        let span = tracing::error_span!("worker", worker = %incarnation.id, job_type = shared.job_type);
        match incarnation.work(&stop).instrument(span).await {
            End::Stopped => return incarnation.leave().await,
            End::Removed => {
                tracing::warn!(worker = %incarnation.id, "removed from the membership: starts over under a new id");
                incarnation.halt().await;
            }
        }
        id = loop {
            match shared.join().await {
                Ok(id) => break id,
                Err(error) => tracing::error!(%error, "cannot register"),
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = shared.store.runtime().sleep(ERROR_PAUSE) => {}
            }
        };
    }
}
