//! The folder of a store: who may use it, and what format it has.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// What is in `FORMAT`, before the number.
const FORMAT_NAME: &str = "turnwise store";
/// Changes when older versions could not read what this one writes.
const FORMAT_VERSION: u32 = 1;
/// Names that may be there before the store was completely created.
const BEFORE_FORMAT: [&str; 2] = ["LOCK", "FORMAT.new"];

/// A folder that this process alone uses, until it is dropped.
pub(super) struct Folder {
    path: PathBuf,
    /// The operating system releases the lock with the file, even if the process is killed.
    _lock: File,
}

impl Folder {
    /// Locks the folder and checks its format; creates it if it is missing or empty.
    pub(super) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| at(path, &error))?;
        check_strangers(path)?;
        let lock_path = path.join("LOCK");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|error| at(&lock_path, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Unavailable(format!(
                    "{} is already in use by another process",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(at(&lock_path, &error)),
        }
        let folder = Folder { path: path.to_owned(), _lock: lock };
        folder.check_format()?;
        Ok(folder)
    }

    /// The file of the rows that have left memory.
    pub(super) fn base(&self) -> PathBuf {
        self.path.join("rows.redb")
    }

    /// The folder of the log.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Makes the names of what was created in it durable.
    pub(super) fn sync(&self) -> Result<()> {
        sync_folder(&self.path).map_err(|error| at(&self.path, &error))
    }

    fn check_format(&self) -> Result<()> {
        let path = self.path.join("FORMAT");
        let format = match fs::read_to_string(&path) {
            Ok(format) => format,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self.write_format().map_err(|error| at(&path, &error));
            }
            Err(error) => return Err(at(&path, &error)),
        };
        match format.trim_end().strip_prefix(FORMAT_NAME).map(str::trim) {
            Some(version) if version == FORMAT_VERSION.to_string() => Ok(()),
            Some(version) => Err(Error::Corrupt(format!(
                "{} has format {version}, and this version of turnwise knows format {FORMAT_VERSION} only",
                self.path.display()
            ))),
            None => Err(Error::Corrupt(format!("{} does not name a format of turnwise", path.display()))),
        }
    }

    /// Written under another name first, so that there is never half of it.
    fn write_format(&self) -> io::Result<()> {
        let new = self.path.join("FORMAT.new");
        let mut file = File::create(&new)?;
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

/// A folder that was filled by something else is left alone.
fn check_strangers(path: &Path) -> Result<()> {
    if path.join("FORMAT").exists() {
        return Ok(());
    }
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
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// What the disk said, and where.
pub(super) fn at(path: &Path, error: &io::Error) -> Error {
    Error::Unavailable(format!("{}: {error}", path.display()))
}
