//! A snapshot. Its first read determines the revision of all others.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::api::{RangeRequest, RangeResponse, SortOrder};
use super::commit::{self, Intervals, Prepared, ReadSet};
use super::shared::Shared;
use super::{group, heads, reads, space};
use crate::key::successor;
use crate::sync::Mutex;
use crate::{Changes, Error, KeyValue, RangeRead, Result, Snapshot, Versionstamp};

/// Rows of a range's first page. A row has at most 100 kB.
const FIRST_PAGE_ROWS: usize = 256;
/// The target size of a page. The previous page's rows determine the next page's number of rows.
const PAGE_BYTES: usize = 4 << 20;
const MAX_PAGE_ROWS: usize = 20_000;

/// A view of the store as of one revision.
///
/// Taking it sends no request. The first read is linearizable: it sees every commit that was acknowledged before it began, and
/// its revision becomes the snapshot's. Later reads request that revision from the same member. The member has seen and keeps it,
/// so it answers without the other members.
pub(super) struct EtcdSnapshot {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Held by the first read until the revision is known.
    first: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    pin: Option<Pin>,
    read_set: ReadSet,
}

#[derive(Clone, Copy)]
struct Pin {
    revision: i64,
    /// A member that has seen the revision.
    member: usize,
}

impl EtcdSnapshot {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        EtcdSnapshot { shared, state: Mutex::default(), first: tokio::sync::Mutex::default() }
    }

    /// Reads at the snapshot's revision, and pins it if this is the first read.
    async fn read(&self, request: RangeRequest) -> Result<RangeResponse> {
        let pin = self.state.lock().pin;
        if let Some(pin) = pin {
            return self.read_at(pin, request).await;
        }
        let turn = self.first.lock().await;
        let pin = self.state.lock().pin;
        if let Some(pin) = pin {
            // Those who waited for the first read now read at the same time.
            drop(turn);
            return self.read_at(pin, request).await;
        }
        let (response, member) = reads::range(&self.shared, request, None).await?;
        let header = response.header.as_ref();
        let revision = header
            .map(|header| header.revision)
            .filter(|revision| *revision > 0)
            .ok_or_else(|| Error::Corrupt("an answer of etcd has no revision".into()))?;
        self.state.lock().pin = Some(Pin { revision, member });
        Ok(response)
    }

    async fn read_at(&self, pin: Pin, mut request: RangeRequest) -> Result<RangeResponse> {
        request.revision = pin.revision;
        let (response, member) = reads::range(&self.shared, request, Some(pin.member)).await?;
        if member != pin.member {
            self.state.lock().pin = Some(Pin { member, ..pin });
        }
        Ok(response)
    }

    /// Reads a range page by page, and remembers what was read. With `keys_only` it always remembers, because the commit needs
    /// it.
    async fn pages(&self, read: &RangeRead, keys_only: bool) -> Result<Vec<KeyValue>> {
        let Some((begin, end)) = self.shared.space.range(&read.begin, &read.end) else {
            return Ok(Vec::new());
        };
        // In etcd's keys.
        let mut rest = RangeRead { begin, end, ..*read };
        let whole = (rest.begin.clone(), rest.end.clone());
        let is_head = !read.reverse && !keys_only && read.limit <= heads::MAX_ROWS;
        // Where the range goes on after its head, if the head is read first.
        let head = if is_head { self.shared.heads.end_of(&whole.0, &whole.1) } else { None };
        let mut after_head = head.clone();
        rest.end = head.unwrap_or(rest.end);
        let mut rows = Vec::new();
        let mut page_rows = FIRST_PAGE_ROWS;
        loop {
            let limit = page_rows.min(read.limit - rows.len());
            let order = if read.reverse { SortOrder::Descend } else { SortOrder::None };
            let response = self
                .read(RangeRequest {
                    key: rest.begin.clone(),
                    range_end: rest.end.clone(),
                    limit: i64::try_from(limit).unwrap_or(i64::MAX),
                    sort_order: order as i32,
                    keys_only,
                    ..RangeRequest::default()
                })
                .await?;
            let page = &response.kvs;
            let bytes: usize = page.iter().map(|row| row.key.len() + row.value.len()).sum();
            let mut covered = (rest.begin.clone(), rest.end.clone());
            if let Some(last) = page.last().filter(|_| response.more) {
                rest.pass(&last.key);
                match read.reverse {
                    true => covered.0 = rest.end.clone(),
                    false => covered.1 = rest.begin.clone(),
                }
            }
            self.state.lock().read_set.add(covered, page, keys_only);
            let space = &self.shared.space;
            rows.extend(page.iter().map(|row| (space.stripped(&row.key), space::value(row))));
            if rows.len() >= read.limit {
                if is_head && after_head.is_none() && response.more {
                    heads::missed(&self.shared, &whole.0, &whole.1);
                }
                return Ok(rows);
            }
            if !response.more {
                let Some(head) = after_head.take() else { return Ok(rows) };
                (rest.begin, rest.end) = (head, whole.1.clone());
                continue;
            }
            page_rows = (PAGE_BYTES.saturating_mul(page.len()) / bytes.max(1)).clamp(16, MAX_PAGE_ROWS);
        }
    }

    /// Reads the keys that the commit must check and that were not read, at most `limit` rows per range.
    async fn see(&self, missing: &Intervals, limit: usize) -> Result<()> {
        for (begin, end) in missing.iter() {
            let space = &self.shared.space;
            let read =
                RangeRead { begin: space.stripped(begin), end: space.stripped(end), limit, reverse: false };
            if self.pages(&read, true).await?.len() >= limit {
                return Err(commit::too_many_conflicts(limit, self.shared.limits));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Snapshot for EtcdSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let key = self.shared.space.key(key)?;
        let response = self.read(RangeRequest { key: key.clone(), ..RangeRequest::default() }).await?;
        let after = successor(&key);
        self.state.lock().read_set.add((key, after), &response.kvs, false);
        Ok(response.kvs.first().map(space::value))
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.pages(read, false).await
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let pin = self.state.lock().pin;
        let (mut needed, mut compares) = Default::default();
        // A transaction that has read nothing has nothing to check.
        if let Some(pin) = pin {
            needed = commit::needed(&self.shared.space, &changes)?;
            let missing = self.state.lock().read_set.missing(&needed);
            self.see(&missing, self.shared.limits.transaction_conflicts + 1).await?;
            compares = self.state.lock().read_set.compares(&needed, pin.revision);
        }
        let writes = commit::writes(&self.shared.space, &self.shared.additions, &changes)?;
        group::commit(&self.shared, Prepared { needed, compares, writes }).await
    }
}
