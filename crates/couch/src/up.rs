//! Whether this node works, and which nodes exist.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use turnwise_queue::{Format, keyspace, nodes};
use turnwise_replicator::upstream::Condition;
use turnwise_store::Isolation;
use turnwise_web::access::Caller;
use turnwise_web::answer;
use turnwise_web::error::ApiError;
use turnwise_web::v1_error::with_headers;

use super::app::App;

/// A store that takes longer to respond counts as failing, so that monitors get a timely result.
const PATIENCE: Duration = Duration::from_secs(2);

/// CouchDB's response while the store works. Otherwise 503, with the reason for operators: it may name addresses.
pub async fn up(app: &App, caller: &Caller) -> Result<Response, ApiError> {
    let told = |reason: String| match caller.operates() {
        true => reason,
        false => "operators see the reason, and the server's log has it".to_owned(),
    };
    let Some(reason) = problem(app).await else {
        let mut body = json!({ "status": "ok", "seeds": {} });
        // The upstream's state is no reason to take this node out of service: the rest of it works.
        if let Some(upstream) = &app.upstream {
            body["upstream"] = match upstream.get() {
                Condition::Unknown => json!({ "status": "unknown" }),
                Condition::Answers => json!({ "status": "ok" }),
                Condition::Silent(reason) => json!({ "status": "unavailable", "reason": told(reason) }),
            };
        }
        return Ok(answer::ok(&body));
    };
    let body = json!({ "status": "store_unavailable", "reason": told(reason), "seeds": {} });
    let status = StatusCode::SERVICE_UNAVAILABLE;
    Ok(with_headers(answer::json(status, &body), status, None))
}

/// Why the store does not work; `None` if it does.
pub async fn problem(app: &App) -> Option<String> {
    let read = async {
        let tx = app.store.begin().await?;
        tx.get_with(&app.keys.format(), Isolation::Snapshot).await
    };
    let read = tokio::time::timeout(PATIENCE, read).await;
    // Checked after a successful read, too: the store may be full.
    if let turnwise_store::Condition::Failing { reason, .. } = app.store.condition() {
        return Some(reason);
    }
    match read {
        Ok(Ok(Some(format))) if Format::read(&format) == Format::Version(keyspace::FORMAT_VERSION) => None,
        Ok(Ok(_)) => {
            Some("the store does not hold the data that this node started with: restart the node".to_owned())
        }
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("the store does not answer within {} s", PATIENCE.as_secs())),
    }
}

/// CouchDB's two lists: the existing nodes, and the expected nodes. Here every existing node is expected, and no other.
pub async fn membership(app: &App) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    let nodes = nodes::list(&tx, &app.keys).await?;
    let mut names: Vec<&str> = nodes.iter().map(|node| &*node.node).collect();
    // This node is running, but its row is missing while other nodes consider it dead.
    names.push(&app.node);
    names.sort_unstable();
    names.dedup();
    Ok(answer::ok(&json!({ "all_nodes": names, "cluster_nodes": names })))
}
