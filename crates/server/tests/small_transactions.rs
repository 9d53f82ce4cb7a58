//! A store that allows as few rows in one transaction as etcd gives the same responses as other stores.

use std::sync::Arc;

use serde_json::{Value, json};
use turnwise_store::{Limits, StoreUrl, runtime};

use crate::common::TestServer;

const DB: &str = "/_replicator";

async fn server() -> (tempfile::TempDir, TestServer) {
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::embedded(folder.path().join("data"));
    let store =
        turnwise_store::open(&url, Arc::new(runtime::System)).await.unwrap().with_limits(Limits::SMALL);
    (folder, TestServer::start_on(&store, "").await)
}

/// A document of about this size. As a design document, it never runs.
fn document(id: &str, bytes: usize) -> Value {
    json!({ "_id": format!("_design/{id}"), "text": "x".repeat(bytes) })
}

#[tokio::test]
async fn a_thousand_jobs_are_added_at_once() {
    let (_folder, server) = server().await;
    let jobs: Vec<Value> = (0..1_000).map(|n| json!({ "type": "t", "id": format!("{n:04}") })).collect();
    let added = server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    assert_eq!(added.status, 200, "{added:?}");
    let kinds: Vec<&Value> = added.body["jobs"].as_array().unwrap().iter().map(|job| &job["added"]).collect();
    assert_eq!(kinds, vec!["queued"; 1_000]);
    let again = server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    assert_eq!(again.body["jobs"][999], json!({ "type": "t", "id": "0999", "added": "exists" }));
}

#[tokio::test]
async fn a_job_that_fits_no_transaction_is_refused_before_any_is_added() {
    let (_folder, server) = server().await;
    let job =
        |id: &str, bytes: usize| json!({ "type": "t", "id": id, "options": { "x": "x".repeat(bytes) } });
    let jobs = json!({ "jobs": [job("small", 10), job("large", 1_450_000)] });
    let refused = server.post("/v1/jobs", &jobs).await;
    assert_eq!(refused.error(), (413, "too_large"), "{refused:?}");
    assert!(refused.body["reason"].as_str().unwrap().starts_with("jobs[1].options: "), "{refused:?}");
    assert_eq!(server.get("/v1/jobs/t/small").await.status, 404);
    // Jobs that each fit a transaction need not fit together.
    let jobs = json!({ "jobs": [job("a", 700_000), job("b", 700_000), job("c", 700_000)] });
    let added = server.post("/v1/jobs", &jobs).await;
    assert_eq!(added.status, 200, "{added:?}");
}

#[tokio::test]
async fn bulk_writes_go_on_in_another_transaction_and_one_that_fits_none_fails_alone() {
    let (_folder, server) = server().await;
    let mut docs: Vec<Value> = (0..150).map(|n| document(&format!("{n:03}"), 10)).collect();
    docs.extend((0..4).map(|n| document(&format!("large{n}"), 600_000)));
    let written = server.post(&format!("{DB}/_bulk_docs"), &json!({ "docs": docs })).await;
    assert_eq!(written.status, 201, "{written:?}");
    let rows = written.body.as_array().unwrap();
    assert_eq!(rows.len(), 154);
    assert!(rows.iter().all(|row| row["ok"] == true), "{rows:?}");
    // The store holds a replication's document twice: as a row, and as its job's options.
    let ids: Vec<String> = (0..900).map(|n| format!("{n:01000}")).collect();
    let much = json!({
        "_id": "much", "source": "http://127.0.0.1:1/s", "target": "http://127.0.0.1:1/t", "doc_ids": ids,
    });
    let docs = json!({ "docs": [document("z1", 10), much.clone(), document("z2", 10)] });
    let written = server.post(&format!("{DB}/_bulk_docs"), &docs).await;
    assert_eq!((&written.body[0]["ok"], &written.body[2]["ok"]), (&json!(true), &json!(true)), "{written:?}");
    assert_eq!((&written.body[1]["id"], &written.body[1]["error"]), (&json!("much"), &json!("too_large")));
    let refused = server.put(&format!("{DB}/much"), &much).await;
    assert_eq!(refused.error(), (413, "too_large"), "{refused:?}");
    assert_eq!(server.get(&format!("{DB}/much")).await.status, 404);
}

#[tokio::test]
async fn a_database_with_many_documents_is_deleted() {
    let (_folder, server) = server().await;
    assert_eq!(server.put("/x%2F_replicator", &Value::Null).await.status, 201);
    let docs: Vec<Value> = (0..300)
        .map(|n| json!({ "_id": format!("{n}"), "source": format!("http://127.0.0.1:1/{n}"), "target": "http://127.0.0.1:1/t" }))
        .collect();
    let written = server.post("/x%2F_replicator/_bulk_docs", &json!({ "docs": docs })).await;
    assert!(written.body.as_array().unwrap().iter().all(|row| row["ok"] == true), "{written:?}");
    assert_eq!(server.delete("/x%2F_replicator").await.status, 200);
    assert_eq!(server.get("/x%2F_replicator").await.status, 404);
}

#[tokio::test]
async fn a_job_waits_for_a_hundred_large_ones() {
    let (_folder, server) = server().await;
    let large = json!({ "x": "x".repeat(11_000) });
    let ids: Vec<String> = (0..100).map(|n| format!("{n:03}")).collect();
    let jobs: Vec<Value> = ids
        .iter()
        .map(|id| json!({ "type": "t", "id": id, "options": { "x": "x".repeat(8_000) }, "summary": large }))
        .collect();
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    let after: Vec<Value> = ids.iter().map(|id| json!({ "type": "t", "id": id })).collect();
    let waits = json!({ "jobs": [{ "type": "t", "id": "waits", "after": after }] });
    let added = server.post("/v1/jobs", &waits).await;
    assert_eq!(added.body["jobs"][0]["added"], "blocked", "{added:?}");
}
