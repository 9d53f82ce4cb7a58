//! turnwise inside a Rust program.
#![doc = include_str!("../README.md")]

mod error;
mod task;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_calendar::Calendar;
use turnwise_queue::schedules::{self, NewSchedule, Template};
use turnwise_queue::{DEFAULT_MAX_ATTEMPTS, Format, JobResult, JobSpec, Keyspace, State, jobs, output};
use turnwise_store::{Store, StoreUrl, Transaction, runtime};
use turnwise_worker::{
    Groups, Live, Metrics, Options, Retention, RetentionOptions, Schedules, Tunables, Worker, fold_counts,
    keep_clock, remove_starts, settle_dependencies, settle_lifetimes,
};

pub use error::{Error, Result};
pub use task::TaskError;
pub use turnwise_calendar::When;
pub use turnwise_policy as policy;
pub use turnwise_queue::{self as queue, Job, NewJob};
pub use turnwise_store as store;
pub use turnwise_worker::{self as worker, JobContext};

/// The bounds of the time between two passes of the retention.
const SWEEPS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// turnwise in this process. Dropping it is like a crash: the next start gives the jobs that ran back to the queue.
pub struct Node {
    store: Store,
    keys: Keyspace,
    stop: CancellationToken,
    services: Vec<AbortOnDropHandle<()>>,
    /// By job type. `None` while it starts.
    workers: Mutex<BTreeMap<String, Option<Worker>>>,
}

impl Node {
    /// Opens the store in a folder, which is created if it is missing, and starts what keeps it in order. Records of jobs are removed when their
    /// jobs ended this long ago.
    ///
    /// # Errors
    /// The folder cannot be used, another process uses it, or it is of another version of turnwise.
    pub async fn start(folder: impl AsRef<Path>, retention: Duration) -> Result<Node> {
        let url = StoreUrl::embedded(folder.as_ref());
        let store = turnwise_store::open(&url, Arc::new(runtime::System)).await?;
        let keys = Keyspace::default();
        store.transact(|tx| check_format(tx, &keys)).await?;
        let (stop, workers) = (CancellationToken::new(), Mutex::default());
        let mut node = Node { store, keys, stop, services: Vec::new(), workers };
        let interval = retention.clamp(SWEEPS[0], SWEEPS[1]);
        let options = Live::from(RetentionOptions { retention, interval, ..RetentionOptions::default() });
        let (store, keys, stop) = (node.store.clone(), node.keys.clone(), node.stop.clone());
        let own = || (store.clone(), keys.clone());
        let (waiting_jobs, metrics) = (Live::from(0), Arc::<Metrics>::default());
        let schedules = Schedules { store: store.clone(), keys: keys.clone(), waiting_jobs, metrics };
        let services = [
            settle_dependencies(own(), stop.clone()),
            settle_lifetimes(own(), stop.clone()),
            remove_starts(own(), stop.clone()),
            fold_counts(own(), stop.clone()),
            keep_clock(own(), stop.clone()),
            Retention { store: store.clone(), keys: keys.clone(), options }.run(stop.clone()),
            schedules.run(stop.clone()),
            Groups { store: store.clone(), keys: keys.clone() }.run(stop),
        ];
        node.services = services.map(|service| AbortOnDropHandle::new(tokio::spawn(service))).into();
        Ok(node)
    }

    /// Runs the jobs of a type with a function, up to `slots` at a time. A function that blocks for long belongs into `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    /// The type has a worker, its name is wrong, or the store fails.
    pub async fn work<I, O, Running>(
        &self,
        job_type: &str,
        slots: usize,
        function: impl Fn(JobContext, I) -> Running + Send + Sync + 'static,
    ) -> Result<()>
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        Running: Future<Output = Result<O, TaskError>> + Send + 'static,
    {
        self.work_with(job_type, slots, Arc::new(task::handler(function))).await
    }

    async fn work_with(
        &self,
        job_type: &str,
        slots: usize,
        handler: Arc<dyn turnwise_worker::JobHandler>,
    ) -> Result<()> {
        // A second worker would take the first one for one of a process that has died.
        match self.workers().entry(job_type.to_owned()) {
            Entry::Occupied(_) => return Err(Error::Invalid(format!("the type {job_type} has a worker"))),
            Entry::Vacant(place) => drop(place.insert(None)),
        }
        let tunables = Tunables {
            max_jobs: slots,
            jitter: true,
            max_attempts: Some(DEFAULT_MAX_ATTEMPTS),
            ..Tunables::default()
        };
        let options = Options { exclusive: true, tunables, ..Options::default() };
        let started = Worker::start(self.store.clone(), self.keys.clone(), job_type, handler, options).await;
        match started {
            Ok(worker) => drop(self.workers().insert(job_type.to_owned(), Some(worker))),
            Err(error) => {
                self.workers().remove(job_type);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Adds a job, and returns its id. From then on it is on disk.
    ///
    /// # Errors
    /// The input is no JSON, the type is no name, or the store fails.
    pub async fn add<I: Serialize + ?Sized>(&self, job_type: &str, input: &I) -> Result<String> {
        let random = self.store.runtime();
        let id = format!("{:016x}{:016x}", random.random(), random.random());
        self.add_job(&NewJob::new(job_type, &id, json(input)?)).await?;
        Ok(id)
    }

    /// Adds a job that states more, under an id of its own, unless a job with this id exists.
    ///
    /// # Errors
    /// A field is out of bounds, or the store fails.
    pub async fn add_job(&self, new: &NewJob) -> Result<jobs::Added> {
        let (keys, now_us) = (&self.keys, self.store.runtime().now_us());
        Ok(self.store.transact(|tx| async move { jobs::add_once(&tx, keys, new, now_us).await }).await?)
    }

    /// Adds a job with this input again and again. Replaces the schedule with this name.
    ///
    /// # Errors
    /// The input is no JSON, the calendar never fires, or the store fails.
    pub async fn schedule<I: Serialize + ?Sized>(
        &self,
        name: &str,
        when: When,
        job_type: &str,
        input: &I,
    ) -> Result<()> {
        let calendar = Calendar { when, from_us: None, until_us: None };
        let (job_type, spec) = (job_type.to_owned(), JobSpec::default());
        let template = Template { job_type, spec, priority: None, states_locks: false };
        let new = &NewSchedule::new(name, calendar, template, json(input)?);
        let (keys, now_us) = (&self.keys, self.store.runtime().now_us());
        let put = |tx: Transaction| async move { schedules::put(&tx, keys, new, now_us).await };
        self.store.transact(put).await?;
        Ok(())
    }

    /// A job, unless there is none (any more).
    ///
    /// # Errors
    /// The store fails.
    pub async fn job(&self, job_type: &str, id: &str) -> Result<Option<Job>> {
        Ok(jobs::get(&self.store.begin().await?, &self.keys, job_type, id).await?)
    }

    /// Waits for the result of a job, however long that takes.
    ///
    /// # Errors
    /// [`Error::JobFailed`]: the job has failed, or was cancelled. Otherwise: there is no such job (any more), its result is of another type, or the store
    /// fails.
    pub async fn result<O: DeserializeOwned>(&self, job_type: &str, id: &str) -> Result<O> {
        let key = self.keys.job(job_type, id);
        loop {
            let tx = self.store.begin().await?;
            let seen = tx.get(&key).await?;
            let job =
                jobs::get(&tx, &self.keys, job_type, id).await?.ok_or(turnwise_queue::Error::NotFound)?;
            match job.state() {
                State::Completed => {
                    return match output::result(&tx, &self.keys, &job).await? {
                        Some(JobResult::Json(json)) => task::parsed(json.get()),
                        Some(JobResult::Bytes { media_type, .. }) => Err(Error::Invalid(format!(
                            "the result is no JSON, but bytes of the type {media_type}"
                        ))),
                        None => task::parsed("null"),
                    };
                }
                state if state.is_final() => return Err(Error::JobFailed(Box::new(job))),
                _ => {}
            }
            drop(tx);
            self.store.watch(key.clone(), seen).await?.await;
        }
    }

    /// The rows of the jobs, for transactions with [`queue`].
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The keys of [`Node::store`].
    pub fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// Stops: jobs that run have a few seconds to end, and the others return to the queue.
    pub async fn shutdown(self) {
        let workers = std::mem::take(&mut *self.workers());
        let mut stopping = tokio::task::JoinSet::new();
        for worker in workers.into_values().flatten() {
            stopping.spawn(worker.shutdown());
        }
        while stopping.join_next().await.is_some() {}
        self.stop.cancel();
        for service in self.services {
            if let Err(error) = service.await {
                tracing::error!(%error, "a service ended badly");
            }
        }
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a new store as one of this version, as a server does.
async fn check_format(tx: Transaction, keys: &Keyspace) -> turnwise_queue::Result<()> {
    match tx.get(&keys.format()).await?.map(|row| Format::read(&row)) {
        None => Ok(tx.set(keys.format(), Format::current())?),
        Some(Format::Version(turnwise_queue::keyspace::FORMAT_VERSION)) => Ok(()),
        Some(_) => {
            Err(turnwise_store::Error::Corrupt("the store is of another version of turnwise".into()).into())
        }
    }
}

fn json<I: Serialize + ?Sized>(input: &I) -> Result<Box<RawValue>> {
    to_raw_value(input).map_err(|error| Error::Invalid(format!("the input is no JSON: {error}")))
}
