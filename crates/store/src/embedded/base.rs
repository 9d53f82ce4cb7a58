//! The rows that have left memory, in a B-tree of the storage crate, redb.
//!
//! Only [checkpoints](super::checkpoint) write here, whole memtables at a time, with the version that the
//! rows then have. Every commit is made so that opening after a crash need not walk the file (quick repair).

use std::path::Path;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, TableDefinition, TableError};

use super::memtable::Memtable;
use crate::{Error, Result};

const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// The version of the newest group of which the rows are here.
const VERSION: &str = "version";

/// The file.
pub(super) struct Base {
    database: Database,
}

/// The rows as they were when the view was taken. Fails once the base is closed.
pub(super) struct BaseView {
    rows: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
}

/// Rows of a view, from both ends.
pub(super) type BaseRows = redb::Range<'static, &'static [u8], &'static [u8]>;

impl Base {
    /// Opens the file at `path`, and creates it if it is missing. So much memory is for its pages, at most.
    pub(super) fn open(path: &Path, cache_bytes: usize) -> Result<Self> {
        let database = Database::builder()
            .set_cache_size(cache_bytes)
            .create(path)
            .map_err(|error| broken(&error.into()))?;
        let base = Base { database };
        if base.stored_version()?.is_none() {
            base.checkpoint(0, &Memtable::default())?;
        }
        Ok(base)
    }

    /// The version of the last checkpoint.
    pub(super) fn version(&self) -> Result<u64> {
        Ok(self.stored_version()?.unwrap_or(0))
    }

    fn stored_version(&self) -> Result<Option<u64>> {
        let reading = self.database.begin_read().map_err(|error| broken(&error.into()))?;
        let meta = match reading.open_table(META) {
            Ok(meta) => meta,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(broken(&error.into())),
        };
        let version = meta.get(VERSION).map_err(|error| broken(&error.into()))?;
        Ok(version.map(|version| version.value()))
    }

    /// The rows as they are now.
    pub(super) fn view(&self) -> Result<BaseView> {
        let view = || -> Result<_, redb::Error> { Ok(self.database.begin_read()?.open_table(ROWS)?) };
        Ok(BaseView { rows: view().map_err(|error| broken(&error))? })
    }

    /// Writes the newest rows of a memtable that changes no more, and their version: all or nothing, and
    /// durable when this returns.
    pub(super) fn checkpoint(&self, version: u64, memtable: &Memtable) -> Result<()> {
        let write = || -> Result<_, redb::Error> {
            let mut writing = self.database.begin_write()?;
            writing.set_quick_repair(true);
            let mut rows = writing.open_table(ROWS)?;
            // Most rows of a queue are cleared before they come here: one look at what is stored next tells that for
            // all cleared ones before it.
            let stored = match self.database.begin_read()?.open_table(ROWS) {
                Ok(stored) => Some(stored),
                Err(TableError::TableDoesNotExist(_)) => None,
                Err(error) => return Err(error.into()),
            };
            let mut next_stored = NextStored { rows: stored, found: None };
            memtable.try_for_each_newest(|key, value| -> Result<(), redb::StorageError> {
                match value {
                    Some(value) => drop(rows.insert(key.as_ref(), value.as_ref())?),
                    None if next_stored.is(key)? => drop(rows.remove(key.as_ref())?),
                    None => {}
                }
                Ok(())
            })?;
            drop(next_stored);
            drop(rows);
            writing.open_table(META)?.insert(VERSION, version)?;
            writing.commit()?;
            Ok(())
        };
        write().map_err(|error| broken(&error))
    }
}

/// Which keys are stored, for someone who asks in the order of keys.
struct NextStored {
    /// `None`: nothing is stored yet.
    rows: Option<redb::ReadOnlyTable<&'static [u8], &'static [u8]>>,
    /// The first key at or after the last one that was asked for; `Some(None)`: there is none.
    found: Option<Option<Vec<u8>>>,
}

impl NextStored {
    /// Whether `key` is stored.
    fn is(&mut self, key: &[u8]) -> Result<bool, redb::StorageError> {
        let Some(rows) = &self.rows else { return Ok(false) };
        let passed = |found: &Option<Vec<u8>>| found.as_ref().is_some_and(|found| found.as_slice() < key);
        if self.found.as_ref().is_none_or(passed) {
            let first = rows.range(key..)?.next().transpose()?;
            self.found = Some(first.map(|(found, _)| found.value().to_vec()));
        }
        Ok(self.found.as_ref().is_some_and(|found| found.as_deref() == Some(key)))
    }
}

impl BaseView {
    /// The value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.rows.get(key).map_err(|error| broken(&error.into()))?;
        Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
    }

    /// The rows of `[begin, end)`; `begin` is less than `end`.
    pub(super) fn range(&self, begin: &[u8], end: &[u8]) -> Result<BaseRows> {
        self.rows.range(begin..end).map_err(|error| broken(&error.into()))
    }
}

/// The next row of a view, from the front or the back.
pub(super) fn next_row(rows: &mut BaseRows, reverse: bool) -> Result<Option<(Bytes, Bytes)>> {
    let row = if reverse { rows.next_back() } else { rows.next() };
    let Some(row) = row else { return Ok(None) };
    let (key, value) = row.map_err(|error| broken(&error.into()))?;
    Ok(Some((Bytes::copy_from_slice(key.value()), Bytes::copy_from_slice(value.value()))))
}

/// Errors of the disk may pass, those of the format do not.
fn broken(error: &redb::Error) -> Error {
    match error {
        redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. } => Error::Corrupt(format!("the file of rows: {error}")),
        _ => Error::Unavailable(format!("the file of rows: {error}")),
    }
}
