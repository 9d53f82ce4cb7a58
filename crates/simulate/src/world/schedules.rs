//! The schedules of the world. Each fires at the instants of its calendar, and its job may start later by its jitter. As in a server,
//! what happens to an earlier job that has not ended is decided by [`Overlap::step`].

use std::ops::Range;
use std::rc::Rc;

use turnwise_calendar::job_id;
use turnwise_policy::fire::{LastJob, Overlap, Step, jitter_us};

use super::{Error, Event, World};
use crate::planned::{Fire, Schedule};
use crate::results::ScheduleResults;
use crate::scenario::Scenario;
use crate::scheme::{JobId, Tenant};

/// All schedules of the world.
#[derive(Default)]
pub(super) struct Schedules<'a> {
    plans: Vec<Plan<'a>>,
    singles: Vec<Single>,
    /// One for each schedule that the scenario states.
    pub results: Vec<ScheduleResults>,
}

/// Equal schedules of one tenant.
struct Plan<'a> {
    schedule: &'a Schedule,
    tenant: usize,
    /// Its jobs, among the kinds of jobs of the tenant.
    work: usize,
    fires: Rc<[Fire]>,
    /// The number of its next fire.
    next: usize,
    singles: Range<usize>,
    /// Its index in `Schedules::results`.
    results: usize,
}

/// One schedule.
struct Single {
    plan: usize,
    name: String,
    last: Option<Last>,
    /// The instant of the fire whose job waits for the end of the last one.
    behind: Option<i64>,
}

/// The job that a schedule added last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// That of this instant, which does not wait for a slot yet. It was added at this visit of the tenant.
    Ahead(i64, u32),
    Job(JobId),
}

impl<'a> Schedules<'a> {
    /// The schedules of a scenario, whose tenants are these. `works` are the numbers of their other kinds of jobs.
    pub fn new(scenario: &'a Scenario, tenants: &[Tenant], works: &[usize]) -> Self {
        let mut schedules = Schedules::default();
        let mut first = 0;
        for plan in &scenario.tenants {
            let of = first..first + plan.count.usize();
            first = of.end;
            for (n, schedule) in plan.schedules.iter().enumerate() {
                let fires: Rc<[Fire]> = schedule.fires(scenario).into();
                for tenant in of.clone() {
                    let begin = schedules.singles.len();
                    let digits = schedule.count.get().to_string().len();
                    for number in 1..=schedule.count.get() {
                        let mut name = schedule.name.clone();
                        if of.len() > 1 {
                            name += &format!("-{}", tenants[tenant].name);
                        }
                        if schedule.count.get() > 1 {
                            name += &format!("-{number:0digits$}");
                        }
                        let plan = schedules.plans.len();
                        schedules.singles.push(Single { plan, name, last: None, behind: None });
                    }
                    schedules.plans.push(Plan {
                        schedule,
                        tenant,
                        work: works[tenant] + n,
                        fires: Rc::clone(&fires),
                        next: 0,
                        singles: begin..schedules.singles.len(),
                        results: schedules.results.len(),
                    });
                }
                let (name, tenant) = (schedule.name.clone(), plan.name.clone());
                schedules.results.push(ScheduleResults { name, tenant, ..ScheduleResults::default() });
            }
        }
        schedules
    }

    /// A job of a schedule has waited from the instant of its fire until now.
    fn delayed(&mut self, single: usize, instant_us: i64, now_us: i64) {
        let results = &mut self.results[self.plans[self.singles[single].plan].results];
        let delay_ms = (now_us - instant_us).unsigned_abs() / 1_000;
        results.longest_delay_ms = results.longest_delay_ms.max(delay_ms);
    }
}

impl World<'_> {
    /// Plans the first fire of each schedule.
    pub(super) fn plan_fires(&mut self) {
        for number in 0..self.schedules.plans.len() {
            self.fire_later(number);
        }
    }

    fn fire_later(&mut self, number: usize) {
        let plan = &self.schedules.plans[number];
        if let Some(Fire { at_us, .. }) = plan.fires.get(plan.next) {
            self.at(*at_us, Event::Fire(number));
        }
    }

    /// Equal schedules of a tenant fire, if the tenant is there.
    pub(super) fn fire(&mut self, number: usize) {
        let plan = &mut self.schedules.plans[number];
        let Fire { at_us, moved } = plan.fires[plan.next];
        plan.next += 1;
        let &mut Plan { tenant, results, schedule, ref singles, .. } = plan;
        let singles = singles.clone();
        self.fire_later(number);
        if !self.owners[tenant].present {
            return;
        }
        for single in singles {
            let step = schedule.overlap.step(self.last_job(single), false);
            let results = &mut self.schedules.results[results];
            results.fires += 1;
            results.moved += u64::from(moved);
            match step {
                Step::Skip => results.skipped += 1,
                Step::Add => self.add_scheduled(single, at_us),
                Step::AddBehind => {
                    let visit = self.owners[tenant].visits;
                    let single = &mut self.schedules.singles[single];
                    (single.last, single.behind) = (Some(Last::Ahead(at_us, visit)), Some(at_us));
                }
                Step::CancelLast => {
                    results.cancelled += 1;
                    if let Some(Last::Job(job)) = self.schedules.singles[single].last {
                        let ran = self.job(job).running;
                        if ran {
                            self.end_run(job, false);
                        }
                        self.remove(job, ran);
                    }
                    self.add_scheduled(single, at_us);
                }
            }
        }
    }

    fn last_job(&self, single: usize) -> LastJob {
        let Single { plan, last, .. } = &self.schedules.singles[single];
        match last {
            Some(Last::Ahead(_, visit))
                if *visit == self.owners[self.schedules.plans[*plan].tenant].visits =>
            {
                LastJob::Waits
            }
            Some(Last::Job(job)) if !self.fates[*job as usize].gone => match self.fates[*job as usize].runs {
                0 => LastJob::Waits,
                _ => LastJob::Started,
            },
            _ => LastJob::Ended,
        }
    }

    /// The job of a fire comes once its jitter has passed.
    fn add_scheduled(&mut self, single: usize, instant_us: i64) {
        let Single { plan, name, last, .. } = &mut self.schedules.singles[single];
        let Plan { schedule, tenant, .. } = &self.schedules.plans[*plan];
        let visit = self.owners[*tenant].visits;
        *last = Some(Last::Ahead(instant_us, visit));
        let begins_us = self.scenario.begins.map_or(0, |begins| begins.at_us());
        let id = job_id(name, begins_us + instant_us);
        let at_us = instant_us + jitter_us(&id, schedule.jitter_ms.i64() * 1_000);
        self.at(at_us.max(self.now_us), Event::Due(single, instant_us, visit));
    }

    /// The job of a fire waits for a slot from now on, unless a later fire has cancelled it.
    pub(super) fn due(&mut self, single: usize, instant_us: i64, visit: u32) -> Result<(), Error> {
        let Single { plan, last, .. } = self.schedules.singles[single];
        let Plan { schedule, tenant, work, .. } = self.schedules.plans[plan];
        let is_last = schedule.overlap == Overlap::Allow || last == Some(Last::Ahead(instant_us, visit));
        if !self.is_here(tenant, visit) || !is_last {
            return Ok(());
        }
        self.add(tenant, work, 1)?;
        let job = JobId::try_from(self.jobs.len() - 1).expect("there are at most MAX_JOBS");
        self.fates[job as usize].fire = Some((single, instant_us));
        self.schedules.singles[single].last = Some(Last::Job(job));
        Ok(())
    }

    /// A job starts, or waits at the end of the simulation.
    pub(super) fn delayed(&mut self, job: JobId) {
        if let Some((single, instant_us)) = self.fates[job as usize].fire {
            self.schedules.delayed(single, instant_us, self.now_us);
        }
    }

    /// A job of a schedule is gone: the one behind it may come.
    pub(super) fn next_of(&mut self, job: JobId) {
        if let Some((single, _)) = self.fates[job as usize].fire
            && let Some(instant_us) = self.schedules.singles[single].behind.take()
        {
            self.add_scheduled(single, instant_us);
        }
    }

    /// What is known of each schedule at the end.
    pub(super) fn schedule_results(&mut self) -> Vec<ScheduleResults> {
        for single in 0..self.schedules.singles.len() {
            if let Some(instant_us) = self.schedules.singles[single].behind {
                self.schedules.delayed(single, instant_us, self.now_us);
            }
        }
        std::mem::take(&mut self.schedules.results)
    }
}
