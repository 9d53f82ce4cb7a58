//! Credentials of replications: what answers repeat, and what the store keeps. `secrets.rs` has the log.

use serde_json::json;
use turnwise_testkit::{Fault, FaultProxy, Peer};

use crate::common::{Cluster, TestServer};

/// A server that rejects a login may repeat it in any form, even an unexpected one.
#[tokio::test]
async fn the_error_of_a_rejected_login_is_only_its_status() {
    let server = TestServer::start().await;
    let peer = Peer::options().admin("jan", "hunter2").start().await;
    let from = peer.create("from").await;
    for status in [401, 403, 500, 429] {
        // A new proxy each time, because turnwise remembers a rejected login for a while.
        let proxy = FaultProxy::start(&peer).await;
        let body = r#"{"error":"bad_2retnuh","reason":"jan with 2retnuh is locked out"}"#.into();
        proxy.set(Fault::Answer { status, body }).await;
        let body = json!({"source": proxy.through(&from), "target": proxy.through(&from)});
        let answer = server.post("/_replicate", &body).await.body.to_string();
        let said = answer.contains(&format!("{status} ")) && answer.contains("/_session)");
        assert!(said && !answer.contains("2retnuh"), "{answer}");
    }
}

/// The store keeps no credentials of a replication that has ended, in whatever state.
#[tokio::test]
async fn an_ended_replication_leaves_no_credentials() {
    let cluster = Cluster::start(["backoff_base_ms = 3600000\n"]).await;
    let server = cluster.at(0);
    let peer = Peer::options().admin("jan", "hunter2").start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    let stored = async |secret: &str| {
        let tx = cluster.store.begin().await.unwrap();
        let rows = tx.range(&(vec![].into(), vec![0xff].into()), 100_000).await.unwrap();
        rows.iter().filter(|(_, value)| String::from_utf8_lossy(value).contains(secret)).count()
    };
    // Options that exceed a job's record, and options that fit.
    for ids in [json!(["d"]), json!([format!("d{}", "x".repeat(20_000))])] {
        let body = json!({"source": from.url(), "target": to.url(), "doc_ids": ids});
        assert_eq!(server.post("/_replicate", &body).await.status, 200);
        assert_eq!(stored("hunter2").await, 0, "completed");
        // A client can request it again, with its credentials.
        assert_eq!(server.post("/_replicate", &body).await.status, 200);
        let failing = json!({"source": "http://jan:hunter2@127.0.0.1:1/db", "target": to.url(), "doc_ids": ids,
            "retries_per_request": 0});
        assert_eq!(server.post("/_replicate", &failing).await.status, 500);
        assert_eq!(stored("hunter2").await, 0, "failed");
        // Cancelled during its backoff.
        let mut waiting = failing.clone();
        waiting["continuous"] = json!(true);
        let started = server.post("/_replicate", &waiting).await.body;
        let id = started["_local_id"].as_str().unwrap().replace('+', "%2B");
        server.poll(&format!("/v1/jobs/replication/{id}"), |job| job["state"] == "crashing").await;
        assert_eq!(stored("hunter2").await, 1, "it needs them");
        waiting["cancel"] = json!(true);
        assert_eq!(server.post("/_replicate", &waiting).await.status, 200);
        assert_eq!(stored("hunter2").await, 0, "cancelled");
    }
}
