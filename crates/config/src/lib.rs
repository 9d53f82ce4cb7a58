//! The configuration: CouchDB's INI, so that an existing `[replicator]` section works as it is.
//!
//! Keys that turnwise does not know cause a warning and are ignored: the file may be CouchDB's own. The server rejects
//! an invalid value, with its place and a valid form, because running on a guess is worse than not running. If a key
//! occurs twice, the last value applies, as in CouchDB.
//!
//! [`shared`] holds the settings that servers on one store share, and their changes at run time.
//! `docs/configuration.md` describes every key, and [`settings`] defines its valid values.

mod authority;
pub mod cors;
mod effect;
mod entry;
mod parse;
mod settings;
mod shared;
mod slots;
pub mod small_file;
mod text;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use turnwise_outbound::Connections;
use turnwise_policy::backoff::{self, OnLost};
use turnwise_policy::fair_share::{Fairness, Shares, rfc};
use turnwise_policy::predictive_queue::contention::Weight;
use turnwise_protocol::MAX_WAIT_MS;
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::output::{DEFAULT_MAX_ERRORS, DEFAULT_MAX_RESULT_BYTES};
use turnwise_queue::webhooks;
use turnwise_queue::{DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_HISTORY, MAX_INFO_BYTES, Terms};
use turnwise_replicator::Defaults;
use turnwise_replicator::multiplex::Mode;
use turnwise_replicator::ownership::Periods;
use turnwise_replicator::upstream::Address;
use turnwise_worker::{
    DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, DEFAULT_TENANT_LOG_BYTES, EventRules, FairRules,
    QueueRules, RotationRules,
};

pub use self::authority::Authority;
pub use self::cors::Cors;
pub use self::entry::{Entry, Named, TENANT_SHARES, TYPE_TIMEOUTS, TypeTimes};
pub use self::settings::{Changes, SETTINGS, Setting};
pub use self::shared::{Refused, Shared};
pub use self::slots::Slots;
pub use turnwise_telemetry::log::LogSettings;
pub use turnwise_telemetry::otel::OtelSettings;

/// Maximum size of a configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum of a command's output that is kept: a job's result holds 12 kB in total.
const MAX_OUTPUT_BYTES: usize = MAX_INFO_BYTES;

/// All settings, with their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[couchdb] uuid`: the server's UUID, part of every replication id. By default the UUID that the store was created with.
    pub uuid: Option<String>,
    /// `[replicator] max_jobs`: the number of replications that run at the same time.
    pub max_jobs: Slots,
    /// `[replicator] max_history`: the number of events that a job keeps.
    pub max_history: usize,
    /// `[replicator] health_threshold`, `backoff_base_ms`, `backoff_max_exponent`: the backoff of crashed jobs.
    pub backoff: backoff::Rules,
    /// `[replicator] on_lost`: what happens to a replication that is lost with its worker.
    pub on_lost: OnLost,
    /// How the tenants of replications share the slots, and how replications rotate.
    pub fair_share: FairShare,
    /// Defaults for options that a replication leaves out.
    pub replication: Defaults,
    /// The connections of replications: `connection_close_interval`, `connect_to`, and the settings for TLS.
    pub connections: Connections,
    /// `[replicator] multiplex`: whether idle replications are parked.
    pub multiplex: Mode,
    /// `[jobs]`: jobs that are not replications.
    pub jobs: Jobs,
    /// `[events]`: how long and how many events are kept.
    pub events: EventRules,
    /// `[queue]`: the order in which jobs start, and their locks.
    pub queue: Queue,
    /// `[workers]`: the heartbeats of workers.
    pub workers: Workers,
    /// `[listener] names`: further names under which clients may reach this server. `*` allows every name.
    pub listener_names: Vec<String>,
    /// `[listener] certificate`, `key`, `client_ca`: TLS.
    pub tls: TlsFiles,
    /// `[chttpd] enable_cors` and `[cors]`: the sites whose pages may use this server.
    pub cors: Cors,
    /// `[prometheus]`: the metrics.
    pub prometheus: Prometheus,
    /// `[jwt_auth]`: JSON Web Tokens.
    pub jwt: JwtFiles,
    /// `[audit] file`: where requests that change something are logged.
    pub audit_file: Option<PathBuf>,
    /// `[log]`: the level and the form of the log.
    pub log: LogSettings,
    /// `[otel]`: traces.
    pub otel: OtelSettings,
    /// `[limits]`: what each identity may use.
    pub limits: Limits,
    /// `[command]`: jobs that run programs on this machine.
    pub command: Command,
    /// `[upstream] url`: a CouchDB whose replications run here, with the login for it.
    pub upstream: Option<Address>,
    /// `[indexing]`: the CouchDBs whose indexes are kept up to date.
    pub indexing: turnwise_indexer::jobs::Settings,
    /// `[replicator] cluster_start_period`, `cluster_quiet_period`: how long the set of nodes must be unchanged before
    /// the nodes divide the work.
    pub periods: Periods,
}

/// `[listener]`: the files for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// `certificate`: the server's certificate, and the intermediate ones.
    pub certificate: Option<PathBuf>,
    /// `key`: its private key.
    pub key: Option<PathBuf>,
    /// `client_ca`: the authorities whose client certificates are accepted.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// The certificate and its key. Both or none are needed.
    ///
    /// # Errors
    /// The setting that is missing.
    pub fn pair(&self) -> Result<Option<(&Path, &Path)>, String> {
        match (&self.certificate, &self.key, &self.client_ca) {
            (Some(certificate), Some(key), _) => Ok(Some((certificate, key))),
            (None, None, None) => Ok(None),
            (None, None, Some(_)) => Err("[listener] client_ca needs certificate and key".to_owned()),
            _ => Err("[listener] certificate and key need each other".to_owned()),
        }
    }
}

/// `[jwt_auth]`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JwtFiles {
    /// `keys`: the file with the JSON Web Key Set.
    pub keys: Option<PathBuf>,
    /// `audience`: what `aud` must contain.
    pub audience: Option<String>,
    /// `roles_claim_path`: the claim with the scopes: a name, or a path with dots between its parts. `None` is `_couchdb.roles`, as in CouchDB.
    pub roles_claim_path: Option<String>,
}

/// Of `[replicator]`: how the tenants of replications share the slots, and how replications rotate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FairShare {
    /// `fairness`: the policy that chooses the next tenant, and the jobs to preempt.
    pub fairness: Fairness,
    /// `usage_coeff`, `priority_coeff`, `usage_interval`, `priority_interval`, `charge_interval`: for the fairness `rfc`.
    pub rfc: Rfc,
    /// `interval`, `max_churn`, `startup_jitter`, `idle_turn`: the rotation of replications.
    pub rotation: RotationRules,
    /// `[replicator.shares]`
    pub shares: Arc<Shares>,
}

impl FairShare {
    /// The rules of the fairness `rfc`. Steps without an interval of their own happen once per `interval`, as in CouchDB.
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

/// Of `[replicator]`: the parameters of the fairness `rfc`; see [`rfc::Rules`].
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
    /// `retention`: how long an ended job is kept, for all types.
    pub retention: Duration,
    /// `max_wait`: the longest time that a request waits for a job, or for a job's end.
    pub max_wait: Duration,
    /// `max_history`: the number of events that a job keeps.
    pub max_history: usize,
    /// `max_errors`: the number of latest errors with a class or a trace that a job keeps.
    pub max_errors: usize,
    /// `max_result_bytes`: the largest result of a job, in bytes.
    pub max_result_bytes: usize,
    /// `tenant_log_bytes`: the bytes of log that all jobs of a tenant keep together.
    pub tenant_log_bytes: u64,
    /// `health_threshold`, `backoff_base_ms`, `backoff_max_exponent`: the backoff of crashed jobs.
    pub backoff: backoff::Rules,
    /// `on_lost`: what happens to a job that is lost with its worker.
    pub on_lost: OnLost,
    /// `max_attempts`: the attempts of a job that states none; 0 for without end.
    pub max_attempts: u32,
    /// `[timeouts]`: the longest run, by type.
    pub timeouts: Arc<TypeTimes>,
    /// `[heartbeat_timeouts]`: the longest time between two reports of a run, by type.
    pub heartbeat_timeouts: Arc<TypeTimes>,
    /// `[shares]`: the shares of tenants, for all these types.
    pub shares: Arc<Shares>,
}

impl Default for Jobs {
    fn default() -> Self {
        Jobs {
            retention: Duration::from_secs(7 * 24 * 3_600),
            max_wait: Duration::from_millis(MAX_WAIT_MS),
            max_history: DEFAULT_MAX_HISTORY,
            max_errors: DEFAULT_MAX_ERRORS,
            max_result_bytes: DEFAULT_MAX_RESULT_BYTES,
            tenant_log_bytes: DEFAULT_TENANT_LOG_BYTES,
            backoff: Terms::usual().backoff,
            on_lost: OnLost::Count,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            timeouts: Arc::default(),
            heartbeat_timeouts: Arc::default(),
            shares: Arc::default(),
        }
    }
}

impl Jobs {
    /// How tenants share the slots of all types but replications.
    pub fn fair(&self) -> FairRules {
        FairRules { shares: self.shares.clone(), ..FairRules::default() }
    }

    /// The attempts of a job of this type that states none; `None` is without end. A job that belongs to the server is
    /// tried again for as long as what it serves is there.
    pub fn max_attempts(&self, job_type: &str) -> Option<u32> {
        let is_endless =
            [turnwise_replicator::JOB_TYPE, turnwise_indexer::jobs::JOB_TYPE, webhooks::JOB_TYPE]
                .contains(&job_type);
        Some(self.max_attempts).filter(|most| *most > 0 && !is_endless)
    }

    /// The limits on the run time of each type, where one is set.
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
    /// `window`: the minimum number of jobs at the head of the queue that a pass compares.
    pub window: usize,
    /// `tick`: the unit of a waiting job's age.
    pub tick: Duration,
    /// `aging_ticks`: the number of ticks after which a job's weight is zero, and the job may reserve its locks.
    pub aging_ticks: u32,
    /// `base_weight`: the weight of every job, before its comparison with running jobs.
    pub base_weight: Weight,
    /// `waiting_uses_slot`: whether a job keeps its slot while it waits for a lock.
    pub waiting_uses_slot: bool,
    /// `catalogue`: the file from which the locks of jobs that declare none are derived.
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
    /// `health_interval`: the interval between a worker's heartbeats.
    pub health_interval: Duration,
    /// `health_timeout`: how long a worker may miss its heartbeats.
    pub health_timeout: Duration,
    /// `drain_target`: within which time what could run shall have started, where slots follow the demand.
    pub drain_target: Duration,
}

impl Default for Workers {
    fn default() -> Self {
        Workers {
            health_interval: DEFAULT_HEALTH_INTERVAL,
            health_timeout: DEFAULT_HEALTH_TIMEOUT,
            drain_target: Duration::from_secs(60),
        }
    }
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `requests_per_second`: how many requests an identity may send; 0 is no limit.
    pub requests_per_second: u32,
    /// `waiting_jobs`: how many jobs of each type a tenant may have waiting; 0 is no limit.
    pub waiting_jobs: usize,
    /// `workers`: how many workers of each type an identity may register; 0 is no limit.
    pub workers: usize,
    /// `schedules`: how many schedules a tenant may have; 0 is none.
    pub schedules: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { requests_per_second: 0, waiting_jobs: 0, workers: 0, schedules: 1_000 }
    }
}

/// `[prometheus]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prometheus {
    /// `additional_port`: whether the metrics are also served on a port of their own, to everyone who reaches it.
    pub additional_port: bool,
    /// `bind_address`: the address of this port.
    pub bind_address: IpAddr,
    /// `port`: its number.
    pub port: u16,
    /// `tenants`: how many tenants of each job type have metrics of their own.
    pub tenants: usize,
}

impl Default for Prometheus {
    fn default() -> Self {
        Prometheus {
            additional_port: false,
            bind_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 17_986,
            tenants: 50,
        }
    }
}

/// `[command]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// `enabled`: whether clients may add jobs of type `command`, and the server runs them.
    pub enabled: bool,
    /// `max_jobs`: the number of commands that run at the same time.
    pub max_jobs: Slots,
    /// `max_output_bytes`: the maximum that is kept of a command's stdout, and of its stderr.
    pub max_output_bytes: usize,
    /// `programs`: the programs that may run. By default every program.
    pub programs: Option<Vec<String>>,
    /// `env`: the variables that jobs may set. By default all of them if every program may run, and otherwise only harmless ones.
    pub env: Option<Vec<String>>,
    /// `user`: the user of commands, if it is not the server's.
    pub user: Option<String>,
    /// `allow_root`: whether commands may run as root.
    pub allow_root: bool,
    /// `max_memory_bytes`, `max_open_files`, `max_processes`, `max_file_bytes`: the limits of each process.
    pub limits: turnwise_command::Limits,
}

impl Default for Command {
    fn default() -> Self {
        Command {
            enabled: false,
            max_jobs: Slots::from(10),
            max_output_bytes: MAX_OUTPUT_BYTES,
            programs: None,
            env: None,
            user: None,
            allow_root: false,
            limits: turnwise_command::Limits::default(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            uuid: None,
            max_jobs: Slots::from(500),
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
            // A node runs hundreds of them. If it dies, other nodes continue them immediately, as in CouchDB.
            on_lost: OnLost::Requeue,
            fair_share: FairShare::default(),
            replication: Defaults::default(),
            connections: Connections::default(),
            multiplex: Mode::default(),
            jobs: Jobs::default(),
            events: EventRules { keep: Duration::from_secs(24 * 3_600), most: 1_000_000 },
            queue: Queue::default(),
            workers: Workers::default(),
            listener_names: Vec::new(),
            tls: TlsFiles::default(),
            cors: Cors::default(),
            prometheus: Prometheus::default(),
            jwt: JwtFiles::default(),
            audit_file: None,
            log: LogSettings::default(),
            otel: OtelSettings::default(),
            limits: Limits::default(),
            command: Command::default(),
            upstream: None,
            indexing: turnwise_indexer::jobs::Settings::default(),
            periods: Periods::default(),
        }
    }
}

/// A place in the configuration, and the problem there. The text does not contain values of keys that may hold secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, as it was named.
    pub file: String,
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// The problem, and a valid form.
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
    /// How the tenants of replications share the slots, and how replications rotate.
    pub fn replication_rules(&self) -> FairRules {
        let FairShare { fairness, rotation, shares, .. } = &self.fair_share;
        let rotation = RotationRules { quiet_period: self.periods.quiet, ..*rotation };
        FairRules {
            fairness: *fairness,
            rfc: self.fair_share.rfc(),
            shares: shares.clone(),
            rotation: Some(rotation),
        }
    }

    /// The running configuration after the file was read again: settings that can change at run time come from the
    /// file, the others stay.
    pub fn reloaded(&self, file: &Config) -> Config {
        let mut config = self.clone();
        // The rules of `[egress]` apply at once, too, and to this machine alone.
        let applies = |setting: &&Setting| setting.changes == Changes::Live || setting.section == "egress";
        SETTINGS.iter().filter(applies).for_each(|setting| (setting.copy)(file, &mut config));
        TENANT_SHARES.iter().for_each(|shares| shares.copy(file, &mut config));
        TYPE_TIMEOUTS.iter().for_each(|timeouts| timeouts.copy(file, &mut config));
        config
    }

    /// Reads a file. Returns the configuration, and the ignored entries for a warning to the user.
    ///
    /// # Errors
    /// The first invalid line, or why the file cannot be read.
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
    /// The first invalid line.
    pub fn parse(file: &str, text: &str) -> Result<(Config, Vec<Problem>), Problem> {
        parse::parse(file, text)
    }
}

#[cfg(test)]
mod tests;
