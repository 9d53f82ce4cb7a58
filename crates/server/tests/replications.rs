//! Replications through the whole server, between real peers with CouchDB's protocol.

use crate::common::{TestServer, failed, until};
use serde_json::{Value, json};
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};

#[tokio::test]
async fn a_document_runs_and_completes() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    Dataset::small().load(&from).await;
    let to = target.db("to");
    let server = TestServer::start().await;
    let mut feed = server
        .request("GET", "/_replicator/_changes?feed=continuous&heartbeat=true&since=now")
        .send()
        .await
        .unwrap();
    let body = json!({"source": from.url(), "target": to.url(), "create_target": true});
    let first = server.put_ok("/_replicator/a", &body).await;
    // Its end is a change of the document.
    let mut told = String::new();
    let change = loop {
        told.push_str(std::str::from_utf8(&feed.chunk().await.unwrap().unwrap()).unwrap());
        let mut rows = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(change) = rows.next_back().filter(|row| row["changes"][0]["rev"] != json!(first)) {
            break change;
        }
    };
    assert_eq!(change["id"], "a");
    let doc = server.get("/_replicator/a").await.body;
    assert_eq!(
        (&doc["_rev"], &doc["_replication_state"]),
        (&change["changes"][0]["rev"], &json!("completed"))
    );
    assert_eq!(doc["_replication_stats"]["doc_write_failures"], 0);
    assert!(doc["_replication_stats"]["docs_written"].as_u64().unwrap() > 0);
    compare(&from, &to).await.unwrap();
    let status = server.get("/_scheduler/docs/_replicator/a").await.body;
    assert_eq!((&status["state"], &status["id"]), (&json!("completed"), &Value::Null));
    assert_eq!(server.get("/_scheduler/jobs").await.body, json!({"total_rows": 0, "offset": 0, "jobs": []}));
}

#[tokio::test]
async fn a_continuous_document_follows_until_it_is_deleted() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let server = TestServer::start_with("checkpoint_interval = 200\n").await;
    let body = json!({"source": from.url(), "target": to.url(), "continuous": true});
    let rev = server.put_ok("/_replicator/a", &body).await;
    server.until("a", &["running"]).await;
    from.put("first", &json!({"x": 1})).await;
    wait_for(&to, "first").await;
    let tasks = server.poll("/_active_tasks", |tasks| tasks[0]["docs_written"] == 1).await;
    let task = &tasks[0];
    assert_eq!(
        (&task["type"], &task["doc_id"], &task["continuous"]),
        (&json!("replication"), &json!("a"), &json!(true))
    );
    let job = server.get("/_scheduler/jobs").await.body["jobs"][0].clone();
    assert_eq!((&job["id"], &job["pid"]), (&task["replication_id"], &task["pid"]));
    assert_eq!(
        server.get(&format!("/_scheduler/jobs/{}", job["id"].as_str().unwrap())).await.body["doc_id"],
        "a"
    );
    // After a restart of the server the same job continues.
    let server = server.restart("").await;
    from.put("second", &json!({"x": 1})).await;
    wait_for(&to, "second").await;
    // Its counters continue, too.
    server.poll("/_active_tasks", |tasks| tasks[0]["docs_written"] == 2).await;
    assert_eq!(server.delete(&format!("/_replicator/a?rev={rev}")).await.status, 200);
    server.poll("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
    assert_eq!(server.get("/_active_tasks").await.body, json!([]));
    assert_eq!(server.get("/_scheduler/docs/_replicator/a").await.status, 404);
}

/// Waits until a document has arrived.
async fn wait_for(database: &turnwise_testkit::Database, id: &str) {
    until(&format!("{id} arrives"), async || database.doc(id).await, Option::is_some).await;
}

#[tokio::test]
async fn a_request_is_answered_with_its_report() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    for n in 0..3 {
        from.put(&format!("d{n}"), &json!({"n": n})).await;
    }
    let server = TestServer::start().await;
    let body = json!({"source": from.url(), "target": target.db("to").url(), "create_target": true});
    let (one, other) = tokio::join!(server.post("/_replicate", &body), server.post("/_replicate", &body));
    for answer in [&one, &other] {
        assert_eq!((answer.status, &answer.body["ok"]), (200, &json!(true)), "{answer:?}");
    }
    assert_eq!(one.body["history"][0]["docs_written"], 3);
    assert_eq!(one.body["replication_id_version"], 4);
    let again = server.post("/_replicate", &body).await.body;
    assert_eq!((&again["no_changes"], &again["session_id"]), (&json!(true), &one.body["session_id"]));
    assert_eq!(server.get("/_scheduler/jobs").await.body["total_rows"], 0);
}

#[tokio::test]
async fn a_request_that_crashes_gets_the_reason_and_is_not_retried() {
    let peer = Peer::start().await;
    let from = peer.create("from").await;
    let server = TestServer::start_with("backoff_base_ms = 1\n").await;
    for (source, code) in
        [(peer.db("missing").url().to_owned(), "db_not_found"), ("http://127.0.0.1:1/db".into(), "error")]
    {
        let answer =
            server.post("/_replicate", &json!({"source": source, "target": peer.db("to").url()})).await;
        assert_eq!(answer.error(), (500, code), "{answer:?}");
        assert!(answer.body["reason"].as_str().unwrap().contains("(source GET"), "{answer:?}");
    }
    server.poll("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
    let filter = json!({"source": from.url(), "target": peer.db("to").url(), "filter": "no/filter"});
    assert_eq!(server.post("/_replicate", &filter).await.error(), (404, "not_found"));
}

#[tokio::test]
async fn a_continuous_request_runs_until_it_is_cancelled() {
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    let server = TestServer::start().await;
    let body = json!({"source": from.url(), "target": to.url(), "continuous": true});
    let started = server.post("/_replicate", &body).await;
    let id = started.body["_local_id"].as_str().unwrap().to_owned();
    assert_eq!((started.status, &started.body), (202, &json!({"ok": true, "_local_id": id})));
    assert!(id.ends_with("+continuous"));
    assert_eq!(server.post("/_replicate", &body).await.status, 202);
    let jobs = server.get("/_scheduler/jobs").await.body;
    assert_eq!((&jobs["total_rows"], &jobs["jobs"][0]["database"]), (&json!(1), &Value::Null));
    let mut cancel = body.clone();
    cancel["cancel"] = json!(true);
    let cancelled = server.post("/_replicate", &cancel).await;
    assert_eq!((cancelled.status, &cancelled.body), (200, &json!({"ok": true, "_local_id": id})));
    assert_eq!(server.post("/_replicate", &cancel).await.error(), (404, "not_found"));
    server.poll("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
    for name in ["id", "replication_id", "_local_id"] {
        assert_eq!(server.post("/_replicate", &body).await.status, 202);
        let answer = server.post("/_replicate", &json!({"cancel": true, name: id})).await;
        assert_eq!((answer.status, &answer.body["_local_id"]), (200, &json!(id)), "{name}");
    }
    assert_eq!(
        server.post("/_replicate", &json!({"cancel": true, "id": 5})).await.error(),
        (400, "bad_request")
    );
}

#[tokio::test]
async fn a_document_owns_its_job() {
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    let server = TestServer::start().await;
    let body = json!({"source": from.url(), "target": to.url(), "continuous": true});
    server.put_ok("/_replicator/a", &body).await;
    let id = server.until("a", &["running", "pending"]).await["id"].clone();
    let answer = server.post("/_replicate", &body).await;
    assert_eq!(answer.error(), (409, "conflict"));
    assert!(answer.body["reason"].as_str().unwrap().contains("document `a`"));
    let cancel = server.post("/_replicate", &json!({"cancel": true, "id": id})).await;
    assert_eq!(cancel.error(), (403, "forbidden"));
    server.put_ok("/_replicator/b", &body).await;
    let status = server.until("b", &["failed"]).await;
    assert!(
        status["info"]["error"].as_str().unwrap().contains("triggered by document `a` from db `_replicator`")
    );
}

#[tokio::test]
async fn a_failing_source_crashes_the_job_with_a_reason_and_a_recovered_one_completes_it() {
    let peer = Peer::start().await;
    let from = peer.create("from").await;
    from.put("d", &json!({})).await;
    let proxy = FaultProxy::start(&peer).await;
    proxy.set(Fault::Status(500)).await;
    let server = TestServer::start_with("backoff_base_ms = 300\nbackoff_max_exponent = 1\n").await;
    let body = json!({"source": proxy.through(&from), "target": peer.create("to").await.url()});
    server.put_ok("/_replicator/a", &body).await;
    let path = "/_scheduler/docs/_replicator/a";
    let crashing = server
        .poll(path, |status| status["state"] == "crashing" && status["error_count"].as_u64() >= Some(2))
        .await;
    assert!(crashing["info"]["error"].as_str().unwrap().starts_with("500 "), "{crashing}");
    let jobs = server.get("/_scheduler/jobs").await.body;
    let kinds: Vec<&str> = jobs["jobs"][0]["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert!(kinds.ends_with(&["crashed", "started", "added"]), "{kinds:?}");
    assert_eq!(server.get("/_replicator/a").await.body.get("_replication_state"), None);
    proxy.set(Fault::None).await;
    server.until("a", &["completed"]).await;
}

#[tokio::test]
async fn a_filter_function_is_fetched_and_applied() {
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    let code = "function (doc, req) { return doc.kind === req.query.kind }";
    from.put("_design/app", &json!({"filters": {"kind": code}})).await;
    from.put("a", &json!({"kind": "good"})).await;
    from.put("b", &json!({"kind": "bad"})).await;
    let server = TestServer::start().await;
    let body = json!({"source": from.url(), "target": to.url(), "filter": "app/kind", "query_params": {"kind": "good"}});
    server.put_ok("/_replicator/f", &body).await;
    server.until("f", &["completed"]).await;
    assert!(to.doc("a").await.is_some() && to.doc("b").await.is_none());
    server
        .put_ok(
            "/_replicator/missing",
            &json!({"source": from.url(), "target": to.url(), "filter": "app/no"}),
        )
        .await;
    let error = server.until("missing", &["error"]).await;
    assert!(error["info"]["error"].as_str().unwrap().contains("no filter function `no`"), "{error}");
}

#[tokio::test]
async fn a_hidden_password_survives_an_edit() {
    let peer = Peer::options().admin("jan", "hunter2").start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    from.put("d", &json!({})).await;
    let server = TestServer::start().await;
    let state = json!("failed");
    let body = json!({"source": from.url(), "target": to.url(), "_replication_state": state});
    assert!(from.url().contains("hunter2"), "{}", from.url());
    server.put_ok("/_replicator/a", &body).await;
    let mut shown = server.get("/_replicator/a").await.body;
    assert!(!shown.to_string().contains("hunter2"));
    shown.as_object_mut().unwrap().remove("_replication_state");
    server.put_ok("/_replicator/a", &shown).await;
    server.until("a", &["completed"]).await;
    assert!(to.doc("d").await.is_some());
}

#[tokio::test]
async fn a_waiting_request_gets_503_when_the_server_stops_and_its_job_continues_later() {
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    from.put("d", &json!({})).await;
    let proxy = FaultProxy::start(&peer).await;
    proxy.set(Fault::HangMidBody { after: 1 }).await;
    let server = TestServer::start_with("connection_timeout = 60000\n").await;
    let body = json!({"source": proxy.through(&from), "target": to.url()});
    let request = server.request("POST", "/_replicate").header("content-type", "application/json");
    let waiting = tokio::spawn(request.body(body.to_string()).send());
    proxy.wait_for(|_| true).await;
    let TestServer { server, folder, .. } = server;
    server.shutdown().await;
    // A request that delayed the shutdown would have been cut off, without a response.
    assert_eq!(waiting.await.unwrap().unwrap().status(), 503);
    proxy.set(Fault::None).await;
    let _server = TestServer::start_in(folder, "").await;
    wait_for(&to, "d").await;
}

#[tokio::test]
async fn the_jobs_of_a_deleted_database_stop() {
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    let server = TestServer::start().await;
    server.put("/x%2F_replicator", &json!({})).await;
    let body = json!({"source": from.url(), "target": to.url(), "continuous": true});
    server.put_ok("/x%2F_replicator/a", &body).await;
    server.put_ok("/_replicator/over", &failed(1)).await;
    let docs = server.get("/_scheduler/docs?states=running,pending").await.body;
    assert_eq!((&docs["total_rows"], &docs["docs"][0]["database"]), (&json!(2), &json!("x/_replicator")));
    server.poll("/_scheduler/docs/x/_replicator/a", |status| status["state"] == "running").await;
    assert_eq!(server.delete("/x/_replicator").await.status, 200);
    server.poll("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
    assert_eq!(server.get("/_scheduler/docs").await.body["total_rows"], 1);
}
