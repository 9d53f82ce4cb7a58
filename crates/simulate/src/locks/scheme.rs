//! The schemes, which decide which jobs start.

use std::collections::BTreeSet;

use turnwise_policy::predictive_queue::aging::{Aging, Rules};
use turnwise_policy::predictive_queue::contention::Weight;
use turnwise_policy::predictive_queue::locks::{Levels, Lock, Mode, Requests, Scope};
use turnwise_policy::predictive_queue::summary::{Running, Summary};
use turnwise_policy::predictive_queue::window;
use turnwise_policy::schedule::{self, Candidate, Locks, schedule};

use super::population::{Job, JobId, Population, Want};
use super::world::{Choice, Inside, Ticket, View};

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
///
/// Jobs that have reserved, and jobs that wait for a lock while they run, have *tickets*; later tickets are higher. A job
/// that starts is bound by every earlier ticket whose locks conflict with what the job *declared*, even if they are free.
/// A declaration covers what the job will request later. Reservations do not bind a job that already holds locks, so it
/// continues: no jobs wait for each other in a circle.
pub(crate) struct PlainAging;

impl Chooser for PlainAging {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let levels = &view.population.levels;
        let locks = |wants: &[Want]| {
            let locks = wants.iter().map(|want| lock(*want, view.population));
            Running::new(locks, &Requests::default(), levels)
        };
        let reserved = view.reserved.iter().map(|(job, ticket)| (*ticket, locks(&view.job(*job).known)));
        let waiting = view.inside.values().filter_map(Inside::waits_for);
        let waiting = waiting.map(|(ticket, wants)| (ticket, locks(wants)));
        let tickets: Vec<(Ticket, Running)> = reserved.chain(waiting).collect();
        let mut all = earlier(&tickets, Ticket::MAX, levels);
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
            let bound = || match view.reserved.get(&id) {
                Some(ticket) => is_bound(job, &earlier(&tickets, *ticket, levels), levels),
                None => is_bound(job, &all, levels),
            };
            if table.all_free(id, &job.known) && !bound() {
                choice.start.push(id);
                job.known.iter().for_each(|want| table.take(id, *want));
            } else if may_reserve && choice.reserve.is_empty() && is_over(job) {
                // Its ticket is after all existing ones, and binds the jobs that come after it.
                choice.reserve.push(id);
                all.add(&locks(&job.known));
            }
        }
        choice
    }
}

/// The locks of the tickets before this one.
fn earlier(tickets: &[(Ticket, Running)], ticket: Ticket, levels: &Levels) -> Summary {
    let mut summary = Summary::new(levels);
    tickets.iter().filter(|(before, _)| *before < ticket).for_each(|(_, locks)| summary.add(locks));
    summary
}

/// Whether earlier tickets bind a job: of what it declared as unknown, it may take everything.
fn is_bound(job: &Job, earlier: &Summary, levels: &Levels) -> bool {
    let unknown = job.declared.unknown().filter_map(|(level, mode)| {
        Some(Lock { scope: Scope::WholeLevel(levels.position(level)?), mode, units: 1 })
    });
    let locks: Vec<Lock> = job.declared.known(levels).into_iter().chain(unknown).collect();
    earlier.obstacle(&locks).is_some()
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

#[cfg(test)]
mod tests {
    use super::super::scenario::Scenario;
    use super::*;

    /// Whether the first job, with ticket 5, binds the second one, with ticket `ticket`.
    fn binds(one: &str, other: &str, ticket: Ticket) -> bool {
        let task = |name: &str, locks: &str| {
            let real = locks.replace("\"unknown\"", "['z']");
            format!(
                "[[tasks]]\nname = '{name}'\nweight = 1\nrun_ms = 1\nlocks = {{ {real} }}\nsays = {{ {locks} }}\n"
            )
        };
        let text = format!(
            "name = 'x'\nslots = 1\narrivals = [{{ count = 40 }}]\n\
             levels = [{{ name = 'a' }}, {{ name = 'b' }}, {{ name = 'n', capacity = 3 }}]\n\
             [cluster]\ngroups = 1\nnodes = 2\ninstances = 1\n{}{}",
            task("one", one),
            task("other", other)
        );
        let population = Population::new(&Scenario::parse(&text).unwrap()).unwrap();
        let job = |task| population.jobs.iter().find(|job| job.task == task).unwrap();
        let known = job(0).known.iter().map(|want| lock(*want, &population));
        let levels = &population.levels;
        let tickets = [(5, Running::new(known, &Requests::default(), levels))];
        is_bound(job(1), &earlier(&tickets, ticket, levels), levels)
    }

    #[test]
    fn an_earlier_ticket_binds_jobs_that_declared_a_conflict() {
        let (shared, exclusive) = ("a = { shared = ['i'] }", "a = { exclusive = ['i'] }");
        let (all, all_exclusive) = ("a = { shared = 'all' }", "a = { exclusive = 'all' }");
        let (some, some_exclusive) = ("a = { shared = \"unknown\" }", "a = { exclusive = \"unknown\" }");
        let big = "big_lock = true";
        let others = [
            "",
            "b = { exclusive = ['i'] }",
            "a = { exclusive = ['j'] }",
            shared,
            exclusive,
            some,
            some_exclusive,
            all,
            all_exclusive,
            big,
        ];
        for (one, bound) in [
            (shared, [false, false, false, false, true, false, true, false, true, true]),
            (exclusive, [false, false, false, true, true, true, true, true, true, true]),
            (all, [false, false, true, false, true, false, true, false, true, true]),
            (all_exclusive, [false, false, true, true, true, true, true, true, true, true]),
            (big, [false, true, true, true, true, true, true, true, true, true]),
        ] {
            assert_eq!(others.map(|other| binds(one, other, Ticket::MAX)), bound, "{one}");
            assert_eq!(others.map(|other| binds(one, other, 6)), bound, "{one}");
            assert!(!others.iter().any(|other| binds(one, other, 4)), "{one}");
        }
    }

    #[test]
    fn units_are_kept_for_earlier_tickets() {
        let units = |units: u32| format!("n = {{ shared = {{ i = {units} }} }}");
        assert!(!binds(&units(1), &units(2), Ticket::MAX));
        assert!(binds(&units(2), &units(2), Ticket::MAX));
        assert!(!binds(&units(2), &units(2), 4));
    }
}
