//! Connections: shared by jobs and kept for a while, through proxies, with TLS, and elsewhere than the URL states.
//!
//! The "job" of most of these tests is one request for the code of a filter function.

mod certificates;
mod pool;
mod proxied;
mod proxy;
mod server;
mod tls;

use serde_json::{Value, json};
use turnwise_outbound::{Client, Connections};
use turnwise_replicator::{Defaults, Error, Replication, filter_code};

/// A replication from `source` with further fields. Its request is made once, unless the fields set retries.
fn job(source: &str, fields: Value) -> Replication {
    let mut body = json!({"source": source, "target": "http://127.0.0.1:1/db", "filter": "d/f", "retries_per_request": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap()
}

/// Sends this request.
async fn run(client: &Client, source: &str, fields: Value) -> Result<(), Error> {
    let code = filter_code(&job(source, fields), client).await?;
    assert!(code.unwrap().starts_with("function"));
    Ok(())
}

fn client(connections: Connections) -> Client {
    Client::with(&connections).unwrap()
}
