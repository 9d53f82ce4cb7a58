//! How many slots a job type needs. Autoscalers read this.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use async_recursion::async_recursion as boxed;
use turnwise_policy::demand::{Group, Slots, Tracker, for_waiting};
use turnwise_protocol::{Demand, TenantDemand};
use turnwise_queue::counts::Kind;
use turnwise_worker::runnable;

use crate::snapshot::{Snapshot, jobs_by_tenant, many};
use crate::{Reader, Result};

/// The target, if a request names none, in ms.
pub const DEFAULT_TARGET_MS: u64 = 60_000;
/// The most types and targets whose earlier values are kept.
const MAX_TRACKED: usize = 1_000;
/// The most tenants in a response.
const MAX_TENANTS: usize = 100;

/// What was observed before, by type and target.
#[derive(Default)]
pub struct Trackers(Mutex<HashMap<(String, u64), (i64, Tracker)>>);

impl Trackers {
    fn observe(&self, of: (String, u64), now_us: i64, running: u64, groups: &[Group]) -> Slots {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_TRACKED && !all.contains_key(&of) {
            // The one that nobody has asked about for the longest time.
            let oldest = all.iter().min_by_key(|(_, (asked_us, _))| *asked_us).map(|(of, _)| of.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        let target_us = i64::try_from(of.1).unwrap_or(i64::MAX).saturating_mul(1_000);
        let (asked_us, tracker) = all.entry(of).or_insert_with(|| (now_us, Tracker::new(target_us)));
        *asked_us = now_us;
        tracker.observe(now_us, running, groups)
    }
}

/// The demand for slots of a type, of which this process has observed `trackers` before.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn demand<'a>(
    reader: &'a Reader<'a>,
    trackers: &Trackers,
    snapshot: &Snapshot,
    target_ms: u64,
) -> Result<Demand> {
    let job_type = &snapshot.job_type;
    let [pending, running] = jobs_by_tenant(reader, job_type, [Kind::Pending, Kind::Running]).await?;
    let rules = &reader.rules.queue;
    let runnable = runnable(reader.store, reader.tx, reader.keys, rules, job_type, &pending).await?;
    let least_us = least_us(snapshot);
    let learnt_us = snapshot.learnt_us.unwrap_or_else(|| snapshot.expected_us("")).max(least_us);
    let group = |tenant: &str, jobs: u64| {
        let of_tasks = runnable.tasks.get(tenant).and_then(|tasks| snapshot.learnt_of_tasks(tenant, tasks));
        Group { jobs, expected_us: of_tasks.unwrap_or_else(|| snapshot.expected_us(tenant)).max(least_us) }
    };
    let mut groups: Vec<Group> =
        runnable.of_tenant.iter().map(|(tenant, jobs)| group(tenant, *jobs)).collect();
    groups.push(Group { jobs: runnable.outside, expected_us: learnt_us });
    let all_running: u64 = running.values().sum();
    let key = (job_type.clone(), target_ms);
    let Slots { needed, wanted } = trackers.observe(key, reader.now_us(), all_running, &groups);
    let (work_us, jobs) = groups.iter().fold((0.0, 0.0), |(work_us, all), Group { jobs, expected_us }| {
        (work_us + *jobs as f64 * expected_us, all + *jobs as f64)
    });
    let target_us = (target_ms * 1_000) as f64;
    let names = runnable.of_tenant.keys().chain(running.keys());
    let names: BTreeSet<&String> = names.collect();
    let mut tenants: Vec<TenantDemand> = names
        .into_iter()
        .map(|tenant| {
            let jobs = runnable.of_tenant.get(tenant).copied().unwrap_or(0);
            let running = running.get(tenant).copied().unwrap_or(0);
            let group = group(tenant, jobs);
            TenantDemand {
                tenant: tenant.clone(),
                runnable: jobs,
                running,
                expected_run_us: whole(group.expected_us),
                needed_slots: running.saturating_add(whole(for_waiting(&[group], target_us).ceil())),
            }
        })
        .collect();
    tenants.sort_by(|one, other| {
        other.needed_slots.cmp(&one.needed_slots).then_with(|| one.tenant.cmp(&other.tenant))
    });
    let more_tenants = tenants.len() > MAX_TENANTS;
    tenants.truncate(MAX_TENANTS);
    let age_us = runnable.oldest_us.map_or(0, |since_us| reader.now_us().saturating_sub(since_us).max(0));
    Ok(Demand {
        job_type: job_type.clone(),
        runnable: runnable.total(),
        oldest_age_us: age_us.unsigned_abs(),
        expected_run_us: whole(if jobs > 0.0 { work_us / jobs } else { learnt_us }),
        running: all_running,
        workers: snapshot.capacity.workers as u64,
        slots: snapshot.capacity.slots as u64,
        needed_slots: needed,
        wanted_slots: wanted,
        active: wanted > 0,
        tenants,
        more_tenants,
    })
}

/// What a job of a type runs at least, in µs, as long as no run has ended from which to learn: the mean of how long the running ones have
/// run. Otherwise hours would pass until jobs that run for hours get slots of their own.
fn least_us(snapshot: &Snapshot) -> f64 {
    if snapshot.learnt_us.is_some() || snapshot.running.is_empty() {
        return 0.0;
    }
    let ran_us = snapshot.running.iter().map(|run| snapshot.now_us.saturating_sub(run.started_us).max(0));
    let ran_us: f64 = ran_us.map(|us| us as f64).sum();
    ran_us / many(snapshot.running.len())
}

fn whole(number: f64) -> u64 {
    number.max(0.0).round() as u64
}
