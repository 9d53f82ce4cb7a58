//! The load that the tenants of a type make, from which the pages simulate other shares.

use async_recursion::async_recursion as boxed;
use turnwise_policy::fair_share::Fairness;
use turnwise_queue::counts::Kind;
use turnwise_worker::RotationRules;

use crate::snapshot::{Of, Snapshot, jobs_by_tenant};
use crate::{Reader, Result};

/// A type's slots, and what its tenants want of them.
pub struct Load {
    /// The slots of its workers.
    pub slots: usize,
    /// How tenants share them.
    pub fairness: Fairness,
    /// How continuous jobs are preempted, if the type has such jobs.
    pub rotation: Option<RotationRules>,
    /// The tenants with waiting or running jobs, those with the most jobs first.
    pub tenants: Vec<TenantLoad>,
}

/// What a tenant wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantLoad {
    /// The tenant.
    pub tenant: String,
    /// Its shares.
    pub shares: u32,
    /// Its pending and running jobs.
    pub jobs: u64,
    /// Those of them that run.
    pub running: u64,
    /// How long one of its jobs runs, as learnt from its past runs, or from those of all tenants; `None` if nothing is known.
    pub run_us: Option<u64>,
}

/// Reads the load of a type.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn of_type<'a>(reader: &'a Reader<'a>, job_type: &str) -> Result<Load> {
    let snapshot = Snapshot::read(reader, job_type, Of::First).await?;
    let [pending] = jobs_by_tenant(reader, job_type, [Kind::Pending]).await?;
    let mut tenants: Vec<TenantLoad> = snapshot
        .tenants
        .iter()
        .map(|(tenant, standing)| {
            let running = u64::try_from(standing.charges.running).unwrap_or(u64::MAX);
            TenantLoad {
                tenant: tenant.clone(),
                shares: standing.shares,
                jobs: running + pending.get(tenant).copied().unwrap_or(0),
                running,
                run_us: standing.expected_us.or(snapshot.learnt_us).map(|us| us as u64),
            }
        })
        .filter(|load| load.jobs > 0)
        .collect();
    tenants.sort_by(|one, other| other.jobs.cmp(&one.jobs).then_with(|| one.tenant.cmp(&other.tenant)));
    let Snapshot { capacity, rules, .. } = snapshot;
    Ok(Load { slots: capacity.slots, fairness: rules.fairness, rotation: rules.rotation, tenants })
}
