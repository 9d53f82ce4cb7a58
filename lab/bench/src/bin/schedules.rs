//! What 10,000 schedules cost a server, on `turnwise serve` with its embedded store: processor time and memory while none is due, beside a server
//! without schedules; then the time until all have fired that are due at one instant, and how long other jobs wait for their worker meanwhile. The
//! clients run in this process, on the same cores.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use turnwise_lab_bench::external::Worker;
use turnwise_lab_bench::http_client::Connection;
use turnwise_lab_bench::server::Server;
use turnwise_lab_bench::times::{Times, median, now_us};
use turnwise_lab_bench::{Program, all, empty, number, remove};
use turnwise_testkit::process;

/// The connections that write schedules.
const WRITERS: usize = 8;
/// The schedules are spread over so many tenants, each of which may have 1,000.
const TENANTS: usize = 20;
/// How long a server is left alone before its idle time is measured.
const SETTLE: Duration = Duration::from_secs(10);
/// The time between two looks whether all have fired.
const LOOK: Duration = Duration::from_millis(20);
/// Schedules that have not fired after this time do not fire.
const PATIENCE: Duration = Duration::from_secs(120);
/// The slots of the worker that runs the jobs of the schedules.
const SLOTS: usize = 200;
/// After so many requests in a row without a job, no more jobs are expected.
const REQUESTS: usize = 20;
const US: i64 = 1_000_000;
const MINUTE_US: i64 = 60 * US;
const HOUR_US: i64 = 60 * MINUTE_US;

const USAGE: &str = "options: --turnwise FILE  --dir DIR  --schedules N (10000)  --seconds N (idle, 60)  --rounds N (fires, 10)  --rate N (other jobs per second, 20)  --lead N (seconds before each fire without other work, 20)";

fn main() -> Result<(), String> {
    let Some(Program { turnwise, dir, runtime }) = Program::start(USAGE, "bench-schedules")? else {
        return Ok(());
    };
    runtime.block_on(measure(&turnwise, &empty(&dir)?))?;
    remove(&dir)
}

async fn sleep_until_us(at_us: i64) {
    sleep(Duration::from_micros(u64::try_from(at_us - now_us()).unwrap_or(0))).await;
}

fn memory_mb(server: &Server) -> f64 {
    process::memory_bytes(server.process()).unwrap_or_default() as f64 / 1e6
}

async fn measure(turnwise: &Path, dir: &Path) -> Result<(), String> {
    let schedules = number("--schedules", 10_000);
    let without = Server::turnwise(turnwise, &empty(&dir.join("without"))?, "")?;
    let with = Server::turnwise(turnwise, &empty(&dir.join("with"))?, "")?;
    let at_start = memory_mb(&with);
    let begin = Instant::now();
    // In 12 hours, spread over an hour.
    let day_us = now_us() + 12 * HOUR_US;
    let hour = day_us / HOUR_US % 24;
    write_all(with.port, schedules, move |number| format!("{} {hour} * * *", number % 60)).await?;
    let write = begin.elapsed();
    println!("{schedules} schedules written in {:.1} s", write.as_secs_f64());
    sleep(SETTLE).await;
    let servers = [&without, &with];
    let cpu_s = || servers.map(|server| process::family_cpu_seconds(server.process()));
    let (before_s, begin) = (cpu_s(), Instant::now());
    sleep(Duration::from_secs(number("--seconds", 60) as u64)).await;
    let seconds = begin.elapsed().as_secs_f64();
    let after_s = cpu_s();
    let [of_without, of_with] = [0, 1].map(|n| (after_s[n] - before_s[n]) / seconds * 100.0);
    let [mb_without, mb_with] = servers.map(memory_mb);
    println!("idle for {seconds:.0} s, none due, both at the same time:");
    println!("{:>12}{:>14}{:>14}", "schedules", "% of a core", "memory, MB");
    println!("{:>12}{of_without:>14.3}{mb_without:>14.1}", 0);
    println!("{schedules:>12}{of_with:>14.3}{mb_with:>14.1}");
    println!(
        "difference: {:.3} % of a core, {:.1} MB ({:.0} bytes per schedule; {at_start:.1} MB before they were written)",
        of_with - of_without,
        mb_with - mb_without,
        (mb_with - mb_without) * 1e6 / schedules as f64
    );
    drop(without);
    fires(&with, schedules, write).await
}

/// Writes the schedules, each with the expression for its number. Those that exist change.
async fn write_all(
    port: u16,
    schedules: usize,
    cron: impl Fn(usize) -> String + Clone + Send + 'static,
) -> Result<(), String> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (next, cron) = (next.clone(), cron.clone());
        writers.spawn(async move {
            let mut connection = Connection::open(port).await;
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= schedules {
                    return Ok(());
                }
                let job = json!({ "type": "scheduled", "tenant": format!("tenant-{}", number % TENANTS), "options": { "number": number } });
                let body = json!({ "when": { "cron": cron(number) }, "job": job }).to_string();
                let path = format!("/v1/schedules/{}", name(number));
                let IgnoredAny = connection.send("PUT", &path, &body).await?;
            }
        });
    }
    all(writers).await.map(drop)
}

fn name(number: usize) -> String {
    format!("schedule-{number:06}")
}

/// A job whose dispatch was measured: when it was due to be added, in µs, and how long it then took to arrive at its worker, in ms.
type Dispatched = (i64, f64);

/// Lets all schedules fire at one instant, some times. It takes about `write` to write them.
async fn fires(server: &Server, schedules: usize, write: Duration) -> Result<(), String> {
    let (port, rounds) = (server.port, number("--rounds", 10));
    let (lead_us, write_us) = (number("--lead", 20) as i64 * US, 2 * write.as_micros() as i64);
    let stop = Arc::new(AtomicBool::new(false));
    let dispatched = tokio::spawn(dispatch(port, number("--rate", 20), stop.clone()));
    let mut spans: Vec<[i64; 3]> = Vec::new();
    println!("all due at one instant; seconds from the instant on:");
    println!("{:>8}{:>16}{:>16}{:>14}", "round", "last is made", "all jobs exist", "memory, MB");
    let mut all_s = Vec::new();
    for round in 1..=rounds {
        let at_us = (now_us() + lead_us + write_us) / MINUTE_US * MINUTE_US + MINUTE_US;
        let (minute, hour) = (at_us / MINUTE_US % 60, at_us / HOUR_US % 24);
        write_all(port, schedules, move |_| format!("{minute} {hour} * * *")).await?;
        let quiet_us = now_us() + US;
        if quiet_us >= at_us {
            return Err(format!(
                "{schedules} schedules were not written in time: other programs use the machine"
            ));
        }
        sleep_until_us(at_us).await;
        let mut connection = Connection::open(port).await;
        while count(&mut connection).await? < schedules * round {
            if now_us() > at_us + PATIENCE.as_micros() as i64 {
                return Err(format!("{} of {schedules} jobs exist", count(&mut connection).await?));
            }
            sleep(LOOK).await;
        }
        let done_us = now_us();
        let last_us = run(port, schedules, at_us).await?;
        spans.push([quiet_us, at_us, done_us]);
        let [last_s, done_s] = [last_us, done_us].map(|us| (us - at_us) as f64 / US as f64);
        println!("{round:>8}{last_s:>16.2}{done_s:>16.2}{:>14.1}", memory_mb(server));
        all_s.push(done_s);
        if dispatched.is_finished() {
            break;
        }
    }
    stop.store(true, Relaxed);
    let dispatched = dispatched.await.map_err(|error| error.to_string())??;
    let within = |first: usize, last: usize| {
        let is_in = |(added_us, _): &&Dispatched| {
            spans.iter().any(|span| (span[first]..span[last]).contains(added_us))
        };
        Times::of(dispatched.iter().filter(is_in).map(|(_, ms)| *ms).collect())
    };
    let (quiet, meanwhile) = (within(0, 1), within(1, 2));
    let most = all_s.iter().copied().fold(f64::NAN, f64::max);
    println!("all jobs exist after {:.2} s (median), at most {most:.2} s", median(all_s.into_iter()));
    println!(
        "dispatch of another tenant's jobs, from the time to add to the arrival at the worker that waits:"
    );
    println!("  without fires: {}", quiet.text());
    println!("  meanwhile:     {}", meanwhile.text());
    println!("p99 meanwhile: {:.2} times p99 without fires", meanwhile.quantile(0.99) / quiet.quantile(0.99));
    Ok(())
}

/// How many jobs the schedules have added.
async fn count(connection: &mut Connection) -> Result<usize, String> {
    #[derive(Deserialize)]
    struct Page {
        counts: Vec<Of>,
    }
    #[derive(Deserialize)]
    struct Of {
        jobs: BTreeMap<String, usize>,
    }
    let Page { counts } = connection.send("GET", "/v1/counts?type=scheduled", "").await?;
    Ok(counts.iter().flat_map(|of| of.jobs.values()).sum())
}

/// Runs the jobs of an instant. Returns when the server made the last fire, in µs.
async fn run(port: u16, schedules: usize, at_us: i64) -> Result<i64, String> {
    let mut worker = Worker::register(port, "scheduled", SLOTS).await?;
    let mut missing: BTreeSet<String> = (0..schedules).map(name).collect();
    let (mut last_us, mut without_jobs) = (at_us, 0);
    while !missing.is_empty() {
        let jobs = worker.accept(SLOTS, Duration::from_secs(1)).await?;
        // A request that ends jobs does not wait for others.
        without_jobs = if jobs.is_empty() { without_jobs + 1 } else { 0 };
        if without_jobs == REQUESTS {
            return Err(format!("{} jobs do not start", missing.len()));
        }
        for job in &jobs {
            let fire = job.schedule.as_ref().ok_or_else(|| format!("no schedule has added {job:?}"))?;
            if fire.scheduled_at_us != at_us || !missing.remove(&fire.name) {
                return Err(format!("{job:?}: one fire of each schedule at {at_us} is expected"));
            }
            last_us = last_us.max(fire.fired_at_us);
        }
    }
    // Ends the last ones.
    match worker.accept(SLOTS, Duration::ZERO).await?.first() {
        Some(other) => Err(format!("a schedule has fired twice: {other:?}")),
        None => Ok(last_us),
    }
}

/// Adds `rate` jobs per second until it is stopped, and runs them.
async fn dispatch(port: u16, rate: usize, stop: Arc<AtomicBool>) -> Result<Vec<Dispatched>, String> {
    let (sender, mut added) = mpsc::unbounded_channel::<(String, i64, Instant)>();
    let mut tasks: JoinSet<Result<Vec<Dispatched>, String>> = JoinSet::new();
    tasks.spawn(async move {
        let mut worker = Worker::register(port, "quick", 10).await?;
        let (mut known, mut dispatched) = (BTreeMap::new(), Vec::new());
        loop {
            let jobs = worker.accept(10, Duration::from_secs(1)).await?;
            let now = Instant::now();
            while let Ok((id, added_us, at)) = added.try_recv() {
                known.insert(id, (added_us, at));
            }
            for job in &jobs {
                let (added_us, at) = known.remove(&job.id).ok_or_else(|| format!("{job:?} was not added"))?;
                dispatched.push((added_us, now.duration_since(at).as_secs_f64() * 1e3));
            }
            if jobs.is_empty() && known.is_empty() && added.is_closed() && added.is_empty() {
                return Ok(dispatched);
            }
        }
    });
    tasks.spawn(async move {
        let mut connection = Connection::open(port).await;
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate as f64));
        for number in 0.. {
            // The time at which the job is due to be added: if the job before it is late, so is this one.
            let at = ticks.tick().await;
            if stop.load(Relaxed) {
                break;
            }
            let late_us = i64::try_from(at.elapsed().as_micros()).unwrap_or(i64::MAX);
            let id = format!("quick-{number}");
            sender.send((id.clone(), now_us() - late_us, at)).map_err(|_| "the worker has ended")?;
            let body: Value = json!({ "id": id, "tenant": "other", "options": null });
            let IgnoredAny = connection.send("POST", "/v1/jobs/quick", &body.to_string()).await?;
        }
        Ok(Vec::new())
    });
    Ok(all(tasks).await?.into_iter().flatten().collect())
}
