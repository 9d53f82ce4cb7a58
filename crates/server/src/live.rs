//! Which settings reach whom: from the configuration to the parts of a running server.

use std::sync::Arc;
use std::time::Duration;

use turnwise_replicator::doc_processor::Settings;
use turnwise_worker::{ExternalOptions, Live, MonitorOptions, RetentionOptions, Tunables};

use crate::config::Config;

/// Between two looks for jobs that have been kept for long enough: a tenth of the retention, within these bounds.
const SHORTEST_RETENTION_PAUSE: Duration = Duration::from_secs(1);
/// See [`SHORTEST_RETENTION_PAUSE`].
const LONGEST_RETENTION_PAUSE: Duration = Duration::from_secs(60);

/// The parts of a server whose settings change while it runs.
pub(crate) struct Parts {
    /// For those who read it when they need it.
    pub config: Live<Arc<Config>>,
    pub replications: Live<Tunables>,
    /// Not where no commands are run.
    pub commands: Option<Live<Tunables>>,
    pub external: Live<ExternalOptions>,
    pub monitor: Live<MonitorOptions>,
    pub retention: Live<RetentionOptions>,
    pub settings: Live<Settings>,
}

impl Parts {
    /// Gives every part what the configuration says now.
    pub fn apply(&self, config: &Config) {
        self.config.set(Arc::new(config.clone()));
        self.replications.set(replications(config));
        if let Some(commands) = &self.commands {
            commands.set(self::commands(config));
        }
        let Config { jobs, replication, .. } = config;
        self.external.set(ExternalOptions {
            max_history: jobs.max_history,
            backoff: jobs.backoff,
            ..self.external.get()
        });
        self.monitor.set(monitor(config));
        self.retention.set(retention(config));
        self.settings.set(Settings { defaults: replication.clone(), ..self.settings.get() });
    }
}

pub(crate) fn replications(config: &Config) -> Tunables {
    Tunables { max_jobs: config.max_jobs, max_history: config.max_history, backoff: config.backoff }
}

pub(crate) fn commands(config: &Config) -> Tunables {
    let Config { command, jobs, .. } = config;
    Tunables { max_jobs: command.max_jobs, max_history: jobs.max_history, backoff: jobs.backoff }
}

pub(crate) fn monitor(config: &Config) -> MonitorOptions {
    MonitorOptions { interval: config.workers.health_interval, max_history: config.jobs.max_history }
}

pub(crate) fn retention(config: &Config) -> RetentionOptions {
    let retention = config.jobs.retention;
    let interval = (retention / 10).clamp(SHORTEST_RETENTION_PAUSE, LONGEST_RETENTION_PAUSE);
    RetentionOptions { retention, interval }
}
