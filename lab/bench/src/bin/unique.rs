//! What a unique key costs an add: the same jobs are added without a key and with keys of each kind, in turns, over HTTP, to `turnwise serve` with
//! its embedded store. The clients run in this process, on the same cores.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use turnwise_lab_bench::external::{AddedJob, add};
use turnwise_lab_bench::http_client::Connection;
use turnwise_lab_bench::server::Server;
use turnwise_lab_bench::times::{median, ratios};
use turnwise_lab_bench::{Program, all, empty, number, remove};
use turnwise_testkit::process;

const JOB_TYPE: &str = "noop";
/// Submitters that send one job per request, and those that send batches.
const SUBMITTERS: usize = 16;
const OF_BATCHES: usize = 4;
const BATCH: usize = 1_000;
/// A part of the jobs is added before the measurement.
const WARM_UP_PART: usize = 10;

const USAGE: &str = "options: --turnwise FILE  --dir DIR  --jobs N (20000, one per request)  --batched N (100000, 1000 per request)  --rounds N (5)";

/// The key of the added jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    None,
    /// Until the end, by a text.
    Text,
    /// The same, made of a member of the options.
    Member,
    WhileWaiting,
    Period,
    /// One key, which another job has: no job is added.
    Found,
}

impl Key {
    const ALL: [Key; 6] = [Key::None, Key::Text, Key::Member, Key::WhileWaiting, Key::Period, Key::Found];

    fn name(self) -> &'static str {
        match self {
            Key::None => "no key",
            Key::Text => "until_end, key",
            Key::Member => "until_end, of",
            Key::WhileWaiting => "while_waiting, key",
            Key::Period => "period, key",
            Key::Found => "until_end, found",
        }
    }

    fn expected(self) -> &'static str {
        if self == Key::Found { "found" } else { "queued" }
    }

    fn job(self, number: usize) -> Value {
        let mut job = json!({ "id": format!("job-{number:012}"), "options": { "customer": number } });
        let key = format!("customer-{number}");
        let unique = match self {
            Key::None => return job,
            Key::Text => json!({ "mode": "until_end", "key": key }),
            Key::Member => json!({ "mode": "until_end", "of": ["/customer"] }),
            Key::WhileWaiting => json!({ "mode": "while_waiting", "key": key }),
            Key::Period => json!({ "mode": "period", "period_ms": 3_600_000, "key": key }),
            Key::Found => json!({ "mode": "until_end", "key": "customer" }),
        };
        job["unique"] = unique;
        job
    }
}

/// The adds of one kind of requests.
#[derive(Clone, Copy)]
struct Phase {
    adds_per_s: f64,
    cpu_us: f64,
}

fn main() -> Result<(), String> {
    let Some(Program { turnwise, dir, runtime }) = Program::start(USAGE, "bench-unique")? else {
        return Ok(());
    };
    let (jobs, batched) = (number("--jobs", 20_000), number("--batched", 100_000));
    println!(
        "adds: {jobs} jobs, one per request, {SUBMITTERS} submitters; {batched} jobs, {BATCH} per request, {OF_BATCHES} submitters"
    );
    println!("{:>8}{:>20} |{:>10}{:>12} |{:>10}{:>12}", "round", "", "adds/s", "CPU us", "batched", "CPU us");
    let mut rounds: Vec<[[Phase; 2]; 6]> = Vec::new();
    for round in 0..number("--rounds", 5) {
        let mut of_round = [None; 6];
        // Each kind comes first once.
        for turn in 0..Key::ALL.len() {
            let index = (round + turn) % Key::ALL.len();
            let run =
                runtime.block_on(measure(&turnwise, &empty(&dir)?, Key::ALL[index], [jobs, batched]))?;
            print(&(round + 1).to_string(), Key::ALL[index], &run);
            of_round[index] = Some(run);
        }
        rounds.push(of_round.map(|run| run.expect("each kind had its turn")));
    }
    for (index, key) in Key::ALL.into_iter().enumerate() {
        let middle = [0, 1].map(|phase| {
            let of =
                |figure: fn(&Phase) -> f64| median(rounds.iter().map(|round| figure(&round[index][phase])));
            Phase { adds_per_s: of(|phase| phase.adds_per_s), cpu_us: of(|phase| phase.cpu_us) }
        });
        print("median", key, &middle);
    }
    println!("against adds without a key, median of the rounds (and their range):");
    for (index, key) in Key::ALL.into_iter().enumerate().skip(1) {
        for (phase, how) in ["one per request", "batched"].into_iter().enumerate() {
            let of = |figure: fn(&Phase) -> f64| {
                ratios(rounds.iter().map(|round| figure(&round[index][phase]) / figure(&round[0][phase])))
            };
            let (speed, cpu) = (of(|phase| phase.adds_per_s), of(|phase| phase.cpu_us));
            println!("{:>20}, {how:<16} adds/s {speed}; CPU per add {cpu}", key.name());
        }
    }
    remove(&dir)
}

fn print(round: &str, key: Key, [one, batched]: &[Phase; 2]) {
    println!(
        "{round:>8}{:>20} |{:>10.0}{:>12.2} |{:>10.0}{:>12.2}",
        key.name(),
        one.adds_per_s,
        one.cpu_us,
        batched.adds_per_s,
        batched.cpu_us
    );
}

async fn measure(
    turnwise: &Path,
    dir: &Path,
    key: Key,
    [jobs, batched]: [usize; 2],
) -> Result<[Phase; 2], String> {
    let server = Server::turnwise(turnwise, dir, "")?;
    let port = server.port;
    if key == Key::Found {
        let mut holder = key.job(0);
        holder["id"] = json!("holder");
        add_one(&mut Connection::open(port).await, &holder, "queued").await?;
    }
    let warm_up = jobs / WARM_UP_PART;
    let mut first = 0;
    add_all(port, key, first..first + warm_up, 1).await?;
    first += warm_up;
    let mut phases = [Phase { adds_per_s: 0.0, cpu_us: 0.0 }; 2];
    for (phase, (jobs, batch)) in phases.iter_mut().zip([(jobs, 1), (batched, BATCH)]) {
        let (begin, before_s) = (Instant::now(), process::family_cpu_seconds(server.process()));
        add_all(port, key, first..first + jobs, batch).await?;
        let (seconds, after_s) =
            (begin.elapsed().as_secs_f64(), process::family_cpu_seconds(server.process()));
        *phase =
            Phase { adds_per_s: jobs as f64 / seconds, cpu_us: (after_s - before_s) / jobs as f64 * 1e6 };
        first += jobs;
    }
    Ok(phases)
}

/// Adds the jobs with these numbers. Every submitter waits for its acknowledgement.
async fn add_all(port: u16, key: Key, numbers: std::ops::Range<usize>, batch: usize) -> Result<(), String> {
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let mut submitters = JoinSet::new();
    for _ in 0..if batch == 1 { SUBMITTERS } else { OF_BATCHES } {
        let (next, end) = (next.clone(), numbers.end);
        submitters.spawn(async move {
            let mut connection = Connection::open(port).await;
            loop {
                let first = next.fetch_add(batch, Relaxed);
                if first >= end {
                    return Ok(());
                }
                if batch == 1 {
                    add_one(&mut connection, &key.job(first), key.expected()).await?;
                    continue;
                }
                let job = |number| {
                    let mut job = key.job(number);
                    job["type"] = json!(JOB_TYPE);
                    job
                };
                let jobs: Vec<Value> = (first..(first + batch).min(end)).map(job).collect();
                let count = jobs.len();
                add(&mut connection, &json!({ "jobs": jobs }), count, key.expected()).await?;
            }
        });
    }
    all(submitters).await.map(drop)
}

async fn add_one(connection: &mut Connection, job: &Value, expected: &str) -> Result<(), String> {
    let path = format!("/v1/jobs/{JOB_TYPE}");
    let added: AddedJob = connection.send("POST", &path, &job.to_string()).await?;
    if added.added == expected { Ok(()) } else { Err(format!("{added:?}: `{expected}` is expected")) }
}
