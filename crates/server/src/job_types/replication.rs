//! The type `replication`: documents of `_replicator` databases, and requests to `/_replicate`.

use std::sync::Arc;
use std::time::Duration;

use turnwise_config::Config;
use turnwise_replicator::doc_processor::DocProcessor;
use turnwise_replicator::multiplex::{self, Mode, Multiplex};
use turnwise_replicator::ownership::Ownership;
use turnwise_replicator::upstream::{Condition, Upstream};
use turnwise_replicator::{Handler, JOB_TYPE, Metrics, ParkedJobs};
use turnwise_worker::{Live, QueueRules, Tunables};

use super::{JobType, Start};
use crate::services::Services;
use crate::start::StartError;

/// The interval between two reports of a replication's statistics. `_active_tasks` is at most half a second old, as in CouchDB.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_millis(400);

/// What other parts of the server use of replications.
pub(crate) struct Replications {
    pub job_type: JobType,
    /// What they have done.
    pub metrics: Arc<Metrics>,
    /// How parked replications wait for their sources.
    pub mode: Live<Mode>,
    /// Which node watches which source.
    pub ownership: Ownership,
    /// The mirror of the upstream, if there is one.
    pub upstream: Option<Upstream>,
}

/// Starts the worker, and the services that make documents jobs, watch the sources of parked replications, and mirror the upstream.
pub(crate) async fn start(
    start: &Start<'_>,
    node: &str,
    services: &mut Services,
) -> Result<Replications, StartError> {
    let Start { opened, keys, config, settings, client, .. } = *start;
    let (store, keys) = (opened.store.clone(), keys.clone());
    let mode = Live::from(config.multiplex);
    let multiplex = Multiplex::new(client.clone(), mode.clone());
    let metrics = Arc::<Metrics>::default();
    let handler = Handler {
        client: client.clone(),
        metrics: metrics.clone(),
        settings: settings.clone(),
        runtime: store.runtime().clone(),
        multiplex: multiplex.clone(),
    };
    let worker = start.worker(JOB_TYPE, Arc::new(handler), tune, config.max_jobs.least).await?;
    let upstream = upstream(start, node).await?;
    let processor = DocProcessor {
        store: store.clone(),
        keys: keys.clone(),
        settings: settings.clone(),
        filters: Arc::new(client.clone()),
    };
    services.add("doc processor", processor, DocProcessor::run);
    let ownership = Ownership::new(node);
    if opened.exclusive {
        // No other node can exist.
        ownership.settle(vec![node.to_owned()]);
    }
    let periods = config.periods;
    // Ownership counts all nodes.
    let parts = (ownership.clone(), store.clone(), keys.clone());
    services.add(
        "ownership of parked replications",
        parts,
        move |(ownership, store, keys), stop| async move {
            ownership.run(&store, &keys, |_| true, periods, stop).await;
        },
    );
    let parked = multiplex::Service {
        jobs: ParkedJobs { store: store.clone(), keys: keys.clone(), job_type: JOB_TYPE },
        multiplex,
        settings: settings.clone(),
        ownership: ownership.clone(),
    };
    services.add("parked replications", parked, multiplex::Service::run);
    if let Some(upstream) = upstream.clone() {
        let parts = (upstream.ownership.clone(), store, keys);
        services.add("ownership", parts, move |(ownership, store, keys), stop| async move {
            ownership.run(&store, &keys, |node| node.upstream, periods, stop).await;
        });
        services.add("upstream", upstream, Upstream::run);
    }
    let job_type = JobType { name: JOB_TYPE, worker, tune, slots: Some(|config| config.max_jobs) };
    Ok(Replications { job_type, metrics, mode, ownership, upstream })
}

/// The mirror of the upstream, if there is an upstream.
async fn upstream(start: &Start<'_>, node: &str) -> Result<Option<Upstream>, StartError> {
    let Start { opened, keys, config, settings, client, .. } = *start;
    let Some(address) = &config.upstream else {
        let mirrors = opened.asked(Upstream::mirrors(&opened.store, keys)).await?;
        if !mirrors.is_empty() {
            tracing::warn!(
                databases = mirrors.join(", "),
                "no upstream is configured, but the store has mirrors of one: their replications still run here; to end them, delete the databases"
            );
        }
        return Ok(None);
    };
    Ok(Some(Upstream {
        store: opened.store.clone(),
        keys: keys.clone(),
        settings: settings.clone(),
        client: client.clone(),
        address: address.clone(),
        ownership: Ownership::new(node),
        condition: Condition::Unknown.into(),
    }))
}

fn tune(config: &Config, queue: &Arc<QueueRules>, now: usize) -> Tunables {
    Tunables {
        bounds: config.max_jobs.bounds(),
        max_history: config.max_history,
        backoff: config.backoff,
        jitter: false,
        on_lost: config.on_lost,
        fair: config.replication_rules(),
        ..super::tunables(config, queue, JOB_TYPE, config.max_jobs.within(now))
    }
}
