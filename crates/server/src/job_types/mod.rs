//! The job types that a server runs itself, a file each: the handler, the settings of its worker, and the services beside it.

pub(crate) mod command;
pub(crate) mod indexing;
pub(crate) mod replication;
pub(crate) mod webhook;

use std::sync::Arc;

use turnwise_config::{Config, Slots};
use turnwise_outbound::Client;
use turnwise_queue::Keyspace;
use turnwise_replicator::doc_processor::Settings;
use turnwise_worker::{JobHandler, Live, Options, QueueRules, Tunables, Worker};

use crate::start::{Opened, StartError};

/// How the configuration sets the worker of a type, which has so many slots now.
pub(crate) type Tune = fn(&Config, &Arc<QueueRules>, usize) -> Tunables;

/// A type that this server runs.
pub(crate) struct JobType {
    pub name: &'static str,
    pub worker: Worker,
    /// What the configuration changes while it runs.
    pub tune: Tune,
    /// Its setting of slots, if they may follow the demand.
    pub slots: Option<fn(&Config) -> Slots>,
}

/// What the start of every type needs.
pub(crate) struct Start<'a> {
    pub opened: &'a Opened,
    pub keys: &'a Keyspace,
    pub config: &'a Config,
    /// The settings of replications, which change while they run.
    pub settings: &'a Live<Settings>,
    /// The connections to other servers.
    pub client: &'a Client,
    pub queue: &'a Arc<QueueRules>,
    /// What the workers of all types have in common.
    pub options: &'a Options,
}

impl Start<'_> {
    /// Starts the worker of a type, with its fewest slots.
    async fn worker(
        &self,
        name: &'static str,
        handler: Arc<dyn JobHandler>,
        tune: Tune,
        least: usize,
    ) -> Result<Worker, StartError> {
        let options = Options { tunables: tune(self.config, self.queue, least), ..self.options.clone() };
        let (store, keys) = (self.opened.store.clone(), self.keys.clone());
        self.opened.asked(Worker::start(store, keys, name, handler, options)).await
    }
}

/// Stands for the types of external workers, where no type is named.
pub(crate) const EVERY_OTHER_TYPE: &str = "";

/// The settings of a worker whose type has none of its own.
pub(crate) fn tunables(
    config: &Config,
    queue: &Arc<QueueRules>,
    job_type: &str,
    max_jobs: usize,
) -> Tunables {
    let jobs = &config.jobs;
    Tunables {
        max_jobs,
        bounds: None,
        max_history: jobs.max_history,
        max_errors: jobs.max_errors,
        max_result_bytes: jobs.max_result_bytes,
        backoff: jobs.backoff,
        jitter: true,
        on_lost: jobs.on_lost,
        max_attempts: jobs.max_attempts(job_type),
        timeouts: Arc::new(jobs.timeouts()),
        fair: jobs.fair(),
        queue: queue.clone(),
    }
}
