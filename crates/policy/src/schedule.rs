//! The scheduling decision: which of the waiting jobs start, which one reserves locks, and why each of the others waits.
//!
//! A worker reads a [`View`], calls [`schedule`], and commits the [`Decision`]. The steps, in this order:
//!
//! 1. *Turns of tenants.* The candidates come in the order in which their tenants are next
//!    ([`fair_share`](crate::fair_share)), within a tenant by priority and time. The order decides what has to be read, so it is
//!    part of reading the view.
//! 2. *Shards.* If several workers claim from the same queue, each has its part of it ([`Shard`]). The rest is skipped for its
//!    owners: [`HoldReason::OtherShard`].
//! 3. *Eligibility.* What a claim would find out is not known before: filters, concurrency limits, whether the job still waits. A
//!    candidate whose claim was refused has a [`Verdict`], and leaves its room to the next one: [`HoldReason::Tried`].
//! 4. *Locks.* If a candidate declares locks, the candidates are ordered by their weights. A job whose locks are not free is held,
//!    and may reserve them ([`mod@order`]).
//! 5. *Room.* The first ones of that order get the free slots: [`HoldReason::NoRoom`] for the rest.
//!
//! 6. *Preemption.* At a worker's cycles, and when its jobs are idle, running jobs stop for waiting ones, or for emptier workers
//!    ([`rotation`]).
//!
//! Facts arrive in rounds: the caller claims the jobs of [`Decision::start`], notes the verdict of each, and decides again as
//! long as there is room. Reading the facts of all candidates first would cost several reads for each.
//!
//! A pass has candidates, and a cycle has a [preemption view](View::preemption). The two are decisions of different moments: a
//! job that stops keeps its slot until its handler has ended, and the next pass fills that slot.

use crate::contention::Shard;
use crate::predictive_queue::aging;
use crate::predictive_queue::locks::Requests;
use crate::predictive_queue::order::{self, System, order};
use crate::predictive_queue::summary::{Obstacle, Running, Summary};
use crate::rotation::{self, Stop};

/// A waiting job at the head of the queue.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its id, which decides its shard.
    pub id: &'a str,
    /// Its priority, or the rank of that priority: lower ones first, if jobs are ordered by weight.
    pub priority: i8,
    /// Since when it waits, in µs.
    pub since_us: i64,
    /// The locks that it declares.
    pub requests: &'a Requests,
    /// Its position among the reservations, if it has one.
    pub reservation: Option<usize>,
    /// Whether this worker may start it whatever its shard is.
    pub pinned: bool,
    /// What is known of it beyond its row in the queue.
    pub verdict: Verdict,
}

impl<'a> Candidate<'a> {
    /// A job that declares these locks, and of which nothing else is known.
    pub fn new(id: &'a str, requests: &'a Requests) -> Self {
        Candidate {
            id,
            priority: 0,
            since_us: 0,
            requests,
            reservation: None,
            pinned: false,
            verdict: Verdict::Unknown,
        }
    }
}

/// What is known of a candidate beyond its row in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verdict {
    /// Nothing yet. It counts as one that can start.
    #[default]
    Unknown,
    /// Another pass of this process has it, and may claim it.
    OtherPass,
    /// Its claim was refused, by a filter, a concurrency limit or a lock; or the job waits no longer; or it was claimed.
    Tried,
}

/// What the decision depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct View<'a> {
    /// The jobs at the head of the queue, in the order of the tenants' turns.
    pub candidates: &'a [Candidate<'a>],
    /// There may be more behind them.
    pub beyond: bool,
    /// Slots that are free for candidates.
    pub room: usize,
    /// This worker's part of the queue.
    pub shard: Shard,
    /// Jobs of other shards may start, because some of them were skipped for long enough.
    pub eager: bool,
    /// A random number, which chooses among jobs of other shards.
    pub random: u64,
    /// The locks, if a candidate declares some.
    pub locks: Option<Locks<'a>>,
    /// The running jobs and the jobs that they may be preempted for, at a cycle or when jobs are idle.
    pub preemption: Option<rotation::View<'a>>,
}

impl<'a> View<'a> {
    /// All that waits, as the only worker of the queue sees it, if no job declares locks.
    pub fn new(candidates: &'a [Candidate<'a>], room: usize) -> Self {
        View { candidates, room, ..View::default() }
    }

    /// The moment of a cycle, or of idle jobs: no job starts.
    pub fn preempting(preemption: rotation::View<'a>) -> Self {
        View { preemption: Some(preemption), ..View::default() }
    }
}

/// The locks of all types.
#[derive(Debug, Clone, Copy)]
pub struct Locks<'a> {
    /// What running jobs hold and wait for.
    pub running: &'a Summary,
    /// What waiting jobs have reserved, in the order of their reservations.
    pub reservations: &'a [Running],
}

/// What the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// How jobs that lock are weighed, and how they age.
    pub queue: aging::Rules,
    /// How running jobs are preempted.
    pub rotation: rotation::Rules,
}

/// What shall happen. Each candidate is in `start` or in `hold`, by its index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Start these, in this order.
    pub start: Vec<usize>,
    /// Stop these running jobs, in this order.
    pub stop: Vec<Stop>,
    /// The number of running jobs for which other workers have room, whether they stop now or later.
    pub surplus: usize,
    /// This job reserves the locks that it declares. It is held.
    pub reserve: Option<usize>,
    /// These wait.
    pub hold: Vec<Hold>,
    /// When the next held job is aged out, in µs: the decision may then be another one.
    pub ages_out_us: Option<i64>,
}

/// A candidate that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Its index.
    pub candidate: usize,
    /// This worker may start it: it is not skipped for an owner.
    pub own: bool,
    /// Why it waits.
    pub reason: HoldReason,
}

/// Why a candidate waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReason {
    /// Jobs before it take all the room.
    NoRoom,
    /// It could start here, but is skipped for its owner.
    OtherShard,
    /// Another pass of this process has it.
    OtherPass,
    /// Its claim was refused, or has succeeded.
    Tried,
    /// A lock is not free.
    Locked(Obstacle),
    /// A job before it has reserved a lock.
    LockReserved(Obstacle),
}

impl Decision {
    /// Whether a candidate waits only because there is no room.
    pub fn has_no_room(&self) -> bool {
        self.hold.iter().any(|hold| hold.own && hold.reason == HoldReason::NoRoom)
    }

    /// Whether a candidate waits for a lock.
    pub fn is_blocked(&self) -> bool {
        self.hold
            .iter()
            .any(|hold| matches!(hold.reason, HoldReason::Locked(_) | HoldReason::LockReserved(_)))
    }

    /// The candidates that are skipped for their owners although they could start here, in the order of the queue.
    pub fn skipped(&self) -> impl Iterator<Item = usize> {
        let skipped = self.hold.iter().filter(|hold| hold.reason == HoldReason::OtherShard);
        skipped.map(|hold| hold.candidate)
    }

    fn hold(&mut self, candidates: &[usize], own: bool, reason: &HoldReason) {
        let hold = |candidate: &usize| Hold { candidate: *candidate, own, reason: reason.clone() };
        self.hold.extend(candidates.iter().map(hold));
    }
}

/// Decides about every candidate of the view.
pub fn schedule(view: &View<'_>, rules: &Rules, now_us: i64) -> Decision {
    let mut decision = Decision::default();
    let (own, others) = divide(view);
    let own = eligible(view, own, true, &mut decision);
    let others = eligible(view, others, false, &mut decision);
    if let Some(locks) = view.locks {
        by_locks(view, (&own, &others), locks, rules, now_us, &mut decision);
    } else {
        let (start, rest) = own.split_at(own.len().min(view.room));
        decision.start.extend(start);
        decision.hold(rest, true, &HoldReason::NoRoom);
        decision.hold(&others, false, &HoldReason::OtherShard);
    }
    if let Some(preemption) = &view.preemption {
        (decision.stop, decision.surplus) = rotation::preempt(preemption, &rules.rotation, now_us);
    }
    decision
}

/// Step 2: the candidates that this worker may start, and those that it skips for their owners.
fn divide(view: &View<'_>) -> (Vec<usize>, Vec<usize>) {
    let all = 0..view.candidates.len();
    if view.shard.is_all() {
        return (all.collect(), Vec::new());
    }
    let (pinned, front): (Vec<usize>, Vec<usize>) = all.partition(|job| view.candidates[*job].pinned);
    let mine = |job: &usize| view.shard.has(view.candidates[*job].id);
    let mut own = view.shard.choose(front.clone(), mine, view.beyond, view.eager, view.random);
    let mut is_own = vec![false; view.candidates.len()];
    own.iter().chain(&pinned).for_each(|job| is_own[*job] = true);
    own.extend(pinned);
    if view.locks.is_some() {
        // Their weights order them; of equal ones the first in the queue.
        own.sort_unstable();
    }
    (own, front.into_iter().filter(|job| !is_own[*job]).collect())
}

/// Step 3: those of which nothing is known that prevents their start.
fn eligible(view: &View<'_>, mut jobs: Vec<usize>, own: bool, decision: &mut Decision) -> Vec<usize> {
    jobs.retain(|job| {
        let reason = match view.candidates[*job].verdict {
            Verdict::Unknown => return true,
            Verdict::OtherPass => HoldReason::OtherPass,
            Verdict::Tried => HoldReason::Tried,
        };
        decision.hold(&[*job], own, &reason);
        false
    });
    jobs
}

/// Steps 4 and 5, if candidates declare locks.
fn by_locks(
    view: &View<'_>,
    (own, others): (&[usize], &[usize]),
    locks: Locks<'_>,
    rules: &Rules,
    now_us: i64,
    decision: &mut Decision,
) {
    // One reservation at a time, whatever the shard. Another job neither gets one nor is treated as if it had one, which would
    // block the jobs behind it.
    let may_reserve = view.candidates.iter().all(|candidate| candidate.reservation.is_none());
    let Locks { running, reservations } = locks;
    let system = System { running, reservations, room: view.room, may_reserve, now_us };
    let ordered = in_order(view, own, system, rules);
    decision.start.extend(ordered.start.iter().map(|start| own[start.job]));
    decision.hold_by_locks(view, (own, true), &ordered, rules);
    if decision.start.len() >= view.room {
        decision.hold(others, false, &HoldReason::NoRoom);
    } else if !others.is_empty() {
        // Their owners may have no room; even so, an aged-out job must have its reservation.
        let may_reserve = may_reserve && decision.reserve.is_none();
        let ordered = in_order(view, others, System { room: others.len(), may_reserve, ..system }, rules);
        let mut startable: Vec<usize> = ordered.start.iter().map(|start| others[start.job]).collect();
        startable.sort_unstable();
        decision.hold(&startable, false, &HoldReason::OtherShard);
        decision.hold_by_locks(view, (others, false), &ordered, rules);
    }
}

fn in_order(view: &View<'_>, jobs: &[usize], system: System<'_>, rules: &Rules) -> order::Decision {
    let candidate = |job: &usize| {
        let Candidate { priority, since_us, requests, reservation, .. } = view.candidates[*job];
        order::WindowJob { priority, since_us, requests, reservation }
    };
    let window: Vec<order::WindowJob<'_>> = jobs.iter().map(candidate).collect();
    order(&window, system, &rules.queue)
}

impl Decision {
    /// Adds those of `jobs` that do not start.
    fn hold_by_locks(
        &mut self,
        view: &View<'_>,
        (jobs, own): (&[usize], bool),
        ordered: &order::Decision,
        rules: &Rules,
    ) {
        if self.reserve.is_none() {
            self.reserve = ordered.reserve.first().map(|job| jobs[*job]);
        }
        for order::Deferral { job, weighed, reason } in &ordered.defer {
            let candidate = jobs[*job];
            let reason = match reason {
                order::DeferReason::NoRoom => HoldReason::NoRoom,
                order::DeferReason::Locked(obstacle) => HoldReason::Locked(obstacle.clone()),
                order::DeferReason::Reserved(obstacle) => HoldReason::LockReserved(obstacle.clone()),
            };
            if reason != HoldReason::NoRoom && !weighed.aged_out {
                let at_us = rules.queue.aging.over_us(view.candidates[candidate].since_us);
                self.ages_out_us = Some(self.ages_out_us.map_or(at_us, |earlier| earlier.min(at_us)));
            }
            self.hold.push(Hold { candidate, own, reason });
        }
    }
}

#[cfg(test)]
mod tests;
