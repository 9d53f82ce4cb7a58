//! Rotation: at its cycles, a worker preempts running jobs for waiting ones.
//!
//! The worker charges its jobs, reads the heads of a few queues, calls [`schedule`], and stops the chosen jobs. It
//! starts no job: the next pass fills free slots with the first waiting jobs. A job that is stopping no longer counts,
//! so that the next cycle does not stop another one in its place. Each of several workers counts only the waiting jobs
//! of its own shard, so no two workers stop a job for the same waiting job.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use turnwise_policy::fair_share::Fairness;
use turnwise_policy::rotation::{self, Moment, Rules, Scheme, Stop, Tenant, Waiting, Why};
use turnwise_policy::schedule::{self, Decision, schedule};
use turnwise_queue::Result;
use turnwise_queue::tenants::Pending;
use turnwise_store::Isolation;

use super::Incarnation;
use super::balance::Loads;
use crate::RotationRules;
use crate::event::Event;
use crate::membership::duration_us;

/// A cycle checks whether the jobs of one tenant may take turns, for this many tenants per job that it may stop.
/// Tenants that were checked longest ago come first, then the tenants with the longest runs. Without the first
/// criterion, a tenant with long runs, whose other jobs have not waited for long, would come first in every cycle.
const WITHIN: usize = 2;
/// After this long, other workers know the result of a worker's cycle: its rows are written, and they have read them.
pub(super) const SHORTEST_PHASE: Duration = Duration::from_secs(3);

/// When the next cycle is due, and when cycles have checked each tenant.
pub(super) struct Rotation {
    due: Event,
    /// The time of the latest cycle, in µs; without rotation, the time when it last charged its jobs.
    cycle_us: i64,
    /// When it last checked whether the jobs of a tenant may take turns, in µs. Only for tenants with jobs here.
    checked_us: BTreeMap<Arc<str>, i64>,
}

impl Rotation {
    pub fn new(now_us: i64) -> Rotation {
        Rotation { due: Event::default(), cycle_us: now_us, checked_us: BTreeMap::new() }
    }

    pub async fn due(&mut self) {
        self.due.happens().await;
    }
}

/// A job that may be preempted: its claim, the policy's view of it, and its tenant.
type Candidate = (u64, rotation::Running, Arc<str>);
/// Waiting jobs of each tenant, in the order in which they will be started.
type Heads = BTreeMap<Arc<str>, Vec<Pending>>;

/// The result of a decision.
#[derive(Default)]
pub(super) struct PreemptionResult {
    /// Whether jobs wait that could get a slot.
    pub any_waits: bool,
    /// The number of jobs that were stopped for waiting jobs, or because more jobs ran than there are slots.
    pub stopped: usize,
    /// The number of jobs for which other workers have room.
    pub surplus: usize,
    /// The wake key's value before the decision: a job that arrives later changes it.
    pub wake_seen: Option<Bytes>,
}

impl Incarnation {
    /// How jobs rotate; `None` if they do not.
    pub(super) fn rotation_rules(&self) -> Option<RotationRules> {
        self.shared.tunables.get().fair.rotation
    }

    pub(super) fn since_cycle_us(&self) -> i64 {
        self.now_us().saturating_sub(self.rotation.cycle_us)
    }

    pub(super) fn cycle_begins(&mut self) {
        self.rotation.cycle_us = self.now_us();
    }

    /// Schedules the next cycle; without rotation there is none. Each of several workers has its own time within an
    /// interval. With one time for all, each would give back jobs that only one should give back, and claim them again
    /// in the next cycle.
    pub(super) fn schedule_cycle(&mut self) {
        let due_us = self.rotation_rules().map(|rotation| {
            let interval_us = duration_us(rotation.interval).max(1);
            let (rank, workers) = self.rank();
            if workers <= 1 {
                return self.rotation.cycle_us.saturating_add(interval_us);
            }
            let phase_us = interval_us / workers * rank;
            // At least half an interval after the last cycle, so that new jobs run for some time.
            let earliest_us = self.rotation.cycle_us.saturating_add(interval_us / 2);
            let into_us = earliest_us.saturating_sub(phase_us).rem_euclid(interval_us);
            earliest_us.saturating_add(interval_us - into_us)
        });
        self.rotation.due = due_us.map_or_else(Event::default, |at_us| self.after(self.until(at_us)));
    }

    /// One cycle.
    pub(super) async fn cycle(&mut self) {
        self.cycle_begins();
        let Some(rotation) = self.rotation_rules() else { return };
        self.fair.cycle(rotation.max_churn);
        self.charge_all();
        self.sync().await;
        self.fair.search_for_keys();
        let loads = self.read_loads(rotation).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "no job is given back in this cycle: the workers cannot be read");
            None
        });
        match self.preempt(Moment::Cycle, loads.as_ref()).await {
            Ok(PreemptionResult { stopped, surplus, .. }) => {
                self.balance.is_above_its_part = surplus > 0;
                if let Some(Loads { round, .. }) = loads
                    && stopped < rotation.max_churn
                {
                    self.balance.gave_in_round = round;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no job is preempted in this cycle: the queue cannot be read");
            }
        }
    }

    /// Reads what preemption depends on, decides, and stops the chosen jobs.
    pub(super) async fn preempt(
        &mut self,
        moment: Moment,
        loads: Option<&Loads>,
    ) -> Result<PreemptionResult> {
        let Some(rotation) = self.rotation_rules() else { return Ok(PreemptionResult::default()) };
        self.grow_keys().await?;
        let now_us = self.now_us();
        let candidates = self.candidates();
        let (heads, wake_seen) = self.read_heads(moment, &candidates, rotation.max_churn).await?;
        let any_waits = heads.values().any(|jobs| !jobs.is_empty());
        if moment == Moment::Idle {
            if !any_waits {
                return Ok(PreemptionResult { wake_seen, ..PreemptionResult::default() });
            }
            self.charge_all();
        }
        let Decision { stop, surplus, .. } =
            self.decide(moment, rotation, &candidates, &heads, loads, now_us);
        let mut stopped = 0;
        for Stop { job, why } in stop {
            let (claim, _, tenant) = &candidates[job];
            let running = self.running.get_mut(claim).expect("only running jobs were decided about");
            tracing::debug!(%tenant, claim, ?why, "a job is preempted");
            match why {
                Why::EmptierWorker => running.controls.stop.cancel(),
                _ => running.controls.preempt(),
            }
            stopped += usize::from(why != Why::EmptierWorker);
            self.fair.stops(&mut running.charges);
        }
        Ok(PreemptionResult { any_waits, stopped, surplus, wake_seen })
    }

    /// The running jobs that are not stopping already, and whose slots are in use.
    fn candidates(&self) -> Vec<Candidate> {
        self.running
            .iter()
            .filter(|(_, running)| !running.is_stopping() && !self.lends(running))
            .enumerate()
            .map(|(job, (claim, running))| {
                let charges = &running.charges;
                let candidate = rotation::Running {
                    job,
                    // Set when the tenants are numbered.
                    tenant: 0,
                    key: running.controls.key().unwrap_or(f64::MIN),
                    started_us: charges.started_us,
                    class: running.class,
                    continuous: charges.rotates,
                    idle: running.controls.idle.is_idle(),
                    locks: running.locks,
                };
                (*claim, candidate, charges.tenant.clone())
            })
            .collect()
    }

    /// The waiting jobs of its shard that could start instead. These are the first jobs of all tenants, and some jobs
    /// of each tenant whose jobs may take turns. Also returns the wake key's value.
    async fn read_heads(
        &mut self,
        moment: Moment,
        running: &[Candidate],
        max_churn: usize,
    ) -> Result<(Heads, Option<Bytes>)> {
        let mut within: BTreeMap<Arc<str>, (i64, usize)> = BTreeMap::new();
        for (_, job, tenant) in running.iter().filter(|(_, job, _)| job.continuous) {
            let (started_us, jobs) = within.entry(tenant.clone()).or_insert((i64::MAX, 0));
            *started_us = job.started_us.min(*started_us);
            *jobs = max_churn.min(*jobs + 1);
        }
        let free = self.shared.tunables.get().max_jobs.saturating_sub(running.len());
        let (store, keys, job_type) = (&self.shared.store, &self.shared.keys, &self.shared.job_type);
        let tx = store.begin().await?;
        let wake_seen = tx.get_with(&keys.wake(job_type), Isolation::Snapshot).await?;
        self.fair.refresh_waiting(&tx, wake_seen.as_ref(), store.runtime().now_us()).await?;
        within.retain(|tenant, _| self.fair.waits(tenant));
        let mut within: Vec<_> = within.into_iter().collect();
        let now_us = self.now_us();
        let mut before = std::mem::take(&mut self.rotation.checked_us);
        before.retain(|tenant, _| within.binary_search_by(|(name, _)| name.cmp(tenant)).is_ok());
        within.sort_by_key(|(tenant, (started_us, jobs))| {
            (before.get(tenant).copied().unwrap_or(0), *started_us, Reverse(*jobs))
        });
        within.truncate(WITHIN * max_churn);
        if moment == Moment::Cycle {
            before.extend(within.iter().map(|(tenant, _)| (tenant.clone(), now_us)));
        }
        self.rotation.checked_us = before;
        let also = within.into_iter().map(|(tenant, (_, jobs))| (tenant, jobs)).collect();
        let shard = self.division();
        if self.fair.by_keys() {
            let depth = shard.front(max_churn + free);
            let front = self.fair.front(&tx, wake_seen.as_ref(), [], depth, |id| shard.has(id)).await?;
            let mut heads = Heads::new();
            for (job, tenant) in front.jobs.into_iter().filter(|(job, _)| shard.has(&job.id)) {
                heads.entry(front.tenants[tenant].tenant.clone()).or_default().push(job);
            }
            return Ok((heads, wake_seen));
        }
        let heads = self.fair.heads(&tx, wake_seen.as_ref(), max_churn + free, &also, &shard).await?;
        Ok((heads, wake_seen))
    }

    fn decide(
        &self,
        moment: Moment,
        rotation: RotationRules,
        candidates: &[Candidate],
        heads: &Heads,
        loads: Option<&Loads>,
        now_us: i64,
    ) -> Decision {
        let tunables = self.shared.tunables.get();
        let mut tenants: Vec<Tenant> = Vec::new();
        let mut numbers: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let mut number = |tenant: &Arc<str>| {
            *numbers.entry(tenant.clone()).or_insert_with(|| {
                tenants.push(self.fair.standing(tenant));
                tenants.len() - 1
            })
        };
        let running =
            |(_, running, tenant): &Candidate| rotation::Running { tenant: number(tenant), ..*running };
        let running: Vec<rotation::Running> = candidates.iter().map(running).collect();
        let mut waiting = Vec::new();
        for (tenant, jobs) in heads {
            let tenant = number(tenant);
            waiting.extend(jobs.iter().map(|job| Waiting {
                tenant,
                key: job.key.unwrap_or(f64::MIN),
                class: job.class,
                not_started_since_us: job.order_us,
            }));
        }
        let rules = Rules {
            max_jobs: tunables.max_jobs,
            max_churn: rotation.max_churn,
            interval_us: duration_us(rotation.interval),
            idle_turn_us: duration_us(rotation.idle_turn),
        };
        // If cycles follow each other too soon for one worker to know the result of another, they count as
        // simultaneous.
        let workers = self.contenders.names.len().max(1);
        let together = rotation.interval / u32::try_from(workers).unwrap_or(u32::MAX) < SHORTEST_PHASE;
        let view = rotation::View {
            moment,
            scheme: match tunables.fair.fairness {
                Fairness::VirtualTime => Scheme::VirtualTime(self.fair.pace()),
                Fairness::Rfc => Scheme::Rfc,
            },
            tenants: &tenants,
            running: &running,
            waiting: &waiting,
            simultaneous: if together { workers } else { 1 },
            loads: loads.map(|loads| (loads.own, loads.all.as_slice())),
        };
        let rules = schedule::Rules { rotation: rules, ..schedule::Rules::default() };
        schedule(&schedule::View::preempting(view), &rules, now_us)
    }
}
