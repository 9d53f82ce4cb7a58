//! The cost of one reschedule, one add and one claim for the store and the processor, with more and more pending jobs.
//!
//! `cargo run --release -p turnwise-lab-bench --bin reschedule -- [TENANTS [PENDING…]]`; the defaults are 10 tenants,
//! and 10000 100000 1000000. First a worker with 500 slots full of continuous jobs, of which each cycle rotates 20;
//! then one whose jobs end immediately. The clock moves by hand, so that only work is measured. On an embedded store
//! without fsync.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use turnwise_lab_bench as _;
use turnwise_queue::{Keyspace, NewJob, Result, jobs};
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::{Counters, Runtime, Store, runtime};
use turnwise_worker::{FairRules, JobContext, JobHandler, Options, Outcome, RotationRules, Tunables, Worker};

/// Running jobs.
const SLOTS: usize = 500;
/// Jobs that each cycle stops, and the number that it starts instead.
const CHURN: usize = 20;
/// Cycles that are measured, after some that are not.
const CYCLES: usize = 20;
/// The time between two cycles.
const INTERVAL: Duration = Duration::from_secs(60);
/// Jobs that are added, and claimed, one by one.
const ONE_BY_ONE: usize = 2_000;

/// Continuous jobs run until they are stopped. Others end immediately, once they may.
struct Handler {
    started: AtomicUsize,
    news: Notify,
    may_end: AtomicBool,
}

#[async_trait]
impl JobHandler for Handler {
    async fn run(&self, job: JobContext) -> Outcome {
        self.started.fetch_add(1, Relaxed);
        self.news.notify_one();
        if job.job.continuous || !self.may_end.load(Relaxed) {
            job.stop.cancelled().await;
            return Outcome::Stopped;
        }
        Outcome::completed(&true)
    }
}

impl Handler {
    fn new() -> Arc<Handler> {
        let (started, news, may_end) = (AtomicUsize::new(0), Notify::new(), AtomicBool::new(true));
        Arc::new(Handler { started, news, may_end })
    }

    async fn has_started(&self, count: usize) {
        while self.started.load(Relaxed) < count {
            self.news.notified().await;
        }
    }
}

struct FilterSet {
    store: Store,
    keys: Keyspace,
    clock: Arc<runtime::Manual>,
    tenants: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let numbers: Option<Vec<usize>> = std::env::args().skip(1).map(|number| number.parse().ok()).collect();
    let Some(numbers) = numbers else {
        eprintln!("usage: reschedule [TENANTS [PENDING…]]");
        return ExitCode::from(2);
    };
    let tenants = numbers.first().copied().unwrap_or(10).max(1);
    let sizes = if numbers.len() > 1 { &numbers[1..] } else { &[10_000, 100_000, 1_000_000][..] };
    match measure(tenants, sizes).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(tenants: usize, sizes: &[usize]) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let options = embedded::Options { durable: false, ..embedded::Options::default() };
    let clock = runtime::Manual::new(1_000_000_000, 1);
    let store = Store::new(Embedded::open_with(dir.path(), options)?, clock.clone());
    let bench = FilterSet { store, keys: Keyspace::default(), clock, tenants };
    println!("| pending | each | gets | ranges | rows read | rows written | commits | CPU |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (before, size) in std::iter::once(0).chain(sizes.iter().copied()).zip(sizes) {
        for job_type in ["continuous", "short"] {
            bench.fill(job_type, before, *size).await?;
        }
        bench.reschedule(*size).await?;
        bench.add(*size).await?;
        bench.claim(*size).await?;
    }
    Ok(())
}

impl FilterSet {
    fn job(&self, job_type: &str, n: usize) -> NewJob {
        let options = RawValue::from_string("{}".to_owned()).expect("it is JSON");
        let tenant = format!("tenant {}", n % self.tenants);
        let continuous = job_type == "continuous";
        NewJob::new(job_type, &format!("{n:08}"), options)
            .with(|spec| (spec.tenant, spec.continuous) = (tenant, continuous))
    }

    /// Adds the jobs with numbers from `from` to `to`.
    async fn fill(&self, job_type: &str, from: usize, to: usize) -> Result<()> {
        let mut next = from;
        while next < to {
            let now_us = self.clock.now_us();
            next = self
                .store
                .transact(|tx| async move {
                    let mut n = next;
                    while n < to && (n == next || tx.has_room()) {
                        jobs::add(&tx, &self.keys, &self.job(job_type, n), now_us).await?;
                        n += 1;
                    }
                    Ok::<_, turnwise_queue::Error>(n)
                })
                .await?;
            self.clock.advance(Duration::from_micros(10));
        }
        Ok(())
    }

    async fn start(&self, job_type: &str, handler: &Arc<Handler>, max_jobs: usize) -> Result<Worker> {
        let rotation = RotationRules {
            interval: INTERVAL,
            max_churn: CHURN,
            startup_jitter: Duration::ZERO,
            ..RotationRules::default()
        };
        let fair =
            FairRules { rotation: (job_type == "continuous").then_some(rotation), ..FairRules::default() };
        let tunables = Tunables { max_jobs, fair, ..Tunables::default() };
        let options = Options { tunables, ..Options::default() };
        Worker::start(self.store.clone(), self.keys.clone(), job_type, handler.clone(), options).await
    }

    /// Cycles of a full worker.
    async fn reschedule(&self, pending: usize) -> Result<()> {
        let handler = Handler::new();
        let worker = self.start("continuous", &handler, SLOTS).await?;
        handler.has_started(SLOTS).await;
        let mut measured = Measured::begin(self);
        for cycle in 0..2 * CYCLES {
            if cycle == CYCLES {
                measured = Measured::begin(self);
            }
            // No other task sleeps for as long.
            self.clock.wait_for_sleeper(INTERVAL / 2).await;
            self.clock.advance(INTERVAL);
            handler.has_started(SLOTS + (cycle + 1) * CHURN).await;
            // The write of the charges.
            self.clock.wait_for_sleeper(Duration::from_millis(500)).await;
            self.clock.advance(Duration::from_secs(1));
        }
        measured.end(self, pending, "reschedule", CYCLES);
        worker.shutdown().await;
        Ok(())
    }

    async fn add(&self, pending: usize) -> Result<()> {
        let measured = Measured::begin(self);
        for n in 0..ONE_BY_ONE {
            let new = &NewJob { id: format!("one {pending} {n}"), ..self.job("short", n) };
            let now_us = self.clock.now_us();
            self.store.transact(|tx| async move { jobs::add(&tx, &self.keys, new, now_us).await }).await?;
        }
        measured.end(self, pending, "add", ONE_BY_ONE);
        Ok(())
    }

    /// Claims, runs that end immediately, and their ends.
    async fn claim(&self, pending: usize) -> Result<()> {
        let handler = Handler::new();
        let measured = Measured::begin(self);
        let worker = self.start("short", &handler, 10).await?;
        handler.has_started(ONE_BY_ONE).await;
        measured.end(self, pending, "claim and end", ONE_BY_ONE);
        handler.may_end.store(false, Relaxed);
        worker.shutdown().await;
        Ok(())
    }
}

struct Measured {
    counters: Counters,
    cpu_us: f64,
}

impl Measured {
    fn begin(bench: &FilterSet) -> Measured {
        Measured { counters: bench.store.counters(), cpu_us: cpu_us() }
    }

    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    fn end(&self, bench: &FilterSet, pending: usize, what: &str, times: usize) {
        let did = bench.store.counters().since(&self.counters);
        let each = |count: u64| count as f64 / times as f64;
        println!(
            "| {pending} | {what} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.3} ms |",
            each(did.gets),
            each(did.ranges),
            each(did.rows_read),
            each(did.rows_written),
            each(did.commits),
            (cpu_us() - self.cpu_us) / 1e3 / times as f64
        );
    }
}

/// The processor time of all threads of this process, in µs; 0 where the system does not report it.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn cpu_us() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let of_task = |task: std::fs::DirEntry| -> Option<f64> {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanoseconds: u64 = stat.split_whitespace().next()?.parse().ok()?;
        Some(nanoseconds as f64 / 1e3)
    };
    tasks.flatten().filter_map(of_task).sum()
}
