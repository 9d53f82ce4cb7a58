//! What the tests of the pipeline share.
#![allow(dead_code, clippy::unwrap_used)]

pub mod stalled;

use serde_json::{Value, json};
use turnwise_replicator::{Client, Context, Defaults, Error, Replication, Report, replicate};
use turnwise_testkit::Database;

/// The name of this server in replication ids.
pub const SERVER_UUID: &str = "0123456789abcdef0123456789abcdef";

/// A request from `source` to `target` with further fields. Requests fail at the first fault, unless the fields say otherwise.
pub fn request(source: &str, target: &str, fields: Value) -> Replication {
    let mut body = json!({"source": source, "target": target, "retries_per_request": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap()
}

/// A context with connections of its own.
pub fn context() -> Context {
    Context::new(Client::new().unwrap(), SERVER_UUID)
}

/// Runs one replication to its end.
pub async fn run(source: &str, target: &str, fields: Value) -> Result<Report, Error> {
    replicate(&request(source, target, fields), &context()).await
}

/// Runs one replication between two databases that must succeed.
pub async fn copy(source: &Database, target: &Database) -> Report {
    run(source.url(), target.url(), json!({})).await.unwrap()
}
