//! Every setting: where it stands, what it may be, and whether it can change while servers run. The file, the API
//! (`/_node/{name}/_config`) and the test of `docs/configuration.md` read this table, and nothing else knows a setting's name.

use super::value::{Right, Value, seconds};
use super::{Config, MAX_OUTPUT_BYTES};
use turnwise_protocol::MAX_WAIT_MS;

const MAX_MS: u64 = 365 * 24 * 3_600_000;
/// Commands that can run at the same time at most: each has processes and pipes.
const MAX_COMMANDS: usize = 1_000;
/// Longest time that a worker may be silent: a day.
const MAX_HEALTH_MS: u64 = 24 * 3_600_000;

/// A setting.
pub struct Setting {
    /// Its section, without brackets.
    pub section: &'static str,
    /// Its name there.
    pub key: &'static str,
    /// Whether it can change while servers run.
    pub changes: Changes,
    /// Its value as it would stand in the file; none where it is left to the server.
    read: fn(&Config) -> Option<String>,
    write: fn(&mut Config, Value<'_>) -> Result<(), Right>,
}

/// Whether a setting can change while servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// For all servers on a store at once, through any of them.
    Live,
    /// Only in the file of each server, for its next start. Why, as a sentence of its own.
    InFile(&'static str),
}

use Changes::{InFile, Live};

const AT_START: &str = "It is read when a server starts";
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
        write: |config, value| set(&mut config.backoff.base_us, value.ms_us()),
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
        key: "valid_endpoint_protocols",
        changes: Live,
        read: |config| text(config.replication.endpoint_schemes.join(",")),
        write: |config, value| {
            set(&mut config.replication.endpoint_schemes, value.choices(&["http", "https"]))
        },
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
        write: |config, value| set(&mut config.jobs.backoff.base_us, value.ms_us()),
    },
    Setting {
        section: "jobs",
        key: "backoff_max_exponent",
        changes: Live,
        read: |config| text(config.jobs.backoff.max_exponent),
        write: |config, value| set(&mut config.jobs.backoff.max_exponent, value.number(0..=30)),
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
];

fn set<T>(place: &mut T, value: Result<T, Right>) -> Result<(), Right> {
    *place = value?;
    Ok(())
}

fn text(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

impl Setting {
    /// The setting of this name.
    pub fn find(section: &str, key: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.section == section && setting.key == key)
    }

    /// Its value in a configuration, as it would stand in the file; none where it is left to the server.
    pub fn read(&self, config: &Config) -> Option<String> {
        (self.read)(config)
    }

    /// Gives it a value.
    ///
    /// # Errors
    /// What would be right; then nothing is changed.
    pub fn write(&self, config: &mut Config, value: &str) -> Result<(), String> {
        (self.write)(config, Value(value))
    }
}
