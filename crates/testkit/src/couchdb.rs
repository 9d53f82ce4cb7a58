//! A real CouchDB, where there is one: an optional folder beside this repository (`../shared/peers`, or what
//! `TURNWISE_TEST_PEERS` names) holds a program `start-couchdb DIR PORT`. Elsewhere the tests that need it say so and pass.
//!
//! ```no_run
//! # async fn example() {
//! use turnwise_testkit::CouchDb;
//!
//! let Some(couchdb) = CouchDb::shared().await else { return };
//! let source = couchdb.peer().create("source").await; // under a name of this test's own; deleted with the peer
//! # }
//! ```

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::ports::free_ports;
use crate::{Database, Peer, process};

/// How long a server may take to start on a machine that is busy compiling.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks at a server that has no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// New ports are tried this often where another program was quicker to take one.
const MAX_STARTS: usize = 5;
/// The last database that `start-couchdb` creates.
const LAST_DATABASE: &str = "/_global_changes";
/// How much of its log is shown when it does not start.
const SAID_BYTES: usize = 2_000;
/// Its administrator.
const LOGIN: &str = "admin:secret";

/// Starts the server, says its process id, and kills it and removes its folder when its own input ends: because the value was
/// dropped, or because the test's process is dead, however it died. It ignores what a terminal sends to the whole group of processes.
const GUARD: &str = r#"
trap '' INT TERM HUP
"$1" "$2" "$3" >>"$2/start.log" 2>&1 </dev/null &
echo $!
read -r _
kill -KILL $! 2>/dev/null
wait
rm -rf "$2"
"#;

/// A real CouchDB on loopback with data in a temporary folder, that dies with the test's process. Its administrator is
/// `admin` with the password `secret`.
#[derive(Debug)]
pub struct CouchDb {
    url: String,
    process: u32,
    guard: Child,
    folder: PathBuf,
}

impl CouchDb {
    /// The server that all tests of a binary share; `None`, with a line about it, where there is no CouchDB to start.
    ///
    /// # Panics
    /// If it does not start; what it said is in the message.
    pub async fn shared() -> Option<&'static CouchDb> {
        static SHARED: OnceCell<Option<CouchDb>> = OnceCell::const_new();
        SHARED.get_or_init(CouchDb::start).await.as_ref()
    }

    /// A server of one test's own: to be killed, or full of load. See [`CouchDb::shared`].
    ///
    /// # Panics
    /// If it does not start; what it said is in the message.
    pub async fn start() -> Option<CouchDb> {
        let program = program()?;
        for starts in 1.. {
            let server = Self::spawn(program);
            match server.until_ready().await {
                Ok(()) => return Some(server),
                Err(said) => {
                    let port_taken = said.contains("eaddrinuse") && starts < MAX_STARTS;
                    assert!(port_taken, "CouchDB did not start: {said}");
                }
            }
        }
        None
    }

    /// The server's URL with its administrator's password, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process id of the server, to measure it by or to send signals to.
    pub fn process_id(&self) -> u32 {
        self.process
    }

    /// The server as a peer whose databases no other test uses, and which are deleted when it is dropped.
    pub fn peer(&self) -> Peer {
        Peer::external(&self.url)
    }

    /// One request to the server; its status and its JSON answer.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, answer) = Database::at(&self.url).request(method, path, body).await;
        (status.as_u16(), answer)
    }

    fn spawn(program: &Path) -> CouchDb {
        let folder = TempDir::new().expect("a temporary folder can be made").keep();
        let port = free_ports(1)[0];
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .args([program, &folder])
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut said = String::new();
        let output = guard.stdout.take().expect("standard output is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said)
            .expect("the shell lives");
        let process = said.trim().parse().expect("the shell says a process id");
        CouchDb { url: format!("http://{LOGIN}@127.0.0.1:{port}"), process, guard, folder }
    }

    /// Returns when it answers and has its system databases; what it said if it ends before or takes too long.
    async fn until_ready(&self) -> Result<(), String> {
        let last = Database::at(format!("{}{LAST_DATABASE}", self.url));
        let ready = async {
            while process::is_alive(self.process) {
                let answer = last.client().get(last.url()).send().await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(self.said())
        };
        tokio::time::timeout(START_TIMEOUT, ready).await.unwrap_or_else(|_| Err(self.said()))
    }

    /// The ends of its logs.
    fn said(&self) -> String {
        let end = |name: &str| {
            let log = std::fs::read(self.folder.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&log[log.len().saturating_sub(SAID_BYTES)..]).into_owned()
        };
        format!("{}\n{}", end("start.log"), end("log"))
    }
}

impl Drop for CouchDb {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// What starts a CouchDB, if it is there. Says once where it is not.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/peers");
        let folder = std::env::var_os("TURNWISE_TEST_PEERS").map_or(beside, PathBuf::from);
        let program = folder.join("start-couchdb");
        if program.is_file() {
            return Some(program);
        }
        // Past the test harness, which keeps what passing tests print to itself.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the tests beside a real CouchDB; there is no {} (TURNWISE_TEST_PEERS names its folder)",
            program.display()
        );
        None
    };
    PROGRAM.get_or_init(find).as_deref()
}
