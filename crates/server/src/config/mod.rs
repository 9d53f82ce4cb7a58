//! The configuration: CouchDB's INI, so that an existing `[replicator]` section works as it is.
//!
//! A key that turnwise does not know is warned about and ignored: the file may be CouchDB's own. A value that
//! cannot be right is refused, with its place and with what would be right: running on a guess would be worse
//! than not running. A key that is given twice counts the last time, as in CouchDB.
//!
//! What servers on one store share of it, and how it changes while they run: [`shared`]. Every key and what it does:
//! `docs/configuration.md`; what it may be: [`settings`].

mod effect;
mod entry;
mod parse;
mod settings;
mod shared;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::backoff::{self, OnLost};
use turnwise_policy::fair_share::{Fairness, Shares, rfc};
use turnwise_policy::predictive_queue::contention::Weight;
use turnwise_protocol::MAX_WAIT_MS;
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::{DEFAULT_MAX_HISTORY, MAX_INFO_BYTES};
use turnwise_replicator::multiplex::Mode;
use turnwise_replicator::ownership::Periods;
use turnwise_replicator::upstream::Address;
use turnwise_replicator::{Connections, Defaults};
use turnwise_worker::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, QueueRules, RotationRules};

pub(crate) use self::entry::Entry;
pub use self::entry::{TENANT_SHARES, TYPE_TIMEOUTS, TenantShares, TypeTimeouts, TypeTimes};
pub use self::settings::{Changes, SETTINGS, Setting};
pub(crate) use self::shared::{Refused, Shared};

/// A configuration file is not larger than this, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most that can be kept of a command's output: a job's result has 12 kB for all of it.
const MAX_OUTPUT_BYTES: usize = MAX_INFO_BYTES;

/// Everything that can be configured, with its default.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[couchdb] uuid`: the server's UUID, part of every replication id. Without, the one that the store was created with.
    pub uuid: Option<String>,
    /// `[replicator] max_jobs`: replications that run at the same time.
    pub max_jobs: usize,
    /// `[replicator] max_history`: events that a job keeps.
    pub max_history: usize,
    /// `[replicator] health_threshold`, `backoff_base_ms`, `backoff_max_exponent`: how long crashed jobs wait.
    pub backoff: backoff::Rules,
    /// `[replicator] on_lost`: what the loss of its worker is to a replication.
    pub on_lost: OnLost,
    /// How replications of many tenants share the room, and take turns.
    pub fair_share: FairShare,
    /// What holds for replications that do not say otherwise.
    pub replication: Defaults,
    /// How replications connect: `connection_close_interval`, `connect_to`, and what is about TLS.
    pub connections: Connections,
    /// `[replicator] multiplex`: whether replications that have nothing to do are parked.
    pub multiplex: Mode,
    /// `[jobs]`: jobs that are not replications.
    pub jobs: Jobs,
    /// `[queue]`: in which order jobs are taken, and what they lock.
    pub queue: Queue,
    /// `[workers]`: how workers show that they live.
    pub workers: Workers,
    /// `[listener] names`: further names under which clients may reach this server; `*` is every name.
    pub listener_names: Vec<String>,
    /// `[command]`: jobs that run programs on this machine.
    pub command: Command,
    /// `[upstream] url`: a CouchDB whose replications run here; with its login.
    pub upstream: Option<Address>,
    /// `[replicator] cluster_start_period`, `cluster_quiet_period`: how long the nodes must not change before work is shared out.
    pub periods: Periods,
}

/// Of `[replicator]`: how replications of many tenants share the room, and take turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FairShare {
    /// `fairness`: how the next tenant is chosen, and which jobs are preempted.
    pub fairness: Fairness,
    /// `usage_coeff`, `priority_coeff`, `usage_interval`, `priority_interval`, `charge_interval`: of the fairness `rfc`.
    pub rfc: Rfc,
    /// `interval`, `max_churn`, `startup_jitter`, `idle_turn`: how replications take turns.
    pub rotation: RotationRules,
    /// `[replicator.shares]`
    pub shares: Arc<Shares>,
}

impl FairShare {
    /// The rules of the fairness `rfc`. What has no interval of its own happens once in each `interval`, as in CouchDB.
    pub fn rfc(&self) -> rfc::Rules {
        let interval_us = i64::try_from(self.rotation.interval.as_micros()).unwrap_or(i64::MAX);
        let cycle_us = interval_us.clamp(*rfc::Rules::INTERVAL_US.start(), *rfc::Rules::INTERVAL_US.end());
        let Rfc { usage_coeff, priority_coeff, usage_interval_us, priority_interval_us, charge_interval_us } =
            self.rfc;
        rfc::Rules {
            usage_coeff,
            priority_coeff,
            usage_interval_us: usage_interval_us.unwrap_or(cycle_us),
            priority_interval_us: priority_interval_us.unwrap_or(cycle_us),
            charge_interval_us: charge_interval_us.unwrap_or(cycle_us),
        }
    }
}

/// Of `[replicator]`: what the fairness `rfc` goes by; see [`rfc::Rules`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rfc {
    /// `usage_coeff`
    pub usage_coeff: f64,
    /// `priority_coeff`
    pub priority_coeff: f64,
    /// `usage_interval`, if it is not `interval`.
    pub usage_interval_us: Option<i64>,
    /// `priority_interval`, if it is not `interval`.
    pub priority_interval_us: Option<i64>,
    /// `charge_interval`, if it is not `interval`.
    pub charge_interval_us: Option<i64>,
}

impl Default for Rfc {
    fn default() -> Self {
        let rfc::Rules { usage_coeff, priority_coeff, .. } = rfc::Rules::default();
        Rfc {
            usage_coeff,
            priority_coeff,
            usage_interval_us: None,
            priority_interval_us: None,
            charge_interval_us: None,
        }
    }
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
    /// `on_lost`: what the loss of its worker is to a job.
    pub on_lost: OnLost,
    /// `[timeouts]`: how long a run may last, by type.
    pub timeouts: Arc<TypeTimes>,
    /// `[heartbeat_timeouts]`: for how long a run may report nothing, by type.
    pub heartbeat_timeouts: Arc<TypeTimes>,
    /// `[shares]`: of the tenants of all these types.
    pub shares: Arc<Shares>,
}

impl Default for Jobs {
    fn default() -> Self {
        Jobs {
            retention: Duration::from_secs(7 * 24 * 3_600),
            max_wait: Duration::from_millis(MAX_WAIT_MS),
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
            on_lost: OnLost::Count,
            timeouts: Arc::default(),
            heartbeat_timeouts: Arc::default(),
            shares: Arc::default(),
        }
    }
}

impl Jobs {
    /// How long the runs of each type may take, where that has a bound.
    pub fn timeouts(&self) -> BTreeMap<String, Timeouts> {
        let us = |time: &Duration| i64::try_from(time.as_micros()).ok();
        let mut timeouts: BTreeMap<String, Timeouts> = BTreeMap::new();
        for (job_type, time) in self.timeouts.iter() {
            timeouts.entry(job_type.clone()).or_default().run_us = us(time);
        }
        for (job_type, time) in self.heartbeat_timeouts.iter() {
            timeouts.entry(job_type.clone()).or_default().heartbeat_us = us(time);
        }
        timeouts
    }
}

/// `[queue]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// `window`: jobs of the queue's front that are compared, at least.
    pub window: usize,
    /// `tick`: how often jobs grow older.
    pub tick: Duration,
    /// `aging_ticks`: ticks after which a job weighs nothing, and reserves its locks.
    pub aging_ticks: u32,
    /// `base_weight`: what a job weighs before it is compared with those that run.
    pub base_weight: Weight,
    /// `waiting_uses_slot`: whether a job keeps its slot while it waits for a lock.
    pub waiting_uses_slot: bool,
    /// `catalogue`: the file that says what jobs lock which do not say it themselves.
    pub catalogue: Option<PathBuf>,
}

impl Default for Queue {
    fn default() -> Self {
        let QueueRules { window, rules, waiting_uses_slot, .. } = QueueRules::default();
        let tick = Duration::from_micros(rules.aging.tick_us.unsigned_abs());
        Queue {
            window,
            tick,
            aging_ticks: rules.aging.ticks,
            base_weight: rules.base,
            waiting_uses_slot,
            catalogue: None,
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
    /// `env`: the variables that jobs may set; without, all where every program may be run, and otherwise harmless ones.
    pub env: Option<Vec<String>>,
}

impl Default for Command {
    fn default() -> Self {
        Command {
            enabled: false,
            max_jobs: 10,
            max_output_bytes: MAX_OUTPUT_BYTES,
            programs: None,
            env: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            uuid: None,
            max_jobs: 500,
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
            // A node runs hundreds of them: those of one that dies go on at once on the others, as with CouchDB.
            on_lost: OnLost::Requeue,
            fair_share: FairShare::default(),
            replication: Defaults::default(),
            connections: Connections::default(),
            multiplex: Mode::default(),
            jobs: Jobs::default(),
            queue: Queue::default(),
            workers: Workers::default(),
            listener_names: Vec::new(),
            command: Command::default(),
            upstream: None,
            periods: Periods::default(),
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
    /// What of a file that was read again is in force at once: what can change while a server runs. The rest stays as it was.
    pub(crate) fn reloaded(&self, file: Config) -> Config {
        let running = self.clone();
        Config {
            uuid: running.uuid,
            connections: Connections {
                close_interval: file.connections.close_interval,
                ..running.connections
            },
            queue: Queue { catalogue: running.queue.catalogue, ..file.queue },
            workers: running.workers,
            command: Command { max_jobs: file.command.max_jobs, ..running.command },
            upstream: running.upstream,
            periods: running.periods,
            ..file
        }
    }

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
