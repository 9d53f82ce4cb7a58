//! A store that allows as few rows in one transaction as etcd gives the same responses as other stores.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::{
    Changes, Engine, KeyValue, Limits, RangeRead, Result, Runtime, Snapshot, Store, StoreUrl, Versionstamp,
    Watch, runtime,
};

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;

const DB: &str = "/_replicator";

async fn server() -> (tempfile::TempDir, TestServer) {
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::embedded(folder.path().join("data"));
    let store =
        turnwise_store::open(&url, Arc::new(runtime::System)).await.unwrap().with_limits(Limits::SMALL);
    let server = TestServer::start_on(&store, "").await;
    // Each transaction also records events, which takes rows.
    assert_eq!(server.get("/v1/events?limit=1").await.status, 200);
    (folder, server)
}

/// A document of about this size. As a design document, it never runs.
fn document(id: &str, bytes: usize) -> Value {
    json!({ "_id": format!("_design/{id}"), "text": "x".repeat(bytes) })
}

#[tokio::test]
async fn a_thousand_jobs_are_added_at_once() {
    let (_folder, server) = server().await;
    // Each with as many tags as possible: each of them is a row.
    let tags: Vec<String> = (0..16).map(|n| format!("tag-{n}")).collect();
    let job = |n| json!({ "type": "t", "id": format!("{n:04}"), "tags": tags });
    let jobs: Vec<Value> = (0..1_000).map(job).collect();
    let added = server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    assert_eq!(added.status, 200, "{added:?}");
    let kinds: Vec<&Value> = added.body["jobs"].as_array().unwrap().iter().map(|job| &job["added"]).collect();
    assert_eq!(kinds, vec!["queued"; 1_000]);
    let again = server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    assert_eq!(again.body["jobs"][999], json!({ "type": "t", "id": "0999", "added": "exists" }));
    let tagged = server.get("/v1/jobs?tag=tag-15&order=oldest&limit=1000").await.body;
    assert_eq!(tagged["jobs"].as_array().unwrap().len(), 1_000);
    let remove = json!({ "action": "remove", "where": "tag = tag-0" });
    assert_eq!(server.put("/v1/bulk/remove", &remove).await.status, 201);
    let removed = server.poll("/v1/bulk/remove", |bulk| bulk["state"] != "running").await;
    assert_eq!((&removed["changed"], &removed["state"]), (&json!(1_000), &json!("done")), "{removed}");
}

#[tokio::test]
async fn a_hundred_jobs_end_at_once() {
    let (_folder, server) = server().await;
    let jobs: Vec<Value> = (0..100).map(|n| json!({ "type": "t", "id": format!("{n:03}") })).collect();
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    let mut worker = ExternalWorker::register(&server, "t", 100).await;
    let mut ends: Vec<Value> = Vec::new();
    while ends.len() < 100 {
        let jobs = worker.next(100).await;
        assert!(!jobs.is_empty(), "{ends:?}");
        ends.extend(jobs.iter().map(|job| json!({ "id": job["id"], "claim": job["claim"] })));
    }
    let ended = worker.call("end", json!({ "finish": ends })).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    let states = ended.body["ended"].as_array().unwrap().iter().map(|end| &end["state"]);
    assert_eq!(states.collect::<Vec<_>>(), vec!["completed"; 100]);
    let completed = server.get("/v1/jobs?type=t&state=completed&limit=1000").await;
    assert_eq!(completed.body["jobs"].as_array().unwrap().len(), 100);
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

/// An engine that counts, for each commit, the rows whose keys contain `together-`.
#[derive(Clone)]
struct Counting {
    engine: Arc<dyn Engine>,
    commits: Arc<Mutex<Vec<usize>>>,
}

struct CountingSnapshot {
    snapshot: Arc<dyn Snapshot>,
    commits: Arc<Mutex<Vec<usize>>>,
}

#[async_trait]
impl Engine for Counting {
    fn limits(&self) -> Limits {
        // Those of FoundationDB.
        Limits {
            transaction_bytes: 3_000_000,
            transaction_writes: 5_000,
            transaction_conflicts: 5_000,
            ..Limits::DEFAULT
        }
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let snapshot = self.engine.snapshot().await?;
        Ok(Arc::new(CountingSnapshot { snapshot, commits: self.commits.clone() }))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        self.engine.watch(key, seen).await
    }
}

#[async_trait]
impl Snapshot for CountingSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.snapshot.get(key).await
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.snapshot.range(read).await
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let keys = changes.puts.iter().map(|(key, _)| key);
        let rows = keys.filter(|key| key.windows(9).any(|part| part == b"together-")).count();
        let stamp = self.snapshot.commit(changes).await?;
        if rows > 0 {
            self.commits.lock().unwrap().push(rows);
        }
        Ok(stamp)
    }
}

/// A runtime on which 20 ms pass with each look at the clock, as on a store whose reads are slow.
#[derive(Default)]
struct Slow(AtomicI64);

#[async_trait]
impl Runtime for Slow {
    fn now_us(&self) -> i64 {
        runtime::System.now_us()
    }

    fn elapsed_us(&self) -> i64 {
        runtime::System.elapsed_us() + self.0.fetch_add(20_000, SeqCst)
    }

    async fn sleep(&self, duration: Duration) {
        runtime::System.sleep(duration).await;
    }

    fn random(&self) -> u64 {
        runtime::System.random()
    }
}

#[tokio::test]
async fn a_hundred_jobs_of_one_megabyte_are_added_all_or_none_by_a_slow_store() {
    let folder = tempfile::tempdir().unwrap();
    let options = embedded::Options { durable: false, ..embedded::Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let engine = Counting { engine, commits: Arc::default() };
    let commits = engine.commits.clone();
    let server = TestServer::start_on(&Store::new(Arc::new(engine), Arc::new(Slow::default())), "").await;
    let awaited: Vec<Value> = (0..10).map(|n| json!({ "type": "t", "id": format!("first{n}") })).collect();
    let added = server.post("/v1/jobs", &json!({ "jobs": awaited })).await;
    assert_eq!(added.status, 200, "{added:?}");
    let text = "x".repeat(9_000);
    let jobs = |count: usize, kind: &str| {
        let ids = (0..count).map(|n| format!("together-{kind}{n:03}"));
        let job = |id| json!({ "type": "t", "id": id, "after": awaited, "options": { "text": text } });
        json!({ "jobs": ids.map(job).collect::<Vec<Value>>() })
    };
    let small = jobs(100, "small");
    assert!((900_000..1_000_000).contains(&small.to_string().len()));
    let added = server.post("/v1/jobs", &small).await;
    assert_eq!(added.status, 200, "{added:?}");
    assert_eq!(commits.lock().unwrap().len(), 1, "all in one transaction");

    commits.lock().unwrap().clear();
    let added = server.post("/v1/jobs", &jobs(300, "many")).await;
    assert_eq!(added.status, 200, "{added:?}");
    assert!(commits.lock().unwrap().len() > 2, "a request for more jobs may be split");
}
