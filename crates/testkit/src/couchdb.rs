//! A real CouchDB, if available. An optional folder beside this repository (`../shared/peers`, or the folder that
//! `TURNWISE_TEST_PEERS` names) holds a program `start-couchdb DIR PORT`. Without it, the tests that need CouchDB print a
//! line and pass.
//!
//! ```no_run
//! # async fn example() {
//! use turnwise_testkit::CouchDb;
//!
//! let Some(couchdb) = CouchDb::shared().await else { return };
//! let source = couchdb.peer().create("source").await; // under a name of this test's own; deleted with the peer
//! # }
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::ports::free_ports;
use crate::{Database, Peer, process};

/// The longest time until a server has started, on a machine that is also compiling.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two checks of a server, if there is no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often new ports are tried if another program takes one first.
const MAX_STARTS: usize = 5;
/// The last database that `start-couchdb` creates.
const LAST_DATABASE: &str = "/_global_changes";
/// How much of its log is shown if it does not start, in bytes.
const SAID_BYTES: usize = 2_000;
/// The name and password of its administrator.
const LOGIN: &str = "admin:secret";

/// Starts the server, and prints its process id. Kills it at each line of standard input, and, unless the line is `kill`, starts it again on
/// its data; prints the process id again. Kills the server and removes its folder when standard input ends: the value was dropped, or the test's process is dead. Ignores signals that a
/// terminal sends to the whole process group.
const GUARD: &str = r#"
trap '' INT TERM HUP
begin() {
  "$1" "$2" "$3" >>"$2/start.log" 2>&1 </dev/null &
  server=$!
  echo $server
}
begin "$@"
while read -r word; do
  kill -KILL $server 2>/dev/null
  wait $server 2>/dev/null
  if [ "$word" = kill ]; then echo $server; else begin "$@"; fi
done
kill -KILL $server 2>/dev/null
wait
rm -rf "$2"
"#;

/// A real CouchDB on loopback with data in a temporary folder. It ends with the test's process. Its administrator is
/// `admin` with the password `secret`.
#[derive(Debug)]
pub struct CouchDb {
    url: String,
    process: u32,
    guard: Child,
    said: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl CouchDb {
    /// The server that all tests of a binary share. Returns `None`, and prints a line, if there is no CouchDB to start.
    ///
    /// # Panics
    /// If it does not start. The message holds the end of its log.
    pub async fn shared() -> Option<&'static CouchDb> {
        static SHARED: OnceCell<Option<CouchDb>> = OnceCell::const_new();
        SHARED.get_or_init(CouchDb::start).await.as_ref()
    }

    /// A server for one test, which may kill it or load it fully. See [`CouchDb::shared`].
    ///
    /// # Panics
    /// If it does not start. The message holds the end of its log.
    pub async fn start() -> Option<CouchDb> {
        let program = program()?;
        // A first start may install libraries, which one process at a time can do.
        let lock =
            File::create(std::env::temp_dir().join("turnwise-couchdb-start.lock")).expect("a lock file");
        lock.lock().expect("the lock file can be locked");
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

    /// The server's URL with its administrator's password, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process id of the server, for measurements and signals.
    pub fn process_id(&self) -> u32 {
        self.process
    }

    /// The folder with its databases.
    pub fn data_folder(&self) -> PathBuf {
        self.folder.join("couchdb").join("data")
    }

    /// The server as a peer whose databases no other test uses. They are deleted when the peer is dropped.
    pub fn peer(&self) -> Peer {
        Peer::external(&self.url)
    }

    /// Sends one request to the server. Returns its status and its JSON response.
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
        let mut said = BufReader::new(guard.stdout.take().expect("standard output is piped"));
        let process = process_id(&mut said);
        CouchDb { url: format!("http://{LOGIN}@127.0.0.1:{port}"), process, guard, said, folder }
    }

    /// Kills the server, which is a crash, and starts it again on its data. Returns when it responds.
    ///
    /// # Panics
    /// If it does not start. The message holds the end of its log.
    pub async fn crash(&mut self) {
        self.tell(b"again\n");
        if let Err(said) = self.until_ready().await {
            panic!("CouchDB did not start again: {said}");
        }
    }

    /// Kills the server. [`CouchDb::crash`] starts it again.
    pub fn kill(&mut self) {
        self.tell(b"kill\n");
    }

    /// Sends a line to the shell that guards the server, which answers with its process id.
    fn tell(&mut self, line: &[u8]) {
        let input = self.guard.stdin.as_mut().expect("standard input is piped");
        input.write_all(line).and_then(|()| input.flush()).expect("the shell lives");
        self.process = process_id(&mut self.said);
    }

    /// Returns when the server responds and has its system databases. The error is its log, if it ends before that or takes
    /// too long.
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

    /// The ends of its logs, as text.
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

fn process_id(said: &mut BufReader<ChildStdout>) -> u32 {
    let mut line = String::new();
    said.read_line(&mut line).expect("the shell lives");
    line.trim().parse().expect("the shell says a process id")
}

/// The program that starts a CouchDB, if it exists. Prints a line once if it does not.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/peers");
        let folder = std::env::var_os("TURNWISE_TEST_PEERS").map_or(beside, PathBuf::from);
        let program = folder.join("start-couchdb");
        if program.is_file() {
            return Some(program);
        }
        // Bypasses the test harness, which hides the output of tests that pass.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the tests beside a real CouchDB; there is no {} (TURNWISE_TEST_PEERS names its folder)",
            program.display()
        );
        None
    };
    PROGRAM.get_or_init(find).as_deref()
}
