//! Preemption: which running jobs stop for waiting ones, at a cycle or because they are idle.
//!
//! The worker reads the heads of a few queues, calls [`schedule`](fn@schedule), and stops the chosen jobs. It starts nothing: the next
//! pass fills a free slot with the best waiting job. A job that is stopping counts as gone, so that the next cycle does not stop
//! another one in its place. Of several workers, each counts only the waiting jobs of its own shard: no two stop a job for
//! the same one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use turnwise_policy::fair_share::Fairness;
use turnwise_policy::rotation::{self, Moment, Rules, Scheme, Stop, Tenant, Waiting, Why};
use turnwise_policy::schedule::{self, Decision, schedule};
use turnwise_queue::Result;
use turnwise_queue::claims::StopCause;
use turnwise_queue::tenants::Pending;
use turnwise_store::Isolation;

use super::balance::Loads;
use super::rotation::SHORTEST_PHASE;
use super::{Incarnation, Running};
use crate::RotationRules;
use crate::times::duration_us;

/// A cycle checks whether the jobs of one tenant may take turns, for this many tenants per job that it may stop.
/// Tenants that were checked longest ago come first, then the tenants with the longest runs. Without the first
/// criterion, a tenant with long runs, whose other jobs have not waited for long, would come first in every cycle.
const WITHIN: usize = 2;

/// A running job: its claim, the policy's view of it, and its tenant.
type InSlot = (u64, rotation::Running, Arc<str>);
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
    /// Reads what preemption depends on, decides, and stops the chosen jobs.
    pub(super) async fn preempt(
        &mut self,
        moment: Moment,
        loads: Option<&Loads>,
    ) -> Result<PreemptionResult> {
        let Some(rotation) = self.rotation_rules() else { return Ok(PreemptionResult::default()) };
        if self.mode.is_quiet() {
            // It would start no job in the place of another one.
            return Ok(PreemptionResult::default());
        }
        self.grow_keys().await?;
        let now_us = self.now_us();
        let in_slots = self.preemptible();
        let (mut heads, wake_seen) = self.read_heads(moment, &in_slots, rotation.max_churn).await?;
        let tunables = self.shared.tunables.get();
        if tunables.bounds.is_some() && in_slots.len() > tunables.max_jobs {
            // No job would start in the place of another one.
            heads.clear();
        }
        let any_waits = heads.values().any(|jobs| !jobs.is_empty());
        if moment == Moment::Idle {
            if !any_waits {
                return Ok(PreemptionResult { wake_seen, ..PreemptionResult::default() });
            }
            self.charge_all();
        }
        let Decision { stop, surplus, .. } = self.decide(moment, rotation, &in_slots, &heads, loads, now_us);
        let mut stopped = 0;
        for Stop { job, why } in stop {
            let (claim, _, tenant) = &in_slots[job];
            let running = self.running.get_mut(claim).expect("only running jobs were decided about");
            tracing::debug!(%tenant, claim, ?why, "a job is preempted");
            match why {
                Why::EmptierWorker => running.controls.stop_for(StopCause::Balanced),
                Why::Excess => running.controls.stop_for(StopCause::FewerSlots),
                Why::LargerDeficit | Why::LongestRunning | Why::Idle => {
                    running.controls.stop_for(StopCause::Preempted)
                }
            }
            stopped += usize::from(why != Why::EmptierWorker);
            self.fair.stops(&mut running.charges);
        }
        self.take_over_blocked();
        Ok(PreemptionResult { any_waits, stopped, surplus, wake_seen })
    }

    /// The running jobs that are not stopping already, and whose slots are in use, by claim number. Jobs that wait for a
    /// lock and lend their slots are not preempted.
    pub(super) fn in_slots(&self) -> impl Iterator<Item = (&u64, &Running)> {
        self.running.iter().filter(|(_, running)| !running.is_stopping() && !self.lends(running))
    }

    /// The policy's view of these jobs.
    fn preemptible(&self) -> Vec<InSlot> {
        let view = |(job, (claim, running)): (usize, (&u64, &Running))| {
            let charges = &running.charges;
            let view = rotation::Running {
                job,
                // Set when the tenants are numbered.
                tenant: 0,
                key: running.controls.key().unwrap_or(f64::MIN),
                started_us: charges.started_us,
                priority: running.priority,
                continuous: charges.rotates,
                idle: running.controls.idle.is_idle(),
                locks: running.locks,
            };
            (*claim, view, charges.tenant.clone())
        };
        self.in_slots().enumerate().map(view).collect()
    }

    /// The jobs of its shard that could start instead: the first ones of all tenants, and some of each tenant whose own
    /// jobs may take turns. Also returns the wake key's value.
    async fn read_heads(
        &mut self,
        moment: Moment,
        running: &[InSlot],
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
            let which = (|id: &str| shard.has(id), |_: &str| true);
            let front = self.fair.front(&tx, wake_seen.as_ref(), depth, which, false).await?;
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
        in_slots: &[InSlot],
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
            |(_, running, tenant): &InSlot| rotation::Running { tenant: number(tenant), ..*running };
        let running: Vec<rotation::Running> = in_slots.iter().map(running).collect();
        let mut waiting = Vec::new();
        for (tenant, jobs) in heads {
            let tenant = number(tenant);
            waiting.extend(jobs.iter().map(|job| Waiting {
                tenant,
                key: job.key.unwrap_or(f64::MIN),
                priority: job.priority,
                not_started_since_us: job.order_us,
            }));
        }
        let rules = Rules {
            max_jobs: tunables.may_continue(in_slots.len()),
            max_churn: rotation.max_churn,
            interval_us: duration_us(rotation.interval),
            idle_turn_us: duration_us(rotation.idle_turn),
        };
        // If cycles follow each other too soon for one worker's result to reach the next one, all decide at once.
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
