//! The file of rows, in pages, with a checksum for each page in a second file.
//!
//! The storage crate reads pages without checking them. A page that has changed on the disk would give wrong rows, hide other
//! rows, or make it panic. So `rows.sums` has a checksum of every page, four bytes each. A page that does not match its checksum
//! is an error before the storage crate reads it.
//!
//! Invariant: a sync brings both files to the disk. So if a durable commit refers to a page, the page's checksum is on the disk
//! before this commit's header is written. If the machine stops, pages that were written after the last sync may not match their
//! checksums. No commit refers to them, so they are never read. The first page is the storage crate's header, which it writes in
//! place and checks itself.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::disk::{Disk, DiskFile, PIECE_BYTES, at, damage};
use crate::sync::{Mutex, RwLock};
use crate::{Error, Result};

const PAGE_BYTES: usize = 4_096;
const SUM_BYTES: usize = 4;
/// Checksums per write: one page of them.
const SUMS_PER_BLOCK: usize = PAGE_BYTES / SUM_BYTES;

/// The checksum of page `n`. Never [`NEVER_WRITTEN`].
fn sum_of(n: usize, page: &[u8]) -> u32 {
    // The page's number is included, to detect a page in the wrong place.
    let mut hasher = crc32fast::Hasher::new_with_initial(n as u32);
    hasher.update(page);
    hasher.finalize().max(1)
}

/// Replaces the checksum of a page of zeros that was never written.
const NEVER_WRITTEN: u32 = 0;

pub(super) struct Pages {
    rows: DiskFile,
    sums: Sums,
    /// Where bytes were written to `rows` since its last sync.
    written: Mutex<Vec<Range<u64>>>,
    /// The first failure since it was opened. The storage crate refuses everything after it.
    failed: Mutex<Option<Error>>,
}

struct Sums {
    file: DiskFile,
    table: RwLock<Vec<u32>>,
    /// Blocks of the table that are not in the file yet.
    dirty: Mutex<BTreeSet<usize>>,
}

impl Pages {
    pub(super) fn create(rows: &Path, sums: &Path, disk: &Disk) -> Result<Arc<Self>> {
        let new = |path: &Path| {
            let file = disk.create(path.to_owned()).and_then(|file| file.set_len(0).map(|()| file));
            file.map_err(|error| at(path, &error))
        };
        let (rows, file) = (new(rows)?, new(sums)?);
        let sums = Sums { file, table: RwLock::default(), dirty: Mutex::default() };
        Ok(Arc::new(Pages { rows, sums, written: Mutex::default(), failed: Mutex::default() }))
    }

    /// Opens the files of a store for reading, and for writing if `write`.
    pub(super) fn open(rows: &Path, sums: &Path, disk: &Disk, write: bool) -> Result<Arc<Self>> {
        let file = open(sums, disk, write)?;
        let rows = open(rows, disk, write)?;
        let bytes = file.read().map_err(|error| at(sums, &error))?;
        let sum = |bytes: &[u8]| bytes.try_into().map_or(NEVER_WRITTEN, u32::from_le_bytes);
        let mut table: Vec<u32> = bytes.chunks_exact(SUM_BYTES).map(sum).collect();
        table.resize(count(&rows).map_err(|error| at(rows.path(), &error))?, NEVER_WRITTEN);
        let sums = Sums { file, table: RwLock::new(table), dirty: Mutex::default() };
        Ok(Arc::new(Pages { rows, sums, written: Mutex::default(), failed: Mutex::default() }))
    }

    pub(super) fn path(&self) -> &Path {
        self.rows.path()
    }

    /// Renames the files. The rows come last, because their file makes the store exist.
    pub(super) fn rename(this: Arc<Self>, rows: &Path, sums: &Path) -> io::Result<()> {
        let Some(mut pages) = Arc::into_inner(this) else { return Err(ErrorKind::ResourceBusy.into()) };
        pages.sums.file.rename(sums.to_owned())?;
        pages.rows.rename(rows.to_owned())
    }

    /// The first failure since the last call of [`Pages::mend`].
    pub(super) fn failure(&self) -> Option<Error> {
        self.failed.lock().clone()
    }

    /// Clears the failure, before the storage crate reopens the file.
    pub(super) fn mend(&self) {
        *self.failed.lock() = None;
    }

    /// Records the error if it is the first failure.
    fn failing<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            self.fail(&at(self.path(), error));
        })
    }

    /// Records the error if it is the first failure.
    pub(super) fn fail(&self, error: &Error) {
        self.failed.lock().get_or_insert_with(|| error.clone());
    }

    fn read_checked(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.rows.read_at(out, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(
                error.kind(),
                format!("the file ends before byte {}", offset + out.len() as u64),
            ),
            _ => error,
        })?;
        let table = self.sums.table.read();
        for (n, page) in whole_pages(offset, out)? {
            let sound = match table.get(n).copied().unwrap_or(NEVER_WRITTEN) {
                NEVER_WRITTEN => page.iter().all(|byte| *byte == 0),
                sum => sum == sum_of(n, page),
            };
            if !sound {
                let at = n * PAGE_BYTES;
                let line = format!(
                    "the page at byte {at} is damaged: it does not match its checksum in {}",
                    self.sums.name()
                );
                return Err(io::Error::new(ErrorKind::InvalidData, line));
            }
        }
        Ok(())
    }

    fn write_summed(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.rows.write_at(data, offset)?;
        self.written.lock().push(offset..offset + data.len() as u64);
        let mut table = self.sums.table.write();
        for (n, page) in whole_pages(offset, data)? {
            if n >= table.len() {
                table.resize(n + 1, NEVER_WRITTEN);
            }
            table[n] = sum_of(n, page);
            self.sums.dirty.lock().insert(n / SUMS_PER_BLOCK);
        }
        Ok(())
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.rows.set_len(len)?;
        let count = count(&self.rows)?;
        let mut table = self.sums.table.write();
        let known = table.len().min(count);
        table.resize(count, NEVER_WRITTEN);
        self.sums.dirty.lock().extend(known / SUMS_PER_BLOCK..count.div_ceil(SUMS_PER_BLOCK));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sums.sync()?;
        self.write_out()?;
        self.rows.sync()
    }

    /// Passes what was written to the disk in [pieces](PIECE_BYTES). They are in the order of the file, because adjacent pages cost
    /// one request, and the storage crate writes pages in any order.
    fn write_out(&self) -> io::Result<()> {
        let mut written = std::mem::take(&mut *self.written.lock());
        written.sort_unstable_by_key(|range| range.start);
        let mut rest = &written[..];
        while let Some(first) = rest.first() {
            let mut bytes = 0;
            let fits = |range: &&Range<u64>| {
                bytes += range.end - range.start;
                bytes <= PIECE_BYTES as u64
            };
            let (piece, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let end = piece.last().map_or(first.end, |last| last.end);
            self.rows.write_out(first.start..end)?;
            rest = others;
        }
        Ok(())
    }
}

impl Sums {
    fn name(&self) -> impl fmt::Display {
        self.file.path().file_name().unwrap_or_default().display().to_string()
    }

    fn sync(&self) -> io::Result<()> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        if dirty.is_empty() {
            return Ok(());
        }
        let synced = self.write(&dirty).and_then(|()| self.file.sync());
        if synced.is_err() {
            // The content of the file is unknown, so all of it is written again.
            let count = self.table.read().len();
            self.dirty.lock().extend(0..count.div_ceil(SUMS_PER_BLOCK));
        }
        synced
    }

    fn write(&self, blocks: &BTreeSet<usize>) -> io::Result<()> {
        let table = self.table.read();
        for block in blocks {
            let first = (block * SUMS_PER_BLOCK).min(table.len());
            let sums = &table[first..table.len().min(first + SUMS_PER_BLOCK)];
            let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
            self.file.write_at(&bytes, (first * SUM_BYTES) as u64)?;
        }
        Ok(())
    }
}

/// The number of pages of a file, including a partial last page.
fn count(file: &DiskFile) -> io::Result<usize> {
    let pages = file.len()?.div_ceil(PAGE_BYTES as u64);
    usize::try_from(pages).map_err(|_| ErrorKind::FileTooLarge.into())
}

fn open(path: &Path, disk: &Disk, write: bool) -> Result<DiskFile> {
    disk.open(path.to_owned(), write).map_err(|error| match error.kind() {
        ErrorKind::NotFound => damage(path, "the file is missing"),
        _ => at(path, &error),
    })
}

/// The number of the page at `offset`, where `length` bytes are whole pages, or a part of the first page of the file.
fn page_at(offset: u64, length: usize) -> io::Result<usize> {
    let page = PAGE_BYTES as u64;
    let is_header = offset == 0 && length <= PAGE_BYTES;
    if !is_header && (!offset.is_multiple_of(page) || !length.is_multiple_of(PAGE_BYTES)) {
        let line = format!("{length} bytes at {offset} are no pages");
        return Err(io::Error::new(ErrorKind::InvalidInput, line));
    }
    usize::try_from(offset / page).map_err(|_| ErrorKind::FileTooLarge.into())
}

/// Divides `bytes` into pages with their numbers, without the first page of the file.
fn whole_pages(offset: u64, bytes: &[u8]) -> io::Result<impl Iterator<Item = (usize, &[u8])>> {
    let first = page_at(offset, bytes.len())?;
    Ok((first..).zip(bytes.chunks(PAGE_BYTES)).filter(|(n, _)| *n > 0))
}

/// The pages as a backend of the storage crate.
#[derive(Clone)]
pub(super) struct Backend(pub(super) Arc<Pages>);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.0.rows).finish()
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.failing(self.0.rows.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.failing(self.0.read_checked(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.failing(self.0.resize(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.failing(self.0.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.failing(self.0.write_summed(offset, data))
    }
}

/// Pages over an unchanged file: writes stay in memory.
#[derive(Debug)]
pub(super) struct Overlay {
    below: Backend,
    state: Mutex<OverlayState>,
}

#[derive(Debug)]
struct OverlayState {
    len: u64,
    /// Pages that were written.
    pages: HashMap<usize, Vec<u8>>,
}

impl Overlay {
    pub(super) fn new(below: Arc<Pages>) -> io::Result<Self> {
        let state = OverlayState { len: below.rows.len()?, pages: HashMap::new() };
        Ok(Overlay { below: Backend(below), state: Mutex::new(state) })
    }

    fn page(&self, state: &OverlayState, n: usize) -> io::Result<Vec<u8>> {
        if let Some(page) = state.pages.get(&n) {
            return Ok(page.clone());
        }
        let mut page = vec![0; PAGE_BYTES];
        let (begin, end) = ((n * PAGE_BYTES) as u64, self.below.len()?);
        if begin < end {
            self.below.read(begin, &mut page)?;
        }
        Ok(page)
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        for (n, bytes) in (page_at(offset, out.len())?..).zip(out.chunks_mut(PAGE_BYTES)) {
            bytes.copy_from_slice(&self.page(&state, n)?[..bytes.len()]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state.lock().len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        for (n, bytes) in (page_at(offset, data.len())?..).zip(data.chunks(PAGE_BYTES)) {
            let mut page = if bytes.len() < PAGE_BYTES { self.page(&state, n)? } else { vec![0; PAGE_BYTES] };
            page[..bytes.len()].copy_from_slice(bytes);
            state.pages.insert(n, page);
        }
        Ok(())
    }
}
