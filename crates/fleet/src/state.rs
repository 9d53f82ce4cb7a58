//! What runs, on disk: a supervisor that starts again finds its processes.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The format of the file.
const VERSION: u32 = 1;
/// How often to ask for the lock again. A process that is between `fork` and `exec` may still have that of a killed supervisor.
const LOCK_ATTEMPTS: usize = 20;
/// The time between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// What the file holds.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub version: u32,
    /// The boot and the namespace in which the ids below mean something.
    pub place: String,
    /// The number of the next process.
    pub next: u64,
    pub processes: Vec<Record>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub number: u64,
    /// Its name at the server, if it is a `turnwise work`, and in its environment.
    pub name: String,
    #[serde(rename = "type")]
    pub job_type: String,
    /// What it runs: the words of its configuration.
    pub runs: Vec<String>,
    pub pid: u32,
    /// When the process has started, in ticks of its boot.
    pub started_ticks: u64,
    /// The same in ms since the Unix epoch.
    pub started_ms: u64,
    /// When it got SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping_ms: Option<u64>,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error(
        "another fleet runs with the state in {0}: stop it, or give this one its own folder with --state"
    )]
    Locked(String),
    #[error("{0}: {1}")]
    Io(String, io::Error),
    #[error("{0}: is no state of this release ({1}): end the workers of this fleet, then remove the file")]
    Foreign(String, String),
}

/// The folder of the state, locked for this process.
#[derive(Debug)]
pub(crate) struct State {
    folder: PathBuf,
    _lock: File,
}

impl State {
    /// Opens the folder, and creates it if it is missing.
    pub fn open(folder: &Path) -> Result<(State, Saved), StateError> {
        let failed = |error| StateError::Io(folder.display().to_string(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let lock = private().open(folder.join("lock")).map_err(failed)?;
        for attempt in 1.. {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if attempt < LOCK_ATTEMPTS => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::WouldBlock) => {
                    return Err(StateError::Locked(folder.display().to_string()));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        let state = State { folder: folder.to_owned(), _lock: lock };
        let file = state.file();
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((state, Saved::default())),
            Err(error) => return Err(StateError::Io(file.display().to_string(), error)),
        };
        let foreign = |problem: String| StateError::Foreign(file.display().to_string(), problem);
        let saved: Saved = serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))?;
        match saved.version {
            VERSION => Ok((state, saved)),
            other => Err(foreign(format!("version {other}"))),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    /// Replaces the file at once: it is the old or the new one also after a crash.
    pub fn save(&self, saved: &mut Saved) -> io::Result<()> {
        saved.version = VERSION;
        let new = self.folder.join("state.json.new");
        let mut file = private().truncate(true).open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(saved)?)?;
        file.sync_data()?;
        std::fs::rename(new, self.file())
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_state_is_read_again_and_is_private_and_has_one_owner() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        let (state, mut saved) = State::open(&folder).unwrap();
        assert_eq!(saved, Saved::default());
        saved.place = "here".to_owned();
        saved.next = 8;
        saved.processes.push(Record {
            number: 7,
            name: "f-mail-7".to_owned(),
            job_type: "mail".to_owned(),
            runs: vec!["./w".to_owned()],
            pid: 17,
            started_ticks: 1,
            started_ms: 2,
            stopping_ms: Some(3),
        });
        state.save(&mut saved).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("state.json"))), (0o700, 0o600));
        let problem = State::open(&folder).unwrap_err().to_string();
        assert!(problem.contains("another fleet runs with the state in"), "{problem}");
        drop(state);
        assert_eq!(State::open(&folder).unwrap().1, saved);
        for text in ["{", "{\"version\":2,\"place\":\"\",\"next\":0,\"processes\":[]}"] {
            std::fs::write(folder.join("state.json"), text).unwrap();
            let problem = State::open(&folder).unwrap_err().to_string();
            assert!(problem.contains("is no state of this release"), "{problem}");
        }
    }
}
