//! What a group costs its jobs: many jobs are added, run by external workers and ended, without a group, in one group, and as arrays in one
//! group, in turns, on `turnwise serve` with its embedded store. The clients run in this process, on the same cores.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;
use turnwise_lab_bench::external::{Callback, Worker, add};
use turnwise_lab_bench::http_client::Connection;
use turnwise_lab_bench::server::Server;
use turnwise_lab_bench::times::{median, ratios};
use turnwise_lab_bench::{Program, all, empty, number, remove};
use turnwise_testkit::process;

/// The most jobs of one request, and of one with an array.
const BATCH: usize = 1_000;
const ARRAY: usize = 10_000;
const SUBMITTERS: usize = 4;
const WORKERS: usize = 4;
const SLOTS: usize = 100;
/// How long a worker's request waits for jobs.
const WAIT: Duration = Duration::from_millis(10);
/// A run that takes longer has lost a job.
const PATIENCE: Duration = Duration::from_secs(900);
/// How long no second callback may come.
const NO_OTHER: Duration = Duration::from_millis(500);
/// A part of the jobs runs before the measurement.
const WARM_UP_PART: usize = 20;

const USAGE: &str = "options: --turnwise FILE  --dir DIR  --jobs N (100000)  --rounds N (5)";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Without,
    Group,
    Arrays,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Without, Kind::Group, Kind::Arrays];

    fn name(self) -> &'static str {
        match self {
            Kind::Without => "without",
            Kind::Group => "group",
            Kind::Arrays => "arrays",
        }
    }

    /// The number of jobs that one request adds.
    fn batch(self) -> usize {
        if self == Kind::Arrays { ARRAY } else { BATCH }
    }

    /// The request that adds the jobs with these numbers.
    fn request(self, job_type: &str, numbers: std::ops::Range<usize>) -> Value {
        if self == Kind::Arrays {
            let id = format!("array-{:012}", numbers.start);
            let array = json!({ "type": job_type, "id": id, "count": numbers.len(), "options": null, "group": "all" });
            return json!({ "jobs": [array] });
        }
        let job = |number| {
            let id = format!("job-{number:012}");
            match self {
                Kind::Group => json!({ "type": job_type, "id": id, "options": null, "group": "all" }),
                _ => json!({ "type": job_type, "id": id, "options": null }),
            }
        };
        json!({ "jobs": numbers.map(job).collect::<Vec<_>>() })
    }
}

#[derive(Clone, Copy)]
struct Run {
    add_s: f64,
    run_s: f64,
    /// From the first add to the last end, or to the start of the callback.
    all_s: f64,
    add_cpu_us: f64,
    run_cpu_us: f64,
    /// From the response to the last end to the callback's arrival at its worker.
    callback_ms: f64,
}

fn main() -> Result<(), String> {
    let Some(Program { turnwise, dir, runtime }) = Program::start(USAGE, "bench-groups")? else {
        return Ok(());
    };
    let (jobs, rounds) = (number("--jobs", 100_000), number("--rounds", 5));
    println!(
        "{jobs} jobs, {SUBMITTERS} submitters with {BATCH} jobs per request ({ARRAY} of an array), then {WORKERS} workers with {SLOTS} slots each"
    );
    println!(
        "{:>8}{:>10} |{:>9}{:>9}{:>9} |{:>9}{:>9} |{:>13}",
        "round", "", "add s", "run s", "all s", "add", "run", "callback ms"
    );
    println!("{:>18} |{:>27} |{:>18} |", "", "", "CPU us per job");
    let mut runs: Vec<[Run; 3]> = Vec::new();
    for round in 0..rounds {
        let mut of_round = [None; 3];
        // Each kind comes first once.
        for turn in 0..Kind::ALL.len() {
            let index = (round + turn) % Kind::ALL.len();
            let kind = Kind::ALL[index];
            empty(&dir)?;
            let run = async { timeout(PATIENCE, measure(&turnwise, &dir, kind, jobs)).await };
            let run = runtime.block_on(run);
            let run = run.map_err(|_| format!("{}: jobs or the callback have not run", kind.name()))??;
            print(&(round + 1).to_string(), kind, &run);
            of_round[index] = Some(run);
        }
        runs.push(of_round.map(|run| run.expect("each kind had its turn")));
    }
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        let of = |figure: fn(&Run) -> f64| median(runs.iter().map(|round| figure(&round[index])));
        let middle = Run {
            add_s: of(|run| run.add_s),
            run_s: of(|run| run.run_s),
            all_s: of(|run| run.all_s),
            add_cpu_us: of(|run| run.add_cpu_us),
            run_cpu_us: of(|run| run.run_cpu_us),
            callback_ms: of(|run| run.callback_ms),
        };
        print("median", kind, &middle);
    }
    println!("against the same jobs without a group, median of the rounds (and their range):");
    for (index, kind) in Kind::ALL.into_iter().enumerate().skip(1) {
        let of = |figure: fn(&Run) -> f64| {
            ratios(runs.iter().map(|round| figure(&round[index]) / figure(&round[0])))
        };
        println!("  {:<7} end to end {}", kind.name(), of(|run| run.all_s));
        println!("  {:<7} CPU per job: added {}", "", of(|run| run.add_cpu_us));
        println!("  {:<7} CPU per job: run {}", "", of(|run| run.run_cpu_us));
        println!("  {:<7} CPU per job: both {}", "", of(|run| run.add_cpu_us + run.run_cpu_us));
    }
    remove(&dir)
}

fn print(round: &str, kind: Kind, run: &Run) {
    println!(
        "{round:>8}{:>10} |{:>9.2}{:>9.2}{:>9.2} |{:>9.2}{:>9.2} |{:>13.1}",
        kind.name(),
        run.add_s,
        run.run_s,
        run.all_s,
        run.add_cpu_us,
        run.run_cpu_us,
        run.callback_ms
    );
}

async fn measure(turnwise: &Path, dir: &Path, kind: Kind, jobs: usize) -> Result<Run, String> {
    let server = Server::turnwise(turnwise, dir, "")?;
    let port = server.port;
    let warm_up = jobs / WARM_UP_PART;
    add_all(port, Kind::Without, "warm-up", warm_up).await?;
    work(port, "warm-up", warm_up).await?;
    let mut connection = Connection::open(port).await;
    let called = tokio::spawn(callback(port, kind, jobs));
    let cpu_s = || process::family_cpu_seconds(server.process());
    let (begin, before_s) = (Instant::now(), cpu_s());
    if kind != Kind::Without {
        let group = json!({ "name": "all", "on_complete": { "type": "after" } }).to_string();
        let IgnoredAny = connection.send("POST", "/v1/groups", &group).await?;
    }
    add_all(port, kind, "noop", jobs).await?;
    if kind != Kind::Without {
        let IgnoredAny = connection.send("POST", "/v1/groups/default/all/close", "{}").await?;
    }
    let (added, added_s) = (Instant::now(), cpu_s());
    let ended = work(port, "noop", jobs);
    let (ended, called, ended_s) = if kind == Kind::Without {
        called.abort();
        let ended = ended.await?;
        (ended, ended, cpu_s())
    } else {
        let called = async { called.await.map_err(|error| error.to_string())? };
        let (ended, (called, mut worker)) = tokio::try_join!(ended, called)?;
        let ended_s = cpu_s();
        // The first request ends the callback, and does not wait.
        for _ in 0..2 {
            if let Some(other) = worker.accept(1, NO_OTHER).await?.first() {
                return Err(format!("the group has called twice: {other:?}"));
            }
        }
        (ended, called, ended_s)
    };
    let us_per_job = |cpu_s: f64| cpu_s / jobs as f64 * 1e6;
    // The callback may start before the last response has arrived.
    let callback_s = called.saturating_duration_since(ended).as_secs_f64()
        - ended.saturating_duration_since(called).as_secs_f64();
    Ok(Run {
        add_s: added.duration_since(begin).as_secs_f64(),
        run_s: ended.duration_since(added).as_secs_f64(),
        all_s: ended.max(called).duration_since(begin).as_secs_f64(),
        add_cpu_us: us_per_job(added_s - before_s),
        run_cpu_us: us_per_job(ended_s - added_s),
        callback_ms: if kind == Kind::Without { f64::NAN } else { callback_s * 1e3 },
    })
}

/// Adds the jobs. Every submitter waits for its acknowledgement.
async fn add_all(port: u16, kind: Kind, job_type: &'static str, jobs: usize) -> Result<(), String> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut submitters = JoinSet::new();
    for _ in 0..SUBMITTERS {
        let next = next.clone();
        submitters.spawn(async move {
            let mut connection = Connection::open(port).await;
            loop {
                let first = next.fetch_add(kind.batch(), Relaxed);
                if first >= jobs {
                    return Ok(());
                }
                let numbers = first..(first + kind.batch()).min(jobs);
                let count = numbers.len();
                add(&mut connection, &kind.request(job_type, numbers), count, "queued").await?;
            }
        });
    }
    all(submitters).await.map(drop)
}

/// Runs `jobs` jobs. Returns when the last end was acknowledged.
async fn work(port: u16, job_type: &'static str, jobs: usize) -> Result<Instant, String> {
    let ended = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let ended = ended.clone();
        workers.spawn(async move {
            let mut worker = Worker::register(port, job_type, SLOTS).await?;
            let (mut held, mut last) = (0, Instant::now());
            while ended.load(Relaxed) < jobs {
                let accepted = worker.accept(SLOTS, WAIT).await?;
                if held > 0 {
                    last = Instant::now();
                    ended.fetch_add(held, Relaxed);
                }
                held = accepted.len();
            }
            Ok(last)
        });
    }
    all(workers).await?.into_iter().max().ok_or("there are no workers".to_owned())
}

/// When the callback arrives at its worker, which is the only one, and knows how the jobs of the group have ended.
async fn callback(port: u16, kind: Kind, jobs: usize) -> Result<(Instant, Worker), String> {
    let mut worker = Worker::register(port, "after", 1).await?;
    let accepted = loop {
        let accepted = worker.accept(1, Duration::from_secs(1)).await?;
        if !accepted.is_empty() {
            break accepted;
        }
    };
    let now = Instant::now();
    // Each array is one in the group.
    let members = if kind == Kind::Arrays { jobs.div_ceil(ARRAY) } else { jobs };
    let right = |Callback { group, counts }: &Callback| {
        group == "all" && counts.total == members && counts.completed == members
    };
    if !accepted[0].callback.as_ref().is_some_and(right) {
        return Err(format!("the callback is {:?}; {members} are in the group", accepted[0]));
    }
    Ok((now, worker))
}
