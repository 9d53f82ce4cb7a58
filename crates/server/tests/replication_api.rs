//! Responses about replications, field by field: statements of `docs/replication.md` that no other test covers.

use crate::common::{TestServer, failed};
use serde_json::{Map, Value, json};
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer};

/// A replication between URLs at which no server listens.
fn nowhere(name: &str) -> Value {
    let url = |db: &str| format!("http://127.0.0.1:1/{name}-{db}");
    json!({"source": url("s"), "target": url("t"), "continuous": true})
}

fn with(mut body: Value, more: Value) -> Value {
    let more: Map<String, Value> = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// The members of the response to a one-shot request that has completed.
const REPORT: [&str; 5] = ["history", "ok", "replication_id_version", "session_id", "source_last_seq"];
/// The members of each session in its history.
const SESSION: [&str; 13] = [
    "bulk_get_attempts",
    "bulk_get_docs",
    "doc_write_failures",
    "docs_read",
    "docs_written",
    "end_last_seq",
    "end_time",
    "missing_checked",
    "missing_found",
    "recorded_seq",
    "session_id",
    "start_last_seq",
    "start_time",
];

#[tokio::test]
async fn a_one_shot_answer_has_every_field() {
    let peer = Peer::start().await;
    let from = peer.create("from").await;
    Dataset::plain(5).load(&from).await;
    let server = TestServer::start().await;
    let body = json!({"source": from.url(), "target": peer.create("to").await.url()});
    let report = server.post("/_replicate", &body).await.body;
    assert_eq!(names(&report), REPORT);
    assert_eq!(names(&report["history"][0]), SESSION);
    assert_eq!((&report["ok"], &report["replication_id_version"]), (&json!(true), &json!(4)));
    assert!(report["history"][0]["start_time"].as_str().unwrap().ends_with(" GMT"), "{report}");
    let again = server.post("/_replicate", &body).await.body;
    assert_eq!(again["no_changes"], json!(true));
    assert_eq!(names(&again).len(), REPORT.len() + 1, "{again}");

    // With document ids, the response also has the members that CouchDB returned before it had a history.
    let by_ids =
        with(body.clone(), json!({"doc_ids": ["doc-000001"], "target": peer.create("ids").await.url()}));
    let report = server.post("/_replicate", &by_ids).await.body;
    for name in ["start_time", "end_time", "docs_read", "docs_written", "doc_write_failures"] {
        assert_eq!(report[name], report["history"][0][name], "{name}: {report}");
    }
    let forgetful = with(body, json!({"use_checkpoints": false}));
    let report = server.post("/_replicate", &forgetful).await.body;
    assert_eq!(report["use_checkpoints"], json!(false));
}

#[tokio::test]
async fn a_request_that_a_peer_refuses_gets_that_error() {
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    let proxy = FaultProxy::start(&peer).await;
    let server = TestServer::start().await;
    for (status, code) in [(401, "unauthorized"), (403, "forbidden")] {
        proxy.set(Fault::Status(status)).await;
        for (source, target) in
            [(proxy.through(&from), to.url().into()), (from.url().into(), proxy.through(&to))]
        {
            let body: Value = json!({"source": source, "target": target});
            assert_eq!(server.post("/_replicate", &body).await.error(), (status, code), "{body}");
        }
    }
}

#[tokio::test]
async fn every_failure_to_read_a_filters_code_is_a_404() {
    let peer = Peer::start().await;
    let from = peer.create("from").await;
    from.put("_design/app", &json!({"filters": {"f": "function () { return true }"}})).await;
    let server = TestServer::start().await;
    for (source, filter) in [
        (from.url().to_owned(), "app/other"),
        (from.url().to_owned(), "none/f"),
        (peer.db("missing").url().to_owned(), "app/f"),
        ("http://127.0.0.1:1/x".to_owned(), "app/f"),
    ] {
        let body = json!({"source": source, "target": "http://127.0.0.1:1/t", "filter": filter});
        let answer = server.post("/_replicate", &body).await;
        assert_eq!(answer.error(), (404, "not_found"), "{source} {filter}");
    }
}

#[tokio::test]
async fn a_request_is_cancelled_by_its_body_or_its_id() {
    let server = TestServer::start().await;
    let body = nowhere("x");
    let started = server.post("/_replicate", &body).await;
    let id = started.body["_local_id"].as_str().unwrap().to_owned();
    assert_eq!(names(&started.body), ["_local_id", "ok"]);
    let done = json!({"ok": true, "_local_id": id});
    for cancel in [
        with(body.clone(), json!({"cancel": true})),
        // Members that are not part of the id do not matter.
        with(body.clone(), json!({"cancel": true, "http_connections": 3, "unknown": 1})),
        json!({"cancel": true, "id": id}),
        json!({"cancel": true, "replication_id": id}),
        json!({"cancel": true, "_local_id": id}),
        json!({"cancel": true, "id": id.replace('+', " ")}),
        // An id overrides the rest of the body.
        with(nowhere("y"), json!({"cancel": true, "replication_id": id})),
    ] {
        assert_eq!(server.post("/_replicate", &body).await.status, 202);
        let answer = server.post("/_replicate", &cancel).await;
        assert_eq!((answer.status, &answer.body), (200, &done), "{cancel}");
        assert_eq!(server.post("/_replicate", &cancel).await.error(), (404, "not_found"), "{cancel}");
    }
    assert_eq!(server.post("/_replicate", &body).await.status, 202);
    for (cancel, refusal) in [
        (json!({"cancel": true, "id": "nothing"}), (404, "not_found")),
        // As a one-shot replication it is a different one.
        (with(body.clone(), json!({"cancel": true, "continuous": false})), (404, "not_found")),
        (json!({"cancel": true}), (400, "bad_request")),
        (json!({"cancel": true, "id": 5}), (400, "bad_request")),
        (with(body.clone(), json!({"cancel": "yes"})), (400, "bad_request")),
    ] {
        assert_eq!(server.post("/_replicate", &cancel).await.error(), refusal, "{cancel}");
    }
    // Documents ignore `cancel` and ids, like all unknown members.
    let body = with(nowhere("doc"), json!({"cancel": true, "id": "x"}));
    server.put_ok("/_replicator/doc", &body).await;
    assert_ne!(server.get("/_scheduler/docs/_replicator/doc").await.body["id"], Value::Null);
}

#[tokio::test]
async fn a_duplicate_document_fails_and_can_run_once_the_first_is_gone() {
    let server = TestServer::start().await;
    server.put("/x%2F_replicator", &json!({})).await;
    let rev = server.put_ok("/_replicator/first", &nowhere("x")).await;
    let id = server.get("/_scheduler/docs/_replicator/first").await.body["id"].as_str().unwrap().to_owned();
    for (db, name) in [("x%2F_replicator", "first"), ("x%2F_replicator", "other"), ("_replicator", "other")] {
        server.put_ok(&format!("/{db}/{name}"), &nowhere("x")).await;
        let status = server.get(&format!("/_scheduler/docs/{db}/{name}")).await.body;
        let reason = format!(
            "Replication `{id}` specified by document `{name}` already started, triggered by document `first` \
             from db `_replicator`"
        );
        let found = (&status["state"], &status["id"], &status["error_count"], &status["info"]["error"]);
        assert_eq!(found, (&json!("failed"), &Value::Null, &json!(1), &json!(reason)));
        let doc = server.get(&format!("/{db}/{name}")).await.body;
        assert_eq!(
            (&doc["_replication_state"], &doc["_replication_state_reason"]),
            (&json!("failed"), &json!(reason))
        );
    }
    // A request for the same replication gets the error, too, and changes nothing.
    let refused = server.post("/_replicate", &nowhere("x")).await;
    assert_eq!(refused.error(), (409, "conflict"));
    assert!(
        refused.body["reason"]
            .as_str()
            .unwrap()
            .ends_with("triggered by document `first` from db `_replicator`")
    );
    let cancel = with(nowhere("x"), json!({"cancel": true}));
    assert_eq!(server.post("/_replicate", &cancel).await.error(), (403, "forbidden"));
    // The failed ones stay failed until a client tries again.
    server.delete(&format!("/_replicator/first?rev={rev}")).await;
    let path = "/_scheduler/docs/x%2F_replicator/other";
    assert_eq!(server.get(path).await.body["state"], "failed");
    let mut doc = server.get("/x%2F_replicator/other").await.body;
    doc.as_object_mut().unwrap().remove("_replication_state");
    server.put_ok("/x%2F_replicator/other", &doc).await;
    assert_eq!(server.get(path).await.body["id"], json!(id));
    // A document waits for the end of a request.
    assert_eq!(server.post("/_replicate", &nowhere("y")).await.status, 202);
    server.put_ok("/_replicator/waits", &nowhere("y")).await;
    let status = server.get("/_scheduler/docs/_replicator/waits").await.body;
    assert_eq!(status["state"], "error");
    let reason = status["info"]["error"].as_str().unwrap();
    assert!(
        reason.ends_with("already running as a transient replication, started via `_replicate` API endpoint"),
        "{reason}"
    );
}

#[tokio::test]
async fn scheduler_docs_are_chosen_by_state_and_come_in_pages() {
    let server = TestServer::start().await;
    server.put("/x%2F_replicator", &json!({})).await;
    for n in 0..3 {
        server.put_ok(&format!("/_replicator/d{n}"), &failed(n)).await;
    }
    server.put_ok("/_replicator/e", &with(nowhere("e"), json!({"_replication_state": "completed"}))).await;
    server.put_ok("/x%2F_replicator/f", &failed(9)).await;
    server.put_ok("/_replicator/_design/z", &json!({})).await;
    let ids = async |path: &str| {
        let body = server.get(path).await.body;
        let docs = body["docs"].as_array().unwrap();
        docs.iter().map(|doc| doc["doc_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    for (path, expected) in [
        ("/_scheduler/docs", "d0 d1 d2 e f"),
        ("/_scheduler/docs/_replicator", "d0 d1 d2 e"),
        ("/_scheduler/docs/x%2F_replicator", "f"),
        ("/_scheduler/docs/x/_replicator", "f"),
        ("/_scheduler/docs?states=failed", "d0 d1 d2 f"),
        ("/_scheduler/docs?states=completed,running", "e"),
        ("/_scheduler/docs?states=COMPLETED", "e"),
        ("/_scheduler/docs?states=", "d0 d1 d2 e f"),
        ("/_scheduler/docs?states=initializing,pending,crashing,error", ""),
        ("/_scheduler/docs?limit=2", "d0 d1"),
        ("/_scheduler/docs?skip=3", "e f"),
        ("/_scheduler/docs?skip=1&limit=2", "d1 d2"),
        ("/_scheduler/docs?limit=0", ""),
        ("/_scheduler/docs?skip=99", ""),
        // `skip` counts only selected rows.
        ("/_scheduler/docs?states=failed&skip=2&limit=2", "d2 f"),
    ] {
        assert_eq!(ids(path).await, expected, "{path}");
    }
    let page = server.get("/_scheduler/docs?skip=1&limit=1").await.body;
    assert_eq!((&page["offset"], names(&page)), (&json!(1), vec!["docs", "offset", "total_rows"]));
    for (path, refusal) in [
        ("/_scheduler/docs?states=foo", (400, "query_parse_error")),
        ("/_scheduler/docs?limit=x", (400, "query_parse_error")),
        ("/_scheduler/docs?skip=-1", (400, "query_parse_error")),
        ("/_scheduler/docs/foo", (400, "bad_request")),
        ("/_scheduler/docs/_replicator/a/b", (400, "bad_request")),
        ("/_scheduler/docs/nope%2F_replicator", (404, "not_found")),
        ("/_scheduler/docs/nope%2F_replicator/d0", (404, "not_found")),
        ("/_scheduler/docs/_replicator/nope", (404, "not_found")),
        ("/_scheduler/docs/_replicator/_design%2Fz", (404, "not_found")),
        ("/_scheduler/foo", (404, "not_found")),
    ] {
        assert_eq!(server.get(path).await.error(), refusal, "{path}");
    }
    for path in ["/_scheduler/docs", "/_scheduler/jobs", "/_active_tasks"] {
        assert_eq!(server.post(path, &json!({})).await.error(), (405, "method_not_allowed"), "{path}");
    }
}

#[tokio::test]
async fn scheduler_jobs_come_in_pages_with_every_field() {
    let server = TestServer::start_with("backoff_base_ms = 600000\n").await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let body = with(nowhere(&n.to_string()), json!({"user_ctx": {"name": "jan", "roles": ["x"]}}));
        server.put_ok(&format!("/_replicator/d{n}"), &body).await;
        server.until(&format!("d{n}"), &["crashing"]).await;
        ids.push(server.get(&format!("/_scheduler/docs/_replicator/d{n}")).await.body["id"].clone());
    }
    ids.sort_by_key(Value::to_string);
    let page = async |query: &str| {
        let body = server.get(&format!("/_scheduler/jobs{query}")).await.body;
        let ids: Vec<Value> = body["jobs"].as_array().unwrap().iter().map(|job| job["id"].clone()).collect();
        (body["total_rows"].as_u64().unwrap(), body["offset"].as_u64().unwrap(), ids)
    };
    assert_eq!(page("").await, (3, 0, ids.clone()));
    assert_eq!(page("?limit=1").await, (3, 0, ids[..1].to_vec()));
    assert_eq!(page("?skip=1&limit=1").await, (3, 1, ids[1..2].to_vec()));
    assert_eq!(page("?skip=9").await, (3, 3, vec![]));
    assert_eq!(page("?limit=0").await, (3, 0, vec![]));
    let job = server.get(&format!("/_scheduler/jobs/{}", ids[0].as_str().unwrap())).await.body;
    let fields = [
        "database",
        "doc_id",
        "history",
        "id",
        "info",
        "node",
        "pid",
        "source",
        "start_time",
        "target",
        "user",
        "why",
    ];
    assert_eq!(names(&job), fields);
    // The reason is that of `/v1/jobs/replication/ID/why`.
    assert_eq!(job["why"]["reason"], json!("backoff"));
    assert!(job["why"]["sentence"].as_str().unwrap().starts_with("Waits until"), "{}", job["why"]);
    assert_eq!((&job["user"], &job["database"]), (&json!("jan"), &json!("_replicator")));
    let history = job["history"].as_array().unwrap();
    let kinds: Vec<&str> = history.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["crashed", "started", "added"]);
    assert_eq!(names(&history[0]), ["reason", "timestamp", "type"]);
    assert_eq!(names(&history[2]), ["timestamp", "type"]);
    let status = server.get("/_scheduler/docs/_replicator/d0").await.body;
    assert_eq!((&status["state"], &status["error_count"]), (&json!("crashing"), &json!(1)));
    assert_eq!(status["info"]["error"], job_reason(&server, &status["id"]).await);
    assert_eq!(server.get("/_scheduler/jobs/nope").await.error(), (404, "not_found"));
}

async fn job_reason(server: &TestServer, id: &Value) -> Value {
    let job = server.get(&format!("/_scheduler/jobs/{}", id.as_str().unwrap())).await.body;
    job["history"][0]["reason"].clone()
}

/// The counters of a run in `info` and in tasks.
const STATISTICS: [&str; 11] = [
    "bulk_get_attempts",
    "bulk_get_docs",
    "changes_pending",
    "checkpointed_source_seq",
    "doc_write_failures",
    "docs_read",
    "docs_written",
    "missing_revisions_found",
    "revisions_checked",
    "source_seq",
    "through_seq",
];

#[tokio::test]
async fn a_task_and_an_info_have_every_field() {
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    from.put("d", &json!({})).await;
    // The run must not reach its end before the test reads it.
    let proxy = FaultProxy::start(&peer).await;
    let server = TestServer::start_with("checkpoint_interval = 100\n").await;
    let body = json!({"source": proxy.through(&from), "target": to.url(), "continuous": true,
        "user_ctx": {"name": "jan", "roles": []}, "checkpoint_interval": 700});
    server.put_ok("/_replicator/a", &body).await;
    let tasks = server.poll("/_active_tasks", |tasks| tasks[0]["docs_written"] == 1).await;
    let task = &tasks[0];
    let mut fields: Vec<&str> = [
        "checkpoint_interval",
        "continuous",
        "database",
        "doc_id",
        "node",
        "pid",
        "process_status",
        "replication_id",
        "source",
        "started_on",
        "target",
        "type",
        "updated_on",
        "user",
    ]
    .into_iter()
    .chain(STATISTICS)
    .collect();
    fields.sort_unstable();
    assert_eq!(names(task), fields);
    assert_eq!((&task["user"], &task["checkpoint_interval"]), (&json!("jan"), &json!(700)));
    let status = server.poll("/_scheduler/docs/_replicator/a", |doc| doc["info"]["docs_written"] == 1).await;
    assert_eq!(names(&status["info"]), STATISTICS);
    let fields = [
        "database",
        "doc_id",
        "error_count",
        "id",
        "info",
        "last_updated",
        "node",
        "source",
        "source_proxy",
        "start_time",
        "state",
        "target",
        "target_proxy",
    ];
    assert_eq!(names(&status), fields);
}

#[tokio::test]
async fn null_and_unknown_members_are_ignored() {
    let server = TestServer::start().await;
    let id = async |body: &Value| {
        let answer = server.post("/_replicate", body).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        server.post("/_replicate", &with(body.clone(), json!({"cancel": true}))).await;
        answer.body["_local_id"].clone()
    };
    let plain = id(&nowhere("x")).await;
    let null = json!({"create_target": null, "doc_ids": null, "filter": null, "selector": null, "user_ctx": null,
        "use_bulk_get": null, "worker_processes": null, "since_seq": null});
    assert_eq!(id(&with(nowhere("x"), null)).await, plain);
    let unknown = json!({"foo": {"bar": 1}, "ibrowse_options": "x", "comment": "why", "owner": "jan"});
    assert_eq!(id(&with(nowhere("x"), unknown)).await, plain);
}

#[tokio::test]
async fn a_task_of_an_external_worker_has_its_node() {
    let server = TestServer::start().await;
    server.post("/v1/jobs/mail", &json!({"id": "a"})).await;
    let worker = server.post("/v1/workers/mail", &json!({"slots": 1})).await.body["worker"].clone();
    let path = format!("/v1/workers/mail/{}/accept", worker.as_str().unwrap());
    server.post(&path, &json!({"received": 0, "limit": 1, "wait_ms": 10_000})).await;
    let tasks = server.get("/_active_tasks").await.body;
    assert_eq!((&tasks[0]["type"], &tasks[0]["node"]), (&json!("mail"), &json!(server.name())), "{tasks:#}");
}
