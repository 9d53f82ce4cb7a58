//! `turnwise work --exec`: commands as workers, while the server and the workers are killed and restarted.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use turnwise_testkit::{Fault, FaultProxy, Request};

use crate::server::{Home, PATIENCE, Server, turnwise};

/// Workers that learn quickly which runs to stop, and that do not expire on a busy machine.
const QUICK: &str = "[workers]\nhealth_interval = 0.2\nhealth_timeout = 60\n[jobs]\nbackoff_base_ms = 100\n";
/// Workers whose expiry is part of the test, with a timeout that live ones can meet on a busy machine.
const MORTAL: &str = "[workers]\nhealth_interval = 0.2\nhealth_timeout = 5\n[jobs]\nbackoff_base_ms = 100\n";

/// A worker whose command is a shell script.
struct Worker {
    child: Child,
}

impl Worker {
    fn start(server: &Server, args: &[&str], script: &str) -> Worker {
        Worker::start_at(server.url(), args, script)
    }

    fn start_at(url: &str, args: &[&str], script: &str) -> Worker {
        let mut command = turnwise();
        command.args(["work", "--type", "t"]).args(args).args(["--exec", "sh", "-c", script]);
        command
            .env("TURNWISE_SERVER", url)
            .env("TURNWISE_LOG", "debug")
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        Worker { child: command.kill_on_drop(true).spawn().unwrap() }
    }

    async fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().await.unwrap().success());
    }

    async fn terminate(self) -> Output {
        self.signal("-TERM").await;
        let output = tokio::time::timeout(PATIENCE, self.child.wait_with_output()).await;
        crate::server::clean(output.expect("it does not stop").unwrap())
    }
}

/// Two named pipes between the test and the commands. The commands write to one of them, and hold it open while they
/// live. They read from the other one to wait for a word.
struct Line {
    folder: TempDir,
    said: pipe::Receiver,
    /// While the test, too, holds the pipe open, it does not end between two commands.
    held: Option<pipe::Sender>,
    word: pipe::Sender,
}

impl Line {
    fn new() -> Line {
        let folder = tempfile::tempdir().unwrap();
        let [said, word] = ["said", "word"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").args([&said, &word]).status().unwrap().success());
        Line {
            said: pipe::OpenOptions::new().open_receiver(&said).unwrap(),
            held: Some(pipe::OpenOptions::new().open_sender(&said).unwrap()),
            // Both ends, so that the pipe exists before the first reader.
            word: pipe::OpenOptions::new().read_write(true).open_sender(&word).unwrap(),
            folder,
        }
    }

    /// A script that writes `go`, then does the rest; `$WORD` is the pipe to read from.
    fn script(&self, rest: &str) -> String {
        let path = |name: &str| -> PathBuf { self.folder.path().join(name) };
        format!("exec 3>{}; WORD={}; echo go >&3; {rest}", path("said").display(), path("word").display())
    }

    async fn heard(&mut self, what: &str) {
        let mut text = vec![0; what.len() + 1];
        let read = self.said.read_exact(&mut text);
        tokio::time::timeout(PATIENCE, read).await.expect("the command says nothing").unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), format!("{what}\n"));
    }

    async fn say(&mut self) {
        self.word.write_all(b"word\n").await.unwrap();
    }

    /// Waits until no process of the command is left.
    async fn gone(&mut self) {
        drop(self.held.take());
        let mut rest = Vec::new();
        let read = self.said.read_to_end(&mut rest);
        tokio::time::timeout(PATIENCE, read).await.expect("a process of the command is left").unwrap();
        self.held = Some(pipe::OpenOptions::new().open_sender(self.folder.path().join("said")).unwrap());
    }
}

async fn add(server: &Server, id: &str) {
    server.put("/v1/types/t", &json!({ "secrets": ["/password"] })).await;
    let mut job = json!({ "id": id, "options": { "of": id }, "max_attempts": 2 });
    if id != "json" {
        job["options"]["password"] = json!(turnwise_testkit::canary::PASSWORD);
    }
    server.post("/v1/jobs/t", &job).await;
}

async fn until_state(server: &Server, id: &str, state: &str) -> Value {
    server.until(&format!("/v1/jobs/t/{id}"), |job| job["state"] == state).await
}

/// The number of times that a job was started.
fn starts(job: &Value) -> usize {
    job["history"].as_array().unwrap().iter().filter(|event| event["type"] == "started").count()
}

#[tokio::test]
async fn exit_codes_and_output_decide_how_a_job_ends() {
    let home = Home::new(QUICK);
    let server = home.serve().await;
    for id in ["json", "text", "fails", "crashes", "large"] {
        add(&server, id).await;
    }
    let script = r#"case $TURNWISE_JOB_ID in
        json) echo " {\"got\": $(cat)} " ;;
        text) echo "$TURNWISE_JOB_TYPE of $TURNWISE_TENANT, attempt $TURNWISE_ATTEMPT" ;;
        fails) echo 'no such mailbox' >&2; exit 65 ;;
        crashes) echo out; echo "no answer $TURNWISE_ATTEMPT" >&2; exit 7 ;;
        large) head -c 1000000 /dev/zero | tr '\0' x ;;
    esac"#;
    let worker = Worker::start(&server, &["--slots", "3", "--name", "shell"], script);
    assert_eq!(until_state(&server, "json", "completed").await["result"], json!({ "got": { "of": "json" } }));
    let text = until_state(&server, "text", "completed").await;
    assert_eq!(text["result"]["stdout"], "t of default, attempt 1\n");
    let fails = until_state(&server, "fails", "failed").await;
    assert_eq!((&fails["reason"], starts(&fails)), (&json!("exit code 65: no such mailbox"), 1));
    let crashes = until_state(&server, "crashes", "failed").await;
    assert_eq!((&crashes["reason"], starts(&crashes)), (&json!("exit code 7: no answer 2"), 2));
    assert_eq!(crashes["info"]["stdout"], "out\n");
    let large = until_state(&server, "large", "completed").await;
    assert_eq!(
        (&large["result"]["truncated"], &large["result"]["stdout_bytes"]),
        (&json!(true), &json!(1_000_000))
    );

    let output = crate::server::clean(
        turnwise().args(["workers", "--type", "t", "--server", server.url()]).output().await.unwrap(),
    );
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("shell") && table.contains("0/3"), "{table}");
    let output = worker.terminate().await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let workers = server.get("/v1/workers?type=t").await;
    assert_eq!(workers["workers"], json!([]), "it has left");
}

#[tokio::test]
async fn exit_code_0_completes_a_job_whatever_it_prints() {
    let server = Home::new(QUICK).serve().await;
    let folder = tempfile::tempdir().unwrap();
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth)).into_bytes();
    // The server's limit is for the whole request, and the deepest one carries ends with a request for jobs.
    let cases = [
        ("surrogate", br#"{"x":"\ud800"}"#.to_vec(), false),
        ("number", b"1e999".to_vec(), false),
        ("nested", nested(120), false),
        ("just-too-nested", nested(97), false),
        ("as-nested-as-may-be", nested(96), true),
        ("bytes", b"{\"x\":\"\xff\"}".to_vec(), false),
        ("mark", "\u{feff}{}".as_bytes().to_vec(), false),
        ("two", b"{} {}".to_vec(), false),
        ("long", format!("\"{}\"", "x".repeat(1 << 20)).into_bytes(), false),
        ("zeros", vec![0; 20_000], false),
        ("nothing", Vec::new(), false),
        ("plain", br#"{"x":1e300}"#.to_vec(), true),
    ];
    for (id, text, _) in &cases {
        std::fs::write(folder.path().join(id), text).unwrap();
    }
    let jobs: Vec<Value> = cases.iter().map(|(id, ..)| json!({ "type": "t", "id": id })).collect();
    server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    let script = format!("cat '{}'/$TURNWISE_JOB_ID", folder.path().display());
    let worker = Worker::start(&server, &["--slots", "12"], &script);
    for (id, text, is_result) in cases {
        let job = server.get(&format!("/v1/jobs/t/{id}/wait?timeout_ms=60000")).await["job"].clone();
        assert_eq!((&job["state"], starts(&job)), (&json!("completed"), 1), "{id}: {job:#}");
        let result = &job["result"];
        match is_result {
            true => assert_eq!(*result, serde_json::from_slice::<Value>(&text).unwrap(), "{id}"),
            false => assert_eq!(
                (&result["exit_code"], &result["stdout_bytes"]),
                (&json!(0), &json!(text.len())),
                "{id}"
            ),
        }
    }
    let said = String::from_utf8(worker.terminate().await.stderr).unwrap();
    assert!(!said.contains("refuses"), "{said}");
}

#[tokio::test]
async fn all_processes_of_a_cancelled_job_end() {
    let server = Home::new(QUICK).serve().await;
    let mut line = Line::new();
    add(&server, "a").await;
    let _worker = Worker::start(&server, &[], &line.script("sh -c 'echo child >&3; exec sleep 1000' & wait"));
    line.heard("go").await;
    line.heard("child").await;
    server.post("/v1/jobs/t/a/cancel", &json!({})).await;
    line.gone().await;
    let job = until_state(&server, "a", "cancelled").await;
    assert_eq!(starts(&job), 1);
}

#[tokio::test]
async fn a_terminated_worker_gives_its_jobs_back_and_leaves() {
    let server = Home::new("").serve().await;
    let mut line = Line::new();
    add(&server, "a").await;
    let script =
        line.script("trap 'echo bye >&3; exit' TERM; sh -c 'echo child >&3; exec sleep 1000' & wait");
    let worker = Worker::start(&server, &[], &script);
    line.heard("go").await;
    line.heard("child").await;
    let output = worker.terminate().await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    line.heard("bye").await;
    line.gone().await;
    // Immediately, without waiting for a timeout.
    let job = server.get("/v1/jobs/t/a").await;
    assert_eq!((&job["state"], &job["attempts"]), (&json!("pending"), &json!(0)));
    assert_eq!(server.get("/v1/workers?type=t").await["workers"], json!([]));
}

#[tokio::test]
async fn a_worker_that_drains_lets_its_jobs_end_and_accepts_no_more() {
    let server = Home::new("").serve().await;
    let mut line = Line::new();
    add(&server, "a").await;
    let mut worker =
        Worker::start(&server, &["--drain", "1h"], &line.script("read it <$WORD; echo '\"done\"'"));
    let mut log = BufReader::new(worker.child.stderr.take().unwrap()).lines();
    line.heard("go").await;
    worker.signal("-TERM").await;
    while !log.next_line().await.unwrap().unwrap().contains("stopping: running commands have 3600s to end") {}
    // It leaves as soon as its run has ended.
    add(&server, "b").await;
    line.say().await;
    while log.next_line().await.unwrap().is_some() {}
    assert_eq!(worker.child.wait().await.unwrap().code(), Some(0));
    let job = server.get("/v1/jobs/t/a").await;
    assert_eq!((&job["state"], &job["result"]), (&json!("completed"), &json!("done")));
    assert_eq!(server.get("/v1/jobs/t/b").await["state"], "pending");
    assert_eq!(server.get("/v1/workers?type=t").await["workers"], json!([]));

    // What runs longer is stopped, and given back.
    let worker = Worker::start(&server, &["--drain", "500ms"], &line.script("read it <$WORD"));
    line.heard("go").await;
    let output = worker.terminate().await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let job = server.get("/v1/jobs/t/b").await;
    assert_eq!((&job["state"], &job["attempts"]), (&json!("pending"), &json!(0)));
}

#[tokio::test]
async fn a_run_continues_while_the_server_is_down_and_its_end_is_reported_later() {
    let home = Home::new(QUICK);
    let server = home.serve().await;
    let address = server.address().to_owned();
    let mut line = Line::new();
    add(&server, "before").await;
    let worker = Worker::start(&server, &["--slots", "2"], &line.script("read it <$WORD; echo '\"done\"'"));
    line.heard("go").await;
    server.kill().await;
    // The command ends while no server can receive its end.
    line.say().await;
    line.gone().await;
    let server = home.serve_on(&address).await;
    let job = until_state(&server, "before", "completed").await;
    assert_eq!((&job["result"], starts(&job)), (&json!("done"), 1));

    // The same worker continues, also after a restart in the middle of a run.
    add(&server, "after").await;
    line.heard("go").await;
    assert!(server.terminate().await.success());
    let server = home.serve_on(&address).await;
    line.say().await;
    let job = until_state(&server, "after", "completed").await;
    assert_eq!(starts(&job), 1);
    assert_eq!(server.get("/v1/workers?type=t").await["workers"].as_array().unwrap().len(), 1);
    assert_eq!(worker.terminate().await.status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_network_neither_loses_nor_repeats_a_job() {
    const JOBS: usize = 20;
    const REQUESTS: usize = 5;
    type Condition = fn(&Request) -> bool;
    /// Whether the request reports ends of runs. A fault is chosen before the body is read, but a request for jobs is
    /// only this long if it carries ends.
    fn reports_ends(request: &Request) -> bool {
        let bytes = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        request.path.ends_with("/end") || (requests_jobs(request) && bytes > 80)
    }
    fn requests_jobs(request: &Request) -> bool {
        request.path.ends_with("/accept")
    }
    let server = Home::new("").serve().await;
    let proxy = FaultProxy::before(server.url()).await;
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let script = format!("echo $TURNWISE_JOB_ID >>{}; echo 1", ran.display());
    let worker = Worker::start_at(proxy.url(), &["--slots", "4"], &script);
    let faults: [(&str, Fault, Condition); 6] = [
        ("lost-end", Fault::Reset { after: 0 }, reports_ends),
        ("half-end", Fault::Reset { after: 10 }, reports_ends),
        ("busy-end", Fault::Status(503), reports_ends),
        ("no-json-end", Fault::InvalidJson, reports_ends),
        ("lost-accept", Fault::Reset { after: 0 }, requests_jobs),
        ("half-accept", Fault::Reset { after: 60 }, requests_jobs),
    ];
    let names = faults.each_ref().map(|(name, ..)| *name);
    for (name, fault, applies) in faults {
        proxy.clear();
        proxy.set(fault.when(applies).times(REQUESTS)).await;
        for n in 0..JOBS {
            add(&server, &format!("{name}-{n}")).await;
        }
        for n in 0..JOBS {
            until_state(&server, &format!("{name}-{n}"), "completed").await;
        }
        let met: Vec<Request> =
            proxy.requests().into_iter().filter(|request| request.fault.is_some()).collect();
        assert_eq!(met.len(), REQUESTS, "{name}: the fault was not met");
        if name.ends_with("end") {
            assert!(met.iter().all(|request| request.text().contains("\"claim\":")), "{name}: {met:?}");
        }
    }
    let output = worker.terminate().await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let ran = std::fs::read_to_string(ran).unwrap();
    let mut ran: Vec<&str> = ran.lines().collect();
    ran.sort_unstable();
    let mut expected: Vec<String> =
        names.iter().flat_map(|name| (0..JOBS).map(move |n| format!("{name}-{n}"))).collect();
    expected.sort_unstable();
    assert_eq!(ran, expected, "every command ran once");
}

#[tokio::test]
async fn the_commands_of_a_killed_worker_end_and_other_workers_run_its_jobs() {
    let server = Home::new(MORTAL).serve().await;
    let mut line = Line::new();
    add(&server, "a").await;
    let script = line.script("sh -c 'echo child >&3; exec sleep 1000' & wait");
    let mut worker = Worker::start(&server, &[], &script);
    line.heard("go").await;
    line.heard("child").await;
    worker.child.kill().await.unwrap();
    line.gone().await;
    let _other = Worker::start(&server, &[], "echo 1");
    let job = until_state(&server, "a", "completed").await;
    assert_eq!((starts(&job), &job["attempts"]), (2, &json!(2)));
    assert!(job["history"][2]["reason"].as_str().unwrap().ends_with("was lost"), "{job}");
}

#[tokio::test]
async fn a_worker_that_was_removed_stops_its_commands_and_registers_again() {
    let server = Home::new(MORTAL).serve().await;
    let mut line = Line::new();
    add(&server, "a").await;
    let worker = Worker::start(&server, &[], &line.script("read it <$WORD; echo 1"));
    line.heard("go").await;
    let before = server.get("/v1/workers?type=t").await["workers"][0]["id"].clone();
    worker.signal("-STOP").await;
    until_state(&server, "a", "crashing").await;
    worker.signal("-CONT").await;
    // The worker aborts the command of the lost claim without reporting it; the job runs again under a new worker id.
    line.heard("go").await;
    let after =
        server.until("/v1/workers?type=t", |workers| workers["workers"][0]["running"][0]["id"] == "a").await;
    assert_ne!(after["workers"][0]["id"], before);
    line.say().await;
    let job = until_state(&server, "a", "completed").await;
    assert_eq!(starts(&job), 2);
    assert_eq!(worker.terminate().await.status.code(), Some(0));
}

#[tokio::test]
async fn the_servers_own_commands_end_with_it_and_run_again() {
    let home = Home::new("[command]\nenabled = true\nallow_root = true\nprograms = sh\n");
    let server = home.serve().await;
    let mut line = Line::new();
    let script = line.script("sh -c 'echo child >&3; read it <'$WORD & wait; echo done");
    let body = json!({ "id": "a", "options": { "argv": ["sh", "-c", script] } });
    server.post("/v1/jobs/command", &body).await;
    line.heard("go").await;
    line.heard("child").await;
    server.kill().await;
    line.gone().await;

    let server = home.serve().await;
    line.heard("go").await;
    line.heard("child").await;
    line.say().await;
    let args = ["jobs", "wait", "command", "a", "--server", server.url()];
    let output = crate::server::clean(turnwise().args(args).output().await.unwrap());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["stdout"], &report["exit_code"]), (&json!("done\n"), &json!(0)));
    let args = ["jobs", "add", "command", "--options", r#"{"argv":["cat"]}"#, "--server", server.url()];
    let output = crate::server::clean(turnwise().args(args).output().await.unwrap());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("allowed are: sh"), "{output:?}");

    // A clean stop of the server ends the command, too, and keeps the job.
    let body = json!({ "id": "b", "options": { "argv": ["sh", "-c", script] } });
    server.post("/v1/jobs/command", &body).await;
    line.heard("go").await;
    line.heard("child").await;
    assert!(server.terminate().await.success());
    line.gone().await;
    let server = home.serve().await;
    line.heard("go").await;
    server.post("/v1/jobs/command/b/cancel", &json!({})).await;
    line.gone().await;
    server.until("/v1/jobs/command/b", |job| job["state"] == "cancelled").await;
}

/// A daemon is in a session of its own, and no child of the command.
#[tokio::test]
async fn daemons_end_with_their_job_and_with_the_server() {
    let home = Home::new("[command]\nenabled = true\nallow_root = true\n");
    let server = home.serve().await;
    let mut line = Line::new();
    let daemon = "trap \"\" TERM; while read -r A B C P REST </proc/$$/stat; [ $P = $PARENT ]; do sleep 0.01; done; \
                  echo daemon >&3; exec sleep 1000";
    let fork = "PARENT=$$ sh -c \"$DAEMON\" & exit 0";
    let rest = format!("export DAEMON='{daemon}'; setsid sh -c '{fork}'; read it <$WORD");
    let body = |id: &str| json!({ "id": id, "options": { "argv": ["sh", "-c", line.script(&rest)] } });
    let [a, b, c] = ["a", "b", "c"].map(body);
    server.post("/v1/jobs/command", &a).await;
    line.heard("go").await;
    line.heard("daemon").await;
    line.say().await;
    line.gone().await;
    server.until("/v1/jobs/command/a", |job| job["state"] == "completed").await;

    server.post("/v1/jobs/command", &b).await;
    line.heard("go").await;
    line.heard("daemon").await;
    server.post("/v1/jobs/command/b/cancel", &json!({})).await;
    line.gone().await;

    server.post("/v1/jobs/command", &c).await;
    line.heard("go").await;
    line.heard("daemon").await;
    server.kill().await;
    line.gone().await;
}

#[tokio::test]
async fn a_worker_that_cannot_work_says_why() {
    let server = Home::new("").serve().await;
    let url = server.url();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--type", "t", "--timeout", "0s", "--exec", "true"], 2, "a duration above zero"),
        (&["--type", "replication", "--exec", "true", "--slots", "3"], 1, "--slots comes after --exec"),
        (&["--type", "t", "--exec", "no-such-program"], 2, "there is no such program"),
        (&["--type", "t", "--exec"], 2, "--exec"),
        (&["--type", "a b", "--exec", "true"], 2, "letters, digits"),
        (&["--type", "t", "--slots", "0", "--exec", "true"], 2, "slots"),
        (&["--type", "replication", "--exec", "true"], 1, "choose another job type"),
    ];
    for (args, code, says) in cases {
        let output = crate::server::clean(
            turnwise().args(["work", "--server", url]).args(args).output().await.unwrap(),
        );
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(says), "{args:?}");
    }
}
