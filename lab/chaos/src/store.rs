//! The store of the nodes, and the faults that affect it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::node::run;
use super::{Engine, left_out};
use turnwise_testkit::{Disk, EtcdCluster, Link, free_ports};

/// The time between two checks of a server, if there is no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The longest time until FoundationDB has started.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The largest sensible quota of etcd. The copy, the original and a minute of history fit, even after an hour.
const ETCD_QUOTA_BYTES: u64 = 8 << 30;

/// A store that nodes use.
pub(super) struct Store {
    servers: Servers,
    /// The disk with the data, if it can be filled.
    pub disk: Option<Disk>,
    /// A number that changes with every copy.
    generation: std::sync::atomic::AtomicU64,
    folder: PathBuf,
}

enum Servers {
    None,
    Etcd { cluster: Box<EtcdCluster>, links: Vec<Link> },
    Foundationdb(Box<Foundationdb>),
}

impl Store {
    /// Starts the store. `Err` states what is missing on this machine.
    pub async fn start(engine: &Engine, folder: &Path) -> Result<Store, String> {
        let mut disk = None;
        let servers = match engine {
            Engine::Embedded => {
                disk = Disk::mount(&folder.join("disk")).await;
                if disk.is_none() {
                    left_out(
                        "a full disk, which only root can make (a file system in memory that is made smaller)",
                    );
                }
                Servers::None
            }
            Engine::Etcd => {
                let cluster = EtcdCluster::options().quota_bytes(ETCD_QUOTA_BYTES).start().await;
                let cluster = cluster.ok_or("etcd is not installed")?;
                let mut links = Vec::new();
                for endpoint in cluster.endpoints() {
                    links.push(Link::before(&endpoint).await);
                }
                Servers::Etcd { cluster: Box::new(cluster), links }
            }
            Engine::Foundationdb(program) => Servers::Foundationdb(Box::new(
                Foundationdb::start(program, &folder.join("foundationdb")).await?,
            )),
        };
        std::fs::create_dir_all(folder.join("disk")).map_err(|error| error.to_string())?;
        Ok(Store { servers, disk, generation: 1.into(), folder: folder.to_owned() })
    }

    /// The URL for the node with this number. With etcd, the connection of the second node can be cut.
    pub fn url(&self, node: usize) -> String {
        let generation = self.generation.load(std::sync::atomic::Ordering::Relaxed);
        self.url_of(generation, node)
    }

    fn url_of(&self, generation: u64, node: usize) -> String {
        let part = format!("chaos-{generation}");
        match &self.servers {
            Servers::None => format!("embedded:{}", self.folder.join("disk").join(part).display()),
            Servers::Etcd { cluster, links } if node == 1 => {
                cluster.url_at(&links.iter().map(Link::address).collect::<Vec<_>>(), &part)
            }
            Servers::Etcd { cluster, .. } => cluster.url(&part),
            Servers::Foundationdb(server) => format!("fdb:{}/{part}", server.cluster_file().display()),
        }
    }

    /// Whether other processes may use the store while it is checked.
    pub fn is_shared(&self) -> bool {
        !matches!(self.servers, Servers::None)
    }

    /// The URL of the next copy, and the URL of a store in between on another engine, if any.
    pub fn next(&self) -> (String, Option<String>) {
        let generation = 1 + self.generation.load(std::sync::atomic::Ordering::Relaxed);
        let between = self.folder.join("disk").join(format!("between-{generation}"));
        let between = self.is_shared().then(|| format!("embedded:{}", between.display()));
        (self.url_of(generation, 0), between)
    }

    /// Switches to the copy, and removes the original. FoundationDB's original stays: no client for it is available here,
    /// and it has no quota.
    pub async fn copied(&self) {
        let before = self.generation.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let Servers::Etcd { cluster, .. } = &self.servers {
            cluster.clear(&format!("chaos-{before}/")).await;
        }
        for name in [format!("chaos-{before}"), format!("between-{}", before + 1)] {
            let _ = std::fs::remove_dir_all(self.folder.join("disk").join(name));
        }
    }

    /// Kills a server of the store, waits, and starts it again. Returns whether there is one.
    pub async fn kill_server(&self, number: usize, away: Duration) -> bool {
        match &self.servers {
            Servers::None => return false,
            Servers::Etcd { cluster, .. } => {
                let member = number % cluster.members();
                cluster.kill(member).await;
                tokio::time::sleep(away).await;
                cluster.restart(member).await;
            }
            Servers::Foundationdb(server) => {
                server.kill().await;
                tokio::time::sleep(away).await;
                server.restart().await.expect("FoundationDB starts again with its data");
            }
        }
        true
    }

    /// Pauses a server of the store. Returns whether there is one.
    pub async fn pause_server(&self, number: usize, away: Duration) -> bool {
        match &self.servers {
            Servers::None => return false,
            Servers::Etcd { cluster, .. } => {
                let member = number % cluster.members();
                cluster.stop(member);
                tokio::time::sleep(away).await;
                cluster.resume(member);
            }
            Servers::Foundationdb(server) => {
                server.signal("-STOP").await;
                tokio::time::sleep(away).await;
                server.signal("-CONT").await;
            }
        }
        true
    }

    /// Cuts the connection of the second node. Returns whether it can be cut.
    pub async fn cut(&self, away: Duration) -> bool {
        let Servers::Etcd { links, .. } = &self.servers else { return false };
        links.iter().for_each(Link::cut);
        tokio::time::sleep(away).await;
        links.iter().for_each(Link::restore);
        true
    }
}

/// A FoundationDB of one process, which a program starts in the foreground.
struct Foundationdb {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    child: Mutex<Option<Child>>,
}

impl Foundationdb {
    async fn start(program: &Path, folder: &Path) -> Result<Self, String> {
        if !program.exists() {
            return Err(format!(
                "there is no {}: name a program that starts FoundationDB",
                program.display()
            ));
        }
        let server = Foundationdb {
            program: program.to_owned(),
            folder: folder.to_owned(),
            port: free_ports(1)[0],
            child: Mutex::new(None),
        };
        server.restart().await.map(|()| server)
    }

    fn cluster_file(&self) -> PathBuf {
        self.folder.join("fdb.cluster")
    }

    async fn restart(&self) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        // On disk, because data in memory does not survive `kill -9`.
        command.arg(&self.folder).arg(self.port.to_string()).arg("ssd");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn();
        *self.child.lock().await = Some(child.map_err(|error| error.to_string())?);
        let ready = async {
            // The program first removes the file of an earlier start.
            tokio::time::sleep(LOOK_AGAIN * 10).await;
            while !self.folder.join("ready").exists() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let ready = tokio::time::timeout(START_TIMEOUT, ready).await;
        ready.map_err(|_| "FoundationDB does not start".to_owned())
    }

    async fn kill(&self) {
        if let Some(mut child) = self.child.lock().await.take() {
            let _ = child.kill().await;
        }
    }

    async fn signal(&self, signal: &str) {
        let process = self.child.lock().await.as_ref().and_then(Child::id);
        if let Some(process) = process {
            run("kill", &[signal, &process.to_string()]).await;
        }
    }
}

/// The folder of a chaos test. It is removed when dropped, unless it is kept.
pub(super) fn folder() -> TempDir {
    tempfile::Builder::new().prefix("turnwise-chaos-").tempdir().expect("a folder can be made")
}
