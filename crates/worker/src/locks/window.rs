//! Which jobs of the queue's front start, where some of them lock.
//!
//! The order is [`order`]'s; here is what surrounds it: whose shard a job is in, when a later look is worth it, and for whom.

use std::collections::BTreeSet;

use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_policy::predictive_queue::order::{Candidate, Decision, Hold, Reason, System, order};
use turnwise_queue::tenants::Pending;

use super::view::LocksView;
use super::{LockHistory, QueueRules};

/// What shall become of a window's jobs.
#[derive(Default)]
pub(crate) struct Chosen {
    /// Start these, in this order.
    pub start: Vec<String>,
    /// This one reserves what it wants.
    pub reserve: Option<String>,
    /// Somebody's locks are not free: a lock that goes makes another look worth it.
    pub blocked: bool,
    /// Jobs were left because there is no room for more.
    pub no_room: bool,
    /// When the next of those that are blocked is aged out, in µs.
    pub ages_out_us: Option<i64>,
    /// Others' jobs that could start.
    pub left: BTreeSet<String>,
}

/// Decides about a window: `own` jobs may start here, as many as there is `room` for; `others` are left to those whose shard they are in,
/// and only looked at.
pub(crate) fn choose(
    (view, lock_history): (&LocksView, &LockHistory),
    job_type: &str,
    rules: &QueueRules,
    (own, others): (&[&Pending], &[&Pending]),
    room: usize,
    now_us: i64,
) -> Chosen {
    let mut chosen = Chosen::default();
    // Of the front one at a time, whosever shard it is in: neither in earnest, nor as if it had, and in the way of those behind it.
    let may_reserve = !own.iter().chain(others).any(|job| view.place(job_type, &job.id).is_some());
    let decision = decide((view, lock_history), job_type, rules, own, (room, may_reserve), now_us);
    chosen.add(&decision, own, rules);
    chosen.start.extend(decision.start.iter().filter_map(|start| id(own, start.job)));
    if !others.is_empty() && decision.start.len() < room {
        // They may have no room where they belong, and must have reserved even so.
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
