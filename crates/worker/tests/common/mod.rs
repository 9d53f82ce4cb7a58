//! Shared by these tests: a handler controlled by the test, and a store on a clock that only the test moves.

pub mod faulty;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Claim, Context, Job, Keyspace, NewJob, State, claims, jobs, workers};
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::{Engine, Limits, Store, Transaction, runtime};
use turnwise_worker::{
    Accepted, External, JobContext, JobHandler, Options, Outcome, Passes, Tunables, Wanted, Worker,
};

pub const T: &str = "test";
/// Far longer than any step of a test takes: only a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum number of commits that follow each other without waiting for the clock: a signal, an end, a pass, and a
/// margin.
const SETTLE_STEPS: usize = 6;

pub fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// The store in a directory, on the clock of the machine.
pub fn open(dir: &tempfile::TempDir) -> Store {
    let options = embedded::Options { durable: false, ..Default::default() };
    Store::new(Embedded::open_with(dir.path(), options).unwrap(), Arc::new(runtime::System))
}

/// The settings of a worker with this many slots.
pub fn slots(max_jobs: usize) -> Options {
    tuned(Tunables { max_jobs, ..Tunables::default() })
}

/// The settings of a worker with these ones.
pub fn tuned(tunables: Tunables) -> Options {
    Options { tunables, ..Options::default() }
}

/// Jobs of all tenants for an external worker that has received the claim `received`: up to `limit`, within `wait`.
pub async fn accept(
    external: &External,
    job_type: &str,
    worker: &str,
    (received, limit, wait): (u64, usize, Duration),
    leave: &CancellationToken,
) -> turnwise_queue::Result<Vec<Accepted>> {
    let wanted = Wanted { received, limit, wait, tenants: None };
    Ok(external.accept(job_type, worker, wanted, leave).await?.jobs)
}

/// Three workers run this many jobs, which send their ids to `ends`: each of them once.
pub async fn run_once_each(
    store: &Store,
    keys: &Keyspace,
    handler: Arc<dyn JobHandler>,
    max_jobs: usize,
    ends: &mut mpsc::UnboundedReceiver<String>,
    jobs: usize,
    passes: Option<&Arc<Passes>>,
) {
    let mut workers = Vec::new();
    for _ in 0..3 {
        let options = Options { passes: passes.cloned(), ..slots(max_jobs) };
        let worker = Worker::start(store.clone(), keys.clone(), T, handler.clone(), options).await;
        workers.push(worker.unwrap());
    }
    let mut seen = BTreeSet::new();
    for _ in 0..jobs {
        let id = tokio::time::timeout(4 * PATIENCE, ends.recv()).await.expect("a job never ended").unwrap();
        assert!(seen.insert(id), "some ran twice");
    }
    for worker in workers {
        worker.shutdown().await;
    }
}

/// Hands every run to the test, which decides how it continues.
pub struct Scripted {
    pub runs: mpsc::UnboundedSender<Run>,
    pub running: Arc<AtomicUsize>,
    pub most_running: AtomicUsize,
}

/// A run that waits for the test's instruction.
pub struct Run {
    pub id: String,
    pub job: Job,
    pub instruction: tokio::sync::oneshot::Sender<Instruction>,
}

pub enum Instruction {
    End(Outcome),
    Panic,
    /// Report that it hangs, and then ignore every request to stop.
    Hang(tokio::sync::oneshot::Sender<()>),
    /// Send this report, then wait for the stop.
    Report(u32),
    /// Report that it is idle, then wait for the stop.
    Idle,
}

impl Run {
    pub fn end(self, outcome: Outcome) {
        let _ = self.instruction.send(Instruction::End(outcome));
    }
}

/// Decrements the number of running jobs when it is dropped, however the run ends.
pub struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[async_trait]
impl JobHandler for Scripted {
    async fn run(&self, context: JobContext) -> Outcome {
        let now_running = self.running.fetch_add(1, SeqCst) + 1;
        let _running = Running(self.running.clone());
        self.most_running.fetch_max(now_running, SeqCst);
        let (instruction, received) = tokio::sync::oneshot::channel();
        let run = Run { id: context.job.id.clone(), job: context.job.clone(), instruction };
        self.runs.send(run).unwrap();
        tokio::select! {
            () = context.stop.cancelled() => Outcome::Stopped,
            instruction = received => match instruction.unwrap() {
                Instruction::End(outcome) => outcome,
                Instruction::Panic => panic!("the roof is on fire"),
                Instruction::Hang(hangs) => {
                    hangs.send(()).unwrap();
                    std::future::pending().await
                }
                Instruction::Idle => {
                    context.idle(true);
                    context.stop.cancelled().await;
                    Outcome::Stopped
                }
                Instruction::Report(n) => {
                    context.report(&serde_json::json!({ "n": n }));
                    context.stop.cancelled().await;
                    Outcome::Stopped
                }
            }
        }
    }

    async fn ended(&self, tx: &Transaction, _: &Keyspace, job: Option<&Job>) -> turnwise_queue::Result<()> {
        let state = job.map_or("removed".to_owned(), |job| format!("{:?}", job.state()));
        Ok(tx.set("hook".into(), state.into())?)
    }
}

pub struct World {
    pub store: Store,
    pub keys: Keyspace,
    pub clock: Arc<runtime::Manual>,
    pub handler: Arc<Scripted>,
    pub runs: mpsc::UnboundedReceiver<Run>,
    pub engine: Arc<dyn Engine>,
    _dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = runtime::Manual::new(1_000_000_000, 1);
        let options = embedded::Options { durable: false, ..Default::default() };
        let engine = Embedded::open_with(dir.path(), options).unwrap();
        let (sender, runs) = mpsc::unbounded_channel();
        let handler = Scripted { runs: sender, running: Arc::default(), most_running: AtomicUsize::new(0) };
        World {
            store: Store::new(engine.clone(), clock.clone()).with_limits(Limits::SMALL),
            engine,
            keys: Keyspace::default(),
            clock,
            handler: Arc::new(handler),
            runs,
            _dir: dir,
        }
    }

    pub async fn start(&self, max_jobs: usize) -> Worker {
        let options = Options { exclusive: true, ..slots(max_jobs) };
        self.start_with(&self.store, options).await
    }

    /// One of several processes on the same store.
    pub async fn start_beside(&self, store: &Store, max_jobs: usize) -> Worker {
        self.start_with(store, slots(max_jobs)).await
    }

    pub async fn start_with(&self, store: &Store, options: Options) -> Worker {
        let (store, keys) = (store.clone(), self.keys.clone());
        Worker::start(store, keys, T, self.handler.clone(), options).await.unwrap()
    }

    /// A separate store for a process that must fail on request.
    pub fn faulty(&self) -> (Store, Arc<faulty::Faulty>) {
        let faulty = faulty::Faulty::new(self.engine.clone());
        (Store::new(faulty.clone(), self.clock.clone()).with_limits(Limits::SMALL), faulty)
    }

    /// Runs a transaction once.
    pub async fn run<R>(
        &self,
        body: impl AsyncFnOnce(&Transaction, &Keyspace) -> turnwise_queue::Result<R>,
    ) -> R {
        let tx = self.store.begin().await.unwrap();
        let value = body(&tx, &self.keys).await.unwrap();
        tx.commit().await.unwrap();
        value
    }

    /// A worker whose process is gone, and which holds jobs of these ids.
    pub async fn ghost(&self, worker: &str, jobs: &[&str]) {
        let row = workers::Worker::new(worker, "n", 0, 9);
        self.run(async |tx, keys| workers::register(tx, keys, T, &row)).await;
        for (number, id) in (1..).zip(jobs) {
            self.add(id).await;
            let claim = Claim { worker: worker.into(), number };
            let claimed =
                self.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 2, 20), id, &claim).await);
            assert!(claimed.await.is_some());
        }
    }

    /// Lets one health interval pass for `n` live workers, once all of them wait for it.
    pub async fn tick(&self, n: usize) {
        let interval = turnwise_worker::DEFAULT_HEALTH_INTERVAL;
        let wait = self.clock.wait_for_sleepers(interval, n);
        tokio::time::timeout(PATIENCE, wait).await.expect("not all workers wait for their next ping");
        self.clock.advance(interval);
    }

    /// Lets everything happen that does not wait for the clock. The store's committer is a separate thread, so yielding to
    /// other tasks does not wait for it. But it commits in the order of arrival. So after each commit of this loop, all
    /// earlier commits are done, and the tasks that waited for them have run.
    pub async fn settle(&self) {
        for _ in 0..SETTLE_STEPS {
            self.run(async |tx, _| Ok(tx.clear("nothing".into())?)).await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
    }

    pub async fn add(&self, id: &str) {
        let new = &NewJob::new(T, id, json("{}"));
        let now_us = turnwise_store::Runtime::now_us(&*self.clock);
        let keys = &self.keys;
        self.store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
    }

    /// Adds a job of a tenant.
    pub async fn add_for(&self, tenant: &str, id: &str, continuous: bool) {
        let new = &NewJob::new(T, id, json("{}"))
            .with(|spec| (spec.tenant, spec.continuous) = (tenant.into(), continuous));
        let now_us = turnwise_store::Runtime::now_us(&*self.clock);
        let keys = &self.keys;
        self.store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
    }

    pub async fn next_run(&mut self) -> Run {
        tokio::time::timeout(PATIENCE, self.runs.recv()).await.expect("no job was started").unwrap()
    }

    pub async fn get(&self, id: &str) -> Option<Job> {
        jobs::get(&self.store.begin().await.unwrap(), &self.keys, T, id).await.unwrap()
    }

    /// Waits, by watching its row, until a job satisfies a condition.
    pub async fn until(&self, id: &str, condition: impl Fn(&Job) -> bool) -> Job {
        let wait = async {
            loop {
                let key = self.keys.job(T, id);
                let seen = self.store.begin().await.unwrap().get(&key).await.unwrap();
                if let Some(job) = self.get(id).await.filter(|job| condition(job)) {
                    return job;
                }
                self.store.watch(key, seen).await.unwrap().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the job never got there")
    }

    pub async fn until_state(&self, id: &str, state: State) -> Job {
        self.until(id, |job| job.state() == state).await
    }

    pub async fn cancel(&self, id: &str) {
        let keys = &self.keys;
        self.store.transact(|tx| async move { jobs::cancel(&tx, keys, T, id, 7).await }).await.unwrap();
    }

    pub async fn workers(&self) -> Vec<String> {
        let tx = self.store.begin().await.unwrap();
        let workers = workers::list(&tx, &self.keys, T).await.unwrap();
        workers.into_iter().map(|worker| worker.id).collect()
    }
}

/// A successful end.
pub fn done() -> Outcome {
    Outcome::completed(&1)
}
