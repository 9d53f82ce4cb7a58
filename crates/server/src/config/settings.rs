//! All settings: section and key, valid values, and whether a setting can change while servers run. The file, the API (`/_node/{name}/_config`) and
//! the test of `docs/configuration.md` use this table. No other code contains a setting's name.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::value::{INFINITY, Right, Value, seconds};
use super::{Config, MAX_OUTPUT_BYTES};
use turnwise_policy::fair_share::rfc;
use turnwise_policy::predictive_queue::window;
use turnwise_protocol::MAX_WAIT_MS;
use turnwise_replicator::{MAX_CERTIFICATE_DEPTH, Secret};

/// Upper bound of `minimum_progress`, in bytes.
const MAX_MINIMUM_PROGRESS: u64 = 1 << 30;
const MAX_MS: u64 = 365 * 24 * 3_600_000;
/// Longest first backoff: 49 days.
const MAX_BACKOFF_BASE_MS: i64 = u32::MAX as i64;
/// The interval between two preemption cycles. Each cycle reads rows, and stopping and starting a job has a cost, so the interval has a lower bound.
const INTERVAL_MS: RangeInclusive<u64> = 100..=24 * 3_600_000;
/// Maximum number of jobs that one cycle preempts. The cycle reads as many rows from the store for each waiting tenant.
const MAX_CHURN: usize = 10_000;
/// The intervals t1, t2 and t3 of the fairness `rfc`.
const RFC_INTERVAL_MS: RangeInclusive<i64> =
    *rfc::Rules::INTERVAL_US.start() / 1_000..=*rfc::Rules::INTERVAL_US.end() / 1_000;
/// The longest period over which jobs that start together are spread. Each of them occupies its slot meanwhile.
const MAX_JITTER_MS: u64 = 600_000;
/// How long idle connections are kept. The lower bound is the interval at which the pool looks for expired ones.
const CLOSE_INTERVAL_MS: RangeInclusive<u64> = 100..=24 * 3_600_000;
/// Highest numeric `max_document_id_length`.
const MAX_DOCUMENT_ID_LENGTH: usize = 1 << 20;
/// Longest wait for a revision that the source does not have. It delays the whole batch.
const MAX_MISSING_MS: u64 = 600_000;
/// Maximum number of commands that run at the same time: each needs processes and pipes.
const MAX_COMMANDS: usize = 1_000;
/// Longest time that the set of nodes must be unchanged before the nodes divide the work: an hour.
const MAX_PERIOD_MS: u64 = 3_600_000;
/// Longest time that a worker may miss its heartbeats: a day.
const MAX_HEALTH_MS: u64 = 24 * 3_600_000;
/// The length of a tick. With a tick of a few ms, every job would be older in each pass.
const TICK_MS: RangeInclusive<u64> = 100..=3_600_000;
/// Maximum number of ticks until a job is aged out.
const MAX_AGING_TICKS: u32 = 100_000;

/// Settings whose values may hold secrets.
const WITH_SECRETS: &[(&str, &str)] = &[("upstream", "url")];

/// A setting.
pub struct Setting {
    /// Its section, without brackets.
    pub section: &'static str,
    /// Its key in the section.
    pub key: &'static str,
    /// Whether it can change while servers run.
    pub changes: Changes,
    /// Returns the value as in the file; `None` if the server chooses it.
    read: fn(&Config) -> Option<String>,
    write: fn(&mut Config, Value<'_>) -> Result<(), Right>,
}

/// Whether a setting can change while servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// For all servers on a store, through any of them.
    Live,
    /// Only in each server's file, at its next start. The text is the reason, as a complete sentence.
    InFile(&'static str),
}

use Changes::{InFile, Live};

const AT_START: &str = "It is read when a server starts";
const ABOUT_CONNECTIONS: &str = "Where connections go, and whom they trust, is said on each machine alone";
const ABOUT_A_MACHINE_REACHED: &str = "How a machine is reached is said on that machine alone";
const ABOUT_A_MACHINE: &str = "What may run on a machine is said on that machine alone";

/// All settings, by section.
pub const SETTINGS: &[Setting] = &[
    Setting {
        section: "couchdb",
        key: "uuid",
        changes: InFile("It is a part of every replication's id"),
        read: |config| config.uuid.clone(),
        write: |config, value| set(&mut config.uuid, value.uuid().map(Some)),
    },
    Setting {
        section: "replicator",
        key: "max_jobs",
        changes: Live,
        read: |config| text(config.max_jobs),
        write: |config, value| set(&mut config.max_jobs, value.number(1..=100_000)),
    },
    Setting {
        section: "replicator",
        key: "interval",
        changes: Live,
        read: |config| text(config.fair_share.rotation.interval.as_millis()),
        write: |config, value| set(&mut config.fair_share.rotation.interval, value.ms(INTERVAL_MS)),
    },
    Setting {
        section: "replicator",
        key: "max_churn",
        changes: Live,
        read: |config| text(config.fair_share.rotation.max_churn),
        write: |config, value| set(&mut config.fair_share.rotation.max_churn, value.number(0..=MAX_CHURN)),
    },
    Setting {
        section: "replicator",
        key: "startup_jitter",
        changes: Live,
        read: |config| text(config.fair_share.rotation.startup_jitter.as_millis()),
        write: |config, value| {
            set(&mut config.fair_share.rotation.startup_jitter, value.ms(0..=MAX_JITTER_MS))
        },
    },
    Setting {
        section: "replicator",
        key: "idle_turn",
        changes: Live,
        read: |config| text(config.fair_share.rotation.idle_turn.as_millis()),
        write: |config, value| set(&mut config.fair_share.rotation.idle_turn, value.ms(100..=MAX_MS)),
    },
    Setting {
        section: "replicator",
        key: "multiplex",
        changes: Live,
        read: |config| text(config.multiplex),
        write: |config, value| set(&mut config.multiplex, value.multiplex()),
    },
    Setting {
        section: "replicator",
        key: "fairness",
        changes: Live,
        read: |config| text(config.fair_share.fairness),
        write: |config, value| set(&mut config.fair_share.fairness, value.fairness()),
    },
    Setting {
        section: "replicator",
        key: "usage_coeff",
        changes: Live,
        read: |config| text(config.fair_share.rfc.usage_coeff),
        write: |config, value| {
            set(&mut config.fair_share.rfc.usage_coeff, value.decimal(rfc::Rules::USAGE_COEFF))
        },
    },
    Setting {
        section: "replicator",
        key: "priority_coeff",
        changes: Live,
        read: |config| text(config.fair_share.rfc.priority_coeff),
        write: |config, value| {
            set(&mut config.fair_share.rfc.priority_coeff, value.decimal(rfc::Rules::PRIORITY_COEFF))
        },
    },
    Setting {
        section: "replicator",
        key: "usage_interval",
        changes: Live,
        read: |config| text(config.fair_share.rfc().usage_interval_us / 1_000),
        write: |config, value| {
            set(&mut config.fair_share.rfc.usage_interval_us, value.ms_us(RFC_INTERVAL_MS).map(Some))
        },
    },
    Setting {
        section: "replicator",
        key: "priority_interval",
        changes: Live,
        read: |config| text(config.fair_share.rfc().priority_interval_us / 1_000),
        write: |config, value| {
            set(&mut config.fair_share.rfc.priority_interval_us, value.ms_us(RFC_INTERVAL_MS).map(Some))
        },
    },
    Setting {
        section: "replicator",
        key: "charge_interval",
        changes: Live,
        read: |config| text(config.fair_share.rfc().charge_interval_us / 1_000),
        write: |config, value| {
            set(&mut config.fair_share.rfc.charge_interval_us, value.ms_us(RFC_INTERVAL_MS).map(Some))
        },
    },
    Setting {
        section: "replicator",
        key: "max_history",
        changes: Live,
        read: |config| text(config.max_history),
        write: |config, value| set(&mut config.max_history, value.number(1..=1_000)),
    },
    Setting {
        section: "replicator",
        key: "health_threshold",
        changes: Live,
        read: |config| text(config.backoff.health_threshold_us / 1_000_000),
        write: |config, value| set(&mut config.backoff.health_threshold_us, value.seconds_us()),
    },
    Setting {
        section: "replicator",
        key: "backoff_base_ms",
        changes: Live,
        read: |config| text(config.backoff.base_us / 1_000),
        write: |config, value| set(&mut config.backoff.base_us, value.ms_us(1..=MAX_BACKOFF_BASE_MS)),
    },
    Setting {
        section: "replicator",
        key: "backoff_max_exponent",
        changes: Live,
        read: |config| text(config.backoff.max_exponent),
        write: |config, value| set(&mut config.backoff.max_exponent, value.number(0..=30)),
    },
    Setting {
        section: "replicator",
        key: "on_lost",
        changes: Live,
        read: |config| text(config.on_lost.name()),
        write: |config, value| set(&mut config.on_lost, value.on_lost()),
    },
    Setting {
        section: "replicator",
        key: "worker_processes",
        changes: Live,
        read: |config| text(config.replication.worker_processes),
        write: |config, value| set(&mut config.replication.worker_processes, value.number(1..=100)),
    },
    Setting {
        section: "replicator",
        key: "worker_batch_size",
        changes: Live,
        read: |config| config.replication.worker_batch_size.and_then(text),
        write: |config, value| {
            set(&mut config.replication.worker_batch_size, value.number(1..=100_000).map(Some))
        },
    },
    Setting {
        section: "replicator",
        key: "http_connections",
        changes: Live,
        read: |config| text(config.replication.http_connections),
        write: |config, value| set(&mut config.replication.http_connections, value.number(1..=10_000)),
    },
    Setting {
        section: "replicator",
        key: "connection_timeout",
        changes: Live,
        read: |config| text(config.replication.connection_timeout.as_millis()),
        write: |config, value| set(&mut config.replication.connection_timeout, value.ms(1..=MAX_MS)),
    },
    Setting {
        section: "replicator",
        key: "retries_per_request",
        changes: Live,
        read: |config| text(config.replication.retries_per_request),
        write: |config, value| set(&mut config.replication.retries_per_request, value.number(0..=100)),
    },
    Setting {
        section: "replicator",
        key: "use_checkpoints",
        changes: Live,
        read: |config| text(config.replication.use_checkpoints),
        write: |config, value| set(&mut config.replication.use_checkpoints, value.boolean()),
    },
    Setting {
        section: "replicator",
        key: "checkpoint_interval",
        changes: Live,
        read: |config| text(config.replication.checkpoint_interval.as_millis()),
        write: |config, value| set(&mut config.replication.checkpoint_interval, value.ms(1..=MAX_MS)),
    },
    Setting {
        section: "replicator",
        key: "use_bulk_get",
        changes: Live,
        read: |config| text(config.replication.use_bulk_get),
        write: |config, value| set(&mut config.replication.use_bulk_get, value.boolean()),
    },
    Setting {
        section: "replicator",
        key: "auth_plugins",
        changes: Live,
        read: |config| {
            let names: Vec<String> =
                config.replication.auth_plugins.iter().map(ToString::to_string).collect();
            text(names.join(","))
        },
        write: |config, value| set(&mut config.replication.auth_plugins, value.auth_plugins()),
    },
    Setting {
        section: "replicator",
        key: "session_refresh_interval_sec",
        changes: Live,
        read: |config| seconds(config.replication.session_refresh_interval),
        write: |config, value| {
            set(&mut config.replication.session_refresh_interval, value.seconds(10_000..=MAX_HEALTH_MS))
        },
    },
    Setting {
        section: "replicator",
        key: "max_document_id_length",
        changes: Live,
        read: |config| match config.replication.max_document_id_length {
            None => Some(INFINITY.to_owned()),
            Some(bytes) => text(bytes),
        },
        write: |config, value| {
            set(
                &mut config.replication.max_document_id_length,
                value.number_or_infinity(1..=MAX_DOCUMENT_ID_LENGTH),
            )
        },
    },
    Setting {
        section: "replicator",
        key: "missing_doc_retry_msec",
        changes: Live,
        read: |config| text(config.replication.missing_doc_retry.as_millis()),
        write: |config, value| set(&mut config.replication.missing_doc_retry, value.ms(0..=MAX_MISSING_MS)),
    },
    Setting {
        section: "replicator",
        key: "valid_endpoint_protocols",
        changes: Live,
        read: |config| text(config.replication.endpoint_schemes.join(",")),
        write: |config, value| {
            set(&mut config.replication.endpoint_schemes, value.choices(&["http", "https"]))
        },
    },
    Setting {
        section: "replicator",
        key: "valid_proxy_protocols",
        changes: Live,
        read: |config| text(config.replication.proxy_schemes.join(",")),
        write: |config, value| {
            set(&mut config.replication.proxy_schemes, value.choices(&["http", "https", "socks5"]))
        },
    },
    Setting {
        section: "replicator",
        key: "request_timeout",
        changes: Live,
        read: |config| {
            let timeout = config.replication.request_timeout;
            text(timeout.map_or(INFINITY.to_owned(), |timeout| timeout.as_millis().to_string()))
        },
        write: |config, value| set(&mut config.replication.request_timeout, value.ms_or_infinity(1..=MAX_MS)),
    },
    Setting {
        section: "replicator",
        key: "minimum_progress",
        changes: Live,
        read: |config| text(config.replication.minimum_progress.bytes),
        write: |config, value| {
            set(&mut config.replication.minimum_progress.bytes, value.number(0..=MAX_MINIMUM_PROGRESS))
        },
    },
    Setting {
        section: "replicator",
        key: "progress_interval",
        changes: Live,
        read: |config| text(config.replication.minimum_progress.interval.as_millis()),
        write: |config, value| {
            set(&mut config.replication.minimum_progress.interval, value.ms(1_000..=MAX_MS))
        },
    },
    Setting {
        section: "replicator",
        key: "socket_options",
        changes: Live,
        read: |config| text(config.replication.socket_options),
        write: |config, value| set(&mut config.replication.socket_options, value.socket_options()),
    },
    Setting {
        section: "replicator",
        key: "connection_close_interval",
        changes: Live,
        read: |config| text(config.connections.close_interval.as_millis()),
        write: |config, value| set(&mut config.connections.close_interval, value.ms(CLOSE_INTERVAL_MS)),
    },
    Setting {
        section: "replicator",
        key: "connect_to",
        changes: InFile(ABOUT_CONNECTIONS),
        read: |config| Some(config.connections.connect_to.to_string()).filter(|rules| !rules.is_empty()),
        write: |config, value| set(&mut config.connections.connect_to, value.0.parse()),
    },
    Setting {
        section: "replicator",
        key: "verify_ssl_certificates",
        changes: InFile(ABOUT_CONNECTIONS),
        read: |config| text(config.connections.tls.verify),
        write: |config, value| set(&mut config.connections.tls.verify, value.boolean()),
    },
    Setting {
        section: "replicator",
        key: "ssl_trusted_certificates_file",
        changes: InFile(ABOUT_CONNECTIONS),
        read: |config| path(config.connections.tls.trusted_certificates_file.as_ref()),
        write: |config, value| {
            set(&mut config.connections.tls.trusted_certificates_file, value.file().map(Some))
        },
    },
    Setting {
        section: "replicator",
        key: "ssl_certificate_max_depth",
        changes: InFile(ABOUT_CONNECTIONS),
        read: |config| text(config.connections.tls.max_depth),
        write: |config, value| {
            set(&mut config.connections.tls.max_depth, value.number(0..=MAX_CERTIFICATE_DEPTH))
        },
    },
    Setting {
        section: "replicator",
        key: "cert_file",
        changes: InFile(ABOUT_CONNECTIONS),
        read: |config| path(config.connections.tls.cert_file.as_ref()),
        write: |config, value| set(&mut config.connections.tls.cert_file, value.file().map(Some)),
    },
    Setting {
        section: "replicator",
        key: "key_file",
        changes: InFile(ABOUT_CONNECTIONS),
        read: |config| path(config.connections.tls.key_file.as_ref()),
        write: |config, value| set(&mut config.connections.tls.key_file, value.file().map(Some)),
    },
    Setting {
        section: "replicator",
        key: "password",
        changes: InFile(ABOUT_CONNECTIONS),
        // Readers may see that a password is set, but not the password.
        read: |config| config.connections.tls.password.as_ref().and_then(text),
        write: |config, value| set(&mut config.connections.tls.password, Ok(Some(Secret::new(value.0)))),
    },
    Setting {
        section: "replicator",
        key: "cluster_start_period",
        changes: InFile(AT_START),
        read: |config| seconds(config.periods.start),
        write: |config, value| set(&mut config.periods.start, value.seconds(0..=MAX_PERIOD_MS)),
    },
    Setting {
        section: "replicator",
        key: "cluster_quiet_period",
        changes: InFile(AT_START),
        read: |config| seconds(config.periods.quiet),
        write: |config, value| set(&mut config.periods.quiet, value.seconds(0..=MAX_PERIOD_MS)),
    },
    Setting {
        section: "upstream",
        key: "url",
        changes: InFile(AT_START),
        // The text omits the password.
        read: |config| config.upstream.as_ref().and_then(text),
        write: |config, value| set(&mut config.upstream, value.server().map(Some)),
    },
    Setting {
        section: "jobs",
        key: "retention",
        changes: Live,
        read: |config| seconds(config.jobs.retention),
        write: |config, value| set(&mut config.jobs.retention, value.seconds(0..=MAX_MS)),
    },
    Setting {
        section: "jobs",
        key: "max_history",
        changes: Live,
        read: |config| text(config.jobs.max_history),
        write: |config, value| set(&mut config.jobs.max_history, value.number(1..=1_000)),
    },
    Setting {
        section: "jobs",
        key: "max_wait",
        changes: Live,
        read: |config| seconds(config.jobs.max_wait),
        write: |config, value| set(&mut config.jobs.max_wait, value.seconds(0..=MAX_WAIT_MS)),
    },
    Setting {
        section: "jobs",
        key: "health_threshold",
        changes: Live,
        read: |config| text(config.jobs.backoff.health_threshold_us / 1_000_000),
        write: |config, value| set(&mut config.jobs.backoff.health_threshold_us, value.seconds_us()),
    },
    Setting {
        section: "jobs",
        key: "backoff_base_ms",
        changes: Live,
        read: |config| text(config.jobs.backoff.base_us / 1_000),
        write: |config, value| set(&mut config.jobs.backoff.base_us, value.ms_us(1..=MAX_BACKOFF_BASE_MS)),
    },
    Setting {
        section: "jobs",
        key: "backoff_max_exponent",
        changes: Live,
        read: |config| text(config.jobs.backoff.max_exponent),
        write: |config, value| set(&mut config.jobs.backoff.max_exponent, value.number(0..=30)),
    },
    Setting {
        section: "jobs",
        key: "on_lost",
        changes: Live,
        read: |config| text(config.jobs.on_lost.name()),
        write: |config, value| set(&mut config.jobs.on_lost, value.on_lost()),
    },
    Setting {
        section: "queue",
        key: "window",
        changes: Live,
        read: |config| text(config.queue.window),
        write: |config, value| set(&mut config.queue.window, value.number(1..=window::MAX)),
    },
    Setting {
        section: "queue",
        key: "tick",
        changes: Live,
        read: |config| seconds(config.queue.tick),
        write: |config, value| set(&mut config.queue.tick, value.seconds(TICK_MS)),
    },
    Setting {
        section: "queue",
        key: "aging_ticks",
        changes: Live,
        read: |config| text(config.queue.aging_ticks),
        write: |config, value| set(&mut config.queue.aging_ticks, value.number(0..=MAX_AGING_TICKS)),
    },
    Setting {
        section: "queue",
        key: "base_weight",
        changes: Live,
        read: |config| text(config.queue.base_weight),
        write: |config, value| set(&mut config.queue.base_weight, value.weight()),
    },
    Setting {
        section: "queue",
        key: "waiting_uses_slot",
        changes: Live,
        read: |config| text(config.queue.waiting_uses_slot),
        write: |config, value| set(&mut config.queue.waiting_uses_slot, value.boolean()),
    },
    Setting {
        section: "queue",
        key: "catalogue",
        changes: InFile(AT_START),
        read: |config| path(config.queue.catalogue.as_ref()),
        write: |config, value| set(&mut config.queue.catalogue, value.file().map(Some)),
    },
    Setting {
        section: "workers",
        key: "health_interval",
        changes: InFile(AT_START),
        read: |config| seconds(config.workers.health_interval),
        write: |config, value| set(&mut config.workers.health_interval, value.seconds(10..=MAX_HEALTH_MS)),
    },
    Setting {
        section: "workers",
        key: "health_timeout",
        changes: InFile(AT_START),
        read: |config| seconds(config.workers.health_timeout),
        write: |config, value| set(&mut config.workers.health_timeout, value.seconds(20..=MAX_HEALTH_MS)),
    },
    Setting {
        section: "listener",
        key: "names",
        changes: InFile(ABOUT_A_MACHINE_REACHED),
        read: |config| Some(config.listener_names.join(",")).filter(|names| !names.is_empty()),
        write: |config, value| set(&mut config.listener_names, value.host_names()),
    },
    Setting {
        section: "command",
        key: "enabled",
        changes: InFile(ABOUT_A_MACHINE),
        read: |config| text(config.command.enabled),
        write: |config, value| set(&mut config.command.enabled, value.boolean()),
    },
    Setting {
        section: "command",
        key: "max_jobs",
        changes: Live,
        read: |config| text(config.command.max_jobs),
        write: |config, value| set(&mut config.command.max_jobs, value.number(1..=MAX_COMMANDS)),
    },
    Setting {
        section: "command",
        key: "max_output_bytes",
        changes: InFile(AT_START),
        read: |config| text(config.command.max_output_bytes),
        write: |config, value| set(&mut config.command.max_output_bytes, value.number(0..=MAX_OUTPUT_BYTES)),
    },
    Setting {
        section: "command",
        key: "programs",
        changes: InFile(ABOUT_A_MACHINE),
        read: |config| config.command.programs.as_ref().map(|programs| programs.join(",")),
        write: |config, value| set(&mut config.command.programs, value.programs().map(Some)),
    },
    Setting {
        section: "command",
        key: "env",
        changes: InFile(ABOUT_A_MACHINE),
        read: |config| config.command.env.as_ref().map(|names| names.join(",")),
        write: |config, value| set(&mut config.command.env, value.variables().map(Some)),
    },
];

fn set<T>(place: &mut T, value: Result<T, Right>) -> Result<(), Right> {
    *place = value?;
    Ok(())
}

fn path(file: Option<&PathBuf>) -> Option<String> {
    file.map(|file| file.display().to_string())
}

fn text(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

impl Setting {
    /// The setting of this name.
    pub fn find(section: &str, key: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.section == section && setting.key == key)
    }

    /// Whether the value may hold a secret. Error messages do not contain such values.
    pub fn holds_secret(&self) -> bool {
        WITH_SECRETS.contains(&(self.section, self.key))
    }

    /// The setting's value as in the file, but without secrets. `None` if the server chooses it.
    pub fn read(&self, config: &Config) -> Option<String> {
        (self.read)(config)
    }

    /// Sets the setting's value.
    ///
    /// # Errors
    /// A description of the valid values. In that case nothing is changed.
    pub fn write(&self, config: &mut Config, value: &str) -> Result<(), String> {
        (self.write)(config, Value(value))
    }
}
