//! A server for one test, and an HTTP client for it.

#![allow(clippy::unwrap_used, dead_code, reason = "each test file uses a part")]

pub mod worker;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use turnwise_server::{Config, RunningServer, Server, ServerConfig, StartError, StoreUrl};
use turnwise_store::{Store, runtime};
use turnwise_testkit::{EtcdCluster, canary};
pub use turnwise_testkit::{PATIENCE, until};

pub struct TestServer {
    pub server: RunningServer,
    pub url: String,
    pub client: reqwest::Client,
    pub folder: tempfile::TempDir,
}

/// A response: its status, its headers, and its body as JSON.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The status and the error's code.
    pub fn error(&self) -> (u16, &str) {
        (self.status, self.body["error"].as_str().unwrap_or_default())
    }
}

/// How long a store may still be locked after its server has stopped.
const RELEASED: Duration = Duration::from_secs(5);

impl TestServer {
    pub async fn start() -> TestServer {
        Self::start_with("").await
    }

    /// Starts a server with these lines in `[replicator]`.
    pub async fn start_with(replicator: &str) -> TestServer {
        Self::start_in(tempfile::tempdir().unwrap(), replicator).await
    }

    /// Starts a server that is advertised under a URL.
    pub async fn start_advertised(url: &str, replicator: &str) -> TestServer {
        let folder = tempfile::tempdir().unwrap();
        let config = ServerConfig { advertise: Some(url.to_owned()), ..server_config(&folder, replicator) };
        Self::new(folder, Server::start(config).await.unwrap())
    }

    pub async fn start_in(folder: tempfile::TempDir, replicator: &str) -> TestServer {
        let config = server_config(&folder, replicator);
        Self::start_when_free(folder, config).await
    }

    async fn start_when_free(folder: tempfile::TempDir, config: ServerConfig) -> TestServer {
        let begun = Instant::now();
        loop {
            match Server::start(config.clone()).await {
                Ok(server) => return Self::new(folder, server),
                // A process that another test has just forked has the lock until it executes its program.
                Err(error) if error.to_string().contains("already in use") && begun.elapsed() < RELEASED => {}
                Err(error) => panic!("{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts another node on a store that other nodes may use, too.
    pub async fn start_on(store: &Store, replicator: &str) -> TestServer {
        Self::try_start_on(store, replicator).await.unwrap()
    }

    /// The same, with a result.
    pub async fn try_start_on(store: &Store, replicator: &str) -> Result<TestServer, StartError> {
        let folder = tempfile::tempdir().unwrap();
        let config = server_config(&folder, replicator);
        let server = Server::start_on(store.clone(), config).await?;
        Ok(Self::new(folder, server))
    }

    fn new(folder: tempfile::TempDir, server: RunningServer) -> TestServer {
        let url = format!("http://{}", server.listen());
        TestServer { server, url, client: turnwise_testkit::client(), folder }
    }

    /// The default name of its node.
    pub fn name(&self) -> String {
        format!("turnwise@{}", self.server.listen())
    }

    /// Stops cleanly and starts again on the same data.
    pub async fn restart(self, replicator: &str) -> TestServer {
        self.server.shutdown().await;
        Self::start_in(self.folder, replicator).await
    }

    /// The same, under the same address.
    pub async fn restart_there(self) -> TestServer {
        let listen = self.server.listen();
        self.server.shutdown().await;
        let config = ServerConfig { listen, ..server_config(&self.folder, "") };
        Self::start_when_free(self.folder, config).await
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        self.client.request(method, format!("{}{path}", self.url)).timeout(PATIENCE)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let answer = request.send().await.unwrap();
        let path = answer.url().path().to_owned();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.unwrap();
        // Only a worker receives all options of its jobs. Tests hide those with secrets ([`Self::hide`]).
        if !path.ends_with("/accept") {
            canary::assert_none(&path, &text);
        }
        canary::assert_log_clean();
        let body = match serde_json::from_str(&text) {
            Ok(body) => body,
            Err(_) if text.is_empty() => Value::Null,
            Err(_) => panic!("no JSON: {text}"),
        };
        Answer { status, headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        let request = self.request("PUT", path).header("content-type", "application/json");
        self.send(request.body(body.to_string())).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request("DELETE", path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let request = self.request("POST", path).header("content-type", "application/json");
        self.send(request.body(body.to_string())).await
    }

    /// Hides these members of the options of a type's jobs.
    pub async fn hide(&self, job_type: &str, pointers: &[&str]) {
        self.nobody().hide(job_type, pointers).await;
    }

    /// A request without a body, but with the content type JSON.
    pub async fn bare(&self, method: &str, path: &str) -> Answer {
        self.send(self.request(method, path).header("content-type", "application/json")).await
    }

    /// A POST without a body. It has the content type JSON, because it could be a form of another site otherwise.
    pub async fn post_empty(&self, path: &str) -> Answer {
        self.bare("POST", path).await
    }

    /// Writes a document that must be accepted, and returns its revision.
    pub async fn put_ok(&self, path: &str, body: &Value) -> String {
        let answer = self.put(path, body).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.body);
        answer.body["rev"].as_str().unwrap().to_owned()
    }

    /// Waits until a document's replication is in one of some states, and returns its status.
    pub async fn until(&self, id: &str, states: &[&str]) -> Value {
        let path = format!("/_scheduler/docs/_replicator/{id}");
        self.poll(&path, |status| states.iter().any(|state| status["state"] == **state)).await
    }

    /// Repeats the request until the response is good: job states have no feed to wait on.
    pub async fn poll(&self, path: &str, good: impl Fn(&Value) -> bool) -> Value {
        until(&format!("{path} is as wanted"), async || self.get(path).await.body, good).await
    }
}

/// The variable that names a FoundationDB cluster to test against.
const FDB_CLUSTER_FILE: &str = "FDB_CLUSTER_FILE";

/// What the nodes of a [`Cluster`] have their rows in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Embedded,
    /// An etcd of its own.
    Etcd,
    /// The cluster that the environment names, under a prefix of its own.
    Foundationdb,
}

/// Nodes of one process on one store.
pub struct Cluster {
    pub nodes: Vec<TestServer>,
    pub store: Store,
    on: On,
    url: StoreUrl,
    _etcd: Option<EtcdCluster>,
    _folder: tempfile::TempDir,
}

impl Cluster {
    /// Nodes on an embedded store, or on etcd with `TURNWISE_TEST_STORE=etcd`.
    pub async fn start<const N: usize>(configs: [&str; N]) -> Cluster {
        match std::env::var("TURNWISE_TEST_STORE").is_ok_and(|store| store == "etcd") {
            true => Self::start_at(On::Etcd, configs).await.expect("etcd-server is missing"),
            false => Self::start_at(On::Embedded, configs).await.unwrap(),
        }
    }

    /// Nodes on a store of this kind; `None` where there is none.
    pub async fn start_at<const N: usize>(on: On, configs: [&str; N]) -> Option<Cluster> {
        let folder = tempfile::tempdir().unwrap();
        let (etcd, url) = match on {
            On::Embedded => (None, StoreUrl::embedded(folder.path().join("data"))),
            On::Etcd => {
                let etcd = EtcdCluster::options().members(1).start().await?;
                let url = etcd.url("nodes").parse().unwrap();
                (Some(etcd), url)
            }
            On::Foundationdb => (None, foundationdb()?),
        };
        let store = turnwise_store::open(&url, Arc::new(runtime::System)).await.unwrap();
        let mut cluster = Cluster { nodes: Vec::new(), store, on, url, _etcd: etcd, _folder: folder };
        for config in configs {
            cluster.join(config).await;
        }
        Some(cluster)
    }

    /// Starts another node. Each opens a shared store on its own.
    pub async fn join(&mut self, config: &str) {
        let own = match self.on {
            On::Embedded => self.store.clone(),
            On::Etcd | On::Foundationdb => {
                turnwise_store::open(&self.url, Arc::new(runtime::System)).await.unwrap()
            }
        };
        self.nodes.push(TestServer::start_on(&own, config).await);
    }

    /// The node with this number.
    pub fn at(&self, n: usize) -> &TestServer {
        &self.nodes[n]
    }

    /// The response of every node, which must be the same.
    pub async fn get(&self, path: &str) -> Value {
        let first = self.at(0).get(path).await;
        for node in &self.nodes[1..] {
            assert_eq!(node.get(path).await.body, first.body, "{path}");
        }
        first.body
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.nodes.iter().map(TestServer::name).collect()
    }

    /// Ends a node like a killed process.
    pub fn kill(&mut self, n: usize) {
        drop(self.nodes.remove(n));
    }
}

/// A part of the FoundationDB cluster that no other test uses; `None` if there is no cluster, or no client of it in this program.
fn foundationdb() -> Option<StoreUrl> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let file = std::env::var(FDB_CLUSTER_FILE).ok().filter(|_| cfg!(feature = "foundationdb"));
    let Some(file) = file else {
        // Bypasses the test harness, which hides the output of tests that pass.
        let _ = writeln!(std::io::stderr(), "SKIPPED: a test that needs FoundationDB ({FDB_CLUSTER_FILE})");
        return None;
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Some(format!("fdb:{file}/test-{now}-{}-{next}", std::process::id()).parse().unwrap())
}

fn server_config(folder: &tempfile::TempDir, replicator: &str) -> ServerConfig {
    canary::watch_log();
    let text = format!("[replicator]\nconnection_timeout = 5000\nretries_per_request = 0\n{replicator}");
    let (config, ignored) = Config::parse("test.ini", &text).unwrap();
    assert_eq!(ignored, []);
    let store = StoreUrl::embedded(folder.path().join("data"));
    ServerConfig {
        store,
        listen: "127.0.0.1:0".parse().unwrap(),
        name: None,
        advertise: None,
        config,
        guard: None,
        insecure_no_auth: true,
        seal: turnwise_server::seal(None).unwrap(),
    }
}

/// A document that never runs: for tests of databases.
pub fn failed(n: usize) -> Value {
    json!({ "source": format!("http://s/{n}"), "target": "http://t/db", "_replication_state": "failed" })
}

pub fn status(answer: &Answer) -> StatusCode {
    StatusCode::from_u16(answer.status).unwrap()
}

/// An identity that sends requests to a server.
#[derive(Clone)]
pub struct As<'a> {
    pub server: &'a TestServer,
    /// The header `Authorization`; empty for none.
    pub authorization: String,
}

impl TestServer {
    /// A sender without credentials.
    pub fn nobody(&self) -> As<'_> {
        As { server: self, authorization: String::new() }
    }

    /// A sender with this token.
    pub fn with(&self, token: &str) -> As<'_> {
        As { server: self, authorization: format!("Bearer {token}") }
    }

    /// Adds the first token, which may do everything. From then on every request needs credentials.
    pub async fn close(&self) -> String {
        self.nobody().token(&["admin"]).await
    }
}

impl As<'_> {
    pub async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let mut request = self.server.request(method, path).header("content-type", "application/json");
        if !self.authorization.is_empty() {
            request = request.header("authorization", &self.authorization);
        }
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        self.server.send(request).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None).await
    }

    /// Repeats the request until the response is good.
    pub async fn poll(&self, path: &str, good: impl Fn(&Value) -> bool) -> Value {
        until(&format!("{path} is as wanted"), async || self.get(path).await.body, good).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, None).await
    }

    /// Hides these members of the options of a type's jobs.
    pub async fn hide(&self, job_type: &str, pointers: &[&str]) {
        let hidden = self.put(&format!("/v1/types/{job_type}"), &json!({ "secrets": pointers })).await;
        assert_eq!(hidden.status, 200, "{}", hidden.body);
    }

    /// Adds a token with these scopes, and returns its text.
    pub async fn token(&self, scopes: &[&str]) -> String {
        let made = self.post("/v1/tokens", &json!({ "scopes": scopes })).await;
        assert_eq!(made.status, 201, "{}", made.body);
        made.body["token"].as_str().unwrap().to_owned()
    }
}
