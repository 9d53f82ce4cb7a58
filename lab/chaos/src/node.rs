//! A `turnwise serve` process that faults affect, and the commands on its store.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use turnwise_testkit::process::is_alive;

/// The library of Debian's package `faketime`, which changes a process's clock.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// The longest time until a node has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Short intervals, so that the test reaches in minutes what otherwise takes hours.
const CONFIG: &str = "\
[replicator]
startup_jitter = 100
checkpoint_interval = 2000
backoff_base_ms = 200
backoff_max_exponent = 3
[jobs]
backoff_base_ms = 200
backoff_max_exponent = 3
retention = 2592000
[queue]
tick = 1
[workers]
health_interval = 1
health_timeout = 4
[command]
enabled = true
allow_root = true
max_jobs = 4
[egress]
allow = 127.0.0.0/8
[events]
keep = 2592000
max = 4000000
";

/// The `health_timeout` of `CONFIG`.
pub(super) const HEALTH_TIMEOUT: Duration = Duration::from_secs(4);

/// How to start turnwise's programs, and where they write.
#[derive(Clone)]
pub(super) struct Binary {
    pub path: PathBuf,
    pub folder: PathBuf,
    pub log: String,
    /// Whether a process's clock can be changed.
    pub has_faketime: bool,
}

impl Binary {
    /// `limits` is a further section of the configuration.
    pub fn new(path: &Path, folder: &Path, log: &str, limits: &str) -> Self {
        let config = format!("{CONFIG}{limits}");
        std::fs::write(folder.join("turnwise.ini"), config).expect("the folder can be written");
        let path = std::path::absolute(path).expect("a path");
        let has_faketime = Path::new(FAKETIME).exists();
        Binary { path, folder: folder.to_owned(), log: log.to_owned(), has_faketime }
    }

    /// A command with its own log.
    pub fn command(&self, log: &str) -> Command {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.folder.join(log));
        let log = log.expect("the log can be written");
        let mut command = Command::new(&self.path);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the log can be written")).stderr(log);
        command.env("RUST_BACKTRACE", "1").kill_on_drop(true);
        command
    }

    /// Runs `turnwise store …` to its end. `Err` is the end of its output.
    pub async fn store(&self, words: &[&str]) -> Result<(), String> {
        let output = Command::new(&self.path).arg("store").args(words).kill_on_drop(true).output().await;
        let output = output.map_err(|error| format!("turnwise cannot be started: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(2_000)..]).into_owned();
        Err(format!("turnwise store {}: {}: {said}", words.join(" "), output.status))
    }
}

/// One server. Its log is `node-N.log`, and its clock's offset is in `node-N.clock`.
pub(super) struct Node {
    number: usize,
    pub listen: String,
    binary: Binary,
    /// `None` while the node is down on purpose.
    child: Mutex<Option<Child>>,
}

impl Node {
    pub fn new(number: usize, listen: String, binary: Binary) -> Node {
        let node = Node { number, listen, binary, child: Mutex::new(None) };
        node.set_clock(0);
        node
    }

    /// Starts the process. It may take a while until it responds.
    pub async fn start(&self, store: &str) {
        let mut command = self.binary.command(&format!("node-{}.log", self.number));
        command.args([
            "--log",
            &self.binary.log,
            "serve",
            "--insecure-no-auth",
            "--listen",
            &self.listen,
            "--config",
        ]);
        command.arg(self.binary.folder.join("turnwise.ini")).env("TURNWISE_STORE", store);
        if self.binary.has_faketime {
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", self.clock_file());
            // Sleeps and timeouts are not affected. Only the time of day jumps.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_CACHE_DURATION", "1");
        }
        *self.child.lock().await = Some(command.spawn().expect("turnwise can be started"));
    }

    fn clock_file(&self) -> PathBuf {
        self.binary.folder.join(format!("node-{}.clock", self.number))
    }

    /// Sets the time of day that the process sees, as an offset from the real one in seconds.
    pub fn set_clock(&self, offset: i64) {
        // Renamed into place, so that the process never reads a part of it.
        let (new, file) = (self.clock_file().with_extension("new"), self.clock_file());
        let written =
            std::fs::write(&new, format!("{offset:+}\n")).and_then(|()| std::fs::rename(&new, file));
        written.expect("the folder can be written");
    }

    async fn process(&self) -> Option<u32> {
        self.child.lock().await.as_ref()?.id()
    }

    /// Whether the process has ended although it should run.
    pub async fn has_ended(&self) -> bool {
        let child = self.child.lock().await;
        child.as_ref().is_some_and(|child| child.id().is_none_or(|process| !is_alive(process)))
    }

    /// Kills the process like `kill -9`.
    pub async fn kill(&self) {
        if let Some(mut child) = self.child.lock().await.take() {
            // The process may have ended by itself.
            let _ = child.kill().await;
        }
    }

    /// Stops the process like an operator. `Err` describes an unclean end.
    pub async fn stop(&self) -> Result<(), String> {
        self.signal("-TERM").await;
        let Some(mut child) = self.child.lock().await.take() else { return Ok(()) };
        let begun = Instant::now();
        match tokio::time::timeout(STOP_TIMEOUT, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(ended) => Err(format!("a node did not stop cleanly: {ended:?}")),
            Err(_) => Err(format!("a node did not stop within {:?}", begun.elapsed())),
        }
    }

    /// Sends a signal to the process, unless it is down.
    pub async fn signal(&self, signal: &str) {
        if let Some(process) = self.process().await {
            run("kill", &[signal, &process.to_string()]).await;
        }
    }

    /// Limits the process to `spare` descriptors beyond those that it has open. Returns its earlier limit.
    pub async fn take_descriptors(&self, spare: usize) -> Option<String> {
        let folder = PathBuf::from(format!("/proc/{}", self.process().await?));
        let limits = std::fs::read_to_string(folder.join("limits")).ok()?;
        let before =
            limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?;
        let open = std::fs::read_dir(folder.join("fd")).map_or(0, Iterator::count);
        self.limit_descriptors(&(open + spare).to_string()).await;
        Some(before.to_owned())
    }

    /// Sets the process's limit of descriptors.
    pub async fn limit_descriptors(&self, most: &str) {
        if let Some(process) = self.process().await {
            run("prlimit", &["--pid", &process.to_string(), &format!("--nofile={most}:")]).await;
        }
    }
}

/// Runs a program of the system. Returns whether it succeeded.
pub(super) async fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output().await;
    output.is_ok_and(|output| output.status.success())
}
