//! What the engine, its snapshots and its tasks share.

use std::sync::Arc;

use bytes::Bytes;

use super::api::RangeRequest;
use super::group::Groups;
use super::heads::Heads;
use super::members::Members;
use super::reads::{self, Reads};
use super::space::{self, Space};
use crate::appends::RowKeys;
use crate::sync::Mutex;
use crate::{Limits, Result};

pub(super) struct Shared {
    pub space: Space,
    /// Keys of the rows that add to sums.
    pub additions: RowKeys,
    pub members: Members,
    pub groups: Mutex<Groups>,
    pub reads: Reads,
    pub heads: Heads,
    pub limits: Limits,
    pub max_txn_ops: usize,
    pub max_request_bytes: usize,
}

impl Shared {
    /// The newest value of a key, and the revision of the read. The key must be one of etcd's.
    pub async fn newest(self: &Arc<Self>, key: &Bytes) -> Result<(Option<Bytes>, i64)> {
        let request = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let (response, _) = reads::range(self, request, None).await?;
        let revision = response.header.map_or(0, |header| header.revision);
        Ok((response.kvs.first().map(space::value), revision))
    }
}
