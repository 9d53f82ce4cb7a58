//! The programs that are measured. Each adds and runs jobs, and may have a server behind it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use turnwise_lab_bench::server::{self, Server};
use turnwise_lab_bench::{missing_package, peers_folder};
use turnwise_testkit::{CountingCollector, process};

use crate::options::Options;
use turnwise_lab_bench::http_client::{CERTIFICATE, TOKEN};

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// turnwise as a library, in the submitters' process.
    Turnwise,
    /// turnwise as a server, with clients and workers over `/v1`.
    Http,
    /// The same with TLS, and with a token in each request.
    Https,
    /// The Python client and worker of turnwise.
    Python,
    /// The TypeScript client and worker of turnwise.
    TypeScript,
    BullMq,
    Celery,
    Graphile,
    Apalis,
}

/// What the program has to do.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub jobs: usize,
    pub submitters: usize,
    pub batch: usize,
    /// Measure the latency at this many jobs/s instead of the throughput.
    pub rate: Option<f64>,
}

/// One phase of a run.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub jobs_per_s: f64,
    /// The CPU time of the program.
    pub cpu_us_per_job: f64,
    /// The CPU time of its server.
    pub server_cpu_us_per_job: f64,
}

impl Phase {
    /// The CPU time of both.
    pub fn all_cpu_us_per_job(self) -> f64 {
        self.cpu_us_per_job + self.server_cpu_us_per_job
    }
}

/// The time from a job's acknowledgement to the start of its handler.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub add: Option<Phase>,
    pub process: Option<Phase>,
    pub both: Option<Phase>,
    pub latency: Option<Latency>,
    /// The program's own notes.
    pub notes: Vec<String>,
}

impl Contender {
    pub const ALL: [Self; 9] = [
        Self::Turnwise,
        Self::Http,
        Self::Https,
        Self::Python,
        Self::TypeScript,
        Self::BullMq,
        Self::Celery,
        Self::Graphile,
        Self::Apalis,
    ];

    pub fn key(self) -> &'static str {
        match self {
            Self::Turnwise => "turnwise",
            Self::Http => "http",
            Self::Https => "https",
            Self::Python => "python",
            Self::TypeScript => "typescript",
            Self::BullMq => "bullmq",
            Self::Celery => "celery",
            Self::Graphile => "graphile",
            Self::Apalis => "apalis",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Turnwise => "turnwise in process",
            Self::Http => "turnwise over HTTP",
            Self::Https => "turnwise over HTTPS, with tokens",
            Self::Python => "turnwise, Python",
            Self::TypeScript => "turnwise, TypeScript",
            Self::BullMq => "BullMQ",
            Self::Celery => "Celery",
            Self::Graphile => "graphile-worker",
            Self::Apalis => "apalis",
        }
    }

    /// What its acknowledgement means.
    pub fn durability(self) -> &'static str {
        match self {
            Self::Turnwise => {
                "embedded store: fdatasync of the log before each acknowledgement, for all that wait"
            }
            Self::Https => "the same as over HTTP; TLS 1.3 on each connection, a token in each request",
            Self::Http => {
                "the same in `turnwise serve`; a request for jobs carries the ends of the last ones, an answer has 100 jobs at most"
            }
            Self::Python => {
                "the same with the Python client; its worker is a process with 64 slots, its tasks are coroutines"
            }
            Self::TypeScript => {
                "the same with the TypeScript client; its worker has 64 slots, in the process that adds"
            }
            Self::BullMq => {
                "6.7 on Redis, appendfsync always: fsync of the log before answering, for all that wait"
            }
            Self::Celery => {
                "5.7 on the same, acks_late; its worker is a process with 64 threads, its add has no batches"
            }
            Self::Graphile => {
                "0.18 on PostgreSQL, fsync on, synchronous_commit on: fsync before each commit's answer"
            }
            Self::Apalis => {
                "1.0 on SQLite, journal_mode WAL, synchronous FULL: fsync of the log in each commit"
            }
        }
    }

    /// Whether it is turnwise.
    pub fn is_turnwise(self) -> bool {
        matches!(self, Self::Turnwise | Self::Http | Self::Https | Self::Python | Self::TypeScript)
    }

    /// Whether adding and running are one program, which can tell the latency between them.
    pub fn tells_latency(self) -> bool {
        !matches!(self, Self::Python | Self::Celery)
    }

    /// Why it cannot be measured here, if it cannot.
    pub fn missing(self, options: &Options) -> Option<String> {
        match self {
            Self::Turnwise => None,
            Self::Http | Self::Https | Self::Python | Self::TypeScript if !options.turnwise.is_file() => {
                Some("target/release/turnwise is not built".into())
            }
            Self::Http | Self::Https => None,
            Self::TypeScript => {
                let built = peers_folder().join("../../clients/typescript/dist/index.js").is_file();
                (!built).then(|| "clients/typescript is not built".into())
            }
            Self::BullMq | Self::Celery if !server::is_installed("redis-server") => {
                Some("redis-server is not installed".into())
            }
            Self::BullMq => missing_package("bullmq"),
            Self::Python | Self::Celery if !options.python.is_file() => {
                Some("its packages are not installed".into())
            }
            Self::Python | Self::Celery => None,
            Self::Graphile if server::postgres_bin().is_none() => Some("PostgreSQL is not installed".into()),
            Self::Graphile => missing_package("graphile-worker"),
            Self::Apalis if !options.apalis.is_file() => Some("its program is not built".into()),
            Self::Apalis => None,
        }
    }

    /// Runs the program in the empty folder `dir`.
    pub fn run(self, options: &Options, dir: &Path, task: Task) -> Result<Run, String> {
        let mut identity = None;
        let traces = options.traces.map(Traces::collect).transpose()?;
        let settings = traces.as_ref().map_or_else(String::new, Traces::settings);
        let server = match self {
            Self::BullMq | Self::Celery => Some(Server::redis(dir)?),
            Self::Graphile => Some(Server::postgres(dir)?),
            Self::Http | Self::Python | Self::TypeScript => {
                Some(Server::turnwise(&options.turnwise, dir, &settings)?)
            }
            Self::Https => {
                let (server, token, certificate) =
                    Server::turnwise_with_tls(&options.turnwise, dir, &settings)?;
                identity = Some((token, certificate));
                Some(server)
            }
            Self::Turnwise | Self::Apalis => None,
        };
        let this = || std::env::current_exe().map(Command::new).map_err(|error| error.to_string());
        let script = |language: &Path, program: &str| {
            let mut command = Command::new(language);
            command.arg(peers_folder().join(program));
            command
        };
        let node = |program: &str| script(Path::new("node"), program);
        let mut command = match self {
            Self::Turnwise | Self::Http | Self::Https => this()?,
            Self::Python => script(&options.python, "turnwise_python.py"),
            Self::TypeScript => node("turnwise_typescript.mjs"),
            Self::BullMq => node("bullmq.mjs"),
            Self::Celery => script(&options.python, "celery_redis.py"),
            Self::Graphile => node("graphile.mjs"),
            Self::Apalis => Command::new(&options.apalis),
        };
        match self {
            Self::Turnwise => drop(command.arg("in-process")),
            Self::Http => drop(command.arg("over-http")),
            Self::Https => {
                let (token, certificate) = identity.ok_or("there is no token")?;
                command.arg("over-http").env(TOKEN, token).env(CERTIFICATE, certificate);
            }
            _ => {}
        }
        match &server {
            Some(server) => command.arg("--port").arg(server.port.to_string()),
            None => command.arg("--dir").arg(dir),
        };
        command.arg("--jobs").arg(task.jobs.to_string());
        command.arg("--submitters").arg(task.submitters.to_string());
        command.arg("--batch").arg(task.batch.to_string());
        if let Some(rate) = task.rate {
            command.arg("--rate").arg(rate.to_string());
        }
        let mut run = listen(command, server.as_ref())?;
        if let Some(traces) = traces.filter(|_| matches!(self, Self::Http | Self::Https)) {
            run.notes.push(format!("traces: {} spans were received", traces.collector.received()));
        }
        Ok(run)
    }
}

/// A collector in this process, whose CPU time does not count.
struct Traces {
    collector: CountingCollector,
    ratio: f64,
    _runtime: tokio::runtime::Runtime,
}

impl Traces {
    fn collect(ratio: f64) -> Result<Traces, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        Ok(Traces { collector: runtime.block_on(CountingCollector::start()), ratio, _runtime: runtime })
    }

    fn settings(&self) -> String {
        format!("[otel]\nendpoint = {}\nsample_ratio = {}\n", self.collector.url(), self.ratio)
    }
}

/// Runs a program and reads its output line by line. `lab/peers/common.mjs` describes the lines.
fn listen(mut command: Command, server: Option<&Server>) -> Result<Run, String> {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    let errors = child.stderr.take().expect("standard error is piped");
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = { errors }.read_to_string(&mut text);
        text
    });
    let id = child.id();
    let cpu_seconds = || {
        let server = server.map_or(0.0, |server| process::family_cpu_seconds(server.process()));
        [process::family_cpu_seconds(id), server]
    };
    let mut run = Run::default();
    let mut before = [0.0; 2];
    let output = child.stdout.take().expect("standard output is piped");
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| error.to_string())?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |n: usize| words.get(n).and_then(|word| word.parse::<f64>().ok()).unwrap_or(f64::NAN);
        match words.as_slice() {
            ["begin", _] => before = cpu_seconds(),
            ["end", name, _, _] => {
                let (jobs, seconds) = (number(2), number(3));
                let after = cpu_seconds();
                let [cpu_us_per_job, server_cpu_us_per_job] =
                    [0, 1].map(|of| (after[of] - before[of]) / jobs * 1e6);
                let phase = Some(Phase { jobs_per_s: jobs / seconds, cpu_us_per_job, server_cpu_us_per_job });
                match *name {
                    "add" => run.add = phase,
                    "process" => run.process = phase,
                    "both" => run.both = phase,
                    _ => {}
                }
            }
            ["latency", ..] => run.latency = Some(Latency { p50_us: number(1), p99_us: number(2) }),
            ["note", note @ ..] => run.notes.push(note.join(" ")),
            _ => return Err(format!("{command:?} said {line:?}")),
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let errors = errors.join().unwrap_or_default();
    if !status.success() {
        return Err(format!("{command:?} failed: {status}\n{errors}"));
    }
    Ok(run)
}
