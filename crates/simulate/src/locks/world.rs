//! The simulated world of jobs with locks: jobs come, start, take locks or wait for them, work, and end. A job is
//! *inside* from its start to its end.
//!
//! Events happen in the order of their time. After the events of one moment, jobs that wait inside take the locks
//! that are free, first come, first served. Then jobs that have all their locks resume, if they have a slot, and the
//! scheme fills the free slots. This repeats until nothing changes. After each step, the world checks that no two
//! jobs hold locks that exclude each other.
//!
//! ```text
//! pending ──start──▶ (its locks are not free: waiting) ──▶ working
//!         ──▶ (requests undeclared locks: waiting) ──▶ working ──▶ ended
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::Scheme;
use super::measure::Measure;
use super::population::{Job, JobId, Population, Want};
use super::scenario::{Queue, Scenario};
use super::scheme::Chooser;
use super::table::Table;

/// A position in the order of jobs that have reserved locks, and of jobs that wait inside.
pub(crate) type Ticket = u64;

/// How a job gets the locks that it knows before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// It starts whatever is free, and takes the locks inside: all of a level at once, level by level. A job that can
    /// have its locks takes them, even if another job has waited for longer.
    Inside,
    /// It takes all at once, or does not start. It requests undeclared locks while it runs, one after the other.
    /// These are served first come, first served, at each scope.
    AtOnce,
    /// It takes all at once, including those that it would request later.
    Clairvoyant,
}

/// What a job inside does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// It waits for the first entry of its `wants`, or for a slot if it has all its locks: with this ticket, since then.
    Waits {
        ticket: Ticket,
        since_us: i64,
    },
    Works,
}

/// A job between its start and its end.
pub(crate) struct Inside {
    does: Does,
    /// The locks that it has yet to take. Those of one entry are taken at once.
    wants: VecDeque<Vec<Want>>,
    asked: bool,
    /// When it took its locks, one by one.
    since_us: Vec<i64>,
}

impl Inside {
    /// Its ticket, and the locks for which it waits.
    pub(crate) fn waits_for(&self) -> Option<(Ticket, &[Want])> {
        match (self.does, self.wants.front()) {
            (Does::Waits { ticket, .. }, Some(wants)) => Some((ticket, wants)),
            _ => None,
        }
    }
}

/// The world, as schemes see it.
pub(crate) struct View<'a> {
    pub population: &'a Population,
    pub queue: Queue,
    pub now_us: i64,
    /// The number of jobs that may start.
    pub room: usize,
    /// In the order of their arrival.
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

    /// The window at the head of the queue, for schemes that do not widen it.
    pub(crate) fn window(&self) -> impl Iterator<Item = JobId> {
        self.pending.iter().copied().take(self.queue.window.usize())
    }
}

/// The decision of a scheme.
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
    /// The moments at which jobs come, or have done a piece of their work.
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
            table: Table::new(&population.scopes, population.levels.len()),
            reserved: BTreeMap::new(),
            next_ticket: 0,
            measure: Measure::new(population),
        }
    }

    /// Runs until all jobs have ended.
    ///
    /// # Panics
    /// Two jobs hold locks that exclude each other, or a job waits for ever.
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
            self.measure.steps.push((self.now_us, working, self.slots_used() - working));
        }
        assert_eq!(self.measure.waits.len(), self.population.jobs.len(), "{scheme}: a job waits for ever");
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

    /// A job inside waits from now on for its next locks, or for a slot.
    fn wants_more(&mut self, job: JobId) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Some(inside) = self.inside.get_mut(&job) {
            inside.does = Does::Waits { ticket, since_us: self.now_us };
        }
    }

    /// The slots that are in use. A job that waits inside keeps its slot, unless it lends it.
    fn slots_used(&self) -> usize {
        let lent = self.how == Start::AtOnce && !self.queue.waiting_uses_slot;
        self.inside.values().filter(|inside| inside.does == Does::Works || !lent).count()
    }

    fn settle(&mut self) {
        loop {
            // Each round serves or resumes a job, or is the last. A job waits no more often than it has locks.
            while self.serve_waiting() || self.resume() {}
            // A start releases nothing, but the window then reaches further. Each round starts a job, or is the last.
            if !self.fill() {
                break;
            }
        }
    }

    /// Jobs that wait inside take the locks that are free. Returns whether any job did.
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
            if !self.table.all_free(job, wants) || self.must_wait_for_earlier(job, wants, before) {
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

    /// Whether a job must wait for an earlier one: first come, first served, at each scope. An earlier job that waits
    /// for all of a level also precedes jobs that hold nothing at that level yet.
    fn must_wait_for_earlier(&self, job: JobId, wants: &[Want], before: &[(Ticket, JobId)]) -> bool {
        if self.how != Start::AtOnce {
            return false;
        }
        let scopes = &self.population.scopes;
        let conflicts = |other: &Want| {
            let other_scope = &scopes[other.scope as usize];
            wants.iter().any(|want| {
                let level = scopes[want.scope as usize].level;
                let all = other_scope.whole && other_scope.level == level && !self.table.holds_at(job, level);
                other.scope == want.scope || all && (other.exclusive || want.exclusive)
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

    /// The wait of a job inside is over.
    fn leave_wait(&mut self, job: JobId) {
        let Some(inside) = self.inside.get(&job) else { return };
        if let Does::Waits { since_us, .. } = inside.does {
            let lent = self.how == Start::AtOnce && !self.queue.waiting_uses_slot;
            let idle = inside.since_us.iter().filter(|since| **since < self.now_us).count();
            self.measure.waited_inside(self.now_us - since_us, !lent, idle);
        }
    }

    /// Jobs that have all their locks resume, first come, first served. Returns whether any job did.
    fn resume(&mut self) -> bool {
        let mut ready: Vec<(Ticket, JobId)> = Vec::new();
        for (job, inside) in &self.inside {
            if let (Does::Waits { ticket, .. }, true) = (inside.does, inside.wants.is_empty()) {
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

    /// Lets the scheme fill the free slots. Returns whether a job has started.
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

/// The sets of locks that are taken at once: one for each level.
fn by_level(wants: &[Want], population: &Population) -> VecDeque<Vec<Want>> {
    let level = |want: &Want| population.scopes[want.scope as usize].level;
    wants.chunk_by(|one, next| level(one) == level(next)).map(<[Want]>::to_vec).collect()
}
