//! The seam to the storage crate: ordered bytes, atomic durable batches, consistent views.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use crate::{Error, KeyValue, RangeRead, Result};

/// Rows to set, and to remove where there is no value.
pub(super) type Batch = BTreeMap<Bytes, Option<Bytes>>;

/// What keeps the rows.
pub(super) trait Base: Send {
    /// The version of the last batch that was applied, 0 before the first.
    fn version(&self) -> Result<u64>;

    /// The rows as they are now.
    fn view(&self) -> Box<dyn View>;

    /// Writes a batch and its version: all or nothing, and durable when this returns.
    fn apply(&mut self, version: u64, batch: &Batch) -> Result<()>;
}

/// The rows as they were when the view was taken.
pub(super) trait View: Send + Sync {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;
    fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>>;
}

/// Opens the rows in the folder `path`.
pub(super) fn open(path: &Path, durable: bool) -> Result<Box<dyn Base>> {
    let database = Database::builder(path).manual_journal_persist(true).open().map_err(broken)?;
    let rows = database.keyspace("rows", KeyspaceCreateOptions::default).map_err(broken)?;
    let meta = database.keyspace("meta", KeyspaceCreateOptions::default).map_err(broken)?;
    Ok(Box::new(Lsm { database, rows, meta, durable }))
}

struct Lsm {
    database: Database,
    rows: Keyspace,
    meta: Keyspace,
    durable: bool,
}

const VERSION_KEY: &str = "version";

impl Base for Lsm {
    fn version(&self) -> Result<u64> {
        let Some(stored) = self.meta.get(VERSION_KEY).map_err(broken)? else { return Ok(0) };
        let bytes = <[u8; 8]>::try_from(&*stored)
            .map_err(|_| Error::Corrupt("the version of the store has not eight bytes".into()))?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn view(&self) -> Box<dyn View> {
        Box::new(LsmView { snapshot: self.database.snapshot(), rows: self.rows.clone() })
    }

    fn apply(&mut self, version: u64, batch: &Batch) -> Result<()> {
        let mode = if self.durable { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut writes = self.database.batch().durability(Some(mode));
        for (key, value) in batch {
            match value {
                Some(value) => writes.insert(&self.rows, key.clone(), value.clone()),
                None => writes.remove(&self.rows, key.clone()),
            }
        }
        writes.insert(&self.meta, VERSION_KEY, version.to_be_bytes());
        writes.commit().map_err(broken)
    }
}

struct LsmView {
    snapshot: fjall::Snapshot,
    rows: Keyspace,
}

impl View for LsmView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.snapshot.get(&self.rows, key).map_err(broken)?.map(Bytes::from))
    }

    fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        let rows = self.snapshot.range(&self.rows, read.begin.clone()..read.end.clone());
        let row = |guard: fjall::Guard| {
            let (key, value) = guard.into_inner().map_err(broken)?;
            Ok((Bytes::from(key), Bytes::from(value)))
        };
        if read.reverse {
            rows.rev().take(read.limit).map(row).collect()
        } else {
            rows.take(read.limit).map(row).collect()
        }
    }
}

/// Errors of the disk may pass, all others mean that the files are not what was written.
fn broken(error: fjall::Error) -> Error {
    match error {
        fjall::Error::Io(error) => Error::Unavailable(format!("the store's files: {error}")),
        error @ (fjall::Error::Poisoned | fjall::Error::Locked) => {
            Error::Unavailable(format!("the store's files: {error}"))
        }
        error => Error::Corrupt(error.to_string()),
    }
}
