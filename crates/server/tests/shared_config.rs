//! `/_node/{name}/_config`: a change at one node applies to all, immediately and after a restart.

use crate::common::{Answer, Cluster, TestServer};
use serde_json::{Value, json};

const CONFIG: &str = "/_node/_local/_config";

async fn set(node: &TestServer, name: &str, value: &str) -> Answer {
    node.put(&format!("{CONFIG}/{name}"), &json!(value)).await
}

async fn get(node: &TestServer, name: &str) -> Value {
    node.get(&format!("{CONFIG}/{name}")).await.body
}

#[tokio::test]
async fn a_setting_is_read_changed_and_removed_as_in_couchdb() {
    let server = TestServer::start_with("max_history = 7\n").await;
    assert_eq!(get(&server, "replicator/max_jobs").await, "500");
    let changed = set(&server, "replicator/max_jobs", " 20 ").await;
    assert_eq!((changed.status, changed.body), (200, json!("500")), "the old value is answered");
    assert_eq!(set(&server, "replicator/max_jobs", "21").await.body, "20");
    assert_eq!(get(&server, "replicator/max_jobs").await, "21");
    let section = get(&server, "replicator").await;
    assert_eq!((&section["max_jobs"], &section["max_history"]), (&json!("21"), &json!("7")));
    let all = server.get(CONFIG).await.body;
    assert_eq!(all["replicator"], section);
    assert_eq!(all["couchdb"]["uuid"], server.get("/").await.body["uuid"]);
    assert_eq!(all["workers"]["health_interval"], "5");
    // The value survives the server, and overrides the file.
    let server = server.restart("max_jobs = 3\n").await;
    assert_eq!(get(&server, "replicator/max_jobs").await, "21");
    assert_eq!(server.get("/v1/workers?type=replication").await.body["workers"][0]["slots"], 21);
    let left = server.delete(&format!("{CONFIG}/replicator/max_jobs")).await;
    assert_eq!((left.status, left.body), (200, json!("21")));
    assert_eq!(get(&server, "replicator/max_jobs").await, "3");
    let again = server.delete(&format!("{CONFIG}/replicator/max_jobs")).await;
    assert_eq!(again.body, json!({"error": "not_found", "reason": "unknown_config_value"}));
    let slots = |workers: &Value| workers["workers"][0]["slots"] == 3;
    server.poll("/v1/workers?type=replication", slots).await;
}

#[tokio::test]
async fn the_headers_of_traces_are_never_shown() {
    // They are unused: headers without an endpoint are no error.
    let server = TestServer::start_with("[otel]\nheaders = api-key=hunter2\n").await;
    assert_eq!(get(&server, "otel/headers").await, "*****");
    assert!(!server.get(CONFIG).await.body.to_string().contains("hunter2"));
}

#[tokio::test]
async fn connection_settings_take_effect_at_once() {
    let server = TestServer::start().await;
    for (name, before, value) in [
        ("connection_close_interval", "90000", "5000"),
        ("request_timeout", "infinity", "60000"),
        ("socket_options", "[{keepalive, true}, {nodelay, true}]", "[{keepalive, false}, {nodelay, true}]"),
        ("valid_proxy_protocols", "http,https,socks5", "https"),
    ] {
        assert_eq!(set(&server, &format!("replicator/{name}"), value).await.body, before);
        assert_eq!(get(&server, &format!("replicator/{name}")).await, value);
    }
    let body = json!({"source": "http://127.0.0.1:1/a", "target": "http://127.0.0.1:1/b",
        "proxy": "socks5://u:hunter2@127.0.0.1:1", "retries_per_request": 0});
    // Live settings reach all parts soon, but not immediately.
    let refused = async || {
        let refused = server.post("/_replicate", &body).await;
        assert!(!refused.body.to_string().contains("hunter2"));
        refused.body["reason"].as_str().unwrap_or_default().contains("must start with one of https://")
    };
    let waited =
        tokio::time::timeout(std::time::Duration::from_secs(20), async { while !refused().await {} });
    waited.await.unwrap();
}

#[tokio::test]
async fn an_invalid_value_is_refused_and_the_old_value_stays() {
    let server = TestServer::start().await;
    let cases = [
        (
            "replicator/max_jobs",
            "0",
            "[replicator] max_jobs: expected a whole number from 1 to 100000, or two of them with .. between them, as in 4..64",
        ),
        ("replicator/use_bulk_get", "", "[replicator] use_bulk_get: expected true or false"),
        ("jobs/retention", "-1", "expected seconds from 0 to"),
        ("command/enabled", "true", "said on that machine alone: change it in the server's file"),
        ("couchdb/uuid", "00000000000000000000000000000000", "part of every replication's id"),
        ("workers/health_timeout", "60", "read when a server starts"),
        ("admins/admin", "hunter2", "[admins] admin is unknown"),
        ("replicator/ibrowse_options", "5", "is unknown"),
        ("replicator/cert_file", "/x", "whom they trust, is said on each machine alone"),
        ("otel/headers", "api-key=hunter2", "change it in the server's file"),
    ];
    for (name, value, reason) in cases {
        let before = get(&server, name).await;
        let refused = set(&server, name, value).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{name}");
        assert!(refused.body["reason"].as_str().unwrap().contains(reason), "{}", refused.body);
        assert!(!refused.body.to_string().contains("hunter2"));
        assert_eq!(get(&server, name).await, before);
    }
    for body in [json!(5), json!(null), json!({})] {
        let refused = server.put(&format!("{CONFIG}/replicator/max_jobs"), &body).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{body}");
    }
    for (path, reason) in [
        ("_local/_config/replicator/nothing", "unknown_config_value"),
        ("_local/_config/nothing/nothing", "unknown_config_value"),
        ("_local/_config/otel/headers", "unknown_config_value"),
        ("nobody@nowhere/_config", "no such node: nobody@nowhere"),
    ] {
        let missing = server.get(&format!("/_node/{path}")).await;
        assert_eq!((missing.error(), &missing.body["reason"]), ((404, "not_found"), &json!(reason)));
    }
    assert_eq!(get(&server, "nothing").await, json!({}));
    assert_eq!(server.get("/_node/_local").await.body, json!({"name": server.name()}));
    for (method, path, allowed) in
        [("POST", "replicator/max_jobs", "DELETE,GET,HEAD,PUT"), ("PUT", "replicator", "GET,HEAD")]
    {
        let refused = server.bare(method, &format!("{CONFIG}/{path}")).await;
        assert_eq!((refused.status, refused.header("allow")), (405, allowed));
    }
}

#[tokio::test]
async fn a_change_at_one_node_is_in_force_at_all() {
    let commands = "[command]\nenabled = true\nallow_root = true\nmax_jobs = 5\n";
    let cluster = Cluster::start([commands, commands, ""]).await;
    let (a, b, c) = (cluster.at(0), cluster.at(1), cluster.at(2));
    // Through any node, under its own or another name: the change is the same.
    let named = format!("/_node/{}/_config/command/max_jobs", a.name());
    assert_eq!(c.put(&named, &json!("1")).await.status, 200);
    for node in &cluster.nodes {
        assert_eq!(get(node, "command/max_jobs").await, "1", "at once");
    }
    assert_eq!(b.get(&named).await.error(), (501, "not_implemented"), "its file is not known here");
    let slots = |n: u64| {
        move |workers: &Value| {
            let workers = workers["workers"].as_array().unwrap();
            workers.len() == 2 && workers.iter().all(|worker| worker["slots"] == n)
        }
    };
    a.poll("/v1/workers?type=command", slots(1)).await;
    for n in 0..4 {
        let sleep = json!({"id": format!("{n}"), "options": {"argv": ["sleep", "600"]}});
        assert_eq!(cluster.at(n % 3).post("/v1/jobs/command", &sleep).await.status, 201);
    }
    let running = |n: usize| move |jobs: &Value| jobs["jobs"].as_array().unwrap().len() == n;
    a.poll("/v1/jobs?type=command&state=running", running(2)).await;
    assert_eq!(b.get("/v1/jobs?type=command&state=pending").await.body["jobs"].as_array().unwrap().len(), 2);
    // Workers use more slots immediately, even if nothing else wakes them.
    set(c, "command/max_jobs", "2").await;
    a.poll("/v1/jobs?type=command&state=running", running(4)).await;
    // Fewer slots stop no job, and no job starts before enough have ended.
    set(b, "command/max_jobs", "1").await;
    a.poll("/v1/workers?type=command", slots(1)).await;
    let one_more = json!({"id": "4", "options": {"argv": ["sleep", "600"]}});
    a.post("/v1/jobs/command", &one_more).await;
    a.post("/v1/jobs/command/0/cancel", &json!({})).await;
    assert_eq!(a.get("/v1/jobs/command/0/wait").await.body["job"]["state"], "cancelled");
    assert_eq!(a.get("/v1/jobs?type=command&state=running").await.body["jobs"].as_array().unwrap().len(), 3);
    // The changes also reach requests, validation and services.
    set(a, "jobs/max_wait", "0").await;
    set(a, "replicator/valid_endpoint_protocols", "https").await;
    let body = json!({"source": "http://s/db", "target": "http://t/db", "_replication_state": "completed"});
    let refused = async {
        let mut n = 0;
        while b.put(&format!("/_replicator/{n}"), &body).await.status != 403 {
            n += 1;
        }
    };
    tokio::time::timeout(crate::common::PATIENCE, refused).await.expect("http is never refused");
    let waited = b.poll("/v1/jobs/command/4/wait?timeout_ms=300000", |answer| answer["finished"] == false);
    assert_eq!(waited.await["job"]["state"], "pending");
    set(c, "jobs/retention", "0").await;
    let gone = |job: &Value| job["error"] == "not_found";
    b.poll("/v1/jobs/command/0", gone).await;
}
