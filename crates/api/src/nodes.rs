//! `GET /v1/nodes` and `GET /v1/store`: the servers that share the store, and the store's state.

use turnwise_protocol::{Failing, Node, Nodes, Store, StoreCounters, StoreLimits};
use turnwise_queue::{Mode, modes as rows, nodes};
use turnwise_store::{Condition, Counters, Limits};

use super::app::App;
use super::error::Result;
use super::extract::{Call, Shown};
use super::modes;
use super::responses::Common;

/// List nodes
///
/// The servers that share this server's store, including this one.
#[utoipa::path(
    get, path = "/nodes", tag = "nodes", operation_id = "list_nodes",
    responses((status = 200, body = Nodes, description = "The nodes, at most 1,000."), Common),
)]
pub(super) async fn list_nodes(Call { app, .. }: Call) -> Result<Shown<Nodes>> {
    nodes(&app).await.map(Shown)
}

/// The nodes.
pub async fn nodes(app: &App) -> Result<Nodes> {
    let tx = app.store.begin().await?;
    let modes = rows::of_nodes(&tx, &app.keys).await?;
    let mode = |name: &str| match modes.binary_search_by(|(node, _)| node.as_str().cmp(name)) {
        Ok(found) => modes[found].1,
        Err(_) => Mode::Active,
    };
    let nodes = nodes::list(&tx, &app.keys).await?.into_iter().filter_map(|node| {
        let options = node.node_options?;
        Some(Node {
            mode: modes::shown(mode(&node.node)),
            id: node.id,
            name: node.node,
            url: options.url,
            version: options.version,
            started_us: node.started_us,
        })
    });
    Ok(Nodes { node: app.node.to_string(), nodes: nodes.collect() })
}

/// Show the store
///
/// The store as the responding node sees it. The counters cover only this node's own operations. The server responds to
/// this request even while the store is failing.
#[utoipa::path(
    get, path = "/store", tag = "nodes", operation_id = "get_store",
    responses((status = 200, body = Store, description = "The store."), Common),
)]
pub(super) async fn get_store(Call { app, .. }: Call) -> Result<Shown<Store>> {
    let failing = match app.store.condition() {
        Condition::Working => None,
        Condition::Failing { since_us, reason } => Some(Failing { since_us, reason }),
    };
    Ok(Shown(Store {
        node: app.node.to_string(),
        engine: app.store_url.engine().to_owned(),
        url: app.store_url.to_string(),
        failing,
        limits: limits(app.store.limits()),
        counters: counters(app.store.counters()),
    }))
}

fn limits(limits: Limits) -> StoreLimits {
    let Limits {
        key_bytes,
        value_bytes,
        transaction_bytes,
        transaction_writes,
        transaction_conflicts,
        transaction_ms,
    } = limits;
    StoreLimits {
        key_bytes,
        value_bytes,
        transaction_bytes,
        transaction_writes,
        transaction_conflicts,
        transaction_ms,
    }
}

fn counters(counters: Counters) -> StoreCounters {
    StoreCounters {
        transactions: counters.transactions,
        commits: counters.commits,
        conflicts: counters.conflicts,
        too_old: counters.too_old,
        unknown_outcomes: counters.unknown_outcomes,
        unavailable: counters.unavailable,
        gets: counters.gets,
        ranges: counters.ranges,
        rows_read: counters.rows_read,
        rows_written: counters.rows_written,
        commit_us: counters.commit_us,
    }
}
