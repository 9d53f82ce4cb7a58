//! Why a job waits, from its position in the queue of all workers.

/// Why a job that could run does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StandingReason {
    /// Its job type has no worker.
    NoWorker,
    /// A slot is free for it: a worker claims it in its next pass.
    StartsNext,
    /// All slots are taken, but each cycle preempts some of the running jobs, and this job is among those that start
    /// then.
    RotatesIn,
    /// Other jobs of its tenant come before it.
    BehindItsTenant,
    /// It is the first job of its tenant. The tenants of the running jobs and of the jobs before it have the same
    /// deficit or a larger one.
    TenantHadItsShare,
    /// It is next, and all slots are taken.
    AllSlotsTaken,
}

/// The position of a job that waits in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stands {
    /// Workers of its type, with at least one slot each.
    pub workers: usize,
    /// Free slots of these workers.
    pub free: usize,
    /// The most running jobs that one cycle preempts: `max_churn`, or 0 if none of the running jobs rotates.
    pub churn: usize,
    /// Whether a running job would be preempted for a job of this tenant.
    pub can_preempt: bool,
    /// Jobs of its tenant that come before it.
    pub in_tenant: usize,
    /// Jobs of all tenants that come before it.
    pub overall: usize,
}

/// Why a job at this position waits.
pub fn explain(stands: &Stands) -> StandingReason {
    let Stands { workers, free, churn, can_preempt, in_tenant, overall } = *stands;
    match overall.checked_sub(free) {
        _ if workers == 0 => StandingReason::NoWorker,
        None => StandingReason::StartsNext,
        Some(before) if can_preempt && before < churn => StandingReason::RotatesIn,
        Some(_) if in_tenant > 0 => StandingReason::BehindItsTenant,
        Some(_) if overall > 0 || churn > 0 && !can_preempt => StandingReason::TenantHadItsShare,
        Some(_) => StandingReason::AllSlotsTaken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_has_its_reason() {
        let next = Stands { workers: 1, ..Stands::default() };
        let rotating = Stands { churn: 2, can_preempt: true, ..next };
        for (stands, reason) in [
            (Stands::default(), StandingReason::NoWorker),
            (Stands { free: 1, ..Stands::default() }, StandingReason::NoWorker),
            (Stands { free: 1, ..next }, StandingReason::StartsNext),
            (Stands { free: 3, in_tenant: 2, overall: 2, ..next }, StandingReason::StartsNext),
            (next, StandingReason::AllSlotsTaken),
            (Stands { overall: 1, ..next }, StandingReason::TenantHadItsShare),
            (Stands { overall: 5, in_tenant: 1, ..next }, StandingReason::BehindItsTenant),
            (rotating, StandingReason::RotatesIn),
            (Stands { overall: 1, in_tenant: 1, ..rotating }, StandingReason::RotatesIn),
            (Stands { overall: 3, free: 2, ..rotating }, StandingReason::RotatesIn),
            (Stands { overall: 2, in_tenant: 2, ..rotating }, StandingReason::BehindItsTenant),
            (Stands { can_preempt: false, ..rotating }, StandingReason::TenantHadItsShare),
        ] {
            assert_eq!(explain(&stands), reason, "{stands:?}");
        }
    }
}
