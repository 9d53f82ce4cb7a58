//! Whether a worker takes new jobs: an operator may quiet it, or drain it.
//!
//! A worker's mode is in its membership row. Every claim reads that row, so once a change has committed, no claim of an earlier
//! decision can commit: the worker starts nothing more. A running job does not notice the change.
//!
//! A node has a mode, too, in a row of its own that outlives the node: its workers get it when they register. So a node that restarts
//! for an upgrade stays quiet until an operator resumes it. External workers are no part of a node, because they may use any.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::Transaction;

use crate::encoding::{decode, encode};
use crate::nodes::MAX_NODES;
use crate::reads;
pub use crate::worker_row::Mode;
use crate::workers::{self, Worker};
use crate::{Keyspace, Result};

/// Changes a worker's mode. Returns its row, and whether the mode was another one; `None` if it is not registered. A worker inside a
/// server is signalled, so that it learns its new mode at once.
#[boxed]
pub async fn set(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    mode: Mode,
) -> Result<Option<(Worker, bool)>> {
    let Some(row) = workers::get(tx, keys, job_type, worker).await? else { return Ok(None) };
    if row.mode == mode {
        return Ok(Some((row, false)));
    }
    let row = Worker { mode, ..row };
    tx.set(keys.worker(job_type, worker), encode(&row))?;
    if !row.external {
        tx.set_versionstamp(keys.signal(job_type, worker))?;
    }
    Ok(Some((row, true)))
}

/// The mode of a node. A worker that registers reads it in the same transaction, so it cannot miss a change.
#[boxed]
pub async fn of_node(tx: &Transaction, keys: &Keyspace, node: &str) -> Result<Mode> {
    Ok(reads::value(tx, &keys.node_mode(node), "mode of a node").await?.unwrap_or_default())
}

/// Changes the mode that the workers of a node get when they register. [`follow_node`] changes those that are registered.
#[boxed]
pub async fn set_node(tx: &Transaction, keys: &Keyspace, node: &str, mode: Mode) -> Result<()> {
    // A worker that registers at the same time conflicts.
    of_node(tx, keys, node).await?;
    let row = keys.node_mode(node);
    match mode {
        Mode::Active => tx.clear(row)?,
        Mode::Quiet | Mode::Drain => tx.set(row, encode(&mode))?,
    }
    Ok(())
}

/// Gives the workers of a type that are inside a node the mode of that node. Returns their number. After several concurrent changes
/// of the node's mode, all of its workers have the latest one.
#[boxed]
pub async fn follow_node(tx: &Transaction, keys: &Keyspace, job_type: &str, node: &str) -> Result<usize> {
    let mode = of_node(tx, keys, node).await?;
    let all = workers::list(tx, keys, job_type).await?;
    let mut followed = 0;
    for worker in all.iter().filter(|worker| worker.node == node && !worker.external && worker.slots > 0) {
        followed += usize::from(set(tx, keys, job_type, &worker.id, mode).await?.is_some());
    }
    Ok(followed)
}

/// The nodes that are not active, by name, with their modes: at most [`MAX_NODES`]. Adds no read conflict.
#[boxed]
pub async fn of_nodes(tx: &Transaction, keys: &Keyspace) -> Result<Vec<(String, Mode)>> {
    let read =
        |key: &Bytes, value: &Bytes| Ok((keys.parse_node_mode(key)?, decode("mode of a node", value)?));
    reads::list(tx, keys.node_modes(), MAX_NODES, read).await
}
