//! The first start of this release on a store of an earlier format.
//!
//! No row is converted at the start. This release reads rows of the earlier format, and writes a row in the current one when
//! it next changes. But nodes of an earlier release cannot read such rows, so none of them may still run.

use std::collections::BTreeMap;
use std::time::Duration;

use turnwise_queue::keyspace::FORMAT_VERSION;
use turnwise_queue::{Format, Health, Keyspace, NODE_TYPE, nodes, workers};
use turnwise_store::{Error as StoreError, Store};

use crate::start::{Opened, Refused, StartError};

/// The time between two reads of the nodes' health counters.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the counters are watched beyond the longest timeout.
const SLACK_US: i64 = 1_000_000;

/// Makes sure that no node runs on a store of an earlier format. Nodes that have stopped have left no row. If nodes were
/// killed, this waits until their health counters have not moved for longer than their timeout.
pub(crate) async fn check_stopped(opened: &Opened, keys: &Keyspace) -> Result<(), StartError> {
    let Opened { store, exclusive, .. } = opened;
    if *exclusive {
        return Ok(());
    }
    let format = store.transact(|tx| async move { tx.get(&keys.format()).await });
    let Some(Format::Version(found)) = opened.asked(format).await?.as_deref().map(Format::read) else {
        return Ok(());
    };
    if found == FORMAT_VERSION {
        return Ok(());
    }
    let seen = opened.asked(counters(store, keys)).await?;
    let Some(longest_us) = seen.values().map(|health| health.timeout_us).max() else { return Ok(()) };
    tracing::info!(
        "the store's data has format {found}: waiting until it is certain that no node of an earlier release runs"
    );
    let runtime = store.runtime();
    let until_us = runtime.elapsed_us() + longest_us + SLACK_US;
    while runtime.elapsed_us() < until_us {
        runtime.sleep(LOOK_INTERVAL).await;
        let now = opened.asked(counters(store, keys)).await?;
        if let Some(id) = now.iter().find(|(id, health)| seen.get(*id) != Some(health)).map(|(id, _)| id) {
            let node = opened.asked(name(store, keys, id)).await?.unwrap_or_else(|| id.clone());
            return opened.or_start_error(Err(Refused::OlderNode { found, node }));
        }
    }
    Ok(())
}

async fn counters(store: &Store, keys: &Keyspace) -> Result<BTreeMap<String, Health>, turnwise_queue::Error> {
    let tx = store.begin().await?;
    let rows = workers::healths(&tx, keys, NODE_TYPE, None, nodes::MAX_NODES).await?;
    Ok(rows.into_iter().collect())
}

/// The name of the node with this id.
async fn name(store: &Store, keys: &Keyspace, id: &str) -> Result<Option<String>, StoreError> {
    let read = async {
        let tx = store.begin().await?;
        workers::get(&tx, keys, NODE_TYPE, id).await
    };
    Ok(read.await.ok().flatten().map(|worker| worker.node))
}
