//! Checks that no server or worker uses the source.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use turnwise_queue::check::{Row, WorkerRow};
use turnwise_queue::{Health, Keyspace};
use turnwise_store::Store;

use super::{Copy, Error};
use crate::scan::Scan;

/// The time between two reads of the health counters.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the counters are watched beyond the longest timeout.
const SLACK_US: i64 = 1_000_000;
/// The upper limit of the watched timeout.
const MAX_WATCH_US: i64 = 120_000_000;

/// Health counters and memberships: a worker or node that starts, works or leaves changes at least one of them.
pub(super) type Signs = BTreeMap<Bytes, Bytes>;

async fn signs(store: &Store, keys: &Keyspace) -> Result<Signs, Error> {
    let mut signs = Signs::new();
    for range in [keys.all_healths(), keys.all_memberships()] {
        let mut scan = Scan::new(store, range);
        while let Some((key, value)) = scan.next().await? {
            signs.insert(key, value);
        }
    }
    Ok(signs)
}

/// Watches the source for as long as every live worker needs to move its health counter.
pub(super) async fn watch(copy: &Copy, keys: &Keyspace) -> Result<Signs, Error> {
    let seen = signs(&copy.source, keys).await?;
    if !copy.source_is_shared {
        // This process has the store open, so no other process can.
        return Ok(seen);
    }
    let timeouts = seen.iter().filter_map(|(key, value)| match Row::parse(keys, key) {
        Some(Row::Worker(_, WorkerRow::Health)) => serde_json::from_slice::<Health>(value).ok(),
        _ => None,
    });
    let Some(longest_us) = timeouts.map(|health| health.timeout_us).max() else { return Ok(seen) };
    copy.progress.watched.store(seen.len() as u64, Ordering::Relaxed);
    let runtime = copy.source.runtime();
    let until_us = runtime.now_us() + longest_us.min(MAX_WATCH_US) + SLACK_US;
    while runtime.now_us() < until_us {
        runtime.sleep(LOOK_INTERVAL).await;
        let now = signs(&copy.source, keys).await?;
        if let Some(mover) = difference(keys, &seen, &now) {
            return Err(Error::InUse(mover));
        }
    }
    copy.progress.watched.store(0, Ordering::Relaxed);
    Ok(seen)
}

/// Checks that the counters and memberships have not changed.
pub(super) async fn check(copy: &Copy, keys: &Keyspace, seen: &Signs) -> Result<(), Error> {
    let now = signs(&copy.source, keys).await?;
    if difference(keys, seen, &now).is_some() { Err(Error::Changed) } else { Ok(()) }
}

/// A message about what has changed, if anything has.
fn difference(keys: &Keyspace, before: &Signs, now: &Signs) -> Option<String> {
    let moved = |key: &&Bytes| before.get(*key) != now.get(*key);
    let key = before.keys().chain(now.keys()).find(moved)?;
    Some(match Row::parse(keys, key) {
        Some(Row::Worker((job_type, worker), _)) => format!("worker {worker} of type {job_type} is alive"),
        _ => "a worker or a node has joined or left".to_owned(),
    })
}
