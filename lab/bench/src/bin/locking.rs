//! The cost of a pass among jobs that lock, by the length of its window: jobs/s, processor time and reads per job.
//!
//! `cargo run --release -p turnwise-lab-bench --bin locking -- STORE_URL [JOBS] [SLOTS] [RUN_US] [WORKERS] [external]`. With
//! `external`, the workers are those of one server, without HTTP. Each job
//! locks one of 200 instances exclusively, and two of 20 nodes shared; one job of ten locks the nodes exclusively, too.
//! Each window uses its own job type, one after the other, so that it can run on a store in use.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwise_lab_bench as _;
use turnwise_queue::{Keyspace, NewJob, Result, jobs};
use turnwise_store::{Counters, Runtime, Store, StoreUrl, open, runtime};
use turnwise_worker::{
    External, ExternalEnd, JobContext, JobHandler, MAX_ACCEPTED, Options, Outcome, Passes, QueueRules,
    Tunables, Wanted, Worker,
};

const WINDOWS: [usize; 4] = [64, 250, 500, 1_000];
const INSTANCES: usize = 200;
const NODES: usize = 20;
/// One of this many jobs locks its nodes exclusively.
const ALONE: usize = 10;
/// The maximum number of jobs that one transaction adds.
const ADDED: usize = 200;
/// A tick of `/proc/self/stat`, in µs.
const TICK_US: u64 = 10_000;

struct Nap {
    runtime: Arc<dyn Runtime>,
    time: Duration,
    left: AtomicUsize,
    /// Notified when no job is left.
    done: Notify,
}

impl Nap {
    async fn take(&self) {
        if !self.time.is_zero() {
            self.runtime.sleep(self.time).await;
        }
    }

    fn ended(&self) {
        if self.left.fetch_sub(1, Relaxed) == 1 {
            self.done.notify_one();
        }
    }
}

#[async_trait]
impl JobHandler for Nap {
    async fn run(&self, _: JobContext) -> Outcome {
        self.take().await;
        self.ended();
        Outcome::completed(&true)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let url: Option<StoreUrl> = arguments.next().and_then(|url| url.parse().ok());
    let mut number = |usual: usize| arguments.next().map_or(Some(usual), |number| number.parse().ok());
    let numbers = [5_000, 20, 0, 1].map(&mut number);
    let external = arguments.next().is_some_and(|word| word == "external");
    let (Some(url), [Some(count), Some(slots), Some(run_us), Some(workers)]) = (url, numbers) else {
        eprintln!("usage: locking STORE_URL [JOBS] [SLOTS] [RUN_US] [WORKERS] [external]");
        return ExitCode::from(2);
    };
    let measured = async {
        let store = open(&url, Arc::new(runtime::System)).await.map_err(|error| error.to_string())?;
        println!("| window | jobs | slots | jobs/s | CPU/job | rows read/job | reads/job | commits/job |");
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        for window in WINDOWS {
            let time = Duration::from_micros(run_us as u64);
            measure(&store, window, count, (workers, slots, external), time)
                .await
                .map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(())
    };
    match measured.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(
    store: &Store,
    window: usize,
    count: usize,
    (workers, slots, external): (usize, usize, bool),
    time: Duration,
) -> Result<()> {
    let clock = store.runtime().clone();
    let (keys, job_type) = (Keyspace::default(), format!("w{window}-{:x}", clock.random()));
    add_all(store, &keys, &job_type, count).await?;
    let handler =
        Arc::new(Nap { runtime: clock.clone(), time, left: AtomicUsize::new(count), done: Notify::new() });
    let queue = Arc::new(QueueRules { window, ..QueueRules::default() });
    // So that the workers soon know each other.
    let health_interval = Duration::from_secs(1);
    let passes = Some(Arc::<Passes>::default());
    let tunables = Tunables { max_jobs: slots, queue, ..Tunables::default() };
    let options = Options { health_interval, passes, tunables, ..Options::default() };
    let server = External::new(store.clone(), keys.clone(), options.clone());
    let (begun_us, before, used_us) = (clock.now_us(), store.counters(), processor_us());
    let mut all = Vec::new();
    let mut outside = JoinSet::new();
    for _ in 0..if external { workers } else { 0 } {
        outside.spawn(work(server.clone(), job_type.clone(), slots, handler.clone()));
    }
    for n in 0..if external { 0 } else { workers } {
        let options = Options { node: format!("n{n}"), ..options.clone() };
        all.push(Worker::start(store.clone(), keys.clone(), &job_type, handler.clone(), options).await?);
    }
    handler.done.notified().await;
    let (took_us, did) = (clock.now_us() - begun_us, store.counters().since(&before));
    print(window, (count, workers * slots), took_us, processor_us() - used_us, did);
    for worker in all {
        worker.shutdown().await;
    }
    Ok(())
}

/// An external worker. It asks for as many jobs as it has free slots.
async fn work(server: External, job_type: String, slots: usize, nap: Arc<Nap>) {
    let never = CancellationToken::new();
    let worker = server.register(&job_type, None, slots, None).await.expect("it is registered").id;
    let (mut received, mut runs) = (0, JoinSet::new());
    loop {
        while runs.try_join_next().is_some() {}
        if runs.len() == slots {
            runs.join_next().await;
            continue;
        }
        let free = (slots - runs.len()).min(MAX_ACCEPTED);
        let wanted = Wanted { received, limit: free, wait: Duration::from_secs(1), tenants: None };
        let accepted = server.accept(&job_type, &worker, wanted, &never).await;
        for accepted in accepted.expect("it is a member").jobs {
            received = received.max(accepted.claim);
            let (server, job_type, worker) = (server.clone(), job_type.clone(), worker.clone());
            let nap = nap.clone();
            runs.spawn(async move {
                nap.take().await;
                let end = ExternalEnd::Completed(RawValue::TRUE.to_owned().into());
                let ended = server.end(&job_type, &worker, &accepted.job.id, accepted.claim, end, None).await;
                ended.expect("it holds the claim");
                nap.ended();
            });
        }
    }
}

async fn add_all(store: &Store, keys: &Keyspace, job_type: &str, count: usize) -> Result<()> {
    let mut added = 0;
    while added < count {
        let now_us = store.runtime().now_us();
        added += store
            .transact(|tx| async move {
                let mut more = 0;
                while added + more < count && more < ADDED && (more == 0 || tx.has_room()) {
                    let options = RawValue::from_string("{}".to_owned()).expect("it is JSON");
                    let id = format!("{:06}", added + more);
                    let locks = serde_json::from_str(&locks(added + more)).expect("they are requests");
                    let new = NewJob::new(job_type, &id, options).with(|spec| spec.locks = locks);
                    jobs::add(&tx, keys, &new, now_us).await?;
                    more += 1;
                }
                Ok::<_, turnwise_queue::Error>(more)
            })
            .await?;
    }
    Ok(())
}

/// The locks of the nth job: the same in every run.
fn locks(n: usize) -> String {
    // Neighbouring jobs get distant instances.
    let instance = n.wrapping_mul(0x9e37_79b1) / 7 % INSTANCES;
    let (node, other) = (instance % NODES, (instance + 1 + instance / NODES) % NODES);
    let other = if other == node { (other + 1) % NODES } else { other };
    let how = if n.is_multiple_of(ALONE) { "exclusive" } else { "shared" };
    format!(r#"{{"instance":{{"exclusive":["i{instance}"]}},"node":{{"{how}":["n{node}","n{other}"]}}}}"#)
}

fn processor_us() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("this runs on Linux");
    // The fields after the name, which is in parentheses: the 14th and 15th of all.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()
        * TICK_US
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn print(window: usize, (count, slots): (usize, usize), took_us: i64, used_us: u64, did: Counters) {
    let jobs = count as f64;
    let (rate, used) = (jobs / (took_us as f64 / 1e6), used_us as f64 / jobs);
    let reads = did.ranges + did.gets;
    let [rows, reads, commits] = [did.rows_read, reads, did.commits].map(|times| times as f64 / jobs);
    println!(
        "| {window} | {count} | {slots} | {rate:.0} | {used:.0} µs | {rows:.1} | {reads:.1} | {commits:.2} |"
    );
}
