//! No response and no line of the log contains a password. The test checks the log of a whole process, so it is alone
//! in its program.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use common::TestServer;
use serde_json::{Value, json};
use turnwise_testkit::{Fault, FaultProxy, Peer};

/// The log of all crates, at every level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Every form in which the passwords may appear: plain, percent-encoded, and as HTTP Basic sends them.
const SECRETS: [&str; 4] = ["hunter2", "p%40ss", "p@ss", "amFuOmh1bnRlcjI"];

#[tokio::test]
async fn no_secret_leaves_the_server() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .init();

    let peer = Peer::options().admin("jan", "hunter2").start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    from.put("d", &json!({})).await;
    let echo = FaultProxy::start(&peer).await;
    // A peer that repeats the request's credentials, as real ones do in their errors.
    echo.set(Fault::Answer {
        status: 401,
        body: r#"{"error":"unauthorized","reason":"jan:hunter2 or Basic amFuOmh1bnRlcjI=="}"#.into(),
    })
    .await;
    let server = TestServer::start_with("backoff_base_ms = 10\n").await;
    let (from, to, echoed) = (from.url().to_owned(), to.url().to_owned(), echo.through(&from));
    let documents = documents(&from, &to, &echoed);
    let mut answers: Vec<Value> = Vec::new();
    for (id, body) in &documents {
        answers.push(server.put(&format!("/_replicator/{id}"), body).await.body);
        if !id.starts_with("bad") {
            let mut request = body.clone();
            request["http_connections"] = json!(2);
            request["query_params"] = json!({"x": "y"});
            if *id != "continuous" && *id != "twin" {
                answers.push(server.post("/_replicate", &request).await.body);
            }
        }
        answers.push(server.post("/_replicate", body).await.body);
    }
    answers.push(
        server
            .post("/_replicator/_bulk_docs", &json!({"docs": [{"source": "http://jan:hunter2@h"}]}))
            .await
            .body,
    );
    let text = server.request("PUT", "/_replicator/text").body("{\"source\": \"http://jan:hunter2@h/db\", ");
    answers.push(server.send(text).await.body);
    answers.extend(jobs_of_other_types(&server).await);
    for (id, states) in [
        ("url", &["completed", "failed", "error"][..]),
        ("down", &["crashing"]),
        ("echo", &["crashing"]),
        ("filter", &["error"]),
        ("echoed_filter", &["error"]),
        ("continuous", &["running"]),
    ] {
        answers.push(server.until(id, states).await);
    }
    for path in [
        "/",
        "/_scheduler/jobs",
        "/_scheduler/docs",
        "/_active_tasks",
        "/_replicator",
        "/_replicator/_all_docs?include_docs=true",
        "/_replicator/_changes?include_docs=true",
        "/v1/jobs",
        "/v1/workers",
        "/v1/tenants",
        "/v1/queue",
    ] {
        answers.push(server.get(path).await.body);
    }
    for (id, _) in &documents {
        answers.push(server.get(&format!("/_replicator/{id}?revs=true&meta=true")).await.body);
        answers.push(server.get(&format!("/_replicator/{id}?open_revs=all")).await.body);
        answers.push(server.get(&format!("/_scheduler/docs/_replicator/{id}")).await.body);
        answers.push(server.get(&format!("/v1/documents/_replicator/{id}/why")).await.body);
        answers.push(server.post("/_replicator/_bulk_get", &json!({"docs": [{"id": id}]})).await.body);
    }
    server.server.shutdown().await;

    let shown = answers.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    // The test has covered its subject: there were documents, jobs, tasks and errors.
    for expected in [
        "jan:*****@",
        "\"crashed\"",
        "\"type\":\"replication\"",
        "401",
        "triggered by document",
        "filter_failed",
    ] {
        assert!(shown.contains(expected), "{expected} is missing in\n{shown}");
    }
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("turnwise_server"), "nothing was logged");
    for secret in SECRETS {
        let line = |text: &str| text.lines().find(|line| line.contains(secret)).map(str::to_owned);
        assert_eq!(line(&shown), None, "an answer shows {secret}");
        assert_eq!(line(&logged), None, "the log shows {secret}");
    }
}

/// Documents with secrets in all places, those of `from`, `to` and a peer that repeats what it is sent.
fn documents(from: &str, to: &str, echoed: &str) -> Vec<(&'static str, Value)> {
    let object = |url: &str| {
        let bare = url.replace("jan:hunter2@", "");
        json!({"url": bare, "auth": {"basic": {"username": "jan", "password": "hunter2"}}})
    };
    let header = |url: &str| {
        let bare = url.replace("jan:hunter2@", "");
        json!({"url": bare, "headers": {"Authorization": "Basic amFuOmh1bnRlcjI=="}})
    };
    vec![
        ("url", json!({"source": from, "target": to})),
        ("object", json!({"source": object(from), "target": object(to), "winning_revs_only": true})),
        ("header", json!({"source": header(from), "target": to, "doc_ids": ["d"]})),
        ("continuous", json!({"source": from, "target": to, "continuous": true})),
        ("down", json!({"source": "http://jan:p%40ss@127.0.0.1:1/db", "target": to})),
        ("echo", json!({"source": echoed, "target": to})),
        ("filter", json!({"source": from, "target": to, "filter": "no/filter"})),
        ("echoed_filter", json!({"source": echoed, "target": to, "filter": "no/filter"})),
        ("twin", json!({"source": from, "target": to, "continuous": true})),
        ("over", json!({"source": "http://jan:p@ss/w@h/db", "target": 5, "_replication_state": "failed"})),
        // Rejected, with reasons that repeat no secret.
        ("bad1", json!({"source": "http://jan:hunter2@h:x/db", "target": to})),
        ("bad2", json!({"source": {"url": "http://h/db", "auth": {"basic": "hunter2"}}, "target": to})),
        ("bad3", json!({"source": from, "target": to, "continuous": "hunter2"})),
        ("bad4", json!({"source": {"url": "http://h/db", "headers": {"Cookie": "hunter2\n"}}, "target": to})),
        ("bad5", json!({"source": "ftp://jan:hunter2@h/db", "target": to})),
    ]
}

/// A worker gets the options of its job; no other client gets those that their type hides, here any.
async fn jobs_of_other_types(server: &TestServer) -> Vec<Value> {
    server.hide("t", &["/"]).await;
    let secret = json!({"password": "hunter2", "large": "hunter2".repeat(5_000)});
    let mut answers = Vec::new();
    for (id, options) in [("small", json!("hunter2")), ("large", secret.clone())] {
        answers.push(server.post("/v1/jobs/t", &json!({"id": id, "options": options})).await.body);
    }
    let many = json!({"jobs": [{"type": "t", "options": secret}, {"type": "t", "options": secret, "max_attempts": "hunter2"}]});
    answers.push(server.post("/v1/jobs", &many).await.body);
    for wrong in [
        json!("hunter2"),
        json!({"id": {"s": "hunter2"}}),
        json!({"summary": "hunter2"}),
        json!({"delay_ms": "hunter2"}),
    ] {
        answers.push(server.post("/v1/jobs/t", &wrong).await.body);
    }
    let text = server.request("POST", "/v1/jobs/t").header("content-type", "application/json");
    answers.push(server.send(text.body("{\"options\": \"hunter2\", ")).await.body);
    answers.push(server.post("/v1/jobs/command", &json!({"options": {"argv": ["hunter2"]}})).await.body);
    let worker =
        server.post("/v1/workers/t", &json!({"slots": 2})).await.body["worker"].as_str().unwrap().to_owned();
    let worker = format!("/v1/workers/t/{worker}");
    let given = server.post(&format!("{worker}/accept"), &json!({"received": 0, "limit": 2})).await.body;
    assert!(given.to_string().contains("hunter2"), "the worker was given no options: {given}");
    for job in given["jobs"].as_array().unwrap() {
        let path = format!("{worker}/jobs/{}/fail", job["id"].as_str().unwrap());
        answers.push(server.post(&path, &json!({"claim": job["claim"], "reason": "no"})).await.body);
    }
    for ends in [json!({"finish": "hunter2"}), json!({"fail": [{"id": "hunter2", "claim": "hunter2"}]})] {
        answers.push(server.post(&format!("{worker}/end"), &ends).await.body);
    }
    for id in ["small", "large"] {
        answers.push(server.get(&format!("/v1/jobs/t/{id}")).await.body);
        answers.push(server.get(&format!("/v1/jobs/t/{id}/why")).await.body);
        answers.push(server.get(&format!("/v1/jobs/t/{id}/wait?timeout_ms=0")).await.body);
    }
    answers
}
