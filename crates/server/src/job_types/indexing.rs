//! The type `indexing`: indexes of other CouchDBs are kept up to date.

use std::sync::Arc;

use turnwise_config::Config;
use turnwise_indexer::jobs::{Handler, Indexing, JOB_TYPE, Service};
use turnwise_policy::backoff::OnLost;
use turnwise_replicator::ParkedJobs;
use turnwise_replicator::ownership::Ownership;
use turnwise_worker::{QueueRules, Tunables};

use super::{JobType, Start};
use crate::services::Services;
use crate::start::StartError;

/// The servers whose indexes are built.
pub(crate) fn servers(start: &Start<'_>) -> Indexing {
    Indexing::new(start.config.indexing.clone(), &start.config.replication.peers, start.client)
}

/// Starts the watch of the servers, and the worker if there are any.
pub(crate) async fn start(
    start: &Start<'_>,
    indexing: &Indexing,
    ownership: &Ownership,
    services: &mut Services,
) -> Result<Option<JobType>, StartError> {
    let (store, keys) = (start.opened.store.clone(), start.keys.clone());
    let handler = Handler { indexing: indexing.clone(), runtime: store.runtime().clone() };
    let jobs = ParkedJobs { store, keys, job_type: JOB_TYPE };
    let watch = Service { jobs, indexing: indexing.clone(), ownership: ownership.clone() };
    let job_type = match indexing.max_jobs() {
        0 => None,
        max_jobs => {
            let worker = start.worker(JOB_TYPE, Arc::new(handler), tune, max_jobs).await?;
            Some(JobType { name: JOB_TYPE, worker, tune, slots: None })
        }
    };
    services.add("indexes", watch, Service::run);
    Ok(job_type)
}

fn tune(config: &Config, queue: &Arc<QueueRules>, now: usize) -> Tunables {
    // The server builds on, and the next run waits for it.
    Tunables { on_lost: OnLost::Requeue, jitter: false, ..super::tunables(config, queue, JOB_TYPE, now) }
}
