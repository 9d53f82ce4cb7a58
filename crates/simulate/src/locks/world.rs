//! The world that a scheme decides about: jobs come, start, take locks or wait for them, work, and end.
//!
//! Events are taken in the order of their time. Whatever happened at one moment is followed by: those who wait for locks inside are looked at,
//! first come first served; those who have theirs go on, if their slot is free; the scheme fills the free slots; and so on until
//! nothing changes. After each step it is looked at that nobody holds what excludes somebody else.
//!
//! ```text
//! pending ──start──▶ (locks that it has not got: waiting) ──▶ working ──▶ (asks for what it had not said: waiting) ──▶ working ──▶ ended
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::Scheme;
use super::measure::Measure;
use super::population::{Job, JobId, Population, Want};
use super::scenario::{Queue, Scenario};
use super::scheme::Chooser;
use super::table::Table;
use super::tickets::Ticket;

/// How a job gets the locks that it knows when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// It starts whatever is free, and takes them inside, all of a level at once, level by level. Whoever can have what he wants takes it,
    /// whoever has waited for longer.
    Inside,
    /// All at once, or it does not start. What it has not said it asks for while it runs, one after the other, first come first served at
    /// each place.
    AtOnce,
    /// All at once, those that it would ask for as well.
    Clairvoyant,
}

/// What a job does that has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// It waits for the first of what it wants, with this ticket, since then.
    Waits {
        ticket: Ticket,
        since_us: i64,
    },
    /// It has all that it wants, and no slot, with this ticket, since then.
    Ready {
        ticket: Ticket,
        since_us: i64,
    },
    Works,
}

/// A job that has started.
pub(crate) struct Inside {
    does: Does,
    /// What it has yet to take: what stands together is taken at once.
    wants: VecDeque<Vec<Want>>,
    asked: bool,
    /// When it took what it holds, lock by lock.
    since_us: Vec<i64>,
}

impl Inside {
    /// What it waits for, and how long its turn has been.
    pub(crate) fn waits_for(&self) -> Option<(Ticket, &[Want])> {
        match (self.does, self.wants.front()) {
            (Does::Waits { ticket, .. }, Some(wants)) => Some((ticket, wants)),
            _ => None,
        }
    }
}

/// The world, as far as schemes may look.
pub(crate) struct View<'a> {
    pub population: &'a Population,
    pub queue: Queue,
    pub now_us: i64,
    /// Jobs that may start.
    pub room: usize,
    /// In the order in which they came.
    pub pending: &'a BTreeSet<JobId>,
    pub inside: &'a BTreeMap<JobId, Inside>,
    pub table: &'a Table<'a>,
    /// The tickets of pending jobs that have reserved.
    pub reserved: &'a BTreeMap<JobId, Ticket>,
}

impl View<'_> {
    pub(crate) fn job(&self, job: JobId) -> &Job {
        &self.population.jobs[job as usize]
    }

    /// The front of the queue, as far as it is looked at where that does not change.
    pub(crate) fn window(&self) -> impl Iterator<Item = JobId> {
        self.pending.iter().copied().take(self.queue.window.usize())
    }
}

/// What a scheme wants to happen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// These start, in this order.
    pub start: Vec<JobId>,
    /// These reserve, in this order.
    pub reserve: Vec<JobId>,
}

pub(crate) struct World<'a> {
    population: &'a Population,
    queue: Queue,
    slots: usize,
    how: Start,
    chooser: Box<dyn Chooser + 'a>,
    now_us: i64,
    /// Jobs that come, or have done a piece of work.
    events: BinaryHeap<Reverse<(i64, JobId)>>,
    pending: BTreeSet<JobId>,
    inside: BTreeMap<JobId, Inside>,
    table: Table<'a>,
    reserved: BTreeMap<JobId, Ticket>,
    next_ticket: Ticket,
    measure: Measure,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        scenario: &Scenario,
        population: &'a Population,
        how: Start,
        chooser: Box<dyn Chooser + 'a>,
    ) -> Self {
        World {
            population,
            queue: scenario.queue,
            slots: scenario.slots.usize(),
            how,
            chooser,
            now_us: 0,
            events: (0..).zip(&population.jobs).map(|(id, job)| Reverse((job.comes_us, id))).collect(),
            pending: BTreeSet::new(),
            inside: BTreeMap::new(),
            table: Table::new(&population.places, population.levels.len()),
            reserved: BTreeMap::new(),
            next_ticket: 0,
            measure: Measure::new(population),
        }
    }

    /// Runs to the end of all jobs.
    ///
    /// # Panics
    /// Somebody holds what excludes somebody else, or somebody waits for ever.
    pub(crate) fn run(mut self, scheme: Scheme) -> Measure {
        while let Some(Reverse((at_us, _))) = self.events.peek().copied() {
            self.now_us = at_us;
            while let Some(Reverse((_, job))) = self.events.peek().filter(|event| event.0.0 == at_us).copied()
            {
                self.events.pop();
                self.happens(job);
            }
            self.settle();
            self.table.assert_exclusion();
            let working = self.inside.values().filter(|inside| inside.does == Does::Works).count();
            assert!(working <= self.slots, "{scheme}: {working} jobs work on {} slots", self.slots);
            self.measure.step(self.now_us, working, self.slots_used() - working);
        }
        assert_eq!(self.measure.waits.len(), self.population.jobs.len(), "{scheme}: somebody waits for ever");
        assert!(self.table.is_empty(), "{scheme}: a lock outlives its job");
        self.measure
    }

    fn job(&self, job: JobId) -> &'a Job {
        &self.population.jobs[job as usize]
    }

    /// A job comes, or has done a piece of its work.
    fn happens(&mut self, job: JobId) {
        let at_us = self.now_us;
        let plan = self.job(job);
        match self.inside.get_mut(&job) {
            None => {
                self.pending.insert(job);
            }
            Some(inside) if !inside.asked => {
                inside.asked = true;
                match self.how {
                    Start::Inside => inside.wants = by_level(&plan.asks, self.population),
                    _ => inside.wants = plan.asks.iter().map(|want| vec![*want]).collect(),
                }
                self.wants_more(job);
            }
            Some(_) => {
                let held = self.table.release(job);
                if let Some(inside) = self.inside.remove(&job) {
                    self.measure.ended(plan, at_us, held.iter().zip(&inside.since_us));
                }
            }
        }
    }

    /// A job that has started goes to wait for what it wants next, or for its slot.
    fn wants_more(&mut self, job: JobId) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let since_us = self.now_us;
        let Some(inside) = self.inside.get_mut(&job) else { return };
        inside.does = match inside.wants.is_empty() {
            true => Does::Ready { ticket, since_us },
            false => Does::Waits { ticket, since_us },
        };
    }

    /// Slots that are taken: a job that waits inside keeps its own, unless it is lent.
    fn slots_used(&self) -> usize {
        let lent = self.how == Start::AtOnce && !self.queue.waiting_uses_slot;
        self.inside.values().filter(|inside| inside.does == Does::Works || !lent).count()
    }

    fn settle(&mut self) {
        loop {
            // Each round serves or resumes a job, or is the last; a job wants something no more often than it has locks.
            while self.serve_waiting() || self.resume() {}
            // Starts release nothing, but the window sees further after them. Each round starts somebody, or is the last.
            if !self.fill() {
                break;
            }
        }
    }

    /// Those who wait inside take what they can have.
    fn serve_waiting(&mut self) -> bool {
        let mut waiting: Vec<(Ticket, JobId)> = Vec::new();
        for (job, inside) in &self.inside {
            waiting.extend(inside.waits_for().map(|(ticket, _)| (ticket, *job)));
        }
        waiting.sort_unstable();
        let mut served = false;
        for at in 0..waiting.len() {
            let (_, job) = waiting[at];
            let Some((_, wants)) = self.inside.get(&job).and_then(Inside::waits_for) else { continue };
            let before = &waiting[..at];
            if !self.table.all_free(job, wants) || self.must_let_go_first(job, wants, before) {
                continue;
            }
            if let Some(wants) = self.inside.get_mut(&job).and_then(|inside| inside.wants.pop_front()) {
                self.take(job, &wants);
                self.leave_wait(job);
                self.wants_more(job);
                served = true;
            }
        }
        served
    }

    /// First come, first served at each place; who waits for all of a level goes before those who hold nothing there yet.
    fn must_let_go_first(&self, job: JobId, wants: &[Want], before: &[(Ticket, JobId)]) -> bool {
        if self.how != Start::AtOnce {
            return false;
        }
        let places = &self.population.places;
        let conflicts = |other: &Want| {
            let other_place = &places[other.place as usize];
            wants.iter().any(|want| {
                let level = places[want.place as usize].level;
                let all = other_place.whole && other_place.level == level && !self.table.holds_at(job, level);
                other.place == want.place || all && (other.exclusive || want.exclusive)
            })
        };
        let others = before.iter().filter_map(|(_, other)| self.inside.get(other)?.waits_for());
        others.flat_map(|(_, wants)| wants).any(conflicts)
    }

    fn take(&mut self, job: JobId, wants: &[Want]) {
        for want in wants {
            assert!(self.table.is_free(job, *want), "job {job} takes what is not free: {want:?}");
            self.table.take(job, *want);
            if let Some(inside) = self.inside.get_mut(&job) {
                inside.since_us.push(self.now_us);
            }
        }
    }

    /// A wait inside is over.
    fn leave_wait(&mut self, job: JobId) {
        let Some(inside) = self.inside.get(&job) else { return };
        if let Does::Waits { since_us, .. } | Does::Ready { since_us, .. } = inside.does {
            let lent = self.how == Start::AtOnce && !self.queue.waiting_uses_slot;
            let idle = inside.since_us.iter().filter(|since| **since < self.now_us).count();
            self.measure.waited_inside(self.now_us - since_us, !lent, idle);
        }
    }

    /// Those who have all that they want go on, first come first served.
    fn resume(&mut self) -> bool {
        let mut ready: Vec<(Ticket, JobId)> = Vec::new();
        for (job, inside) in &self.inside {
            if let Does::Ready { ticket, .. } = inside.does {
                ready.push((ticket, *job));
            }
        }
        ready.sort_unstable();
        let keeps_slot = self.how != Start::AtOnce || self.queue.waiting_uses_slot;
        let room = if keeps_slot { ready.len() } else { self.slots - self.slots_used() };
        for (_, job) in ready.iter().take(room) {
            self.leave_wait(*job);
            let plan = self.job(*job);
            let Some(inside) = self.inside.get_mut(job) else { continue };
            inside.does = Does::Works;
            let nothing_to_ask = plan.asks.is_empty() || self.how == Start::Clairvoyant;
            let asks_at_us = if nothing_to_ask { 0 } else { plan.asks_at_us };
            let work_us = if inside.asked || nothing_to_ask { plan.run_us - asks_at_us } else { asks_at_us };
            inside.asked |= nothing_to_ask;
            self.events.push(Reverse((self.now_us + work_us, *job)));
        }
        room.min(ready.len()) > 0
    }

    /// The scheme fills the free slots, as far as it looks; returns whether anybody has started.
    fn fill(&mut self) -> bool {
        let room = self.slots.saturating_sub(self.slots_used());
        if room == 0 || self.pending.is_empty() {
            return false;
        }
        let choice = self.chooser.choose(&View {
            population: self.population,
            queue: self.queue,
            now_us: self.now_us,
            room,
            pending: &self.pending,
            inside: &self.inside,
            table: &self.table,
            reserved: &self.reserved,
        });
        assert!(choice.start.len() <= room, "more jobs start than there is room for");
        for job in choice.reserve {
            self.reserved.insert(job, self.next_ticket);
            self.next_ticket += 1;
        }
        for job in &choice.start {
            self.start(*job);
        }
        !choice.start.is_empty()
    }

    fn start(&mut self, job: JobId) {
        assert!(self.pending.remove(&job), "job {job} starts twice");
        self.reserved.remove(&job);
        let plan = self.job(job);
        let mut inside =
            Inside { does: Does::Works, wants: VecDeque::new(), asked: false, since_us: Vec::new() };
        if self.how == Start::Inside {
            inside.wants = by_level(&plan.known, self.population);
        }
        self.inside.insert(job, inside);
        match self.how {
            Start::Inside => {}
            Start::AtOnce => self.take(job, &plan.known),
            Start::Clairvoyant => self.take(job, &plan.real),
        }
        self.wants_more(job);
    }
}

/// What is taken together: all of one level.
fn by_level(wants: &[Want], population: &Population) -> VecDeque<Vec<Want>> {
    let level = |want: &Want| population.places[want.place as usize].level;
    wants.chunk_by(|one, next| level(one) == level(next)).map(<[Want]>::to_vec).collect()
}
