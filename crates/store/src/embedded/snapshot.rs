//! A snapshot of the embedded engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;

use super::view::Tables;
use super::{Published, Shared};
use crate::{Changes, Error, KeyValue, RangeRead, Result, Snapshot, Versionstamp, Visit};

/// The store as it was at `taken_us`.
pub(super) struct EmbeddedSnapshot {
    shared: Arc<Shared>,
    published: Arc<Published>,
    taken_us: i64,
}

impl EmbeddedSnapshot {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let taken_us = shared.runtime.elapsed_us();
        let published = shared.published();
        EmbeddedSnapshot { shared, published, taken_us }
    }

    /// Runs a read unless the transaction is too old. Its rows are kept for as long as it may live.
    fn read<T>(&self, read: impl FnOnce(&Tables, u64) -> Result<T>) -> Result<T> {
        self.shared.check_age(self.taken_us, self.shared.runtime.elapsed_us())?;
        let result = read(&self.published.tables, self.published.version());
        // Checked after the read, because the rows may have been dropped during it.
        if self.published.lease.expired.load(Ordering::SeqCst) {
            return Err(self.shared.too_old());
        }
        if result.is_err() {
            self.shared.look_after(&self.published.tables);
        }
        result
    }
}

#[async_trait]
impl Snapshot for EmbeddedSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(|tables, version| tables.get(key, version))
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.read(|tables, version| tables.range(read, version, &self.shared.gaps))
    }

    fn walk(&self, range: &RangeRead, visit: &mut Visit<'_>) -> Option<Result<usize>> {
        Some(self.read(|tables, version| tables.walk(range, version, &self.shared.gaps, visit)))
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let decision = self.shared.submissions.submit(self.published.version(), self.taken_us, changes)?;
        decision.await.unwrap_or_else(|_| {
            Err(Error::UnknownOutcome("the store was closed before it had answered".into()))
        })
    }
}
