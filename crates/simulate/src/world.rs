//! The simulated world of tenants: which tenants come, which jobs arrive, run and end, and what each tenant gets.
//!
//! Events happen in the order of their time. The world reports all events of one moment to the scheme, and then fills
//! the free slots. At a cycle, it first asks the scheme which jobs stop. So between two events, a scheme could only
//! wait.

mod limits;
mod schedules;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::entitlement::Entitlement;
use crate::number::OneOf;
use crate::policy::Policy;
use crate::results::{Results, Series, TenantResults};
use crate::rng::SeededRng;
use crate::scenario::{MAX_JOBS, Scenario, SharesRange, Tenants, Work};
use crate::scheme::{self, Job, JobId, Scheme, Tenant, View};
use limits::Limits;
use schedules::Schedules;

/// Why a scenario cannot be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More jobs arrived than the simulation can hold.
    #[error(
        "more than {most} jobs had arrived after {} s: simulate fewer cycles, or a lower rate",
        at_us / 1_000_000
    )]
    TooManyJobs {
        /// The most jobs.
        most: u64,
        /// The time of that arrival, in µs since the start.
        at_us: i64,
    },
}

/// The most points of one tenant's series.
const POINTS: u64 = 400;
/// The most points of all tenants' series: about 16 bytes each.
const ALL_POINTS: u64 = 2_000_000;
/// The fewest points of a series, if there are so many cycles.
const FEWEST_POINTS: u64 = 50;

/// An event. Events of the same time happen in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A run of a job ends: the job, and the number of the run.
    End(JobId, u32),
    Leave(usize),
    NewShares(usize, u32),
    Come(usize),
    /// A tenant deletes its jobs and adds them again: the tenant, and the number of its visit.
    Readd(usize, u32),
    /// The count of one kind of jobs arrives again: the tenant, the kind, and the number of the visit.
    Burst(usize, usize, u32),
    /// One job of a kind arrives.
    Arrive(usize, usize, u32),
    /// Equal schedules of a tenant fire.
    Fire(usize),
    /// The job of a fire may start: the schedule, the instant, and the number of the tenant's visit.
    Due(usize, i64, u32),
    /// A bucket of a rate has a place.
    Place(usize),
}

/// What the world knows of a job, and schemes do not know.
#[derive(Debug, Clone, Copy)]
struct Fate {
    /// How long it runs.
    run_us: Option<i64>,
    /// The time since which it waits.
    waits_since_us: i64,
    /// The time until which its run is charged.
    charged_until_us: i64,
    /// The number of its runs so far.
    runs: u32,
    /// Its index in `World::running`.
    place: u32,
    gone: bool,
    /// Its rate has refused it: it is not in the queue.
    limited: bool,
    /// The schedule that has added it, and the instant.
    fire: Option<(usize, i64)>,
}

/// What the world knows of a tenant, and schemes do not know.
struct Owner<'a> {
    plan: &'a Tenants,
    /// The kinds of its jobs: those of the plan, and those of its schedules.
    work: Vec<Work>,
    /// One for each kind of work.
    rng: Vec<SeededRng>,
    /// The rate that each kind of work obeys.
    rates: Vec<Option<usize>>,
    present: bool,
    /// The number of times that it has come.
    visits: u32,
    /// Its jobs. Removed ones stay among them until there are too many.
    jobs: Vec<JobId>,
    gone: usize,
    /// Those that a rate has refused.
    limited: u64,
    got: Got,
}

/// What a tenant got so far.
#[derive(Default)]
struct Got {
    received_us: i64,
    added: u64,
    starts: u64,
    completed: u64,
    longest_wait_us: i64,
    waited_us: i64,
    waits: u64,
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    scheme: Box<dyn Scheme>,
    now_us: i64,
    end_us: i64,
    events: BinaryHeap<Reverse<(i64, Event)>>,
    jobs: Vec<Job>,
    fates: Vec<Fate>,
    tenants: Vec<Tenant>,
    owners: Vec<Owner<'a>>,
    running: Vec<JobId>,
    /// The jobs that wait, and how many of them a rate has refused.
    waiting: usize,
    limited: usize,
    limits: Limits,
    schedules: Schedules<'a>,
    due: Entitlement,
    idle_slots: u64,
    swaps: u64,
}

/// Simulates a scenario to its end.
///
/// # Errors
/// More jobs arrive than [`MAX_JOBS`].
pub fn run(scenario: &Scenario, policy: Policy) -> Result<Results, Error> {
    let mut world = World::new(scenario, policy);
    let tenants = world.tenants.len();
    let points = (ALL_POINTS / tenants as u64).clamp(FEWEST_POINTS, POINTS).min(scenario.cycles.get());
    let every = scenario.cycles.get().div_ceil(points);
    let mut series = Series::new(tenants);
    for cycle in 0..=scenario.cycles.get() {
        let at_us = i64::try_from(cycle).expect("cycles are below 2^63") * scenario.interval_us();
        world.events_before(at_us)?;
        world.cycle(at_us, cycle > 0)?;
        if cycle > 0 && (cycle % every == 0 || cycle == scenario.cycles.get()) {
            let due = &mut world.due;
            let now = world.owners.iter().enumerate();
            series.push(cycle, now.map(|(n, owner)| (owner.got.received_us as f64, due.due(n).slot_us)));
        }
    }
    Ok(world.outcome(policy, series))
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, policy: Policy) -> Self {
        let (mut tenants, mut owners, mut works) = (Vec::new(), Vec::new(), Vec::new());
        let count = scenario.tenants.iter().map(|plan| plan.count.usize()).sum();
        let limits = Limits::new(&scenario.rates, count);
        for plan in &scenario.tenants {
            let digits = plan.count.get().to_string().len();
            for n in 1..=plan.count.get() {
                let number = tenants.len();
                let rng = |part| SeededRng::new(scenario.seed.get(), number, part);
                let shares = match plan.shares {
                    OneOf::One(shares) => shares.u32(),
                    OneOf::Other(SharesRange { from, to }) => {
                        u32::try_from(rng(0).between(from.get(), to.get())).expect("shares are at most 1000")
                    }
                };
                let name = match plan.count.get() {
                    1 => plan.name.clone(),
                    _ => format!("{}-{n:0digits$}", plan.name),
                };
                tenants.push(Tenant { name, shares, jobs: 0, waiting: 0 });
                let mut work = plan.work();
                works.push(work.len());
                work.extend(plan.schedules.iter().map(|schedule| Work {
                    run_ms: Some(schedule.run_ms),
                    rate: schedule.rate.clone(),
                    ..Work::default()
                }));
                let rng = (1..=work.len()).map(rng).collect();
                let rates = work.iter().map(|work| limits.named(work.rate.as_ref())).collect();
                owners.push(Owner {
                    plan,
                    work,
                    rng,
                    rates,
                    present: false,
                    visits: 0,
                    jobs: Vec::new(),
                    gone: 0,
                    limited: 0,
                    got: Got::default(),
                });
            }
        }
        let mut world = World {
            scenario,
            scheme: scheme::of(policy, scenario, tenants.len()),
            now_us: 0,
            end_us: scenario.cycles.i64() * scenario.interval_us(),
            events: BinaryHeap::new(),
            jobs: Vec::new(),
            fates: Vec::new(),
            due: Entitlement::new(scenario.slots.get(), tenants.len()),
            schedules: Schedules::new(scenario, &tenants, &works),
            limits,
            tenants,
            owners,
            running: Vec::new(),
            waiting: 0,
            limited: 0,
            idle_slots: 0,
            swaps: 0,
        };
        for number in 0..world.owners.len() {
            let plan = world.owners[number].plan;
            world.in_cycles(plan.comes_at.get(), Event::Come(number));
            for change in &plan.new_shares {
                world.in_cycles(change.at.get(), Event::NewShares(number, change.shares.u32()));
            }
        }
        world.plan_fires();
        world
    }

    /// An event in this many cycles from now.
    fn in_cycles(&mut self, cycles: u64, event: Event) {
        let cycles = i64::try_from(cycles).expect("cycles are below 2^63");
        self.at(self.now_us + cycles * self.scenario.interval_us(), event);
    }

    fn at(&mut self, at_us: i64, event: Event) {
        if at_us <= self.end_us {
            self.events.push(Reverse((at_us, event)));
        }
    }

    /// Runs all events before a moment, with a pass after each moment that has events.
    fn events_before(&mut self, until_us: i64) -> Result<(), Error> {
        while let Some(Reverse((at_us, _))) = self.events.peek()
            && *at_us < until_us
        {
            let at_us = *at_us;
            self.events_at(at_us)?;
            self.fill();
        }
        Ok(())
    }

    fn events_at(&mut self, at_us: i64) -> Result<(), Error> {
        self.now_us = at_us;
        self.due.advance(at_us);
        while let Some(Reverse((time_us, event))) = self.events.peek().copied()
            && time_us == at_us
        {
            self.events.pop();
            self.happens(event)?;
        }
        Ok(())
    }

    fn cycle(&mut self, at_us: i64, rotates: bool) -> Result<(), Error> {
        self.events_at(at_us)?;
        if rotates {
            let (scheme, view) = self.split();
            scheme.cycle_begins(view);
            for place in 0..self.running.len() {
                self.charge(self.running[place]);
            }
            let (scheme, view) = self.split();
            let stop = scheme.cycle(view);
            assert!(stop.len() <= self.scenario.churn.usize(), "no cycle rotates more than the churn");
            for job in &stop {
                assert!(
                    self.job(*job).running && self.job(*job).continuous,
                    "only continuous jobs are preempted"
                );
                self.end_run(*job, false);
                self.wait(*job);
                let (scheme, view) = self.split();
                scheme.waits(view, *job);
            }
            self.swaps += stop.len() as u64;
        }
        self.fill();
        Ok(())
    }

    fn happens(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::End(job, run) => {
                let fate = self.fates[job as usize];
                if self.job(job).running && fate.runs == run {
                    self.end_run(job, true);
                    self.owners[self.jobs[job as usize].tenant].got.completed += 1;
                    self.remove(job, true);
                }
            }
            Event::Come(tenant) => self.come(tenant)?,
            Event::Leave(tenant) => {
                let owner = &mut self.owners[tenant];
                owner.present = false;
                let back = owner.plan.comes_back_after;
                self.remove_all(tenant);
                if let Some(after) = back {
                    self.in_cycles(after.get(), Event::Come(tenant));
                }
            }
            Event::NewShares(tenant, shares) => {
                self.tenants[tenant].shares = shares;
                self.set_due(tenant);
                let (scheme, view) = self.split();
                scheme.new_shares(view, tenant);
            }
            // They were planned during a visit that is over.
            Event::Readd(tenant, visit)
            | Event::Burst(tenant, _, visit)
            | Event::Arrive(tenant, _, visit)
                if !self.is_here(tenant, visit) => {}
            Event::Readd(tenant, _) => {
                self.readd(tenant);
                self.readd_later(tenant);
            }
            Event::Burst(tenant, work, _) => {
                self.add(tenant, work, self.owners[tenant].work[work].count.get())?;
                self.burst_later(tenant, work);
            }
            Event::Arrive(tenant, work, _) => {
                self.add(tenant, work, 1)?;
                self.arrive_later(tenant, work);
            }
            Event::Fire(number) => self.fire(number),
            Event::Due(schedule, instant_us, visit) => self.due(schedule, instant_us, visit)?,
            Event::Place(bucket) => self.places(bucket),
        }
        Ok(())
    }

    fn is_here(&self, tenant: usize, visit: u32) -> bool {
        self.owners[tenant].present && self.owners[tenant].visits == visit
    }

    fn come(&mut self, tenant: usize) -> Result<(), Error> {
        let owner = &mut self.owners[tenant];
        owner.present = true;
        owner.visits += 1;
        let plan = owner.plan;
        for work in 0..self.owners[tenant].work.len() {
            self.add(tenant, work, self.owners[tenant].work[work].count.get())?;
            self.burst_later(tenant, work);
            self.arrive_later(tenant, work);
        }
        self.readd_later(tenant);
        if let Some(leaves) = plan.leaves_at {
            self.in_cycles(leaves.get() - plan.comes_at.get(), Event::Leave(tenant));
        }
        Ok(())
    }

    fn readd_later(&mut self, tenant: usize) {
        let Owner { plan, visits, .. } = self.owners[tenant];
        if let Some(every) = plan.readds_every {
            self.in_cycles(every.get(), Event::Readd(tenant, visits));
        }
    }

    fn burst_later(&mut self, tenant: usize, work: usize) {
        let owner = &self.owners[tenant];
        if let Some(every) = owner.work[work].every {
            self.in_cycles(every.get(), Event::Burst(tenant, work, owner.visits));
        }
    }

    fn arrive_later(&mut self, tenant: usize, work: usize) {
        let owner = &mut self.owners[tenant];
        let visits = owner.visits;
        if let Some(rate) = owner.work[work].per_second.filter(|rate| rate.get() > 0.0) {
            let gap_us = owner.rng[work].exponential(1e6 / rate.get()).ceil() as i64;
            self.at(self.now_us.saturating_add(gap_us), Event::Arrive(tenant, work, visits));
        }
    }

    fn add(&mut self, tenant: usize, work: usize, count: u64) -> Result<(), Error> {
        if self.jobs.len() as u64 + count > MAX_JOBS {
            return Err(Error::TooManyJobs { most: MAX_JOBS, at_us: self.now_us });
        }
        for _ in 0..count {
            let owner = &mut self.owners[tenant];
            let run_us = owner.work[work].run_ms.map(|time| owner.rng[work].run_us(time));
            self.limits.put(owner.rates[work], tenant, &mut owner.rng[work]);
            let id = JobId::try_from(self.jobs.len()).expect("there are at most MAX_JOBS");
            self.jobs.push(Job {
                tenant,
                continuous: run_us.is_none(),
                order_us: self.now_us,
                added_us: self.now_us,
                running: false,
            });
            self.fates.push(Fate {
                run_us,
                waits_since_us: self.now_us,
                charged_until_us: self.now_us,
                runs: 0,
                place: 0,
                gone: false,
                limited: false,
                fire: None,
            });
            owner.jobs.push(id);
            self.appear(id);
        }
        Ok(())
    }

    /// A job exists from now on, and waits.
    fn appear(&mut self, job: JobId) {
        let now_us = self.now_us;
        let (seen, fate) = (&mut self.jobs[job as usize], &mut self.fates[job as usize]);
        (seen.added_us, seen.order_us, fate.gone) = (now_us, now_us, false);
        let tenant = seen.tenant;
        self.owners[tenant].got.added += 1;
        self.tenants[tenant].jobs += 1;
        self.set_due(tenant);
        self.wait(job);
        let (scheme, view) = self.split();
        scheme.added(view, job);
    }

    /// The tenant is entitled to slots for its jobs, except those that a rate has refused.
    fn set_due(&mut self, tenant: usize) {
        let Tenant { jobs, shares, .. } = self.tenants[tenant];
        self.due.set(tenant, jobs as u64 - self.owners[tenant].limited, shares);
    }

    fn wait(&mut self, job: JobId) {
        self.fates[job as usize].waits_since_us = self.now_us;
        self.tenants[self.jobs[job as usize].tenant].waiting += 1;
        self.waiting += 1;
    }

    fn waits_no_more(&mut self, job: JobId) {
        let tenant = self.jobs[job as usize].tenant;
        self.tenants[tenant].waiting -= 1;
        self.waiting -= 1;
        let waited_us = self.now_us - self.fates[job as usize].waits_since_us;
        let got = &mut self.owners[tenant].got;
        got.longest_wait_us = got.longest_wait_us.max(waited_us);
        got.waited_us += waited_us;
        got.waits += 1;
    }

    fn fill(&mut self) {
        let mut limits = std::mem::take(&mut self.limits);
        let (scheme, view) = self.split();
        let start = scheme.fill(view, view.free(), &mut |job| limits.claim(job, view.now_us));
        self.limits = limits;
        assert!(start.len() <= self.scenario.slots.usize() - self.running.len(), "slots are not shared");
        for job in start {
            assert!(!self.job(job).running && !self.fates[job as usize].gone, "only waiting jobs start");
            self.start(job);
        }
        self.limit_refused();
        if self.waiting > self.limited && self.running.len() < self.scenario.slots.usize() {
            self.idle_slots += 1;
        }
    }

    fn start(&mut self, job: JobId) {
        self.waits_no_more(job);
        let now_us = self.now_us;
        let (seen, fate) = (&mut self.jobs[job as usize], &mut self.fates[job as usize]);
        (seen.running, seen.order_us) = (true, now_us);
        fate.charged_until_us = now_us;
        fate.runs += 1;
        fate.place = u32::try_from(self.running.len()).expect("slots are below 2^32");
        self.running.push(job);
        self.owners[seen.tenant].got.starts += 1;
        let first = fate.runs == 1;
        if let Some(run_us) = fate.run_us {
            let (at_us, event) = (now_us.saturating_add(run_us), Event::End(job, fate.runs));
            self.at(at_us, event);
        }
        if first {
            self.delayed(job);
        }
    }

    fn charge(&mut self, job: JobId) {
        let fate = &mut self.fates[job as usize];
        let ran_us = self.now_us - fate.charged_until_us;
        fate.charged_until_us = self.now_us;
        self.owners[self.jobs[job as usize].tenant].got.received_us += ran_us;
        let (scheme, view) = self.split();
        scheme.charge(view, job, ran_us);
    }

    /// A running job's run is over. The caller decides what the job does next.
    fn end_run(&mut self, job: JobId, completed: bool) {
        self.charge(job);
        self.jobs[job as usize].running = false;
        let place = self.fates[job as usize].place as usize;
        self.running.swap_remove(place);
        if let Some(moved) = self.running.get(place) {
            self.fates[*moved as usize].place = u32::try_from(place).expect("slots are below 2^32");
        }
        let (scheme, view) = self.split();
        scheme.ended(view, job, completed);
    }

    /// Removes a job that does not run: it was deleted, or has ended.
    fn remove(&mut self, job: JobId, ran: bool) {
        if !ran {
            self.waits_no_more(job);
        }
        let limited = self.fates[job as usize].limited;
        if limited {
            self.unlimit(job);
        }
        self.fates[job as usize].gone = true;
        let tenant = self.jobs[job as usize].tenant;
        self.tenants[tenant].jobs -= 1;
        self.set_due(tenant);
        let owner = &mut self.owners[tenant];
        owner.gone += 1;
        if owner.gone > 1_000 && owner.gone * 2 > owner.jobs.len() {
            owner.jobs.retain(|job| !self.fates[*job as usize].gone);
            owner.gone = 0;
        }
        let (scheme, view) = self.split();
        scheme.removed(view, job, ran || limited);
        self.next_of(job);
    }

    /// Deletes all jobs of a tenant, and returns them.
    fn remove_all(&mut self, tenant: usize) -> Vec<JobId> {
        let mut jobs = std::mem::take(&mut self.owners[tenant].jobs);
        jobs.retain(|job| !self.fates[*job as usize].gone);
        for job in &jobs {
            let ran = self.job(*job).running;
            if ran {
                self.end_run(*job, false);
            }
            self.remove(*job, ran);
        }
        self.owners[tenant].gone = 0;
        jobs
    }

    fn readd(&mut self, tenant: usize) {
        let jobs = self.remove_all(tenant);
        for job in &jobs {
            self.appear(*job);
        }
        self.owners[tenant].jobs = jobs;
    }

    fn job(&self, job: JobId) -> &Job {
        &self.jobs[job as usize]
    }

    fn split(&mut self) -> (&mut dyn Scheme, View<'_>) {
        let view = View {
            now_us: self.now_us,
            slots: self.scenario.slots.usize(),
            churn: self.scenario.churn.usize(),
            interval_us: self.scenario.interval_us(),
            jobs: &self.jobs,
            tenants: &self.tenants,
            running: &self.running,
            waiting: self.waiting - self.limited,
        };
        (self.scheme.as_mut(), view)
    }

    fn outcome(mut self, policy: Policy, series: Series) -> Results {
        // A job that still waits has a wait, too. Otherwise a starved job would not count.
        let waiting: Vec<JobId> = (0..JobId::try_from(self.jobs.len()).expect("at most MAX_JOBS"))
            .filter(|job| !self.job(*job).running && !self.fates[*job as usize].gone)
            .collect();
        let still: Vec<usize> = self.tenants.iter().map(|tenant| tenant.waiting).collect();
        for job in waiting {
            self.waits_no_more(job);
            if self.fates[job as usize].runs == 0 {
                self.delayed(job);
            }
        }
        let schedules = self.schedule_results();
        let interval_us = self.scenario.interval_us() as f64;
        let mut tenants = Vec::new();
        for (n, Owner { got, .. }) in self.owners.iter().enumerate() {
            let due = self.due.due(n);
            tenants.push(TenantResults {
                name: self.tenants[n].name.clone(),
                shares: self.tenants[n].shares,
                jobs: got.added,
                entitled: due.slot_us / interval_us,
                received: got.received_us as f64 / interval_us,
                present_cycles: due.present_us as f64 / interval_us,
                hungry_cycles: due.hungry_us as f64 / interval_us,
                starts: got.starts,
                completed: got.completed,
                still_waiting: still[n],
                longest_wait_cycles: got.longest_wait_us as f64 / interval_us,
                mean_wait_cycles: got.waited_us as f64 / got.waits.max(1) as f64 / interval_us,
            });
        }
        Results {
            policy,
            slots: self.scenario.slots.usize(),
            churn: self.scenario.churn.usize(),
            interval_ms: self.scenario.interval_ms.get(),
            cycles: self.scenario.cycles.get(),
            tenants,
            idle_slot_passes: self.idle_slots,
            stopped: self.swaps,
            schedules,
            rates: self.limits.results(self.end_us),
            series,
        }
    }
}
