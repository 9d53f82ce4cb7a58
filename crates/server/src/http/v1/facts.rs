//! What the metrics, and the slots that follow the demand, need of the standing of tenants.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use turnwise_queue::counts::{self, Kind};
use turnwise_queue::{Worker, jobs, tenants, workers};
use turnwise_store::Isolation;

use super::demand;
use super::error::V1Error;
use super::standing::{Of, Snapshot, could_run_since, types as all_types};
use crate::http::App;
use crate::metrics::{OfTenant, OfType};

/// The oldest job is searched in the queues of this many tenants: those with the highest deficits.
const OLDEST_OF_TENANTS: usize = 2_000;
/// The jobs at the head of each of these queues that are compared.
const OLDEST_OF_JOBS: usize = 8;
/// The jobs whose records are read, to learn since when they could run.
const OLDEST_RECORDS: usize = 8;
/// The counts that are read of a type at most: those of the tenants that a snapshot knows at most.
const MAX_COUNTS: usize = 100_000;
/// The number of concurrent reads.
const AT_ONCE: usize = 16;

fn problem(error: V1Error) -> String {
    error.reason().to_owned()
}

/// The first hundred types that have jobs or workers.
pub(crate) async fn types(app: &App) -> Result<Vec<String>, String> {
    let tx = app.store.begin().await.map_err(|error| error.to_string())?;
    let (types, _) = all_types(app, &tx, None, None).await.map_err(problem)?;
    Ok(types)
}

/// The slots that a type needs, and its workers.
pub(crate) struct Wanted {
    pub wanted_slots: u64,
    /// Each with the number of jobs that it runs.
    pub workers: Vec<(Worker, u64)>,
    /// The type's wake key.
    pub wake: Option<Bytes>,
}

/// The slots within which what could run now has started within the target.
pub(crate) async fn wanted(app: &App, job_type: &str, target: Duration) -> Result<Wanted, String> {
    let wrong = |error: turnwise_queue::Error| error.to_string();
    let tx = app.store.begin().await.map_err(|error| error.to_string())?;
    let wake = tx.get_with(&app.keys.wake(job_type), Isolation::Snapshot).await;
    let wake = wake.map_err(|error| error.to_string())?;
    let snapshot = Snapshot::read(app, &tx, job_type, Of::First).await.map_err(problem)?;
    let target_ms = u64::try_from(target.as_millis()).unwrap_or(u64::MAX);
    let demand = demand::of_snapshot(app, &tx, &snapshot, target_ms).await.map_err(problem)?;
    let mut running: BTreeMap<&str, u64> = BTreeMap::new();
    for run in &snapshot.running {
        *running.entry(&run.worker).or_default() += 1;
    }
    let workers = workers::list(&tx, &app.keys, job_type).await.map_err(wrong)?;
    let workers = workers.into_iter().map(|worker| {
        let running = running.get(worker.id.as_str()).copied().unwrap_or(0);
        (worker, running)
    });
    Ok(Wanted { wanted_slots: demand.wanted_slots, workers: workers.collect(), wake })
}

/// The state of a type.
pub(crate) async fn of_type(app: &App, job_type: &str) -> Result<OfType, String> {
    let tx = app.store.begin().await.map_err(|error| error.to_string())?;
    let snapshot = Snapshot::read(app, &tx, job_type, Of::First).await.map_err(problem)?;
    let wrong = |error: turnwise_queue::Error| error.to_string();
    let counted = counts::list_of_type(&tx, &app.keys, job_type, None, MAX_COUNTS).await.map_err(wrong)?;
    let pending: HashMap<String, u64> =
        counted.into_iter().map(|counted| (counted.tenant, counted.counts[Kind::Pending])).collect();
    let found: Vec<OfTenant> = snapshot
        .tenants
        .iter()
        .map(|(tenant, standing)| OfTenant {
            tenant: tenant.clone(),
            shares: standing.shares,
            running: u64::try_from(standing.running).unwrap_or(u64::MAX),
            pending: pending.get(tenant).copied().unwrap_or(0),
            owed_us: snapshot.owed_us(standing),
        })
        .collect();
    let mut waiting: Vec<&OfTenant> =
        found.iter().filter(|tenant| snapshot.tenants[&tenant.tenant].waits).collect();
    waiting.sort_by_key(|tenant| std::cmp::Reverse(tenant.owed_us));
    let heads = waiting.iter().take(OLDEST_OF_TENANTS).map(|tenant| async {
        tenants::front(&tx, &app.keys, job_type, &tenant.tenant, OLDEST_OF_JOBS).await
    });
    let heads: Vec<_> = heads.collect();
    let heads: Vec<Vec<tenants::Pending>> =
        stream::iter(heads).buffered(AT_ONCE).try_collect().await.map_err(wrong)?;
    let mut oldest: Vec<tenants::Pending> = heads.into_iter().flatten().collect();
    oldest.sort_by_key(|pending| pending.order_us);
    let mut oldest_us: Option<i64> = None;
    for pending in oldest.into_iter().take(OLDEST_RECORDS) {
        // A job that its worker gave back has the place of its last start, but waits only since then.
        let job = jobs::get(&tx, &app.keys, job_type, &pending.id).await.map_err(wrong)?;
        let since_us = job.as_ref().map(could_run_since);
        oldest_us = oldest_us.into_iter().chain(since_us).min();
    }
    let capacity = snapshot.capacity;
    let demand =
        demand::of_snapshot(app, &tx, &snapshot, demand::DEFAULT_TARGET_MS).await.map_err(problem)?;
    Ok(OfType {
        job_type: job_type.to_owned(),
        workers: capacity.workers,
        slots: capacity.slots,
        running: snapshot.running.len(),
        wanted_slots: demand.wanted_slots,
        oldest_us,
        tenants: found,
    })
}
