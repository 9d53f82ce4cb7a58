//! A store that nodes share, and the faults of that store.

use std::time::Duration;

use tokio::process::Command;
use turnwise_testkit::{EtcdCluster, Link};

/// The variable that names a FoundationDB cluster to test against.
const CLUSTER_FILE: &str = "FDB_CLUSTER_FILE";
/// Shell commands that kill the one `fdbserver` of that cluster (as `kill -9` does, returning when it is gone), and start it.
const FDB_KILL: &str = "TURNWISE_TEST_FDB_KILL";
const FDB_START: &str = "TURNWISE_TEST_FDB_START";

/// The store of a test: on etcd or on FoundationDB.
pub enum SharedStore {
    /// Three members, and a link to each that can be cut, for the node that loses its store.
    Etcd { cluster: Box<EtcdCluster>, links: Vec<Link>, prefix: String },
    /// A cluster that is not part of the test. Rows under the test's prefix stay there afterwards.
    Foundationdb { cluster_file: String, prefix: String },
}

impl SharedStore {
    /// A fresh etcd cluster; `None` if etcd is not installed.
    pub async fn etcd() -> Option<Self> {
        let cluster = EtcdCluster::start().await?;
        let mut links = Vec::new();
        for endpoint in cluster.endpoints() {
            links.push(Link::before(&endpoint).await);
        }
        Some(SharedStore::Etcd { cluster: Box::new(cluster), links, prefix: "jobs".to_owned() })
    }

    /// The cluster that the environment names, with its own prefix; `None` if it cannot be killed and started.
    pub fn foundationdb() -> Option<Self> {
        std::env::var_os(FDB_KILL)?;
        let cluster_file = std::env::var(CLUSTER_FILE).ok()?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let prefix = format!("test-{}-{}", now.as_secs(), std::process::id());
        Some(SharedStore::Foundationdb { cluster_file, prefix })
    }

    /// The store's URL.
    pub fn url(&self) -> String {
        match self {
            SharedStore::Etcd { cluster, prefix, .. } => cluster.url(prefix),
            SharedStore::Foundationdb { cluster_file, prefix } => format!("fdb:{cluster_file}/{prefix}"),
        }
    }

    /// The same store, through links that [`SharedStore::cut`] cuts.
    pub fn url_that_can_be_cut(&self) -> String {
        match self {
            SharedStore::Etcd { cluster, links, prefix } => {
                let addresses: Vec<String> = links.iter().map(Link::address).collect();
                cluster.url_at(&addresses, prefix)
            }
            SharedStore::Foundationdb { .. } => self.url(),
        }
    }

    /// Cuts the links of the node that uses them. Returns `false` if that is not possible: a client of FoundationDB
    /// connects to the addresses that the servers report.
    pub fn cut(&self) -> bool {
        match self {
            SharedStore::Etcd { links, .. } => {
                links.iter().for_each(Link::cut);
                true
            }
            SharedStore::Foundationdb { .. } => false,
        }
    }

    /// Restores the links.
    pub fn restore(&self) {
        if let SharedStore::Etcd { links, .. } = self {
            links.iter().for_each(Link::restore);
        }
    }

    /// Kills the leader of the store (the one server of FoundationDB), and restarts it as soon as there is another leader.
    pub async fn lose_leader(&self) {
        match self {
            SharedStore::Etcd { cluster, .. } => {
                let leader = cluster.leader().await;
                cluster.kill(leader).await;
                assert_ne!(cluster.leader().await, leader);
                cluster.restart(leader).await;
            }
            SharedStore::Foundationdb { .. } => {
                shell(FDB_KILL).await;
                shell(FDB_START).await;
            }
        }
    }

    /// Pauses a member for this long and resumes it: the leader, or a follower.
    pub async fn pause(&self, leading: bool, pause: Duration) {
        match self {
            SharedStore::Etcd { cluster, .. } => {
                let leader = cluster.leader().await;
                let member = if leading { leader } else { (leader + 1) % cluster.members() };
                cluster.stop(member);
                // The length of the pause is part of the fault.
                tokio::time::sleep(pause).await;
                assert_ne!(cluster.leader().await, member);
                cluster.resume(member);
            }
            // There is one server, so all nodes are without a store for this long.
            SharedStore::Foundationdb { .. } => {
                shell(FDB_KILL).await;
                tokio::time::sleep(pause).await;
                shell(FDB_START).await;
            }
        }
    }
}

/// Runs the shell command that a variable holds.
async fn shell(variable: &str) {
    let command = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} must hold a shell command"));
    let status = Command::new("sh").args(["-c", &command]).status().await.unwrap();
    assert!(status.success(), "{variable} failed: {command}");
}
