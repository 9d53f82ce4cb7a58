//! Which jobs of the window start in a pass, which one reserves, and why the others do not start.
//!
//! 1. The window is sorted by priority, then by aged weight, then by line, then by its original order. Each job in a
//!    job's [`line`](super::line) makes it older by a tick. So jobs of the busiest resource do not remain until the
//!    end, when few jobs can run at the same time. An overdue job comes before all lines, in the original order. If
//!    no job of the window wants locks, the window keeps the order of fair share.
//! 2. The first job is examined. All locks that it knows must be free; otherwise it is deferred, because it would only
//!    block a slot. It also must not take a lock that another job has reserved before it.
//! 3. An aged-out job whose locks are not free *reserves* them, as soon as a job in the window came K ticks later.
//!    From then on, no job starts that might take these locks, so they become free. Jobs of its own age end by
//!    themselves, and idle slots against them would only make the backlog longer. An overdue job reserves in any
//!    case, and so does the only job of a window. Reservations are served in their order. They bind jobs that would
//!    start, never running jobs. Only one job of a window has a reservation at a time: the first aged-out job that is
//!    examined. The other jobs get theirs in turn, overdue jobs before all others, and meanwhile every free lock is
//!    used. If all aged-out jobs reserved, a backlog of more than K ticks would be first in, first out, with idle
//!    slots (`docs/design/simulation.md`).
//! 4. A job whose locks are free starts, and counts as running for the jobs after it. Their weights are computed
//!    again, and the next job is examined.
//! 5. Without room, no further job is examined, and none reserves: an aged-out job is then behind jobs that start.
//!
//! A weight never falls when a job is added, so a weight from earlier in the pass is a lower bound. Only the first
//! job's weight must be computed again; if it is still the lowest, that job is the first. With `n` jobs in the
//! window, of which `r` start, a pass computes about `n + r` weights, not `n · r`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::aging::{Aged, Aging, Rules};
use super::contention::Weight;
use super::line::lines;
use super::locks::{AtLevel, Levels, Lock, Requests, Scope};
use super::summary::{Obstacle, Running, Summary, obstacle, weigh_total};

/// A job of the window.
#[derive(Debug, Clone, Copy)]
pub struct WindowJob<'a> {
    /// Its priority: jobs with lower numbers come first, whatever they weigh.
    pub priority: i8,
    /// Since when it waits, in µs.
    pub since_us: i64,
    /// The locks that it wants.
    pub requests: &'a Requests,
    /// Its index among the reservations, if it has one.
    pub reservation: Option<usize>,
}

/// The state of the system around the window.
#[derive(Debug, Clone, Copy)]
pub struct System<'a> {
    /// The locks of running jobs, of all types.
    pub running: &'a Summary,
    /// The reserved locks, of all types, in the order of the reservations.
    pub reservations: &'a [Running],
    /// The number of jobs that can start.
    pub room: usize,
    /// Whether a job of the window may reserve, if none has a reservation. It is false where a job has one that is at
    /// the same head of the queue, but not in this window.
    pub may_reserve: bool,
    /// The time, in µs.
    pub now_us: i64,
}

/// A job's weight when it was examined, or when it was last computed before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weighed {
    /// The weight, before it ages.
    pub weight: Weight,
    /// Its age, in ticks.
    pub age: u64,
    /// Its [`line`](super::line).
    pub line: u64,
    /// Whether it has waited for K ticks.
    pub aged_out: bool,
    /// The weight at that age and one tick more for each job in the line.
    pub aged: Aged,
}

/// A job that starts, and its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its index in the window.
    pub job: usize,
    /// Its weight.
    pub weighed: Weighed,
}

/// A job that does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferral {
    /// Its index in the window.
    pub job: usize,
    /// Its weight.
    pub weighed: Weighed,
    /// Why it does not start.
    pub reason: DeferReason,
}

/// Why a job does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeferReason {
    /// A lock is not free.
    Locked(Obstacle),
    /// A lock is reserved by a job before it.
    Reserved(Obstacle),
    /// It was not examined: jobs before it took all the room.
    NoRoom,
}

/// What the caller must do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Start these, in this order.
    pub start: Vec<Start>,
    /// The index of the job that reserves the locks that it knows: at most one. That job is deferred, too.
    pub reserve: Vec<usize>,
    /// These do not start, in the order in which they were examined.
    pub defer: Vec<Deferral>,
}

/// Decides about every job of the window.
pub fn order(window: &[WindowJob<'_>], system: System<'_>, rules: &Rules) -> Decision {
    let levels = system.running.levels();
    let mut picked = Summary::new(levels);
    let mut reserved = Reservations::new(window, system);
    let mut decision = Decision::default();
    let mut may_reserve = system.may_reserve && window.iter().all(|job| job.reservation.is_none());
    let as_it_came = window.iter().all(|job| job.requests.is_none());
    let lines = lines(window.iter().map(|job| job.requests));
    let aging = &rules.aging;
    let weighed = |job: &WindowJob<'_>, line: u64, picked: &Summary| {
        let weight = weigh_total(&[system.running, picked], job.requests, rules.least_base());
        let age = aging.age(job.since_us, system.now_us);
        let aged = aging.aged(weight, age.saturating_add(line));
        Weighed { weight, age, line, aged_out: aging.is_over(age), aged }
    };
    let key = |index: usize, job: &WindowJob<'_>, weighed: &Weighed| {
        let late = if aging.is_overdue(weighed.age) { (false, 0) } else { (true, weighed.line) };
        let (in_time, line) = if as_it_came { (false, 0) } else { late };
        let (priority, aged) = if as_it_came { (0, Aged::default()) } else { (job.priority, weighed.aged) };
        (priority, aged, in_time, Reverse(line), index)
    };
    let all = window.iter().zip(&lines);
    let mut weights: Vec<Weighed> = all.map(|(job, line)| weighed(job, *line, &picked)).collect();
    let keys = window.iter().zip(&weights).enumerate();
    let mut waiting: BinaryHeap<_> =
        keys.map(|(index, (job, weighed))| Reverse(key(index, job, weighed))).collect();
    while let Some(Reverse(before)) = waiting.pop() {
        let (.., index) = before;
        let (Some(job), Some(weight)) = (window.get(index), weights.get_mut(index)) else { continue };
        let room = decision.start.len() < system.room;
        if room && !decision.start.is_empty() {
            *weight = weighed(job, weight.line, &picked);
            let after = key(index, job, weight);
            if after > before {
                waiting.push(Reverse(after));
                continue;
            }
        }
        let weighed = *weight;
        let deferral = |reason| Deferral { job: index, weighed, reason };
        if !room {
            decision.defer.push(deferral(DeferReason::NoRoom));
            continue;
        }
        let known = job.requests.known(levels);
        let held = [system.running, &picked];
        let reason = obstacle(&held, &held, &known)
            .map(DeferReason::Locked)
            .or_else(|| reserved.obstacle(index, job, &picked).map(DeferReason::Reserved));
        let running = || Running::new(known, job.requests, levels);
        match reason {
            None => {
                reserved.started(index, job);
                picked.add(&running());
                decision.start.push(Start { job: index, weighed });
            }
            Some(reason) => {
                if may_reserve && needs_reservation(window, index, weighed.age, aging) {
                    may_reserve = false;
                    reserved.all.add(&running());
                    decision.reserve.push(index);
                }
                decision.defer.push(deferral(reason));
            }
        }
    }
    decision
}

/// Whether a job whose locks are not free must keep other jobs from taking them. Jobs of its own age end by
/// themselves, however many there are, and use the slots while it waits. Jobs that come K ticks later may never end.
fn needs_reservation(window: &[WindowJob<'_>], index: usize, age: u64, aging: &Aging) -> bool {
    let since_us = window.get(index).map_or(0, |job| job.since_us);
    let mut others =
        window.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, job)| job.since_us);
    let last = others.next().map(|first| others.fold(first, i64::max));
    aging.is_over(age)
        && (aging.is_overdue(age) || last.is_none_or(|last| aging.is_over(aging.age(since_us, last))))
}

/// The reserved locks, which count as if they were held.
struct Reservations<'a> {
    system: System<'a>,
    /// Those of all jobs.
    all: Summary,
    /// For each job of the window with a reservation: what blocks it that was reserved earlier.
    earlier: BTreeMap<usize, Option<Obstacle>>,
}

impl<'a> Reservations<'a> {
    fn new(window: &[WindowJob<'_>], system: System<'a>) -> Reservations<'a> {
        let levels = system.running.levels();
        let mut own: Vec<(usize, usize)> =
            (0..).zip(window).filter_map(|(index, job)| Some((job.reservation?, index))).collect();
        own.sort_unstable();
        let mut own = own.into_iter().peekable();
        let mut all = Summary::new(levels);
        let mut earlier = BTreeMap::new();
        for (at, reserved) in system.reservations.iter().enumerate() {
            while let Some((_, index)) = own.next_if(|(reservation, _)| *reservation == at) {
                let claims = window.get(index).map(|job| claims(job.requests, levels)).unwrap_or_default();
                earlier.insert(index, obstacle(&[&all], &[&all, system.running], &claims));
            }
            all.add(reserved);
        }
        Reservations { system, all, earlier }
    }

    fn obstacle(&self, index: usize, job: &WindowJob<'_>, picked: &Summary) -> Option<Obstacle> {
        let System { running, .. } = self.system;
        self.earlier.get(&index).cloned().unwrap_or_else(|| {
            let claims = claims(job.requests, running.levels());
            obstacle(&[&self.all], &[running, picked, &self.all], &claims)
        })
    }

    /// A reservation ends with the start of its job.
    fn started(&mut self, index: usize, job: &WindowJob<'_>) {
        let reservations = self.system.reservations;
        if self.earlier.contains_key(&index)
            && let Some(reserved) = job.reservation.and_then(|at| reservations.get(at))
        {
            self.all.remove(reserved);
        }
    }
}

/// The locks that a job might take if it started: of an unknown request, all of the level.
fn claims(requests: &Requests, levels: &Levels) -> Vec<Lock> {
    let mut locks = requests.known(levels);
    for (level, name) in levels.names().enumerate() {
        let unknown = requests.levels.get(name).into_iter().flat_map(AtLevel::unknown);
        locks.extend(unknown.map(|mode| Lock { scope: Scope::WholeLevel(level), mode, units: 1 }));
    }
    locks.sort();
    locks
}
