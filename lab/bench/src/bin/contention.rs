//! Contention of several workers at the head of one queue: conflicts per commit, jobs/s, and how long a single job
//! waits.
//!
//! `cargo run --release -p turnwise-lab-bench --bin contention -- STORE_URL [JOBS]`. Each number of workers uses its
//! own job type, so that it can run on a store in use. The URL may be `embedded:DIR` or `etcd://…`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use turnwise_lab_bench as _;
use turnwise_queue::{Keyspace, NewJob, Result, jobs};
use turnwise_store::{Counters, Runtime, Store, StoreUrl, open, runtime};
use turnwise_worker::{JobContext, JobHandler, Options, Outcome, Tunables, Worker};

/// Workers that share the queue.
const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Slots of each worker.
const SLOTS: usize = 10;
/// The run time of a job in the throughput test.
const RUN: Duration = Duration::from_millis(5);
/// Jobs that arrive one by one.
const LONE_JOBS: usize = 200;
/// The time between two of them.
const LONE_PAUSE: Duration = Duration::from_millis(20);

/// Sleeps for a moment, and records when it began.
struct Nap {
    runtime: Arc<dyn Runtime>,
    time: Duration,
    started_us: Mutex<BTreeMap<String, i64>>,
    started: AtomicUsize,
    /// Notified at each start.
    news: Notify,
}

#[async_trait]
impl JobHandler for Nap {
    async fn run(&self, job: JobContext) -> Outcome {
        let now_us = self.runtime.now_us();
        self.started_us.lock().unwrap_or_else(PoisonError::into_inner).insert(job.job.id.clone(), now_us);
        self.started.fetch_add(1, Relaxed);
        self.news.notify_one();
        if !self.time.is_zero() {
            self.runtime.sleep(self.time).await;
        }
        Outcome::completed(&true)
    }
}

struct FilterSet {
    store: Store,
    keys: Keyspace,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let url: Option<StoreUrl> = arguments.next().and_then(|url| url.parse().ok());
    let count = arguments.next().map_or(Some(20_000), |jobs| jobs.parse().ok());
    let (Some(url), Some(count)) = (url, count) else {
        eprintln!("usage: contention STORE_URL [JOBS]");
        return ExitCode::from(2);
    };
    let store = match open(&url, Arc::new(runtime::System)).await {
        Ok(store) => store,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let bench = FilterSet { store, keys: Keyspace::default() };
    println!(
        "| workers | jobs | jobs/s | commits | conflicts | conflicts/commit | store calls/job | dispatch p50, p99 |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for workers in WORKERS {
        for lone in [false, true] {
            if let Err(error) = bench.measure(workers, if lone { LONE_JOBS } else { count }, lone).await {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

impl FilterSet {
    async fn measure(&self, workers: usize, count: usize, lone: bool) -> Result<()> {
        let clock = self.store.runtime().clone();
        let job_type = format!("c{workers}{lone}{:x}", clock.random());
        let time = if lone { Duration::ZERO } else { RUN };
        let handler = Arc::new(Nap {
            runtime: clock.clone(),
            time,
            started_us: Mutex::default(),
            started: AtomicUsize::new(0),
            news: Notify::new(),
        });
        if !lone {
            self.add_all(&job_type, count).await?;
        }
        let mut all = Vec::new();
        for n in 0..workers {
            let options = Options {
                node: format!("n{n}"),
                tunables: Tunables { max_jobs: SLOTS, ..Tunables::default() },
                // So that the workers soon know each other.
                health_interval: Duration::from_secs(1),
                ..Options::default()
            };
            let (store, keys) = (self.store.clone(), self.keys.clone());
            all.push(Worker::start(store, keys, &job_type, handler.clone(), options).await?);
        }
        let (begun_us, before) = (clock.now_us(), self.store.counters());
        let mut waits_us = Vec::new();
        if lone {
            // The workers know each other, and each one watches.
            clock.sleep(Duration::from_millis(2_500)).await;
            for n in 0..count {
                let id = format!("{n:06}");
                self.add(&job_type, std::slice::from_ref(&id)).await?;
                let added_us = clock.now_us();
                while handler.started.load(Relaxed) <= n {
                    handler.news.notified().await;
                }
                let started_us = handler.started_us.lock().unwrap_or_else(PoisonError::into_inner)[&id];
                waits_us.push(started_us.saturating_sub(added_us).max(0));
                clock.sleep(LONE_PAUSE).await;
            }
        }
        while handler.started.load(Relaxed) < count {
            handler.news.notified().await;
        }
        let (took_us, did) = (clock.now_us() - begun_us, self.store.counters().since(&before));
        for worker in all {
            worker.shutdown().await;
        }
        print(workers, count, took_us, did, waits_us);
        Ok(())
    }

    async fn add_all(&self, job_type: &str, count: usize) -> Result<()> {
        let ids: Vec<String> = (0..count).map(|n| format!("{n:06}")).collect();
        let mut rest = &ids[..];
        while !rest.is_empty() {
            let added = self.add(job_type, rest).await?;
            rest = &rest[added..];
        }
        Ok(())
    }

    /// Adds as many jobs as fit into one transaction.
    async fn add(&self, job_type: &str, ids: &[String]) -> Result<usize> {
        let (keys, clock) = (&self.keys, self.store.runtime());
        self.store
            .transact(|tx| async move {
                let mut added = 0;
                for id in ids.iter().take(500) {
                    if added > 0 && !tx.has_room() {
                        break;
                    }
                    let options = RawValue::from_string("{}".to_owned()).expect("it is JSON");
                    jobs::add(&tx, keys, &NewJob::new(job_type, id, options), clock.now_us()).await?;
                    added += 1;
                }
                Ok(added)
            })
            .await
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn print(workers: usize, count: usize, took_us: i64, did: Counters, mut waits_us: Vec<i64>) {
    waits_us.sort_unstable();
    let at = |shard: usize| waits_us.get(waits_us.len() * shard / 100).copied().unwrap_or(0);
    let dispatch = match waits_us.is_empty() {
        true => String::new(),
        false => format!("{:.1}, {:.1} ms", at(50) as f64 / 1e3, at(99) as f64 / 1e3),
    };
    let rate = count as f64 / (took_us as f64 / 1e6);
    let calls = (did.gets + did.ranges + did.commits + did.transactions) as f64 / count as f64;
    let per_commit = did.conflicts as f64 / did.commits.max(1) as f64;
    let what = if waits_us.is_empty() { format!("{count} waiting") } else { format!("{count} one by one") };
    let Counters { commits, conflicts, .. } = did;
    println!(
        "| {workers} | {what} | {rate:.0} | {commits} | {conflicts} | {per_commit:.3} | {calls:.1} | {dispatch} |"
    );
}
