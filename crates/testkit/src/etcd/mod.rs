//! A real etcd cluster for one test, or for one test binary.
//!
//! ```no_run
//! # async fn example() {
//! use turnwise_testkit::EtcdCluster;
//!
//! let Some(cluster) = EtcdCluster::shared().await else { return };
//! let url = cluster.url("a-prefix-of-this-test"); // etcd://127.0.0.1:…,127.0.0.1:…,127.0.0.1:…/a-prefix-of-this-test
//! # }
//! ```
//!
//! A test that damages a cluster starts its own: `EtcdCluster::options()…start().await`.

mod api;
mod certificates;
mod guard;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::ports::free_ports;
use certificates::Certificates;
use guard::Guard;

/// The default number of members. The cluster survives the loss of one.
const MEMBERS: usize = 3;
/// The longest time until a cluster has started or recovered, on a machine that is also compiling.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two checks of a cluster, if there is no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The time within which a working member responds. A paused member never does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often new ports are tried if another program takes one first.
const MAX_STARTS: usize = 5;
/// How to start an [`EtcdCluster`].
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    members: usize,
    heartbeat_ms: u64,
    election_ms: u64,
    quota_bytes: Option<u64>,
    max_txn_ops: Option<usize>,
    user: Option<(String, String)>,
    tls: bool,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        EtcdOptions {
            members: MEMBERS,
            // etcd's own defaults. With shorter times, a cluster loses its leader on a machine that is compiling.
            heartbeat_ms: 100,
            election_ms: 1_000,
            quota_bytes: None,
            max_txn_ops: None,
            user: None,
            tls: false,
        }
    }
}

impl EtcdOptions {
    /// Sets the number of members, instead of three.
    pub fn members(self, members: usize) -> Self {
        EtcdOptions { members, ..self }
    }

    /// Sets the leader's heartbeat interval, and the time without heartbeats after which an election starts, both in ms.
    pub fn election_ms(self, heartbeat_ms: u64, election_ms: u64) -> Self {
        EtcdOptions { heartbeat_ms, election_ms, ..self }
    }

    /// Sets `--quota-backend-bytes`. A larger database raises the alarm NOSPACE.
    pub fn quota_bytes(self, bytes: u64) -> Self {
        EtcdOptions { quota_bytes: Some(bytes), ..self }
    }

    /// Sets `--max-txn-ops`.
    pub fn max_txn_ops(self, operations: usize) -> Self {
        EtcdOptions { max_txn_ops: Some(operations), ..self }
    }

    /// Requires passwords. This user may do everything, and [`EtcdCluster::url`] contains it. For other users, see
    /// [`EtcdCluster::add_user`].
    pub fn user(self, name: &str, password: &str) -> Self {
        EtcdOptions { user: Some((name.to_owned(), password.to_owned())), ..self }
    }

    /// Encrypts clients' connections, and requires a certificate from clients. [`EtcdCluster::url`] contains the files.
    pub fn tls(self) -> Self {
        EtcdOptions { tls: true, ..self }
    }

    /// Starts the cluster, and returns when every member is healthy. Returns `None`, and prints a line, if etcd is not installed.
    ///
    /// # Panics
    /// If the cluster does not start (the message holds the members' logs), or if etcd is not installed and `CI` is `true`.
    pub async fn start(self) -> Option<EtcdCluster> {
        if !is_installed() {
            return None;
        }
        for starts in 1.. {
            let cluster = EtcdCluster::spawn(self.clone());
            match cluster.until_healthy().await {
                Ok(()) => {
                    cluster.enable_auth().await;
                    return Some(cluster);
                }
                Err(said) => {
                    let port_taken = said.contains("address already in use") && starts < MAX_STARTS;
                    assert!(port_taken, "the etcd cluster did not start: {said}");
                }
            }
        }
        None
    }
}

/// Whether etcd is installed. Prints a line once if it is not.
fn is_installed() -> bool {
    static INSTALLED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let version =
            Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        let installed = version.is_ok_and(|status| status.success());
        let missing =
            "etcd is not installed (Debian's etcd-server; `cargo xtask test` installs it where it may)";
        assert!(installed || std::env::var("CI").as_deref() != Ok("true"), "{missing}");
        if !installed {
            // Bypasses the test harness, which hides the output of tests that pass.
            let _ = writeln!(std::io::stderr(), "SKIPPED: the tests that need an etcd cluster; {missing}");
        }
        installed
    })
}

/// A cluster of real etcd members on loopback, with data in a temporary folder. It ends with the test's process.
#[derive(Debug)]
pub struct EtcdCluster {
    options: EtcdOptions,
    members: Vec<Member>,
    certificates: Option<Certificates>,
    guard: Guard,
}

/// One of the servers.
#[derive(Debug)]
struct Member {
    /// `127.0.0.1:port` for clients.
    address: String,
    /// `http://127.0.0.1:port` of `/health` and `/metrics`, which require no password.
    status_url: String,
}

impl EtcdCluster {
    /// Options for a cluster that is not the default one.
    pub fn options() -> EtcdOptions {
        EtcdOptions::default()
    }

    /// Starts three new members without passwords. See [`EtcdOptions::start`].
    pub async fn start() -> Option<Self> {
        Self::options().start().await
    }

    /// The cluster that all tests of this binary share, each under its own prefix. It lives as long as the process.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<EtcdCluster>> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await.as_ref()
    }

    /// Writes the members' configurations, and starts the members.
    fn spawn(options: EtcdOptions) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made").keep();
        let certificates = options.tls.then(|| Certificates::write(&folder));
        let ports = free_ports(options.members * 3);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let initial: Vec<String> =
            ports.chunks(3).enumerate().map(|(n, ports)| format!("m{n}={}", url(ports[1]))).collect();
        let first = ports[0];
        let mut members = Vec::new();
        for (n, ports) in ports.chunks(3).enumerate() {
            let address = format!("127.0.0.1:{}", ports[0]);
            let client_url = format!("{}://{address}", if options.tls { "https" } else { "http" });
            let mut config = json!({
                "name": format!("m{n}"),
                "data-dir": folder.join(format!("{n}.data")),
                "listen-client-urls": client_url,
                "advertise-client-urls": client_url,
                "listen-peer-urls": url(ports[1]),
                "initial-advertise-peer-urls": url(ports[1]),
                "listen-metrics-urls": url(ports[2]),
                "initial-cluster": initial.join(","),
                "initial-cluster-state": "new",
                "initial-cluster-token": format!("turnwise-{}-{}", std::process::id(), first),
                "heartbeat-interval": options.heartbeat_ms,
                "election-timeout": options.election_ms,
                // etcd 3.4 copies the buffer of its latest writes for each read, at the greatest length that it has had.
                "backend-batch-limit": 1_000,
                // On by default, but not with a configuration file.
                "enable-grpc-gateway": true,
                // Fast password hashes are enough here: the passwords protect nothing.
                "bcrypt-cost": 4,
                "logger": "zap",
                "log-level": "warn",
                "log-outputs": ["stderr"],
            });
            if let Some(bytes) = options.quota_bytes {
                config["quota-backend-bytes"] = json!(bytes);
            }
            if let Some(operations) = options.max_txn_ops {
                config["max-txn-ops"] = json!(operations);
            }
            if let Some(certificates) = &certificates {
                config["client-transport-security"] = certificates.server();
            }
            // etcd reads YAML, and JSON is a subset of YAML.
            std::fs::write(folder.join(format!("{n}.yaml")), config.to_string())
                .expect("the temporary folder can be written");
            members.push(Member { address, status_url: url(ports[2]) });
        }
        let guard = Guard::new(folder, options.members);
        (0..options.members).for_each(|member| guard.start(member));
        EtcdCluster { options, members, certificates, guard }
    }

    /// The number of members, alive or not.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// `127.0.0.1:port` of each member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.address.clone()).collect()
    }

    /// The URL of a store under `prefix`, with user, password and certificates if the cluster requires them.
    pub fn url(&self, prefix: &str) -> String {
        self.url_at(&self.endpoints(), prefix)
    }

    /// The same with other addresses, for example those of [`Link`](crate::Link)s in front of the members.
    pub fn url_at(&self, endpoints: &[String], prefix: &str) -> String {
        let user = match &self.options.user {
            Some((name, password)) => format!("{name}:{password}@"),
            None => String::new(),
        };
        let (scheme, mut options) = match &self.certificates {
            Some(certificates) => ("etcds", certificates.url_options()),
            None => ("etcd", Vec::new()),
        };
        options.extend(self.options.max_txn_ops.map(|operations| format!("max_txn_ops={operations}")));
        let options = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("{scheme}://{user}{}/{prefix}{options}", endpoints.join(","))
    }

    /// Kills a member immediately, like `kill -9`, and returns when it is gone. Its data stay.
    pub async fn kill(&self, member: usize) {
        self.guard.signal(member, "-KILL");
        while self.guard.is_alive(member) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Pauses a member (SIGSTOP): it keeps its connections, and does not respond.
    pub fn stop(&self, member: usize) {
        self.guard.signal(member, "-STOP");
    }

    /// Resumes a paused member.
    pub fn resume(&self, member: usize) {
        self.guard.signal(member, "-CONT");
    }

    /// Starts a killed member with the data that it had, and returns when it is healthy.
    pub async fn restart(&self, member: usize) {
        // A member that is still ending would conflict with the new one over data and ports.
        assert!(!self.guard.is_alive(member), "member {member} lives");
        self.guard.start(member);
        let healthy = async {
            while !self.is_healthy(member).await {
                // The last threads of a killed process may still hold its ports, where the process itself is gone already.
                if !self.guard.is_alive(member) {
                    self.guard.start(member);
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        if tokio::time::timeout(HEALTH_TIMEOUT, healthy).await.is_err() {
            panic!("member {member} did not come back: {}", self.guard.said());
        }
    }

    /// The leader, as soon as there is one.
    ///
    /// # Panics
    /// If the cluster gets no leader.
    pub async fn leader(&self) -> usize {
        let found = async {
            loop {
                for member in 0..self.members() {
                    let metrics = self.status(member, "/metrics").await.unwrap_or_default();
                    let leads = |line: &str| line == "etcd_server_is_leader 1";
                    if metrics.lines().any(leads) && self.is_healthy(member).await {
                        return member;
                    }
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        match tokio::time::timeout(HEALTH_TIMEOUT, found).await {
            Ok(member) => member,
            Err(_) => panic!("nobody leads the cluster: {}", self.guard.said()),
        }
    }

    /// Whether a member is part of a cluster that has a quorum and no alarm.
    pub async fn is_healthy(&self, member: usize) -> bool {
        let health = self.status(member, "/health").await.unwrap_or_default();
        let health: serde_json::Value = serde_json::from_str(&health).unwrap_or_default();
        health["health"] == "true"
    }

    /// Waits until all members are healthy. The error holds the members' logs.
    async fn until_healthy(&self) -> Result<(), String> {
        let healthy = async {
            for member in 0..self.members() {
                while !self.is_healthy(member).await {
                    if !self.guard.is_alive(member) {
                        return Err(self.guard.said());
                    }
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
            Ok(())
        };
        tokio::time::timeout(HEALTH_TIMEOUT, healthy).await.unwrap_or_else(|_| Err(self.guard.said()))
    }

    /// A member's response on its port for status requests.
    async fn status(&self, member: usize, path: &str) -> Option<String> {
        let url = format!("{}{path}", self.members[member].status_url);
        let answer = crate::client().get(url).timeout(ANSWER_TIMEOUT).send().await.ok()?;
        answer.text().await.ok()
    }
}

#[cfg(test)]
mod tests {
    //! A cluster survives the faults that tests cause.

    use super::*;

    #[tokio::test]
    async fn a_cluster_lives_as_long_as_most_of_its_members() {
        let Some(cluster) = EtcdCluster::start().await else { return };
        let leader = cluster.leader().await;
        cluster.put("a", "1").await;
        cluster.kill(leader).await;
        let next = cluster.leader().await;
        assert_ne!(next, leader);
        cluster.put("a", "2").await;
        cluster.restart(leader).await;
        assert_eq!(cluster.get("a").await.as_deref(), Some("2"));

        cluster.stop(next);
        assert!(!cluster.is_healthy(next).await);
        assert_ne!(cluster.leader().await, next);
        cluster.resume(next);
        cluster.until_healthy().await.expect("three members");
        let folder = cluster.guard.folder().to_owned();
        drop(cluster);
        assert!(!folder.exists(), "the data outlive their cluster");
    }

    #[tokio::test]
    async fn a_cluster_asks_for_password_and_certificate() {
        let options = EtcdCluster::options().members(1).tls().user("root", crate::canary::PASSWORD);
        let Some(cluster) = options.start().await else { return };
        cluster.put("a", "1").await;
        assert_eq!(cluster.get("a").await.as_deref(), Some("1"));
        assert!(
            cluster.url("p").starts_with("etcds://root:hunter2-pa55word@127.0.0.1:"),
            "{}",
            cluster.url("p")
        );
    }

    #[tokio::test]
    async fn a_full_cluster_raises_an_alarm() {
        let Some(cluster) = EtcdCluster::options().members(1).quota_bytes(1 << 20).start().await else {
            return;
        };
        let value = "x".repeat(100_000);
        let mut count = 0;
        while cluster.try_put(&format!("k{count}"), &value).await.is_ok() {
            count += 1;
            // etcd counts what is in its file, and writes there every 100 ms.
            assert!(count < 2_000, "there was room for ten");
        }
        assert!(!cluster.is_healthy(0).await);
        for n in 0..count {
            cluster.delete(&format!("k{n}")).await;
        }
        cluster.make_room().await;
        cluster.put("k", "1").await;
    }
}
