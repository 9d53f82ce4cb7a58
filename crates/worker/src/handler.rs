//! What a job type must bring: its handler.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Job, Keyspace, Parked};
use turnwise_store::Transaction;

use crate::locks::JobLocks;

/// Runs the jobs of one type.
#[async_trait]
pub trait JobHandler: Send + Sync + 'static {
    /// Runs one job to its end, or until [`JobContext::stop`] is cancelled: then it saves what it has to save
    /// and returns [`Outcome::Stopped`] soon. Whoever does not is aborted after a grace period, at its next `await`.
    /// Work that keeps its thread busy belongs into `tokio::task::spawn_blocking`: what never reaches an `await`
    /// cannot be aborted, counts as crashed after a second grace period, and keeps its thread.
    async fn run(&self, job: JobContext) -> Outcome;

    /// Writes what belongs to the end of a run, in the very transaction that ends it. `job` is the job as it
    /// is after it; `None` if it was removed. May run more than once, like every transaction.
    async fn ended(
        &self,
        _tx: &Transaction,
        _keys: &Keyspace,
        _job: Option<&Job>,
    ) -> turnwise_queue::Result<()> {
        Ok(())
    }
}

/// A handler from a function: all that most job types need.
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
    /// Cancelled when the run shall end early: a shutdown, or its user cancelled the job.
    pub stop: CancellationToken,
    pub(crate) progress: watch::Sender<Option<Box<RawValue>>>,
    pub(crate) idle: Idle,
    pub(crate) locks: JobLocks,
}

/// Without the options: they may hold secrets.
impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobContext { job, stop, options: _, progress: _, idle: _, locks: _ } = self;
        f.debug_struct("JobContext").field("job", job).field("stop", stop).finish_non_exhaustive()
    }
}

impl JobContext {
    /// Says that there is nothing to do just now, or that there is again. A continuous job that says so gives its slot to
    /// one that is owed it before the next rotation; to others it makes no difference. Cheap: say it whenever it changes.
    pub fn idle(&self, idle: bool) {
        self.idle.say(idle);
    }

    /// Shows where the job stands. Cheap: the worker writes the latest report now and then, and at the end.
    /// At most [`turnwise_queue::MAX_INFO_BYTES`]; a larger one is dropped, with a warning in the log.
    pub fn report<T: Serialize>(&self, info: &T) {
        match serde_json::value::to_raw_value(info) {
            Ok(info) if info.get().len() <= turnwise_queue::MAX_INFO_BYTES => {
                self.progress.send_replace(Some(info));
            }
            Ok(info) => {
                tracing::warn!(job = %self.job.id, bytes = info.get().len(), "report dropped: too large");
            }
            Err(error) => tracing::warn!(job = %self.job.id, %error, "report dropped: not JSON"),
        }
    }
}

/// Whether a run has nothing to do, as its handler says, and news of it for the worker's loop.
#[derive(Clone, Default)]
pub(crate) struct Idle {
    is_idle: Arc<AtomicBool>,
    /// Shared by all runs of a worker.
    news: Arc<Notify>,
}

impl Idle {
    /// Of a run whose news go to `news`.
    pub fn of(news: &Arc<Notify>) -> Self {
        Idle { is_idle: Arc::default(), news: news.clone() }
    }

    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Relaxed)
    }

    fn say(&self, idle: bool) {
        // Who is busy again wakes nobody.
        if !self.is_idle.swap(idle, Relaxed) && idle {
            self.news.notify_one();
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// Well, with this result.
    Completed(Box<RawValue>),
    /// With an error that will not pass: not tried again.
    Failed(String),
    /// With an error that may pass: tried again after a backoff.
    Crashed(String),
    /// Early, because it was asked to.
    Stopped,
    /// Early, because there is nothing to do until there are news of something that others watch ([`turnwise_queue::parking`]).
    Parked {
        /// What wakes the job.
        at: Parked,
        /// What it was compared with.
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
