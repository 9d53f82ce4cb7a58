//! turnwise as a library: the submitters, the store and a worker in one process. It prints the same lines as the peers' programs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::value::RawValue;
use turnwise_queue::{Keyspace, NewJob, State, jobs};
use turnwise_store::embedded::{Embedded, Stats};
use turnwise_store::{Isolation, RangeRead, Store, runtime};
use turnwise_testkit::process;
use turnwise_worker::{JobContext, JobHandler, Options, Outcome, Worker};

const JOB_TYPE: &str = "noop";
/// The time between two checks whether all ends are recorded.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The task, from the command line.
pub struct Arguments {
    pub dir: PathBuf,
    pub jobs: usize,
    pub submitters: usize,
    pub batch: usize,
    pub rate: Option<f64>,
}

/// Runs the program.
pub fn main(arguments: Arguments) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("the runtime starts").block_on(async {
        let bench = Bench::open(arguments);
        match bench.arguments.rate {
            Some(rate) => bench.latency(rate).await,
            None => bench.throughput().await,
        }
    });
}

#[derive(Clone)]
struct Bench {
    arguments: Arc<Arguments>,
    engine: Arc<Embedded>,
    store: Store,
    keys: Keyspace,
}

/// A handler that does nothing, and counts.
#[derive(Default)]
struct Noop {
    started: AtomicUsize,
    /// When each job started, by its number, in µs after the clock's start. Empty unless the latency is measured.
    started_us: Vec<AtomicU32>,
    clock: Option<Instant>,
}

#[async_trait]
impl JobHandler for Noop {
    async fn run(&self, job: JobContext) -> Outcome {
        if let Some(clock) = self.clock {
            let number: usize = job.options.get().parse().expect("the options are the job's number");
            let now_us = clock.elapsed().as_micros();
            self.started_us[number]
                .store(u32::try_from(now_us).expect("less than an hour"), Ordering::Relaxed);
        }
        self.started.fetch_add(1, Ordering::Relaxed);
        Outcome::completed(&true)
    }
}

impl Bench {
    fn open(arguments: Arguments) -> Self {
        let engine = Embedded::open(arguments.dir.join("store")).expect("the store opens");
        let store = Store::new(engine.clone(), Arc::new(runtime::System));
        Bench { arguments: Arc::new(arguments), engine, store, keys: Keyspace::default() }
    }

    /// Adds all jobs, then processes all; then does both at the same time.
    async fn throughput(&self) {
        let jobs = self.arguments.jobs;
        let warm_up = jobs / 10;
        let mut end = warm_up;
        let worker = self.work(Arc::new(Noop::default())).await;
        self.submit(0, warm_up).await;
        self.ended(end).await;
        worker.shutdown().await;

        self.phase("add", self.submit(end, jobs)).await;
        end += jobs;
        let mut working = None;
        self.phase("process", async {
            working = Some(self.work(Arc::new(Noop::default())).await);
            self.ended(end).await;
        })
        .await;
        self.phase("both", async {
            self.submit(end, jobs).await;
            self.ended(end + jobs).await;
        })
        .await;
        if let Some(worker) = working {
            worker.shutdown().await;
        }
        self.check(end + jobs).await;
    }

    async fn phase(&self, name: &str, run: impl Future<Output = ()>) {
        println!("begin {name}");
        let cpu_seconds = || process::cpu_seconds(std::process::id()).unwrap_or_default();
        let (before, cpu_before, start) = (self.engine.stats(), cpu_seconds(), Instant::now());
        run.await;
        let seconds = start.elapsed().as_secs_f64();
        println!("end {name} {} {seconds}", self.arguments.jobs);
        let Stats { commits, groups, log_bytes, conflicts, .. } = self.engine.stats();
        let jobs = self.arguments.jobs as f64;
        println!(
            "note {name}: {:.1} us of CPU per job, {:.0} fsyncs/s, {:.1} jobs and {:.1} transactions per fsync, \
             {:.0} bytes of log per job, {} conflicts",
            (cpu_seconds() - cpu_before) / jobs * 1e6,
            (groups - before.groups) as f64 / seconds,
            jobs / (groups - before.groups) as f64,
            (commits - before.commits) as f64 / (groups - before.groups) as f64,
            (log_bytes - before.log_bytes) as f64 / jobs,
            conflicts - before.conflicts,
        );
    }

    async fn work(&self, handler: Arc<Noop>) -> Worker {
        let worker =
            Worker::start(self.store.clone(), self.keys.clone(), JOB_TYPE, handler, Options::default());
        worker.await.expect("the worker starts")
    }

    /// Adds the jobs `from..from + jobs`. Every submitter waits for its acknowledgement.
    async fn submit(&self, from: usize, jobs: usize) {
        let next = Arc::new(AtomicUsize::new(0));
        let submitters: Vec<_> = (0..self.arguments.submitters)
            .map(|_| {
                let (bench, next) = (self.clone(), next.clone());
                let batch = bench.arguments.batch;
                tokio::spawn(async move {
                    loop {
                        let first = next.fetch_add(batch, Ordering::Relaxed);
                        if first >= jobs {
                            return;
                        }
                        bench.add(from + first..from + (first + batch).min(jobs)).await;
                    }
                })
            })
            .collect();
        for submitter in submitters {
            submitter.await.expect("adding does not panic");
        }
    }

    async fn add(&self, numbers: std::ops::Range<usize>) {
        let new: Vec<NewJob> = numbers
            .map(|number| {
                let options = RawValue::from_string(number.to_string()).expect("a number is JSON");
                NewJob::new(JOB_TYPE, &format!("job-{number:012}"), options)
            })
            .collect();
        let (keys, new) = (&self.keys, &new);
        let now_us = self.store.runtime().now_us();
        let added = self.store.transact(|tx| async move {
            for new in new {
                jobs::add_once(&tx, keys, new, now_us).await?;
            }
            Ok::<_, turnwise_queue::Error>(())
        });
        added.await.expect("the store takes jobs");
    }

    /// Waits until the ends of all `jobs` jobs that were ever added are recorded: no job waits or runs, and the last job has ended.
    async fn ended(&self, jobs: usize) {
        while self.count_waiting().await > 0 || self.newest(jobs).await != Some(true) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Whether the last job has ended. `None` if it does not exist.
    async fn newest(&self, jobs: usize) -> Option<bool> {
        let id = format!("job-{:012}", jobs - 1);
        let tx = self.store.begin().await.expect("the store can be read");
        let job = jobs::get(&tx, &self.keys, JOB_TYPE, &id).await.expect("the record is sound");
        job.map(|job| job.state().is_final())
    }

    /// In how many places the queue holds jobs: pending, delayed, active.
    async fn count_waiting(&self) -> usize {
        let tx = self.store.begin().await.expect("the store can be read");
        let mut places = 0;
        for (begin, end) in
            [self.keys.pending(JOB_TYPE), self.keys.delayed(JOB_TYPE), self.keys.active(JOB_TYPE)]
        {
            let read = RangeRead { begin, end, limit: 1, reverse: false };
            places += tx.range_with(read, Isolation::Snapshot).await.expect("the store can be read").len();
        }
        places
    }

    /// Checks that every job exists, and has completed.
    async fn check(&self, jobs: usize) {
        const PAGE: usize = 1_000;
        let (mut after, mut completed) = (None::<String>, 0);
        loop {
            let tx = self.store.begin().await.expect("the store can be read");
            let page = jobs::list(&tx, &self.keys, JOB_TYPE, after.as_deref(), PAGE)
                .await
                .expect("records are sound");
            completed +=
                page.iter().filter(|job| job.state() == State::Completed && job.attempts == 1).count();
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
        }
        assert_eq!(completed, jobs, "every job has ended well");
    }

    /// Adds `rate` jobs per second, and prints the time from a job's acknowledgement to the start of its handler.
    async fn latency(&self, rate: f64) {
        let jobs = self.arguments.jobs;
        let clock = Instant::now();
        let started_us = (0..jobs).map(|_| AtomicU32::new(0)).collect();
        let handler = Arc::new(Noop { started_us, clock: Some(clock), ..Noop::default() });
        let worker = self.work(handler.clone()).await;
        let acknowledged = Arc::new(Mutex::new(vec![0_u128; jobs]));
        let mut adding = tokio::task::JoinSet::new();
        let begin = Instant::now();
        let mut next = 0;
        while next < jobs {
            let due = ((begin.elapsed().as_secs_f64() * rate) as usize).min(jobs);
            for number in next..due {
                let (bench, acknowledged) = (self.clone(), acknowledged.clone());
                adding.spawn(async move {
                    bench.add(number..number + 1).await;
                    let now_us = clock.elapsed().as_micros();
                    acknowledged.lock().expect("nobody panics")[number] = now_us;
                });
            }
            next = due;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        adding.join_all().await;
        self.ended(jobs).await;
        worker.shutdown().await;
        let acknowledged = acknowledged.lock().expect("nobody panics");
        let started = handler.started_us.iter().map(|at| u128::from(at.load(Ordering::Relaxed)));
        let mut waits: Vec<u128> =
            started.zip(acknowledged.iter()).map(|(start, at)| start.saturating_sub(*at)).collect();
        waits.sort_unstable();
        println!("latency {} {} {jobs}", waits[(jobs - 1) / 2], waits[(jobs - 1) * 99 / 100]);
    }
}
