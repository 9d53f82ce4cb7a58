//! A CouchDB-protocol server for one test.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Database;
use crate::database::client;

/// The longest time until a server has started, on a machine that is also compiling.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The environment variables that name real CouchDB servers for manual tests, for [`Peer::pair`].
const COUCHDB_VARIABLES: [&str; 2] = ["TURNWISE_TEST_COUCHDB_A", "TURNWISE_TEST_COUCHDB_B"];

/// A server that speaks CouchDB's protocol: a pouchdb-server that lives as long as this value, or a CouchDB that runs already.
///
/// The server picks its own free port, so that no two collide. It is killed when the `Peer` is dropped. It ends by itself
/// when the test's process dies in any other way, because its standard input then ends.
#[derive(Debug)]
pub struct Peer {
    url: String,
    server: Server,
}

#[derive(Debug)]
enum Server {
    Started(Box<Started>),
    /// A server with other users. Names are made unique, and the databases are deleted at the end.
    External {
        prefix: String,
        used: Mutex<Vec<String>>,
    },
}

#[derive(Debug)]
struct Started {
    process: Process,
    folder: TempDir,
    /// The port of a durable server, which it keeps after a restart.
    port: Option<u16>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    /// Kept open, because the server ends when they close.
    _input: ChildStdin,
    _output: Lines<BufReader<ChildStdout>>,
}

/// How to start a [`Peer`]: see [`Peer::options`].
#[derive(Clone, Debug, Default)]
pub struct PeerOptions {
    admin: Option<(String, String)>,
    durable: bool,
}

impl PeerOptions {
    /// Requires this user's password. [`Peer::url`] then contains it.
    pub fn admin(mut self, name: &str, password: &str) -> Self {
        self.admin = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Keeps the databases on disk, so that [`Peer::restart`] restores them after [`Peer::kill`].
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Starts the server, and returns when it listens.
    ///
    /// # Panics
    /// If `peers/node_modules` is missing, or the server does not start. The message holds its standard error.
    pub async fn start(self) -> Peer {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let credentials = match &self.admin {
            Some((name, password)) => {
                let config = serde_json::json!({ "admins": { name: password } });
                std::fs::write(folder.path().join("config.json"), config.to_string())
                    .expect("the temporary folder can be written");
                format!("{name}:{password}@")
            }
            None => String::new(),
        };
        let port = self.durable.then(|| crate::free_ports(1)[0]);
        let (process, port) = spawn(folder.path(), port).await;
        let started = Started { process, folder, port: self.durable.then_some(port) };
        let peer = Peer {
            url: format!("http://{credentials}127.0.0.1:{port}"),
            server: Server::Started(Box::new(started)),
        };
        let answer = client().get(&peer.url).send().await;
        assert!(answer.is_ok_and(|answer| answer.status().is_success()), "{} does not answer", peer.url);
        peer
    }
}

impl Peer {
    /// Starts a new, empty pouchdb-server without passwords. See [`PeerOptions::start`].
    pub async fn start() -> Self {
        Self::options().start().await
    }

    /// Options for a server that is not the default one.
    pub fn options() -> PeerOptions {
        PeerOptions::default()
    }

    /// A source and a target: the two servers whose URLs (`http://user:password@host:port`) are in `TURNWISE_TEST_COUCHDB_A` and
    /// `TURNWISE_TEST_COUCHDB_B`, or otherwise two new pouchdb-servers.
    pub async fn pair() -> (Self, Self) {
        match COUCHDB_VARIABLES.map(|name| std::env::var(name).ok()) {
            [Some(source), Some(target)] => (Self::external(&source), Self::external(&target)),
            _ => tokio::join!(Self::start(), Self::start()),
        }
    }

    /// A server that already runs. Databases get names that no other test uses, and are deleted when this value is dropped.
    pub fn external(url: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let prefix =
            format!("turnwise-test-{}-{}-", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let used = Mutex::new(Vec::new());
        Self { url: url.trim_end_matches('/').to_owned(), server: Server::External { prefix, used } }
    }

    /// The server's URL, with credentials if it requires them, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether this is a pouchdb-server that was started here, with the limits that `peers/README.md` lists.
    pub fn is_pouchdb(&self) -> bool {
        matches!(self.server, Server::Started(_))
    }

    /// The database `name`, which need not exist.
    pub fn db(&self, name: &str) -> Database {
        match &self.server {
            Server::Started(_) => Database::at(format!("{}/{name}", self.url)),
            Server::External { prefix, used } => {
                let url = format!("{}/{prefix}{name}", self.url);
                used.lock().expect("no holder of this lock panics").push(url.clone());
                Database::at(url)
            }
        }
    }

    /// The database `name`, created.
    pub async fn create(&self, name: &str) -> Database {
        let database = self.db(name);
        database.create().await;
        database
    }

    /// The started server's process id, for measurements.
    pub fn process_id(&self) -> Option<u32> {
        match &self.server {
            Server::Started(started) => started.process.child.id(),
            Server::External { .. } => None,
        }
    }

    /// Whether the server's process has ended: [`Peer::kill`] ends it, and so do some requests (`peers/README.md`).
    pub fn has_ended(&mut self) -> bool {
        match &mut self.server {
            Server::Started(started) => !matches!(started.process.child.try_wait(), Ok(None)),
            Server::External { .. } => false,
        }
    }

    /// Restarts a [durable](PeerOptions::durable) server that has ended, on the same port, with all its data.
    ///
    /// # Panics
    /// If the server is not durable, or does not start.
    pub async fn restart(&mut self) {
        let Server::Started(started) = &mut self.server else {
            panic!("a server that others use is not restarted")
        };
        let port = started.port.expect("only a durable server comes back");
        (started.process, _) = spawn(started.folder.path(), Some(port)).await;
    }

    /// Kills the server immediately, like `kill -9`. Unless it is durable, its data are lost.
    /// [`Fault::Down`](crate::Fault::Down) makes a server unavailable and keeps its data.
    pub async fn kill(&mut self) {
        match &mut self.server {
            Server::Started(started) => {
                started.process.child.kill().await.expect("an own child can be killed")
            }
            Server::External { .. } => panic!("a server that others use must not be killed"),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        match &mut self.server {
            Server::Started(started) => {
                // If a request has killed the server (peers/README.md lists such requests), this explains the test's failure.
                if std::thread::panicking() && matches!(started.process.child.try_wait(), Ok(Some(_))) {
                    eprintln!("the peer {} had died: {}", self.url, said(started.folder.path()));
                }
                // Does not wait for its end: `kill_on_drop` reaps it.
                let _ = started.process.child.start_kill();
            }
            Server::External { used, .. } => {
                let used = std::mem::take(used.get_mut().expect("no holder of this lock panics"));
                delete_databases(used);
            }
        }
    }
}

/// Deletes databases from a `drop`, which cannot await: on a thread with its own runtime.
fn delete_databases(urls: Vec<String>) {
    let deletion = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            for url in urls {
                // A database that no longer exists or cannot be reached needs no deletion.
                let _ = client().delete(url).send().await;
            }
        });
    });
    let _ = deletion.join();
}

/// Starts a pouchdb-server in a folder, and returns it when it listens: on a free port, or on `port` with its databases on disk.
async fn spawn(folder: &Path, port: Option<u16>) -> (Process, u16) {
    let errors = std::fs::File::create(folder.join("stderr")).expect("the temporary folder can be written");
    let mut command = Command::new("node");
    command.arg(peers_folder().join("peer.mjs")).arg("--no-stdout-logs");
    match port {
        Some(port) => command.env("PEER_PORT", port.to_string()),
        None => command.arg("--in-memory"),
    };
    let mut child = command
        .current_dir(folder)
        // It keeps each attachment of a multipart request as a file there, and never deletes it.
        .env("TMPDIR", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| {
            panic!("node cannot be started ({error}); Node 20 or newer must be in the PATH")
        });
    let input = child.stdin.take().expect("standard input is piped");
    let mut output = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    let port = tokio::time::timeout(START_TIMEOUT, read_port(&mut output)).await;
    let Ok(Some(port)) = port else {
        panic!("pouchdb-server did not start: {}", said(folder));
    };
    (Process { child, _input: input, _output: output }, port)
}

/// Reads up to the line in which `peer.mjs` announces the port. `None` if the server ends before that.
async fn read_port(output: &mut Lines<BufReader<ChildStdout>>) -> Option<u16> {
    while let Ok(Some(line)) = output.next_line().await {
        if let Some(port) = line.strip_prefix("listening ") {
            return port.parse().ok();
        }
    }
    None
}

/// The server's standard error.
fn said(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("stderr")).unwrap_or_default()
}

/// The folder `peers/` of this repository.
///
/// # Panics
/// If the servers are not installed in it.
pub fn peers_folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers");
    assert!(
        folder.join("node_modules/pouchdb-server").is_dir(),
        "no servers in peers/node_modules: run `cargo xtask test` (it sets up the peers)"
    );
    folder
}
