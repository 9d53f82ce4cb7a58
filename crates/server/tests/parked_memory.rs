//! Memory per parked replication: allocated bytes, counted in a process that does nothing else.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::TestServer;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use turnwise_queue::{Keyspace, parking};
use turnwise_replicator::JOB_TYPE;
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Store, Transaction, runtime};
use turnwise_testkit::{Fake, Reply, Step, process};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// The server that has the sources and the target.
const PEER: &str = "TURNWISE_TEST_PEER";
/// The numbers of parked jobs at which memory is measured. Other numbers are for manual measurements.
const JOBS: (&str, &str) = ("TURNWISE_TEST_JOBS", "500,1500");
/// The size of a segment of the store's log, and of its page cache. These bound the store's memory, independent of the
/// number of jobs. They are small here, so that the store reaches them before the first measurement.
const SEGMENT_BYTES: (&str, &str) = ("TURNWISE_TEST_SEGMENT_BYTES", "131072");
/// See [`SEGMENT_BYTES`].
const CACHE_BYTES: (&str, &str) = ("TURNWISE_TEST_CACHE_BYTES", "1048576");

/// Maximum memory of an idle job.
const ALLOWED_BYTES: usize = 4_000;
/// Allocations that vary while nothing happens: reports, connections, responses.
const NOISE_BYTES: usize = 20_000;
/// How long memory has not fallen before it counts.
const QUIET: Duration = Duration::from_secs(8);

/// The number of parked jobs, without those that no node watches yet.
async fn parked(store: &Store) -> usize {
    let keys = &Keyspace::default();
    let count = |tx: Transaction| async move {
        let mut count = 0;
        for group in parking::groups(&tx, keys, JOB_TYPE, None, 10).await? {
            count -= parking::unwatched(&tx, keys, JOB_TYPE, &group, 1_000).await?.len() as isize;
            let mut last = None;
            loop {
                let page = parking::list(&tx, keys, JOB_TYPE, &group, last.as_ref(), 1_000).await?;
                let Some(end) = page.last() else { break };
                count += page.len() as isize;
                last = Some(end.clone());
            }
        }
        Ok::<_, turnwise_queue::Error>(count)
    };
    usize::try_from(store.transact(count).await.unwrap()).unwrap()
}

/// The number of allocated bytes, once it has not fallen for [`QUIET`]. The last runs, their connections and the store's work after
/// them hold about 2 MB for some seconds more.
async fn allocated() -> usize {
    let (mut lowest, mut fell) = (ALLOCATED.current_usage(), Instant::now());
    while fell.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Compared with the last fall that was counted, so that a slow one counts, too.
        let now = ALLOCATED.current_usage();
        if now + NOISE_BYTES < lowest {
            (lowest, fell) = (now, Instant::now());
        }
    }
    lowest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other test runs it, in a process of its own"]
async fn a_server_parks_the_jobs_that_the_environment_names() {
    let [peer, jobs, segment, cache] =
        [PEER, JOBS.0, SEGMENT_BYTES.0, CACHE_BYTES.0].map(|name| std::env::var(name).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (segment_bytes, cache_bytes) = (segment.parse().unwrap(), cache.parse().unwrap());
    let options = Options { durable: false, segment_bytes, cache_bytes, ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let store = Store::new(engine, Arc::new(runtime::System));
    // Idle connections are closed soon, so that they are not counted: they are kept for future runs, and belong to no parked job.
    let config =
        "max_jobs = 50\nstartup_jitter = 0\nconnection_timeout = 60000\nconnection_close_interval = 1000\n";
    let server = TestServer::start_on(&store, config).await;
    let mut seen: Vec<(usize, usize)> = Vec::new();
    let mut added = 0;
    for jobs in jobs.split(',').map(|jobs| jobs.parse::<usize>().unwrap()) {
        while added < jobs {
            let some = added..jobs.min(added + 100);
            added = some.end;
            let doc = |n| {
                json!({ "_id": format!("idle-{n}"), "source": format!("{peer}/source-{n}"),
                    "target": format!("{peer}/target"), "continuous": true })
            };
            let docs: Vec<Value> = some.map(doc).collect();
            server.post("/_replicator/_bulk_docs", &json!({ "docs": docs })).await;
        }
        while parked(&store).await < jobs {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        server.poll("/_active_tasks", |tasks| *tasks == json!([])).await;
        seen.push((jobs, allocated().await));
        let resident = process::memory_bytes(std::process::id()).unwrap();
        println!(
            "{jobs} parked: {} kB allocated, {} kB resident",
            seen[seen.len() - 1].1 / 1000,
            resident / 1000
        );
    }
    let ((few, before), (many, after)) = (seen[0], seen[seen.len() - 1]);
    let each = after.saturating_sub(before) / (many - few);
    println!("{each} bytes for each");
    assert!(each < ALLOWED_BYTES, "{each} bytes for each");
}

/// A server with any number of empty databases, which offers a feed of changes and has none.
async fn idle_server() -> (Fake, String) {
    let fake = Fake::start().await;
    fake.rule(|asked| {
        if asked.target.starts_with("/_dbs_info") {
            let asked = asked.json();
            let info = |name: &Value| json!({ "key": name, "info": { "update_seq": "0-incarnation0" } });
            let infos: Vec<Value> = asked["keys"].as_array().unwrap().iter().map(info).collect();
            return Some(Reply::json(200, &json!(infos)));
        }
        asked.target.starts_with("/_db_updates").then(|| match asked.parameter("feed") {
            Some("continuous") => {
                let heartbeat = [Step::Send("\n".into()), Step::Pause(Duration::from_secs(1))];
                Reply::steps(200, std::iter::repeat(heartbeat).flatten())
            }
            _ => Reply::json(200, &json!({ "results": [], "last_seq": "0-x" })),
        })
    });
    let url = fake.url();
    (fake, url.trim_end_matches("/db").to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_job_takes_less_than_four_kilobytes() {
    let (_server, url) = idle_server().await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "--nocapture", "a_server_parks_the_jobs_that_the_environment_names"])
        .env(PEER, url);
    for (name, value) in [JOBS, SEGMENT_BYTES, CACHE_BYTES] {
        command.env(name, std::env::var(name).unwrap_or_else(|_| value.to_owned()));
    }
    let run = tokio::task::spawn_blocking(move || process::run(command)).await.unwrap();
    println!("{}", run.output);
    assert!(run.output.contains("1 passed"));
}
