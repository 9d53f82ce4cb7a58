//! The schemes, which decide which jobs start.

use std::collections::BTreeSet;

use turnwise_policy::predictive_queue::aging::{Aging, Rules};
use turnwise_policy::predictive_queue::contention::Weight;
use turnwise_policy::predictive_queue::locks::{Lock, Mode, Scope};
use turnwise_policy::predictive_queue::summary::{Running, Summary};
use turnwise_policy::predictive_queue::window;
use turnwise_policy::schedule::{self, Candidate, Locks, schedule};

use super::population::{Job, JobId, Population, Want};
use super::tickets::{NONE, Ticket, Tickets};
use super::world::{Choice, View};

/// A scheme. The world calls it while a slot is free and a job is pending.
pub(crate) trait Chooser {
    /// The jobs that start, at most as many as there is room for, and those that reserve.
    fn choose(&mut self, view: &View<'_>) -> Choice;
}

/// Jobs in the order of their arrival, whatever they lock.
pub(crate) struct Fifo;

impl Chooser for Fifo {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        Choice { start: view.pending.iter().copied().take(view.room).collect(), reserve: Vec::new() }
    }
}

/// Jobs in the order of their arrival, without those whose locks are not free. An aged-out job reserves its locks.
pub(crate) struct PlainAging;

impl Chooser for PlainAging {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let scopes = &view.population.scopes;
        let mut tickets = Tickets::new(scopes, view.population.levels.len());
        for (job, ticket) in view.reserved {
            view.job(*job).known.iter().for_each(|want| tickets.add(*want, *ticket));
        }
        let waiting = view.inside.values().filter_map(|inside| inside.waits_for());
        waiting.for_each(|(ticket, wants)| wants.iter().for_each(|want| tickets.add(*want, ticket)));
        let rules = rules(view).queue;
        let is_over = |job: &Job| rules.aging.is_over(rules.aging.age(job.comes_us, view.now_us));
        // As in the predictive queue, one job at a time.
        let may_reserve = view.reserved.is_empty();
        let mut table = view.table.clone();
        let mut choice = Choice::default();
        for id in view.window() {
            if choice.start.len() == view.room {
                break;
            }
            let job = view.job(id);
            let ticket = view.reserved.get(&id).copied();
            if table.all_free(id, &job.known) && !tickets.bind(job, ticket.unwrap_or(NONE)) {
                choice.start.push(id);
                job.known.iter().for_each(|want| table.take(id, *want));
            } else if may_reserve && choice.reserve.is_empty() && is_over(job) {
                // A ticket after all existing ones, and before those of jobs without a reservation.
                choice.reserve.push(id);
                job.known.iter().for_each(|want| tickets.add(*want, NONE - 1));
            }
        }
        choice
    }
}

/// The predictive queue, called as the workers call it.
pub(crate) struct Predictive;

impl Chooser for Predictive {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let levels = &view.population.levels;
        let mut running = Summary::new(levels);
        for (job, inside) in view.inside {
            let waits_for = inside.waits_for().map_or(&[][..], |(_, wants)| wants);
            let locks = view.table.held(*job).iter().chain(waits_for);
            let locks = locks.map(|want| lock(*want, view.population));
            running.add(&Running::new(locks, &view.job(*job).declared, levels));
        }
        let mut reserved: Vec<(Ticket, JobId)> =
            view.reserved.iter().map(|(job, ticket)| (*ticket, *job)).collect();
        reserved.sort_unstable();
        let reservation = |(_, job): &(Ticket, JobId)| Running::starting(&view.job(*job).declared, levels);
        let reservations: Vec<Running> = reserved.iter().map(reservation).collect();
        let locks = Locks { running: &running, reservations: &reservations };
        let mut compared = window::first(view.queue.window.usize(), view.room);
        loop {
            let mut ids: Vec<JobId> = view.pending.iter().copied().take(compared).collect();
            // Jobs with a reservation are candidates wherever they are in the queue.
            let seen = ids.last().copied();
            ids.extend(reserved.iter().map(|(_, job)| *job).filter(|job| Some(*job) > seen));
            let candidate = |id: &JobId| {
                let job = view.job(*id);
                let ticket = view.reserved.get(id);
                let reservation = ticket.and_then(|ticket| reserved.binary_search(&(*ticket, *id)).ok());
                Candidate { since_us: job.comes_us, reservation, ..Candidate::new("", &job.declared) }
            };
            let candidates: Vec<Candidate<'_>> = ids.iter().map(candidate).collect();
            let queue = schedule::View {
                beyond: compared < view.pending.len(),
                locks: Some(locks),
                ..schedule::View::new(&candidates, view.room)
            };
            let decision = schedule(&queue, &rules(view), view.now_us);
            if decision.start.is_empty()
                && compared < view.pending.len()
                && let Some(wider) = window::wider(compared)
            {
                compared = wider;
                continue;
            }
            return Choice {
                start: decision.start.iter().map(|job| ids[*job]).collect(),
                reserve: decision.reserve.iter().map(|job| ids[*job]).collect(),
            };
        }
    }
}

/// A list that knows how long jobs run and what they lock. The first jobs of the list whose locks are free start.
pub(crate) struct List {
    /// The position of each job.
    ranks: Vec<u32>,
    /// Pending jobs, by their position.
    waiting: BTreeSet<(u32, JobId)>,
    /// The number of jobs that have arrived so far.
    seen: JobId,
}

impl List {
    /// The list with the lowest keys first.
    pub(crate) fn by<K: PartialOrd>(population: &Population, key: impl Fn(JobId) -> K) -> List {
        let mut order: Vec<JobId> = (0..).zip(&population.jobs).map(|(id, _)| id).collect();
        order.sort_by(|a, b| {
            key(*a).partial_cmp(&key(*b)).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b))
        });
        let mut ranks = vec![0; order.len()];
        (0..).zip(order).for_each(|(rank, id)| ranks[id as usize] = rank);
        List { ranks, waiting: BTreeSet::new(), seen: 0 }
    }
}

impl Chooser for List {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        // Jobs are numbered in the order of their arrival.
        while view.pending.contains(&self.seen) {
            self.waiting.insert((self.ranks[self.seen as usize], self.seen));
            self.seen += 1;
        }
        let mut start: Vec<JobId> = Vec::new();
        let mut table = view.table.clone();
        for (_, id) in &self.waiting {
            if start.len() == view.room {
                break;
            }
            let wants = &view.job(*id).real;
            if table.all_free(*id, wants) {
                wants.iter().for_each(|want| table.take(*id, *want));
                start.push(*id);
            }
        }
        start.iter().for_each(|id| {
            self.waiting.remove(&(self.ranks[*id as usize], *id));
        });
        Choice { start, reserve: Vec::new() }
    }
}

fn rules(view: &View<'_>) -> schedule::Rules {
    let aging = Aging { tick_us: view.queue.tick_ms.i64() * 1_000, ticks: view.queue.aging_ticks.u32() };
    let base = Weight::new(view.queue.base_weight.get()).unwrap_or_default();
    schedule::Rules { queue: Rules { base, aging }, ..schedule::Rules::default() }
}

fn lock(want: Want, population: &Population) -> Lock {
    let scope = &population.scopes[want.scope as usize];
    let mode = if want.exclusive { Mode::Exclusive } else { Mode::Shared };
    let scope = match scope.level.map(usize::from) {
        None => Scope::BigLock,
        Some(level) if scope.whole => Scope::WholeLevel(level),
        Some(level) => Scope::Resource { level, name: scope.name.clone() },
    };
    Lock { scope, mode, units: want.units }
}
