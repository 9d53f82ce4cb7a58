//! Several nodes on one store, and a store that fails under a running one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::StatusCode;
use serde_json::{Value, json};
use turnwise_server::{Config, RunningServer, Server, ServerConfig, StartError, StoreUrl};
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::{
    Changes, Engine, Error, KeyValue, Limits, RangeRead, Result, Snapshot, Store, Versionstamp, Watch,
    runtime,
};

use crate::common::{PATIENCE, until};

const WORKING: u8 = 0;
/// Every call fails immediately.
const AWAY: u8 = 1;
/// No call returns.
const SILENT: u8 = 2;
/// Reads work, commits do not.
const FULL: u8 = 3;

/// An engine that fails on command.
#[derive(Clone)]
struct Failing {
    engine: Arc<dyn Engine>,
    how: Arc<AtomicU8>,
}

struct FailingSnapshot {
    snapshot: Arc<dyn Snapshot>,
    engine: Failing,
}

impl Failing {
    async fn pass(&self, commits: bool) -> Result<()> {
        match self.how.load(SeqCst) {
            AWAY => Err(Error::Unavailable("the cable is cut".into())),
            SILENT => {
                // Calls to a silent store are lost.
                while self.how.load(SeqCst) == SILENT {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(Error::Unavailable("no answer".into()))
            }
            FULL if commits => Err(Error::Unavailable("no space is left".into())),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Engine for Failing {
    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        self.pass(false).await?;
        let snapshot = self.engine.snapshot().await?;
        Ok(Arc::new(FailingSnapshot { snapshot, engine: self.clone() }))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        self.pass(false).await?;
        self.engine.watch(key, seen).await
    }
}

#[async_trait]
impl Snapshot for FailingSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.engine.pass(false).await?;
        self.snapshot.get(key).await
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.engine.pass(false).await?;
        self.snapshot.range(read).await
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        self.engine.pass(true).await?;
        self.snapshot.commit(changes).await
    }
}

struct World {
    store: Store,
    how: Arc<AtomicU8>,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let options = embedded::Options { durable: false, ..embedded::Options::default() };
        let engine = Embedded::open_with(folder.path(), options).unwrap();
        let how = Arc::new(AtomicU8::new(WORKING));
        let engine = Arc::new(Failing { engine, how: how.clone() });
        let store = Store::new(engine, Arc::new(runtime::System));
        World { store, how, client: turnwise_testkit::client(), _folder: folder }
    }

    async fn start(&self, name: &str) -> Result<RunningServer, StartError> {
        let text = "[workers]\nhealth_interval = 0.2\nhealth_timeout = 1\n[command]\nenabled = true\nallow_root = true\n";
        let (config, _) = Config::parse("test.ini", text).unwrap();
        let config = ServerConfig {
            store: StoreUrl::embedded("shared"),
            listen: "127.0.0.1:0".parse().unwrap(),
            name: Some(name.to_owned()),
            advertise: Some(format!("http://{name}.example")),
            config,
            guard: None,
            insecure_no_auth: true,
            seal: turnwise_server::seal(None).unwrap(),
        };
        Server::start_on(self.store.clone(), config).await
    }

    async fn get(&self, server: &RunningServer, path: &str) -> (StatusCode, bool, Value) {
        let url = format!("http://{}{path}", server.listen());
        self.answer(self.client.get(url)).await
    }

    /// The status, whether the response has advice to retry, and the body.
    async fn answer(&self, request: reqwest::RequestBuilder) -> (StatusCode, bool, Value) {
        let answer = request.timeout(PATIENCE).send().await.unwrap();
        let status = answer.status();
        let later = answer.headers().contains_key("retry-after");
        (status, later, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
    }

    /// Repeats the request until `/_up` has this status.
    async fn until_up(&self, server: &RunningServer, wanted: u16) -> Value {
        let look = async || self.get(server, "/_up").await;
        until(&format!("/_up answers {wanted}"), look, |(status, ..)| *status == wanted).await.2
    }

    async fn run_command(&self, server: &RunningServer, id: &str) -> Value {
        let url = format!("http://{}/v1/jobs/command", server.listen());
        let job = json!({"id": id, "options": {"argv": ["true"]}}).to_string();
        let add = self.client.post(url).header("content-type", "application/json").body(job);
        assert_eq!(self.answer(add).await.0, 201);
        self.get(server, &format!("/v1/jobs/command/{id}/wait")).await.2["job"]["state"].clone()
    }
}

#[tokio::test]
async fn nodes_of_one_store_list_each_other() {
    let world = World::new();
    let (a, b) = (world.start("a").await.unwrap(), world.start("b").await.unwrap());
    for (server, name) in [(&a, "a"), (&b, "b")] {
        let (_, _, nodes) = world.get(server, "/v1/nodes").await;
        assert_eq!(nodes["node"], name);
        let shown: Vec<_> = nodes["nodes"].as_array().unwrap().iter().map(|node| &node["url"]).collect();
        assert_eq!(shown, ["http://a.example", "http://b.example"]);
        let (_, _, membership) = world.get(server, "/_membership").await;
        assert_eq!(membership, json!({"all_nodes": ["a", "b"], "cluster_nodes": ["a", "b"]}));
        let (_, _, store) = world.get(server, "/v1/store").await;
        assert_eq!((&store["engine"], &store["url"]), (&json!("embedded"), &json!("embedded:shared")));
        assert!(
            store["counters"]["commits"].as_u64().unwrap() > 0 && store.get("failing").is_none(),
            "{store}"
        );
    }
    // The list of workers does not contain nodes.
    let (_, _, workers) = world.get(&a, "/v1/workers").await;
    let types: Vec<_> = workers["workers"].as_array().unwrap().iter().map(|worker| &worker["type"]).collect();
    assert_eq!(types, ["command", "command", "replication", "replication"]);
    b.shutdown().await;
    let (_, _, membership) = world.get(&a, "/_membership").await;
    assert_eq!(membership["all_nodes"], json!(["a"]));
    a.shutdown().await;
}

#[tokio::test]
async fn a_second_node_of_a_name_does_not_start() {
    let world = World::new();
    let first = world.start("a").await.unwrap();
    let text = world.start("a").await.err().unwrap().to_string();
    assert!(text.contains("a node called a runs on this store (http://a.example)"), "{text}");
    first.shutdown().await;
    world.start("a").await.unwrap().shutdown().await;
}

#[tokio::test]
async fn a_failing_store_is_reported_and_retried() {
    let world = World::new();
    let server = world.start("a").await.unwrap();
    assert_eq!(world.until_up(&server, 200).await, json!({"status": "ok", "seeds": {}}));
    for (how, reason) in [
        (AWAY, "the cable is cut"),
        (FULL, "no space is left"),
        (SILENT, "the store does not answer within 2 s"),
    ] {
        world.how.store(how, SeqCst);
        let up = world.until_up(&server, 503).await;
        assert_eq!((&up["status"], &up["reason"]), (&json!("store_unavailable"), &json!(reason)));
        let (_, _, store) = world.get(&server, "/v1/store").await;
        assert_eq!(store.get("failing").is_some(), how != SILENT, "{store}");
        let begun = Instant::now();
        let job = json!({"id": "x"}).to_string();
        let add = world.client.post(format!("http://{}/v1/jobs/t", server.listen()));
        let add = add.header("content-type", "application/json").body(job);
        let doc = world.client.put(format!("http://{}/_replicator/x", server.listen()));
        let doc = doc.body(json!({"source": "http://s/a", "target": "http://t/b"}).to_string());
        for (status, later, body) in <[_; 2]>::from(tokio::join!(world.answer(add), world.answer(doc))) {
            assert_eq!((status.as_u16(), later), (503, true), "{body}");
            assert!(body["error"].is_string(), "{body}");
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        if how != FULL && how != SILENT {
            for path in
                ["/_all_dbs", "/_scheduler/jobs", "/_active_tasks", "/v1/jobs", "/v1/nodes", "/v1/workers"]
            {
                assert_eq!(world.get(&server, path).await.0, 503, "{path}");
            }
        }
        world.how.store(WORKING, SeqCst);
        world.until_up(&server, 200).await;
        // The workers have survived the failure.
        assert_eq!(world.run_command(&server, &format!("after {how}")).await, "completed");
    }
    server.shutdown().await;
}
