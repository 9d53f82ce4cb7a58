//! What a job type implements: its handler.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Job, Keyspace, Parked};
use turnwise_store::Transaction;

use crate::locks::JobLocks;
use crate::run::Controls;
use crate::spans::RunSpans;

/// Runs the jobs of one type.
#[async_trait]
pub trait JobHandler: Send + Sync + 'static {
    /// Runs one job to its end, or until [`JobContext::stop`] is cancelled. The handler must then save its state and
    /// soon return [`Outcome::Stopped`]. After a grace period, the worker aborts it at its next `await`. Work that
    /// keeps its thread busy belongs in `tokio::task::spawn_blocking`: a handler that never reaches an `await` cannot
    /// be aborted, and its reports are written only when it ends. It counts as crashed after a second grace period, and its
    /// thread stays blocked.
    async fn run(&self, job: JobContext) -> Outcome;

    /// Writes the handler's own rows in the transaction that ends a run. `job` is the job after that end; `None` if it
    /// was removed. May run more than once, like every transaction.
    async fn ended(
        &self,
        _tx: &Transaction,
        _keys: &Keyspace,
        _job: Option<&Job>,
    ) -> turnwise_queue::Result<()> {
        Ok(())
    }
}

/// Makes a handler from a function, which is enough for most job types.
///
/// ```
/// use turnwise_worker::{JobContext, Outcome, handler_fn};
///
/// let handler = handler_fn(|job: JobContext| async move { Outcome::completed(&job.job.id) });
/// ```
pub fn handler_fn<F, Run>(run: F) -> impl JobHandler
where
    F: Fn(JobContext) -> Run + Send + Sync + 'static,
    Run: Future<Output = Outcome> + Send + 'static,
{
    HandlerFn(run)
}

struct HandlerFn<F>(F);

#[async_trait]
impl<F, Run> JobHandler for HandlerFn<F>
where
    F: Fn(JobContext) -> Run + Send + Sync + 'static,
    Run: Future<Output = Outcome> + Send + 'static,
{
    async fn run(&self, job: JobContext) -> Outcome {
        (self.0)(job).await
    }
}

/// One run of one job.
pub struct JobContext {
    /// The job as it was claimed.
    pub job: Job,
    /// Its options.
    pub options: Box<RawValue>,
    /// Cancelled when the run must end early: at a shutdown, a preemption or a timeout, or because a client cancelled
    /// the job.
    pub stop: CancellationToken,
    pub(crate) controls: Arc<Controls>,
    pub(crate) locks: JobLocks,
    pub(crate) spans: Option<RunSpans>,
}

/// Without the options: they may hold secrets.
impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobContext { job, stop, options: _, controls: _, locks: _, spans: _ } = self;
        f.debug_struct("JobContext").field("job", job).field("stop", stop).finish_non_exhaustive()
    }
}

impl JobContext {
    /// Reports whether the job is idle: it has nothing to do at present. An idle continuous job can be preempted before
    /// the next rotation, for a tenant with a deficit. Other jobs are not affected. Calls are cheap: make one at every
    /// change.
    pub fn idle(&self, idle: bool) {
        self.controls.idle.set(idle);
    }

    /// The spans below this run, if the job is traced.
    pub fn spans(&self) -> Option<&RunSpans> {
        self.spans.as_ref()
    }

    /// The `traceparent` (W3C Trace Context) for what the run calls, if the job is traced.
    pub fn traceparent(&self) -> Option<String> {
        self.spans.as_ref().map(|spans| spans.context().to_string())
    }

    /// Reports the job's progress. Calls are cheap: the worker writes the latest report at intervals, and at the end.
    /// At most [`turnwise_queue::MAX_INFO_BYTES`]; a larger report is dropped, with a warning in the log.
    pub fn report<T: Serialize>(&self, info: &T) {
        match serde_json::value::to_raw_value(info) {
            Ok(info) if info.get().len() <= turnwise_queue::MAX_INFO_BYTES => {
                self.controls.report.set(info);
            }
            Ok(info) => {
                tracing::warn!(job = %self.job.id, bytes = info.get().len(), "report dropped: too large");
            }
            Err(error) => tracing::warn!(job = %self.job.id, %error, "report dropped: not JSON"),
        }
    }
}

/// Whether a run is idle, as its handler reported. Notifies the worker's loop.
#[derive(Default)]
pub(crate) struct Idle {
    is_idle: AtomicBool,
    /// Notified when a run becomes idle; shared by all runs of a worker.
    became_idle: Arc<Notify>,
}

impl Idle {
    /// The idle state of a run, which notifies `became_idle` when the run becomes idle.
    pub fn of(became_idle: &Arc<Notify>) -> Self {
        Idle { is_idle: AtomicBool::new(false), became_idle: became_idle.clone() }
    }

    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Relaxed)
    }

    fn set(&self, idle: bool) {
        // A run that becomes busy wakes no loop.
        if !self.is_idle.swap(idle, Relaxed) && idle {
            self.became_idle.notify_one();
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// It completed, with this result.
    Completed(Box<RawValue>),
    /// It failed with a permanent error: not retried.
    Failed(String),
    /// It failed with an error that may pass: retried after a backoff.
    Crashed(String),
    /// It is too early: the job runs again after this long, and no attempt is counted.
    Snoozed(Duration),
    /// It stopped early, because the worker cancelled [`JobContext::stop`].
    Stopped,
    /// It has nothing to do until a watched source changes ([`turnwise_queue::parking`]).
    Parked {
        /// The watched source.
        at: Parked,
        /// The state that its source is compared with.
        token: String,
    },
}

impl Outcome {
    /// Completed, with a result that serializes to JSON; crashed if it does not.
    pub fn completed<T: Serialize>(result: &T) -> Self {
        match serde_json::value::to_raw_value(result) {
            Ok(result) => Outcome::Completed(result),
            Err(error) => Outcome::Crashed(format!("the result is not JSON: {error}")),
        }
    }
}
