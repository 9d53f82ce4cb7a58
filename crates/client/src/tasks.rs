//! Tasks: what jobs do, with the types of their inputs and results.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::sync::CancellationToken;
use turnwise_protocol::{Added, AddedJob, Job, Missed, NewJob, Overlap, PutSchedule, State, TaskTerms, When};

use crate::client::{causes, place};
use crate::output::JSON;
use crate::worker::{put_schedule, work};
use crate::{AddJob, Client, Error, LockError, LogLines, Outcome, Result, Run, RunError, WorkerOptions};

/// The options of a job without any.
const NO_OPTIONS: &str = "{}";

/// A task of a type: its name, what its jobs get, and what they result in. Programs that add jobs and workers share it as a constant.
pub struct Task<I, O> {
    job_type: &'static str,
    name: &'static str,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Task<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Task<I, O> {}

impl<I, O> fmt::Debug for Task<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({}, {})", self.job_type, self.name)
    }
}

impl<I, O> Task<I, O> {
    /// The task with this name, of this type of jobs.
    pub const fn new(job_type: &'static str, name: &'static str) -> Self {
        Task { job_type, name, types: PhantomData }
    }

    /// The handle of a job of this task. This sends nothing.
    pub fn handle(&self, client: &Client, id: impl Into<String>) -> Handle<O> {
        let (job_type, id) = (self.job_type.to_owned(), id.into());
        Handle { client: client.clone(), job_type, id, added: None, result: PhantomData }
    }
}

impl<I: Serialize, O> Task<I, O> {
    /// A job of this task as a request states it, for [`Client::add_many`], a group or a schedule, with what `stated` says besides.
    ///
    /// # Errors
    /// The input is no JSON.
    pub fn job(&self, input: &I, stated: AddJob) -> Result<NewJob> {
        Ok(NewJob::new(self.job_type, self.stated(input, stated)?))
    }

    /// Adds a job with this input.
    ///
    /// # Errors
    /// The input is no JSON, the server refuses the job, or does not answer.
    pub async fn add(&self, client: &Client, input: &I) -> Result<Handle<O>> {
        self.add_with(client, input, AddJob::default()).await
    }

    /// Adds a job with this input, and with what `stated` says: its tenant, a delay, a unique key.
    ///
    /// # Errors
    /// As with [`Task::add`].
    pub async fn add_with(&self, client: &Client, input: &I, stated: AddJob) -> Result<Handle<O>> {
        let AddedJob { id, added, .. } = client.add(self.job_type, self.stated(input, stated)?).await?;
        Ok(Handle { added: Some(added), ..self.handle(client, id) })
    }

    fn stated(&self, input: &I, stated: AddJob) -> Result<AddJob> {
        let options = to_raw_value(input).map_err(|error| Error::Invalid(format!("not JSON: {error}")))?;
        // Of a task without an input, as other languages add its jobs.
        let options = Some(options).filter(|options| options.get() != "null");
        Ok(AddJob { options, task: Some(self.name.to_owned()), ..stated })
    }
}

/// A job of a task.
pub struct Handle<O> {
    client: Client,
    /// Its type.
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// What became of the request that added it, if this is the handle of one.
    pub added: Option<Added>,
    result: PhantomData<fn() -> O>,
}

impl<O> fmt::Debug for Handle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}, {})", self.job_type, self.id)
    }
}

impl<O> Handle<O> {
    /// The job as it is now.
    ///
    /// # Errors
    /// There is no such job (any more), or the server does not answer.
    pub async fn status(&self) -> Result<Job> {
        self.client.get(&self.job_type, &self.id).await
    }

    /// Cancels the job. Its state stays `running` until its worker has stopped it.
    ///
    /// # Errors
    /// As with [`Client::cancel`].
    pub async fn cancel(&self) -> Result<State> {
        self.client.cancel(&self.job_type, &self.id).await
    }

    /// Follows the job's log.
    ///
    /// # Errors
    /// As with [`Client::follow_log`].
    pub fn logs(&self) -> Result<LogLines> {
        self.client.follow_log(&self.job_type, &self.id, 0)
    }
}

impl<O: DeserializeOwned> Handle<O> {
    /// Waits for the job's result, however long that takes. The caller may drop the future, and call again.
    ///
    /// # Errors
    /// [`Error::JobFailed`]: it has failed, or was cancelled. Otherwise: there is no such job, its result is of another type, or the server does not
    /// answer.
    pub async fn result(&self) -> Result<O> {
        let job = self.client.wait(&self.job_type, &self.id, None).await?.job;
        if job.state != State::Completed {
            return Err(Error::JobFailed(Box::new(job)));
        }
        let of_another_type = |problem: String| {
            Error::Invalid(format!(
                "the result of {}/{} is of another type: {problem}",
                self.job_type, self.id
            ))
        };
        let json = match (&job.result, job.result_bytes) {
            (Some(small), _) => small.get().as_bytes().to_vec(),
            (None, None) => b"null".to_vec(),
            (None, Some(_)) => {
                let result = self.client.result(&self.job_type, &self.id).await?;
                if result.media_type != JSON {
                    return Err(of_another_type(result.media_type));
                }
                result.bytes.into()
            }
        };
        serde_json::from_slice(&json).map_err(|error| of_another_type(place(&error)))
    }
}

/// Why a run of a task has no result. Other errors become this one with `?`: the job is then tried again after its backoff. Their type is the class
/// of the error.
#[derive(Debug)]
pub struct TaskError(Outcome);

impl TaskError {
    /// An error that will not pass: the job is not tried again.
    pub fn failed(error: impl Into<RunError>) -> TaskError {
        TaskError(Outcome::Failed(error.into()))
    }

    /// An error that may pass: the job is tried again after its backoff.
    pub fn crashed(error: impl Into<RunError>) -> TaskError {
        TaskError(Outcome::Crashed(error.into()))
    }

    /// The same, but the job waits for this long, in place of its backoff.
    pub fn retry_after(error: impl Into<RunError>, time: Duration) -> TaskError {
        TaskError(Outcome::RetryAfter(error.into(), time))
    }

    /// It is too early: the job runs again after this long, which is no attempt.
    pub fn snoozed(time: Duration) -> TaskError {
        TaskError(Outcome::Snoozed(time))
    }

    /// The run has stopped, because it had to ([`Run::stop`]).
    pub fn stopped() -> TaskError {
        TaskError(Outcome::Stopped)
    }
}

impl From<TaskError> for Outcome {
    fn from(TaskError(outcome): TaskError) -> Outcome {
        outcome
    }
}

impl<E: std::error::Error + Send + 'static> From<E> for TaskError {
    fn from(error: E) -> TaskError {
        let mut error = Some(error);
        // A lock that was not granted says itself how the run ends.
        if let Some(lock) = (&mut error as &mut dyn Any).downcast_mut::<Option<LockError>>() {
            return TaskError(lock.take().map_or(Outcome::Stopped, Outcome::from));
        }
        let message = error.as_ref().map(|error| causes(error)).unwrap_or_default();
        TaskError::crashed(RunError { message, class: Some(type_name::<E>().to_owned()), trace: None })
    }
}

type Handler = dyn Fn(Run) -> BoxFuture<'static, Outcome> + Send + Sync;

/// A worker of the tasks of a type.
pub struct Worker {
    options: WorkerOptions,
    tasks: BTreeMap<&'static str, Arc<Handler>>,
    schedules: Vec<(String, PutSchedule)>,
    /// What is wrong with the calls so far.
    problem: Option<Error>,
}

impl Worker {
    /// A worker without tasks. Of `options`, `tasks` is ignored.
    pub fn new(options: WorkerOptions) -> Worker {
        Worker { options, tasks: BTreeMap::new(), schedules: Vec::new(), problem: None }
    }

    /// Runs the jobs of this task with a function. A function that blocks for long keeps other jobs waiting: it belongs into
    /// `tokio::task::spawn_blocking`.
    #[must_use]
    pub fn task<I, O, Running>(
        mut self,
        task: Task<I, O>,
        function: impl Fn(Run, I) -> Running + Send + Sync + 'static,
    ) -> Worker
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        Running: Future<Output = Result<O, TaskError>> + Send + 'static,
    {
        let function = Arc::new(function);
        let handler = move |run: Run| -> BoxFuture<'static, Outcome> {
            let function = function.clone();
            Box::pin(async move {
                let input = match input::<I>(&run.job.options) {
                    Ok(input) => input,
                    Err(error) => return Outcome::Failed(error),
                };
                match function(run, input).await {
                    Ok(result) => Outcome::completed(&result),
                    Err(error) => error.into(),
                }
            })
        };
        self.check(task);
        self.tasks.insert(task.name, Arc::new(handler));
        self
    }

    /// States what holds for the jobs of this task that do not state it themselves.
    #[must_use]
    pub fn terms<I, O>(mut self, task: Task<I, O>, terms: TaskTerms) -> Worker {
        self.options.task_terms.insert(task.name.to_owned(), terms);
        self
    }

    /// Adds a job with this input again and again: `"30 2 * * * Europe/Berlin".into()`. The worker writes the schedule, with the name `TYPE.TASK`, when
    /// it starts.
    #[must_use]
    pub fn schedule<I: Serialize, O>(mut self, task: Task<I, O>, when: When, input: &I) -> Worker {
        let (missed, overlap) = (Missed::default(), Overlap::default());
        let (jitter_ms, most_missed, pause_after, paused, note) = (None, None, None, None, None);
        match task.job(input, AddJob::default()) {
            Ok(job) => {
                let name = format!("{}.{}", task.job_type, task.name);
                let schedule = PutSchedule {
                    when,
                    job,
                    jitter_ms,
                    missed,
                    most_missed,
                    overlap,
                    pause_after,
                    paused,
                    note,
                };
                self.schedules.push((name, schedule));
            }
            Err(error) => self.problem = Some(error),
        }
        self
    }

    /// Works until `stop` is cancelled, or an operator drains the worker; see [`work`].
    ///
    /// # Errors
    /// A task is of another type than the worker, an input of a schedule is no JSON, or as with [`work`].
    pub async fn run(mut self, client: &Client, stop: CancellationToken) -> Result<()> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        for (name, schedule) in &self.schedules {
            if put_schedule(client, name, schedule, &stop).await?.is_none() {
                return Ok(());
            }
        }
        self.options.tasks = Some(self.tasks.keys().map(|&name| name.to_owned()).collect());
        let tasks = Arc::new(self.tasks);
        let handler = move |run: Run| {
            let task = run.job.task.as_deref().and_then(|name| tasks.get(name)).cloned();
            async move {
                match task {
                    Some(task) => task(run).await,
                    None => Outcome::Crashed("this worker does not know the task".into()),
                }
            }
        };
        work(client, self.options, handler, stop).await
    }

    fn check<I, O>(&mut self, task: Task<I, O>) {
        if task.job_type != self.options.job_type {
            self.problem = Some(Error::Invalid(format!("{task:?} is no task of {}", self.options.job_type)));
        }
    }
}

/// The input of a run. Another attempt would get the same one.
fn input<I: DeserializeOwned>(options: &RawValue) -> Result<I, RunError> {
    let parsed = serde_json::from_str(options.get());
    let parsed = match options.get() {
        NO_OPTIONS => parsed.or_else(|_| serde_json::from_str("null")),
        _ => parsed,
    };
    parsed.map_err(|error| RunError {
        message: format!("the options are not what the task takes: {}", place(&error)),
        class: Some("BadOptions".to_owned()),
        trace: None,
    })
}
