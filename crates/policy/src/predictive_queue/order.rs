//! Which jobs of the window start in a pass, which reserve, and why the others do not start.
//!
//! 1. The window is ordered by class, then by aged weight, then by line, then as it came. Each in its [`line`](super::line) makes a job older by
//!    a tick: what the most work waits for is not left to the end, when few can work beside each other. Whoever is overdue is before all
//!    lines, as he came. If no job of the window wants locks it stays as it came: fair share has ordered it.
//! 2. The first job is looked at. What it knows that it wants must be free, or it is held: it would only block a slot. It must not
//!    take, either, what somebody has reserved before it.
//! 3. One that is aged out and not free *reserves*, as soon as somebody is in the window who came K ticks later: from then on nobody starts who might
//!    take what it waits for, so that it becomes free. Those of its own age come to an end by themselves, and keeping slots idle against them would only
//!    make the backlog longer; once it is overdue it reserves all the same, and so it does if it is alone in its window. Reservations are
//!    served first come, first served; they bind jobs that would start, never those that run. Of a window one job at a time has one, the first that is
//!    looked at: all others get theirs in turn, those that are overdue before all others, and meanwhile whatever is free is used. If all that are aged
//!    out reserved, a backlog of more than K ticks would be first in, first out, with idle slots (design note 0032).
//! 4. One that is free starts, and counts as running for those after it: they are weighed anew, and the next is looked at.
//! 5. Without room nobody else is looked at, and nobody reserves: a job that is aged out is then behind others that start.
//!
//! Weights never fall when a job is added, so that a weight that was computed earlier in the pass is a lower bound: only the
//! first job's needs to be computed again, and if it is still the least, the job is the first. With `n` jobs in the window
//! and `r` that start a pass costs about `n + r` weights, not `n · r`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::aging::{Aged, Aging, Rules};
use super::contention::Predicted;
use super::line::lines;
use super::locks::{AtLevel, Levels, Lock, Place, Requests};
use super::summary::{Obstacle, Running, Summary, obstacle, weigh};

/// A job of the window.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its priority class: lower ones first, whatever they weigh.
    pub class: i8,
    /// Since when it waits, in µs.
    pub since_us: i64,
    /// What it wants.
    pub requests: &'a Requests,
    /// The same with what it will probably lock in place of what it does not know, if something is likely. It weighs by that; what must be
    /// free when it starts is another matter.
    pub likely: Option<&'a Requests>,
    /// Its place among the reservations, if it has one.
    pub reservation: Option<usize>,
}

/// What there is beside the window.
#[derive(Debug, Clone, Copy)]
pub struct System<'a> {
    /// What running jobs lock, of all types.
    pub running: &'a Summary,
    /// The same with what they will probably lock: what weights are compared with. It may be `running`.
    pub foreseen: &'a Summary,
    /// What is reserved, of all types: what those jobs wait for, first come first.
    pub reservations: &'a [Running],
    /// Jobs that can start.
    pub room: usize,
    /// One of the window may reserve, if none of them has: not where one has that is in the same front but in another's window.
    pub may_reserve: bool,
    /// The time, in µs.
    pub now_us: i64,
}

/// What a job weighed when it was looked at, or last before that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    /// Level by level.
    pub predicted: Predicted,
    /// In ticks.
    pub age: u64,
    /// How many others of the window name what it wants for itself ([`line`](super::line)).
    pub line: u64,
    /// It has waited for K ticks.
    pub aged_out: bool,
    /// The weight at that age, and a tick more for each in line.
    pub aged: Aged,
}

/// A job of the window, by its place there, and what it weighs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its place in the window.
    pub job: usize,
    /// What it weighs.
    pub weighed: Weighed,
}

/// A job that does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Its place in the window.
    pub job: usize,
    /// What it weighs.
    pub weighed: Weighed,
    /// Why it does not start.
    pub reason: Reason,
}

/// Why a job does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A lock is not free.
    Locked(Obstacle),
    /// A lock is reserved by a job that is before it.
    Reserved(Obstacle),
    /// It was not looked at: jobs before it took all the room.
    NoRoom,
}

/// What shall happen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Start these, in this order.
    pub start: Vec<Start>,
    /// This one reserves what it knows that it wants: its place in the window. It is held, too. At most one.
    pub reserve: Vec<usize>,
    /// Leave these where they are, in the order in which they were looked at.
    pub hold: Vec<Hold>,
}

/// Decides about every job of the window.
pub fn order(window: &[Candidate<'_>], system: System<'_>, rules: &Rules) -> Decision {
    let levels = system.running.levels();
    let mut picked = Summary::new(levels);
    let mut foreseen = Summary::new(levels);
    let mut reserved = Reservations::new(window, system);
    let mut decision = Decision::default();
    let mut may_reserve = system.may_reserve && window.iter().all(|job| job.reservation.is_none());
    let as_it_came = window.iter().all(|job| job.requests.is_none());
    let lines = lines(window.iter().map(|job| job.likely.unwrap_or(job.requests)));
    let aging = &rules.aging;
    let weighed = |job: &Candidate<'_>, line: u64, picked: &Summary| {
        let wanted = job.likely.unwrap_or(job.requests);
        let predicted = weigh(&[system.foreseen, picked], wanted, rules.least_base());
        let age = aging.age(job.since_us, system.now_us);
        let aged = aging.aged(predicted.total, age.saturating_add(line));
        Weighed { predicted, age, line, aged_out: aging.is_over(age), aged }
    };
    let key = |place: usize, job: &Candidate<'_>, weighed: &Weighed| {
        let late = if aging.is_overdue(weighed.age) { (false, 0) } else { (true, weighed.line) };
        let (in_time, line) = if as_it_came { (false, 0) } else { late };
        let (class, aged) = if as_it_came { (0, Aged::default()) } else { (job.class, weighed.aged) };
        (class, aged, in_time, Reverse(line), place)
    };
    let all = window.iter().zip(&lines);
    let mut weights: Vec<Weighed> = all.map(|(job, line)| weighed(job, *line, &foreseen)).collect();
    let keys = window.iter().zip(&weights).enumerate();
    let mut waiting: BinaryHeap<_> =
        keys.map(|(place, (job, weighed))| Reverse(key(place, job, weighed))).collect();
    while let Some(Reverse(before)) = waiting.pop() {
        let (.., place) = before;
        let (Some(job), Some(weight)) = (window.get(place), weights.get_mut(place)) else { continue };
        let room = decision.start.len() < system.room;
        if room && !decision.start.is_empty() {
            *weight = weighed(job, weight.line, &foreseen);
            let after = key(place, job, weight);
            if after > before {
                waiting.push(Reverse(after));
                continue;
            }
        }
        let weighed = weight.clone();
        let hold = |reason| Hold { job: place, weighed: weighed.clone(), reason };
        if !room {
            decision.hold.push(hold(Reason::NoRoom));
            continue;
        }
        let known = job.requests.known(levels);
        let held = [system.running, &picked];
        let reason = obstacle(&held, &held, &known)
            .map(Reason::Locked)
            .or_else(|| reserved.in_the_way(place, job, &picked).map(Reason::Reserved));
        let running = Running::new(known, job.requests, levels);
        match reason {
            None => {
                reserved.started(place, job);
                picked.add(&running);
                foreseen.add(&match job.likely {
                    Some(likely) => running.expecting(job.requests, likely, levels),
                    None => running,
                });
                decision.start.push(Start { job: place, weighed });
            }
            Some(reason) => {
                if may_reserve && needs_reservation(window, place, weighed.age, aging) {
                    may_reserve = false;
                    reserved.all.add(&running);
                    decision.reserve.push(place);
                }
                decision.hold.push(hold(reason));
            }
        }
    }
    decision
}

/// Whether a job that is not free keeps others out of what it wants. Those of its own age come to an end by themselves, however many they are, and while
/// it waits for them slots are in use. Those who come K ticks later need not.
fn needs_reservation(window: &[Candidate<'_>], place: usize, age: u64, aging: &Aging) -> bool {
    let since_us = window.get(place).map_or(0, |job| job.since_us);
    let mut others =
        window.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, job)| job.since_us);
    let last = others.next().map(|first| others.fold(first, i64::max));
    aging.is_over(age)
        && (aging.is_overdue(age) || last.is_none_or(|last| aging.is_over(aging.age(since_us, last))))
}

/// What is reserved, as if it were held.
struct Reservations<'a> {
    system: System<'a>,
    /// By all.
    all: Summary,
    /// For those in the window that have a reservation: what is in their way that was reserved before.
    earlier: Vec<(usize, Option<Obstacle>)>,
}

impl<'a> Reservations<'a> {
    fn new(window: &[Candidate<'_>], system: System<'a>) -> Reservations<'a> {
        let levels = system.running.levels();
        let mut own: Vec<(usize, usize)> =
            (0..).zip(window).filter_map(|(place, job)| Some((job.reservation?, place))).collect();
        own.sort_unstable();
        let mut own = own.into_iter().peekable();
        let mut all = Summary::new(levels);
        let mut earlier = Vec::new();
        for (at, reserved) in system.reservations.iter().enumerate() {
            while let Some((_, place)) = own.next_if(|(reservation, _)| *reservation == at) {
                let claims = window.get(place).map(|job| claims(job.requests, levels)).unwrap_or_default();
                earlier.push((place, obstacle(&[&all], &[&all, system.running], &claims)));
            }
            all.add(reserved);
        }
        earlier.sort_unstable_by_key(|(place, _)| *place);
        Reservations { system, all, earlier }
    }

    fn has(&self, place: usize) -> Result<usize, usize> {
        self.earlier.binary_search_by_key(&place, |(place, _)| *place)
    }

    fn in_the_way(&self, place: usize, job: &Candidate<'_>, picked: &Summary) -> Option<Obstacle> {
        let System { running, .. } = self.system;
        match self.has(place) {
            Ok(found) => self.earlier.get(found)?.1.clone(),
            Err(_) => {
                let claims = claims(job.requests, running.levels());
                obstacle(&[&self.all], &[running, picked, &self.all], &claims)
            }
        }
    }

    /// A reservation ends with the start of its job.
    fn started(&mut self, place: usize, job: &Candidate<'_>) {
        let reservations = self.system.reservations;
        if self.has(place).is_ok()
            && let Some(reserved) = job.reservation.and_then(|at| reservations.get(at))
        {
            self.all.remove(reserved);
        }
    }
}

/// What a job might lock, if it started: of what is unknown, all.
fn claims(requests: &Requests, levels: &Levels) -> Vec<Lock> {
    let mut locks = requests.known(levels);
    for (level, name) in levels.names().enumerate() {
        let unknown = requests.levels.get(name).into_iter().flat_map(AtLevel::unknown);
        locks.extend(unknown.map(|mode| Lock { place: Place::WholeLevel(level), mode, units: 1 }));
    }
    locks.sort();
    locks
}
