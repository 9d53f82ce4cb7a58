//! A snapshot of the embedded engine.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Published, Shared};
use crate::{Changes, Error, KeyValue, RangeRead, Result, Snapshot, Versionstamp};

/// The store as it was at `taken_us`.
pub(super) struct EmbeddedSnapshot {
    shared: Arc<Shared>,
    published: Arc<Published>,
    taken_us: i64,
}

impl EmbeddedSnapshot {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let taken_us = shared.runtime.now_us();
        let published = shared.published();
        EmbeddedSnapshot { shared, published, taken_us }
    }

    /// A snapshot is kept for as long as a transaction may live, and not longer.
    fn check_age(&self) -> Result<()> {
        self.shared.check_age(self.taken_us, self.shared.runtime.now_us())
    }
}

impl Shared {
    /// Whether a transaction that began at `taken_us` may still do something.
    pub(super) fn check_age(&self, taken_us: i64, now_us: i64) -> Result<()> {
        let limit_ms = self.limits.transaction_ms;
        let age_ms = now_us.saturating_sub(taken_us) / 1_000;
        if u64::try_from(age_ms).is_ok_and(|age_ms| age_ms > limit_ms) {
            return Err(Error::TooOld { limit_ms });
        }
        Ok(())
    }
}

#[async_trait]
impl Snapshot for EmbeddedSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.check_age()?;
        self.published.view.get(key)
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.check_age()?;
        if read.begin >= read.end {
            return Ok(Vec::new());
        }
        self.published.view.range(read)
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let decision = self.shared.submissions.submit(self.published.version, self.taken_us, changes)?;
        decision.await.unwrap_or_else(|_| {
            Err(Error::UnknownOutcome("the store was closed before it had answered".into()))
        })
    }
}
