//! Which jobs at the head of the queue start, if some of them lock.
//!
//! The order is that of [`order`]. This module decides what surrounds it: which shard a job belongs to, when another
//! pass is useful, and for which jobs.

use std::collections::BTreeSet;

use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_policy::predictive_queue::order::{Candidate, Decision, Hold, Reason, System, order};
use turnwise_queue::tenants::Pending;

use super::view::LocksView;
use super::{LockHistory, QueueRules};

/// The decision about a window's jobs.
#[derive(Default)]
pub(crate) struct Chosen {
    /// Start these, in this order.
    pub start: Vec<String>,
    /// This job reserves the locks that it wants.
    pub reserve: Option<String>,
    /// Some job's locks are not free: another pass is useful when a lock is released.
    pub blocked: bool,
    /// Jobs remain because there is no room for more.
    pub no_room: bool,
    /// When the next blocked job is aged out, in µs.
    pub ages_out_us: Option<i64>,
    /// Jobs of other shards that could start.
    pub left: BTreeSet<String>,
}

/// Decides about a window. Jobs in `own` may start here, as far as there is `room`. Jobs in `others` are skipped for
/// their owners, and only compared.
pub(crate) fn choose(
    (view, lock_history): (&LocksView, &LockHistory),
    job_type: &str,
    rules: &QueueRules,
    (own, others): (&[&Pending], &[&Pending]),
    room: usize,
    now_us: i64,
) -> Chosen {
    let mut chosen = Chosen::default();
    // One reservation in a window at a time, whatever the shard. Another job neither gets one nor is treated as if it
    // had one, which would block the jobs behind it.
    let may_reserve = !own.iter().chain(others).any(|job| view.place(job_type, &job.id).is_some());
    let decision = decide((view, lock_history), job_type, rules, own, (room, may_reserve), now_us);
    chosen.add(&decision, own, rules);
    chosen.start.extend(decision.start.iter().filter_map(|start| id(own, start.job)));
    if !others.is_empty() && decision.start.len() < room {
        // Their owners may have no room; even so, an aged-out job must have its reservation.
        let may_reserve = may_reserve && chosen.reserve.is_none();
        let decision =
            decide((view, lock_history), job_type, rules, others, (others.len(), may_reserve), now_us);
        chosen.add(&decision, others, rules);
        chosen.left = decision.start.iter().filter_map(|start| id(others, start.job)).collect();
    }
    chosen
}

impl Chosen {
    fn add(&mut self, decision: &Decision, jobs: &[&Pending], rules: &QueueRules) {
        if self.reserve.is_none() {
            self.reserve = decision.reserve.first().and_then(|job| id(jobs, *job));
        }
        for Hold { job, weighed, reason } in &decision.hold {
            if *reason == Reason::NoRoom {
                self.no_room = true;
                continue;
            }
            self.blocked = true;
            let Some(job) = jobs.get(*job).filter(|_| !weighed.aged_out) else { continue };
            let aging = &rules.rules.aging;
            let tick = aging.tick(job.order_us).saturating_add(i64::from(aging.ticks));
            let at_us = tick.saturating_mul(aging.tick_us.max(1));
            self.ages_out_us = Some(self.ages_out_us.map_or(at_us, |earlier| earlier.min(at_us)));
        }
    }
}

fn id(jobs: &[&Pending], place: usize) -> Option<String> {
    jobs.get(place).map(|job| job.id.clone())
}

fn decide(
    (view, lock_history): (&LocksView, &LockHistory),
    job_type: &str,
    rules: &QueueRules,
    jobs: &[&Pending],
    (room, may_reserve): (usize, bool),
    now_us: i64,
) -> Decision {
    let likely: Vec<Option<Requests>> =
        jobs.iter().map(|job| Some(lock_history.guess(&job.locks, &job.traits)?.0)).collect();
    let window: Vec<Candidate<'_>> = jobs
        .iter()
        .zip(&likely)
        .map(|(job, likely)| Candidate {
            class: job.class,
            since_us: job.order_us,
            requests: &job.locks,
            likely: likely.as_ref(),
            reservation: view.place(job_type, &job.id),
        })
        .collect();
    let queued: Vec<_> = view.queued.iter().collect();
    let system = System {
        running: &view.running,
        foreseen: view.foreseen(),
        reservations: &queued,
        room,
        may_reserve,
        now_us,
    };
    order(&window, system, &rules.rules)
}
