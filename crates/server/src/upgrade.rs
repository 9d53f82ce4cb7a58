//! The first start of this release on a store of an earlier format.
//!
//! No row is converted at the start. This release reads rows of the earlier format, and writes a row in the current one when
//! it next changes. But processes of an earlier release cannot read such rows, so none of them may still run. The counts of jobs,
//! which an earlier format does not have, are written at this start: that reads every job once.

use std::collections::BTreeMap;
use std::time::Duration;

use turnwise_queue::keyspace::{FIRST_WITH_COUNTS, FORMAT_VERSION, OLDEST_FORMAT};
use turnwise_queue::{Error, Format, Health, Keyspace, NODE_TYPE, counts, workers};
use turnwise_store::Store;

use crate::start::{Opened, Refused, StartError};

/// The time between two reads of the health counters.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the counters are watched beyond the longest timeout.
const SLACK_US: i64 = 1_000_000;
/// The most workers that are watched.
const MAX_WORKERS: usize = 10_000;

/// What one look at a store of an earlier format sees.
struct Earlier {
    format: u32,
    /// The health counters of nodes and of workers within processes, by type and id.
    counters: BTreeMap<(String, String), Health>,
}

/// Prepares a store of an earlier format for this release. Waits until nothing of an earlier release can run on it.
pub(crate) async fn prepare(opened: &Opened, keys: &Keyspace) -> Result<(), StartError> {
    let Opened { store, exclusive, .. } = opened;
    let Some(first) = opened.asked(look(store, keys)).await? else { return Ok(()) };
    if !exclusive {
        check_stopped(opened, keys, &first).await?;
    }
    let format = first.format;
    if format < FIRST_WITH_COUNTS {
        tracing::info!("the store's data has format {format}: counting its jobs");
        let counted = counts::rebuild(store, keys, Some(format)).await;
        let jobs = opened.or_start_error(counted)?;
        tracing::info!("the store has {jobs} jobs");
        // A process of an earlier release that has started meanwhile may have moved jobs after they were counted.
        check_still(opened, keys, &first).await?;
    }
    Ok(())
}

/// Makes sure that no process of an earlier release runs on a store of an earlier format. Those that have stopped have left
/// no rows. If some were killed, this waits until their health counters have not moved for longer than their timeouts.
async fn check_stopped(opened: &Opened, keys: &Keyspace, first: &Earlier) -> Result<(), StartError> {
    let Some(longest_us) = first.counters.values().map(|health| health.timeout_us).max() else {
        return Ok(());
    };
    let format = first.format;
    tracing::info!(
        "the store's data has format {format}: waiting until nothing of an earlier release can run on it any more"
    );
    let runtime = opened.store.runtime();
    let until_us = runtime.elapsed_us().saturating_add(longest_us).saturating_add(SLACK_US);
    while runtime.elapsed_us() < until_us {
        runtime.sleep(LOOK_INTERVAL).await;
        if !check_still(opened, keys, first).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Checks that no counter has moved, and no process has begun, since the first look. Returns whether the store still has the earlier
/// format: another node of this release may have raised it.
async fn check_still(opened: &Opened, keys: &Keyspace, first: &Earlier) -> Result<bool, StartError> {
    let store = &opened.store;
    let Some(now) = opened.asked(look(store, keys)).await? else { return Ok(false) };
    let moved = |(key, health): &(&(String, String), &Health)| first.counters.get(*key) != Some(*health);
    let Some(((job_type, id), _)) = now.counters.iter().find(moved) else { return Ok(true) };
    let node = opened.asked(node_of(store, keys, job_type, id)).await?;
    opened.or_start_error(Err(Refused::OlderNode { found: first.format, node }))
}

/// `None` if the format is the current one, or one that this release does not take over.
async fn look(store: &Store, keys: &Keyspace) -> Result<Option<Earlier>, Error> {
    store
        .transact(|tx| async move {
            let format = match tx.get(&keys.format()).await?.as_deref().map(Format::read) {
                Some(Format::Version(format @ OLDEST_FORMAT..FORMAT_VERSION)) => format,
                _ => return Ok(None),
            };
            let rows = workers::all_healths(&tx, keys, None, MAX_WORKERS).await?;
            // External workers reach the store only through a node.
            let own = rows.into_iter().filter(|(_, _, health)| !health.external);
            let counters = own.map(|(job_type, id, health)| ((job_type, id), health)).collect();
            Ok(Some(Earlier { format, counters }))
        })
        .await
}

/// The name of a node, or of the node that a worker is on.
async fn node_of(store: &Store, keys: &Keyspace, job_type: &str, id: &str) -> Result<String, Error> {
    let worker = store.transact(|tx| async move { workers::get(&tx, keys, job_type, id).await }).await?;
    let unknown = || match job_type {
        NODE_TYPE => id.to_owned(),
        _ => format!("of worker {id}"),
    };
    Ok(worker.map_or_else(unknown, |worker| worker.node))
}
