//! `PUT /v1/workers/{type}/{worker}` and `PUT /v1/nodes/{node}`: quiet, drain, resume.

use serde_json::{Value, json};

use crate::common::worker::ExternalWorker;
use crate::common::{PATIENCE, TestServer};

/// What a worker gets now.
async fn accept(worker: &ExternalWorker<'_>) -> Value {
    let accepted = worker.call("accept", json!({ "received": 0, "wait_ms": 1 })).await;
    assert_eq!(accepted.status, 200, "{}", accepted.body);
    accepted.body
}

async fn reason(server: &TestServer) -> Value {
    server.get("/v1/jobs/mail/a/why").await.body
}

#[tokio::test]
async fn a_quiet_worker_gets_no_job_and_why_says_so() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "mail", 1).await;
    assert_eq!(server.post("/v1/jobs/mail", &json!({ "id": "a" })).await.status, 201);
    assert_eq!(reason(&server).await["reason"], "starts_next");

    let shown = worker.set("quiet").await;
    assert_eq!(
        (&shown["mode"], &shown["type"], &shown["running"]),
        (&json!("quiet"), &json!("mail"), &json!([]))
    );
    assert_eq!(accept(&worker).await, json!({ "jobs": [], "mode": "quiet" }));
    assert_eq!(
        server.post_empty(&format!("{}/ping", worker.path)).await.body,
        json!({ "cancel": [], "mode": "quiet" })
    );
    let why = reason(&server).await;
    assert_eq!(why["reason"], "workers_quiet");
    assert_eq!(why["capacity"], json!({ "workers": 0, "slots": 0, "running": 0, "quiet": 1 }));
    assert!(why["sentence"].as_str().unwrap().contains("take no new jobs"), "{why}");
    assert_eq!(server.get("/v1/queue?type=mail").await.body["jobs"][0]["reason"], "workers_quiet");
    assert_eq!(server.get("/v1/workers?type=mail").await.body["workers"][0]["mode"], "quiet");

    // Another one has a free slot, and the quiet one's does not count.
    let other = ExternalWorker::register(&server, "mail", 1).await;
    let why = reason(&server).await;
    assert_eq!(why["reason"], "starts_next");
    assert_eq!(why["capacity"], json!({ "workers": 1, "slots": 1, "running": 0, "quiet": 1 }));
    assert_eq!(server.post_empty(&format!("{}/leave", other.path)).await.status, 200);

    // Repeating it changes nothing, and it is resumed.
    assert_eq!(worker.set("quiet").await["mode"], "quiet");
    worker.set("active").await;
    assert_eq!(accept(&worker).await["jobs"][0]["id"], "a");
    // While it drains, it may end its job.
    let drained = worker.set("drain").await;
    assert_eq!((&drained["mode"], &drained["running"][0]["id"]), (&json!("drain"), &json!("a")));
    assert_eq!(server.post_empty(&format!("{}/ping", worker.path)).await.body["mode"], "drain");
    let ended = server.post(&format!("{}/jobs/a/finish", worker.path), &json!({ "claim": 1 })).await;
    assert_eq!(ended.body, json!({ "state": "completed" }));
    assert_eq!(accept(&worker).await["mode"], "drain");
    assert_eq!(server.post_empty(&format!("{}/leave", worker.path)).await.status, 200);
    // A request that waits for a long time ends with the ping that says that the worker drains.
    let waiting = ExternalWorker::register(&server, "mail", 1).await;
    let wait = json!({ "received": 0, "wait_ms": 300_000 });
    let accept = format!("{}/accept", waiting.path);
    let drained = async {
        waiting.set("drain").await;
        server.post_empty(&format!("{}/ping", waiting.path)).await
    };
    let both = async { tokio::join!(server.post(&accept, &wait), drained) };
    let (accepted, pinged) = tokio::time::timeout(PATIENCE, both).await.expect("it waits on");
    assert_eq!((accepted.status, accepted.body), (200, json!({ "jobs": [], "mode": "drain" })));
    assert_eq!(pinged.body["mode"], "drain");
    assert_eq!(server.put(&worker.path, &json!({ "mode": "active" })).await.error(), (404, "unknown_worker"));
}

#[tokio::test]
async fn a_node_and_its_workers_are_quiet_until_they_are_resumed() {
    let server = TestServer::start().await;
    let name = server.name();
    let external = ExternalWorker::register(&server, "mail", 1).await;
    let path = format!("/v1/nodes/{}", name.replace('@', "%40"));
    let changed = server.put(&path, &json!({ "mode": "drain" })).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!((&changed.body["node"], &changed.body["mode"]), (&json!(name), &json!("drain")));
    assert!(changed.body["workers"].as_u64().unwrap() >= 1, "{}", changed.body);
    let modes = async || -> Vec<(Value, Value)> {
        let workers = server.get("/v1/workers").await.body["workers"].as_array().unwrap().clone();
        workers.into_iter().map(|worker| (worker["external"].clone(), worker["mode"].clone())).collect()
    };
    for (external, mode) in modes().await {
        let expected = if external == json!(true) { "active" } else { "drain" };
        assert_eq!(mode, expected);
    }
    assert_eq!(server.get("/v1/nodes").await.body["nodes"][0]["mode"], "drain");
    assert_eq!(server.put(&path, &json!({ "mode": "active" })).await.status, 200);
    assert!(modes().await.iter().all(|(_, mode)| mode == "active"));
    assert_eq!(server.get("/v1/nodes").await.body["nodes"][0]["mode"], "active");
    assert_eq!(server.put("/v1/nodes/none", &json!({ "mode": "quiet" })).await.error(), (404, "not_found"));
    for wrong in [json!({ "mode": "asleep" }), json!({}), json!({ "mode": "quiet", "until": 1 })] {
        assert_eq!(server.put(&external.path, &wrong).await.status, 400, "{wrong}");
    }
    assert_eq!(
        server.put("/v1/workers/mail/x%20y", &json!({ "mode": "quiet" })).await.error(),
        (404, "unknown_worker")
    );

    // A worker's own identity may not do it, and neither may a client.
    let admin = server.close().await;
    for scopes in [["worker:mail"], ["client:*"]] {
        let token = server.with(&admin).token(&scopes).await;
        assert_eq!(server.with(&token).put(&external.path, &json!({ "mode": "quiet" })).await.status, 403);
        assert_eq!(server.with(&token).put(&path, &json!({ "mode": "quiet" })).await.status, 403);
    }
    let token = server.with(&admin).token(&["operator"]).await;
    assert_eq!(server.with(&token).put(&external.path, &json!({ "mode": "quiet" })).await.status, 200);
}
