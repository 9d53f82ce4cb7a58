//! Rotation of replications in a whole server, and its settings.

use crate::common::{Answer, TestServer};
use serde_json::{Value, json};
use turnwise_testkit::{Database, Peer};

async fn set(server: &TestServer, name: &str, value: &str) -> Answer {
    server.put(&format!("/_node/_local/_config/{name}"), &json!(value)).await
}

/// Idle continuous replications.
async fn replications(server: &TestServer, peer: &Peer, count: usize) -> Database {
    let source = peer.create("source").await;
    for n in 0..count {
        let target = peer.create(&format!("target-{n}")).await;
        let body = json!({"source": source.url(), "target": target.url(), "continuous": true});
        server.put_ok(&format!("/_replicator/{n}"), &body).await;
    }
    source
}

#[tokio::test]
async fn fewer_slots_stop_the_excess_at_the_next_cycle_and_new_slots_are_filled_at_once() {
    let peer = Peer::start().await;
    // One cycle a day: nothing that happens before waits for a cycle.
    let server =
        TestServer::start_with("max_jobs = 2\ninterval = 86400000\nconnection_timeout = 60000\n").await;
    replications(&server, &peer, 6).await;
    let running = |n: usize| move |tasks: &Value| tasks.as_array().unwrap().len() == n;
    server.poll("/_active_tasks", running(2)).await;
    set(&server, "replicator/max_jobs", "5").await;
    server.poll("/_active_tasks", running(5)).await;
    set(&server, "replicator/max_jobs", "1").await;
    let slots = |workers: &Value| workers["workers"][0]["slots"] == 1;
    server.poll("/v1/workers?type=replication", slots).await;
    assert!(running(5)(&server.get("/_active_tasks").await.body), "a cycle is a day away");
    // A shorter interval takes effect immediately, and not after a day.
    set(&server, "replicator/interval", "100").await;
    server.poll("/_active_tasks", running(1)).await;
    set(&server, "replicator/max_jobs", "500").await;
    server.poll("/_active_tasks", running(6)).await;
    // Preempted jobs were stopped, not crashed.
    let jobs = server.get("/_scheduler/jobs").await.body;
    for job in jobs["jobs"].as_array().unwrap() {
        let history = job["history"].as_array().unwrap();
        assert!(history.iter().all(|event| event["type"] != "crashed"), "{job}");
    }
}

#[tokio::test]
async fn turns_are_taken_at_every_interval_and_none_without_churn() {
    let peer = Peer::start().await;
    let file =
        "max_jobs = 1\ninterval = 100\nmax_churn = 0\nidle_turn = 31536000000\nconnection_timeout = 60000\n";
    let server = TestServer::start_with(file).await;
    let source = replications(&server, &peer, 3).await;
    let first = server.poll("/_active_tasks", |tasks| tasks[0]["doc_id"].is_string()).await;
    let runs = |tasks: &Value| tasks[0]["doc_id"].as_str().map(str::to_owned);
    let first = runs(&first).unwrap();
    // When the job reports this write, many cycles have passed.
    source.put("document", &json!({})).await;
    server.poll("/_active_tasks", |tasks| tasks[0]["docs_written"] == 1).await;
    for other in (0..3).map(|n| n.to_string()).filter(|n| *n != first) {
        let jobs = server.get("/_scheduler/jobs").await.body;
        let waits = jobs["jobs"].as_array().unwrap().iter().find(|job| job["doc_id"] == *other).unwrap();
        assert_eq!(
            waits["history"].as_array().unwrap().len(),
            1,
            "without churn no job is preempted: {jobs}"
        );
    }
    set(&server, "replicator/max_churn", "1").await;
    // Under either policy, and after each change of it.
    for fairness in ["virtual_time", "rfc", "virtual_time"] {
        set(&server, "replicator/fairness", fairness).await;
        for n in (0..3).map(|n| n.to_string()) {
            server.poll("/_active_tasks", |tasks| runs(tasks).as_ref() == Some(&n)).await;
        }
    }
}
