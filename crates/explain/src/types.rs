//! The state of a job type, for the metrics, the history and the slots that follow the demand.

use std::collections::BTreeMap;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_queue::counts::Kind;
use turnwise_queue::{Worker, tenants, workers};
use turnwise_store::Isolation;

use crate::demand::{DEFAULT_TARGET_MS, Trackers, demand};
use crate::snapshot::{Of, Snapshot, all_of, jobs_by_tenant};
use crate::{Reader, Result};

/// The oldest job is searched in the queues of this many tenants: those with the highest deficits.
const OLDEST_OF_TENANTS: usize = 2_000;
/// The jobs at the head of each of these queues that are compared.
const OLDEST_OF_JOBS: usize = 8;

/// The state of a job type.
#[derive(Debug, Clone, Default)]
pub struct OfType {
    /// The type.
    pub job_type: String,
    /// Its workers that take jobs.
    pub workers: usize,
    /// Their slots.
    pub slots: usize,
    /// The jobs that run.
    pub running: usize,
    /// The slots that an autoscaler should provide.
    pub wanted_slots: u64,
    /// Since when the oldest job that could run has waited, in µs.
    pub oldest_us: Option<i64>,
    /// Its tenants.
    pub tenants: Vec<OfTenant>,
}

/// A tenant that has jobs to run, or a deficit or surplus.
#[derive(Debug, Clone, Default)]
pub struct OfTenant {
    /// The tenant.
    pub tenant: String,
    /// Its shares.
    pub shares: u32,
    /// Its jobs that run.
    pub running: u64,
    /// Its jobs that are pending.
    pub pending: u64,
    /// Its deficit, in µs, where the fairness has one.
    pub deficit_us: Option<i64>,
}

/// The slots that a type needs, and its workers.
pub struct Wanted {
    /// The slots.
    pub wanted_slots: u64,
    /// Each with the number of jobs that it runs.
    pub workers: Vec<(Worker, u64)>,
    /// The type's wake key.
    pub wake: Option<Bytes>,
}

/// The slots within which what could run now has started within the target.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn wanted<'a>(
    reader: &'a Reader<'a>,
    trackers: &Trackers,
    job_type: &str,
    target: Duration,
) -> Result<Wanted> {
    let wake = reader.tx.get_with(&reader.keys.wake(job_type), Isolation::Snapshot).await?;
    let snapshot = Snapshot::read(reader, job_type, Of::First).await?;
    let target_ms = u64::try_from(target.as_millis()).unwrap_or(u64::MAX);
    let demand = demand(reader, trackers, &snapshot, target_ms).await?;
    let mut running: BTreeMap<&str, u64> = BTreeMap::new();
    for run in &snapshot.running {
        *running.entry(&run.worker).or_default() += 1;
    }
    let workers = workers::list(reader.tx, reader.keys, job_type).await?;
    let workers = workers.into_iter().map(|worker| {
        let running = running.get(worker.id.as_str()).copied().unwrap_or(0);
        (worker, running)
    });
    Ok(Wanted { wanted_slots: demand.wanted_slots, workers: workers.collect(), wake })
}

/// Reads the state of a type.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn of_type<'a>(reader: &'a Reader<'a>, trackers: &Trackers, job_type: &str) -> Result<OfType> {
    let snapshot = Snapshot::read(reader, job_type, Of::First).await?;
    let [pending] = jobs_by_tenant(reader, job_type, [Kind::Pending]).await?;
    let found: Vec<OfTenant> = snapshot
        .tenants
        .iter()
        .map(|(tenant, standing)| OfTenant {
            tenant: tenant.clone(),
            shares: standing.shares,
            running: u64::try_from(standing.charges.running).unwrap_or(u64::MAX),
            pending: pending.get(tenant).copied().unwrap_or(0),
            deficit_us: snapshot.deficit_us(standing),
        })
        .collect();
    let mut waiting: Vec<&OfTenant> =
        found.iter().filter(|tenant| snapshot.tenants[&tenant.tenant].waits).collect();
    waiting.sort_by_key(|tenant| std::cmp::Reverse(tenant.deficit_us));
    let heads = waiting.iter().take(OLDEST_OF_TENANTS).map(|tenant| async {
        tenants::front(reader.tx, reader.keys, job_type, &tenant.tenant, OLDEST_OF_JOBS).await
    });
    let heads: Vec<Vec<tenants::Pending>> = all_of(heads.collect()).await?;
    let oldest_us = snapshot.oldest(reader, heads.into_iter().flatten().collect()).await?;
    let capacity = snapshot.capacity;
    let demand = demand(reader, trackers, &snapshot, DEFAULT_TARGET_MS).await?;
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
