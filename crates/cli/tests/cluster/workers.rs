//! External workers in the test's process that record their runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use turnwise_client::{Client, Outcome, Run, WorkerOptions, work};

/// What a job of this type does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Nothing,
    /// Waits for a while.
    Sleeping,
    /// Fails permanently.
    Failing,
    /// Crashes, every time.
    Crashing,
}

impl Kind {
    /// Of every ten jobs, five do nothing, three sleep, one fails and one crashes.
    pub fn of(number: usize) -> Self {
        match number % 10 {
            0..5 => Kind::Nothing,
            5..8 => Kind::Sleeping,
            8 => Kind::Failing,
            _ => Kind::Crashing,
        }
    }

    /// The type of these jobs.
    pub fn job_type(self) -> &'static str {
        match self {
            Kind::Nothing => "nothing",
            Kind::Sleeping => "sleeping",
            Kind::Failing | Kind::Crashing => "failing",
        }
    }

    /// The final state of these jobs.
    pub fn end(self) -> &'static str {
        match self {
            Kind::Nothing | Kind::Sleeping => "completed",
            Kind::Failing | Kind::Crashing => "failed",
        }
    }
}

/// Workers of all types, and the runs that they had.
pub struct Workers {
    runs: Arc<Runs>,
    servers: Vec<String>,
    slots: usize,
    stop: CancellationToken,
    /// Oldest first.
    working: VecDeque<Worker>,
}

struct Worker {
    job_type: &'static str,
    /// The number of its jobs that sleep at the moment.
    sleeping: Arc<watch::Sender<usize>>,
    task: JoinHandle<turnwise_client::Result<()>>,
}

#[derive(Default)]
struct Runs {
    /// By job: the names of its runs that came to their end.
    of: Mutex<BTreeMap<String, Vec<String>>>,
    /// The number of jobs that had at least one run.
    jobs: watch::Sender<usize>,
}

impl Workers {
    /// Starts one worker of each type for each of these servers, which fails over to the others.
    pub fn start(servers: Vec<String>, slots: usize) -> Self {
        let (runs, stop) = (Arc::new(Runs::default()), CancellationToken::new());
        let mut workers = Workers { runs, servers, slots, stop, working: VecDeque::new() };
        for first in 0..workers.servers.len() {
            // The worker for jobs that take some time is the first to be replaced.
            ["sleeping", "nothing", "failing"].into_iter().for_each(|job_type| workers.add(job_type, first));
        }
        workers
    }

    fn add(&mut self, job_type: &'static str, first: usize) {
        let count = self.servers.len();
        let urls: Vec<String> =
            self.servers.iter().cycle().skip(first % count).take(count).cloned().collect();
        let client = Client::new(&urls.join(",")).unwrap();
        let options = WorkerOptions { slots: self.slots, ..WorkerOptions::new(job_type) };
        let (runs, stop) = (self.runs.clone(), self.stop.clone());
        let sleeping = Arc::new(watch::Sender::default());
        let sleeps = sleeping.clone();
        let handler = move |run: Run| runs.clone().run(run, sleeps.clone());
        let task = tokio::spawn(async move { work(&client, options, handler, stop).await });
        self.working.push_back(Worker { job_type, sleeping, task });
    }

    /// Aborts the oldest worker, as `kill -9` of its process would, and starts another one that prefers the server with
    /// this index. If its jobs sleep, this waits until one does, so that the abort meets a run; or until `added` jobs had
    /// a run, because this worker may have got none of them.
    pub async fn replace_oldest(&mut self, first: usize, added: usize, patience: Duration) {
        let Worker { job_type, sleeping, task } = self.working.pop_front().unwrap();
        if job_type == Kind::Sleeping.job_type() {
            let mut sleeping = sleeping.subscribe();
            tokio::select! {
                _ = sleeping.wait_for(|sleeping| *sleeping > 0) => {}
                () = self.until_run(added, patience) => {}
            }
        }
        task.abort();
        let _ = task.await;
        self.add(job_type, first);
    }

    /// Waits until this many jobs had a run; fails if no job has one for `patience`.
    pub async fn until_run(&self, wanted: usize, patience: Duration) {
        let mut jobs = self.runs.jobs.subscribe();
        while *jobs.borrow_and_update() < wanted {
            let more = tokio::time::timeout(patience, jobs.changed()).await;
            assert!(more.is_ok(), "only {} of {wanted} jobs had a run, and no other begins", *jobs.borrow());
        }
    }

    /// Stops the workers cleanly.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        for Worker { task, .. } in self.working.drain(..) {
            task.await.unwrap().expect("a worker gave up");
        }
    }

    /// Whether a run of this job reported this result.
    pub fn has_reported(&self, id: &str, result: &Value) -> bool {
        let runs = self.runs.of.lock().unwrap();
        runs.get(id).is_some_and(|runs| runs.iter().any(|run| result["run"] == run.as_str()))
    }
}

impl Runs {
    async fn run(self: Arc<Self>, run: Run, sleeping: Arc<watch::Sender<usize>>) -> Outcome {
        let (id, number) = (run.job.id.clone(), run.job.id.parse().unwrap());
        let kind = Kind::of(number);
        if kind == Kind::Sleeping {
            // From 1 to 50 ms.
            let nap = Duration::from_millis(1 + number as u64 % 50);
            sleeping.send_modify(|sleeping| *sleeping += 1);
            let slept = run.stop.run_until_cancelled(tokio::time::sleep(nap)).await;
            sleeping.send_modify(|sleeping| *sleeping -= 1);
            if slept.is_none() {
                return Outcome::Stopped;
            }
        }
        let told = self.record(id);
        match kind {
            Kind::Nothing | Kind::Sleeping => Outcome::completed(&json!({ "run": told })),
            Kind::Failing => Outcome::Failed("as it should".into()),
            Kind::Crashing => Outcome::Crashed("as it should".into()),
        }
    }

    /// Records a run, and returns its unique name.
    fn record(&self, id: String) -> String {
        let mut of = self.of.lock().unwrap();
        let runs = of.entry(id.clone()).or_default();
        let name = format!("{id}/{}", runs.len());
        runs.push(name.clone());
        let jobs = of.len();
        drop(of);
        self.jobs.send_replace(jobs);
        name
    }
}
