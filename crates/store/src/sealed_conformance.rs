//! The sealed store passes the conformance suite, over an engine that refuses what exceeds its limits.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Seal, Sealing, over};
use crate::conformance::Subject;
use crate::embedded::{Embedded, Options};
use crate::engine::{Changes, Engine, KeyValue, Limits, RangeRead, Snapshot, Versionstamp, Watch};
use crate::runtime::{Manual, System};
use crate::{Error, Result, Store};

const KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";
/// The mark, among the rows of the suite.
const MARK: &[u8] = b"mark";

/// The embedded engine checks no sizes. This one does, as etcd and FoundationDB do.
struct Strict(Arc<dyn Engine>);

struct StrictSnapshot {
    snapshot: Arc<dyn Snapshot>,
    limits: Limits,
}

#[async_trait]
impl Engine for Strict {
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let (snapshot, limits) = (self.0.snapshot().await?, self.0.limits());
        Ok(Arc::new(StrictSnapshot { snapshot, limits }))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        self.0.watch(key, seen).await
    }
}

#[async_trait]
impl Snapshot for StrictSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.snapshot.get(key).await
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.snapshot.range(read).await
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let values = || changes.puts.iter().map(|(_, value)| value.as_ref().map_or(0, Bytes::len));
        let keys = changes.puts.iter().map(|(key, _)| key).chain(&changes.read_keys);
        let bytes = keys.map(Bytes::len).sum::<usize>() + values().sum::<usize>();
        for (what, size, limit) in [
            ("value", values().max().unwrap_or_default(), self.limits.value_bytes),
            ("transaction", bytes, self.limits.transaction_bytes),
        ] {
            if size > limit {
                return Err(Error::TooLarge { what, size, limit });
            }
        }
        self.snapshot.commit(changes).await
    }
}

/// A sealed store in a temporary folder, on a clock that tests move.
struct InFolder {
    folder: tempfile::TempDir,
    clock: Arc<Manual>,
    seals: fn(&[u8]) -> bool,
}

#[async_trait]
impl Subject for InFolder {
    async fn open(&self) -> Arc<dyn Engine> {
        let options = Options { durable: false, runtime: self.clock.clone(), ..Options::default() };
        let engine = Strict(Embedded::open_with(self.folder.path(), options).unwrap());
        let sealing = Some(Sealing::parse(KEY, self.seals).unwrap());
        over(Arc::new(engine), &Seal { sealing, mark: MARK.into() }, true).await.unwrap()
    }

    fn clock(&self) -> Option<Arc<Manual>> {
        Some(self.clock.clone())
    }
}

fn in_folder(seals: fn(&[u8]) -> bool) -> Arc<dyn Subject> {
    Arc::new(InFolder { folder: tempfile::tempdir().unwrap(), clock: Manual::new(0, 0), seals })
}

mod every_row {
    crate::conformance_tests!(async || super::in_folder(|key| !key.starts_with(b"sum")));
}

/// Sealed rows beside plain ones, as in the queue's families.
mod every_other_row {
    crate::conformance_tests!(async || super::in_folder(
        |key| key == super::MARK || !key.starts_with(b"sum") && key.last().is_some_and(|byte| byte % 2 == 0)
    ));
}

/// Sealing adds the same to small values as to large ones, so many small rows grow most.
#[tokio::test]
async fn the_largest_transaction_fits_when_it_is_sealed() {
    for value_bytes in [0, 50, 1_000, Limits::DEFAULT.value_bytes - super::OVERHEAD] {
        let subject = in_folder(|_| true);
        let store = Store::new(subject.open().await, Arc::new(System));
        let tx = store.begin().await.unwrap();
        let value = Bytes::from(vec![b'v'; value_bytes]);
        let mut rows = 0;
        while tx.set(Bytes::from(format!("{rows:08}")), value.clone()).is_ok() {
            rows += 1;
        }
        let tx = store.begin().await.unwrap();
        for row in 0..rows {
            tx.set(Bytes::from(format!("{row:08}")), value.clone()).unwrap();
        }
        let committed = tx.commit().await;
        assert!(committed.is_ok(), "{rows} rows of {value_bytes} bytes: {committed:?}");
    }
}
