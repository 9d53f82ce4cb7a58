//! Replications as documents of a `_replicator` database.

use reqwest::{Method, StatusCode};
use serde_json::json;
use turnwise_testkit::{Dataset, Peer, compare};

use crate::server::Home;

#[tokio::test]
async fn a_document_copies_the_standard_data_set() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    let loaded = Dataset::standard().load(&source).await;
    // The test compares counts of one run, so no request may fail because the machine is busy.
    let home = Home::new("connection_timeout = 30000");
    let server = home.serve().await;
    let target = b.db("target");
    let doc = json!({ "source": source.url(), "target": target.url(), "create_target": true });
    server.put("/_replicator/standard", &doc).await;
    server.until_state("standard", "completed").await;
    let summary = compare(&source, &target).await.expect("source and target must agree");
    assert_eq!(summary.leaves, loaded.leaves);
    assert_eq!(summary.attachments, loaded.attachments);

    let doc = server.get("/_replicator/standard").await;
    assert_eq!(doc["_replication_state"], "completed");
    let written = doc["_replication_stats"]["docs_written"].as_u64().unwrap();
    assert_eq!(written, u64::try_from(loaded.leaves).unwrap());
    assert!(doc["_replication_state_time"].as_str().unwrap().contains('T'), "{doc}");
}

#[tokio::test]
async fn databases_with_a_prefix_are_tenants_of_their_own() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    Dataset::plain(20).load(&source).await;
    let server = Home::new("").serve().await;
    server.put("/team%2F_replicator", &json!({})).await;
    let doc = json!({ "source": source.url(), "target": b.db("target").url(), "create_target": true });
    server.put("/team%2F_replicator/one", &doc).await;
    server.until("/_scheduler/docs/team%2F_replicator/one", |doc| doc["state"] == "completed").await;
    let all = server.get("/_scheduler/docs").await;
    assert_eq!(all["docs"][0]["database"], "team/_replicator");
}

#[tokio::test]
async fn a_one_shot_replicate_request_answers_when_it_is_done() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    let loaded = Dataset::small().load(&source).await;
    let server = Home::new("").serve().await;
    let target = b.db("target");
    let body = json!({ "source": source.url(), "target": target.url(), "create_target": true });
    let answer = server.post("/_replicate", &body).await;
    assert_eq!(answer["ok"], true);
    assert_eq!(answer["history"][0]["docs_written"], loaded.leaves);
    compare(&source, &target).await.expect("source and target must agree");
    let again = server.post("/_replicate", &body).await;
    assert_eq!((&again["ok"], &again["no_changes"]), (&json!(true), &json!(true)));
}

#[tokio::test]
async fn a_continuous_replicate_request_follows_until_it_is_cancelled() {
    let (a, b) = Peer::pair().await;
    let (source, target) = (a.create("source").await, b.create("target").await);
    let server = Home::new("").serve().await;
    let body = json!({ "source": source.url(), "target": target.url(), "continuous": true });
    let (status, answer) = server.request(Method::POST, "/_replicate", Some(&body)).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let id = answer["_local_id"].as_str().unwrap().to_owned();
    server.until("/_active_tasks", |tasks| tasks[0]["replication_id"] == id.as_str()).await;
    source.put("late", &json!({ "n": 1 })).await;
    server.until("/_active_tasks", |tasks| tasks[0]["docs_written"] == 1).await;
    assert!(target.doc("late").await.is_some());

    let mut cancel = body.clone();
    cancel["cancel"] = json!(true);
    assert_eq!(server.post("/_replicate", &cancel).await["ok"], true);
    server.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
    let (status, _) = server.request(Method::POST, "/_replicate", Some(&cancel)).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_wrong_field_is_refused_with_its_name() {
    let server = Home::new("").serve().await;
    let good = json!({ "source": "http://127.0.0.1:1/a", "target": "http://127.0.0.1:1/b" });
    let with = |field: &str, value: serde_json::Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let cases = [
        ("source", json!({ "target": "http://127.0.0.1:1/b" })),
        ("target", json!({ "source": "http://127.0.0.1:1/a" })),
        ("source", with("source", json!("a-local-name"))),
        ("source", with("source", json!(7))),
        ("target", with("target", json!({ "headers": {} }))),
        ("continuous", with("continuous", json!("yes"))),
        ("create_target", with("create_target", json!(1))),
        ("doc_ids", with("doc_ids", json!("one"))),
        ("doc_ids", with("doc_ids", json!([1]))),
        ("selector", with("selector", json!("{}"))),
        ("filter", with("filter", json!(["x"]))),
        ("worker_processes", with("worker_processes", json!(0))),
        ("worker_batch_size", with("worker_batch_size", json!("many"))),
        ("use_checkpoints", with("use_checkpoints", json!("no"))),
    ];
    for (field, body) in cases {
        for (method, path, refused) in [
            (Method::POST, "/_replicate", StatusCode::BAD_REQUEST),
            (Method::PUT, "/_replicator/doc", StatusCode::FORBIDDEN),
        ] {
            let (status, answer) = server.request(method, path, Some(&body)).await;
            assert_eq!(status, refused, "{path} {body}: {answer}");
            let reason = answer["reason"].as_str().unwrap();
            assert!(reason.contains(field), "{path} {body}: {reason}");
        }
    }
    let mut contradiction = with("doc_ids", json!(["a"]));
    contradiction["selector"] = json!({});
    let (status, answer) = server.request(Method::PUT, "/_replicator/doc", Some(&contradiction)).await;
    let reason = answer["reason"].as_str().unwrap();
    assert!(
        status == StatusCode::FORBIDDEN && reason.contains("doc_ids") && reason.contains("selector"),
        "{reason}"
    );
    let (status, _) = server.request(Method::GET, "/_replicator/doc", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "a refused document was stored");
}
