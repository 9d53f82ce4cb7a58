//! `turnwise why`, `tenants` and `top`: why a job waits, and which tenant gets how much.

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{Home, Server, turnwise};

/// Longer than anything here takes on a machine that is busy compiling.
const PATIENCE: Duration = Duration::from_secs(60);

async fn run(server: &Server, args: &[&str]) -> Output {
    crate::server::clean(turnwise().args(args).env("TURNWISE_SERVER", server.url()).output().await.unwrap())
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap().trim_end()
}

#[tokio::test]
async fn a_job_says_why_it_waits() {
    let server = Home::new("").serve().await;
    for id in ["a", "b"] {
        server.post("/v1/jobs/mail", &json!({ "id": id, "tenant": "acme" })).await;
    }
    let told = run(&server, &["why", "mail", "b"]).await;
    let lines: Vec<&str> = stdout(&told).lines().collect();
    assert_eq!(lines[0], "No worker of type `mail` is registered: the job starts once one is.");
    assert!(
        lines.contains(&"position   2nd in its tenant's queue, 2nd in its type's queue")
            && lines.contains(&"expected   unknown"),
        "{lines:?}"
    );
    let told = run(&server, &["why", "mail", "b", "--json"]).await;
    assert_eq!(serde_json::from_slice::<Value>(&told.stdout).unwrap()["reason"], "no_worker");
    let none = run(&server, &["why", "mail", "nobody"]).await;
    assert_eq!((none.status.code(), stdout(&none)), (Some(1), ""));
    for wrong in [&["why"][..], &["why", "mail"], &["why", "mail", "b", "--document", "d"]] {
        assert_eq!(run(&server, wrong).await.status.code(), Some(2), "{wrong:?}");
    }
    let document = json!({ "source": "http://127.0.0.1:1/s", "target": "http://127.0.0.1:1/t",
        "_replication_state": "completed" });
    server.put("/_replicator/orders", &document).await;
    for name in ["orders", "_replicator/orders"] {
        let told = run(&server, &["why", "--document", name]).await;
        assert!(stdout(&told).starts_with("Has completed at "), "{told:?}");
    }
}

/// A job's reason comes from a worker, which may send any text.
#[tokio::test]
async fn text_from_workers_does_not_control_the_terminal() {
    let server = Home::new("").serve().await;
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}gone\r";
    server
        .post("/v1/jobs/t", &json!({ "id": "a", "summary": { "text": evil }, "options": { "argv": [evil] } }))
        .await;
    let worker =
        server.post("/v1/workers/t", &json!({ "slots": 1 })).await["worker"].as_str().unwrap().to_owned();
    let given = server.post(&format!("/v1/workers/t/{worker}/accept"), &json!({ "received": 0 })).await;
    let claim = &given["jobs"][0]["claim"];
    let failed = json!({ "claim": claim, "reason": evil, "retry": false, "info": { "said": evil } });
    server.post(&format!("/v1/workers/t/{worker}/jobs/a/fail"), &failed).await;
    for args in [
        &["jobs", "list"][..],
        &["jobs", "list", "--json"],
        &["jobs", "get", "t", "a"],
        &["jobs", "get", "t", "a", "--json"],
        &["jobs", "wait", "t", "a"],
        &["why", "t", "a"],
        &["why", "t", "a", "--json"],
        &["top", "--once"],
    ] {
        let output = run(&server, args).await;
        let shown =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let steering = shown.chars().find(|char| (char.is_control() && *char != '\n') || *char == '\u{202e}');
        assert_eq!(steering, None, "{args:?}: {shown:?}");
    }
}

#[tokio::test]
async fn the_list_of_locks_is_empty_where_nothing_is_locked() {
    let server = Home::new("").serve().await;
    assert_eq!(stdout(&run(&server, &["locks"]).await), "No locks.");
    assert_eq!(stdout(&run(&server, &["locks", "--json"]).await), "[]");
    let wrong = run(&server, &["locks", "--level", ""]).await;
    assert_eq!((wrong.status.code(), stdout(&wrong)), (Some(1), ""));
}

#[tokio::test]
async fn tenants_and_top_are_printed_where_there_is_no_terminal() {
    let server = Home::new("").serve().await;
    assert_eq!(stdout(&run(&server, &["tenants"]).await), "No tenants.");
    for n in 0..12 {
        let job = json!({ "id": format!("job-{n}"), "tenant": if n < 10 { "acme" } else { "beta" } });
        server.post("/v1/jobs/mail", &job).await;
    }
    let listed = run(&server, &["tenants", "--sort", "deficit"]).await;
    let rows: Vec<Vec<&str>> =
        stdout(&listed).lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        ["TYPE", "TENANT", "SHARES", "DEFICIT", "USED", "SERVED", "RUNNING", "WAITING", "OLDEST"]
    );
    assert_eq!(rows[1][..8], ["mail", "acme", "100", "-", "0s", "0s", "0", "10"]);
    let listed = run(&server, &["tenants", "--json", "--limit", "1"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["pending"]), (1, &json!(10)));
    assert_eq!(run(&server, &["tenants", "--sort", "age"]).await.status.code(), Some(2));

    let top = run(&server, &["top", "--type", "mail"]).await;
    let text = stdout(&top);
    assert!(text.starts_with("turnwise at http://") && !text.contains('\u{1b}'), "{text}");
    assert!(text.contains("mail: no worker, 2 tenants (2 waiting), 12 pending"), "{text}");
    assert_eq!(text.matches("no_worker").count(), 12, "{text}");
    let nowhere = crate::server::clean(
        turnwise().args(["top", "--server", "http://127.0.0.1:1"]).output().await.unwrap(),
    );
    assert_eq!((nowhere.status.code(), stdout(&nowhere)), (Some(4), ""), "no answer is no failure");
}

/// What `top` writes to a terminal (of util-linux's `script`), while these keys are pressed.
async fn on_a_terminal(server: &Server, keys: &str) -> (Option<i32>, String) {
    let top = format!("{} top --interval 200ms", env!("CARGO_BIN_EXE_turnwise"));
    let mut script = tokio::process::Command::new("script")
        .args(["--quiet", "--return", "--flush", "--command", &top, "/dev/null"])
        .env("TURNWISE_SERVER", server.url())
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (mut written, mut pressed) = (Vec::new(), false);
    let drawn = async {
        let mut piece = vec![0; 4096];
        while let Ok(bytes @ 1..) = stdout.read(&mut piece).await {
            written.extend_from_slice(&piece[..bytes]);
            // `top` reads keys only after it has drawn for the first time.
            if !pressed && String::from_utf8_lossy(&written).contains("q quits") {
                pressed = true;
                stdin.write_all(keys.as_bytes()).await.unwrap();
            }
        }
        script.wait().await.unwrap()
    };
    let status = tokio::time::timeout(PATIENCE, drawn).await.expect("it goes on for ever");
    (status.code(), String::from_utf8_lossy(&written).into_owned())
}

#[tokio::test]
async fn top_draws_on_a_terminal_and_restores_it() {
    let server = Home::new("").serve().await;
    server.post("/v1/jobs/mail", &json!({ "id": "one", "tenant": "acme" })).await;
    for keys in ["q", "sQ", "\u{3}", "\u{1b}"] {
        let (code, written) = on_a_terminal(&server, keys).await;
        assert_eq!(code, Some(0), "{keys:?}: {written}");
        let (open, close) = (written.find("\u{1b}[?1049h"), written.rfind("\u{1b}[?1049l"));
        assert!(open.is_some() && open < close, "{keys:?}: {written:?}");
        assert!(written[open.unwrap()..close.unwrap()].contains("no_worker"), "{keys:?}: {written:?}");
        assert!(
            written.rfind("\u{1b}[?25l") < written.rfind("\u{1b}[?25h"),
            "the cursor is hidden: {written:?}"
        );
    }
}
