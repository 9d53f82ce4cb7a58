//! The turnwise under test: a process that is killed and restarted on the same store and port.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::{Options, Side};
use turnwise_testkit::{canary, client, free_ports};

/// The longest time until it responds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time until it has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time of a response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two checks while it starts.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Short intervals, so that the test reaches in minutes what otherwise takes hours.
const CONFIG: &str = "\
[replicator]
retries_per_request = 3
checkpoint_interval = 2000
backoff_base_ms = 500
backoff_max_exponent = 3
startup_jitter = 500
";

/// A shorter test has no time to wait for long connection timeouts.
const SHORT_SECONDS: u64 = 120;

pub(super) struct Turnwise {
    binary: PathBuf,
    folder: PathBuf,
    listen: String,
    log: String,
    client: Client,
    /// `None` while it is killed.
    child: Mutex<Option<Child>>,
}

impl Turnwise {
    pub async fn start(options: &Options, folder: &Path) -> Turnwise {
        // All replications run all the time, because this test is not about fair share.
        let max_jobs = 2 * options.databases + 10;
        let silence_ms = if options.seconds < SHORT_SECONDS { 1_000 } else { 5_000 };
        let config = format!("{CONFIG}max_jobs = {max_jobs}\nconnection_timeout = {silence_ms}\n");
        std::fs::write(folder.join("turnwise.ini"), config).expect("the folder can be written");
        let turnwise = Turnwise {
            binary: std::path::absolute(&options.turnwise).expect("a path"),
            folder: folder.to_owned(),
            listen: format!("127.0.0.1:{}", free_ports(1)[0]),
            log: options.log.clone(),
            client: client(),
            child: Mutex::new(None),
        };
        turnwise.restart().await;
        turnwise
    }

    fn store(&self) -> String {
        format!("embedded:{}", self.folder.join("store").display())
    }

    /// The size of the current segment of the store's log. Its rows are in memory, too.
    pub fn store_log_bytes(&self) -> u64 {
        let segments = std::fs::read_dir(self.folder.join("store/store/log")).into_iter().flatten().flatten();
        let sizes =
            segments.filter_map(|segment| Some((segment.file_name(), segment.metadata().ok()?.len())));
        // The next segment is created before it is needed.
        sizes.filter(|(_, bytes)| *bytes > 0).max().map_or(0, |(_, bytes)| bytes)
    }

    /// The file for all that it prints and logs.
    pub fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn command(&self) -> Command {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_file());
        let log = log.expect("the log can be written");
        let mut command = Command::new(&self.binary);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the log can be written")).stderr(log);
        command.env("RUST_BACKTRACE", "1").kill_on_drop(true).args(["--log", &self.log]);
        command
    }

    /// Kills the process like `kill -9`.
    pub async fn kill(&self) {
        if let Some(mut child) = self.child.lock().await.take() {
            child.kill().await.expect("an own child can be killed");
        }
    }

    /// Starts the process, and returns when it responds.
    pub async fn restart(&self) {
        let mut command = self.command();
        command.args(["serve", "--listen", &self.listen, "--store", &self.store(), "--config"]);
        let child = command.arg(self.folder.join("turnwise.ini")).spawn().expect("turnwise can be started");
        *self.child.lock().await = Some(child);
        let up = async {
            while self
                .request(Method::GET, "/_up", None)
                .await
                .is_none_or(|answer| answer.0 != StatusCode::OK)
            {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let up = tokio::time::timeout(START_TIMEOUT, up).await;
        up.unwrap_or_else(|_| panic!("turnwise does not start: {}", self.log_file().display()));
    }

    /// The process id. `None` if it does not run, even if it ended by itself.
    pub async fn process_id(&self) -> Option<u32> {
        let id = self.child.lock().await.as_ref()?.id()?;
        turnwise_testkit::process::is_alive(id).then_some(id)
    }

    /// Whether the process runs, or was killed on purpose.
    pub async fn is_as_it_should(&self) -> bool {
        let killed = self.child.lock().await.is_none();
        killed || self.process_id().await.is_some()
    }

    /// Stops the process like an operator. `Err` describes an unclean end.
    pub async fn stop(&self) -> Result<(), String> {
        let Some(mut child) = self.child.lock().await.take() else {
            return Err("turnwise did not run".to_owned());
        };
        let process = child.id().ok_or("turnwise had ended")?.to_string();
        let signal = Command::new("kill").args(["-TERM", &process]).status().await;
        signal.map_err(|error| format!("turnwise cannot be signalled: {error}"))?;
        match tokio::time::timeout(STOP_TIMEOUT, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(ended) => Err(format!("turnwise did not stop cleanly: {ended:?}")),
            Err(_) => Err(format!("turnwise did not stop within {STOP_TIMEOUT:?}")),
        }
    }

    /// Runs `turnwise store check` on the store, which no other process may use.
    pub async fn check_store(&self) -> Result<(), String> {
        let check = self.command().args(["store", "check", &self.store()]).status().await;
        match check {
            Ok(status) if status.success() => Ok(()),
            other => {
                Err(format!("the store does not pass its check ({other:?}): {}", self.log_file().display()))
            }
        }
    }

    /// Sends a request. Returns the response, or `None` if there is none. No response may hold a secret.
    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Option<(StatusCode, Value)> {
        let url = format!("http://{}{path}", self.listen);
        let mut request = self.client.request(method, url).timeout(ANSWER_TIMEOUT);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        canary::assert_none(path, &text);
        Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    /// Writes two documents for each database, with credentials in every supported form.
    pub async fn replicate_both_ways(&self, sides: &[Side; 2]) {
        for (n, database) in sides[0].databases.iter().enumerate() {
            let name = database.name();
            for (from, to) in [(0, 1), (1, 0)] {
                let endpoint =
                    |side: usize| endpoint(&format!("{}/{name}", sides[side].proxy.url()), n % 2 == side);
                let doc = json!({ "source": endpoint(from), "target": endpoint(to), "continuous": true });
                let id = format!("{n}-{}-to-{}", sides[from].name, sides[to].name);
                let answer = self.request(Method::PUT, &format!("/_replicator/{id}"), Some(&doc)).await;
                let written = answer.as_ref().is_some_and(|answer| answer.0 == StatusCode::CREATED);
                assert!(written, "{id} was not accepted: {answer:?}");
            }
        }
    }

    /// All replications, as `_scheduler/docs` lists them.
    pub async fn replications(&self) -> Vec<Value> {
        match self.request(Method::GET, "/_scheduler/docs?limit=10000", None).await {
            Some((StatusCode::OK, mut answer)) => match answer["docs"].take() {
                Value::Array(docs) => docs,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// The number of replications in each state, as text.
    pub async fn states(&self) -> String {
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for doc in self.replications().await {
            *states.entry(doc["state"].as_str().unwrap_or("?").to_owned()).or_default() += 1;
        }
        let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        if states.is_empty() { "unknown".to_owned() } else { states.join(", ") }
    }
}

/// A database with its credentials in the URL, or as `auth`.
fn endpoint(url: &str, in_url: bool) -> Value {
    let parsed = reqwest::Url::parse(url).expect("a proxy's URL can be parsed");
    let Some(password) = parsed.password().filter(|_| !in_url) else { return json!(url) };
    let mut bare = parsed.clone();
    bare.set_username("")
        .and_then(|()| bare.set_password(None))
        .expect("an HTTP URL can do without credentials");
    json!({ "url": bare.as_str(), "auth": { "basic": { "username": parsed.username(), "password": password } } })
}
