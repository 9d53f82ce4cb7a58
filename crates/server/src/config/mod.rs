//! The configuration: CouchDB's INI, so that an existing `[replicator]` section works as it is.
//!
//! A key that turnwise does not know is warned about and ignored: the file may be CouchDB's own. A value that
//! cannot be right is refused, with its place and with what would be right: running on a guess would be worse
//! than not running. A key that is given twice counts the last time, as in CouchDB.
//!
//! What servers on one store share of it, and how it changes while they run: [`shared`]. Every key and what it does:
//! `docs/configuration.md`; what it may be: [`settings`].

mod parse;
mod settings;
mod shared;
mod value;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use turnwise_policy::backoff;
use turnwise_protocol::MAX_WAIT_MS;
use turnwise_queue::{DEFAULT_MAX_HISTORY, MAX_INFO_BYTES};
use turnwise_replicator::Defaults;
use turnwise_worker::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT};

pub use self::settings::{Changes, SETTINGS, Setting};
pub(crate) use self::shared::{Refused, Shared};

/// A configuration file is not larger than this, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most that can be kept of a command's output: a job's result has 12 kB for all of it.
const MAX_OUTPUT_BYTES: usize = MAX_INFO_BYTES;

/// Everything that can be configured, with its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[couchdb] uuid`: the server's UUID, part of every replication id. Without, the one that the store was created with.
    pub uuid: Option<String>,
    /// `[replicator] max_jobs`: replications that run at the same time.
    pub max_jobs: usize,
    /// `[replicator] max_history`: events that a job keeps.
    pub max_history: usize,
    /// `[replicator] health_threshold`, `backoff_base_ms`, `backoff_max_exponent`: how long crashed jobs wait.
    pub backoff: backoff::Rules,
    /// What holds for replications that do not say otherwise.
    pub replication: Defaults,
    /// `[jobs]`: jobs that are not replications.
    pub jobs: Jobs,
    /// `[workers]`: how workers show that they live.
    pub workers: Workers,
    /// `[command]`: jobs that run programs on this machine.
    pub command: Command,
}

/// `[jobs]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jobs {
    /// `retention`: how long a job is kept after its end, whatever its type.
    pub retention: Duration,
    /// `max_wait`: how long a request waits at most, for a job or for a job's end.
    pub max_wait: Duration,
    /// `max_history`: events that a job keeps.
    pub max_history: usize,
    /// `health_threshold`, `backoff_base_ms`, `backoff_max_exponent`: how long crashed jobs wait.
    pub backoff: backoff::Rules,
}

impl Default for Jobs {
    fn default() -> Self {
        Jobs {
            retention: Duration::from_secs(7 * 24 * 3_600),
            max_wait: Duration::from_millis(MAX_WAIT_MS),
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
        }
    }
}

/// `[workers]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// `health_interval`: how often a worker pings.
    pub health_interval: Duration,
    /// `health_timeout`: how long it may be silent.
    pub health_timeout: Duration,
}

impl Default for Workers {
    fn default() -> Self {
        Workers { health_interval: DEFAULT_HEALTH_INTERVAL, health_timeout: DEFAULT_HEALTH_TIMEOUT }
    }
}

/// `[command]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// `enabled`: whether jobs of type `command` may be added, and are run.
    pub enabled: bool,
    /// `max_jobs`: commands that run at the same time.
    pub max_jobs: usize,
    /// `max_output_bytes`: what is kept of a command's stdout, and as much of its stderr.
    pub max_output_bytes: usize,
    /// `programs`: those that may be run; without, every one.
    pub programs: Option<Vec<String>>,
}

impl Default for Command {
    fn default() -> Self {
        Command { enabled: false, max_jobs: 10, max_output_bytes: MAX_OUTPUT_BYTES, programs: None }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            uuid: None,
            max_jobs: 500,
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
            replication: Defaults::default(),
            jobs: Jobs::default(),
            workers: Workers::default(),
            command: Command::default(),
        }
    }
}

/// A place in the configuration and what is wrong there. Values of keys that may hold secrets are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, as it was named.
    pub file: String,
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}: {}", self.file, self.text),
        }
    }
}

impl std::error::Error for Problem {}

impl Config {
    /// Reads a file. What was ignored is returned beside the configuration, to be told to the user.
    ///
    /// # Errors
    /// The first line that cannot be right, or why the file cannot be read.
    pub fn load(path: &Path) -> Result<(Config, Vec<Problem>), Problem> {
        let file = path.display().to_string();
        let unreadable = |text: String| Problem { file: file.clone(), line: 0, text };
        let bytes = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
        if bytes > MAX_FILE_BYTES {
            return Err(unreadable(format!("has {bytes} bytes; at most {MAX_FILE_BYTES} are read")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        Config::parse(&file, &text)
    }

    /// Reads the text of a file called `file`; see [`load`](Config::load).
    ///
    /// # Errors
    /// The first line that cannot be right.
    pub fn parse(file: &str, text: &str) -> Result<(Config, Vec<Problem>), Problem> {
        parse::parse(file, text)
    }
}

#[cfg(test)]
mod tests;
