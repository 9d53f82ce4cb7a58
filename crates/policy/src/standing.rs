//! Why a job waits, from its place in the queue of all workers.

/// Why a job that could run does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No worker of its type is there.
    NoWorker,
    /// There is a free slot for it: a worker takes it with its next look.
    StartsNext,
    /// Every slot is taken by jobs of which some are preempted at each cycle, and it is among those that start then.
    RotatesIn,
    /// Other jobs of its tenant go before it.
    BehindItsTenant,
    /// It is its tenant's first, and all that run or go before it are owed as much, or more.
    TenantHadItsShare,
    /// It is next, and every slot is taken.
    AllSlotsTaken,
}

/// Where a job stands that waits in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stands {
    /// Workers of its type, with at least one slot each.
    pub workers: usize,
    /// Slots of theirs that nobody has.
    pub free: usize,
    /// Running jobs that are preempted in one cycle, at most: `max_churn`, or none if none of them rotates.
    pub churn: usize,
    /// A running job would be preempted for one of this tenant's.
    pub can_preempt: bool,
    /// Jobs of its tenant that go before it.
    pub in_tenant: usize,
    /// Jobs of all tenants that go before it.
    pub overall: usize,
}

/// Why a job waits that stands there.
pub fn explain(stands: &Stands) -> Reason {
    let Stands { workers, free, churn, can_preempt, in_tenant, overall } = *stands;
    match overall.checked_sub(free) {
        _ if workers == 0 => Reason::NoWorker,
        None => Reason::StartsNext,
        Some(before) if can_preempt && before < churn => Reason::RotatesIn,
        Some(_) if in_tenant > 0 => Reason::BehindItsTenant,
        Some(_) if overall > 0 || churn > 0 && !can_preempt => Reason::TenantHadItsShare,
        Some(_) => Reason::AllSlotsTaken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_reason() {
        let next = Stands { workers: 1, ..Stands::default() };
        let rotating = Stands { churn: 2, can_preempt: true, ..next };
        for (stands, reason) in [
            (Stands::default(), Reason::NoWorker),
            (Stands { free: 1, ..Stands::default() }, Reason::NoWorker),
            (Stands { free: 1, ..next }, Reason::StartsNext),
            (Stands { free: 3, in_tenant: 2, overall: 2, ..next }, Reason::StartsNext),
            (next, Reason::AllSlotsTaken),
            (Stands { overall: 1, ..next }, Reason::TenantHadItsShare),
            (Stands { overall: 5, in_tenant: 1, ..next }, Reason::BehindItsTenant),
            (rotating, Reason::RotatesIn),
            (Stands { overall: 1, in_tenant: 1, ..rotating }, Reason::RotatesIn),
            (Stands { overall: 3, free: 2, ..rotating }, Reason::RotatesIn),
            (Stands { overall: 2, in_tenant: 2, ..rotating }, Reason::BehindItsTenant),
            (Stands { can_preempt: false, ..rotating }, Reason::TenantHadItsShare),
        ] {
            assert_eq!(explain(&stands), reason, "{stands:?}");
        }
    }
}
