//! Whether somebody works on the source.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use turnwise_queue::check::{Row, WorkerRow};
use turnwise_queue::{Health, Keyspace};
use turnwise_store::Store;

use super::{Copy, Error};
use crate::scan::Scan;

/// Between two looks at the health counters.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Beyond its timeout a counter is watched for this long.
const SLACK_US: i64 = 1_000_000;
/// No counter is watched for longer.
const MAX_WATCH_US: i64 = 120_000_000;

/// Health counters and memberships: whoever begins to work, works, or leaves changes one.
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

/// Watches the source until everyone whose health counter is there would have moved it.
pub(super) async fn watch(copy: &Copy, keys: &Keyspace) -> Result<Signs, Error> {
    let seen = signs(&copy.source, keys).await?;
    if !copy.source_is_shared {
        // It is open here, so nobody else has it open.
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

/// Whether the signs are still the same.
pub(super) async fn check(copy: &Copy, keys: &Keyspace, seen: &Signs) -> Result<(), Error> {
    let now = signs(&copy.source, keys).await?;
    if difference(keys, seen, &now).is_some() { Err(Error::Changed) } else { Ok(()) }
}

/// Who has moved, if someone has.
fn difference(keys: &Keyspace, before: &Signs, now: &Signs) -> Option<String> {
    let moved = |key: &&Bytes| before.get(*key) != now.get(*key);
    let key = before.keys().chain(now.keys()).find(moved)?;
    Some(match Row::parse(keys, key) {
        Some(Row::Worker((job_type, worker), _)) => format!("worker {worker} of type {job_type} is alive"),
        _ => "somebody has joined or left".to_owned(),
    })
}
