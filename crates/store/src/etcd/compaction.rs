//! Compaction of old revisions.
//!
//! etcd keeps every revision until a client compacts it, and refuses all writes once they fill its quota (2 GiB). Debian's etcd
//! does not compact by itself. Long before that, reads become slow: a read of the head of a queue passes over every key that was removed
//! there and is not compacted. So the processes with a store there share this work, once per [`PERIOD`]. A process replaces a row of the
//! prefix that it has known for a period, and compacts up to the revision of the row that it has replaced. So a revision is kept for one to
//! two periods; a transaction needs it for five seconds. Nothing depends on how long a process has run: some live for less than a period.
//!
//! Compaction affects the whole cluster. If another application on it reads revisions older than twenty seconds, use `compact=off` and
//! start etcd with `--auto-compaction-mode=periodic --auto-compaction-retention=1m` or similar.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::api::{
    CompactionRequest, Compare, CompareResult, CompareTarget, CompareWith, RangeRequest, Request, RequestOp,
    Response, TxnRequest, path,
};
use super::commit::put;
use super::failure::{Failure, Refusal};
use super::shared::Shared;
use crate::{Result, Runtime};

/// How long a revision is kept at least.
const PERIOD: Duration = Duration::from_secs(20);
/// A pause is at least this many times as long as the compaction before it, which looks at all keys.
const PAUSE_FACTOR: u32 = 20;
/// Fewer revisions than these are not worth a compaction.
const LEAST_REVISIONS: i64 = 1_000;
/// How long a process waits for the end of a compaction. It goes on without the process, too.
const DEADLINE: Duration = Duration::from_secs(60);

/// No row has this version.
const UNREAD: i64 = -1;

/// The row that shows when revisions were last compacted, as this process has last read it.
struct CompactionRow {
    /// How often it was replaced; 0 if it does not exist, and [`UNREAD`] before it was read.
    version: i64,
    /// The revision of the latest replacement.
    revision: i64,
    /// The last revision up to which this process has compacted.
    compacted: i64,
}

/// Compacts until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>, runtime: Arc<dyn Runtime>) {
    // The first turn only reads: a process that has just started may still find that the prefix is another program's.
    let mut row = CompactionRow { version: UNREAD, revision: 0, compacted: 0 };
    loop {
        let mut took = Duration::ZERO;
        match take_turn(&shared, &mut row).await {
            Ok(Some(revision)) => {
                let begun_us = runtime.elapsed_us();
                compact(&shared, revision).await;
                took = Duration::from_micros(runtime.elapsed_us().abs_diff(begun_us));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "etcd: no compaction"),
        }
        // Random jitter, so that processes that were started together do not stay in step.
        let jitter = Duration::from_millis(runtime.random() % 2_000);
        runtime.sleep(PERIOD.max(took * PAUSE_FACTOR) + jitter).await;
    }
}

/// Replaces the row, unless another process has replaced it since this process last read it. If it succeeds, it is this
/// process's turn to compact. It returns the revision of the row before, which this process has known for a period.
async fn take_turn(shared: &Shared, row: &mut CompactionRow) -> Result<Option<i64>> {
    let key = shared.space.own("compacted");
    let unchanged = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Version as i32,
        key: key.clone(),
        with: Some(CompareWith::Version(row.version)),
        range_end: Bytes::new(),
    };
    let look = Request::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() });
    let request = TxnRequest {
        compare: vec![unchanged],
        success: vec![put(key, Bytes::new())],
        failure: vec![RequestOp { request: Some(look) }],
    };
    let response = shared.members.commit(request).await?;
    if response.succeeded {
        row.version += 1;
        let before =
            std::mem::replace(&mut row.revision, response.header.map_or(0, |header| header.revision));
        let is_worth_it = before > 0 && row.revision - row.compacted >= LEAST_REVISIONS;
        if is_worth_it {
            row.compacted = before;
        }
        return Ok(is_worth_it.then_some(before));
    }
    let found = response.responses.into_iter().find_map(|answer| match answer.response {
        Some(Response::Range(found)) => found.kvs.into_iter().next(),
        _ => None,
    });
    (row.version, row.revision) = found.map_or((0, 0), |found| (found.version, found.mod_revision));
    Ok(None)
}

async fn compact(shared: &Shared, revision: i64) {
    let members = &shared.members;
    let request = CompactionRequest { revision, physical: true };
    let done: Result<(), _> = members.call(members.current(), path::COMPACT, request, DEADLINE).await;
    match done {
        // Another process has compacted further.
        Ok(_) | Err(Failure::Refused(Refusal::Compacted, _)) => {
            tracing::debug!(revision, "etcd: compacted");
        }
        Err(failure @ (Failure::Lost(_) | Failure::Unsent(_))) => {
            tracing::debug!(?failure, "etcd: no compaction")
        }
        Err(failure) => tracing::warn!(
            revision,
            ?failure,
            "etcd: it could not be compacted; compact=off in the store's URL leaves that to etcd's --auto-compaction-retention"
        ),
    }
}
