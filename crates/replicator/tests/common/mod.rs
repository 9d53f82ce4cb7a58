//! The code that the tests of the pipeline share.
#![allow(dead_code, clippy::unwrap_used)]

pub mod attached;
pub mod stalled;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use turnwise_outbound::Client;
use turnwise_replicator::{Context, Defaults, Error, Replication, Report, Seq, Stats, replicate};
use turnwise_testkit::{Database, canary};

/// The uuid of this server in replication ids.
pub const SERVER_UUID: &str = "0123456789abcdef0123456789abcdef";

/// Far longer than any step here takes: only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request from `source` to `target` with further fields. Requests fail at the first fault, unless the fields set retries.
pub fn request(source: &str, target: &str, fields: Value) -> Replication {
    let mut body = json!({"source": source, "target": target, "retries_per_request": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap()
}

/// A context with its own connections.
pub fn context() -> Context {
    canary::watch_log();
    Context::new(Client::new().unwrap(), SERVER_UUID)
}

/// Runs one replication to its end.
pub async fn run(source: &str, target: &str, fields: Value) -> Result<Report, Error> {
    let replication = request(source, target, fields);
    canary::assert_none("a replication", &format!("{replication:?}"));
    let report = replicate(&replication, &context()).await;
    match &report {
        Ok(report) => canary::assert_none("a report", &format!("{report:?}")),
        Err(error) => canary::assert_none("an error", &format!("{error} {error:?}")),
    }
    canary::assert_log_clean();
    report
}

/// Runs one replication between two databases, which must succeed.
pub async fn copy(source: &Database, target: &Database) -> Report {
    run(source.url(), target.url(), json!({})).await.unwrap()
}

/// Starts a run in its own task.
pub fn spawn(replication: Replication, context: &Context) -> JoinHandle<Result<Report, Error>> {
    let context = context.clone();
    tokio::spawn(async move { replicate(&replication, &context).await })
}

/// Waits until the numbers of a run meet the condition.
pub async fn until(context: &Context, condition: impl Fn(&Stats) -> bool) -> Stats {
    let mut progress = context.progress.subscribe();
    let reached = tokio::time::timeout(PATIENCE, progress.wait_for(condition)).await;
    match reached.map(|stats| stats.unwrap().clone()) {
        Ok(stats) => stats,
        Err(_) => panic!("it never came so far: {:?}", *context.progress.subscribe().borrow()),
    }
}

/// Stops a run, and returns its report.
pub async fn stop(context: &Context, running: JoinHandle<Result<Report, Error>>) -> Report {
    context.stop.cancel();
    running.await.unwrap().unwrap()
}

/// The number of a sequence; 0 if there is none.
pub fn number(seq: &Option<Seq>) -> u64 {
    seq.as_ref().and_then(Seq::number).unwrap_or(0)
}
