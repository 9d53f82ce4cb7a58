//! The scheduling decision, whole, on one page.
//!
//! 1. *Eligible?* A job whose backoff is over, or that was added for a time that has come, goes to the end of its tenant's
//!    queue ([`backoff`](crate::backoff)). Everything below is about jobs in queues.
//! 2. *Which tenant?* The one that is owed most: the lowest [`next`](crate::fair_share::virtual_time::Ledger::next). Slots that are free
//!    at the same time are divided one by one ([`apportion`](crate::fair_share::virtual_time::apportion)), and the
//!    fronts of the tenants' queues are merged in that order ([`order`](crate::fair_share::virtual_time::order)). In the scheme of
//!    the RFC, the job with the lowest [`Key`](crate::fair_share::rfc::Key), then the one not started for the longest time.
//! 3. *Whose?* Where several workers take from the queue, each has its part of the front ([`Shard`](crate::contention::Shard)).
//! 4. *Locks?* Where a job of the window wants some, the window is ordered by predicted weight, and who would wait is held back or
//!    reserves ([`order`](crate::predictive_queue::order::order)).
//! 5. *Room?* Free slots are filled in that order, on every arrival and every ending ([`select`]).
//! 6. *Which jobs are preempted?* At each cycle up to `max_churn` jobs that rotate, for tenants with a larger deficit, then for those of their own
//!    tenant ([`rotate`](crate::rotation::rotate)); between cycles those that have nothing to do
//!    ([`yield_idle`](crate::rotation::yield_idle)). Their slots are filled by step 5.
//!    Running jobs move from full workers to empty ones at their cycles, too ([`surplus`](crate::rotation::balance::surplus)).
//! 7. *Why not?* Every job that waits has a [`Reason`] ([`explain`]).

/// What the worker sees.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Jobs this worker runs now.
    pub running: usize,
    /// Ids of the first pending jobs, first to run first.
    pub front: &'a [String],
}

/// What the configuration demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Jobs that one worker runs at most.
    pub max_jobs: usize,
}

/// What shall happen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Start these, in this order.
    pub start: Vec<String>,
    /// Leave these where they are: there is no room.
    pub hold: Vec<String>,
}

/// Decides about every job in the view.
pub fn select(view: View<'_>, rules: Rules) -> Decision {
    let free = rules.max_jobs.saturating_sub(view.running);
    let (start, hold) = view.front.split_at(free.min(view.front.len()));
    Decision { start: start.to_vec(), hold: hold.to_vec() }
}

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

    fn ids(names: &str) -> Vec<String> {
        names.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn free_slots_are_filled_in_the_order_of_the_queue() {
        let front = ids("a b c d");
        let decision = select(View { running: 1, front: &front }, Rules { max_jobs: 3 });
        assert_eq!(decision, Decision { start: ids("a b"), hold: ids("c d") });
    }

    #[test]
    fn every_job_is_started_or_held() {
        for running in 0..6 {
            for pending in 0..6 {
                let front: Vec<String> = (0..pending).map(|n| n.to_string()).collect();
                let Decision { start, hold } = select(View { running, front: &front }, Rules { max_jobs: 4 });
                assert!(start.is_empty() || running + start.len() <= 4);
                assert!(hold.is_empty() || running + start.len() >= 4);
                assert_eq!([start, hold].concat(), front);
            }
        }
    }

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
