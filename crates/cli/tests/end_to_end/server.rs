//! A `turnwise serve` for one test.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use turnwise_testkit::canary;

/// Far more than anything here takes on two busy cores: only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// The time between two polls of a server that has no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// With the logs of other crates, because the tests search their headers and addresses for secrets, too.
const LOG_LEVEL: &str = "debug,turnwise=trace";

/// The folder of a server's data, configuration and log, which outlives the server's process.
pub struct Home {
    dir: TempDir,
    store: String,
    /// Whether the server encrypts secrets, with the keys in `keys`.
    seals: bool,
    /// What the servers log.
    pub log_level: &'static str,
}

impl Home {
    /// With the settings of `[replicator]` that make tests fast, followed by these lines.
    pub fn new(config: &str) -> Self {
        let mut home = Home::on("", config);
        home.store = format!("embedded:{}", home.data_dir().display());
        home
    }

    /// Like [`Home::new`], on a shared store.
    pub fn on(store: &str, config: &str) -> Self {
        let home = Home {
            dir: TempDir::new().unwrap(),
            store: store.to_owned(),
            seals: false,
            log_level: LOG_LEVEL,
        };
        home.configure(config);
        home
    }

    /// Writes the configuration, which a server reads when it starts or gets SIGHUP.
    pub fn configure(&self, config: &str) {
        let quick = "[replicator]\nretries_per_request = 1\nconnection_timeout = 2000\ncheckpoint_interval = 250\n\
                     backoff_base_ms = 200\nbackoff_max_exponent = 2\n";
        std::fs::write(self.path("turnwise.ini"), format!("{quick}{config}\n")).unwrap();
    }

    /// Lets the servers of this home encrypt secrets with these keys.
    pub fn seal(&mut self, keys: &str) -> PathBuf {
        self.seals = true;
        write_private(&self.path("keys"), keys);
        self.path("keys")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// With the store in another test's folder.
    pub fn in_folder(data_dir: &Path) -> Self {
        let mut home = Home::on("", "");
        home.store = format!("embedded:{}", data_dir.display());
        home
    }

    /// The log of all servers of this home.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log has this text this many times.
    pub async fn until_logged(&self, text: &str, times: usize) {
        let logged = async {
            while self.log().matches(text).count() < times {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let logged = tokio::time::timeout(PATIENCE, logged).await;
        logged.unwrap_or_else(|_| panic!("{text} is not logged: {}", self.log()));
    }

    /// The folder of the server's data.
    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// Starts the built binary, and returns when it listens.
    pub async fn serve(&self) -> Server {
        self.serve_on("127.0.0.1:0").await
    }

    /// The same, on an address that clients know, for example that of an earlier server of this home.
    pub async fn serve_on(&self, listen: &str) -> Server {
        let server = self.try_serve_on(listen).await;
        server.unwrap_or_else(|| panic!("turnwise ended before it listened: {}", self.log()))
    }

    /// Like [`Home::serve`], without the option that serves everyone everywhere.
    pub async fn serve_closed(&self) -> Server {
        let server = self.start(turnwise(), "127.0.0.1:0", true, false).await;
        server.unwrap_or_else(|| panic!("turnwise ended before it listened: {}", self.log()))
    }

    /// Its configuration file.
    pub fn config(&self) -> PathBuf {
        self.path("turnwise.ini")
    }

    /// A server without a configuration file.
    pub async fn serve_without_file(&self) -> Server {
        let server = self.start(turnwise(), "127.0.0.1:0", false, true).await;
        server.unwrap_or_else(|| panic!("turnwise ended: {}", self.log()))
    }

    /// Starts the built binary with this limit on its number of open files.
    pub async fn serve_with_limit(&self, files: u32) -> Server {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={files}")).arg(env!("CARGO_BIN_EXE_turnwise"));
        self.start(command, "127.0.0.1:0", true, true).await.unwrap()
    }

    /// Starts the built binary as this user; `None` if this process may not, or that user cannot execute it.
    pub async fn serve_as(&self, user: u32) -> Option<Server> {
        let binary = env!("CARGO_BIN_EXE_turnwise");
        let (id, no_groups) = (user.to_string(), "--clear-groups");
        let prefix = ["setpriv", "--reuid", &id, "--regid", &id, no_groups];
        let mut may = Command::new(prefix[0]);
        if !may.args(&prefix[1..]).args(["test", "-x", binary]).status().await.unwrap().success() {
            return None;
        }
        std::os::unix::fs::chown(self.dir.path(), Some(user), Some(user)).unwrap();
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(binary).current_dir("/");
        self.start(command, "127.0.0.1:0", true, true).await
    }

    /// The same; `None` if the server exits instead.
    pub async fn try_serve_on(&self, listen: &str) -> Option<Server> {
        self.start(turnwise(), listen, true, true).await
    }

    async fn start(
        &self,
        mut command: Command,
        listen: &str,
        with_file: bool,
        serves_everyone: bool,
    ) -> Option<Server> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = command
            .args(["--log", self.log_level, "serve", "--listen", listen, "--store"])
            .arg(&self.store)
            .args(
                with_file
                    .then(|| ["--config".into(), self.path("turnwise.ini").into_os_string()])
                    .into_iter()
                    .flatten(),
            )
            .args(serves_everyone.then_some("--insecure-no-auth"))
            .envs(self.seals.then(|| ("TURNWISE_SEAL_KEYS", self.path("keys"))))
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = tokio::time::timeout(PATIENCE, async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, url)) = line.split_once("listens on ") {
                    return Some(url.trim_end_matches('/').to_owned());
                }
            }
            None
        });
        let url = url.await.expect("turnwise does not listen")?;
        Some(Server { child: Mutex::new(child), url, client: turnwise_testkit::client() })
    }
}

impl Drop for Home {
    /// Fails the test if the log of any server of this home contains a secret.
    fn drop(&mut self) {
        canary::assert_none("turnwise's log", &self.log());
    }
}

/// Writes a file that only its owner may use.
pub fn write_private(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
}

/// The output of a command, after a check that it contains no secret.
#[track_caller]
pub fn clean(output: std::process::Output) -> std::process::Output {
    for printed in [&output.stdout, &output.stderr] {
        canary::assert_none("a command", &String::from_utf8_lossy(printed));
    }
    output
}

/// The built binary.
pub fn turnwise() -> Command {
    Command::new(Path::new(env!("CARGO_BIN_EXE_turnwise")))
}

/// A running server.
pub struct Server {
    child: Mutex<Child>,
    url: String,
    client: Client,
}

impl Server {
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The host and port at which it listens.
    pub fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }

    /// As `kill -9` does.
    pub async fn kill(self) {
        self.kill_now().await;
    }

    /// The same, while other tasks still use the server.
    pub async fn kill_now(&self) {
        self.child.lock().await.kill().await.unwrap();
    }

    /// Sends the process a signal by its option name: `-STOP`.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.lock().await.id().unwrap().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().await.unwrap().success());
    }

    /// The process's id.
    pub async fn pid(&self) -> u32 {
        self.child.lock().await.id().unwrap()
    }

    /// Changes a limit of the process, with an option of `prlimit`: `--nofile=64`.
    pub async fn limit(&self, limit: &str) {
        let pid = self.child.lock().await.id().unwrap().to_string();
        assert!(Command::new("prlimit").args(["--pid", &pid, limit]).status().await.unwrap().success());
    }

    /// The number of its open file descriptors, including connections.
    pub async fn open_files(&self) -> usize {
        let pid = self.child.lock().await.id().unwrap();
        std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    }

    /// Sends SIGTERM and returns the exit status.
    pub async fn terminate(self) -> std::process::ExitStatus {
        self.signal("-TERM").await;
        let mut child = self.child.into_inner();
        child.wait().await.unwrap()
    }

    /// The status and body of the answer to a request.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).timeout(PATIENCE);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        // Only the worker that accepts a job may receive its options.
        if !path.ends_with("/accept") {
            canary::assert_none(path, &text);
        }
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path} is no JSON: {text}")))
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.request(Method::GET, path, None).await;
        assert!(status.is_success(), "GET {path}: {status} {body}");
        body
    }

    pub async fn put(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.request(Method::PUT, path, Some(body)).await;
        assert!(status.is_success(), "PUT {path}: {status} {body}");
        body
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.request(Method::POST, path, Some(body)).await;
        assert!(status.is_success(), "POST {path}: {status} {body}");
        body
    }

    /// Polls `path` until its answer satisfies the condition.
    pub async fn until(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let wait = async {
            loop {
                let (status, body) = self.request(Method::GET, path, None).await;
                if status.is_success() && condition(&body) {
                    return body;
                }
                last = body;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(body) => body,
            Err(_) => panic!("{path} never got there; its last answer: {last:#}"),
        }
    }

    /// Waits until the replication of a document in `_replicator` is in this state.
    pub async fn until_state(&self, doc_id: &str, state: &str) -> Value {
        self.until(&format!("/_scheduler/docs/_replicator/{doc_id}"), |doc| doc["state"] == state).await
    }
}
