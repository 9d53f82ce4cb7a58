//! One of several nodes: a process that is killed and restarted at an address that clients know.

use std::time::Duration;

use serde_json::Value;
use turnwise_testkit::free_ports;

use crate::server::{Home, Server};

/// How often the test tries to start a node before it fails, and how long it waits in between: etcd elects a leader within seconds.
const STARTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// A running node.
pub struct Node {
    pub home: Home,
    address: String,
    server: Server,
}

impl Node {
    /// Starts a node on the store at this URL.
    pub async fn start(store: &str, config: &str) -> Self {
        let home = Home::on(store, config);
        let address = format!("127.0.0.1:{}", free_ports(1)[0]);
        let server = home.serve_on(&address).await;
        Node { home, address, server }
    }

    pub fn url(&self) -> &str {
        self.server.url()
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    /// As `kill -9` does.
    pub async fn kill(&self) {
        self.server.kill_now().await;
    }

    /// Restarts the node at its address. Like a supervisor, retries if the node exits because the store does not
    /// answer: the store may be about to get a new leader.
    pub async fn restart(&mut self) {
        for _ in 0..STARTS {
            if let Some(server) = self.home.try_serve_on(&self.address).await {
                self.server = server;
                return;
            }
            let log = self.home.log();
            let why = log.lines().last().unwrap_or_default();
            assert!(why.contains(" is unavailable: ") || why.ends_with("; try again"), "{log}");
            tokio::time::sleep(PAUSE).await;
        }
        panic!("a node did not start {STARTS} times: {}", self.home.log());
    }

    /// Sends it a signal.
    pub async fn signal(&self, name: &str) {
        self.server.signal(name).await;
    }

    /// Stops it as an operator does.
    pub async fn stop(self) {
        assert!(self.server.terminate().await.success(), "a node did not stop cleanly");
    }

    /// Waits until no worker of a type is registered.
    pub async fn until_no_worker(&self, job_type: &str) {
        let none = |page: &Value| page["workers"].as_array().unwrap().is_empty();
        self.server.until(&format!("/v1/workers?type={job_type}"), none).await;
    }

    /// The ids of this node's own workers of a type.
    pub async fn own_workers(&self, job_type: &str, of: &Node) -> Vec<String> {
        let page = self.server.until(&format!("/v1/workers?type={job_type}"), |_| true).await;
        let own = |worker: &&Value| worker["node"].as_str().is_some_and(|node| node.ends_with(&of.address));
        let workers = page["workers"].as_array().unwrap().iter().filter(own);
        workers.map(|worker| worker["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until none of these workers is registered.
    pub async fn until_gone(&self, job_type: &str, ids: &[String]) {
        let gone = |page: &Value| {
            let workers = page["workers"].as_array().unwrap();
            workers.iter().all(|worker| !ids.iter().any(|id| worker["id"] == id.as_str()))
        };
        self.server.until(&format!("/v1/workers?type={job_type}"), gone).await;
    }

    /// Calls `visit` with every job of a type.
    pub async fn for_each_job(&self, job_type: &str, mut visit: impl FnMut(&Value)) {
        let mut after = String::new();
        loop {
            let path = format!("/v1/jobs?type={job_type}&limit=1000{after}");
            // Retried while the store does not answer in time.
            let page = self.server.until(&path, |_| true).await;
            page["jobs"].as_array().unwrap().iter().for_each(&mut visit);
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return,
            }
        }
    }
}
