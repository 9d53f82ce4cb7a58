//! `turnwise fleet`: real processes, and a server that states the demand that a test sets.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::server::{PATIENCE, turnwise};

/// The time between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A server that knows only the requests of a fleet.
struct Demands {
    address: String,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// The wanted slots of every type; `None` for a server that cannot answer.
    wanted: Option<u64>,
    questions: usize,
    reports: BTreeMap<String, Value>,
}

impl Demands {
    async fn start(wanted: u64) -> Demands {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Mutex::new(Shared { wanted: Some(wanted), ..Shared::default() }));
        let state = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, state.clone()));
            }
        });
        Demands { address, shared }
    }

    fn want(&self, slots: impl Into<Option<u64>>) {
        self.shared.lock().unwrap().wanted = slots.into();
    }

    fn questions(&self) -> usize {
        self.shared.lock().unwrap().questions
    }

    /// Waits until it was asked for this many demands.
    async fn until_asked(&self, questions: usize) {
        let started = Instant::now();
        while self.questions() < questions {
            assert!(started.elapsed() < PATIENCE, "{} questions", self.questions());
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    fn reports(&self) -> BTreeMap<String, Value> {
        self.shared.lock().unwrap().reports.clone()
    }
}

/// Answers one request, and closes the connection.
async fn answer(mut stream: TcpStream, shared: Arc<Mutex<Shared>>) -> Option<()> {
    let mut request = Vec::new();
    let (head, length) = loop {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
        if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8(request[..end].to_vec()).ok()?.to_lowercase();
            let length =
                head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
            break (head, end + 4 + length.unwrap_or(0));
        }
    };
    while request.len() < length {
        stream.read_buf(&mut request).await.ok()?;
    }
    let mut words = head.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let segments: Vec<&str> = path.split(['/', '?']).collect();
    let body = {
        let mut shared = shared.lock().unwrap();
        match (method, &segments[1..]) {
            ("get", ["v1", "types", job_type, "demand", _]) => {
                shared.questions += 1;
                shared.wanted.map(|wanted| {
                    json!({
                        "type": job_type, "runnable": wanted, "oldest_age_us": 0, "expected_run_us": 200_000, "running": 0,
                        "workers": 0, "slots": 0, "needed_slots": wanted, "wanted_slots": wanted, "active": wanted > 0,
                        "tenants": []
                    })
                })
            }
            ("put", ["v1", "fleets", name]) => {
                let start = request.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
                let mut report: Value = serde_json::from_slice(&request[start..]).ok()?;
                shared.reports.insert((*name).to_owned(), report.clone());
                report["name"] = json!(name);
                report["seen_us"] = json!(0);
                Some(report)
            }
            ("delete", ["v1", "fleets", name]) => {
                shared.reports.remove(*name);
                Some(json!({ "removed": true }))
            }
            _ => panic!("a fleet does not ask for {method} {path}"),
        }
    };
    let (status, body) = match body {
        Some(body) => ("200 OK", body),
        None => (
            "503 Service Unavailable",
            json!({ "error": "service_unavailable", "reason": "busy", "hint": "-" }),
        ),
    };
    let body = body.to_string();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await.ok()
}

/// The folder of a fleet. Its workers write their process ids, and those of their children, into `pids`.
struct Home {
    folder: TempDir,
}

impl Home {
    fn new() -> Home {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A worker with a child, which ends on SIGTERM unless it ignores it.
    fn worker(&self, on_term: &str) -> String {
        let pids = self.path("pids");
        let words = self.path("words");
        format!(
            "trap '{on_term}' TERM; sleep 1000 & echo up $TURNWISE_FLEET_WORKER >>{words}; echo $$ $! >>{pids}; wait"
        )
    }

    /// Writes `fleet.toml`: one type `t` with these lines.
    fn configure(&self, server: &Demands, script: &str, lines: &str) {
        let text = format!(
            "server = \"http://{}\"\nname = \"f\"\ninterval = \"100ms\"\n[types.t]\ncommand = [\"sh\", \"-c\", {}]\n{lines}\n",
            server.address,
            json!(script)
        );
        std::fs::write(self.path("fleet.toml"), text).unwrap();
    }

    fn start(&self, args: &[&str]) -> Fleet {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = turnwise();
        command.args(["fleet", &self.path("fleet.toml"), "--state", &self.path("state")]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Fleet { child: command.kill_on_drop(true).spawn().unwrap() }
    }

    /// The processes of the workers and their children that live, by the pairs in `pids`.
    fn live(&self) -> Vec<(u32, u32)> {
        let text = self.read("pids");
        let pairs = text.lines().filter_map(|line| {
            let (worker, child) = line.split_once(' ')?;
            Some((worker.parse().ok()?, child.parse().ok()?))
        });
        pairs.filter(|(worker, child)| is_live(*worker) || is_live(*child)).collect()
    }

    /// Waits until this many workers live. After SIGKILL, the system takes a moment.
    async fn until(&self, workers: usize) -> Vec<(u32, u32)> {
        let started = Instant::now();
        loop {
            let live = self.live();
            if live.len() == workers {
                return live;
            }
            assert!(started.elapsed() < PATIENCE, "{} live, not {workers}: {}", live.len(), self.read("log"));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn until_logged(&self, text: &str) {
        let started = Instant::now();
        while !self.read("log").contains(text) {
            assert!(started.elapsed() < PATIENCE, "{text} is not logged: {}", self.read("log"));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The process ids in the state file.
    fn state(&self) -> BTreeSet<u32> {
        let state: Value = serde_json::from_str(&self.read("state/state.json")).unwrap();
        let processes = state["processes"].as_array().unwrap();
        processes.iter().map(|process| u32::try_from(process["pid"].as_u64().unwrap()).unwrap()).collect()
    }
}

impl Drop for Home {
    /// Also a test that fails leaves no process.
    fn drop(&mut self) {
        for (worker, child) in self.live() {
            for pid in [worker, child] {
                let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
        }
    }
}

/// Whether a process runs.
fn is_live(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

async fn until_gone(pid: u32) {
    let started = Instant::now();
    while is_live(pid) {
        assert!(started.elapsed() < PATIENCE, "{pid} does not end");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

struct Fleet {
    child: Child,
}

impl Fleet {
    async fn signal(&self, name: &str) {
        signal(self.child.id().unwrap(), name).await;
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    async fn ended(mut self) -> Option<i32> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        status.expect("it does not stop").unwrap().code()
    }

    async fn terminate(self) -> Option<i32> {
        self.signal("-TERM").await;
        self.ended().await
    }
}

async fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().await.unwrap().success());
}

async fn check(file: &str, args: &[&str]) -> Output {
    turnwise().args(["fleet", file, "--check"]).args(args).output().await.unwrap()
}

const QUICK: &str = "max = 8\nidle = \"500ms\"\nmin_lifetime = \"100ms\"\ngrace = \"30s\"";

#[tokio::test]
async fn workers_follow_the_demand_from_zero_and_back() {
    let (home, server) = (Home::new(), Demands::start(0).await);
    home.configure(&server, &home.worker("echo bye >>$0; exit"), QUICK);
    // `$0` of `sh -c` is the next word.
    let text = home
        .read("fleet.toml")
        .replace("]\nmax", &format!(", {}]\nslots = 2\nmax", json!(home.path("words"))));
    std::fs::write(home.path("fleet.toml"), text).unwrap();
    let fleet = home.start(&[]);
    server.until_asked(3).await;
    assert_eq!(home.live(), [], "nothing is wanted");
    server.want(9);
    let live = home.until(5).await;
    server.want(100);
    assert_eq!(home.until(8).await[..5], live, "max is 8, and what runs stays");
    server.want(3);
    home.until(2).await;
    let report = server.reports()["f"].clone();
    assert_eq!((&report["types"][0]["type"], &report["types"][0]["max"]), (&json!("t"), &json!(8)));
    server.want(0);
    home.until(0).await;
    server.want(2);
    home.until(1).await;
    assert_eq!(fleet.terminate().await, Some(0));
    home.until(0).await;
    assert_eq!(home.state(), BTreeSet::new());
    assert_eq!(server.reports(), BTreeMap::new(), "it has left");
    let words = home.read("words");
    assert_eq!(
        (words.matches("up f-t-").count(), words.matches("bye").count()),
        (9, 9),
        "all were asked to stop"
    );
    let names: BTreeSet<&str> = words.lines().filter(|line| line.starts_with("up")).collect();
    assert_eq!(names.len(), 9, "each has a name of its own: {names:?}");
    let log = home.read("log");
    for said in [
        "wants 5 workers instead of 0: 9 slots are wanted",
        "; max is reached",
        "started f-t-0",
        "nothing runs or could run",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

#[tokio::test]
async fn a_killed_worker_is_replaced_and_leaves_no_child() {
    let (home, server) = (Home::new(), Demands::start(3).await);
    home.configure(&server, &home.worker("exit"), QUICK);
    let fleet = home.start(&[]);
    let before = home.until(3).await;
    signal(before[1].0, "-9").await;
    home.until_logged("signal 9; failure 1 in a row, next start after 1s").await;
    let started = Instant::now();
    loop {
        let now = home.live();
        if now.len() == 3 && !now.contains(&before[1]) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{now:?}: {}", home.read("log"));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    assert_eq!(fleet.terminate().await, Some(0));
    home.until(0).await;
}

#[tokio::test]
async fn a_killed_fleet_leaves_neither_orphan_nor_double() {
    let (home, server) = (Home::new(), Demands::start(4).await);
    home.configure(&server, &home.worker("exit"), QUICK);
    let fleet = home.start(&[]);
    let before = home.until(4).await;
    fleet.kill().await;
    assert_eq!(home.live(), before, "they run on");
    signal(before[0].0, "-9").await;
    until_gone(before[0].0).await;
    let fleet = home.start(&[]);
    home.until_logged("3 of 4 workers of an earlier start run on").await;
    let after = home.until(4).await;
    assert!(before[1..].iter().all(|worker| after.contains(worker)), "{before:?} {after:?}");
    assert_eq!(home.state(), after.iter().map(|(worker, _)| *worker).collect());
    // One that it has not started itself is seen, too.
    signal(before[1].0, "-9").await;
    home.until_logged("it was started by an earlier fleet process").await;
    until_gone(before[1].1).await;
    home.until(4).await;
    server.want(0);
    home.until(0).await;
    assert_eq!(fleet.terminate().await, Some(0));
    assert_eq!(home.read("pids").lines().count(), 6, "no process more than needed");
}

#[tokio::test]
async fn wherever_a_fleet_is_killed_every_process_that_runs_is_in_its_state() {
    let (home, server) = (Home::new(), Demands::start(8).await);
    home.configure(&server, &home.worker("exit"), QUICK);
    for ms in [0, 20, 40, 60, 80, 100, 120, 140, 160, 200, 250, 300, 400] {
        let fleet = home.start(&[]);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        fleet.kill().await;
        let live = home.live();
        if !live.is_empty() {
            let state = home.state();
            assert!(
                live.iter().all(|(worker, _)| state.contains(worker)),
                "after {ms} ms: {live:?} {state:?}"
            );
        }
    }
    let asked = server.questions();
    let fleet = home.start(&[]);
    let live = home.until(8).await;
    // A question of the last one may still be on its way.
    server.until_asked(asked + 3).await;
    assert_eq!(home.state(), live.iter().map(|(worker, _)| *worker).collect());
    assert_eq!(fleet.terminate().await, Some(0));
    home.until(0).await;
}

#[tokio::test]
async fn a_command_that_exits_at_once_is_started_ever_more_rarely() {
    let (home, server) = (Home::new(), Demands::start(8).await);
    home.configure(&server, &format!("echo x >>{}; exit 3", home.path("words")), QUICK);
    let fleet = home.start(&[]);
    home.until_logged("exit code 3; failure 4 in a row, next start after 8s").await;
    let starts = home.read("words").lines().count();
    assert!(starts <= 8 + 3, "{starts} starts");
    let why = server.reports()["f"]["types"][0]["why"].as_str().unwrap().to_owned();
    assert!(why.contains("the command has failed"), "{why}");
    assert_eq!(fleet.terminate().await, Some(0));
}

#[tokio::test]
async fn a_worker_that_ignores_sigterm_is_killed_with_its_children_after_its_grace_period() {
    let (home, server) = (Home::new(), Demands::start(2).await);
    home.configure(&server, &home.worker(""), "max = 2\ngrace = \"1s\"");
    let fleet = home.start(&[]);
    home.until(2).await;
    let asked = Instant::now();
    assert_eq!(fleet.terminate().await, Some(0));
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
    home.until(0).await;
    assert!(home.read("log").contains("kills f-t-0"));

    // A second signal does not wait.
    std::fs::write(home.path("log"), "").unwrap();
    home.configure(&server, &home.worker(""), "max = 2\ngrace = \"1h\"");
    let fleet = home.start(&[]);
    home.until(2).await;
    fleet.signal("-TERM").await;
    home.until_logged("a second signal kills them").await;
    home.until_logged("the fleet stops").await;
    assert_eq!(fleet.terminate().await, Some(1));
    home.until(0).await;
}

#[tokio::test]
async fn while_the_server_does_not_answer_what_runs_stays() {
    let (home, server) = (Home::new(), Demands::start(3).await);
    home.configure(&server, &home.worker("exit"), QUICK);
    let fleet = home.start(&[]);
    let before = home.until(3).await;
    server.want(None);
    home.until_logged("the demand is unknown, so what runs stays: service_unavailable").await;
    let asked = server.questions();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(home.live(), before, "idle is over, and nothing has stopped");
    // After 100 ms the pauses are 0.2, 0.4, 0.8, … s.
    assert!(server.questions() - asked <= 6, "{} questions", server.questions() - asked);
    server.want(5);
    home.until_logged("the server answers again").await;
    home.until(5).await;
    assert_eq!(fleet.terminate().await, Some(0));
}

#[tokio::test]
async fn kept_workers_run_on_and_are_replaced_when_their_command_has_changed() {
    let (home, server) = (Home::new(), Demands::start(2).await);
    home.configure(&server, &home.worker("exit"), QUICK);
    let fleet = home.start(&["--keep"]);
    let before = home.until(2).await;
    assert_eq!(fleet.terminate().await, Some(0));
    assert_eq!(home.live(), before);

    let second = home.start(&[]);
    home.until_logged("2 of 2 workers of an earlier start run on").await;
    let output =
        turnwise().args(["fleet", &home.path("fleet.toml"), "--state", &home.path("state")]).output().await;
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("another fleet runs with the state in"), "{text}");
    second.kill().await;
    assert_eq!(home.live(), before);

    home.configure(&server, &format!(": changed; {}", home.worker("exit")), QUICK);
    let fleet = home.start(&[]);
    let started = Instant::now();
    loop {
        let now = home.live();
        if now.len() == 2 && now.iter().all(|worker| !before.contains(worker)) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{now:?}: {}", home.read("log"));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    // Without its type, they have no reason to run.
    fleet.kill().await;
    let text = home.read("fleet.toml").replace("[types.t]", "[types.u]");
    std::fs::write(home.path("fleet.toml"), text).unwrap();
    server.want(0);
    let fleet = home.start(&[]);
    home.until_logged("its type is not in the configuration").await;
    home.until(0).await;
    assert_eq!(fleet.terminate().await, Some(0));
}

#[tokio::test]
async fn a_wrong_file_is_refused_before_anything_starts() {
    let home = Home::new();
    let file = home.path("fleet.toml");
    for (text, said) in [
        (
            "[types.t]\nexec = [\"no-such-program\"]\nmax = 1\n",
            "types.t.exec: `no-such-program`: argv[0]: there is no such program",
        ),
        ("[types.t]\nexec = [\"true\"]\nmaximum = 1\n", "unknown field `maximum`"),
        ("token_file = \"none\"\n[types.t]\nexec = [\"true\"]\nmax = 1\n", "none: No such file"),
        ("server = \"x\"\n[types.t]\nexec = [\"true\"]\nmax = 1\n", "expected something like http://"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = check(&file, &[]).await;
        let problem = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(problem.contains(said), "{text}: {problem}");
    }
    std::fs::write(&file, "[types.t]\nexec = [\"true\"]\nmax = 3\n").unwrap();
    let output = check(&file, &[]).await;
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 types, up to 3 workers"));
    assert!(!std::path::Path::new(&home.path("state")).exists());
}

#[tokio::test]
async fn workers_get_their_own_token_and_nothing_else_of_the_fleet() {
    let (home, server) = (Home::new(), Demands::start(1).await);
    let out = home.path("words");
    home.configure(&server, &format!("env >{out}; {}", home.worker("exit")), QUICK);
    crate::server::write_private(home.path("w").as_ref(), "the-token-of-workers\n");
    let text = format!("worker_token_file = {}\n{}", json!(home.path("w")), home.read("fleet.toml"));
    std::fs::write(home.path("fleet.toml"), text).unwrap();
    let log = std::fs::File::create(home.path("log")).unwrap();
    let mut command = turnwise();
    command.args(["fleet", &home.path("fleet.toml"), "--state", &home.path("state")]);
    command.env("TURNWISE_TOKEN", "the-token-of-the-fleet").env("OTHER", "inherited").stderr(log);
    let fleet = Fleet { child: command.kill_on_drop(true).spawn().unwrap() };
    home.until(1).await;
    let seen = home.read("words");
    let lines: BTreeSet<&str> = seen.lines().collect();
    let server = format!("TURNWISE_SERVER=http://{}", server.address);
    for line in [
        "TURNWISE_TOKEN=the-token-of-workers",
        "TURNWISE_FLEET_WORKER=f-t-0",
        "TURNWISE_JOB_TYPE=t",
        "TURNWISE_SLOTS=1",
        "OTHER=inherited",
        &server,
    ] {
        assert!(lines.contains(line), "{line}: {seen}");
    }
    assert!(!seen.contains("the-token-of-the-fleet"), "{seen}");
    assert!(!home.read("state/state.json").contains("token-of"));
    assert_eq!(fleet.terminate().await, Some(0));
    assert!(!home.read("log").contains("token-of"));
}
