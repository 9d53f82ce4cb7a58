//! Many pending jobs: their memory, and the time to open their store after `kill -9`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::value::RawValue;
use turnwise_queue::{DEFAULT_TENANT, Keyspace, NewJob, jobs, tenants};
use turnwise_store::embedded::Embedded;
use turnwise_store::{Store, runtime};
use turnwise_testkit::process;

const JOB_TYPE: &str = "noop";
const BATCH: usize = 1_000;
const SUBMITTERS: usize = 4;

/// Fills a store with one process, kills that process, and opens the store with another one.
pub fn measure(dir: &Path, jobs: usize) -> Result<(), String> {
    println!("\n{jobs} jobs that wait");
    let filled = talk("fill", dir, jobs)?;
    let opened = talk("open", dir, jobs)?;
    let per_job = |bytes: f64| bytes / jobs as f64;
    println!("  added, {BATCH} per transaction: {:.0} jobs/s", jobs as f64 / filled[0]);
    println!(
        "  memory of the process that added them: {:.0} bytes per job (RSS, grown by {:.0} MB)",
        per_job(filled[1]),
        filled[1] / 1e6
    );
    println!(
        "  open again after kill -9: {:.0} ms, and {:.1} ms more to the first job of the queue",
        opened[0] * 1e3,
        opened[2] * 1e3
    );
    println!(
        "  memory after that: {:.0} bytes per job (RSS, grown by {:.0} MB)",
        per_job(opened[1]),
        opened[1] / 1e6
    );
    Ok(())
}

/// Runs a part as a process, reads its one line of numbers, and kills it.
fn talk(part: &str, dir: &Path, jobs: usize) -> Result<Vec<f64>, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command.args(["backlog", part]).arg(dir).arg(jobs.to_string()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().expect("standard output is piped")).read_line(&mut line);
    // On Unix this is SIGKILL.
    let _ = child.kill();
    let _ = child.wait();
    read.map_err(|error| error.to_string())?;
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if numbers.len() == 3 { Ok(numbers) } else { Err(format!("the part {part} said {line:?}")) }
}

/// Runs a part in its own process. Prints `seconds bytes seconds`.
pub fn main(words: &[String]) {
    let [part, dir, jobs] = words else { panic!("three words are expected, not {words:?}") };
    let (dir, jobs) = (PathBuf::from(dir), jobs.parse().expect("a number of jobs"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("the runtime starts");
    runtime.block_on(async {
        match part.as_str() {
            "fill" => fill(&dir, jobs).await,
            _ => open(&dir).await,
        }
    });
}

fn memory_bytes() -> u64 {
    process::memory_bytes(std::process::id()).expect("this runs on Linux")
}

async fn fill(dir: &Path, jobs: usize) {
    let engine = Embedded::open(dir.join("store")).expect("the store opens");
    let store = Store::new(engine, Arc::new(runtime::System));
    let (before, start) = (memory_bytes(), Instant::now());
    let next = Arc::new(AtomicUsize::new(0));
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let first = next.fetch_add(BATCH, Ordering::Relaxed);
                    if first >= jobs {
                        return;
                    }
                    add(&store, first..(first + BATCH).min(jobs)).await;
                }
            })
        })
        .collect();
    for submitter in submitters {
        submitter.await.expect("adding does not panic");
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{seconds} {} 0", memory_bytes().saturating_sub(before));
    std::future::pending().await
}

async fn add(store: &Store, numbers: std::ops::Range<usize>) {
    let options = RawValue::from_string(r#"{"to":"someone@example.org"}"#.to_owned()).expect("this is JSON");
    let new: Vec<_> =
        numbers.map(|number| NewJob::new(JOB_TYPE, &format!("job-{number:012}"), options.clone())).collect();
    let (new, keys, now_us) = (&new, &Keyspace::default(), store.runtime().now_us());
    let added = store.transact(|tx| async move {
        for new in new {
            jobs::add_once(&tx, keys, new, now_us).await?;
        }
        Ok::<_, turnwise_queue::Error>(())
    });
    added.await.expect("the store takes jobs");
}

async fn open(dir: &Path) {
    let (before, start) = (memory_bytes(), Instant::now());
    let engine = Embedded::open(dir.join("store")).expect("the store opens");
    let opened = start.elapsed().as_secs_f64();
    let store = Store::new(engine, Arc::new(runtime::System));
    let tx = store.begin().await.expect("the store can be read");
    let front = tenants::front(&tx, &Keyspace::default(), JOB_TYPE, DEFAULT_TENANT, 1).await;
    let front = front.expect("the store can be read");
    // Which one is first depends on the submitters.
    assert_eq!(front.len(), 1);
    let first = start.elapsed().as_secs_f64() - opened;
    // The background work of opening counts for its memory.
    std::thread::sleep(std::time::Duration::from_secs(2));
    println!("{opened} {} {first}", memory_bytes().saturating_sub(before));
    std::future::pending().await
}
