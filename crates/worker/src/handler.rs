//! What a job type must bring: its handler.

use std::fmt;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Job, Keyspace};
use turnwise_store::Transaction;

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
}

/// Without the options: they may hold secrets.
impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobContext { job, stop, options: _, progress: _ } = self;
        f.debug_struct("JobContext").field("job", job).field("stop", stop).finish_non_exhaustive()
    }
}

impl JobContext {
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
