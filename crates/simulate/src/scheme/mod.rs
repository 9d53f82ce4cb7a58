//! The schemes, which decide. The world reports to a scheme what happens to jobs, and asks which jobs start and stop.
//! What then happens, and how it is measured, is the same for all schemes.

mod couchdb;
mod fair;
mod fifo;

use crate::policy::Policy;
use crate::scenario::Scenario;

/// A job's number.
pub(crate) type JobId = u32;

/// A job, as schemes see it. They do not know how long it will run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// The tenant that it belongs to.
    pub tenant: usize,
    /// Whether it runs until it is stopped.
    pub continuous: bool,
    /// When it last started; before its first start, when it was added.
    pub order_us: i64,
    /// When it was added.
    pub added_us: i64,
    /// Whether it runs.
    pub running: bool,
}

/// A tenant, as schemes see it.
#[derive(Debug, Clone)]
pub(crate) struct Tenant {
    pub name: String,
    pub shares: u32,
    /// The number of jobs that run or wait.
    pub jobs: usize,
    /// The number of jobs that wait.
    pub waiting: usize,
}

/// The world, as schemes see it.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub now_us: i64,
    pub slots: usize,
    pub churn: usize,
    pub interval_us: i64,
    pub jobs: &'a [Job],
    pub tenants: &'a [Tenant],
    /// The running jobs, in no particular order.
    pub running: &'a [JobId],
    /// The number of waiting jobs.
    pub waiting: usize,
}

impl View<'_> {
    pub(crate) fn job(&self, job: JobId) -> &Job {
        &self.jobs[job as usize]
    }

    /// The tenant that a job belongs to.
    pub(crate) fn tenant_of(&self, job: JobId) -> &Tenant {
        &self.tenants[self.job(job).tenant]
    }

    pub(crate) fn free(&self) -> usize {
        self.slots - self.running.len()
    }

    /// The number of jobs that CouchDB rotates: those that wait for a slot that is not free, up to the churn.
    pub(crate) fn rotation(&self) -> usize {
        self.waiting.saturating_sub(self.free()).min(self.churn)
    }
}

/// A scheme. At the end of a run, the world calls `charge`, then `ended`, and `waits` if the job waits again. At a
/// cycle, it calls `cycle_begins`, then `charge` for all running jobs, then `cycle`. The ends of the stopped jobs
/// follow, then `fill`. After any other event, it calls `fill`.
pub(crate) trait Scheme {
    /// A new job exists, and waits.
    fn added(&mut self, view: View<'_>, job: JobId);

    /// A job was stopped and waits again.
    fn waits(&mut self, view: View<'_>, job: JobId);

    /// A job was removed, after `ended` if it `ran`. Also after it was refused it is not in the queue, and counts as one that ran.
    fn removed(&mut self, view: View<'_>, job: JobId, ran: bool);

    /// A job has run for `ran_us` since it was last charged.
    fn charge(&mut self, view: View<'_>, job: JobId, ran_us: i64);

    /// A run is over: the job has ended, or was stopped or deleted.
    fn ended(&mut self, _view: View<'_>, _job: JobId, _completed: bool) {}

    /// The shares of a tenant have changed.
    fn new_shares(&mut self, _view: View<'_>, _tenant: usize) {}

    /// A cycle begins, before its charges.
    fn cycle_begins(&mut self, _view: View<'_>) {}

    /// The jobs to start, at most `free`. `claim` decides about each of them whether its rate lets it start. A refused job leaves the queue, too,
    /// until `waits` is called for it.
    fn fill(&mut self, view: View<'_>, free: usize, claim: &mut dyn FnMut(JobId) -> bool) -> Vec<JobId>;

    /// The jobs to stop at a cycle.
    fn cycle(&mut self, view: View<'_>) -> Vec<JobId>;
}

/// The scheme of a policy.
pub(crate) fn of(policy: Policy, scenario: &Scenario, tenants: usize) -> Box<dyn Scheme> {
    match policy {
        Policy::VirtualTime | Policy::Rfc => Box::new(fair::Fair::new(policy, scenario, tenants)),
        Policy::RfcWhole => Box::new(couchdb::Whole::new(scenario, tenants)),
        Policy::Fifo => Box::new(fifo::InOrder::fifo()),
        Policy::RoundRobin => Box::new(fifo::InOrder::round_robin()),
    }
}
