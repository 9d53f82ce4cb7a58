//! `turnwise jobs`: its output for users and for scripts.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::server::{Home, PATIENCE, Server, turnwise};

async fn jobs(server: &Server, args: &[&str]) -> Output {
    jobs_reading(server, args, "").await
}

async fn jobs_reading(server: &Server, args: &[&str], stdin: &str) -> Output {
    let mut child = turnwise()
        .arg("jobs")
        .args(args)
        .env("TURNWISE_SERVER", server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A process that refuses its arguments exits without reading stdin.
    let written = child.stdin.take().unwrap().write_all(stdin.as_bytes()).await;
    assert!(!written.is_err_and(|error| error.kind() != std::io::ErrorKind::BrokenPipe));
    crate::server::clean(child.wait_with_output().await.unwrap())
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap().trim_end()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Hides members of the options of a type.
async fn hide(server: &Server, job_type: &str, pointers: &[&str]) {
    let secrets = pointers.iter().flat_map(|pointer| ["--secret", pointer]);
    let mut set = turnwise();
    set.args(["types", "set", job_type]).args(secrets).env("TURNWISE_SERVER", server.url());
    let set = crate::server::clean(set.output().await.unwrap());
    assert!(set.status.success(), "{set:?}");
}

/// The workers of these tests never ping, and must not be removed for that.
const PATIENT: &str = "[workers]\nhealth_timeout = 600\n";

/// Accepts jobs as an external worker. Returns the worker's path and the jobs.
async fn accept(server: &Server, limit: usize) -> (String, Vec<Value>) {
    let registered = server.post("/v1/workers/mail", &json!({ "slots": limit })).await;
    let path = format!("/v1/workers/mail/{}", registered["worker"].as_str().unwrap());
    let body = json!({ "received": 0, "limit": limit, "wait_ms": 10_000 });
    let accepted = server.post(&format!("{path}/accept"), &body).await;
    (path, accepted["jobs"].as_array().unwrap().clone())
}

#[tokio::test]
async fn a_job_is_not_added_while_another_one_has_its_key() {
    let server = Home::new("").serve().await;
    let add = async |id: &str, more: &[&str]| {
        let args = ["add", "index", "--id", id, "--options", r#"{"shop":7}"#, "--unique"];
        jobs(&server, &[&args[..], more].concat()).await
    };
    let output = add("a", &["until_end", "--unique-of", "/shop"]).await;
    assert_eq!((stdout(&output), stderr(&output)), ("a", ""), "{output:?}");
    let output = add("b", &["while_waiting", "--unique-of", "/shop"]).await;
    assert_eq!((output.status.success(), stdout(&output)), (true, "a"), "{output:?}");
    assert!(stderr(&output).contains("has this unique key: nothing was added"), "{output:?}");
    let output = add("b", &["until_end", "--unique-of", "/shop", "--on-conflict", "reject"]).await;
    assert!(!output.status.success() && stderr(&output).contains("job `a`"), "{output:?}");
    let output =
        add("b", &["period", "--unique-period", "1h", "--unique-key", "k", "--unique-within", "tenant"])
            .await;
    assert_eq!((stdout(&output), stderr(&output)), ("b", ""), "{output:?}");
    let job: Value = serde_json::from_slice(&jobs(&server, &["show", "index", "b"]).await.stdout).unwrap();
    let stated = json!({"mode": "period", "period_ms": 3_600_000, "key": "k", "within": "tenant", "on_conflict": "keep"});
    assert_eq!(job["unique"], stated);
}

#[tokio::test]
async fn a_job_is_added_once_and_shown_without_its_secrets() {
    let server = Home::new("").serve().await;
    hide(&server, "mail", &["/password"]).await;
    let args = ["add", "mail", "--id", "a/b c", "--tenant", "acme", "--options", r#"{"password":"hunter2"}"#];
    let more = ["--summary", r#"{"to":"jan"}"#, "--max-attempts", "3", "--delay", "1h"];
    let more = [
        &more[..],
        &["--timeout", "90s", "--heartbeat-timeout", "1500ms", "--tag", "nightly", "--tag", "eu"],
    ]
    .concat();
    let output = jobs(&server, &[&args[..], &more].concat()).await;
    assert_eq!((stdout(&output), stderr(&output)), ("a/b c", ""), "{output:?}");
    let output = jobs(&server, &[&args[..], &more].concat()).await;
    assert!(output.status.success() && stdout(&output) == "a/b c", "{output:?}");
    assert!(stderr(&output).contains("exists already"), "{output:?}");

    let output = jobs(&server, &["show", "mail", "a/b c"]).await;
    let job: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&job["state"], &job["tenant"]), (&json!("delayed"), &json!("acme")));
    assert_eq!((&job["summary"], &job["max_attempts"]), (&json!({ "to": "jan" }), &json!(3)));
    assert_eq!((&job["timeout_ms"], &job["heartbeat_timeout_ms"]), (&json!(90_000), &json!(1_500)));
    assert_eq!((&job["options"], &job["tags"]), (&json!({ "password": "*****" }), &json!(["eu", "nightly"])));
    assert!(stdout(&jobs(&server, &["list", "--tag", "eu"]).await).contains("a/b c"));
    assert!(!stdout(&jobs(&server, &["list", "--tag", "us"]).await).contains("a/b c"));
    let output = jobs(&server, &["list"]).await;
    let text = stdout(&output);
    assert!(text.lines().count() == 2 && text.contains("a/b c") && text.contains("delayed"), "{text}");
    assert!(text.contains("in 59m") && text.contains("0/3"), "{text}");
    let output = jobs(&server, &["list", "--state", "running"]).await;
    assert_eq!(stdout(&output), "No jobs.");
    let output = jobs(&server, &["list", "--json", "--tenant", "acme", "--type", "mail"]).await;
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()[0]["id"], "a/b c");
    assert!(!stdout(&output).contains("hunter2"));

    // Other terms of the type do not show the options by mistake.
    let set = |args: &'static [&str]| {
        let mut set = turnwise();
        set.arg("types").args(args).env("TURNWISE_SERVER", server.url());
        async move { crate::server::clean(set.output().await.unwrap()) }
    };
    let refused = set(&["set", "mail", "--max-attempts", "5"]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(stderr(&refused).contains("repeat --secret '/password'"), "{refused:?}");
    assert!(set(&["set", "mail", "--max-attempts", "5", "--secret", "/"]).await.status.success());
    let output = jobs(&server, &["options", "mail", "a/b c"]).await;
    assert_eq!(stdout(&output), "\"*****\"", "{output:?}");
}

#[tokio::test]
async fn a_job_that_waits_is_edited_held_and_released() {
    let server = Home::new("").serve().await;
    let add =
        ["add", "mail", "--id", "a", "--options", r#"{"to":"jan"}"#, "--timeout", "90s", "--delay", "1h"];
    assert!(jobs(&server, &add).await.status.success());
    let show = async || {
        serde_json::from_slice::<Value>(&jobs(&server, &["show", "mail", "a"]).await.stdout).unwrap()
    };
    let version = show().await["version"].as_str().unwrap().to_owned();
    let edit = ["edit", "mail", "a", "--version", &version];
    let changes =
        ["--options", r#"{"to":"eva"}"#, "--delay", "0s", "--backoff", "5s,30s", "--reset", "timeout_ms"];
    let edited = jobs(&server, &[&edit[..], &changes].concat()).await;
    assert_eq!(stdout(&edited), "pending", "{edited:?}");
    let job = show().await;
    assert_eq!((&job["options"], &job["timeout_ms"]), (&json!({ "to": "eva" }), &Value::Null));
    assert_eq!(job["backoff"], json!({ "list_ms": [5_000, 30_000] }));
    let stale = jobs(&server, &[&edit[..], &["--priority", "3"]].concat()).await;
    assert!(stale.status.code() == Some(1) && stderr(&stale).contains("has changed since"), "{stale:?}");
    assert_eq!(stdout(&jobs(&server, &["hold", "mail", "a"]).await), "held");
    assert!(stdout(&jobs(&server, &["list"]).await).contains("held by an operator"));
    assert_eq!(stdout(&jobs(&server, &["release", "mail", "a"]).await), "pending");
}

#[tokio::test]
async fn options_come_from_the_command_line_a_file_or_stdin() {
    let home = Home::new(PATIENT);
    let server = home.serve().await;
    let file = home.data_dir().join("options.json");
    std::fs::write(&file, "{\"from\": \"file\"}\n").unwrap();
    let at_file = format!("@{}", file.display());
    for (id, options, stdin) in [
        ("1", r#"{"from": "arg"}"#, ""),
        ("2", at_file.as_str(), ""),
        ("3", "-", "{\"from\":\n\"stdin\"}\n"),
        ("4", "[1]", ""),
    ] {
        let output = jobs_reading(&server, &["add", "mail", "--id", id, "--options", options], stdin).await;
        assert!(output.status.success(), "{output:?}");
    }
    let (_, given) = accept(&server, 4).await;
    let options: Vec<&Value> = given.iter().map(|job| &job["options"]).collect();
    let expected =
        [json!({ "from": "arg" }), json!({ "from": "file" }), json!({ "from": "stdin" }), json!([1])];
    assert_eq!(options, expected.iter().collect::<Vec<_>>());

    for (options, says) in [
        ("{hunter2", "not JSON at line 1, column 2"),
        ("@/nowhere/hunter", "cannot read"),
        (" ", "the value is empty"),
    ] {
        let output = jobs(&server, &["add", "mail", "--options", options]).await;
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains(says) && !stderr(&output).contains("hunter2"), "{output:?}");
    }
}

#[tokio::test]
async fn a_file_of_jobs_is_added_line_by_line_and_can_be_added_again() {
    let home = Home::new("");
    let server = home.serve().await;
    let mut lines: Vec<String> =
        (0..2_500).map(|n| json!({ "id": format!("{n:05}"), "options": { "n": n } }).to_string()).collect();
    lines.insert(7, String::new());
    let file = home.data_dir().join("jobs.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let many = ["add", "mail", "--tenant", "acme", "--many", file.to_str().unwrap()];
    let output = jobs(&server, &many).await;
    assert!(output.status.success() && stderr(&output).is_empty(), "{output:?}");
    assert_eq!(stdout(&output).lines().count(), 2_500);
    let output = jobs(&server, &many).await;
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).starts_with("2500 of 2500 jobs existed already"), "{output:?}");
    let output = jobs(&server, &["list", "--limit", "0", "--json", "--tenant", "acme"]).await;
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap().as_array().unwrap().len(), 2_500);
    let output = jobs(&server, &["list", "--limit", "10"]).await;
    assert_eq!(stdout(&output).lines().count(), 11);
    assert!(stderr(&output).contains("--limit"), "{output:?}");

    lines[2_000] = r#"{"id": "x", "pasword": "hunter2"}"#.to_owned();
    let output = jobs_reading(&server, &["add", "mail", "--many", "-"], &lines.join("\n")).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = stderr(&output);
    assert!(text.contains("line 2001") && text.contains("1000 jobs were added before"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");

    // A mistake is reported with its line, whether the command or the server finds it. Blank lines count.
    for (line, code) in [(r#"{"id": ""}"#, 2), (r#"{"id": "x", "max_attempts": 1000001}"#, 1)] {
        let lines = ["{}", "", line, "{}"].join("\n");
        let output = jobs_reading(&server, &["add", "wrong", "--many", "-"], &lines).await;
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let text = stderr(&output);
        assert!(text.contains("line 3") && !text.contains("jobs["), "{text}");
    }
    assert_eq!(stdout(&jobs(&server, &["list", "--type", "wrong"]).await), "No jobs.");
}

#[tokio::test]
async fn waiting_without_a_server_says_so_and_ends_in_time() {
    let url = "http://127.0.0.1:1";
    for more in [&[][..], &["--follow"]] {
        let args = ["jobs", "wait", "mail", "a", "--timeout", "500ms", "--server", url];
        let output = crate::server::clean(turnwise().args(args).args(more).output().await.unwrap());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let told = stderr(&output);
        assert!(told.contains("retrying for up to a minute") && told.contains(url), "{told}");
    }
}

#[tokio::test]
async fn the_exit_code_of_wait_states_how_a_job_ended() {
    let server = Home::new(PATIENT).serve().await;
    for id in ["completes", "fails", "runs"] {
        assert!(jobs(&server, &["add", "mail", "--id", id]).await.status.success());
    }
    // The state is known only after the server's first answer, which may take some time on a busy machine.
    let output = jobs(&server, &["wait", "mail", "completes", "--timeout", "3s"]).await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("pending"), "{output:?}");
    let output = jobs(&server, &["wait", "mail", "completes", "--timeout", "100ms", "--follow"]).await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");

    let (path, given) = accept(&server, 3).await;
    let claim = |id: &str| given.iter().find(|job| job["id"] == id).unwrap()["claim"].clone();
    let cases: [(&[&str], i32); 4] = [
        (&["wait", "mail", "completes"], 0),
        (&["wait", "mail", "completes", "--follow", "--timeout", "1h"], 0),
        (&["wait", "mail", "fails", "--timeout", "1h"], 1),
        (&["wait", "mail", "fails", "--follow"], 1),
    ];
    let waiting = futures::future::join_all(cases.map(|(args, _)| jobs(&server, args)));
    let ending = async {
        let body = json!({ "claim": claim("completes"), "info": { "sent": "50%" } });
        server.post(&format!("{path}/jobs/completes/update"), &body).await;
        let body = json!({ "claim": claim("completes"), "result": { "sent": true } });
        server.post(&format!("{path}/jobs/completes/finish"), &body).await;
        let body = json!({ "claim": claim("fails"), "reason": "no such mailbox", "retry": false });
        server.post(&format!("{path}/jobs/fails/fail"), &body).await;
    };
    let (outputs, ()) = tokio::join!(waiting, ending);
    for (output, (args, code)) in outputs.iter().zip(cases) {
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        match code {
            0 => assert_eq!(stdout(output), r#"{"sent":true}"#, "{args:?}"),
            _ => assert!(stderr(output).ends_with("turnwise: failed: no such mailbox\n"), "{output:?}"),
        }
    }
    assert!(stderr(&outputs[1]).contains("started\n"), "{:?}", outputs[1]);
    assert!(stderr(&outputs[3]).contains("failed: no such mailbox\n"), "{:?}", outputs[3]);

    // A running job is stopped by its worker; a waiting job ends immediately.
    let output = jobs(&server, &["cancel", "mail", "runs"]).await;
    assert_eq!(stdout(&output), "cancelling: the worker was asked to stop the job");
    server.post(&format!("{path}/jobs/runs/release"), &json!({ "claim": claim("runs") })).await;
    let output = jobs(&server, &["wait", "mail", "runs"]).await;
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), "turnwise: cancelled\n"));
    let output = jobs(&server, &["cancel", "mail", "completes"]).await;
    assert_eq!(stdout(&output), "the job had ended already: completed");
    let output = jobs(&server, &["remove", "mail", "completes"]).await;
    assert_eq!(stdout(&output), "removed");
    for args in
        [["show", "mail", "completes"], ["wait", "mail", "completes"], ["remove", "mail", "completes"]]
    {
        let output = jobs(&server, &args).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains("there is no job `completes` of type `mail`"), "{output:?}");
    }
    assert!(jobs(&server, &["add", "mail", "--id", "fails", "--again"]).await.status.success());
    let output = jobs(&server, &["cancel", "mail", "fails"]).await;
    assert_eq!(stdout(&output), "cancelled");
}

#[tokio::test]
async fn a_retried_job_is_pending_and_a_job_that_cannot_be_retried_is_an_error() {
    let server = Home::new(PATIENT).serve().await;
    for id in ["crashes", "crashes-too"] {
        assert!(jobs(&server, &["add", "mail", "--id", id, "--tenant", id]).await.status.success());
    }
    let (path, given) = accept(&server, 2).await;
    for job in &given {
        let id = job["id"].as_str().unwrap();
        let body = json!({ "claim": job["claim"], "reason": "no connection" });
        server.post(&format!("{path}/jobs/{id}/fail"), &body).await;
    }
    assert!(jobs(&server, &["add", "mail", "--id", "later", "--delay", "1h"]).await.status.success());
    let states = async || {
        let listed = jobs(&server, &["list", "--json"]).await;
        let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        let mut states: Vec<String> = listed
            .iter()
            .map(|job| format!("{} {}", job["id"].as_str().unwrap(), job["state"].as_str().unwrap()))
            .collect();
        states.sort();
        states
    };
    assert_eq!(states().await, ["crashes crashing", "crashes-too crashing", "later delayed"]);

    let retried = jobs(&server, &["retry", "mail", "crashes"]).await;
    assert_eq!(stdout(&retried), "pending");
    let again = jobs(&server, &["retry", "mail", "crashes"]).await;
    assert_eq!((again.status.code(), stdout(&again)), (Some(0), "pending"), "a repeated retry is harmless");
    // Retries all crashing jobs, of one tenant or of all. Jobs that a client delayed stay delayed unless they are named.
    let none = jobs(&server, &["retry", "mail", "--tenant", "crashes"]).await;
    assert!(none.status.success() && stderr(&none).contains("0 jobs match"), "{none:?}");
    let all = jobs(&server, &["retry", "mail"]).await;
    assert!(stdout(&all).contains("1 jobs retried"), "{all:?}");
    assert_eq!(states().await, ["crashes pending", "crashes-too pending", "later delayed"]);
    assert_eq!(stdout(&jobs(&server, &["retry", "mail", "later"]).await), "pending");

    let nobody = jobs(&server, &["retry", "mail", "nobody"]).await;
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(stderr(&nobody).contains("there is no job `nobody` of type `mail`"), "{nobody:?}");
    let both = jobs(&server, &["retry", "mail", "later", "--tenant", "crashes"]).await;
    assert_eq!(both.status.code(), Some(2), "{both:?}");

    // Jobs that failed or were cancelled run again; a job that cannot be retried is an error.
    assert!(jobs(&server, &["cancel", "mail", "later"]).await.status.success());
    let cancelled = jobs(&server, &["retry", "mail", "--state", "cancelled"]).await;
    assert!(stdout(&cancelled).contains("1 jobs retried"), "{cancelled:?}");
    let given = server.post(&format!("{path}/accept"), &json!({ "received": 2, "limit": 1 })).await;
    let job = &given["jobs"][0];
    let id = job["id"].as_str().unwrap();
    let runs = jobs(&server, &["retry", "mail", id]).await;
    assert_eq!(runs.status.code(), Some(1), "{runs:?}");
    assert!(stderr(&runs).contains("the job cannot be retried: it is running"), "{runs:?}");
    let failed = json!({ "claim": job["claim"], "reason": "no such mailbox", "retry": false });
    server.post(&format!("{path}/jobs/{id}/fail"), &failed).await;
    assert_eq!(stdout(&jobs(&server, &["retry", "mail", id]).await), "pending");
    let neither = jobs(&server, &["retry"]).await;
    assert_eq!(neither.status.code(), Some(2), "{neither:?}");
}

#[tokio::test]
async fn the_reason_that_keeps_a_job_out_of_the_queue_is_shown_in_lists_and_in_top() {
    let server = Home::new(PATIENT).serve().await;
    let run = async |args: &[&str]| {
        let output = turnwise().args(args).env("TURNWISE_SERVER", server.url()).output().await.unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["jobs", "add", "mail", "--id", "pauses", "--reason", "later"]).await;
    run(&["jobs", "add", "mail", "--id", "waits", "--after", "mail/pauses"]).await;
    run(&["filters", "add", "night", "pause", "--when", "reason = 'later'"]).await;
    accept_none(&server).await;
    let listed = run(&["jobs", "list"]).await;
    let line =
        |text: &str, id: &str| text.lines().find(|line| line.contains(id)).unwrap_or_default().to_owned();
    assert!(line(&listed, "pauses").contains("paused by filter night"), "{listed}");
    assert!(line(&listed, "waits").contains("waits for the end of 1 job"), "{listed}");
    let top = run(&["top", "--once"]).await;
    assert!(top.contains("1 blocked, 1 paused"), "{top}");
    assert!(line(&top, "pauses").contains("paused by filter night"), "{top}");
    assert!(run(&["jobs", "list", "--state", "blocked"]).await.contains("waits"), "{listed}");
}

/// A worker requests jobs, and gets none.
async fn accept_none(server: &Server) {
    let registered = server.post("/v1/workers/mail", &json!({ "slots": 1 })).await;
    let path = format!("/v1/workers/mail/{}/accept", registered["worker"].as_str().unwrap());
    let accepted = server.post(&path, &json!({ "received": 0, "limit": 1 })).await;
    assert_eq!(accepted["jobs"], json!([]));
}

#[tokio::test]
async fn wrong_usage_is_reported_and_changes_nothing() {
    let server = Home::new("").serve().await;
    let cases: [(&[&str], &str); 11] = [
        (&["add"], "<TYPE>"),
        (&["add", "mail", "--max-attempts", "1000001"], "1000001 is not in 0..=1000000"),
        (&["add", "a b"], "letters, digits"),
        (&["add", "mail", "--id", ".."], "cannot be reached"),
        (&["add", "mail", "--delay", "soon"], "for example 500ms"),
        (&["add", "mail", "--many", "/nowhere"], "cannot read /nowhere"),
        (&["add", "mail", "--many", "x", "--id", "y"], "cannot be used with"),
        (&["list", "--state", "done"], "[possible values: pending, "),
        (&["show", "mail"], "<ID>"),
        (&["wait", "mail", "x", "--timeout", "1w"], "for example 500ms"),
        (&["list", "--server", "ftp://x"], "http://127.0.0.1:7984"),
    ];
    for (args, says) in cases {
        let output = jobs(&server, args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(stderr(&output).contains(says), "{args:?}: {output:?}");
    }
    // Errors that only the server can detect.
    let output = jobs(&server, &["add", "replication"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("POST /_replicate"), "{output:?}");
    assert_eq!(stdout(&jobs(&server, &["list"]).await), "No jobs.");
}

#[tokio::test]
async fn every_help_fits_a_terminal_of_80_columns() {
    let commands: [&[&str]; 14] = [
        &[],
        &["jobs"],
        &["jobs", "add"],
        &["jobs", "list"],
        &["jobs", "show"],
        &["jobs", "cancel"],
        &["jobs", "wait"],
        &["jobs", "logs"],
        &["jobs", "result"],
        &["jobs", "options"],
        &["jobs", "remove"],
        &["types", "set"],
        &["workers"],
        &["work"],
    ];
    for command in commands {
        let output = crate::server::clean(
            turnwise().args(command).arg("--help").env("COLUMNS", "80").output().await.unwrap(),
        );
        assert!(output.status.success(), "{output:?}");
        let text = stdout(&output);
        assert!(text.contains("Usage:") && !text.contains("command-guard"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

async fn filters(server: &Server, args: &[&str]) -> Output {
    let all = turnwise().arg("filters").args(args).env("TURNWISE_SERVER", server.url()).output().await;
    crate::server::clean(all.unwrap())
}

#[tokio::test]
async fn a_job_says_what_it_locks_and_one_that_waits_for_it_says_so() {
    let server = Home::new(PATIENT).serve().await;
    let locks = r#"{"instance":{"exclusive":["web1"]},"node":{"shared":["n1"]}}"#;
    for id in ["a", "b"] {
        let added = jobs(&server, &["add", "mail", "--id", id, "--locks", locks]).await;
        assert_eq!((stdout(&added), stderr(&added)), (id, ""));
    }
    let (_, given) = accept(&server, 5).await;
    assert_eq!(given.len(), 1, "{given:?}");
    let why =
        turnwise().args(["why", "mail", "b"]).env("TURNWISE_SERVER", server.url()).output().await.unwrap();
    assert!(stdout(&why).contains("wants      instance/web1 (exclusive)"), "{why:?}");
    for (wrong, told) in [
        ("{", "--locks: not JSON at line 1"),
        (r#"{"node":{"exclusive":7}}"#, "--locks: "),
        (r#"{"nod":{"exclusive":["n"]}}"#, "locks.nod: there is no such level; the levels are"),
    ] {
        let refused = jobs(&server, &["add", "mail", "--locks", wrong]).await;
        assert!(!refused.status.success() && stderr(&refused).contains(told), "{refused:?}");
    }
}

#[tokio::test]
async fn limited_jobs_start_as_running_ones_end() {
    let server = Home::new(PATIENT).serve().await;
    let added = filters(&server, &["add", "few", "concurrency", "1", "--when", "id ~ '^f'"]).await;
    assert!(added.status.success(), "{added:?}");
    let listed = filters(&server, &["list"]).await;
    assert!(stdout(&listed).contains("concurrency 1"), "{listed:?}");
    for wrong in [&["add", "x", "concurrency"][..], &["add", "x", "concurrency", "0"]] {
        assert_eq!(filters(&server, wrong).await.status.code(), Some(2), "{wrong:?}");
    }
    for id in ["f1", "f2"] {
        jobs(&server, &["add", "mail", "--id", id]).await;
    }
    let reason = ["--reason", "concurrency:1:pink bunny"];
    for id in ["n1", "n2"] {
        jobs(&server, &[&["add", "mail", "--id", id][..], &reason].concat()).await;
    }
    let (path, given) = accept(&server, 5).await;
    assert_eq!(given.len(), 2, "{given:?}");
    for (id, told) in [
        ("f2", "1 of 1 job that filter `few` limits runs."),
        ("n2", "1 of 1 job of the bucket `pink bunny` runs."),
    ] {
        let why =
            turnwise().args(["why", "mail", id]).env("TURNWISE_SERVER", server.url()).output().await.unwrap();
        assert_eq!(stdout(&why).lines().next(), Some(told), "{why:?}");
    }
    for job in &given {
        let end = format!("{path}/jobs/{}/finish", job["id"].as_str().unwrap());
        server.post(&end, &json!({ "claim": job["claim"], "result": 1 })).await;
    }
    let received = given.iter().map(|job| job["claim"].as_u64().unwrap()).max();
    let body = json!({ "received": received, "limit": 5, "wait_ms": 10_000 });
    let accepted = server.post(&format!("{path}/accept"), &body).await;
    assert!(!accepted["jobs"].as_array().unwrap().is_empty(), "{accepted}");
}

#[tokio::test]
async fn a_jobs_priority_is_set_and_changed_while_it_waits() {
    let server = Home::new(PATIENT).serve().await;
    for (id, priority) in [("a", "0"), ("b", "7"), ("c", "-20")] {
        let added = jobs(&server, &["add", "mail", "--id", id, "--priority", priority]).await;
        assert_eq!((stdout(&added), stderr(&added)), (id, ""));
    }
    let set = jobs(&server, &["priority", "mail", "b", "-5"]).await;
    assert_eq!((stdout(&set), stderr(&set)), ("priority -5", ""));
    let listed = jobs(&server, &["list"]).await;
    assert!(stdout(&listed).contains("PRIORITY") && stdout(&listed).contains("-20"), "{listed:?}");
    let why =
        turnwise().args(["why", "mail", "b"]).env("TURNWISE_SERVER", server.url()).output().await.unwrap();
    assert!(stdout(&why).lines().any(|line| line == "priority   -5"), "{why:?}");
    let (_, given) = accept(&server, 3).await;
    let ids: Vec<&str> = given.iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["c", "b", "a"]);
    let set = jobs(&server, &["priority", "mail", "a", "3"]).await;
    assert_eq!(stdout(&set), "priority 3 when the job is pending again; it is running now");
    for wrong in [
        &["priority", "mail", "a", "20"][..],
        &["priority", "mail", "a"],
        &["add", "mail", "--priority", "x"],
    ] {
        assert_eq!(jobs(&server, wrong).await.status.code(), Some(2), "{wrong:?}");
    }
}

#[tokio::test]
async fn the_lines_of_a_command_are_followed_while_it_runs_and_its_large_result_is_read() {
    let home = Home::new(PATIENT);
    let server = home.serve().await;
    let folder = home.data_dir();
    let word = folder.join("word");
    assert!(std::process::Command::new("mkfifo").arg(&word).status().unwrap().success());
    assert!(jobs(&server, &["add", "t", "--id", "a"]).await.status.success());
    let none = jobs(&server, &["result", "t", "a"]).await;
    assert_eq!((none.status.code(), stdout(&none)), (Some(1), ""), "{none:?}");
    assert!(stderr(&none).contains("the job has no result"), "{none:?}");

    // Its stdout is JSON of many lines. The last of them is long.
    let script = format!(
        "echo '['; echo 'first warning' >&2; read it <'{}'; n=1; while [ $n -le 20 ]; do echo \"$n,\"; n=$((n + 1)); \
         done; echo 'last warning' >&2; printf '\"'; head -c 200000 /dev/zero | tr '\\0' x; echo '\"]'",
        word.display()
    );
    let following = turnwise()
        .args(["jobs", "logs", "t", "a", "-f"])
        .env("TURNWISE_SERVER", server.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut following = following.unwrap();
    let worker = turnwise()
        .args(["work", "--type", "t", "--exec", "sh", "-c", &script])
        .env("TURNWISE_SERVER", server.url())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let _worker = worker.unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let followed = async {
        let mut followed = vec![lines.next_line().await.unwrap().unwrap()];
        // The command waits for this word, so it has not ended.
        tokio::fs::write(&word, "go\n").await.unwrap();
        while let Some(line) = lines.next_line().await.unwrap() {
            followed.push(line);
        }
        followed
    };
    let followed = tokio::time::timeout(PATIENCE, followed).await.expect("the log does not end");
    let mut told = String::new();
    following.stderr.take().unwrap().read_to_string(&mut told).await.unwrap();
    assert!(following.wait().await.unwrap().success(), "{told}");
    assert_eq!(told, "completed\n");
    // Each line is `2026-11-21T09:10:58.123Z INFO  message`.
    let of = |level: &str| -> Vec<&str> {
        let of_level = followed.iter().filter(|line| line[25..30].trim_end() == level);
        of_level.map(|line| &line[31..]).collect()
    };
    let numbers: Vec<String> = (1..=20).map(|n| format!("{n},")).collect();
    let (info, warnings) = (of("INFO"), of("WARN"));
    assert_eq!(info[0], "[");
    assert_eq!(info[1..21], numbers);
    assert!(info[21].starts_with("\"xxx") && info[21].ends_with("x…") && info[21].len() == 4_096, "{info:?}");
    assert_eq!((info.len(), warnings), (22, vec!["first warning", "last warning"]));
    assert_eq!(followed.len(), 24);

    let read = jobs(&server, &["logs", "t", "a"]).await;
    assert_eq!(stdout(&read).lines().collect::<Vec<_>>(), followed);
    let last = jobs(&server, &["logs", "t", "a", "--tail", "2", "--json"]).await;
    let numbered =
        stdout(&last).lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].clone());
    assert_eq!(numbered.collect::<Vec<_>>(), [json!(22), json!(23)]);
    let rest = jobs(&server, &["logs", "t", "a", "--from", "20"]).await;
    assert_eq!(
        (stdout(&rest).lines().collect::<Vec<_>>(), stderr(&rest)),
        (followed[20..].iter().map(String::as_str).collect(), "")
    );

    let result = format!("[\n{}\n\"{}\"]", numbers.join("\n"), "x".repeat(200_000));
    let read = jobs(&server, &["result", "t", "a"]).await;
    assert!(read.status.success() && read.stdout == result.as_bytes(), "{}", stderr(&read));
    let file = folder.join("result");
    let written = jobs(&server, &["result", "t", "a", "--output", file.to_str().unwrap()]).await;
    assert_eq!((written.status.code(), stdout(&written)), (Some(0), ""));
    assert!(std::fs::read(file).unwrap() == result.as_bytes());
    let waited = jobs(&server, &["wait", "t", "a"]).await;
    assert!(waited.status.success() && stdout(&waited) == result, "{}", stderr(&waited));
}

#[tokio::test]
async fn members_of_options_that_a_type_hides_are_not_shown() {
    let server = Home::new(PATIENT).serve().await;
    hide(&server, "mail", &["/token", "/smtp/*/password"]).await;
    let options = r#"{"token":"t-4711","to":"jan","smtp":[{"user":"u","password":"p-4711"}]}"#;
    let added = jobs(&server, &["add", "mail", "--id", "a", "--options", options]).await;
    assert!(added.status.success(), "{added:?}");
    let hidden = json!({ "token": "*****", "to": "jan", "smtp": [{ "user": "u", "password": "*****" }] });
    let shown = jobs(&server, &["options", "mail", "a"]).await;
    assert_eq!(serde_json::from_slice::<Value>(&shown.stdout).unwrap(), hidden);
    let shown = jobs(&server, &["show", "mail", "a"]).await;
    assert_eq!(serde_json::from_slice::<Value>(&shown.stdout).unwrap()["options"], hidden);
    assert!(!stdout(&shown).contains("4711"), "{shown:?}");
    // The worker gets them.
    let (_, given) = accept(&server, 1).await;
    assert_eq!(given[0]["options"], serde_json::from_str::<Value>(options).unwrap());
}
