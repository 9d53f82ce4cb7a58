//! Requests that are under way while identities change, and requests whose clients go away.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::TestServer;

/// A feed that ends with its identity would otherwise last far longer than this.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn feeds_and_waiting_workers_end_with_their_token() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    assert_eq!(admin.put("/acme%2F_replicator", &json!({})).await.status, 201);
    let token = admin.token(&["operator", "worker:t"]).await;
    let kept = admin.token(&["operator"]).await;
    let registered = server.with(&token).post("/v1/workers/t", &json!({"slots": 1})).await.body;
    let accept = format!("/v1/workers/t/{}/accept", registered["worker"].as_str().unwrap());
    let feed = async |path: &str, token: &str| {
        let request = server.request("GET", path).bearer_auth(token).send().await.unwrap();
        assert_eq!(request.status().as_u16(), 200, "{path}");
        request
    };
    assert_eq!(admin.post("/v1/jobs/u", &json!({"id": "a"})).await.status, 201);
    let feeds = ["/v1/jobs/u/a/events", "/acme%2F_replicator/_changes?feed=continuous&heartbeat=1000"];
    let mut ending = Vec::new();
    for path in feeds {
        ending.push(feed(path, &token).await);
    }
    let mut lasting = feed("/v1/jobs/u/a/events", &kept).await;
    let wait = json!({"received": 0, "limit": 1, "wait_ms": 300_000});
    let worker = server.with(&token);
    let waiting = worker.post(&accept, &wait);
    let revoke = async {
        // The worker waits by then.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let id = token.split('_').nth(1).unwrap();
        assert_eq!(admin.delete(&format!("/v1/tokens/{id}")).await.status, 200);
    };
    let (refused, ()) = tokio::time::timeout(SOON, async { tokio::join!(waiting, revoke) }).await.unwrap();
    assert_eq!(refused.error(), (401, "unauthorized"), "{}", refused.body);
    for feed in ending {
        // The rest of the feed, to its end.
        tokio::time::timeout(SOON, feed.bytes()).await.unwrap().ok();
    }
    // The feed of another identity goes on.
    assert_eq!(admin.post("/v1/jobs/u/a/cancel", &json!({})).await.status, 200);
    let told = async {
        let mut text = String::new();
        while !text.contains("cancelled") {
            text.push_str(std::str::from_utf8(&lasting.chunk().await.unwrap().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(SOON, told).await.unwrap();
}

/// Sends the head of a request with the first bytes of its body.
async fn begin(server: &TestServer, head: &str, body: &str, sent: usize) -> TcpStream {
    let address = server.server.listen().to_string();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "{head} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body.as_bytes()[..sent]).await.unwrap();
    stream
}

#[tokio::test]
async fn a_request_from_before_the_first_identity_changes_none() {
    let server = TestServer::start().await;
    let (token, password) = (json!({"scopes": ["admin"]}), json!({"password": "battery staple"}));
    let mut held = Vec::new();
    for (head, body) in [("POST /v1/tokens", token), ("PUT /v1/users/jan/password", password)] {
        let body = body.to_string();
        held.push((begin(&server, head, &body, 1).await, body));
    }
    // They were let in by then.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let jan = json!({"name": "jan", "password": "correct horse", "scopes": ["admin"]});
    assert_eq!(server.post("/v1/users", &jan).await.status, 201);
    for (mut stream, body) in held {
        stream.write_all(&body.as_bytes()[1..]).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(SOON, stream.read(&mut answer)).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let tokens = server.request("GET", "/v1/tokens").basic_auth("jan", Some("correct horse"));
    let tokens = server.send(tokens).await;
    assert_eq!((tokens.status, &tokens.body["tokens"]), (200, &json!([])), "{}", tokens.body);
}

#[tokio::test]
async fn attempts_count_although_their_clients_do_not_wait() {
    let server = TestServer::start().await;
    let new = json!({"name": "jan", "password": "correct horse", "scopes": ["admin"]});
    assert_eq!(server.post("/v1/users", &new).await.status, 201);
    let attempt = json!({"name": "jan", "password": "wrong"});
    let begun = Instant::now();
    loop {
        for _ in 0..8 {
            let text = attempt.to_string();
            let stream = begin(&server, "POST /_session", &text, text.len()).await;
            // The server has read it by then, and hashes.
            tokio::time::sleep(Duration::from_millis(5)).await;
            drop(stream);
        }
        let answer = server.post("/_session", &attempt).await;
        if answer.status == 429 {
            break;
        }
        // Of the others, one or more were not checked. This attempt itself counts, so its number is limited.
        assert_eq!(answer.status, 401, "{}", answer.body);
        assert!(begun.elapsed() < SOON, "attempts are not counted");
    }
}

#[tokio::test]
async fn a_change_whose_client_has_gone_is_in_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let server = TestServer::start_with(&format!("[audit]\nfile = {}\n", file.display())).await;
    // The listener takes the connection, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("http://{}/a", silent.local_addr().unwrap());
    let body = json!({"source": source, "target": source}).to_string();
    let stream = begin(&server, "POST /_replicate", &body, body.len()).await;
    server.poll("/v1/jobs", |jobs| !jobs["jobs"].as_array().unwrap().is_empty()).await;
    drop(stream);
    let begun = Instant::now();
    let line = loop {
        let text = std::fs::read_to_string(&file).unwrap();
        if let Some(line) = text.lines().find(|line| line.contains("_replicate")) {
            break serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
        assert!(begun.elapsed() < SOON, "{text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((&line["method"], &line["status"]), (&json!("POST"), &json!(null)));
}
