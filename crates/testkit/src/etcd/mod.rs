//! A real etcd cluster of one test's, or one test binary's, own.
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
//! Who hurts a cluster starts one of its own: `EtcdCluster::options()…start().await`.

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

/// Members of a cluster, unless the options say otherwise: as many as survive the loss of one.
const MEMBERS: usize = 3;
/// How long a cluster may take to start or to find itself together again, on a machine that is busy compiling.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks at a cluster that has no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// What a member that works answers within. One that is stopped never does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// New ports are tried this often where another program was quicker to take one.
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
            // etcd's own defaults: shorter ones lose their leader on a machine that compiles.
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
    /// So many members instead of three.
    pub fn members(self, members: usize) -> Self {
        EtcdOptions { members, ..self }
    }

    /// How often a leader says that it is there, and how long its silence is borne.
    pub fn election_ms(self, heartbeat_ms: u64, election_ms: u64) -> Self {
        EtcdOptions { heartbeat_ms, election_ms, ..self }
    }

    /// `--quota-backend-bytes`: a larger database raises the alarm NOSPACE.
    pub fn quota_bytes(self, bytes: u64) -> Self {
        EtcdOptions { quota_bytes: Some(bytes), ..self }
    }

    /// `--max-txn-ops`.
    pub fn max_txn_ops(self, operations: usize) -> Self {
        EtcdOptions { max_txn_ops: Some(operations), ..self }
    }

    /// Asks for passwords. This user may do everything; [`EtcdCluster::url`] carries it. See
    /// [`EtcdCluster::add_user`] for others.
    pub fn user(self, name: &str, password: &str) -> Self {
        EtcdOptions { user: Some((name.to_owned(), password.to_owned())), ..self }
    }

    /// Encrypts its clients' connections and asks for a certificate of theirs. [`EtcdCluster::url`] carries the files.
    pub fn tls(self) -> Self {
        EtcdOptions { tls: true, ..self }
    }

    /// Starts the cluster and returns when every member is healthy; `None`, with a line about it, where etcd is not installed.
    ///
    /// # Panics
    /// If it does not start (what the members said is in the message), or if etcd is not installed and `CI` is `true`.
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

/// Whether there is an etcd to start. Says once where there is not.
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
            // Past the test harness, which keeps what passing tests print to itself.
            let _ = writeln!(std::io::stderr(), "SKIPPED: the tests that need an etcd cluster; {missing}");
        }
        installed
    })
}

/// A cluster of real etcd members on loopback, with data in a temporary folder, that dies with the test's process.
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
    /// `http://127.0.0.1:port` of `/health` and `/metrics`, which ask nobody for a password.
    status_url: String,
}

impl EtcdCluster {
    /// To start a cluster that is not the default one.
    pub fn options() -> EtcdOptions {
        EtcdOptions::default()
    }

    /// Three fresh members without passwords. See [`EtcdOptions::start`].
    pub async fn start() -> Option<Self> {
        Self::options().start().await
    }

    /// The cluster that all tests of this binary share, each under a prefix of its own. It lives as long as the process.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<EtcdCluster>> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await.as_ref()
    }

    /// Writes the members' configurations and starts them.
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
                // On by default, but not where there is a file.
                "enable-grpc-gateway": true,
                // Quick passwords: these guard nothing.
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
            // etcd reads YAML, of which JSON is a part.
            std::fs::write(folder.join(format!("{n}.yaml")), config.to_string())
                .expect("the temporary folder can be written");
            members.push(Member { address, status_url: url(ports[2]) });
        }
        let guard = Guard::new(folder, options.members);
        (0..options.members).for_each(|member| guard.start(member));
        EtcdCluster { options, members, certificates, guard }
    }

    /// How many members there are, alive or not.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// `127.0.0.1:port` of each member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.address.clone()).collect()
    }

    /// The URL of a store under `prefix`, with user, password and certificates if the cluster asks for them.
    pub fn url(&self, prefix: &str) -> String {
        self.url_at(&self.endpoints(), prefix)
    }

    /// The same by way of other addresses, for example those of [`Link`](crate::Link)s that stand before the members.
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

    /// Kills a member at once, as `kill -9` does, and returns when it is gone. Its data stay.
    pub async fn kill(&self, member: usize) {
        self.guard.signal(member, "-KILL");
        while self.guard.is_alive(member) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Stops a member as it stands (SIGSTOP): it keeps its connections and answers nobody.
    pub fn stop(&self, member: usize) {
        self.guard.signal(member, "-STOP");
    }

    /// Lets a stopped member go on.
    pub fn resume(&self, member: usize) {
        self.guard.signal(member, "-CONT");
    }

    /// Starts a member that was killed, with the data it had, and returns when it is healthy.
    pub async fn restart(&self, member: usize) {
        // It may be on its way out only, and two of them would fight for data and ports.
        assert!(!self.guard.is_alive(member), "member {member} lives");
        self.guard.start(member);
        let healthy = async {
            while !self.is_healthy(member).await {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        if tokio::time::timeout(HEALTH_TIMEOUT, healthy).await.is_err() {
            panic!("member {member} did not come back: {}", self.guard.said());
        }
    }

    /// The member that leads, as soon as one does.
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

    /// Waits until all members are healthy; the error is what they said.
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

    /// What a member says on the port that is for this.
    async fn status(&self, member: usize, path: &str) -> Option<String> {
        let url = format!("{}{path}", self.members[member].status_url);
        let answer = crate::client().get(url).timeout(ANSWER_TIMEOUT).send().await.ok()?;
        answer.text().await.ok()
    }
}

#[cfg(test)]
mod tests {
    //! A cluster survives what its tests will do to it.

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
    async fn a_full_cluster_is_told_by_its_alarm() {
        let Some(cluster) = EtcdCluster::options().members(1).quota_bytes(1 << 20).start().await else {
            return;
        };
        let value = "x".repeat(100_000);
        let mut count = 0;
        while cluster.try_put(&format!("k{count}"), &value).await.is_ok() {
            count += 1;
            assert!(count < 100, "there was room for ten");
        }
        assert!(!cluster.is_healthy(0).await);
        for n in 0..count {
            cluster.delete(&format!("k{n}")).await;
        }
        cluster.make_room().await;
        cluster.put("k", "1").await;
    }
}
