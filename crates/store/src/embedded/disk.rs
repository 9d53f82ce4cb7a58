//! The files of a store, and what their disk says when it fails.
//!
//! Every call to the disk goes through here, so that tests can let any of them fail ([`Faults`]), and so that errors say in
//! plain words what is wrong: a full disk is called a full disk, wherever it was noticed.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folder::PRIVATE_FILE;
use crate::Error;

/// `EMFILE` and `ENFILE` on every Unix.
const NO_DESCRIPTORS: i32 = 24;
const NO_DESCRIPTORS_ON_MACHINE: i32 = 23;

/// What the engine asks of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskCall {
    /// A file is created, opened or renamed.
    Open,
    /// Bytes are read.
    Read,
    /// Bytes are written, or a file is made longer.
    Write,
    /// What was written is forced to the disk.
    Sync,
}

type Before = dyn Fn(DiskCall, &Path) -> io::Result<()> + Send + Sync;

/// Lets calls to the disk fail, for tests.
#[derive(Clone, Default)]
pub struct Faults(Option<Arc<Before>>);

impl Faults {
    /// Asks `before` about each call: its error takes the call's place.
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
        let file = || {
            File::options().create(true).truncate(false).read(true).write(true).mode(PRIVATE_FILE).open(&path)
        };
        let file = self.faults.before(DiskCall::Open, &path).and_then(|()| file())?;
        Ok(DiskFile { file, path, disk: self.clone() })
    }

    /// Opens a file that is there, for writing, too, if asked for.
    pub(super) fn open(&self, path: PathBuf, write: bool) -> io::Result<DiskFile> {
        let file = || File::options().read(true).write(write).open(&path);
        let file = self.faults.before(DiskCall::Open, &path).and_then(|()| file())?;
        Ok(DiskFile { file, path, disk: self.clone() })
    }

    /// Opens a folder, to make the names in it durable.
    pub(super) fn folder(&self, path: PathBuf) -> io::Result<DiskFolder> {
        self.open(path, false).map(DiskFolder)
    }
}

/// An open file.
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

    /// Whether a sync waits for the disk.
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

    /// All of it.
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

    /// Waits until what was written is on the disk. After an error nobody knows what is there: the system may have dropped
    /// what was written, and the next sync succeeds all the same. So whatever is still needed is written again.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.disk.faults.before(DiskCall::Sync, &self.path)?;
        if self.disk.durable { self.file.sync_data() } else { Ok(()) }
    }

    /// Gives it another name, which is durable after a sync of its folder.
    pub(super) fn rename(&mut self, path: PathBuf) -> io::Result<()> {
        self.disk.faults.before(DiskCall::Open, &path)?;
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }
}

/// An open folder. It stays open, so that no descriptor is needed to sync it.
pub(super) struct DiskFolder(DiskFile);

impl DiskFolder {
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.0.disk
    }

    /// Makes the names in it durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.disk.faults.before(DiskCall::Sync, self.path())?;
        if self.0.disk.durable { self.0.file.sync_all() } else { Ok(()) }
    }
}

/// Why the engine cannot do something.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    pub(super) kind: TroubleKind,
    pub(super) error: Error,
}

/// What can be done about a trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TroubleKind {
    /// There is no room, or no descriptor: it passes when somebody makes some.
    Room,
    /// The disk fails: perhaps once, perhaps for good.
    Disk,
    /// What is stored is not what was written.
    Damage,
}

impl Trouble {
    /// What the disk said, and where.
    pub(super) fn at(path: &Path, error: &io::Error) -> Self {
        let damage = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof].contains(&error.kind());
        if damage {
            return Trouble::damage(path, error);
        }
        let kind = if no_room(error).is_some() { TroubleKind::Room } else { TroubleKind::Disk };
        Trouble { kind, error: at(path, error) }
    }

    /// What is wrong with what is stored, and where.
    pub(super) fn damage(path: &Path, what: impl fmt::Display) -> Self {
        let error = Error::Corrupt(format!("{}: {what}", path.display()));
        Trouble { kind: TroubleKind::Damage, error }
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Error {
        trouble.error
    }
}

/// What the disk said, and where.
pub(super) fn at(path: &Path, error: &io::Error) -> Error {
    let place = format!("{}: {error}", path.display());
    match no_room(error) {
        Some(what) => Error::NoRoom { what, place },
        None if error.kind() == ErrorKind::ReadOnlyFilesystem => {
            Error::Unavailable(format!("the disk is read-only ({place})"))
        }
        None => Error::Unavailable(place),
    }
}

/// What there is no more of, if that is the trouble.
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
    fn what_is_missing_is_said_in_plain_words() {
        for (code, words) in
            [(28, "the disk is full"), (24, "no file descriptors left"), (122, "quota"), (30, "read-only")]
        {
            let error = at(Path::new("/d/log"), &io::Error::from_raw_os_error(code)).to_string();
            assert!(error.contains(words) && error.contains("/d/log"), "{error}");
        }
        let kind = |code| Trouble::at(Path::new("x"), &io::Error::from_raw_os_error(code)).kind;
        assert_eq!([kind(28), kind(24), kind(5)], [TroubleKind::Room, TroubleKind::Room, TroubleKind::Disk]);
        assert_eq!(Trouble::at(Path::new("x"), &ErrorKind::UnexpectedEof.into()).kind, TroubleKind::Damage);
    }
}
