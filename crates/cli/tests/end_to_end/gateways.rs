//! Commands that wait, behind a gateway that does not wait as long, and without a server.

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::json;
use tokio::process::Child;
use turnwise_testkit::{Cut, Gateway};

use crate::server::{Home, PATIENCE, clean, turnwise};

/// The gateways' timeout: far more than the server needs for an answer that does not wait.
const TIMEOUT: Duration = Duration::from_millis(400);

fn start(gateway: &Gateway, args: &[&str]) -> Child {
    let mut command = turnwise();
    command.args(args).env("TURNWISE_SERVER", gateway.url()).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

async fn ended(command: Child) -> (Option<i32>, String) {
    let output = tokio::time::timeout(PATIENCE, command.wait_with_output()).await.expect("it does not end");
    let Output { status, stdout, stderr } = clean(output.unwrap());
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[tokio::test]
async fn a_gateway_that_cuts_waiting_requests_ends_no_command() {
    let server = Home::new("").serve().await;
    for id in ["a", "b"] {
        server.post("/v1/jobs/mail", &json!({ "id": id })).await;
    }
    let wait = &["jobs", "wait", "mail", "a"][..];
    let mut running = Vec::new();
    for (args, cut) in [
        (wait, Cut::Status(408)),
        (wait, Cut::Status(504)),
        (wait, Cut::Close),
        // As long as the gateway cuts, no event comes: in more than twenty streams.
        (&[wait, &["--follow"]].concat(), Cut::Status(504)),
        (&["events", "--follow", "--json"], Cut::Status(504)),
        (&["events", "--follow", "--json"], Cut::Status(408)),
    ] {
        let gateway = Gateway::before(server.address(), TIMEOUT, cut).await;
        let command = start(&gateway, args);
        running.push((gateway, command, format!("{args:?}, {cut:?}")));
    }
    for (gateway, command, case) in &mut running {
        gateway
            .wait_for_requests(if case.contains("wait") && case.contains("follow") { 25 } else { 8 })
            .await;
        assert_eq!(command.try_wait().unwrap(), None, "{case} has ended");
    }
    let events = running.split_off(4);
    server.post("/v1/jobs/mail/b/cancel", &json!({})).await;
    let (path, claim) = {
        let registered = server.post("/v1/workers/mail", &json!({ "slots": 1 })).await;
        let path = format!("/v1/workers/mail/{}", registered["worker"].as_str().unwrap());
        let body = json!({ "received": 0, "limit": 1, "wait_ms": 10_000 });
        let accepted = server.post(&format!("{path}/accept"), &body).await;
        (path, accepted["jobs"][0]["claim"].clone())
    };
    server.post(&format!("{path}/jobs/a/finish"), &json!({ "claim": claim, "result": "sent" })).await;
    for (_gateway, command, case) in running {
        let (code, told) = ended(command).await;
        assert!(code == Some(0) && told.contains("\"sent\""), "{case}: {code:?} {told}");
    }
    // These go on for ever.
    for (gateway, mut command, case) in events {
        let mut lines =
            tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(command.stdout.take().unwrap()));
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("no event comes").unwrap();
        assert!(line.as_ref().is_some_and(|line| line.contains("\"cancelled\"")), "{case}: {line:?}");
        drop((gateway, command));
    }
}

#[tokio::test]
async fn exit_codes_tell_a_failed_job_from_no_answer() {
    let home = Home::new("");
    let server = home.serve().await;
    server.post("/v1/jobs/mail", &json!({ "id": "a" })).await;
    server.post("/v1/jobs/mail/a/cancel", &json!({})).await;
    let gateway = Gateway::before(server.address(), TIMEOUT, Cut::Close).await;
    assert_eq!(ended(start(&gateway, &["jobs", "wait", "mail", "a"])).await.0, Some(1));
    assert_eq!(ended(start(&gateway, &["jobs", "wait", "mail", "none"])).await.0, Some(1));
    server.kill().await;
    for args in [&["jobs", "show", "mail", "a"][..], &["events"], &["jobs", "bulk", "list"], &["top"]] {
        let (code, told) = ended(start(&gateway, args)).await;
        assert!(code == Some(4) && told.contains("no answer"), "{args:?}: {code:?} {told}");
    }

    // A refusal says nothing about the job either.
    let home = Home::new("");
    let server = home.serve().await;
    let admin = json!({ "name": "admin", "password": "correct-horse", "scopes": ["admin"] });
    server.post("/v1/users", &admin).await;
    let gateway = Gateway::before(server.address(), TIMEOUT, Cut::Close).await;
    let (code, told) = ended(start(&gateway, &["jobs", "wait", "mail", "a"])).await;
    assert!(code == Some(4) && told.contains("token"), "{code:?} {told}");
}
