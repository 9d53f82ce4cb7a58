//! An upstream CouchDB: its replication documents run here, and their results are written back there.

mod couch;

use std::collections::BTreeSet;

use crate::common::{Cluster, TestServer};
use couch::Couch;
use serde_json::{Value, json};
use turnwise_server::{Config, Server, ServerConfig, StoreUrl};
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};

/// Settings of a server that follows the upstream immediately.
fn beside(url: &str) -> String {
    format!(
        "startup_jitter = 0\ncluster_start_period = 0\ncluster_quiet_period = 0.1\n[upstream]\nurl = {url}/\n"
    )
}

/// A replication that never ends and never starts: no server listens at its URLs.
fn endless(n: usize) -> Value {
    json!({"source": format!("http://127.0.0.1:1/s{n}"), "target": "http://127.0.0.1:1/t", "continuous": true, "owner": "admin"})
}

/// A replication that older releases of CouchDB accepted, and that turnwise cannot run: it fails immediately.
fn wrong(name: &str) -> Value {
    json!({"source": name, "target": "http://127.0.0.1:1/t", "owner": "admin"})
}

async fn jobs(server: &TestServer) -> Vec<(String, String)> {
    named(&server.get("/_scheduler/jobs").await.body)
}

/// The documents of jobs.
fn named(answer: &Value) -> Vec<(String, String)> {
    let text = |job: &Value, name: &str| job[name].as_str().unwrap().to_owned();
    answer["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| (text(job, "database"), text(job, "doc_id")))
        .collect()
}

fn job(db: &str, doc: &str) -> (String, String) {
    (db.to_owned(), doc.to_owned())
}

/// Waits until exactly these jobs exist.
async fn until_jobs(server: &TestServer, expected: &[(String, String)]) {
    let has = |answer: &Value| {
        let found: BTreeSet<_> = named(answer).into_iter().collect();
        found == expected.iter().cloned().collect()
    };
    server.poll("/_scheduler/jobs", has).await;
}

#[tokio::test]
async fn an_upstreams_document_runs_here_and_is_written_back_there() {
    let couch = Couch::start().await;
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    Dataset::small().load(&from).await;
    let to = target.db("to");
    let doc = json!({"source": from.url(), "target": to.url(), "create_target": true, "owner": "admin",
        "comment": {"kept": [1, "two"]}, "_replication_state": "triggered", "_replication_id": "old"});
    couch.put("_replicator", "a", doc);
    let server = TestServer::start_with(&beside(&couch.url())).await;
    let done = couch.state("_replicator", "a", "completed").await;
    compare(&from, &to).await.unwrap();
    assert_eq!(done["_rev"].as_str().unwrap().split('-').next(), Some("2"), "{done}");
    assert_eq!((&done["owner"], &done["comment"]), (&json!("admin"), &json!({"kept": [1, "two"]})));
    assert!(done["_replication_stats"]["docs_written"].as_u64().unwrap() > 0, "{done}");
    assert!(done["_replication_state_time"].is_string() && done["_replication_id"] != "old", "{done}");
    assert!(done.get("_replication_state_reason").is_none());
    // This server also responds to the requests that the upstream's tools make, and the store has adopted the upstream's UUID.
    let status = server.get("/_scheduler/docs/upstream/_replicator/a").await.body;
    assert_eq!(
        (&status["state"], &status["database"]),
        (&json!("completed"), &json!("upstream/_replicator"))
    );
    assert_eq!(server.get("/").await.body["uuid"], couch.uuid());
    assert_eq!(server.get("/_up").await.body["upstream"], json!({"status": "ok"}));
    // turnwise's own writes return with the changes, before later documents, and have no effect.
    couch.put("_replicator", "b", wrong("mydb"));
    let failed = couch.state("_replicator", "b", "failed").await;
    couch.put("_replicator", "c", wrong("mydb"));
    couch.state("_replicator", "c", "failed").await;
    assert_eq!((couch.doc("_replicator", "a"), couch.doc("_replicator", "b")), (done, failed));
}

#[tokio::test]
async fn invalid_documents_fail_with_their_reason_and_ended_ones_are_left_alone() {
    let couch = Couch::start().await;
    let completed = json!({"source": "old", "target": "older", "_replication_state": "completed"});
    couch.put("_replicator", "done", completed);
    couch.put("_replicator", "_design/x", json!({"validate_doc_update": "function () {}"}));
    couch.put("_replicator", "bare", wrong("mydb"));
    let mut long = wrong("http://127.0.0.1:1/db");
    long["comment"] = "x".repeat(2 << 20).into();
    couch.put("_replicator", "long", long);
    couch.put("_replicator", "last", endless(1));
    let server = TestServer::start_with(&beside(&couch.url())).await;
    let bare = couch.state("_replicator", "bare", "failed").await;
    let reason = bare["_replication_state_reason"].as_str().unwrap();
    assert!(reason.starts_with("source: must be a full URL"), "{reason}");
    assert_eq!(bare["source"], "mydb");
    let long = couch.state("_replicator", "long", "failed").await;
    assert!(long["_replication_state_reason"].as_str().unwrap().contains("at most 1048576"), "{long}");
    assert_eq!(long["comment"].as_str().unwrap().len(), 2 << 20);
    until_jobs(&server, &[job("upstream/_replicator", "last")]).await;
    let generation = |id: &str| couch.doc("_replicator", id)["_rev"].as_str().unwrap()[..2].to_owned();
    assert_eq!(["done", "_design/x", "bare", "long", "last"].map(generation), ["1-", "1-", "2-", "2-", "1-"]);
    let status = server.get("/_scheduler/docs/upstream/_replicator/bare").await.body;
    assert_eq!((&status["state"], &status["info"]["error"]), (&json!("failed"), &json!(reason)));
}

#[tokio::test]
async fn a_store_of_small_transactions_takes_many_documents_and_refuses_one_alone() {
    let couch = Couch::start().await;
    for n in 0..120 {
        couch.put("_replicator", &format!("{n:03}"), endless(n));
        if n == 60 {
            // The document is written twice, as a row and as its job's options: more than a transaction takes.
            let mut much = endless(1_000);
            much["doc_ids"] = (0..900).map(|n| format!("{n:01000}")).collect();
            couch.put("_replicator", "much", much);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::embedded(folder.path().join("data"));
    let store =
        turnwise_store::open(&url, std::sync::Arc::new(turnwise_store::runtime::System)).await.unwrap();
    let store = store.with_limits(turnwise_store::Limits::SMALL);
    let server = TestServer::start_on(&store, &beside(&couch.url())).await;
    let much = couch.state("_replicator", "much", "failed").await;
    assert!(!much["_replication_state_reason"].as_str().unwrap().is_empty(), "{much}");
    assert_eq!(much["doc_ids"].as_array().unwrap().len(), 900);
    server.poll("/_scheduler/jobs?limit=200", |jobs| jobs["total_rows"] == 120).await;
}

#[tokio::test]
async fn documents_that_change_or_go_change_their_jobs() {
    let couch = Couch::start().await;
    for id in ["a", "b"] {
        couch.put("_replicator", id, endless(id.len()));
    }
    couch.put("_replicator", "b", endless(2));
    let server = TestServer::start_with(&beside(&couch.url())).await;
    let (a, b) = (job("upstream/_replicator", "a"), job("upstream/_replicator", "b"));
    until_jobs(&server, &[a.clone(), b.clone()]).await;
    couch.remove("_replicator", "a");
    until_jobs(&server, std::slice::from_ref(&b)).await;
    // A different source is a different replication.
    couch.put("_replicator", "b", endless(3));
    let moved = |answer: &Value| answer["jobs"][0]["source"] == "http://127.0.0.1:1/s3/";
    let now = server.poll("/_scheduler/jobs", moved).await;
    assert_eq!(now["total_rows"], 1);
    // A user marks it as completed: nothing is left to do.
    let mut done = endless(3);
    done["_replication_state"] = "completed".into();
    couch.put("_replicator", "b", done);
    until_jobs(&server, &[]).await;
    // The user removes the mark.
    couch.put("_replicator", "b", endless(3));
    until_jobs(&server, &[b]).await;
}

#[tokio::test]
async fn the_upstream_decides_which_of_two_equal_documents_has_failed() {
    let couch = Couch::start().await;
    couch.put("_replicator", "a", endless(1));
    couch.put("_replicator", "b", endless(1));
    let server = TestServer::start_with(&beside(&couch.url())).await;
    let b = server.poll("/_scheduler/docs/upstream/_replicator/b", |b| b["state"] == "error").await;
    let reason = b["info"]["error"].as_str().unwrap();
    assert!(reason.ends_with("already started, triggered by document `a` from db `_replicator`"), "{reason}");
    assert_eq!(jobs(&server).await, [job("upstream/_replicator", "a")]);
    // The first document fails, so the second one is retried after a while.
    let mut failed = endless(1);
    failed["_replication_state"] = "failed".into();
    couch.put("_replicator", "a", failed);
    until_jobs(&server, &[]).await;
    assert!(couch.doc("_replicator", "b")["_rev"].as_str().unwrap().starts_with("1-"));
    assert_eq!(server.get("/_scheduler/docs/upstream/_replicator/b").await.body["state"], "error");
}

#[tokio::test]
async fn databases_come_and_go() {
    let couch = Couch::start().await;
    let server = TestServer::start_with(&beside(&couch.url())).await;
    server.poll("/_all_dbs", |dbs| dbs.as_array().unwrap().len() == 2).await;
    couch.create("team/_replicator");
    couch.create("team/other");
    couch.put("team/_replicator", "a", endless(1));
    until_jobs(&server, &[job("upstream/team/_replicator", "a")]).await;
    let dbs = server.get("/_all_dbs").await.body;
    assert_eq!(dbs, json!(["_replicator", "upstream/_replicator", "upstream/team/_replicator"]));
    // A new database of the same name.
    couch.delete("team/_replicator");
    couch.create("team/_replicator");
    couch.put("team/_replicator", "b", endless(2));
    until_jobs(&server, &[job("upstream/team/_replicator", "b")]).await;
    couch.delete("team/_replicator");
    until_jobs(&server, &[]).await;
    server.poll("/_all_dbs", |dbs| *dbs == json!(["_replicator", "upstream/_replicator"])).await;
}

#[tokio::test]
async fn mirrors_are_read_only_and_can_be_rebuilt() {
    let couch = Couch::start().await;
    let mut with_password = endless(1);
    with_password["source"] = "http://u:xCanary7Qz-docs@127.0.0.1:1/s".into();
    couch.put("_replicator", "a", with_password);
    let server = TestServer::start_with(&beside(&couch.url())).await;
    until_jobs(&server, &[job("upstream/_replicator", "a")]).await;
    let doc = server.get("/upstream%2F_replicator/a").await.body;
    assert_eq!(doc["source"], "http://u:*****@127.0.0.1:1/s");
    for (method, path, body) in [
        ("PUT", "/upstream%2F_replicator/b", endless(2)),
        ("PUT", "/upstream%2F_replicator/a", doc.clone()),
        ("POST", "/upstream%2F_replicator", endless(2)),
        ("DELETE", &*format!("/upstream%2F_replicator/a?rev={}", doc["_rev"].as_str().unwrap()), Value::Null),
        ("PUT", "/upstream%2Fmine%2F_replicator", Value::Null),
    ] {
        let request = server.request(method, path).header("content-type", "application/json");
        let refused = server.send(request.body(body.to_string())).await;
        assert_eq!(refused.error(), (403, "forbidden"), "{method} {path}: {}", refused.body);
    }
    let many = server.post("/upstream%2F_replicator/_bulk_docs", &json!({"docs": [endless(2)]})).await;
    assert_eq!(many.body[0]["error"], "forbidden", "{}", many.body);
    // A user who distrusts the mirror deletes it, and turnwise builds it again from the beginning.
    assert_eq!(server.delete("/upstream%2F_replicator").await.status, 200);
    couch.put("_replicator", "b", endless(2));
    until_jobs(&server, &[job("upstream/_replicator", "a"), job("upstream/_replicator", "b")]).await;
}

#[tokio::test]
async fn an_unreachable_upstream_is_reported_and_gets_its_states_later() {
    let couch = Couch::start().await;
    let proxy = FaultProxy::before(&couch.url()).await;
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put("x", &json!({})).await;
    let held = FaultProxy::start(&source).await;
    held.set(Fault::Down).await;
    couch.put("_replicator", "a", json!({"source": held.through(&from), "target": to.url()}));
    let server = TestServer::start_with(&format!("backoff_base_ms = 100\n{}", beside(proxy.url()))).await;
    until_jobs(&server, &[job("upstream/_replicator", "a")]).await;
    proxy.set(Fault::Down).await;
    let up = server.poll("/_up", |up| up["upstream"]["status"] == "unavailable").await;
    let shown = format!("http://admin:*****@{}", proxy.url().rsplit('@').next().unwrap());
    assert!(up["status"] == "ok" && up["upstream"]["reason"].as_str().unwrap().contains(&shown), "{up}");
    // A replication ends meanwhile, and others are added.
    held.set(Fault::None).await;
    server.poll("/_scheduler/docs/upstream/_replicator/a", |status| status["state"] == "completed").await;
    couch.put("_replicator", "b", endless(2));
    proxy.set(Fault::None).await;
    let doc = couch.state("_replicator", "a", "completed").await;
    assert_eq!(doc["_replication_stats"]["docs_written"], 1, "{doc}");
    until_jobs(&server, &[job("upstream/_replicator", "b")]).await;
    server.poll("/_up", |up| up["upstream"]["status"] == "ok").await;
}

#[tokio::test]
async fn a_404_from_a_proxy_removes_no_jobs() {
    let couch = Couch::start().await;
    let proxy = FaultProxy::before(&couch.url()).await;
    couch.put("_replicator", "a", endless(1));
    let server = TestServer::start_with(&beside(proxy.url())).await;
    until_jobs(&server, &[job("upstream/_replicator", "a")]).await;
    let before = server.get("/upstream%2F_replicator").await.body["instance_start_time"].clone();
    proxy.set(Fault::Down).await;
    server.poll("/_up", |up| up["upstream"]["status"] == "unavailable").await;
    let is_question = |request: &turnwise_testkit::Request| request.path == "/_replicator";
    proxy.clear();
    proxy.set(Fault::Status(404).when(is_question).times(1)).await;
    couch.put("_replicator", "b", endless(2));
    until_jobs(&server, &[job("upstream/_replicator", "a"), job("upstream/_replicator", "b")]).await;
    assert!(proxy.count(is_question) >= 2);
    assert_eq!(server.get("/upstream%2F_replicator").await.body["instance_start_time"], before);
}

#[tokio::test]
async fn a_state_to_write_back_survives_the_process_and_is_written_once() {
    let couch = Couch::start().await;
    let proxy = FaultProxy::before(&couch.url()).await;
    let is_write = |request: &turnwise_testkit::Request| request.path.ends_with("/_bulk_docs");
    proxy.set(Fault::HangMidBody { after: 0 }.when(is_write)).await;
    couch.put("_replicator", "a", wrong("mydb"));
    couch.put("_replicator", "b", wrong("mydb"));
    let config = format!("{}[workers]\nhealth_interval = 0.2\nhealth_timeout = 1\n", beside(proxy.url()));
    let mut cluster = Cluster::start([&*config]).await;
    // The upstream has written the states, and the responses are lost with the process.
    couch.state("_replicator", "a", "failed").await;
    couch.state("_replicator", "b", "failed").await;
    cluster.kill(0);
    // Meanwhile a user corrects one of them.
    couch.put("_replicator", "b", endless(1));
    proxy.set(Fault::None).await;
    let server = TestServer::start_on(&cluster.store, &config).await;
    until_jobs(&server, &[job("upstream/_replicator", "b")]).await;
    couch.put("_replicator", "c", wrong("mydb"));
    couch.state("_replicator", "c", "failed").await;
    assert_eq!(couch.doc("_replicator", "a")["_rev"].as_str().unwrap().split('-').next(), Some("2"));
    assert_eq!(couch.doc("_replicator", "b")["_rev"].as_str().unwrap().split('-').next(), Some("3"));
}

#[tokio::test]
async fn a_state_that_was_refused_is_written_later() {
    let couch = Couch::start().await;
    let proxy = FaultProxy::before(&couch.url()).await;
    let is_write = |request: &turnwise_testkit::Request| request.path.ends_with("/_bulk_docs");
    proxy.set(Fault::Status(403).when(is_write).times(2)).await;
    couch.put("_replicator", "a", wrong("mydb"));
    let server = TestServer::start_with(&beside(proxy.url())).await;
    let doc = couch.state("_replicator", "a", "failed").await;
    assert_eq!(proxy.count(is_write), 3);
    assert_eq!(doc["_rev"].as_str().unwrap().split('-').next(), Some("2"));
    drop(server);
}

#[tokio::test]
async fn the_upstreams_newer_revision_wins() {
    let couch = Couch::start().await;
    // The upstream's user corrects the document at the same moment.
    couch.be_quicker("a", endless(1));
    couch.put("_replicator", "a", wrong("mydb"));
    let server = TestServer::start_with(&beside(&couch.url())).await;
    until_jobs(&server, &[job("upstream/_replicator", "a")]).await;
    let doc = couch.doc("_replicator", "a");
    assert!(
        doc.get("_replication_state").is_none() && doc["_rev"].as_str().unwrap().starts_with("2-"),
        "{doc}"
    );
    // The pending write for the old revision is dropped, and the new revision gets its own state.
    couch.put("_replicator", "a", wrong("yourdb"));
    let doc = couch.state("_replicator", "a", "failed").await;
    assert!(doc["source"] == "yourdb" && doc["_rev"].as_str().unwrap().starts_with("4-"), "{doc}");
    drop(server);
}

#[tokio::test]
async fn mirrors_of_a_replaced_upstream_start_over() {
    let couch = Couch::start().await;
    couch.put("_replicator", "a", endless(1));
    couch.put("_replicator", "b", wrong("mydb"));
    let server = TestServer::start_with(&beside(&couch.url())).await;
    couch.state("_replicator", "b", "failed").await;
    assert_eq!(jobs(&server).await, [job("upstream/_replicator", "a")]);
    couch.replace();
    couch.put("_replicator", "b", wrong("mydb"));
    couch.put("_replicator", "c", endless(3));
    until_jobs(&server, &[job("upstream/_replicator", "c")]).await;
    couch.state("_replicator", "b", "failed").await;
    assert_eq!(server.get("/upstream%2F_replicator/a").await.status, 404);
}

#[tokio::test]
async fn without_db_updates_the_list_of_databases_is_polled() {
    let couch = Couch::start().await;
    couch.without_updates();
    couch.create("team/_replicator");
    couch.put("team/_replicator", "a", wrong("mydb"));
    let server = TestServer::start_with(&beside(&couch.url())).await;
    couch.state("team/_replicator", "a", "failed").await;
    couch.put("_replicator", "b", wrong("mydb"));
    couch.state("_replicator", "b", "failed").await;
    drop(server);
}

#[tokio::test]
async fn nodes_share_the_databases_and_take_over_from_each_other() {
    let couch = Couch::start().await;
    // Nodes are named by their ports, so each run divides the databases differently. With this many databases, each
    // node gets some.
    let names: BTreeSet<String> = (0..30).map(|n| format!("team{n}/_replicator")).collect();
    for name in &names {
        couch.create(name);
    }
    let config = format!("{}[workers]\nhealth_interval = 0.2\nhealth_timeout = 1\n", beside(&couch.url()));
    let mut cluster = Cluster::start([&*config, &*config]).await;
    let mut parts: [BTreeSet<String>; 2] = Default::default();
    for (n, part) in parts.iter_mut().enumerate() {
        let ownership = cluster.at(n).server.ownership().unwrap();
        let mut members = ownership.changes();
        let both = members.wait_for(|members| members.as_ref().is_some_and(|members| members.len() == 2));
        tokio::time::timeout(crate::common::PATIENCE, both).await.unwrap().unwrap();
        part.extend(names.iter().filter(|name| ownership.is_mine(name)).cloned());
    }
    assert!(parts.iter().all(|part| !part.is_empty()), "{parts:?}");
    assert!(parts[0].is_disjoint(&parts[1]), "{parts:?}");
    assert_eq!(&parts[0] | &parts[1], names);
    for name in &names {
        couch.put(name, "a", wrong("mydb"));
        couch.state(name, "a", "failed").await;
    }
    cluster.kill(1);
    for name in &names {
        couch.put(name, "b", wrong("mydb"));
        couch.state(name, "b", "failed").await;
    }
    for name in &names {
        for id in ["a", "b"] {
            assert!(couch.doc(name, id)["_rev"].as_str().unwrap().starts_with("2-"), "{name}/{id}");
        }
    }
}

#[tokio::test]
async fn a_new_store_waits_for_the_upstreams_uuid() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[upstream]\nurl = http://admin:xCanary7Qz-pa55word@127.0.0.1:1/";
    let config = |uuid: &str| ServerConfig {
        store: StoreUrl::embedded(folder.path().join("data")),
        listen: "127.0.0.1:0".parse().unwrap(),
        name: None,
        advertise: None,
        config: Config::parse("test.ini", &format!("{uuid}{text}")).unwrap().0,
        guard: None,
        insecure_no_auth: true,
        seal: turnwise_server::seal(None).unwrap(),
    };
    let refused = Server::start(config("")).await.err().unwrap().to_string();
    assert!(
        refused.starts_with("the upstream http://admin:*****@127.0.0.1:1/ does not answer ("),
        "{refused}"
    );
    assert!(!refused.contains("xCanary7Qz"), "{refused}");
    // With a configured UUID the start asks no upstream.
    let given = Server::start(config("[couchdb]\nuuid = b0000000000000000000000000000025\n")).await.unwrap();
    given.shutdown().await;
    // A store that has a UUID keeps it.
    Server::start(config("")).await.unwrap().shutdown().await;
}
