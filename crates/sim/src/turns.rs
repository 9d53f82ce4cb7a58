//! Checks that take many cycles without a fault: every job gets its turn, and running jobs are spread over the workers.
//!
//! They run when all faults are over and the clients are idle, before clients cancel the endless jobs.
//!
//! *Turns.* With virtual time, a job that could run starts within a bound that follows from its tenant's share. Let W be
//! the sum of all tenants' shares, divided by the tenant's own share. If one slot rotates, the tenant gets it in at least
//! one of W cycles. The jobs of one tenant start one after the other, and the one that has waited the longest starts first.
//! So each of its n jobs starts within n · W cycles. W more pass until the tenant's turn begins, and as many as its surplus
//! lasts. The check excludes tenants with several priorities, because the first priority precedes all others. It
//! excludes tenants with running jobs that never rotate, because these jobs may use the tenant's whole share. It also
//! excludes worlds in which jobs lock, because weights order their jobs.
//!
//! *Balance.* If all jobs of a type run, and all are continuous, no worker has more of them than its part.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use turnwise_policy::fair_share::Fairness;
use turnwise_policy::rotation::balance::{Load, surplus};
use turnwise_queue::{Job, State};
use turnwise_worker::{RotationRules, Tunables};

use crate::broken::{in_words, is_kept};
use crate::core::{Violation, lock};
use crate::ledger::JobKey;
use crate::liveness::{Inspection, SLACK};

/// How long the checks run.
pub const TIME: Duration = Duration::from_secs(600);
/// Cycles beyond those that follow from shares. They pass while a tenant has a surplus, between two checks, and without a
/// decision because a job was still stopping.
const CYCLES: f64 = 40.0;
/// The bound, relative to cycles that always give a slot to the next job. It covers jobs of other workers' parts, and churn
/// that tenants share.
const MARGIN: f64 = 2.0;
/// If no job has moved for this long, the workers must be balanced.
const BALANCED: Duration = Duration::from_secs(150);
/// With short cycles, one worker after the other gives jobs back, for this long each.
const ROUND: Duration = Duration::from_secs(6);

/// The observations so far.
#[derive(Default)]
pub struct Turns {
    /// How long each job has waited, in µs, and the number of its runs before.
    waited: BTreeMap<JobKey, (i64, usize)>,
    /// Since when all jobs of each type have been continuous and running, in µs since the world began.
    steady_us: BTreeMap<String, i64>,
    /// Since when they have been spread over the workers, in µs since the world began.
    balanced_us: BTreeMap<String, i64>,
    looked_us: Option<i64>,
}

fn us(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("some minutes")
}

/// Whether a job could run.
fn is_runnable(job: &Job, now_us: i64) -> bool {
    match job.state() {
        State::Pending => true,
        State::Delayed | State::Crashing => job.order_us() <= now_us && job.unmet() == 0 && !is_kept(job),
        _ => false,
    }
}

impl Turns {
    /// Checks the world, once every few seconds.
    pub fn inspect(&mut self, inspection: &Inspection<'_>) -> Result<(), Violation> {
        let Tunables { fair, max_jobs, .. } = lock(&inspection.setting.tunables).clone();
        let Some(rotation) = fair.rotation.filter(|rotation| rotation.max_churn > 0) else { return Ok(()) };
        let since_us =
            inspection.now_us - self.looked_us.replace(inspection.now_us).unwrap_or(inspection.now_us);
        for job_type in &inspection.setting.plan.types {
            let jobs: Vec<(&JobKey, &Job)> = inspection
                .known
                .jobs
                .iter()
                .filter(|(key, _)| key.0 == *job_type)
                .filter_map(|(key, rows)| Some((key, rows.record.as_ref()?)))
                .filter(|(_, job)| !job.state().is_final())
                .collect();
            let told_us = inspection.clock_us();
            let could_run: BTreeSet<&JobKey> =
                jobs.iter().filter(|(_, job)| is_runnable(job, told_us)).map(|(key, _)| *key).collect();
            let all_continuous = jobs.iter().all(|(_, job)| job.continuous && job.state() == State::Running);
            // A job that crashes, or is put off, may be back before anybody looks, and others are moved for it.
            let disturbed_us = inspection.known.disturbed_us.get(job_type).copied().unwrap_or(0);
            let is_disturbed =
                self.steady_us.get(job_type).is_some_and(|steady_us| disturbed_us > *steady_us);
            if !all_continuous || is_disturbed {
                self.steady_us.insert(job_type.clone(), inspection.now_us);
            }
            let steady_us = *self.steady_us.entry(job_type.clone()).or_insert(inspection.now_us);
            if !all_continuous
                || is_disturbed
                || !is_balanced(inspection, job_type, (steady_us, max_jobs, rotation))?
            {
                self.balanced_us.remove(job_type);
            } else {
                let since_us = *self.balanced_us.entry(job_type.clone()).or_insert(inspection.now_us);
                let moved_us = inspection.known.moved_us.get(job_type).copied().unwrap_or(0);
                // A move that began before the first observation does not count.
                if moved_us > since_us + us(2 * SLACK) {
                    let story =
                        format!("type {job_type} since {since_us} µs, but a job was moved at {moved_us} µs");
                    return Err(Violation { invariant: "balanced jobs stay at their workers", story });
                }
            }
            let once = jobs.iter().filter(|(_, job)| job.state().is_claimed() && !job.continuous);
            let once: Vec<&str> = once.map(|(_, job)| job.tenant.as_str()).collect();
            if fair.fairness != Fairness::VirtualTime
                || inspection.known.locks.is_some()
                || once.len() >= max_jobs
            {
                // Jobs that never rotate may fill all slots of a worker. Where jobs lock, weights order them.
                self.waited.clear();
                continue;
            }
            let mut priorities: BTreeMap<&str, BTreeSet<i8>> = BTreeMap::new();
            for (_, job) in &jobs {
                priorities.entry(&job.tenant).or_default().insert(job.priority);
            }
            let mut shares: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
            for (_, job) in &jobs {
                let of = f64::from(fair.shares.of(&job.tenant));
                shares.entry(&job.tenant).or_insert((of, 0)).1 += 1;
            }
            let all: f64 = shares.values().map(|(of, _)| of).sum();
            for (key, job) in &jobs {
                let runs = inspection.known.runs.get(*key).copied().unwrap_or(0);
                let (waited_us, before) = self.waited.entry((*key).clone()).or_insert((0, runs));
                let tenant = job.tenant.as_str();
                let is_judged = priorities[tenant].len() == 1 && !once.contains(&tenant);
                if !could_run.contains(key) || *before != runs || !is_judged {
                    (*waited_us, *before) = (0, runs);
                    continue;
                }
                *waited_us += since_us;
                let (of, jobs) = shares[tenant];
                let bound = bound(rotation, all / of, jobs);
                if *waited_us > us(bound) {
                    let seconds = *waited_us / 1_000_000;
                    let story = format!(
                        "{key:?} waits for {seconds} s, more than {bound:?}: {}",
                        in_words(Some(job))
                    );
                    let invariant = "a job that could run starts as soon as its tenant's share says";
                    return Err(Violation { invariant, story });
                }
            }
        }
        Ok(())
    }
}

/// The longest wait of one of a tenant's `jobs`, if the tenant gets one of `parts` parts of a slot.
fn bound(rotation: RotationRules, parts: f64, jobs: usize) -> Duration {
    let cycles = MARGIN * parts * (jobs as f64 + 1.0) + CYCLES;
    rotation.interval.mul_f64(cycles)
}

/// Whether no worker has more than its part. This may take a while, because workers give jobs back one after the other, up
/// to `max_churn` jobs each.
fn is_balanced(
    inspection: &Inspection<'_>,
    job_type: &String,
    (steady_us, max_jobs, rotation): (i64, usize, RotationRules),
) -> Result<bool, Violation> {
    let members: Vec<&JobKey> =
        inspection.known.workers.keys().filter(|worker| worker.0 == *job_type).collect();
    let load = |worker: &&JobKey| Load { slots: max_jobs, running: inspection.known.load.now(worker) };
    let loads: Vec<Load> = members.iter().map(load).collect();
    if (0..loads.len()).all(|own| surplus(own, &loads) == 0) {
        return Ok(true);
    }
    let moved_us = inspection.known.moved_us.get(job_type).copied().unwrap_or(0);
    let count = |number: usize| u32::try_from(number).expect("some hundreds");
    let running: usize = loads.iter().map(|load| load.running).sum();
    let turn = rotation.interval.max(ROUND * count(loads.len()));
    let all_moved = BALANCED + 2 * turn * count(running.div_ceil(rotation.max_churn));
    let stands = inspection.is_older(moved_us.max(steady_us), BALANCED);
    if stands || inspection.is_older(steady_us, all_moved) {
        let story = format!("type {job_type} on {members:?}: {loads:?}, a job was moved at {moved_us} µs");
        return Err(Violation { invariant: "running jobs are spread over the workers", story });
    }
    Ok(false)
}
