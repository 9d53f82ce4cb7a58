//! `turnwise test-server`: it needs nothing, its clock can be moved, and nothing of it stays.

use std::path::Path;
use std::process::Stdio;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin};

use crate::server::{Home, PATIENCE, turnwise};

/// Starts one. Returns it, the end of its stdin, and what it prints.
async fn start() -> (Child, ChildStdin, Value) {
    let mut command = turnwise();
    let mut child = command
        .args(["--log", "warn", "test-server"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it does not listen");
    (child, stdin, serde_json::from_str(&line.unwrap().unwrap()).unwrap())
}

async fn advance(url: &str, body: &Value) -> (StatusCode, Value) {
    let request = turnwise_testkit::client().post(format!("{url}/v1/test/advance")).json(body);
    let answer = request.send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

#[tokio::test]
async fn its_clock_is_moved_and_the_end_of_its_stdin_ends_it() {
    let (mut child, stdin, line) = start().await;
    let url = line["url"].as_str().unwrap();
    let client = turnwise_testkit::client();
    let delayed = json!({ "id": "a", "delay_ms": 90_000_000 });
    let added = client.post(format!("{url}/v1/jobs/t")).json(&delayed).send().await.unwrap();
    assert!(added.status().is_success());
    let state = async || {
        let job = client.get(format!("{url}/v1/jobs/t/a")).send().await.unwrap();
        job.json::<Value>().await.unwrap()["state"].clone()
    };
    let (status, first) = advance(url, &json!({ "by_ms": 3_600_000 })).await;
    assert_eq!((status, state().await), (StatusCode::OK, json!("delayed")));
    let (_, then) = advance(url, &json!({ "by_ms": 25 * 3_600_000 })).await;
    assert_eq!(state().await, "pending");
    let passed_us = then["now_us"].as_i64().unwrap() - first["now_us"].as_i64().unwrap();
    assert!(passed_us >= 25 * 3_600_000_000);
    let (status, _) = advance(url, &json!({ "by_ms": -1 })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, _) = advance(url, &json!({ "by_ms": 400_000_000_000_u64 })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);

    let store = client.get(format!("{url}/v1/store")).send().await.unwrap();
    let store = store.json::<Value>().await.unwrap();
    let folder = store["url"].as_str().unwrap().strip_prefix("embedded:").unwrap().to_owned();
    assert!(Path::new(&folder).is_dir());
    drop(stdin);
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await.expect("it does not end").unwrap();
    assert_eq!(ended.code(), Some(0));
    assert!(!Path::new(&folder).parent().unwrap().exists(), "{folder} stays");
}

#[tokio::test]
async fn other_servers_have_no_such_route() {
    let home = Home::new("");
    let server = home.serve().await;
    let (status, _) = advance(server.url(), &json!({ "by_ms": 1 })).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    server.kill().await;
}
