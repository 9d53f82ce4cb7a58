//! turnwise as a server: clients and workers use `/v1` over their own connections. It prints the same lines as the peers' programs.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use turnwise_lab_bench::http_client::Connection;

/// The number of workers.
const WORKERS: usize = 4;
/// The highest number of jobs that a worker holds at the same time.
const SLOTS: usize = 100;
/// The highest number of jobs in one response.
const ACCEPT: usize = SLOTS;
/// How long a worker's request for jobs waits, in ms.
const WAIT_MS: u64 = 1_000;

/// A job to add.
#[derive(Serialize)]
struct NewJob {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    job_type: Option<&'static str>,
    id: String,
    options: usize,
}

#[derive(Serialize)]
struct NewJobs {
    jobs: Vec<NewJob>,
}

/// The answer to [`NewJobs`].
#[derive(Deserialize)]
struct AddedJobs {
    jobs: Vec<AddedJob>,
}

#[derive(Deserialize)]
struct AddedJob {
    id: String,
}

#[derive(Serialize)]
struct Register {
    slots: usize,
}

#[derive(Deserialize)]
struct Registered {
    worker: String,
    ping_interval_ms: u64,
}

/// A worker's request for jobs.
#[derive(Serialize)]
struct Accept<'a> {
    received: u64,
    limit: usize,
    wait_ms: u64,
    ends: Ends<'a>,
}

#[derive(Serialize)]
struct Ends<'a> {
    finish: &'a [Finish],
}

#[derive(Serialize)]
struct Finish {
    id: String,
    claim: u64,
    result: bool,
}

#[derive(Deserialize)]
struct Accepted {
    jobs: Vec<AcceptedJob>,
    #[serde(default)]
    ended: Vec<Ended>,
}

#[derive(Deserialize)]
struct AcceptedJob {
    id: String,
    claim: u64,
    options: usize,
}

/// The answer to one end: without a state, the end was refused.
#[derive(Deserialize)]
struct Ended {
    state: Option<String>,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("names and numbers are JSON")
}

/// The task, from the command line.
pub struct Arguments {
    pub port: u16,
    pub jobs: usize,
    pub submitters: usize,
    pub batch: usize,
    pub rate: Option<f64>,
}

/// Runs the program.
pub fn main(arguments: Arguments) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("the runtime starts").block_on(async {
        let jobs = arguments.jobs;
        let clock = Instant::now();
        let started_us = (0..jobs).map(|_| AtomicU32::new(0)).collect();
        let bench = Bench {
            arguments: Arc::new(arguments),
            clock,
            ended: Arc::default(),
            started_us: Arc::new(started_us),
        };
        match bench.arguments.rate {
            Some(rate) => bench.latency(rate).await,
            None => bench.throughput().await,
        }
    });
}

#[derive(Clone)]
struct Bench {
    arguments: Arc<Arguments>,
    clock: Instant,
    /// The number of jobs whose end was acknowledged.
    ended: Arc<AtomicUsize>,
    /// When each job reached its worker, in µs.
    started_us: Arc<Vec<AtomicU32>>,
}

impl Bench {
    /// Adds all jobs, then processes all; then does both at the same time.
    async fn throughput(&self) {
        let jobs = self.arguments.jobs;
        let warm_up = jobs / 10;
        let mut end = warm_up;
        let workers = self.work().await;
        self.submit(0, warm_up).await;
        self.until_ended(end).await;
        workers.stop().await;
        self.phase("add", self.submit(end, jobs)).await;
        end += jobs;
        let mut working = None;
        self.phase("process", async {
            working = Some(self.work().await);
            self.until_ended(end).await;
        })
        .await;
        self.phase("both", async {
            self.submit(end, jobs).await;
            self.until_ended(end + jobs).await;
        })
        .await;
        if let Some(workers) = working {
            workers.stop().await;
        }
    }

    async fn phase(&self, name: &str, run: impl Future<Output = ()>) {
        println!("begin {name}");
        let start = Instant::now();
        run.await;
        println!("end {name} {} {}", self.arguments.jobs, start.elapsed().as_secs_f64());
    }

    async fn until_ended(&self, jobs: usize) {
        while self.ended.load(Ordering::Relaxed) < jobs {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Adds the jobs `from..from + jobs`. Every submitter waits for its acknowledgement.
    async fn submit(&self, from: usize, jobs: usize) {
        let next = Arc::new(AtomicUsize::new(0));
        let mut submitters = tokio::task::JoinSet::new();
        for _ in 0..self.arguments.submitters {
            let (bench, next) = (self.clone(), next.clone());
            submitters.spawn(async move {
                let Arguments { port, batch, .. } = *bench.arguments;
                let mut connection = Connection::open(port).await;
                loop {
                    let first = next.fetch_add(batch, Ordering::Relaxed);
                    if first >= jobs {
                        return;
                    }
                    add(&mut connection, from + first..from + (first + batch).min(jobs)).await;
                }
            });
        }
        submitters.join_all().await;
    }

    /// Starts workers that accept and end jobs until they are stopped.
    async fn work(&self) -> Workers {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..WORKERS {
            let mut connection = Connection::open(self.arguments.port).await;
            let Registered { worker, ping_interval_ms } =
                connection.post("/v1/workers/noop", &json(&Register { slots: SLOTS })).await;
            let path = format!("/v1/workers/noop/{worker}");
            tasks.spawn(ping(self.arguments.port, path.clone(), ping_interval_ms, stopped.clone()));
            tasks.spawn(self.clone().accept(connection, path, stopped.clone()));
        }
        Workers { stop, tasks }
    }

    /// Accepts jobs and ends them at once: the next request for jobs carries their ends.
    async fn accept(
        self,
        mut connection: Connection,
        path: String,
        stopped: tokio::sync::watch::Receiver<bool>,
    ) {
        let mut received = 0;
        let mut ends: Vec<Finish> = Vec::new();
        while !*stopped.borrow() {
            let question = Accept { received, limit: ACCEPT, wait_ms: WAIT_MS, ends: Ends { finish: &ends } };
            let Accepted { jobs, ended } = connection.post(&format!("{path}/accept"), &json(&question)).await;
            let now_us = self.clock.elapsed().as_micros();
            let recorded = ended.iter().filter(|ended| ended.state.as_deref() == Some("completed")).count();
            assert_eq!(recorded, ends.len(), "every end is recorded");
            self.ended.fetch_add(ends.len(), Ordering::Relaxed);
            ends.clear();
            for AcceptedJob { id, claim, options } in jobs {
                if self.arguments.rate.is_some() {
                    let now_us = u32::try_from(now_us).expect("less than an hour");
                    self.started_us[options].store(now_us, Ordering::Relaxed);
                }
                received = received.max(claim);
                ends.push(Finish { id, claim, result: true });
            }
        }
    }

    /// Adds `rate` jobs per second, and prints the time from a job's acknowledgement to its arrival at its worker.
    async fn latency(&self, rate: f64) {
        let jobs = self.arguments.jobs;
        let workers = self.work().await;
        let acknowledged = Arc::new(Mutex::new(vec![0_u128; jobs]));
        let next = Arc::new(AtomicUsize::new(0));
        let begin = tokio::time::Instant::now();
        let mut submitters = tokio::task::JoinSet::new();
        for _ in 0..self.arguments.submitters {
            let (bench, next, acknowledged) = (self.clone(), next.clone(), acknowledged.clone());
            submitters.spawn(async move {
                let mut connection = Connection::open(bench.arguments.port).await;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= jobs {
                        return;
                    }
                    tokio::time::sleep_until(begin + Duration::from_secs_f64(number as f64 / rate)).await;
                    add(&mut connection, number..number + 1).await;
                    acknowledged.lock().expect("nobody panics")[number] = bench.clock.elapsed().as_micros();
                }
            });
        }
        submitters.join_all().await;
        self.until_ended(jobs).await;
        workers.stop().await;
        let acknowledged = acknowledged.lock().expect("nobody panics");
        let started = self.started_us.iter().map(|at| u128::from(at.load(Ordering::Relaxed)));
        let mut waits: Vec<u128> =
            started.zip(acknowledged.iter()).map(|(start, at)| start.saturating_sub(*at)).collect();
        waits.sort_unstable();
        println!("latency {} {} {jobs}", waits[(jobs - 1) / 2], waits[(jobs - 1) * 99 / 100]);
    }
}

/// The workers' tasks.
struct Workers {
    stop: tokio::sync::watch::Sender<bool>,
    tasks: tokio::task::JoinSet<()>,
}

impl Workers {
    async fn stop(self) {
        self.stop.send_replace(true);
        self.tasks.join_all().await;
    }
}

async fn ping(port: u16, path: String, interval_ms: u64, mut stopped: tokio::sync::watch::Receiver<bool>) {
    let mut connection = Connection::open(port).await;
    while tokio::time::timeout(Duration::from_millis(interval_ms), stopped.wait_for(|stopped| *stopped))
        .await
        .is_err()
    {
        let IgnoredAny = connection.post(&format!("{path}/ping"), "{}").await;
    }
}

async fn add(connection: &mut Connection, numbers: std::ops::Range<usize>) {
    let job = |job_type, number| NewJob { job_type, id: format!("job-{number:012}"), options: number };
    if numbers.len() == 1 {
        let job = job(None, numbers.start);
        let added: AddedJob = connection.post("/v1/jobs/noop", &json(&job)).await;
        assert_eq!(added.id, job.id, "the job is added");
    } else {
        let jobs: Vec<NewJob> = numbers.map(|number| job(Some("noop"), number)).collect();
        let wanted = NewJobs { jobs };
        let added: AddedJobs = connection.post("/v1/jobs", &json(&wanted)).await;
        assert_eq!(added.jobs.len(), wanted.jobs.len(), "all jobs are added");
    }
}
