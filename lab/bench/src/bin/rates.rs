//! How a rate of starts is kept: two nodes of `turnwise serve` on one store in etcd, external workers at both, and more waiting jobs than may start.
//! One node is killed with SIGKILL, and started again. The starts have the times that the servers record.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use turnwise_client::protocol::{Action, EventKind, PutFilter, Rate, RateAlgorithm};
use turnwise_client::{AddJob, Added, Client, ListJobs, NewJob, Outcome, Run, WorkerOptions, work};
use turnwise_lab_bench::server::Server;
use turnwise_lab_bench::times::now_us;
use turnwise_lab_bench::{Program, all, empty, number, remove};
use turnwise_testkit::{EtcdCluster, free_ports};

const JOB_TYPE: &str = "limited";
const BATCH: usize = 500;
/// The workers at each node, which fail over to the other one.
const WORKERS: usize = 2;
const SLOTS: usize = 50;
/// Jobs that are left at the end, in periods.
const LEFT: usize = 20;
/// No job starts for so long at the beginning only if the server is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
const US: i64 = 1_000_000;
/// Seconds in a line of the table.
const LINE: usize = 10;
/// A second with fewer starts than this part of the rate is listed.
const AIM: f64 = 0.98;

const USAGE: &str = "options: --turnwise FILE  --dir DIR  --rate N (starts per second, 100)  --seconds N (60)  --kill N (the second of the kill, 30; 0 for none)  --down N (seconds until the start after it, 2)";

fn main() -> Result<(), String> {
    let Some(Program { turnwise, dir, runtime }) = Program::start(USAGE, "bench-rates")? else {
        return Ok(());
    };
    runtime.block_on(measure(&turnwise, &empty(&dir)?))?;
    remove(&dir)
}

async fn measure(turnwise: &Path, dir: &Path) -> Result<(), String> {
    let (rate, seconds) = (number("--rate", 100), number("--seconds", 60));
    let (kill, down) = (number("--kill", 30), number("--down", 2));
    let cluster = EtcdCluster::start().await.ok_or("etcd is not installed")?;
    let (store, ports) = (cluster.url("bench"), free_ports(2));
    let node = |n: usize, name: &str| Server::turnwise_on(turnwise, &store, ports[n], &dir.join(name));
    let mut first = Some(node(0, "first.log")?);
    let _second = node(1, "second.log")?;
    let client = |order: [usize; 2]| {
        let urls = order.map(|n| format!("http://127.0.0.1:{}", ports[n])).join(",");
        Client::new(&urls).map_err(|error| error.to_string())
    };
    // The second node stays.
    let stays = client([1, 0])?;
    prepare(&stays, rate, (seconds + LEFT) * rate).await?;
    let (stop, begun) = (CancellationToken::new(), Arc::new(Notify::new()));
    let mut workers = JoinSet::new();
    for n in 0..2 * WORKERS {
        let client = client([n % 2, 1 - n % 2])?;
        let options = WorkerOptions { slots: SLOTS, ..WorkerOptions::new(JOB_TYPE) };
        let (stop, begun) = (stop.clone(), begun.clone());
        workers.spawn(async move {
            let handler = move |_: Run| {
                begun.notify_one();
                async { Outcome::completed(&true) }
            };
            work(&client, options, handler, stop).await.map_err(|error| error.to_string())
        });
    }
    timeout(PATIENCE, begun.notified()).await.map_err(|_| "no job starts")?;
    let begin = Instant::now();
    let at = |seconds: usize| sleep_until(begin + Duration::from_secs(seconds as u64));
    let mut marks = Vec::new();
    if kill > 0 {
        at(kill).await;
        // Sends SIGKILL.
        drop(first.take());
        marks.push((now_us(), "the first node is killed"));
        at(kill + down).await;
        marks.push((now_us(), "it starts again"));
        first = Some(node(0, "first-again.log")?);
        marks.push((now_us(), "it listens"));
    }
    at(seconds + 1).await;
    if let Some(ended) = workers.try_join_next() {
        return Err(format!("a worker has ended: {ended:?}"));
    }
    stop.cancel();
    all(workers).await?;
    let starts = starts(&stays).await?;
    drop(first);
    report(&starts, rate, seconds, &marks)
}

/// Writes the rate, and adds the jobs.
async fn prepare(client: &Client, rate: usize, jobs: usize) -> Result<(), String> {
    let filter = PutFilter {
        action: Action::Rate,
        limit: None,
        rate: Some(Rate {
            at_most: u32::try_from(rate).map_err(|error| error.to_string())?,
            per_ms: 1_000,
            key: None,
            weight: 1,
            algorithm: RateAlgorithm::Window,
        }),
        when: format!("type = {JOB_TYPE}"),
        priority: 0,
        watermark_us: 0,
        note: None,
    };
    client.put_filter("rate", &filter).await.map_err(|error| error.to_string())?;
    for first in (0..jobs).step_by(BATCH) {
        let job = |number| {
            let options = RawValue::from_string("null".to_owned()).expect("this is JSON");
            let id = Some(format!("job-{number:06}"));
            NewJob::new(JOB_TYPE, AddJob { id, options: Some(options), ..AddJob::default() })
        };
        let new = (first..(first + BATCH).min(jobs)).map(job).collect();
        let added = client.add_many(new).await.map_err(|error| error.to_string())?;
        // A request that was repeated finds its own jobs.
        let right = |added: Added| matches!(added, Added::Queued | Added::Exists);
        if let Some(other) = added.iter().find(|job| !right(job.added)) {
            return Err(format!("{other:?}"));
        }
    }
    Ok(())
}

/// When jobs have started, in µs, in order.
async fn starts(client: &Client) -> Result<Vec<i64>, String> {
    let which = ListJobs { job_type: Some(JOB_TYPE.to_owned()), page: Some(1_000), ..ListJobs::default() };
    let jobs = client.list(which).all().await.map_err(|error| error.to_string())?;
    let (mut starts, mut again) = (Vec::new(), 0);
    for job in &jobs {
        let before = starts.len();
        let events = job.history.iter().filter(|event| event.kind == EventKind::Started);
        starts.extend(events.map(|event| event.at_us));
        again += (starts.len() - before).saturating_sub(1);
    }
    starts.sort_unstable();
    let waiting = jobs.iter().filter(|job| job.started_us.is_none()).count();
    println!(
        "{} jobs, {} starts, {again} of them of jobs that had started before; {waiting} jobs still wait",
        jobs.len(),
        starts.len()
    );
    match waiting {
        0 => Err("all jobs have started: there were too few".to_owned()),
        _ => Ok(starts),
    }
}

fn report(starts: &[i64], rate: usize, seconds: usize, marks: &[(i64, &str)]) -> Result<(), String> {
    let begin_us = *starts.first().ok_or("no job has started")?;
    let from_begin_s = |at_us: i64| (at_us - begin_us) as f64 / US as f64;
    // Of any second, whenever it begins, the one that begins with a start has the most.
    let within = |from_us: i64| {
        starts.partition_point(|at_us| *at_us < from_us + US)
            - starts.partition_point(|at_us| *at_us < from_us)
    };
    let most = starts.iter().map(|from_us| within(*from_us)).max().unwrap_or_default();
    println!(
        "most starts in any second: {most} of {rate}; the limit was {}",
        if most > rate { "EXCEEDED" } else { "kept" }
    );
    let per_second: Vec<usize> = (0..seconds)
        .map(|second| within(begin_us + i64::try_from(second).unwrap_or(i64::MAX) * US))
        .collect();
    println!("starts per second, from the first start on:");
    for (line, counts) in per_second.chunks(LINE).enumerate() {
        let counts: String = counts.iter().map(|count| format!("{count:>6}")).collect();
        println!("{:>6} s{counts}", line * LINE);
    }
    for (at_us, what) in marks {
        println!("{:>8.2} s: {what}", from_begin_s(*at_us));
    }
    if let Some((killed_us, _)) = marks.first() {
        let next = starts.iter().find(|at_us| *at_us > killed_us);
        let next_s = next.map_or(f64::NAN, |at_us| (at_us - killed_us) as f64 / US as f64);
        println!("the first start after the kill: {next_s:.3} s after it");
    }
    let longest = starts.windows(2).map(|pair| (pair[1] - pair[0], pair[0])).max();
    if let Some((gap_us, at_us)) = longest {
        println!(
            "longest time without a start: {:.3} s, at {:.2} s",
            gap_us as f64 / US as f64,
            from_begin_s(at_us)
        );
    }
    for (second, count) in per_second.iter().enumerate() {
        let share = *count as f64 / rate as f64;
        if share < AIM {
            println!("second {second}: {:.1} % of the rate", share * 100.0);
        }
    }
    let used: usize = per_second.iter().sum();
    println!(
        "used: {used} of {} starts, {:.2} %",
        rate * seconds,
        used as f64 / (rate * seconds) as f64 * 100.0
    );
    Ok(())
}
