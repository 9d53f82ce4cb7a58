//! The programs that run a workload.

use std::path::Path;
use std::process::{Command, Stdio};

use turnwise_lab_bench::server::{self, Server};
use turnwise_lab_bench::{missing_package, peers_folder};

use crate::model;
use crate::options::Options;
use crate::record::{self, Job};
use crate::workload::Workload;

/// The most jobs that graphile-worker is given in advance: it adds 2,000 jobs/s.
const GRAPHILE_PRELOAD: usize = 50_000;

/// What runs a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// turnwise as a server, with its client library.
    Turnwise,
    /// A model of schedulers that take turns by dispatch.
    Dispatch,
    /// BullMQ with one queue for all tenants.
    BullMq,
    /// BullMQ with a queue for each tenant; the program takes a job from each in turns.
    Queues,
    /// graphile-worker, which has one queue.
    Graphile,
}

impl Contender {
    pub const ALL: [Self; 5] = [Self::Turnwise, Self::Dispatch, Self::BullMq, Self::Queues, Self::Graphile];

    pub fn key(self) -> &'static str {
        match self {
            Self::Turnwise => "turnwise",
            Self::Dispatch => "dispatch",
            Self::BullMq => "bullmq",
            Self::Queues => "queues",
            Self::Graphile => "graphile",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Turnwise => "turnwise",
            Self::Dispatch => "turns by dispatch (model)",
            Self::BullMq => "BullMQ, one queue",
            Self::Queues => "BullMQ, a queue per tenant",
            Self::Graphile => "graphile-worker",
        }
    }

    /// Why it cannot be measured here, if it cannot.
    pub fn missing(self, options: &Options) -> Option<String> {
        match self {
            Self::Turnwise if !options.turnwise.is_file() => {
                Some("target/release/turnwise is not built".into())
            }
            Self::Turnwise | Self::Dispatch => None,
            Self::BullMq | Self::Queues if !server::is_installed("redis-server") => {
                Some("redis-server is not installed".into())
            }
            Self::BullMq | Self::Queues => missing_package("bullmq"),
            Self::Graphile if server::postgres_bin().is_none() => Some("PostgreSQL is not installed".into()),
            Self::Graphile => missing_package("graphile-worker"),
        }
    }

    /// Why it is not given this workload.
    pub fn refuses(self, workload: &Workload) -> Option<String> {
        let preload: usize = workload.streams.iter().map(|stream| stream.preload).sum();
        (self == Self::Graphile && preload > GRAPHILE_PRELOAD)
            .then(|| format!("it would take minutes to add {preload} jobs"))
    }

    /// Runs a workload in the empty folder `dir`.
    pub fn run(self, options: &Options, dir: &Path, workload: &Workload) -> Result<Vec<Job>, String> {
        let error = |error: std::io::Error| format!("{}: {error}", dir.display());
        let dir = &std::path::absolute(dir).map_err(error)?;
        let server = match self {
            Self::Turnwise => Server::turnwise(&options.turnwise, dir, "")?,
            Self::Dispatch => return Ok(model::run(workload)),
            Self::BullMq | Self::Queues => Server::redis(dir)?,
            Self::Graphile => Server::postgres(dir)?,
        };
        let (task, out) = (dir.join("workload.json"), dir.join("jobs.txt"));
        let json = serde_json::to_vec(workload).expect("a workload is JSON");
        std::fs::write(&task, json).map_err(error)?;
        let mut command = match self {
            Self::Turnwise => {
                let mut this = Command::new(std::env::current_exe().map_err(error)?);
                this.arg("turnwise");
                this
            }
            _ => Command::new("node"),
        };
        match self {
            Self::Turnwise | Self::Dispatch => {}
            Self::BullMq => drop(command.arg(peers_folder().join("fairness_bullmq.mjs"))),
            Self::Queues => {
                command.arg(peers_folder().join("fairness_bullmq.mjs")).args(["--queues", "tenant"]);
            }
            Self::Graphile => drop(command.arg(peers_folder().join("fairness_graphile.mjs"))),
        }
        command.arg("--port").arg(server.port.to_string());
        command.arg("--workload").arg(&task).arg("--out").arg(&out);
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{command:?} cannot be started: {error}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{command:?} failed: {}\n{errors}", output.status));
        }
        record::read(&out)
    }
}
