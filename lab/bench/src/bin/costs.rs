//! The CPU cost of adding, claiming and ending a job, on an embedded store without fsync. It can compare two versions of the
//! queue on a shared machine. Reads `/proc`: Linux only.
//! `cargo run --release -p turnwise-lab-bench --bin costs -- [TENANTS]`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::value::RawValue;
use turnwise_lab_bench as _;
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::{Claim, Context, Keyspace, NewJob, Result, jobs, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Store, runtime};

const JOB_TYPE: &str = "noop";
const JOBS: usize = 50_000;
/// Concurrent tasks.
const TASKS: usize = 16;
const ROUNDS: usize = 5;

fn job(n: usize, tenants: usize) -> NewJob {
    let options = RawValue::from_string("{\"url\":\"http://host/path\"}".to_owned()).expect("this is JSON");
    let new = NewJob::new(JOB_TYPE, &format!("job-{n:08}"), options);
    new.with(|spec| spec.tenant = format!("tenant-{:04}", n % tenants))
}

/// A tick of `/proc/self/stat`, in µs.
const TICK_US: u64 = 10_000;

/// The CPU time that this process has used, in µs.
fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this runs on Linux");
    let after_name = stat.rsplit_once(')').expect("the name is in parentheses").1;
    let ticks = |n: usize| after_name.split_whitespace().nth(n).and_then(|word| word.parse::<u64>().ok());
    // User and system time are fields 14 and 15; the first two were cut off above.
    (ticks(11).expect("a number") + ticks(12).expect("a number")) * TICK_US
}

/// Per job, in µs.
fn per_job(begun_us: u64) -> f64 {
    (cpu_us() - begun_us) as f64 / JOBS as f64
}

/// Runs `step` for every number, in several tasks; returns the CPU that each took, in µs.
async fn cpu<Run>(count: usize, step: impl Fn(usize) -> Run + Clone + Send + 'static) -> f64
where
    Run: Future<Output = Result<()>> + Send,
{
    let (next, begun_us) = (Arc::new(AtomicUsize::new(0)), cpu_us());
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (next, step) = (next.clone(), step.clone());
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n >= count {
                        return;
                    }
                    step(n).await.expect("the store works");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task ends");
    }
    per_job(begun_us)
}

#[tokio::main]
async fn main() {
    let tenants = std::env::args().nth(1).map_or(1, |word| word.parse().expect("a number of tenants"));
    println!("{tenants} tenants: CPU per job in µs, added alone, added 500 at once, claimed and ended");
    for _ in 0..ROUNDS {
        let dir = tempfile::tempdir().expect("there is room for a folder");
        let options = Options { durable: false, ..Options::default() };
        let engine = Embedded::open_with(dir.path(), options).expect("the store opens");
        let store = Store::new(engine, Arc::new(runtime::System));
        let worker = workers::Worker::new("w", "n", 0, JOBS);
        let join = store.transact(|tx| {
            let worker = worker.clone();
            async move { workers::register(&tx, &Keyspace::default(), JOB_TYPE, &worker) }
        });
        join.await.expect("the store works");
        let add = |begin: usize, end: usize| {
            let store = store.clone();
            async move {
                let new: Vec<_> = (begin..end).map(|n| job(n, tenants)).collect();
                let new = &new;
                let add = |tx: turnwise_store::Transaction| async move {
                    for new in new {
                        jobs::add(&tx, &Keyspace::default(), new, 1_000_000).await?;
                    }
                    Ok::<_, turnwise_queue::Error>(())
                };
                store.transact(add).await
            }
        };
        let one = {
            let store = store.clone();
            move |n: usize| {
                let store = store.clone();
                async move {
                    let new = &job(n, tenants);
                    let add = |tx: turnwise_store::Transaction| async move {
                        jobs::add(&tx, &Keyspace::default(), new, 1_000_000).await.map(drop)
                    };
                    store.transact(add).await
                }
            }
        };
        let alone = cpu(JOBS, one).await;
        let begun_us = cpu_us();
        for begin in (JOBS..2 * JOBS).step_by(500) {
            add(begin, begin + 500).await.expect("the store works");
        }
        let at_once = per_job(begun_us);
        let run = move |n: usize| {
            let store = store.clone();
            async move {
                let (id, claim) = (&format!("job-{n:08}"), &Claim { worker: "w".into(), number: n as u64 });
                let keys = &Keyspace::default();
                let take = |tx: turnwise_store::Transaction| async move {
                    claims::claim(Context::new(&tx, keys, JOB_TYPE, 2_000_000, 20), id, claim).await.map(drop)
                };
                store.transact(take).await?;
                let end = |tx: turnwise_store::Transaction| async move {
                    let (stop, now_us) = (&Ending::Failed("no".into()), 3_000_000);
                    claims::end(Context::new(&tx, keys, JOB_TYPE, now_us, 20), id, claim, stop, None, None)
                        .await
                        .map(drop)
                };
                store.transact(end).await
            }
        };
        println!("{alone:>8.2} {at_once:>8.2} {:>8.2}", cpu(JOBS, run).await);
    }
}
