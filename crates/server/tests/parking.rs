//! Idle replications are parked, without losing a write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Cluster, PATIENCE, TestServer, until};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use turnwise_testkit::{Asked, Database, Fake, Fault, FaultProxy, Peer, Random, Reply, Step};

/// Nothing is rotated by time here.
const CONFIG: &str =
    "startup_jitter = 0\ninterval = 86400000\nconnection_timeout = 60000\nretries_per_request = 5\n";

/// Sources behind a proxy that reports which of them have changed, and one target.
struct Scene {
    _peer: Peer,
    proxy: FaultProxy,
    sources: Vec<Database>,
    target: Database,
}

impl Scene {
    async fn new(sources: usize) -> Self {
        let peer = Peer::start().await;
        let proxy = FaultProxy::start(&peer).await;
        proxy.tell_updates();
        let target = peer.create("target").await;
        let mut created = Vec::new();
        for n in 0..sources {
            created.push(peer.create(&format!("source-{n}")).await);
        }
        Scene { _peer: peer, proxy, sources: created, target }
    }

    /// A continuous replication of each source.
    async fn replicate(&self, server: &TestServer) {
        for (n, source) in self.sources.iter().enumerate() {
            let source = self.proxy.through(source);
            let body = json!({ "source": source, "target": self.target.url(), "continuous": true });
            server.put_ok(&format!("/_replicator/{n}"), &body).await;
        }
    }

    async fn write(&self, n: usize, id: &str) {
        self.sources[n].put(id, &json!({})).await;
    }

    fn tell(&self, n: usize) {
        self.proxy.updated(self.sources[n].name());
    }

    /// Waits until a document is at the target.
    async fn arrives(&self, id: &str) {
        until(&format!("{id} arrives"), async || self.target.doc(id).await, Option::is_some).await;
    }
}

async fn parked(server: &TestServer, n: usize) {
    server.poll(&format!("/v1/documents/_replicator/{n}/why"), |why| why["reason"] == "parked").await;
}

async fn all_parked(server: &TestServer, count: usize) {
    for n in 0..count {
        parked(server, n).await;
    }
}

fn is_feed(path: &str) -> bool {
    path.contains("_changes") && path.contains("continuous")
}

#[tokio::test]
async fn more_jobs_than_slots_are_all_live_and_hold_nothing() {
    let scene = Scene::new(30).await;
    let server = TestServer::start_with(&format!("max_jobs = 2\n{CONFIG}")).await;
    scene.replicate(&server).await;
    all_parked(&server, 30).await;
    assert_eq!(server.get("/_active_tasks").await.body, json!([]), "no slot is taken");
    let open = |request: &turnwise_testkit::Request| is_feed(&request.path) && !request.answered;
    // Their feeds end with their runs, so the only open feed is the server's.
    scene.proxy.clear();
    assert_eq!(scene.proxy.count(open), 0);
    for n in [29, 0, 17] {
        scene.write(n, &format!("doc-{n}")).await;
        scene.tell(n);
        scene.arrives(&format!("doc-{n}")).await;
    }
    // Only those replications ran.
    let started =
        |path: &str| scene.proxy.count(|request| request.path.starts_with(path) && is_feed(&request.path));
    assert_eq!((started("/source-17/"), started("/source-16/")), (1, 0));
    // A busy replication stays for a while, and does not park in every pause between two writes.
    let status = server.get("/_scheduler/docs/_replicator/17").await.body;
    assert_eq!(status["state"], "running");
    scene.write(17, "next").await;
    scene.arrives("next").await;
    assert_eq!(started("/source-17/"), 1);
}

#[tokio::test]
async fn a_parked_job_is_pending_with_its_counters_and_its_reason() {
    let scene = Scene::new(1).await;
    scene.write(0, "before").await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    scene.arrives("before").await;
    parked(&server, 0).await;
    let status = server.get("/_scheduler/docs/_replicator/0").await.body;
    assert_eq!((&status["state"], &status["info"]["docs_written"]), (&json!("pending"), &json!(1)));
    assert_eq!(status["node"], Value::Null);
    assert_eq!(status["info"]["checkpointed_source_seq"], status["info"]["source_seq"], "{status}");
    let why = server.get("/v1/documents/_replicator/0/why").await.body;
    assert!(why["sentence"].as_str().unwrap().contains("its source has no new changes"), "{why}");
    let jobs = server.get("/_scheduler/jobs").await.body;
    assert_eq!(jobs["jobs"][0]["info"]["docs_written"], 1);
    assert_eq!(jobs["jobs"][0]["history"][0]["type"], "stopped");
}

/// A change that is already copied makes a job run and park immediately. A write in these milliseconds must arrive.
#[tokio::test]
async fn a_write_in_the_moment_of_parking_is_not_lost() {
    const ROUNDS: usize = 40;
    let scene = Scene::new(ROUNDS).await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    all_parked(&server, ROUNDS).await;
    let mut random = Random::new(22);
    for batch in (0..ROUNDS).collect::<Vec<_>>().chunks(4) {
        for n in batch {
            scene.tell(*n);
        }
        for n in batch {
            tokio::time::sleep(Duration::from_millis(random.below(60))).await;
            scene.write(*n, &format!("doc-{n}")).await;
            // Also while the job runs, when no node watches the source for it.
            scene.tell(*n);
        }
    }
    for n in 0..ROUNDS {
        let id = format!("doc-{n}");
        let waits = tokio::time::timeout(PATIENCE, async {
            while scene.target.doc(&id).await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        if waits.await.is_err() {
            let status = server.get(&format!("/_scheduler/docs/_replicator/{n}")).await.body;
            let why = server.get(&format!("/v1/documents/_replicator/{n}/why")).await.body;
            panic!("{id} never came: {status} {why}");
        }
    }
}

#[tokio::test]
async fn writes_during_a_broken_feed_arrive_without_an_event() {
    let scene = Scene::new(6).await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    all_parked(&server, 6).await;
    scene.proxy.set(Fault::Down).await;
    scene.write(3, "lost").await;
    scene.write(4, "told").await;
    scene.tell(4);
    scene.proxy.set(Fault::None).await;
    scene.arrives("lost").await;
    scene.arrives("told").await;
    // No other job was woken: the server's comparison found no changes for them.
    for n in [0, 5] {
        let why = server.get(&format!("/v1/documents/_replicator/{n}/why")).await.body;
        assert_eq!(why["reason"], "parked");
    }
}

/// Events may be lost with such a line, so the server compares all sources, as after a feed that broke off.
#[tokio::test]
async fn a_malformed_line_of_the_feed_loses_no_write() {
    for line in ["{\"seq\":\"1-x\"}\n", "{\"db_name\":7,\"seq\":\"1-x\"}\n", "<html>\n"] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        // The number of documents, and the moment of the line.
        let (count, now) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let (counted, said) = (count.clone(), now.clone());
        source.rule(move |asked| {
            if asked.target.starts_with("/_dbs_info") {
                let seq = format!("{}-incarnation0", counted.load(Ordering::SeqCst));
                return Some(Reply::json(200, &json!([{ "key": "db", "info": { "update_seq": seq } }])));
            }
            asked.target.starts_with("/_db_updates").then(|| match asked.parameter("feed") {
                Some("continuous") => {
                    let said = said.clone();
                    let line = async move {
                        said.notified().await;
                        Step::Send(line.into())
                    };
                    Reply::stream(200, stream::once(line).chain(stream::pending()).boxed())
                }
                _ => Reply::json(200, &json!({ "results": [], "last_seq": "0-x" })),
            })
        });
        let server = TestServer::start_with(CONFIG).await;
        let body = json!({ "source": source.url(), "target": target.url(), "continuous": true });
        server.put_ok("/_replicator/0", &body).await;
        parked(&server, 0).await;
        let is_opened = |asked: &Asked| asked.target.starts_with("/_db_updates?feed=continuous");
        source.wait_for(1, is_opened).await;
        // The comparison is done: from now on only the feed reports changes.
        source.wait_for(1, |asked| asked.target.starts_with("/_dbs_info")).await;
        source.put([json!({ "_id": "untold" })]);
        count.store(1, Ordering::SeqCst);
        now.notify_one();
        target.wait_for(1, |asked| asked.path == "/_bulk_docs").await;
        assert_eq!(target.revisions("untold"), ["1-a"], "{line}");
        source.wait_for(2, is_opened).await;
    }
}

#[tokio::test]
async fn one_database_that_answers_500_keeps_no_other_from_being_compared() {
    let scene = Scene::new(3).await;
    let server = TestServer::start_with(&CONFIG.replace("per_request = 5", "per_request = 1")).await;
    scene.replicate(&server).await;
    all_parked(&server, 3).await;
    scene.proxy.set(Fault::Down).await;
    scene.write(1, "unreadable").await;
    scene.write(2, "lost").await;
    scene.proxy.set(Fault::Status(500).when(|request| request.path.starts_with("/source-1"))).await;
    scene.arrives("lost").await;
    // The broken replication runs, and reports its error.
    server.until("1", &["crashing"]).await;
}

#[tokio::test]
async fn writes_while_turnwise_was_down_arrive() {
    let scene = Scene::new(20).await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    all_parked(&server, 20).await;
    let TestServer { server, folder, .. } = server;
    // Like a crash.
    drop(server);
    scene.write(11, "meanwhile").await;
    let server = TestServer::start_in(folder, CONFIG).await;
    scene.arrives("meanwhile").await;
    scene.write(12, "later").await;
    scene.tell(12);
    scene.arrives("later").await;
    let why = server.get("/v1/documents/_replicator/13/why").await.body;
    assert_eq!(why["reason"], "parked", "nothing was new there");
}

#[tokio::test]
async fn where_the_feed_is_forbidden_jobs_keep_their_own() {
    let scene = Scene::new(4).await;
    let forbidden = || Fault::Status(403).when(|request| request.path.starts_with("/_db_updates"));
    scene.proxy.set(forbidden()).await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    scene.proxy.wait_for(|request| request.path.starts_with("/_db_updates") && request.answered).await;
    for n in 0..4 {
        server.until(&n.to_string(), &["running"]).await;
        scene.write(n, &format!("doc-{n}")).await;
        scene.arrives(&format!("doc-{n}")).await;
    }
    // The state is stored, so the server does not ask about every job.
    let asked = scene.proxy.count(|request| request.path.starts_with("/_db_updates"));
    assert_eq!(asked, 1);
}

#[tokio::test]
async fn a_feed_that_is_forbidden_later_lets_its_jobs_run() {
    let scene = Scene::new(4).await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    all_parked(&server, 4).await;
    scene.proxy.set(Fault::Down).await;
    scene.proxy.set(Fault::Status(403).when(|request| request.path.starts_with("/_db_updates"))).await;
    server.poll("/_active_tasks", |tasks| tasks.as_array().unwrap().len() == 4).await;
    scene.write(2, "own").await;
    scene.arrives("own").await;
}

#[tokio::test]
async fn parked_jobs_are_cancelled_removed_and_written_again() {
    let scene = Scene::new(3).await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    let body = json!({ "source": scene.proxy.through(&scene.sources[0]), "target": scene.target.url(),
        "continuous": true, "doc_ids": ["a"] });
    let asked = server.post("/_replicate", &body).await;
    let id = asked.body["_local_id"].as_str().unwrap().to_owned();
    all_parked(&server, 3).await;
    let path = format!("/v1/jobs/replication/{}/why", id.replace('+', "%2B"));
    server.poll(&path, |why| why["reason"] == "parked").await;

    let mut cancel = body.clone();
    cancel["cancel"] = json!(true);
    assert_eq!(server.post("/_replicate", &cancel).await.status, 200);
    let rev = server.get("/_replicator/1").await.body["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/_replicator/1?rev={rev}")).await.status, 200);
    let jobs = server.get("/_scheduler/jobs").await.body;
    assert_eq!(jobs["total_rows"], 2, "{jobs}");
    // When its document is written again, it runs and parks again.
    let mut doc = server.get("/_replicator/2").await.body;
    doc["source"] = json!(scene.proxy.through(&scene.sources[2]));
    doc["target"] = json!(scene.target.url());
    doc["winning_revs_only"] = json!(true);
    server.put_ok("/_replicator/2", &doc).await;
    parked(&server, 2).await;
    for n in 0..3 {
        scene.write(n, &format!("doc-{n}")).await;
        scene.tell(n);
    }
    scene.arrives("doc-0").await;
    scene.arrives("doc-2").await;
    assert!(scene.target.doc("doc-1").await.is_none(), "its replication is gone");
}

#[tokio::test]
async fn off_wakes_all_jobs_and_auto_parks_them_again() {
    let scene = Scene::new(5).await;
    let server = TestServer::start_with(CONFIG).await;
    scene.replicate(&server).await;
    all_parked(&server, 5).await;
    let path = "/_node/_local/_config/replicator/multiplex";
    assert_eq!(server.put(path, &json!("off")).await.status, 200);
    server.poll("/_active_tasks", |tasks| tasks.as_array().unwrap().len() == 5).await;
    scene.write(0, "own").await;
    scene.arrives("own").await;
    assert_eq!(server.put(path, &json!("auto")).await.status, 200);
    assert_eq!(scene.proxy.count(|request| request.path.starts_with("/_db_updates?feed=normal")), 2);
}

#[tokio::test]
async fn another_node_takes_over_the_feeds_of_one_that_died() {
    let scene = Scene::new(4).await;
    let config = format!("{CONFIG}cluster_start_period = 1\ncluster_quiet_period = 1\n");
    let mut cluster = Cluster::start([&config, &config]).await;
    scene.replicate(cluster.at(0)).await;
    all_parked(cluster.at(0), 4).await;
    cluster.kill(0);
    // Regardless of which node had the feed, a write arrives once the other node has taken over.
    scene.write(1, "after").await;
    scene.tell(1);
    scene.arrives("after").await;
}

/// A source that reports changes of its database, and has one document.
async fn source_with_one_document() -> Fake {
    let source = Fake::start().await;
    source.put([json!({ "_id": "one" })]);
    source.rule(|asked| {
        if asked.target.starts_with("/_dbs_info") {
            return Some(Reply::json(
                200,
                &json!([{ "key": "db", "info": { "update_seq": "1-incarnation0" } }]),
            ));
        }
        asked.target.starts_with("/_db_updates").then(|| match asked.parameter("feed") {
            Some("continuous") => Reply::stream(200, stream::pending().boxed()),
            _ => Reply::json(200, &json!({ "results": [], "last_seq": "0-x" })),
        })
    });
    source
}

/// No feed reports what happens to the target of a parked job. With so short a checkpoint interval, the verifications of both
/// databases come faster than the quiet time ends, and must not begin it anew.
#[tokio::test]
async fn a_target_that_changes_behind_its_parked_job_is_noticed() {
    let source = source_with_one_document().await;
    let mut targets = Vec::new();
    for _ in 0..6 {
        targets.push(Fake::start().await);
    }
    let config = CONFIG.replace("per_request = 5", "per_request = 1");
    let server = TestServer::start_with(&format!("{config}checkpoint_interval = 100\n")).await;
    for (n, target) in targets.iter().enumerate() {
        let body = json!({ "source": source.url(), "target": target.url(), "continuous": true });
        server.put_ok(&format!("/_replicator/{n}"), &body).await;
    }
    all_parked(&server, 6).await;
    let [anew, restored, forbidden, gone, broken, same] = &targets[..] else { unreachable!() };
    anew.create_anew();
    // A backup from before the checkpoint.
    restored.forget_local();
    for (target, status, error) in
        [(forbidden, 403, "forbidden"), (gone, 404, "not_found"), (broken, 500, "internal_server_error")]
    {
        target.rule(move |_| Some(Reply::error(status, error)));
    }
    same.clear();
    anew.wait_for(2, |asked| asked.path == "/_bulk_docs").await;
    assert_eq!(anew.revisions("one"), ["1-a"]);
    // It is copied from the beginning: each revision is asked about. The first run had found it empty, and asked nothing.
    restored.wait_for(1, |asked| asked.path == "/_revs_diff").await;
    for (n, status) in [("2", "403 forbidden"), ("3", "404 not_found"), ("4", "500 internal_server_error")] {
        server.until(n, &["crashing"]).await;
        let info = server.get(&format!("/_scheduler/docs/_replicator/{n}")).await.body["info"].to_string();
        assert!(info.contains(status), "{info}");
    }
    // One request looked at this one, which is as it was.
    same.wait_for(1, |asked| asked.path.starts_with("/_local/")).await;
    let requests = same.requests();
    assert!(requests.iter().all(|asked| asked.path.starts_with("/_local/")), "{requests:?}");
    parked(&server, 5).await;
}
