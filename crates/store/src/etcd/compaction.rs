//! Forgetting old revisions.
//!
//! etcd keeps every revision until someone tells it to compact, and refuses all writes once its quota (2 GiB) is full
//! of them. Debian's etcd compacts nothing by itself, so every process with a store there does it, once in [`PERIOD`]
//! for all of them together: whoever is first to replace a row of the prefix compacts up to the revision that it had
//! put down a period ago. A revision is kept for one to two periods; a transaction needs it for five seconds.
//!
//! Compaction concerns the whole cluster. Who shares it with something that reads older revisions than a minute says
//! `compact=off` and starts etcd with `--auto-compaction-mode=periodic --auto-compaction-retention=1h`, or the like.

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

/// What the row of the compactions was like when it was last looked at.
#[derive(Default)]
struct Turn {
    version: i64,
    /// The store's revision at that moment.
    revision: i64,
}

/// Compacts for ever.
pub(super) async fn run(shared: Arc<Shared>, runtime: Arc<dyn Runtime>) {
    let mut turn = Turn::default();
    loop {
        // A little random, so that processes that were started together do not stay together.
        let jitter = Duration::from_millis(runtime.random() % 5_000);
        runtime.sleep(PERIOD + jitter).await;
        match take_turn(&shared, &mut turn).await {
            Ok(Some(revision)) => compact(&shared, revision).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "etcd: no compaction"),
        }
    }
}

/// Replaces the row if nobody has since this process looked at it. Then it is this process's turn to compact, up to the
/// revision of that look, a period ago.
async fn take_turn(shared: &Shared, turn: &mut Turn) -> Result<Option<i64>> {
    let key = shared.space.own("compacted");
    let unchanged = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Version as i32,
        key: key.clone(),
        with: Some(CompareWith::Version(turn.version)),
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
    let before = std::mem::replace(&mut turn.revision, now);
    if response.succeeded {
        turn.version += 1;
        return Ok((before > 0).then_some(before));
    }
    let found = response.responses.into_iter().find_map(|answer| match answer.response {
        Some(Response::Range(found)) => found.kvs.into_iter().next(),
        _ => None,
    });
    turn.version = found.map_or(0, |row| row.version);
    Ok(None)
}

async fn compact(shared: &Shared, revision: i64) {
    let members = &shared.members;
    let request = CompactionRequest { revision };
    let done: Result<CompactionResponse, _> =
        members.call(members.current(), path::COMPACT, request, DEADLINE).await;
    match done {
        // Someone else has compacted further.
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
