//! Who decides. Each scheme is told what happens to jobs and is asked whom to start and whom to stop; what then happens, and how
//! it is measured, is the same for all.

mod couchdb;
mod fair;
mod fifo;

use crate::scenario::Scenario;
use crate::{JobId, Policy};

/// A job, as far as schemes may look: nobody knows how long it will run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// Whose it is.
    pub tenant: usize,
    /// It runs until it is stopped.
    pub continuous: bool,
    /// When it was started last; before its first start, when it was added.
    pub order_us: i64,
    /// When it was added.
    pub added_us: i64,
    /// It runs.
    pub running: bool,
}

/// A tenant, as far as schemes may look.
#[derive(Debug, Clone)]
pub(crate) struct Tenant {
    pub name: String,
    pub shares: u32,
    /// Jobs that run or wait.
    pub jobs: usize,
    /// Jobs that wait.
    pub waiting: usize,
}

/// The world, as far as schemes may look.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub now_us: i64,
    pub slots: usize,
    pub churn: usize,
    pub interval_us: i64,
    pub jobs: &'a [Job],
    pub tenants: &'a [Tenant],
    /// Jobs that run, in no order that means anything.
    pub running: &'a [JobId],
    /// How many wait.
    pub waiting: usize,
}

impl View<'_> {
    pub(crate) fn job(&self, job: JobId) -> &Job {
        &self.jobs[job as usize]
    }

    /// Whom a job belongs to.
    pub(crate) fn tenant_of(&self, job: JobId) -> &Tenant {
        &self.tenants[self.job(job).tenant]
    }

    pub(crate) fn free(&self) -> usize {
        self.slots - self.running.len()
    }

    /// How many CouchDB rotates: as many as wait for a slot that is not free, up to the churn.
    pub(crate) fn rotation(&self) -> usize {
        self.waiting.saturating_sub(self.free()).min(self.churn)
    }
}

/// What decides. The world calls it in this order: at the end of a run `charge`, `ended`, and `waits` if the job goes on waiting; at a cycle
/// `cycle_begins`, `charge` for all that run, then `cycle`, the ends of those that it stops, then `fill`; after anything else `fill`.
pub(crate) trait Scheme {
    /// A job is there that was not. It waits.
    fn added(&mut self, view: View<'_>, job: JobId);

    /// A job was stopped and waits again.
    fn waits(&mut self, view: View<'_>, job: JobId);

    /// A job is gone for good, after `ended` if it ran.
    fn removed(&mut self, view: View<'_>, job: JobId, ran: bool);

    /// A job has run for so long since it was charged last.
    fn charge(&mut self, view: View<'_>, job: JobId, ran_us: i64);

    /// A run is over: to its end, or it was stopped or deleted.
    fn ended(&mut self, _view: View<'_>, _job: JobId, _completed: bool) {}

    /// A tenant has other shares.
    fn new_shares(&mut self, _view: View<'_>, _tenant: usize) {}

    /// A cycle is about to charge.
    fn cycle_begins(&mut self, _view: View<'_>) {}

    /// Whom to start, at most so many: they wait no more.
    fn fill(&mut self, view: View<'_>, free: usize) -> Vec<JobId>;

    /// Whom to stop at a cycle.
    fn cycle(&mut self, view: View<'_>) -> Vec<JobId>;
}

/// The one that the policy's name stands for.
pub(crate) fn of(policy: Policy, scenario: &Scenario, tenants: usize) -> Box<dyn Scheme> {
    match policy {
        Policy::VirtualTime | Policy::Rfc => Box::new(fair::Fair::new(policy, scenario, tenants)),
        Policy::RfcWhole => Box::new(couchdb::Whole::new(scenario, tenants)),
        Policy::Fifo => Box::new(fifo::Fifo::default()),
        Policy::RoundRobin => Box::new(fifo::RoundRobin::default()),
    }
}
