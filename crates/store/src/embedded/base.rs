//! The rows that have left memory, in a B-tree of the storage crate, redb, on [pages](super::pages) with checksums.
//!
//! Only [checkpoints](super::checkpoint) write here, one whole memtable at a time. With it they write the version of these rows,
//! and the segments that the log must have from then on. Every commit uses quick repair, so that opening after a crash does not
//! have to scan the file. That also makes it a two-phase commit: its pages are on the disk before the header refers to them. So a
//! commit that fails at any sync leaves the previous one intact. [Reopening](Base::reopen) writes the header and syncs it. After
//! that, the checkpoint is either complete or written again.

use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, TableDefinition};

use super::disk::{Disk, at, damage};
use super::folder::Folder;
use super::memtable::Memtable;
use super::pages::{Backend, Overlay, Pages};
use crate::{Error, Result};

const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// The version of the newest group whose rows are stored here.
const VERSION: &str = "version";
/// The segments that the log must have: those with acknowledged writes that are not here, or that may have them.
const FIRST_SEGMENT: &str = "first_segment";
const LAST_SEGMENT: &str = "last_segment";

pub(super) struct Base {
    /// `None` while it cannot be reopened.
    database: Option<Database>,
    /// Whether it was opened without changing its files.
    only_read: bool,
    pages: Arc<Pages>,
    cache_bytes: usize,
}

/// The base's own metadata: its version, and the segments of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    /// The version of the last checkpoint.
    pub(super) version: u64,
    /// The segments that must exist. `None` means that the log is new.
    pub(super) segments: Option<RangeInclusive<u64>>,
}

/// The rows at the time of the view. Reads fail once the base is closed.
pub(super) struct BaseView {
    rows: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
    pages: Arc<Pages>,
}

/// An iterator over the rows of a view, from both ends.
pub(super) struct BaseRows {
    rows: redb::Range<'static, &'static [u8], &'static [u8]>,
    pages: Arc<Pages>,
}

/// A row in its page.
pub(super) type BaseRow =
    (redb::AccessGuard<'static, &'static [u8]>, redb::AccessGuard<'static, &'static [u8]>);

impl Base {
    /// Creates the files of a new store. The store exists once the last of them has its final name.
    pub(super) fn create(folder: &Folder, disk: &Disk, cache_bytes: usize) -> Result<()> {
        let (rows, sums) =
            (folder.base().with_extension("redb.new"), folder.sums().with_extension("sums.new"));
        let pages = Pages::create(&rows, &sums, disk)?;
        let database = Some(open(&pages, cache_bytes, false)?);
        let base = Base { database, only_read: false, pages, cache_bytes };
        base.write(|writing| {
            writing.open_table(ROWS)?;
            writing.open_table(META)?.insert(VERSION, 0)?;
            Ok(())
        })?;
        let Base { database, pages, .. } = base;
        drop(database);
        Pages::rename(pages, &folder.base(), &folder.sums()).map_err(|error| at(&rows, &error))
    }

    /// Opens the files of a store, to read only or also to write. Their pages use at most `cache_bytes` of memory.
    pub(super) fn open(folder: &Folder, disk: &Disk, cache_bytes: usize, only_read: bool) -> Result<Self> {
        let pages = Pages::open(&folder.base(), &folder.sums(), disk, !only_read)?;
        let database = Some(open(&pages, cache_bytes, only_read)?);
        Ok(Base { database, only_read, pages, cache_bytes })
    }

    /// Reopens the files after a failure. Earlier views fail from now on. A disk that refuses writes may still be readable. So
    /// after an error there is a database for reads, unless that could not be opened either.
    pub(super) fn reopen(&mut self) -> Result<()> {
        drop(self.database.take());
        self.pages.mend();
        let opened = open(&self.pages, self.cache_bytes, false);
        self.only_read = opened.is_err();
        self.database = Some(match opened {
            Ok(database) => database,
            Err(error) => {
                self.pages.mend();
                self.database = Some(open(&self.pages, self.cache_bytes, true)?);
                return Err(error);
            }
        });
        Ok(())
    }

    /// Whether it must be reopened before the next write.
    pub(super) fn has_failed(&self) -> bool {
        self.database.is_none() || self.only_read || self.pages.failure().is_some()
    }

    pub(super) fn is_readable(&self) -> bool {
        self.database.is_some() && self.pages.failure().is_none()
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    pub(super) fn stored(&self) -> Result<Stored> {
        let stored = guarded(&self.pages, || {
            let meta = self.database()?.begin_read()?.open_table(META)?;
            let number = |key: &str| Ok::<_, redb::Error>(meta.get(key)?.map(|number| number.value()));
            Ok([number(VERSION)?, number(FIRST_SEGMENT)?, number(LAST_SEGMENT)?])
        });
        let [version, first, last] = stored?;
        let segments = first.zip(last).map(|(first, last)| first..=last);
        Ok(Stored { version: version.unwrap_or(0), segments })
    }

    pub(super) fn view(&self) -> Result<BaseView> {
        let rows = guarded(&self.pages, || Ok(self.database()?.begin_read()?.open_table(ROWS)?))?;
        Ok(BaseView { rows, pages: self.pages.clone() })
    }

    /// Requires from now on that the log has these segments.
    pub(super) fn demand(&self, segments: &RangeInclusive<u64>) -> Result<()> {
        self.write(|writing| {
            let mut meta = writing.open_table(META)?;
            meta.insert(FIRST_SEGMENT, segments.start())?;
            meta.insert(LAST_SEGMENT, segments.end())?;
            Ok(())
        })
    }

    /// Writes the newest rows of a frozen memtable, and their version: all or nothing, and durable when this returns. From then
    /// on the log begins with the segment `first`.
    pub(super) fn checkpoint(&self, version: u64, memtable: &Memtable, first: u64) -> Result<()> {
        self.write(|writing| {
            let mut rows = writing.open_table(ROWS)?;
            // Most rows of a queue are cleared before they reach the base. One read of the next stored key shows for all cleared
            // rows before it that they are not stored.
            let stored = self.database()?.begin_read()?.open_table(ROWS)?;
            let mut next_stored = NextStored { rows: stored, found: None };
            memtable.try_for_each_newest(|key, value| -> Result<(), redb::StorageError> {
                match value {
                    Some(value) => drop(rows.insert(key.as_ref(), value.as_ref())?),
                    None if next_stored.is(key)? => drop(rows.remove(key.as_ref())?),
                    None => {}
                }
                Ok(())
            })?;
            let mut meta = writing.open_table(META)?;
            meta.insert(VERSION, version)?;
            meta.insert(FIRST_SEGMENT, first)?;
            Ok(())
        })
    }

    fn write(&self, write: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>) -> Result<()> {
        guarded(&self.pages, || {
            let mut writing = self.database()?.begin_write()?;
            writing.set_quick_repair(true);
            write(&writing)?;
            Ok(writing.commit()?)
        })
        // Whatever failed, no later write may build on it.
        .inspect_err(|error| self.pages.fail(error))
    }
}

/// Opens an existing database, or creates one in an empty file.
fn open(pages: &Arc<Pages>, cache_bytes: usize, only_read: bool) -> Result<Database> {
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    if !only_read {
        return guarded(pages, || Ok(builder.create_with_backend(Backend(pages.clone()))?));
    }
    let overlay = Overlay::new(pages.clone()).map_err(|error| at(pages.path(), &error))?;
    guarded(pages, || Ok(builder.create_with_backend(overlay)?))
}

/// Calls the storage crate. A panic means that it has read data that it never wrote. Only its header has no
/// checksum in [`Pages`].
fn guarded<T>(pages: &Pages, ask: impl FnOnce() -> Result<T, redb::Error>) -> Result<T> {
    let error = match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => broken(pages, &error),
        Err(_) => damage(pages.path(), "its header, or what it refers to, makes no sense"),
    };
    if matches!(error, Error::Corrupt(_)) {
        pages.fail(&error);
    }
    Err(error)
}

/// Answers which keys are stored, for queries in key order.
struct NextStored {
    rows: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
    /// The first key at or after the last query; `Some(None)` if there is none.
    found: Option<Option<Vec<u8>>>,
}

impl NextStored {
    fn is(&mut self, key: &[u8]) -> Result<bool, redb::StorageError> {
        let passed = |found: &Option<Vec<u8>>| found.as_ref().is_some_and(|found| found.as_slice() < key);
        if self.found.as_ref().is_none_or(passed) {
            let first = self.rows.range(key..)?.next().transpose()?;
            self.found = Some(first.map(|(found, _)| found.value().to_vec()));
        }
        Ok(self.found.as_ref().is_some_and(|found| found.as_deref() == Some(key)))
    }
}

impl BaseView {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = guarded(&self.pages, || Ok(self.rows.get(key)?))?;
        Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
    }

    /// The rows of `[begin, end)`; requires `begin` < `end`.
    pub(super) fn range(&self, begin: &[u8], end: &[u8]) -> Result<BaseRows> {
        let rows = guarded(&self.pages, || Ok(self.rows.range(begin..end)?))?;
        Ok(BaseRows { rows, pages: self.pages.clone() })
    }

    /// The failure after which the base must be reopened, if there was one.
    pub(super) fn failure(&self) -> Option<Error> {
        self.pages.failure()
    }
}

impl BaseRows {
    /// The next row, from the front or the back.
    pub(super) fn next(&mut self, reverse: bool) -> Result<Option<BaseRow>> {
        let rows = &mut self.rows;
        guarded(&self.pages, || {
            let row = if reverse { rows.next_back() } else { rows.next() };
            Ok(row.transpose()?)
        })
    }
}

/// Prefers the failure that the pages recorded, because the storage crate may only repeat that there was an error. Disk errors
/// may pass; format errors do not.
fn broken(pages: &Pages, error: &redb::Error) -> Error {
    let unavailable =
        |error: &dyn Display| Error::Unavailable(format!("{}: {error}", pages.path().display()));
    let was_before = matches!(error, redb::Error::PreviousIo | redb::Error::DatabaseClosed);
    match pages.failure() {
        // Another read found the damage. The rows of this read may be intact.
        Some(Error::Corrupt(_)) if was_before => {
            return unavailable(&"another part of it is damaged, and it is being opened again");
        }
        Some(failure) => return failure,
        None => {}
    }
    match error {
        redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableDoesNotExist(_) => damage(pages.path(), error),
        redb::Error::Io(error) => at(pages.path(), error),
        redb::Error::PreviousIo | redb::Error::DatabaseClosed => unavailable(&"it is being opened again"),
        error => unavailable(error),
    }
}

pub(super) fn is_there(path: &Path) -> Result<bool> {
    fs::exists(path).map_err(|error| at(path, &error))
}
