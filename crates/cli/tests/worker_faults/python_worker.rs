//! The plain Python worker, on a network that loses answers, and with a server that stops and restarts. No job is lost,
//! and no ended job runs again.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use turnwise_testkit::{Fault, FaultProxy};

use crate::server::{Home, PATIENCE, Server, turnwise};

const T: &str = "sums";
const SLOTS: usize = 4;
/// The number of jobs for each fault.
const JOBS: usize = 40;

/// `examples/python_worker.py`, and its log.
struct PythonWorker {
    child: Child,
    lines: tokio::io::Lines<BufReader<ChildStderr>>,
    said: Vec<String>,
}

impl PythonWorker {
    fn start(server: &str) -> Self {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python_worker.py");
        let slots = SLOTS.to_string();
        let mut child = Command::new("python3")
            .args([example, "--server", server, "--type", T, "--slots", &slots])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Python 3 is installed");
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        PythonWorker { child, lines, said: Vec::new() }
    }

    /// Waits until the worker logs a line that contains this text.
    async fn says(&mut self, text: &str) {
        let wait = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.said.push(line);
                if self.said.last().unwrap().contains(text) {
                    return;
                }
            }
            panic!("it ended: {:#?}", self.said);
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("it never says `{text}`"));
    }

    /// Sends SIGTERM, waits for the end, and returns everything that the worker has logged.
    async fn stop(self) -> Vec<String> {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
        self.ended().await
    }

    /// Waits for its successful end, and returns everything that the worker has logged.
    async fn ended(self) -> Vec<String> {
        let (code, said) = self.ended_with().await;
        assert_eq!(code, Some(0), "{said:#?}");
        said
    }

    /// Waits for its end, and returns its exit code and everything that the worker has logged.
    async fn ended_with(mut self) -> (Option<i32>, Vec<String>) {
        let ending = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.said.push(line);
            }
            self.child.wait().await.unwrap().code()
        };
        let code = tokio::time::timeout(PATIENCE, ending).await.expect("it does not end");
        (code, self.said)
    }
}

async fn add(server: &Server, fault: &str) {
    let job = |n| {
        let options = json!({ "numbers": [n, 1], "seconds_per_number": 0.01 });
        json!({ "type": T, "id": format!("{fault}-{n}"), "task": "sum", "options": options })
    };
    let jobs: Vec<Value> = (0..JOBS).map(job).collect();
    server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
}

async fn completed(server: &Server, fault: &str) {
    for n in 0..JOBS {
        let answer = server.get(&format!("/v1/jobs/{T}/{fault}-{n}/wait?timeout_ms=60000")).await;
        assert_eq!(answer["job"]["state"], "completed", "{answer:#}");
    }
}

/// Whether the path of a request has this suffix.
fn is(what: &'static str) -> impl Fn(&turnwise_testkit::Request) -> bool {
    move |request| request.path.ends_with(what)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_is_lost_or_repeated_by_a_worker_on_a_bad_network() {
    let home = Home::new("");
    let server = home.serve().await;
    let address = server.address().to_owned();
    let proxy = FaultProxy::before(server.url()).await;
    let mut worker = PythonWorker::start(proxy.url());
    worker.says("registered").await;

    // The server has done what was requested, but the answer is lost.
    for (fault, lost) in [("lost-end", "/end"), ("lost-accept", "/accept"), ("lost-update", "/update")] {
        proxy.set(Fault::Reset { after: 0 }.when(is(lost)).times(5)).await;
        add(&server, fault).await;
        completed(&server, fault).await;
        proxy.set(Fault::None).await;
        let hit = proxy.count(|request| is(lost)(request) && request.fault.is_some());
        assert_eq!(hit, 5, "{fault}: the fault was not met");
    }

    // The server answers that it cannot do this now.
    proxy.set(Fault::Status(503).when(is("/end")).times(5)).await;
    add(&server, "busy").await;
    completed(&server, "busy").await;

    // No network while jobs run.
    add(&server, "down").await;
    proxy.wait_for(is("/update")).await;
    proxy.set(Fault::Down).await;
    worker.says("asking again").await;
    proxy.set(Fault::None).await;
    completed(&server, "down").await;

    // The server is killed while jobs run, and restarts.
    add(&server, "killed").await;
    worker.says("finish killed-").await;
    server.kill().await;
    worker.says("asking again").await;
    let server = home.serve_on(&address).await;
    completed(&server, "killed").await;

    // The server stops cleanly while jobs run, and restarts.
    add(&server, "restarted").await;
    worker.says("finish restarted-").await;
    assert!(server.terminate().await.success());
    let server = home.serve_on(&address).await;
    completed(&server, "restarted").await;

    let said = worker.stop().await;
    assert!(said.last().unwrap().contains("left"), "{said:#?}");
    let registered = said.iter().filter(|line| line.contains("registered")).count();
    assert_eq!(registered, 1, "none of these faults lasts as long as the health timeout: {said:#?}");
    let mut acknowledged: BTreeMap<&str, usize> = BTreeMap::new();
    for id in said.iter().filter_map(|line| line.split_once("finish ")).map(|(_, id)| id) {
        *acknowledged.entry(id).or_default() += 1;
    }
    let page = server.get(&format!("/v1/jobs?type={T}&limit=1000")).await;
    let jobs = page["jobs"].as_array().unwrap();
    assert_eq!((jobs.len(), acknowledged.len()), (7 * JOBS, 7 * JOBS), "{said:#?}");
    for job in jobs {
        let id = job["id"].as_str().unwrap();
        let events: Vec<&str> =
            job["history"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(events, ["completed", "started", "added"], "{id}");
        let n: u64 = id.rsplit_once('-').unwrap().1.parse().unwrap();
        let result = server.get(&format!("/v1/jobs/{T}/{id}/result")).await;
        assert_eq!((result, acknowledged[id]), (json!({ "sum": n + 1 }), 1), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_cut_and_statuses_of_gateways_end_no_part_of_the_worker() {
    let home = Home::new("[workers]\nhealth_interval = 0.2\n");
    let server = home.serve().await;
    let proxy = FaultProxy::before(server.url()).await;
    // Its registration is hit by each of them, too.
    let faults = [
        ("truncated", Fault::Truncated { after: 3 }),
        ("no-json", Fault::InvalidJson),
        ("timeout", Fault::Status(408)),
        ("bad-gateway", Fault::Answer { status: 502, body: "<h1>Bad Gateway</h1>".to_owned() }),
        ("gateway-timeout", Fault::Answer { status: 524, body: "<h1>A timeout occurred</h1>".to_owned() }),
    ];
    proxy.set(faults[0].1.clone().when(is("/v1/workers/sums")).times(1)).await;
    for (_, fault) in &faults[1..] {
        proxy.add(fault.clone().when(is("/v1/workers/sums")).times(1));
    }
    let mut worker = PythonWorker::start(proxy.url());
    worker.says("registered").await;
    for (name, fault) in &faults {
        for what in ["/accept", "/ping", "/end", "/update"] {
            let rule = fault.clone().when(is(what)).times(2);
            proxy.set(rule).await;
            let of_this = format!("{name}{}", what.replace('/', "-"));
            add(&server, &of_this).await;
            completed(&server, &of_this).await;
        }
        // Only the answer of a ping stops this one.
        let id = format!("{name}-cancelled");
        let options = json!({ "numbers": [1, 1], "seconds_per_number": 3_600 });
        server.post(&format!("/v1/jobs/{T}"), &json!({ "id": id, "task": "sum", "options": options })).await;
        let path = format!("/v1/jobs/{T}/{id}");
        server.until(&path, |job| job["state"] == "running").await;
        server.post(&format!("{path}/cancel"), &json!({})).await;
        let ended = server.get(&format!("{path}/wait?timeout_ms=60000")).await;
        assert_eq!(ended["job"]["state"], "cancelled", "{name}: {ended:#}");
    }
    worker.stop().await;

    // An error of the program and a refusal end it visibly.
    let worker = PythonWorker::start(proxy.url());
    proxy.set(Fault::Status(403).when(is("/accept"))).await;
    let (code, said) = worker.ended_with().await;
    assert!(code == Some(1) && said.iter().any(|line| line.contains("403")), "{code:?} {said:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_drained_finishes_its_jobs_and_ends() {
    let home = Home::new("[workers]\nhealth_interval = 0.2\n");
    let server = home.serve().await;
    let mut worker = PythonWorker::start(server.url());
    worker.says("registered").await;
    add(&server, "drained").await;
    worker.says("finish drained-").await;
    let workers = server.get(&format!("/v1/workers?type={T}")).await;
    let id = workers["workers"][0]["id"].as_str().unwrap();
    let drained =
        turnwise().args(["workers", "drain", T, id, "--server", server.url()]).output().await.unwrap();
    assert!(drained.status.success(), "{drained:?}");
    let said = worker.ended().await;
    assert!(
        said.iter().any(|line| line.contains("drained")) && said.last().unwrap().contains("left"),
        "{said:#?}"
    );
    let workers = server.get(&format!("/v1/workers?type={T}")).await;
    assert_eq!(workers["workers"], json!([]));
}

/// What README.md tells a newcomer to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_runs_two_tasks_with_logs_traces_retries_and_a_large_result() {
    let home = Home::new("");
    let server = home.serve().await;
    let terms = json!({ "max_attempts": 4, "backoff": { "list_ms": [5_000, 30_000, 300_000] } });
    server.put(&format!("/v1/types/{T}"), &terms).await;
    for (id, task, options) in [
        ("a", "sum", json!({ "numbers": [1, 2, 3] })),
        ("b", "table", json!({ "rows": 6_500 })),
        ("c", "table", json!({ "rows": -1 })),
        ("d", "unknown", json!({})),
    ] {
        server.post(&format!("/v1/jobs/{T}"), &json!({ "id": id, "task": task, "options": options })).await;
    }
    let mut worker = PythonWorker::start(server.url());
    worker.says("registered").await;
    let job = |id: &str| format!("/v1/jobs/{T}/{id}");
    let sum = server.until(&job("a"), |job| job["state"] == "completed").await;
    assert_eq!(sum["result"], json!({ "sum": 6 }));
    let log = server.get(&format!("{}/logs", job("a"))).await;
    assert_eq!(log["lines"][0]["message"], "added all numbers");
    assert_eq!(log["lines"][0]["fields"], json!({ "count": 3 }));
    let table = server.until(&job("b"), |job| job["state"] == "completed").await;
    assert!(table["result_bytes"].as_u64() > Some(200_000), "{table}");
    let rows = server.get(&format!("{}/result", job("b"))).await;
    assert_eq!(rows[6_499], json!({ "n": 6_499, "square": 42_237_001 }));
    let crashed = server.until(&job("c"), |job| job["state"] == "crashing").await;
    assert_eq!(crashed["reason"], "ValueError: no table has -1 rows");
    assert!(crashed["errors"][0]["trace"].as_str().unwrap().contains("in make_table"), "{crashed}");
    let wait_us = crashed["not_before_us"].as_i64().unwrap() - crashed["changed_us"].as_i64().unwrap();
    // With jitter of up to a tenth.
    assert!((5_000_000..=5_500_000).contains(&wait_us), "{wait_us}");
    let why = server.get(&format!("{}/why", job("c"))).await;
    assert!(why["sentence"].as_str().unwrap().contains("3 of 4 attempts are left"), "{why}");
    assert_eq!(server.get(&format!("{}/why", job("d"))).await["reason"], "no_worker_for_task");
    worker.stop().await;
}
