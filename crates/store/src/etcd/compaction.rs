//! Compaction of old revisions.
//!
//! etcd keeps every revision until a client compacts it, and refuses all writes once they fill its quota (2 GiB). Debian's etcd
//! does not compact by itself. So the processes with a store there share this work, once per [`PERIOD`]. The first process that
//! replaces a row of the prefix compacts up to the revision that it recorded one period ago. A revision is kept for one to two
//! periods; a transaction needs it for five seconds.
//!
//! Compaction affects the whole cluster. If another application on it reads revisions older than a minute, use `compact=off` and
//! start etcd with `--auto-compaction-mode=periodic --auto-compaction-retention=1h` or similar.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Shared;
use super::api::{
    CompactionRequest, CompactionResponse, Compare, CompareResult, CompareTarget, CompareWith, PutRequest,
    RangeRequest, Request, RequestOp, Response, TxnRequest, path,
};
use super::failure::{Failure, Refusal};
use crate::{Result, Runtime};

/// How long a revision is kept at least.
const PERIOD: Duration = Duration::from_secs(60);
/// Compacting only marks revisions; etcd removes them afterwards.
const DEADLINE: Duration = Duration::from_secs(10);

/// The state of the compaction row when this process last read it.
#[derive(Default)]
struct CompactionRow {
    version: i64,
    /// The store's revision at that moment.
    revision: i64,
}

/// Compacts until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>, runtime: Arc<dyn Runtime>) {
    let mut row = CompactionRow::default();
    loop {
        // Random jitter, so that processes that were started together do not stay in step.
        let jitter = Duration::from_millis(runtime.random() % 5_000);
        runtime.sleep(PERIOD + jitter).await;
        match take_turn(&shared, &mut row).await {
            Ok(Some(revision)) => compact(&shared, revision).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "etcd: no compaction"),
        }
    }
}

/// Replaces the row, unless another process has replaced it since this process last read it. If it succeeds, it is this
/// process's turn to compact. It returns the revision of that read, a period ago.
async fn take_turn(shared: &Shared, row: &mut CompactionRow) -> Result<Option<i64>> {
    let key = shared.space.own("compacted");
    let unchanged = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Version as i32,
        key: key.clone(),
        with: Some(CompareWith::Version(row.version)),
        range_end: Bytes::new(),
    };
    let put = Request::Put(PutRequest { key: key.clone(), value: Bytes::new() });
    let look = Request::Range(RangeRequest { key, ..RangeRequest::default() });
    let request = TxnRequest {
        compare: vec![unchanged],
        success: vec![RequestOp { request: Some(put) }],
        failure: vec![RequestOp { request: Some(look) }],
    };
    let response = shared.members.commit(request).await?;
    let now = response.header.map_or(0, |header| header.revision);
    let before = std::mem::replace(&mut row.revision, now);
    if response.succeeded {
        row.version += 1;
        return Ok((before > 0).then_some(before));
    }
    let found = response.responses.into_iter().find_map(|answer| match answer.response {
        Some(Response::Range(found)) => found.kvs.into_iter().next(),
        _ => None,
    });
    row.version = found.map_or(0, |row| row.version);
    Ok(None)
}

async fn compact(shared: &Shared, revision: i64) {
    let members = &shared.members;
    let request = CompactionRequest { revision };
    let done: Result<CompactionResponse, _> =
        members.call(members.current(), path::COMPACT, request, DEADLINE).await;
    match done {
        // Another process has compacted further.
        Ok(_) | Err(Failure::Refused(Refusal::Compacted, _)) => {
            tracing::debug!(revision, "etcd: compacted");
        }
        Err(failure) => tracing::warn!(
            revision,
            ?failure,
            "etcd: it could not be compacted; compact=off in the store's URL leaves that to etcd's --auto-compaction-retention"
        ),
    }
}
