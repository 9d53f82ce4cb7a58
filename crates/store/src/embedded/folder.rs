//! The folder of a store: its lock, its permissions and its format.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::disk::at;
use crate::{Error, Result};

/// The text before the number in `FORMAT`.
const FORMAT_NAME: &str = "turnwise store";
/// Increase it when older versions could not read what this one writes.
const FORMAT_VERSION: u32 = 1;
/// Permissions of a store's folders and files: only for the owner.
pub(crate) const PRIVATE_FOLDER: u32 = 0o700;
pub(super) const PRIVATE_FILE: u32 = 0o600;
/// Names that may exist before the store is complete. `FORMAT` is written last.
const BEFORE_FORMAT: [&str; 7] =
    ["LOCK", "FORMAT.new", "rows.redb", "rows.sums", "rows.redb.new", "rows.sums.new", "log"];

/// A folder that only this process uses until the value is dropped. Or a folder open for reading, shared with other readers.
pub(super) struct Folder {
    path: PathBuf,
    /// Whether its creation was completed.
    is_complete: bool,
    /// The operating system releases the lock with the file, even if the process is killed. A store on a read-only disk may have
    /// none, and needs none.
    _lock: Option<File>,
}

impl Folder {
    /// Locks the folder and checks its permissions and its format. Creates it if it is missing or empty.
    pub(super) fn open(path: &Path) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE_FOLDER)
            .create(path)
            .map_err(|error| at(path, &error))?;
        if !path.join("FORMAT").exists() {
            // Nothing of a store is in it yet.
            check_strangers(path)?;
            tighten(path, PRIVATE_FOLDER);
        }
        check_private(path)?;
        let lock_path = path.join("LOCK");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(PRIVATE_FILE)
            .open(&lock_path)
            .map_err(|error| at(&lock_path, &error))?;
        locked(path, &lock_path, lock.try_lock())?;
        let folder = Folder { path: path.to_owned(), is_complete: is_complete(path)?, _lock: Some(lock) };
        folder.make_private();
        Ok(folder)
    }

    /// Locks the folder against writers and checks its format, without writing.
    pub(super) fn open_to_read(path: &Path) -> Result<Self> {
        let lock_path = path.join("LOCK");
        let lock = match File::open(&lock_path) {
            Ok(lock) => {
                locked(path, &lock_path, lock.try_lock_shared())?;
                Some(lock)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(at(&lock_path, &error)),
        };
        if !is_complete(path)? {
            return Err(Error::Misuse(format!("{} is not a turnwise store", path.display())));
        }
        Ok(Folder { path: path.to_owned(), is_complete: true, _lock: lock })
    }

    /// Removes other users' permissions of what is in the folder, which an unpacked backup may have set. Nobody else could use
    /// them, because the folder itself is private.
    fn make_private(&self) {
        tighten(&self.log(), PRIVATE_FOLDER);
        for folder in [&self.path, &self.log()] {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            for file in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())) {
                tighten(&file.path(), PRIVATE_FILE);
            }
        }
    }

    /// The file of the rows that have left memory.
    pub(super) fn base(&self) -> PathBuf {
        self.path.join("rows.redb")
    }

    /// The file of its pages' checksums.
    pub(super) fn sums(&self) -> PathBuf {
        self.path.join("rows.sums")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Makes the names of the files created in it durable.
    pub(super) fn sync(&self) -> Result<()> {
        sync_folder(&self.path).map_err(|error| at(&self.path, &error))
    }

    /// Writes that the store has the current format. All other names in the folder are durable before.
    pub(super) fn complete(&mut self) -> Result<()> {
        self.write_format().map_err(|error| at(&self.path.join("FORMAT"), &error))?;
        self.is_complete = true;
        Ok(())
    }

    /// Writes under another name first, so that the file is never incomplete.
    fn write_format(&self) -> io::Result<()> {
        sync_folder(&self.path)?;
        let new = self.path.join("FORMAT.new");
        let mut file =
            File::options().create(true).truncate(true).write(true).mode(PRIVATE_FILE).open(&new)?;
        writeln!(file, "{FORMAT_NAME} {FORMAT_VERSION}")?;
        file.sync_all()?;
        fs::rename(&new, self.path.join("FORMAT"))?;
        sync_folder(&self.path)?;
        if let Some(parent) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_folder(parent)?;
        }
        Ok(())
    }
}

/// Rows contain passwords. So this refuses a folder that other users may read, write or search. It does not correct the mode:
/// they may have read the store already, and its owner must know that.
fn check_private(path: &Path) -> Result<()> {
    let mode = fs::metadata(path).map_err(|error| at(path, &error))?.permissions().mode() & 0o777;
    if mode & !PRIVATE_FOLDER == 0 {
        return Ok(());
    }
    let path = path.display();
    Err(Error::Exposed(format!(
        "{path} holds passwords, and its mode {mode:o} lets other users in: chmod -R go-rwx '{path}'"
    )))
}

/// Removes permissions beyond `mode`. Logs a failure and continues.
fn tighten(path: &Path, mode: u32) {
    let Ok(found) = fs::metadata(path) else { return };
    let found = found.permissions().mode() & 0o7777;
    if found & !mode == 0 {
        return;
    }
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(found & mode)) {
        tracing::warn!(path = %path.display(), %error, "its mode {found:o} permits other users to use it");
    }
}

fn locked(path: &Path, lock_path: &Path, locked: Result<(), TryLockError>) -> Result<()> {
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::Unavailable(format!(
            "{} is already in use by another process, and an embedded store has one user at a time",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(at(lock_path, &error)),
    }
}

/// Whether the folder's `FORMAT` file states the format, which it does once the creation is completed.
fn is_complete(folder: &Path) -> Result<bool> {
    let path = folder.join("FORMAT");
    let format = match fs::read_to_string(&path) {
        Ok(format) => format,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(at(&path, &error)),
    };
    let Some(version) = format.trim_end().strip_prefix(FORMAT_NAME).map(str::trim) else {
        return Err(Error::Corrupt(format!("{} does not name a format of turnwise", path.display())));
    };
    match version.parse() {
        Ok(FORMAT_VERSION) => Ok(true),
        _ => Err(Error::Corrupt(format!(
            "{} has format {version}, and this version of turnwise knows format {FORMAT_VERSION} only",
            folder.display()
        ))),
    }
}

/// Refuses a folder that contains files of another program.
fn check_strangers(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).map_err(|error| at(path, &error))? {
        let name = entry.map_err(|error| at(path, &error))?.file_name();
        if !BEFORE_FORMAT.iter().any(|known| name == *known) {
            return Err(Error::Misuse(format!(
                "{} is not a turnwise store: it holds {}; name an empty or a new folder",
                path.display(),
                name.display()
            )));
        }
    }
    Ok(())
}

/// Makes the names in a folder durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
