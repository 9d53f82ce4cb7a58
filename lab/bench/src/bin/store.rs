//! The embedded store on a queue's workload: enqueue, claim from the head, finish.
//!
//! Every job has a `jobs` row of 300 bytes and a `pending` row, as in `turnwise-queue`. All writes are on the disk before they
//! are acknowledged. Before each part the disk's own speed is measured, as a baseline.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use turnwise_lab_bench as _;
use turnwise_store::embedded::{Embedded, Stats};
use turnwise_store::tuple::Subspace;
use turnwise_store::{Engine, Store, Transaction, key, runtime};

const USAGE: &str = "\
usage: cargo xtask bench store [--dir DIR] [--submitters N] [--jobs N] [--backlog N]
  --dir DIR        where to put the store, on the disk to measure (./target/bench-store)
  --submitters N   how many submit at the same time (16)
  --jobs N         jobs per phase (100000)
  --backlog N      jobs that wait in the last part (1000000)";

const JOB_TYPE: &str = "replication";
const WORKER: &str = "worker-1";
const VALUE_BYTES: usize = 300;
/// Jobs per transaction in the phases with batches.
const BATCH: usize = 200;

struct Options {
    dir: PathBuf,
    submitters: usize,
    jobs: usize,
    backlog: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, dir, jobs] = arguments.as_slice()
        && word == "fill-and-wait"
    {
        return runtime(async { fill_and_wait(Path::new(dir), jobs.parse().unwrap()).await });
    }
    if arguments.iter().any(|word| word == "--help") {
        println!("{USAGE}");
        return;
    }
    let Some(options) = parse(&arguments) else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    let _ = std::fs::remove_dir_all(&options.dir);
    std::fs::create_dir_all(&options.dir).unwrap();
    runtime(async {
        for submitters in [options.submitters, options.submitters * 4] {
            let disk = Disk::measure(&options.dir);
            one_at_a_time(&options, submitters, &disk).await;
        }
        in_batches(&options).await;
        with_a_backlog(&options).await;
    });
    std::fs::remove_dir_all(&options.dir).unwrap();
}

fn runtime(run: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(run);
}

fn parse(arguments: &[String]) -> Option<Options> {
    let mut options = Options {
        dir: PathBuf::from("target/bench-store"),
        submitters: 16,
        jobs: 100_000,
        backlog: 1_000_000,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--dir" => options.dir = PathBuf::from(value),
            "--submitters" => options.submitters = value.parse().ok()?,
            "--jobs" => options.jobs = value.parse().ok()?,
            "--backlog" => options.backlog = value.parse().ok()?,
            _ => return None,
        }
    }
    (options.submitters > 0 && options.jobs > 0 && options.backlog > 0).then_some(options)
}

/// The speed of the disk without a store: blocks are overwritten and synced, one after the other.
struct Disk {
    fsyncs_per_s: f64,
}

impl Disk {
    fn measure(dir: &Path) -> Disk {
        let path = dir.join("disk");
        let rate = |block: usize, blocks: u64, allocated: bool| {
            let mut file = File::create(&path).unwrap();
            if allocated {
                std::io::copy(&mut std::io::repeat(1).take(block as u64 * blocks), &mut file).unwrap();
                file.sync_all().unwrap();
                file.seek(SeekFrom::Start(0)).unwrap();
            }
            let bytes = vec![2; block];
            let start = Instant::now();
            for _ in 0..blocks {
                file.write_all(&bytes).unwrap();
                file.sync_data().unwrap();
            }
            blocks as f64 / start.elapsed().as_secs_f64()
        };
        let (appending, over) = (rate(4096, 2_000, false), rate(4096, 2_000, true));
        let (small, large) = (rate(65_536, 500, true), rate(1 << 20, 100, true));
        std::fs::remove_file(&path).unwrap();
        println!(
            "\ndisk: write + fdatasync of 4 kB {over:.0}/s on allocated blocks, {appending:.0}/s appending; \
             64 kB {small:.0}/s; 1 MB {large:.0}/s = {:.0} MB/s",
            large * 1.048_576
        );
        Disk { fsyncs_per_s: over }
    }
}

/// A store, and the durations of its commits.
#[derive(Clone)]
struct Bench {
    engine: Arc<Embedded>,
    store: Store,
    space: Subspace,
    /// In microseconds.
    latencies: Arc<Mutex<Vec<u32>>>,
}

impl Bench {
    fn open(path: &Path) -> Bench {
        let engine = Embedded::open(path).unwrap();
        let store = Store::new(engine.clone(), Arc::new(runtime::System));
        Bench { engine, store, space: Subspace::from_bytes(b"tw"), latencies: Arc::default() }
    }

    fn job(&self, id: &str) -> Bytes {
        key::pack(&self.space, &("jobs", JOB_TYPE, id))
    }

    fn active(&self, id: &str) -> Bytes {
        key::pack(&self.space, &("active", JOB_TYPE, WORKER, id))
    }

    /// Commits and records the duration; `false` if the transaction must run again.
    async fn commit(&self, tx: Transaction) -> bool {
        let start = Instant::now();
        if let Err(error) = tx.commit().await {
            assert!(error.is_retryable(), "{error}");
            return false;
        }
        let took_us = u32::try_from(start.elapsed().as_micros()).unwrap();
        self.latencies.lock().unwrap().push(took_us);
        true
    }

    async fn add(&self, numbers: std::ops::Range<usize>) {
        loop {
            let tx = self.store.begin().await.unwrap();
            for number in numbers.clone() {
                let id = id(number);
                let job = self.job(&id);
                assert!(tx.get(&job).await.unwrap().is_none());
                tx.set(job, record(number, "pending")).unwrap();
                let pending = key::pack(&self.space, &("pending", JOB_TYPE, number as i64, id));
                tx.set(pending, Bytes::new()).unwrap();
            }
            if self.commit(tx).await {
                return;
            }
        }
    }

    /// Claims up to `limit` jobs from the head.
    async fn claim(&self, limit: usize) -> Vec<(i64, String)> {
        let pending = key::children(&self.space, &("pending", JOB_TYPE));
        loop {
            let tx = self.store.begin().await.unwrap();
            let mut claimed = Vec::new();
            for (row, _) in tx.range(&pending, limit).await.unwrap() {
                let (_, _, number, id): (String, String, i64, String) = self.space.unpack(&row).unwrap();
                let job = self.job(&id);
                assert!(tx.get(&job).await.unwrap().is_some());
                tx.clear(row).unwrap();
                tx.set(job, record(number as usize, "running")).unwrap();
                tx.set(self.active(&id), Bytes::from_static(b"{\"state\":\"running\"}")).unwrap();
                claimed.push((number, id));
            }
            if self.commit(tx).await {
                return claimed;
            }
        }
    }

    async fn finish(&self, jobs: &[(i64, String)]) {
        loop {
            let tx = self.store.begin().await.unwrap();
            for (number, id) in jobs {
                let job = self.job(id);
                assert!(tx.get(&job).await.unwrap().is_some());
                tx.clear(self.active(id)).unwrap();
                tx.set(job, record(*number as usize, "completed")).unwrap();
            }
            if self.commit(tx).await {
                return;
            }
        }
    }

    /// Runs a phase and prints its line.
    async fn phase(&self, name: &str, jobs: usize, run: impl Future<Output = ()>) -> Phase {
        self.latencies.lock().unwrap().clear();
        let (before, start, cpu) = (self.engine.stats(), Instant::now(), cpu_seconds());
        run.await;
        let phase = Phase { elapsed: start.elapsed(), before, after: self.engine.stats() };
        let mut latencies = std::mem::take(&mut *self.latencies.lock().unwrap());
        latencies.sort_unstable();
        let at = |percent: usize| f64::from(latencies[(latencies.len() - 1) * percent / 100]) / 1_000.0;
        println!(
            "  {name:<42} {:>8.0} jobs/s  {:>6.1} tx/fsync {:>6.0} fsync/s  commit p50 {:.2} ms, p99 {:.2} ms  \
             {:>4.0} MB/s  {:>4.1} us CPU/job",
            jobs as f64 / phase.seconds(),
            phase.commits() / phase.groups(),
            phase.groups() / phase.seconds(),
            at(50),
            at(99),
            (phase.after.log_bytes - phase.before.log_bytes) as f64 / phase.seconds() / 1e6,
            (cpu_seconds() - cpu) / jobs as f64 * 1e6,
        );
        phase
    }
}

struct Phase {
    elapsed: Duration,
    before: Stats,
    after: Stats,
}

impl Phase {
    fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64()
    }

    fn commits(&self) -> f64 {
        (self.after.commits - self.before.commits) as f64
    }

    fn groups(&self) -> f64 {
        (self.after.groups - self.before.groups) as f64
    }
}

/// Ids increase with time.
fn id(number: usize) -> String {
    format!("{:012x}{:08x}", 0x0197_0000_0000_usize + number / 10, number.wrapping_mul(2_654_435_761) as u32)
}

fn record(number: usize, state: &str) -> Bytes {
    let mut json = String::with_capacity(VALUE_BYTES);
    write!(json, r#"{{"state":"{state}","number":{number},"filler":""#).unwrap();
    let mut noise = number as u64 | 1;
    while json.len() + 18 <= VALUE_BYTES {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        write!(json, "{noise:016x}").unwrap();
    }
    json.push_str("\"}");
    Bytes::from(json)
}

/// Divides the numbers below `jobs` among tasks, `batch` at a time.
async fn shared_out<F, Fut>(tasks: usize, jobs: usize, batch: usize, body: F)
where
    F: Fn(std::ops::Range<usize>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (next, body) = (next.clone(), body.clone());
            tokio::spawn(async move {
                loop {
                    let first = next.fetch_add(batch as u64, Ordering::Relaxed) as usize;
                    if first >= jobs {
                        return;
                    }
                    body(first..(first + batch).min(jobs)).await;
                }
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
}

async fn one_at_a_time(options: &Options, submitters: usize, disk: &Disk) {
    let jobs = options.jobs;
    println!("one job per transaction, {submitters} at a time, {jobs} jobs");
    let bench = Bench::open(&options.dir.join(format!("one-{submitters}")));
    let adding = bench.clone();
    let phase = bench
        .phase("enqueue", jobs, async move {
            shared_out(submitters, jobs, 1, move |numbers| {
                let bench = adding.clone();
                async move { bench.add(numbers).await }
            })
            .await;
        })
        .await;
    let limit = disk.fsyncs_per_s * submitters as f64;
    println!(
        "    all {submitters} in every fsync of this disk would be {limit:.0} tx/s: reached {:.0}%; \
         {:.0}% of its fsyncs used",
        phase.commits() / phase.seconds() / limit * 100.0,
        phase.groups() / phase.seconds() / disk.fsyncs_per_s * 100.0,
    );
    let claimed = Arc::new(Mutex::new(Vec::new()));
    let (claiming, into) = (bench.clone(), claimed.clone());
    bench
        .phase("claim, one worker, 20 at a time", jobs, async move {
            loop {
                let more = claiming.claim(20).await;
                if more.is_empty() {
                    return;
                }
                into.lock().unwrap().extend(more);
            }
        })
        .await;
    let claimed = Arc::new(std::mem::take(&mut *claimed.lock().unwrap()));
    assert_eq!(claimed.len(), jobs);
    let finishing = bench.clone();
    bench
        .phase("finish", jobs, async move {
            shared_out(submitters, jobs, 1, move |numbers| {
                let (bench, claimed) = (finishing.clone(), claimed.clone());
                async move { bench.finish(&claimed[numbers]).await }
            })
            .await;
        })
        .await;
    let through = bench.clone();
    bench
        .phase("all three at once, from add to finished", jobs, async move {
            end_to_end(through, submitters, jobs).await;
        })
        .await;
}

/// Submitters add one job at a time, a worker claims what is pending, and as many tasks as there are submitters finish it.
async fn end_to_end(bench: Bench, submitters: usize, jobs: usize) {
    let arrived = Arc::new(tokio::sync::Notify::new());
    let (to_finishers, claimed) = tokio::sync::mpsc::channel(jobs);
    let claimed = Arc::new(tokio::sync::Mutex::new(claimed));
    let adding = {
        let (bench, arrived) = (bench.clone(), arrived.clone());
        tokio::spawn(shared_out(submitters, jobs, 1, move |numbers| {
            let (bench, arrived) = (bench.clone(), arrived.clone());
            let numbers = numbers.start + jobs..numbers.end + jobs;
            async move {
                bench.add(numbers).await;
                arrived.notify_one();
            }
        }))
    };
    let claiming = {
        let bench = bench.clone();
        tokio::spawn(async move {
            let mut count = 0;
            while count < jobs {
                let more = bench.claim(BATCH).await;
                if more.is_empty() {
                    arrived.notified().await;
                }
                count += more.len();
                for job in more {
                    to_finishers.send(job).await.unwrap();
                }
            }
        })
    };
    let finishing: Vec<_> = (0..submitters)
        .map(|_| {
            let (bench, claimed) = (bench.clone(), claimed.clone());
            tokio::spawn(async move {
                loop {
                    let Some(job) = claimed.lock().await.recv().await else { return };
                    bench.finish(&[job]).await;
                }
            })
        })
        .collect();
    adding.await.unwrap();
    claiming.await.unwrap();
    for task in finishing {
        task.await.unwrap();
    }
}

async fn in_batches(options: &Options) {
    let (jobs, submitters) = (options.jobs, options.submitters);
    Disk::measure(&options.dir);
    println!("{BATCH} jobs per transaction, {jobs} jobs");
    let bench = Bench::open(&options.dir.join("batches"));
    for (tasks, from) in [(1, 0), (submitters, jobs)] {
        let adding = bench.clone();
        let name = format!("enqueue, {tasks} at a time");
        let phase = shared_out(tasks, jobs, BATCH, move |numbers| {
            let bench = adding.clone();
            async move { bench.add(numbers.start + from..numbers.end + from).await }
        });
        bench.phase(&name, jobs, phase).await;
    }
    let mut claimed = Vec::new();
    let claiming = async {
        loop {
            let more = bench.claim(BATCH).await;
            if more.is_empty() {
                return;
            }
            claimed.extend(more);
        }
    };
    bench.phase("claim, one worker", 2 * jobs, claiming).await;
    assert_eq!(claimed.len(), 2 * jobs);
    let (claimed, finishing) = (Arc::new(claimed), bench.clone());
    let phase = shared_out(submitters, 2 * jobs, BATCH, move |numbers| {
        let (bench, claimed) = (finishing.clone(), claimed.clone());
        async move { bench.finish(&claimed[numbers]).await }
    });
    bench.phase(&format!("finish, {submitters} at a time"), 2 * jobs, phase).await;
}

async fn with_a_backlog(options: &Options) {
    let jobs = options.backlog;
    println!("\na backlog of {jobs} jobs, filled by another process that is killed (kill -9) then");
    let path = options.dir.join("backlog");
    let mut filler = Command::new(std::env::current_exe().unwrap())
        .args(["fill-and-wait".as_ref(), path.as_os_str()])
        .arg(jobs.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(filler.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    print!("{line}");
    filler.kill().unwrap();
    filler.wait().unwrap();
    let before_mb = memory_mb();
    let start = Instant::now();
    let bench = Bench::open(&path);
    let opened = start.elapsed();
    let first = bench.engine.snapshot().await.unwrap();
    drop(first);
    println!(
        "  opened again in {:.0} ms; {} MB on the disk, {} MB of memory more than without",
        opened.as_secs_f64() * 1e3,
        disk_mb(&path),
        memory_mb().saturating_sub(before_mb),
    );
    for (limit, count) in [(BATCH, 40_000.min(jobs / 4)), (1, 2_000.min(jobs / 8))] {
        let mut claimed = Vec::new();
        let claiming = async {
            while claimed.len() < count {
                claimed.extend(bench.claim(limit).await);
            }
        };
        bench.phase(&format!("claim, {limit} at a time"), count, claiming).await;
        let finishing = async {
            for jobs in claimed.chunks(limit) {
                bench.finish(jobs).await;
            }
        };
        bench.phase(&format!("finish, {limit} at a time"), count, finishing).await;
    }
    println!("  {} MB of memory more than without", memory_mb().saturating_sub(before_mb));
}

async fn fill_and_wait(path: &Path, jobs: usize) {
    let before_mb = memory_mb();
    let bench = Bench::open(path);
    let start = Instant::now();
    let filling = bench.clone();
    shared_out(2, jobs, BATCH * 5, move |numbers| {
        let bench = filling.clone();
        async move { bench.add(numbers).await }
    })
    .await;
    println!(
        "  filled, 1000 at a time: {:.0} jobs/s, {} checkpoints, {} MB of memory",
        jobs as f64 / start.elapsed().as_secs_f64(),
        bench.engine.stats().checkpoints,
        memory_mb().saturating_sub(before_mb),
    );
    std::future::pending().await
}

/// Memory that belongs only to this process, in MB (0 where `/proc` is missing).
fn memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// CPU time of this process, in seconds (0 where `/proc` is missing).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = |word: Option<&str>| word.and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    (ticks(words.next()) + ticks(words.next())) / 100.0
}

fn disk_mb(path: &Path) -> u64 {
    let files = std::fs::read_dir(path).into_iter().flatten().flatten();
    let bytes = |file: std::fs::DirEntry| match file.metadata() {
        Ok(data) if data.is_dir() => disk_mb(&file.path()),
        Ok(data) => data.len() >> 20,
        Err(_) => 0,
    };
    files.map(bytes).sum()
}
