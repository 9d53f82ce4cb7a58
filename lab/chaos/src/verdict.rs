//! The end: all faults are over, the remaining jobs run, and every job must be in its one right final state.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::World;
use super::api::Answer;
use super::faults;
use super::ledger::Entry;
use super::webhooks;
use super::workers::TYPES;

/// The number of concurrent requests.
const IN_FLIGHT: usize = 8;
/// The number of jobs that are checked in one sweep.
const BATCH: usize = 500;
/// A request that its client gave up has no effect any more after this time.
const NEVER_ADDED: Duration = Duration::from_secs(60);
/// The number of jobs that do not end and are shown.
const SHOWN: usize = 5;
/// The time between two checks of the remaining jobs.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

const FINAL: [&str; 3] = ["completed", "failed", "cancelled"];

/// Checks some of the jobs that are not known to have ended. `last` when no more jobs are added.
pub(super) async fn sweep(world: &World, count: usize, last: bool) {
    let keys = world.ledger.open(count);
    let looks = stream::iter(keys).map(|key| async move {
        let answer = world.api_any(Method::GET, &format!("/v1/jobs/{key}")).await;
        (key, answer)
    });
    let looked: Vec<_> = looks.buffer_unordered(IN_FLIGHT).collect().await;
    let mut closed = HashSet::new();
    for (key, answer) in looked {
        let ended = match answer {
            Answer::Got(StatusCode::OK, job) => {
                job["state"].as_str().is_some_and(|state| FINAL.contains(&state))
            }
            Answer::Got(StatusCode::NOT_FOUND, _) if last => {
                if world.ledger.change(&key, |entry| entry.acknowledged) == Some(true) {
                    world.ledger.finding(format!("{key} was acknowledged, and is not there"));
                }
                true
            }
            // A job that was never added would stay open for ever, and the clients add no more beyond a number of those.
            Answer::Got(StatusCode::NOT_FOUND, _) => {
                let given_up = world.ledger.change(&key, |entry| entry.given_up).flatten();
                given_up.is_some_and(|at| at.elapsed() > NEVER_ADDED)
            }
            _ => false,
        };
        if ended {
            closed.insert(key);
        }
    }
    world.ledger.close(&closed);
}

/// Waits until every job has ended. Reports jobs that do not end in time, with their reasons.
async fn drain(world: &World) {
    let (mut least, mut since) = (usize::MAX, Instant::now());
    loop {
        let open = world.ledger.open_count();
        if open == 0 {
            return;
        }
        if open < least {
            (least, since) = (open, Instant::now());
        }
        if since.elapsed() > Duration::from_secs(world.options.settle_seconds) {
            world.ledger.finding(format!("{open} jobs do not end"));
            for key in world.ledger.open(SHOWN) {
                let job = world.api_any(Method::GET, &format!("/v1/jobs/{key}")).await.success();
                let why = world.api_any(Method::GET, &format!("/v1/jobs/{key}/why")).await.success();
                let text = |value: Option<Value>| value.unwrap_or_default().to_string();
                world.ledger.finding(format!("{key} does not end: {} because {}", text(job), text(why)));
            }
            return;
        }
        sweep(world, BATCH, true).await;
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// All jobs of the store, as the API lists them, with their results, which it does not list.
async fn listed(world: &World) -> BTreeMap<String, Value> {
    let mut jobs = BTreeMap::new();
    for job_type in TYPES.into_iter().chain(["command", "exec"]) {
        let mut after = String::new();
        loop {
            let path = format!("/v1/jobs?type={job_type}&limit=1000{after}");
            let Some(page) = world.api.get(&path).await else {
                world.ledger.finding(format!("no answer to {path}"));
                break;
            };
            for job in page["jobs"].as_array().into_iter().flatten() {
                let (mut job, id) = (job.clone(), job["id"].as_str().unwrap_or_default());
                if TYPES.contains(&job_type) && job["state"] == "completed" {
                    let result = world.api.get(&format!("/v1/jobs/{job_type}/{id}/result")).await;
                    job["result"] = result.unwrap_or_default();
                }
                jobs.insert(format!("{job_type}/{id}"), job);
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
    }
    jobs
}

/// What is wrong with a job's final state, if anything.
fn wrong(
    entry: &Entry,
    job: &Value,
    jobs: &BTreeMap<String, Value>,
    entries: &BTreeMap<String, Entry>,
) -> Option<String> {
    let state = job["state"].as_str().unwrap_or_default();
    let mut right = vec![entry.kind.end()];
    if entry.cancel_tried {
        right.push("cancelled");
    }
    if entry.cancelled.is_some() && entry.again == 0 {
        right = vec!["cancelled"];
    }
    let mut must_be_cancelled = false;
    for (before, cancels) in &entry.after {
        let end = jobs.get(before).and_then(|job| job["state"].as_str());
        if *cancels && end != Some("completed") {
            // The dependency may have ended in another state before it was added again.
            must_be_cancelled |= entries.get(before).is_some_and(|before| before.again == 0);
            right.push("cancelled");
        } else if *cancels && entries.get(before).is_some_and(|before| before.again > 0) {
            right.push("cancelled");
        }
    }
    if must_be_cancelled && entry.again == 0 {
        right = vec!["cancelled"];
    }
    if !right.contains(&state) {
        return Some(format!("is {state}, not {}", right.join(" or ")));
    }
    if !job["worker"].is_null() {
        return Some("has ended, and has a worker".to_owned());
    }
    let run = job["result"]["run"].as_u64();
    if state == "completed" && entry.kind.is_told() && !run.is_some_and(|run| entry.told.contains(&run)) {
        return Some(format!("has the result {}, which none of its runs has told", job["result"]));
    }
    None
}

/// Ends all faults, waits, and checks all jobs. Records violations in the ledger.
pub(super) async fn judge(world: &World) {
    world.remove_filter().await;
    // Jobs that were delayed while a clock was ahead are due at that clock's time.
    let ahead = world.largest_jump.load(Ordering::Relaxed);
    world.set_clocks(ahead);
    world.healed.cancel();
    drain(world).await;

    let (jobs, entries) = (listed(world).await, world.ledger.jobs());
    let mut ends: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut batches: BTreeMap<(u64, usize), usize> = BTreeMap::new();
    for (key, entry) in &entries {
        let Some(job) = jobs.get(key) else {
            if entry.acknowledged {
                world.ledger.finding(format!("{key} was acknowledged, and is not in the list"));
            }
            continue;
        };
        *batches.entry(entry.batch).or_default() += 1;
        let state = job["state"].as_str().unwrap_or_default().to_owned();
        *ends.entry((format!("{:?}", entry.kind), state)).or_default() += 1;
        if let Some(problem) = wrong(entry, job, &jobs, &entries) {
            world.ledger.finding(format!("{key} {problem}: {entry:?} {job}"));
        }
    }
    webhooks::check_jobs(world, &jobs, &entries).await;
    for key in jobs.keys().filter(|key| !entries.contains_key(*key)) {
        world.ledger.finding(format!("{key} is there, and no client has added it"));
    }
    let is_partial = |(batch, found): &((u64, usize), usize)| batch.1 > 0 && batch.1 != *found;
    for ((_, wanted), found) in batches.into_iter().filter(is_partial) {
        world.ledger.finding(format!("{found} jobs are there of {wanted} that one request added"));
    }
    for ((kind, state), count) in ends {
        println!("{kind}: {count} {state}");
    }
    let acknowledged = entries.values().filter(|entry| entry.acknowledged).count();
    println!("{} jobs, {acknowledged} of them acknowledged when they were added", jobs.len());
}

/// Stops the nodes, checks the store, and searches the nodes' logs for panics.
pub(super) async fn close(world: &World) {
    for (number, node) in world.nodes.iter().enumerate() {
        world.down(number, true);
        if let Err(problem) = node.stop().await {
            world.ledger.finding(problem);
        }
        let log = world.binary.folder.join(format!("node-{number}.log"));
        let log = std::fs::read(log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
            world.ledger.finding(format!("node {number} has panicked: {line}"));
        }
    }
    faults::check(world).await;
}
