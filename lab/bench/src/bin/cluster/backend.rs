//! The stores that nodes share.

use std::path::PathBuf;

use turnwise_store::StoreUrl;
use turnwise_testkit::{EtcdCluster, process};

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Etcd,
    Foundationdb,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Etcd, Self::Foundationdb];

    pub fn key(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Foundationdb => "foundationdb",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Foundationdb => "FoundationDB",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Self::Etcd => {
                "three members on this machine, a new cluster for each run; each commit is on the disks of two"
            }
            Self::Foundationdb => {
                "the cluster of FDB_CLUSTER_FILE, as it is configured; each run under a prefix of its own"
            }
        }
    }

    /// Why this store cannot be measured here, if it cannot.
    pub async fn missing(self) -> Option<String> {
        match self {
            Self::Etcd => {
                let installed = std::process::Command::new("etcd").arg("--version").output();
                (!installed.is_ok_and(|output| output.status.success()))
                    .then(|| "etcd is not installed (Debian: apt-get install etcd-server)".to_owned())
            }
            Self::Foundationdb => match cluster_file() {
                None => Some("FDB_CLUSTER_FILE names no cluster".to_owned()),
                Some(cluster_file) => {
                    let url = StoreUrl::Foundationdb { cluster_file, prefix: "bench".to_owned() };
                    crate::queue::open(&url).await.err()
                }
            },
        }
    }
}

fn cluster_file() -> Option<PathBuf> {
    std::env::var_os("FDB_CLUSTER_FILE").map(PathBuf::from)
}

/// A running store.
pub enum Backend {
    Etcd(Box<EtcdCluster>),
    Foundationdb { cluster_file: PathBuf, servers: Vec<u32> },
}

impl Backend {
    pub async fn start(kind: Kind) -> Result<Self, String> {
        match kind {
            Kind::Etcd => {
                Ok(Self::Etcd(Box::new(EtcdCluster::start().await.ok_or("etcd is not installed")?)))
            }
            Kind::Foundationdb => {
                let cluster_file = cluster_file().ok_or("FDB_CLUSTER_FILE names no cluster")?;
                let text = std::fs::read_to_string(&cluster_file).map_err(|error| error.to_string())?;
                let servers = coordinators(&text).into_iter().filter_map(process::listener).collect();
                Ok(Self::Foundationdb { cluster_file, servers })
            }
        }
    }

    /// The URL of a store in it, as an argument of a program.
    pub fn url_text(&self, prefix: &str) -> String {
        match self {
            Self::Etcd(cluster) => cluster.url(prefix),
            Self::Foundationdb { cluster_file, .. } => {
                format!("fdb:{}/bench-{}-{prefix}", cluster_file.display(), std::process::id())
            }
        }
    }

    /// The URL of a store in it.
    pub fn url(&self, prefix: &str) -> StoreUrl {
        self.url_text(prefix).parse().expect("this is a store's URL")
    }

    /// The CPU time that its processes on this machine have used.
    pub fn cpu_seconds(&self) -> f64 {
        let servers = match self {
            Self::Etcd(cluster) => {
                let ports = cluster.endpoints();
                ports.iter().filter_map(|address| port(address)).filter_map(process::listener).collect()
            }
            Self::Foundationdb { servers, .. } => servers.clone(),
        };
        servers.into_iter().filter_map(process::cpu_seconds).sum()
    }
}

/// The ports of the coordinators in a cluster file: `description:id@host:port,host:port:tls`. In a small cluster, these are all its
/// processes.
fn coordinators(text: &str) -> Vec<u16> {
    let line = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    let addresses = line.rsplit_once('@').map_or("", |(_, addresses)| addresses);
    addresses.split(',').filter_map(|address| port(address.trim().trim_end_matches(":tls"))).collect()
}

fn port(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}
