//! The worker of `examples/python_worker.py`, behind a gateway: it must go on for as long as it is not told to end, and every job that is
//! added for it must complete.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::process::{Child, Command};

use super::World;
use super::api::Answer;
use super::identity::token;
use turnwise_testkit::Random;

/// The type of its jobs.
const TYPE: &str = "sums";
/// The time between two jobs.
const EACH: Duration = Duration::from_millis(700);
/// A job completes within this time, outside of faults.
const BOUND: Duration = Duration::from_secs(60);
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// The log of the worker, in the test's folder.
const LOG: &str = "python.log";

/// Runs the worker, and adds jobs until the end.
pub(super) async fn run(world: Arc<World>) {
    let token = match token(&world.api, &[&format!("worker:{TYPE}")]).await {
        Ok(token) => token,
        Err(problem) => return world.ledger.finding(problem),
    };
    let mut worker = start(&world, &token);
    let mut random = Random::new(world.options.seed ^ 0x9713);
    let mut open: VecDeque<(String, Instant)> = VecDeque::new();
    let mut number = 0;
    while !world.stop.is_cancelled() {
        tokio::time::sleep(EACH).await;
        number += 1;
        let id = format!("sum-{number}");
        let job = json!({ "type": TYPE, "id": id, "task": "sum", "options": { "numbers": [number, 1] } });
        let body = json!({ "jobs": [job] });
        while world
            .ask_some(&world.api, &mut random, Method::POST, "/v1/jobs", Some(&body))
            .await
            .success()
            .is_none()
        {
            tokio::time::sleep(AGAIN).await;
        }
        open.push_back((id, Instant::now()));
        if let Ok(Some(status)) = worker.try_wait() {
            let text = format!("with {status}; see {LOG}");
            world.ledger.repeated("the worker of the examples has ended", &text);
            worker = start(&world, &token);
        }
        look(&world, &mut open).await;
    }
    // The gateways have no faults any more.
    let end = Instant::now() + BOUND;
    while !open.is_empty() && Instant::now() < end {
        look(&world, &mut open).await;
        tokio::time::sleep(AGAIN).await;
    }
    if let Some((id, _)) = open.front() {
        let text = format!("{id} and {} more, in the end; see {LOG}", open.len() - 1);
        world.ledger.repeated("a job of the examples' worker does not complete", &text);
    }
    let _ = worker.kill().await;
}

/// Looks at the oldest job, and the next ones if that one has completed.
async fn look(world: &World, open: &mut VecDeque<(String, Instant)>) {
    while let Some((id, since)) = open.front() {
        let answer = world.api_any(Method::GET, &format!("/v1/jobs/{TYPE}/{id}")).await;
        let Answer::Got(_, job) = answer else { return };
        let waited = world.calm.between(*since, Instant::now(), Duration::ZERO);
        match job["state"].as_str() {
            Some("completed") => world.counts.add("jobs of the examples' worker", 1),
            _ if waited < BOUND => return,
            state => {
                let text = format!("{id} is {state:?} after {waited:.0?} outside of faults; see {LOG}");
                world.ledger.repeated("a job of the examples' worker does not complete", &text);
            }
        }
        open.pop_front();
    }
}

fn start(world: &World, token: &str) -> Child {
    let program: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python_worker.py");
    let log = std::fs::OpenOptions::new().create(true).append(true).open(world.binary.folder.join(LOG));
    let mut command = Command::new("python3");
    command.arg(program).args(["--type", TYPE, "--server", &world.identities.client(0).urls()[0]]);
    command.env("TURNWISE_TOKEN", token).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(log.expect("the folder can be written")).kill_on_drop(true);
    command.spawn().expect("there is a Python")
}
