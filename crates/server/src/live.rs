//! Distributes settings from the configuration to the parts of a running server.

use std::sync::Arc;
use std::time::Duration;

use turnwise_config as config;
use turnwise_config::Config;
use turnwise_indexer::jobs::{Indexing, LEVEL, Settings as IndexSettings};
use turnwise_outbound::Client;
use turnwise_policy::predictive_queue::aging::{Aging, Rules};
use turnwise_policy::predictive_queue::locks::{Level, Levels};
use turnwise_replicator::doc_processor::Settings;
use turnwise_replicator::multiplex::Mode;
use turnwise_telemetry::{log, otel};
use turnwise_worker::{EventRules, Live, QueueRules, RetentionOptions, Tunables};

use crate::job_types::{EVERY_OTHER_TYPE, Tune, tunables};

/// The pause between two removals of ended jobs: a tenth of the retention, within these bounds.
const SHORTEST_RETENTION_PAUSE: Duration = Duration::from_secs(1);
/// See [`SHORTEST_RETENTION_PAUSE`].
const LONGEST_RETENTION_PAUSE: Duration = Duration::from_secs(60);

/// The parts of a server whose settings change while it runs.
pub(crate) struct Parts {
    /// For parts that read the configuration on each use.
    pub config: Live<Arc<Config>>,
    /// The workers of this server.
    pub workers: Vec<(Live<Tunables>, Tune)>,
    pub external: Live<Tunables>,
    pub retention: Live<RetentionOptions>,
    /// Of a tenant and a type, for the fires of schedules.
    pub waiting_jobs: Live<usize>,
    pub events: Live<EventRules>,
    pub settings: Live<Settings>,
    /// The connections of replications.
    pub client: Client,
    pub multiplex: Live<Mode>,
    /// The export of traces, if there is one.
    pub traces: Option<Arc<otel::Queue>>,
    /// The levels of locks.
    pub levels: Levels,
}

impl Parts {
    /// Passes the current configuration to every part.
    pub fn apply(&self, config: &Config) {
        log::set_level(&config.log);
        if let Some(traces) = &self.traces {
            traces.set_sample_ratio(config.otel.sample_ratio);
        }
        self.config.set(Arc::new(config.clone()));
        let queue = queue(config, &self.levels);
        for (tunables, tune) in &self.workers {
            tunables.update(|now| tune(config, &queue, now.max_jobs));
        }
        self.multiplex.set(config.multiplex);
        let Config { replication, connections, .. } = config;
        self.client.set_close_interval(connections.close_interval);
        self.client.set_egress(&connections.egress);
        self.external.set(tunables(config, &queue, EVERY_OTHER_TYPE, 0));
        self.retention.set(retention(config));
        self.waiting_jobs.set(config.limits.waiting_jobs);
        self.events.set(config.events);
        self.settings.set(Settings { defaults: replication.clone(), ..self.settings.get() });
    }
}

/// The levels of locks: those of the catalogue, and below them the servers whose indexes are built.
///
/// # Errors
/// The catalogue has no room for one more level.
pub(crate) fn levels(catalogue: &Levels, indexing: &IndexSettings) -> Result<Levels, String> {
    if indexing.servers.is_empty() || catalogue.position(LEVEL).is_some() {
        return Ok(catalogue.clone());
    }
    let mut levels: Vec<Level> = catalogue.clone().into();
    levels.push(Indexing::level(indexing));
    Levels::try_from(levels)
}

/// The rules that order jobs with locks.
pub(crate) fn queue(config: &Config, levels: &Levels) -> Arc<QueueRules> {
    let config::Queue { window, tick, aging_ticks, base_weight, waiting_uses_slot, .. } = config.queue;
    let aging = Aging { tick_us: i64::try_from(tick.as_micros()).unwrap_or(i64::MAX), ticks: aging_ticks };
    let rules = Rules { base: base_weight, aging };
    Arc::new(QueueRules { levels: levels.clone(), window, rules, waiting_uses_slot })
}

pub(crate) fn retention(config: &Config) -> RetentionOptions {
    let retention = config.jobs.retention;
    let interval = (retention / 10).clamp(SHORTEST_RETENTION_PAUSE, LONGEST_RETENTION_PAUSE);
    RetentionOptions { retention, interval, tenant_log_bytes: config.jobs.tenant_log_bytes }
}
