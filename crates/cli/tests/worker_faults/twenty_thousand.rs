//! Twenty thousand jobs while workers and the server are killed, paused and restarted.
//!
//! The workers are separate processes that use only the HTTP protocol: `turnwise work` and the Python example. In the end,
//! every job has completed, with exactly one completion in its record.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::server::{Home, PATIENCE, Server, turnwise};

const JOBS: usize = 20_000;
const BATCH: usize = 1_000;
const T: &str = "work";
/// The timeout after which a worker without pings is removed. It is short to keep the test short.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker in its own process.
struct WorkerProcess {
    child: Child,
}

impl WorkerProcess {
    fn turnwise(server: &str) -> Self {
        let mut command = turnwise();
        command.args(["work", "--server", server, "--type", T, "--slots", "8", "--exec", "true"]);
        Self::spawn(command)
    }

    fn python(server: &str) -> Self {
        let mut command = Command::new("python3");
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python_worker.py");
        command.args([example, "--server", server, "--type", T, "--slots", "8"]);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        WorkerProcess { child: command.kill_on_drop(true).spawn().unwrap() }
    }

    async fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().await.unwrap().success());
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

async fn add_all(server: &Server) {
    for batch in 0..JOBS / BATCH {
        let job = |n| json!({ "type": T, "id": format!("{:05}", batch * BATCH + n), "task": "sum", "options": { "numbers": [1, n] } });
        let jobs: Vec<Value> = (0..BATCH).map(job).collect();
        server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    }
}

/// Calls `visit` with every job.
async fn for_each_job(server: &Server, mut visit: impl FnMut(&Value)) {
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/v1/jobs?type={T}&limit=1000{after}")).await;
        page["jobs"].as_array().unwrap().iter().for_each(&mut visit);
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return,
        }
    }
}

/// The number of jobs in each state.
async fn states(server: &Server) -> BTreeMap<String, usize> {
    let mut states = BTreeMap::new();
    for_each_job(server, |job| *states.entry(job["state"].as_str().unwrap().to_owned()).or_default() += 1)
        .await;
    states
}

/// Waits until this many jobs have completed; fails if their number stops growing.
async fn until_completed(server: &Server, wanted: usize) {
    let (mut most, mut since) = (0, tokio::time::Instant::now());
    loop {
        let states = states(server).await;
        let completed = states.get("completed").copied().unwrap_or(0);
        if completed >= wanted {
            return;
        }
        if completed > most {
            (most, since) = (completed, tokio::time::Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "the jobs do not come to their end: {states:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The ids of the registered workers.
async fn members(server: &Server) -> Vec<String> {
    let workers = server.get(&format!("/v1/workers?type={T}")).await;
    let ids =
        workers["workers"].as_array().unwrap().iter().map(|worker| worker["id"].as_str().unwrap().to_owned());
    ids.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_ends_once_whatever_happens_to_workers_and_server() {
    let timeout_s = HEALTH_TIMEOUT.as_secs();
    let home = Home::new(&format!(
        "[workers]\nhealth_interval = 1\nhealth_timeout = {timeout_s}\n[jobs]\nbackoff_base_ms = 100\n"
    ));
    let mut server = home.serve().await;
    let address = server.address().to_owned();
    let url = server.url().to_owned();
    add_all(&server).await;
    let mut workers: Vec<WorkerProcess> = Vec::new();
    // A process per job is expensive, so only one of the workers executes commands.
    workers.push(WorkerProcess::turnwise(&url));
    for _ in 0..3 {
        workers.push(WorkerProcess::python(&url));
    }

    // In each round there is a new fault, while the other processes continue.
    let rounds = 8;
    for round in 0..rounds {
        until_completed(&server, JOBS / 2 * (round + 1) / rounds).await;
        match round % 4 {
            0 => {
                // A worker is killed, and another one is started.
                workers.remove(0).kill().await;
                workers.push(WorkerProcess::python(&url));
            }
            1 | 3 => {
                // The server is killed and restarted. The workers must notice by themselves.
                server.kill().await;
                server = home.serve_on(&address).await;
            }
            _ => {
                // A worker is paused until it expires, and notices that when it is resumed.
                let stopped = &workers[round % workers.len()];
                let before = members(&server).await;
                stopped.signal("-STOP").await;
                let gone = |now: &Value| {
                    let now = now["workers"].as_array().unwrap();
                    before.iter().any(|id| now.iter().all(|worker| worker["id"] != json!(id)))
                };
                server.until(&format!("/v1/workers?type={T}"), gone).await;
                stopped.signal("-CONT").await;
            }
        }
    }
    until_completed(&server, JOBS).await;
    for worker in &workers {
        worker.signal("-TERM").await;
    }
    for worker in &mut workers {
        assert!(worker.child.wait().await.unwrap().success(), "a worker did not stop cleanly");
    }

    let mut seen = 0;
    let mut restarted = 0;
    let mut wrong = Vec::new();
    for_each_job(&server, |job| {
        seen += 1;
        let events = job["history"].as_array().unwrap();
        let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        restarted += usize::from(count("started") > 1);
        if job["state"] != "completed"
            || count("completed") != 1
            || count("added") != 1
            || !job["worker"].is_null()
        {
            wrong.push(job.clone());
        }
    })
    .await;
    assert_eq!((seen, wrong), (JOBS, vec![]));
    assert!(restarted > 0, "the faults have hit no job");
    assert_eq!(members(&server).await, Vec::<String>::new(), "workers that have left are still listed");
    let (status, _) = server.request(Method::GET, &format!("/v1/jobs/{T}/none"), None).await;
    assert_eq!(status.as_u16(), 404);
}
