//! A snapshot of a FoundationDB cluster.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use foundationdb::options::{ConflictRangeType, MutationType, StreamingMode, TransactionOption};
use foundationdb::{FdbResult, KeySelector, RangeOption, Transaction};

use super::{BEGIN_TIMEOUT_MS, COMMIT_TIMEOUT_MS, READ_TIMEOUT_MS, Shared};
use crate::key::successor;
use crate::{Changes, Error, KeyValue, RangeRead, Result, Snapshot, Versionstamp};

/// Ten bytes that the commit fills in, and their offset, 0.
const VERSIONSTAMP: [u8; 14] = [0; 14];

/// The store as of one version of the cluster.
pub(super) struct FoundationdbSnapshot {
    shared: Arc<Shared>,
    /// For reads only.
    transaction: Transaction,
    version: i64,
}

impl FoundationdbSnapshot {
    /// Takes a snapshot of the current version.
    pub(super) async fn take(shared: Arc<Shared>) -> Result<Self> {
        let transaction = reads(&shared, BEGIN_TIMEOUT_MS)?;
        let version = transaction.get_read_version().await;
        let version = version.map_err(|error| shared.cluster.read_error(error))?;
        let timeout = transaction.set_option(TransactionOption::Timeout(READ_TIMEOUT_MS));
        timeout.map_err(|error| shared.cluster.unavailable(error))?;
        Ok(FoundationdbSnapshot { transaction, version, shared })
    }

    /// A snapshot of a version.
    #[cfg(test)]
    pub(super) fn at(shared: Arc<Shared>, version: i64) -> Result<Self> {
        let transaction = reads(&shared, READ_TIMEOUT_MS)?;
        transaction.set_read_version(version);
        Ok(FoundationdbSnapshot { transaction, version, shared })
    }

    /// The version of the cluster that this snapshot reads.
    #[cfg(test)]
    pub(super) fn version(&self) -> i64 {
        self.version
    }

    /// Adds the conflicts and the writes to a transaction.
    fn fill(&self, transaction: &Transaction, changes: &Changes) -> FdbResult<()> {
        let shared = &self.shared;
        transaction.set_option(TransactionOption::ReadYourWritesDisable)?;
        transaction.set_read_version(self.version);
        for key in &changes.read_keys {
            let key = shared.key(key);
            transaction.add_conflict_range(&key, &successor(&key), ConflictRangeType::Read)?;
        }
        for (begin, end) in changes.read_ranges.iter().chain(&changes.arrivals) {
            let (begin, end) = (shared.key(begin), shared.key(end));
            transaction.add_conflict_range(&begin, &end, ConflictRangeType::Read)?;
        }
        for (begin, end) in &changes.clear_ranges {
            transaction.clear_range(&shared.key(begin), &shared.key(end));
        }
        for (key, value) in &changes.puts {
            match value {
                Some(value) => transaction.set(&shared.key(key), value),
                None => transaction.clear(&shared.key(key)),
            }
        }
        for key in &changes.versionstamped {
            transaction.atomic_op(&shared.key(key), &VERSIONSTAMP, MutationType::SetVersionstampedValue);
        }
        for (key, lines) in &changes.appends {
            // The stamp is at the offset 0, which the last four bytes are.
            let value = [&[0; 10][..], &lines[..], &[0; 4][..]].concat();
            transaction.atomic_op(&shared.key(key), &value, MutationType::SetVersionstampedValue);
        }
        // A little-endian integer, as `Sum` is.
        for (key, sum) in &changes.adds {
            transaction.atomic_op(&shared.key(key), &sum.to_bytes(), MutationType::Add);
        }
        Ok(())
    }
}

/// A transaction for reads. The commit writes in a second transaction.
fn reads(shared: &Shared, timeout_ms: i32) -> Result<Transaction> {
    let transaction = shared.transaction(timeout_ms)?;
    let option = transaction.set_option(TransactionOption::ReadYourWritesDisable);
    option.map_err(|error| shared.cluster.unavailable(error))?;
    Ok(transaction)
}

#[async_trait]
impl Snapshot for FoundationdbSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let shared = &self.shared;
        let value = self.transaction.get(&shared.key(key), true).await;
        Ok(value
            .map_err(|error| shared.cluster.read_error(error))?
            .map(|value| Bytes::copy_from_slice(&value)))
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        let shared = &self.shared;
        let mut rest = RangeOption {
            begin: KeySelector::first_greater_or_equal(shared.key(&read.begin).to_vec()),
            end: KeySelector::first_greater_or_equal(shared.key(&read.end).to_vec()),
            // The client counts in 32 bits. No transaction lives long enough to read more rows.
            limit: Some(read.limit.min(i32::MAX as usize)),
            mode: StreamingMode::WantAll,
            reverse: read.reverse,
            ..RangeOption::default()
        };
        let mut rows = Vec::new();
        loop {
            let chunk = self.transaction.get_range(&rest, 1, true).await;
            let chunk = chunk.map_err(|error| shared.cluster.read_error(error))?;
            let row = |row: &foundationdb::future::FdbKeyValue| {
                let key = Bytes::copy_from_slice(&row.key()[shared.prefix.len()..]);
                (key, Bytes::copy_from_slice(row.value()))
            };
            rows.extend(chunk.iter().map(row));
            match rest.next_range(&chunk) {
                Some(next) => rest = next,
                None => return Ok(rows),
            }
        }
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let shared = &self.shared;
        let transaction = shared.transaction(COMMIT_TIMEOUT_MS)?;
        self.fill(&transaction, &changes).map_err(|error| shared.cluster.commit_error(error))?;
        let stamp = transaction.get_versionstamp();
        let committed =
            transaction.commit().await.map_err(|error| shared.cluster.commit_error(error.into()))?;
        let stamp = stamp.await.ok().and_then(|stamp| stamp.as_ref().try_into().ok());
        drop(committed);
        stamp.map(Versionstamp).ok_or_else(|| {
            Error::UnknownOutcome("FoundationDB has committed, but does not tell the versionstamp".into())
        })
    }
}
