//! How long jobs wait for their worker while 1,000 others log 1,000 lines each, on `turnwise serve` with its embedded store. The clients run
//! in this process, on the same cores.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use turnwise_lab_bench::http_client::Connection;
use turnwise_lab_bench::server::Server;
use turnwise_lab_bench::times::Times;
use turnwise_lab_bench::{Program, empty, number, remove};
use turnwise_testkit::process;

/// The jobs that log.
const LOGGING: usize = 1_000;
const LINES: usize = 1_000;
/// The most jobs in one response.
const ACCEPT: usize = 200;
/// The connections that send lines.
const SENDERS: usize = 4;
/// The time between two jobs whose dispatch is measured.
const INTERVAL: Duration = Duration::from_millis(5);
/// The time between two heartbeats of a worker.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// The number of jobs that are measured alone.
const ALONE: usize = 2_000;

const USAGE: &str = "options: --turnwise FILE  --dir DIR  --lines N (per report, 100)  --seconds N (0: as fast as it is accepted)  --rounds N (1)";

#[derive(Deserialize)]
struct Registered {
    worker: String,
}

#[derive(Deserialize)]
struct Accepted {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    id: String,
    claim: u64,
}

fn main() -> Result<(), String> {
    let Some(Program { turnwise, dir, runtime }) = Program::start(USAGE, "bench-logs")? else {
        return Ok(());
    };
    let dir = empty(&dir)?;
    for round in 0..number("--rounds", 1) {
        runtime.block_on(measure(&turnwise, &dir.join(round.to_string())))?;
    }
    remove(&dir)
}

async fn measure(turnwise: &Path, dir: &Path) -> Result<(), String> {
    let server = Server::turnwise(turnwise, &empty(dir)?, "")?;
    let port = server.port;
    dispatch(port, "warm-up", ALONE / 4, || false).await;
    let before = dispatch(port, "before", ALONE, || false).await;
    println!("alone:  {}", before.text());
    let logging = Logging::start(port).await;
    let (start, cpu) = (Instant::now(), process::family_cpu_seconds(server.process()));
    let sending = tokio::spawn(logging.send());
    let beside = dispatch(port, "beside", usize::MAX, || sending.is_finished()).await;
    sending.await.map_err(|error| error.to_string())?;
    let (seconds, lines) = (start.elapsed().as_secs_f64(), (LOGGING * LINES) as f64);
    let cpu = process::family_cpu_seconds(server.process()) - cpu;
    println!(
        "beside: {}; {:.0} lines/s, {:.1} µs of the server's CPU per line",
        beside.text(),
        lines / seconds,
        cpu / lines * 1e6
    );
    let after = dispatch(port, "after", ALONE, || false).await;
    println!("alone:  {}", after.text());
    let alone = (before.quantile(0.99) + after.quantile(0.99)) / 2.0;
    println!("p99 beside them: {:.2} times p99 alone", beside.quantile(0.99) / alone);
    Ok(())
}

async fn register(connection: &mut Connection, job_type: &str, slots: usize) -> String {
    let body = json!({ "slots": slots }).to_string();
    connection.post::<Registered>(&format!("/v1/workers/{job_type}"), &body).await.worker
}

/// Adds up to `most` jobs, one each [`INTERVAL`], until `done`. Returns the times from the request that adds a job to its arrival at a worker.
async fn dispatch(port: u16, name: &str, most: usize, done: impl Fn() -> bool) -> Times {
    let (sender, mut added) = mpsc::unbounded_channel::<(String, Instant)>();
    let worker = tokio::spawn(async move {
        let mut connection = Connection::open(port).await;
        let worker = register(&mut connection, "quick", 10).await;
        let (path, mut heartbeat) = (format!("/v1/workers/quick/{worker}"), Instant::now());
        let (mut received, mut ends, mut times) = (0, Vec::<Value>::new(), Vec::new());
        let mut known = std::collections::BTreeMap::new();
        loop {
            let body =
                json!({ "received": received, "limit": 10, "wait_ms": 100, "ends": { "finish": ends } });
            let accepted: Accepted = connection.post(&format!("{path}/accept"), &body.to_string()).await;
            let now = Instant::now();
            if now.duration_since(heartbeat) > HEARTBEAT {
                heartbeat = now;
                let serde::de::IgnoredAny = connection.post(&format!("{path}/ping"), "{}").await;
            }
            while let Ok((id, at)) = added.try_recv() {
                known.insert(id, at);
            }
            ends.clear();
            for Job { id, claim } in accepted.jobs {
                received = received.max(claim);
                let at = known.remove(&id).expect("it was added");
                times.push(now.duration_since(at).as_secs_f64() * 1e3);
                ends.push(json!({ "id": id, "claim": claim, "result": true }));
            }
            if ends.is_empty() && known.is_empty() && added.is_closed() && added.is_empty() {
                break;
            }
        }
        times
    });
    let mut connection = Connection::open(port).await;
    let mut next = tokio::time::interval(INTERVAL);
    let mut number = 0;
    while number < most && !done() {
        next.tick().await;
        let id = format!("{name}-{number}");
        sender.send((id.clone(), Instant::now())).expect("the worker runs");
        let body = json!({ "id": id, "options": null }).to_string();
        let serde::de::IgnoredAny = connection.post("/v1/jobs/quick", &body).await;
        number += 1;
    }
    drop(sender);
    Times::of(worker.await.expect("nothing fails"))
}

/// Jobs that run, and log.
struct Logging {
    port: u16,
    path: String,
    jobs: Vec<Job>,
}

impl Logging {
    /// Adds the jobs, and accepts all of them.
    async fn start(port: u16) -> Logging {
        let mut connection = Connection::open(port).await;
        for first in (0..LOGGING).step_by(ACCEPT) {
            let job = |n| json!({ "type": "chatty", "id": format!("chatty-{n}"), "options": null });
            let jobs: Vec<Value> = (first..first + ACCEPT).map(job).collect();
            let serde::de::IgnoredAny =
                connection.post("/v1/jobs", &json!({ "jobs": jobs }).to_string()).await;
        }
        let worker = register(&mut connection, "chatty", LOGGING).await;
        let path = format!("/v1/workers/chatty/{worker}");
        let mut jobs: Vec<Job> = Vec::new();
        while jobs.len() < LOGGING {
            let received = jobs.iter().map(|job| job.claim).max().unwrap_or(0);
            let body = json!({ "received": received, "limit": ACCEPT, "wait_ms": 1_000 }).to_string();
            jobs.extend(connection.post::<Accepted>(&format!("{path}/accept"), &body).await.jobs);
        }
        Logging { port, path, jobs }
    }

    /// Sends the lines of all jobs, and ends them. The jobs log in turns, as they would if each ran by itself.
    async fn send(self) {
        let Logging { port, path, jobs } = self;
        let (per_report, seconds) = (number("--lines", 100), number("--seconds", 0));
        let reports = LINES.div_ceil(per_report);
        let begin = tokio::time::Instant::now();
        let all = (LOGGING * reports) as f64;
        let mut senders = tokio::task::JoinSet::new();
        for (nth, part) in jobs.chunks(LOGGING / SENDERS).enumerate() {
            let part: Vec<(String, u64)> = part.iter().map(|job| (job.id.clone(), job.claim)).collect();
            let path = path.clone();
            senders.spawn(async move {
                let mut connection = Connection::open(port).await;
                let mut sent = nth;
                for report in 0..reports {
                    for (id, claim) in &part {
                        let at = Duration::from_secs_f64(seconds as f64 * sent as f64 / all);
                        tokio::time::sleep_until(begin + at).await;
                        sent += SENDERS;
                        let line = |n| json!({ "level": "info", "message": format!("row {n} of report {report} was read and is as expected"), "fields": { "row": n } });
                        let lines: Vec<Value> = (0..per_report).map(line).collect();
                        let body = json!({ "claim": claim, "log": lines }).to_string();
                        let serde::de::IgnoredAny = connection.post(&format!("{path}/jobs/{id}/update"), &body).await;
                    }
                }
                for (id, claim) in &part {
                    let body = json!({ "claim": claim, "result": true }).to_string();
                    let serde::de::IgnoredAny = connection.post(&format!("{path}/jobs/{id}/finish"), &body).await;
                }
            });
        }
        let heartbeats = async {
            let mut connection = Connection::open(port).await;
            loop {
                let serde::de::IgnoredAny = connection.post(&format!("{path}/ping"), "{}").await;
                tokio::time::sleep(HEARTBEAT).await;
            }
        };
        tokio::select! {
            _ = senders.join_all() => {}
            () = heartbeats => {}
        }
    }
}
