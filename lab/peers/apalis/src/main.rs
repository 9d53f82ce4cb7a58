//! apalis on SQLite, as `cargo xtask bench queue` measures it: WAL and `synchronous=FULL`, so that a commit is on the disk
//! before it is acknowledged. Talks like the other peers' programs, see `lab/peers/common.mjs`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqlitePool, SqlitePoolOptions, SqliteStorage};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

const CONCURRENCY: usize = 64;
/// To the database: the fastest of 1, 2 and 4. SQLite has one writer at a time.
const CONNECTIONS: u32 = 2;
/// Jobs that it fetches at a time: the fastest of 10, 64, 100, 500 and 1,000. With the last two it stalls for 30 s now and then.
const FETCH: usize = 100;

struct Arguments {
    dir: PathBuf,
    jobs: usize,
    submitters: usize,
    batch: usize,
    rate: Option<f64>,
}

fn arguments() -> Arguments {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| words.iter().position(|word| word == name).map(|n| words[n + 1].clone());
    let number = |name: &str| value(name).unwrap_or_else(|| panic!("{name} is missing")).parse().unwrap();
    Arguments {
        dir: value("--dir").expect("--dir is missing").into(),
        jobs: number("--jobs"),
        submitters: number("--submitters"),
        batch: number("--batch"),
        rate: value("--rate").map(|rate| rate.parse().unwrap()),
    }
}

#[derive(Clone)]
struct Bench {
    arguments: Arc<Arguments>,
    pool: SqlitePool,
    started: Arc<Mutex<HashMap<usize, Instant>>>,
    handled: Arc<AtomicUsize>,
}

#[tokio::main]
async fn main() {
    let arguments = arguments();
    let pool = pool(&arguments.dir).await;
    let bench =
        Bench { arguments: Arc::new(arguments), pool, started: Arc::default(), handled: Arc::default() };
    match bench.arguments.rate {
        Some(rate) => bench.latency(rate).await,
        None => bench.throughput().await,
    }
}

async fn pool(dir: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(dir.join("jobs.sqlite"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(60))
        .synchronous(SqliteSynchronous::Full);
    // `setup` sets `synchronous = OFF` on the connection that it happens to get: that one is thrown away.
    let first = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await.unwrap();
    SqliteStorage::setup(&first).await.unwrap();
    first.close().await;
    let pool = SqlitePoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(Duration::from_secs(600))
        .connect_with(options)
        .await
        .unwrap();
    let synchronous: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(&pool).await.unwrap();
    assert_eq!(synchronous, 2, "FULL");
    pool
}

async fn handle(number: usize, bench: Data<Bench>) -> Result<(), BoxDynError> {
    if bench.arguments.rate.is_some() {
        bench.started.lock().unwrap().insert(number, Instant::now());
    }
    bench.handled.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

impl Bench {
    fn storage(&self) -> SqliteStorage<usize> {
        SqliteStorage::new(&self.pool).with_config(Config::default().queue("noop").batch_size(FETCH))
    }

    async fn throughput(&self) {
        let jobs = self.arguments.jobs;
        let warm_up = jobs / 10;
        let (wake, worker) = self.work();
        self.submit(warm_up, wake).await;
        self.ended(warm_up).await;
        worker.abort();
        let (wake, _) = unbounded();
        self.phase("add", self.submit(jobs, wake)).await;
        self.phase("process", async {
            let (_, worker) = self.work();
            self.ended(warm_up + jobs).await;
            worker.abort();
        })
        .await;
        self.phase("both", async {
            let (wake, worker) = self.work();
            self.submit(jobs, wake).await;
            self.ended(warm_up + 2 * jobs).await;
            worker.abort();
        })
        .await;
    }

    async fn phase(&self, name: &str, run: impl Future<Output = ()>) {
        println!("begin {name}");
        let start = Instant::now();
        run.await;
        println!("end {name} {} {}", self.arguments.jobs, start.elapsed().as_secs_f64());
    }

    async fn submit(&self, jobs: usize, wake: UnboundedSender<()>) {
        let Arguments { submitters, batch, .. } = *self.arguments;
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..submitters {
            let (bench, next, wake) = (self.clone(), next.clone(), wake.clone());
            tasks.push(tokio::spawn(async move {
                let mut storage = bench.storage();
                loop {
                    let first = next.fetch_add(batch, Ordering::Relaxed);
                    if first >= jobs {
                        return;
                    }
                    let last = (first + batch).min(jobs);
                    storage.push_bulk((first..last).collect()).await.unwrap();
                    let _ = wake.unbounded_send(());
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }

    /// A worker that looks whenever something was added, and every 20 ms.
    fn work(&self) -> (UnboundedSender<()>, tokio::task::JoinHandle<()>) {
        let (wake, woken) = unbounded();
        let every = tokio::time::interval(Duration::from_millis(20));
        let every = futures::stream::unfold(every, |mut every| async {
            every.tick().await;
            Some(((), every))
        });
        let looks = futures::stream::select(woken, Box::pin(every));
        let backend = self.storage().poll_with_stream(looks);
        let worker = WorkerBuilder::new(format!("worker-{}", self.handled.load(Ordering::Relaxed)))
            .backend(backend)
            .data(self.clone())
            .concurrency(CONCURRENCY)
            .build(handle);
        (wake, tokio::spawn(async move { worker.run().await.unwrap() }))
    }

    /// Waits until `jobs` ends are recorded.
    async fn ended(&self, jobs: usize) {
        while self.handled.load(Ordering::Relaxed) < jobs {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        loop {
            let left: i64 = sqlx::query_scalar("select exists (select 1 from Jobs where status <> 'Done')")
                .fetch_one(&self.pool)
                .await
                .unwrap();
            if left == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Adds `rate` jobs a second, and tells how long after its acknowledgement a job's handler started.
    async fn latency(&self, rate: f64) {
        let jobs = self.arguments.jobs;
        let (wake, worker) = self.work();
        let start = Instant::now();
        let mut adding = Vec::new();
        while adding.len() < jobs {
            let due = ((start.elapsed().as_secs_f64() * rate) as usize).min(jobs);
            for number in adding.len()..due {
                let (bench, wake) = (self.clone(), wake.clone());
                adding.push(tokio::spawn(async move {
                    bench.storage().push(number).await.unwrap();
                    let at = Instant::now();
                    let _ = wake.unbounded_send(());
                    at
                }));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut acknowledged = Vec::new();
        for task in adding {
            acknowledged.push(task.await.unwrap());
        }
        self.ended(jobs).await;
        worker.abort();
        let started = self.started.lock().unwrap();
        let wait =
            |(number, at): (usize, &Instant)| started[&number].saturating_duration_since(*at).as_micros();
        let mut waits: Vec<u128> = acknowledged.iter().enumerate().map(wait).collect();
        waits.sort_unstable();
        println!("latency {} {} {jobs}", waits[(jobs - 1) / 2], waits[(jobs - 1) * 99 / 100]);
    }
}
