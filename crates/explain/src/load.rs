//! The load that the tenants of a type make, from which the pages simulate other shares.

use std::collections::HashMap;

use turnwise_policy::fair_share::Fairness;
use turnwise_queue::counts::{self, Kind};
use turnwise_worker::RotationRules;

use crate::snapshot::{Of, Snapshot};
use crate::{Reader, Result};

/// Maximum number of counts that are read: those of the tenants that a snapshot knows at most.
const MAX_COUNTS: usize = 100_000;

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
pub async fn of_type(reader: &Reader<'_>, job_type: &str) -> Result<Load> {
    let snapshot = Snapshot::read(reader, job_type, Of::First).await?;
    let counted = counts::list_of_type(reader.tx, reader.keys, job_type, None, MAX_COUNTS).await?;
    let pending: HashMap<String, u64> =
        counted.into_iter().map(|counted| (counted.tenant, counted.counts[Kind::Pending])).collect();
    let mut tenants: Vec<TenantLoad> = snapshot
        .tenants
        .iter()
        .map(|(tenant, standing)| {
            let running = u64::try_from(standing.charges.running).unwrap_or(u64::MAX);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "stays within the bounds"
            )]
            let run_us = standing.expected_us.or(snapshot.learnt_us).map(|us| us as u64);
            TenantLoad {
                tenant: tenant.clone(),
                shares: standing.shares,
                jobs: running + pending.get(tenant).copied().unwrap_or(0),
                running,
                run_us,
            }
        })
        .filter(|load| load.jobs > 0)
        .collect();
    tenants.sort_by(|one, other| other.jobs.cmp(&one.jobs).then_with(|| one.tenant.cmp(&other.tenant)));
    let Snapshot { capacity, rules, .. } = snapshot;
    Ok(Load { slots: capacity.slots, fairness: rules.fairness, rotation: rules.rotation, tenants })
}
