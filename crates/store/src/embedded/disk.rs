//! The files of a store, and their errors.
//!
//! Every disk call goes through here, so that tests can make any of them fail ([`Faults`]). Errors state the cause in plain
//! words: a full disk is always reported as a full disk, whichever call found it.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folder::PRIVATE_FILE;
use crate::Error;

/// The most bytes that a checkpoint has on their way to the disk. A sync of the log waits for what is on its way: 32 MB would
/// delay all commits by some 25 ms.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// `EMFILE` and `ENFILE` on every Unix.
const NO_DESCRIPTORS: i32 = 24;
const NO_DESCRIPTORS_ON_MACHINE: i32 = 23;

/// The kinds of disk calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskCall {
    /// Create, open or rename a file.
    Open,
    /// Read bytes.
    Read,
    /// Write bytes, or extend a file.
    Write,
    /// Pass written bytes to the disk, which may still lose them.
    WriteOut,
    /// Force written bytes to the disk.
    Sync,
}

type Before = dyn Fn(DiskCall, &Path) -> io::Result<()> + Send + Sync;

/// Makes disk calls fail, for tests.
#[derive(Clone, Default)]
pub struct Faults(Option<Arc<Before>>);

impl Faults {
    /// Runs `before` before each call. If it returns an error, the call fails with this error.
    pub fn new(before: impl Fn(DiskCall, &Path) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Faults(Some(Arc::new(before)))
    }

    fn before(&self, call: DiskCall, path: &Path) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |before| before(call, path))
    }
}

/// How a store uses its disk.
#[derive(Clone)]
pub(super) struct Disk {
    /// Whether a sync waits for the disk.
    pub(super) durable: bool,
    pub(super) faults: Faults,
}

impl Disk {
    /// Opens a file for reading and writing, and creates it if it is missing.
    pub(super) fn create(&self, path: PathBuf) -> io::Result<DiskFile> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).mode(PRIVATE_FILE);
        self.opened(path, &options)
    }

    /// Opens an existing file for reading, and for writing if `write`.
    pub(super) fn open(&self, path: PathBuf, write: bool) -> io::Result<DiskFile> {
        self.opened(path, File::options().read(true).write(write))
    }

    fn opened(&self, path: PathBuf, options: &OpenOptions) -> io::Result<DiskFile> {
        self.faults.before(DiskCall::Open, &path)?;
        Ok(DiskFile { file: options.open(&path)?, path, disk: self.clone() })
    }

    /// Opens a folder, to make the names in it durable.
    pub(super) fn folder(&self, path: PathBuf) -> io::Result<DiskFolder> {
        self.open(path, false).map(DiskFolder)
    }
}

pub(super) struct DiskFile {
    file: File,
    path: PathBuf,
    disk: Disk,
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiskFile").field(&self.path).finish()
    }
}

impl DiskFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_durable(&self) -> bool {
        self.disk.durable
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.faults.before(DiskCall::Read, &self.path)?;
        self.file.read_exact_at(bytes, offset)
    }

    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.len()?).map_err(|_| ErrorKind::FileTooLarge)?;
        let mut bytes = vec![0; len];
        self.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.faults.before(DiskCall::Write, &self.path)?;
        self.file.write_all_at(bytes, offset)
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.faults.before(DiskCall::Write, &self.path)?;
        self.file.set_len(len)
    }

    /// Passes the written bytes of a range to the disk, and waits for that. They are durable after a sync. Where the system has no
    /// such call, the sync does all of it.
    pub(super) fn write_out(&self, range: Range<u64>) -> io::Result<()> {
        self.disk.faults.before(DiskCall::WriteOut, &self.path)?;
        if self.disk.durable { write_out(&self.file, range) } else { Ok(()) }
    }

    /// Waits until written bytes are on the disk. After an error the file's content is unknown: the system may have dropped the
    /// writes, and the next sync succeeds nevertheless. So the caller writes again what it still needs.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.disk.faults.before(DiskCall::Sync, &self.path)?;
        if self.disk.durable { self.file.sync_data() } else { Ok(()) }
    }

    /// Renames the file. The new name is durable after a sync of its folder.
    pub(super) fn rename(&mut self, path: PathBuf) -> io::Result<()> {
        self.disk.faults.before(DiskCall::Open, &path)?;
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }
}

/// An open folder. It stays open, so that a sync needs no new descriptor.
pub(super) struct DiskFolder(DiskFile);

impl DiskFolder {
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.0.disk
    }

    /// Makes the names in the folder durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.disk.faults.before(DiskCall::Sync, self.path())?;
        if self.0.disk.durable { self.0.file.sync_all() } else { Ok(()) }
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn write_out(file: &File, range: Range<u64>) -> io::Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let number = |bytes: u64| i64::try_from(bytes).map_err(|_| io::Error::from(ErrorKind::FileTooLarge));
    let (begin, length) = (number(range.start)?, number(range.end.saturating_sub(range.start))?);
    // SAFETY: the descriptor is open for as long as `file` is borrowed. The other arguments are numbers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), begin, length, flags) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // A kernel or a sandbox without this call.
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(not(target_os = "linux"))]
fn write_out(_: &File, _: Range<u64>) -> io::Result<()> {
    Ok(())
}

/// The error of a disk call at `path`. Without room, the call works again once there is some. An unavailable disk fails once, or
/// permanently.
pub(super) fn at(path: &Path, error: &io::Error) -> Error {
    let place = format!("{}: {error}", path.display());
    match (error.kind(), no_room(error)) {
        (ErrorKind::InvalidData | ErrorKind::UnexpectedEof, _) => damage(path, error),
        (_, Some(what)) => Error::NoRoom { what, place },
        (ErrorKind::ReadOnlyFilesystem, None) => {
            Error::Unavailable(format!("the disk is read-only ({place})"))
        }
        (_, None) => Error::Unavailable(place),
    }
}

/// The error of data at `path` that is not what was written.
pub(super) fn damage(path: &Path, what: impl fmt::Display) -> Error {
    Error::Corrupt(format!("{}: {what}", path.display()))
}

/// The resource that is used up, if that is the cause.
fn no_room(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error() {
        Some(NO_DESCRIPTORS) => return Some("this process has no file descriptors left (ulimit -n)"),
        Some(NO_DESCRIPTORS_ON_MACHINE) => return Some("this machine has no file descriptors left"),
        _ => {}
    }
    match error.kind() {
        ErrorKind::StorageFull => Some("the disk is full"),
        ErrorKind::QuotaExceeded => Some("the disk quota is used up"),
        ErrorKind::FileTooLarge => Some("a file is as large as it may become (ulimit -f)"),
        ErrorKind::OutOfMemory => Some("this machine has no memory left"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_resource_that_is_used_up() {
        for (code, words) in
            [(28, "the disk is full"), (24, "no file descriptors left"), (122, "quota"), (30, "read-only")]
        {
            let error = at(Path::new("/d/log"), &io::Error::from_raw_os_error(code)).to_string();
            assert!(error.contains(words) && error.contains("/d/log"), "{error}");
        }
        let error = |code| at(Path::new("x"), &io::Error::from_raw_os_error(code));
        assert!(matches!(error(28), Error::NoRoom { .. }) && matches!(error(24), Error::NoRoom { .. }));
        assert!(matches!(error(5), Error::Unavailable(_)));
        assert!(matches!(at(Path::new("x"), &ErrorKind::UnexpectedEof.into()), Error::Corrupt(_)));
    }
}
