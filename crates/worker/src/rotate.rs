//! Rotation: decides which of a worker's jobs are preempted, at its cycles and, if they are idle, between them.
//!
//! The worker charges its jobs, reads the heads of a few queues, calls [`turnwise_policy::rotation`], and stops the
//! chosen jobs. It starts nothing: the next pass fills a free slot with the best waiting job. A job that is stopping
//! counts as gone, so that the next cycle does not stop another one in its place. Of several workers, each counts only
//! the waiting jobs of its own shard: no two stop a job for the same one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use turnwise_policy::contention::MAX_CONTENDERS;
use turnwise_policy::fair_share::Fairness;
use turnwise_policy::rotation::balance::{self, Load};
use turnwise_policy::rotation::{self, Rules, Scheme, Stop, Tenant, Waiting, Why};
use turnwise_queue::tenants::Pending;
use turnwise_queue::{Result, workers};
use turnwise_store::Isolation;

use crate::fair_share::CHARGE_INTERVAL;
use crate::incarnation::{Incarnation, Running};
use crate::membership::duration_us;
use crate::{RotationRules, Tunables};

/// The minimum time between two checks for jobs that idle jobs can be preempted for.
const YIELD_PAUSE: Duration = Duration::from_secs(1);
/// The number of tenants whose own jobs may take turns in one cycle, for each job that it may stop. The tenants checked
/// longest ago come first, then those with the longest running jobs. By run time alone, tenants whose other jobs have
/// not waited for long would always come first.
const WITHIN: usize = 2;

/// After this long, other workers have read what a worker's cycle has done: its rows are written, and read.
const SHORTEST_PHASE: Duration = Duration::from_secs(3);

/// When the decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Cycle,
    /// Between two cycles: only idle jobs are stopped.
    Idle,
}

/// The result of a check on behalf of idle jobs.
pub(crate) struct Yielded {
    /// When to check again, if that depends on time alone.
    pub again: Option<Duration>,
    /// The wake key's value before the check: a job that arrives later changes it.
    pub wake_seen: Option<Bytes>,
}

/// The result of a decision.
#[derive(Default)]
struct Rotated {
    /// There are jobs that could get a slot.
    someone_waits: bool,
    /// The number of jobs that were stopped.
    stopped: usize,
    /// The wake key's value before the decision.
    wake_seen: Option<Bytes>,
}

impl Incarnation {
    /// The time until the next cycle; `None` without rotation. Each of several workers has its own moment in an
    /// interval. With the same moment, each would give back what only one should, and claim it again in the next cycle,
    /// forever.
    pub(crate) fn until_cycle(&self) -> Option<Duration> {
        let interval_us = duration_us(self.rules().1?.interval).max(1);
        let (rank, workers) = self.rank();
        if workers <= 1 {
            return Some(self.until(self.cycle_us.saturating_add(interval_us)));
        }
        let phase_us = interval_us / workers * rank;
        // At least half an interval, for jobs that have started recently.
        let earliest_us = self.cycle_us.saturating_add(interval_us / 2);
        let into_us = earliest_us.saturating_sub(phase_us).rem_euclid(interval_us);
        Some(self.until(earliest_us.saturating_add(interval_us - into_us)))
    }

    /// Its rank among the contenders for the same queue, and their number.
    fn rank(&self) -> (i64, i64) {
        let place = self.contenders.iter().position(|name| *name == self.id).unwrap_or(0);
        let number = |of: usize| i64::try_from(of).unwrap_or(i64::MAX);
        (number(place), number(self.contenders.len()))
    }

    fn rules(&self) -> (Tunables, Option<RotationRules>) {
        let tunables = self.shared.tunables.get();
        let rotation = tunables.fair.rotation;
        (tunables, rotation)
    }

    /// One cycle.
    pub(crate) async fn cycle(&mut self) {
        let now_us = self.shared.store.runtime().now_us();
        self.cycle_us = now_us;
        let (_, Some(rotation)) = self.rules() else { return };
        self.fair.cycle(rotation.max_churn);
        self.charge_all();
        self.sync().await;
        self.fair.look_for_keys();
        let rotated = match self.rotate(When::Cycle).await {
            Ok(rotated) => rotated,
            Err(error) => {
                tracing::warn!(%error, "no job is preempted in this cycle: the queue cannot be read");
                return;
            }
        };
        if let Err(error) = self.balance(rotation, rotated.stopped).await {
            tracing::warn!(%error, "no job is given back in this cycle: the workers cannot be read");
        }
    }

    /// Gives continuous jobs back, if other workers are emptier in proportion to their slots, and the set of workers
    /// has been stable for a while. Jobs that declare no locks go first, and of these the longest running.
    ///
    /// As in rotation, workers decide one after the other, and each knows what the one before it did. A job that is
    /// given back keeps its place in its tenant's queue. Until its next cycle, this worker skips this job, and all that
    /// arrive, for the other workers ([`Incarnation::shard`]).
    async fn balance(&mut self, rotation: RotationRules, stopped: usize) -> Result<()> {
        self.is_above_its_part = false;
        let most = rotation.max_churn.saturating_sub(stopped);
        let now_us = self.shared.store.runtime().now_us();
        let stable_us = now_us.saturating_sub(self.members_since_us);
        let is_one_of_all = (2..MAX_CONTENDERS).contains(&self.contenders.len());
        if most == 0 || !is_one_of_all || stable_us < duration_us(rotation.quiet_period) {
            return Ok(());
        }
        let (rank, workers) = self.rank();
        let phase_us = duration_us(SHORTEST_PHASE);
        let mut round = i64::MAX;
        if duration_us(rotation.interval) / workers < phase_us {
            round = now_us.div_euclid(2 * phase_us);
            if round.rem_euclid(workers) != rank || round == self.gave_in_round {
                return Ok(());
            }
        }
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let members = workers::list(&self.shared.store.begin().await?, keys, job_type).await?;
        let elsewhere = self.fair.running_elsewhere();
        let is_stopping = |running: &Running| running.controls.stop.is_cancelled();
        let own_jobs = self.running.values().filter(|running| !is_stopping(running)).count();
        let Some(own) = members.iter().position(|member| member.id == self.id) else { return Ok(()) };
        let loads: Vec<Load> = members
            .iter()
            .map(|member| Load {
                // It is not known how many jobs each external worker runs.
                slots: if member.external { 0 } else { member.slots },
                running: elsewhere.get(&member.id).copied().unwrap_or(0),
            })
            .enumerate()
            .map(|(place, load)| if place == own { Load { running: own_jobs, ..load } } else { load })
            .collect();
        let surplus = balance::surplus(own, &loads);
        self.is_above_its_part = surplus > 0;
        self.gave_in_round = round;
        let mut jobs: Vec<&mut Running> = self
            .running
            .values_mut()
            .filter(|running| running.turn.rotates && !running.controls.stop.is_cancelled())
            .collect();
        jobs.sort_by_key(|running| (running.locks, running.turn.started_us));
        for running in jobs.into_iter().take(surplus.min(most)) {
            tracing::debug!(tenant = %running.turn.tenant, "a job is given back: another worker has room for it");
            running.controls.stop.cancel();
            self.fair.stops(&mut running.turn);
        }
        Ok(())
    }

    /// Charges running jobs between cycles: with each ping, if other workers' cycles depend on it, and at intervals if
    /// there are no cycles.
    pub(crate) fn charge_between_cycles(&mut self) {
        let now_us = self.shared.store.runtime().now_us();
        let since_us = now_us.saturating_sub(self.cycle_us);
        if self.rules().1.is_some() {
            if self.contenders.len() > 1 {
                self.charge_all();
            }
        } else if since_us >= duration_us(CHARGE_INTERVAL) {
            self.cycle_us = now_us;
            self.charge_all();
        }
    }

    fn charge_all(&mut self) {
        for running in self.running.values_mut() {
            self.fair.charge(&mut running.turn);
        }
        self.fair.charged();
    }

    /// Lets the keys of running jobs grow, if keys decide the order.
    async fn grow_keys(&mut self) -> Result<()> {
        self.fair.agree().await?;
        if self.fair.by_keys() {
            let running: BTreeSet<Arc<str>> =
                self.running.values().map(|running| running.turn.tenant.clone()).collect();
            let tx = self.shared.store.begin().await?;
            self.fair.count(&tx, running).await?;
        }
        for Running { controls, turn, grown_us, .. } in self.running.values_mut() {
            let mut key = controls.key();
            self.fair.grow_key(turn, &mut key, grown_us);
            controls.set_key(key);
        }
        Ok(())
    }

    /// The time until an idle job has had its turn, or until the next check for jobs that it may be preempted for.
    /// `None` without an idle job.
    pub(crate) fn until_yield(&self) -> Option<Duration> {
        let idle_turn = self.rules().1?.idle_turn;
        let may_yield = self.running.values().filter(|running| running.may_yield());
        let earliest_us = may_yield.map(|running| running.turn.started_us).min()?;
        let turn_us = earliest_us.saturating_add(duration_us(idle_turn));
        Some(self.until(turn_us.max(self.yield_from_us)))
    }

    /// Preempts idle jobs for waiting ones.
    pub(crate) async fn yield_idle(&mut self) -> Yielded {
        let idle_turn = self.rules().1.map_or(YIELD_PAUSE, |rotation| rotation.idle_turn.max(YIELD_PAUSE));
        let looked = self.rotate(When::Idle).await;
        let (pause, yielded) = match looked {
            // The jobs that start now may be idle, too: slots must not change faster than jobs have their turns.
            Ok(Rotated { stopped, wake_seen, .. }) if stopped > 0 => {
                (idle_turn, Yielded { again: Some(idle_turn), wake_seen })
            }
            // The deficit of a waiting tenant grows with time.
            Ok(Rotated { someone_waits, wake_seen, .. }) => {
                let pause = YIELD_PAUSE.max(idle_turn / 4);
                (pause, Yielded { again: someone_waits.then_some(idle_turn), wake_seen })
            }
            Err(error) => {
                tracing::warn!(%error, "no idle job is preempted: the queue cannot be read");
                (YIELD_PAUSE, Yielded { again: Some(YIELD_PAUSE), wake_seen: None })
            }
        };
        let now_us = self.shared.store.runtime().now_us();
        self.yield_from_us = now_us.saturating_add(duration_us(pause));
        yielded
    }

    /// Decides which jobs to preempt, and stops them.
    async fn rotate(&mut self, when: When) -> Result<Rotated> {
        let (tunables, Some(rotation)) = self.rules() else { return Ok(Rotated::default()) };
        self.grow_keys().await?;
        let now_us = self.shared.store.runtime().now_us();
        let running: Vec<(u64, rotation::Running, Arc<str>)> = self
            .running
            .iter()
            .filter(|(_, running)| !running.controls.stop.is_cancelled() && !self.lends(running))
            .map(|(claim, running)| {
                let turn = &running.turn;
                let job = rotation::Running {
                    job: 0,
                    tenant: 0,
                    key: running.controls.key().unwrap_or(f64::MIN),
                    started_us: turn.started_us,
                    class: running.class,
                    continuous: turn.rotates,
                    idle: running.controls.idle.is_idle(),
                };
                (*claim, job, turn.tenant.clone())
            })
            .collect();
        let (heads, wake_seen) =
            self.read_heads(when, &running, tunables.max_jobs, rotation.max_churn).await?;
        let someone_waits = heads.values().any(|jobs| !jobs.is_empty());
        if when == When::Idle {
            if !someone_waits {
                return Ok(Rotated { someone_waits, stopped: 0, wake_seen });
            }
            self.charge_all();
        }
        let stops = self.decide(when, &tunables, rotation, &running, &heads, now_us);
        let stopped = stops.len();
        for Stop { job, why } in stops {
            let (claim, _, tenant) = &running[job];
            if let Some(running) = self.running.get_mut(claim) {
                tracing::debug!(%tenant, claim, ?why, "a job is preempted");
                running.controls.preempt();
                self.fair.stops(&mut running.turn);
            }
        }
        Ok(Rotated { someone_waits, stopped, wake_seen })
    }

    /// If cycles follow each other too soon for one worker's result to reach the next one, each worker gives back only
    /// its part of the total.
    fn own_part(&self, mut stops: Vec<Stop>, interval: Duration) -> Vec<Stop> {
        let workers = u32::try_from(self.contenders.len()).unwrap_or(u32::MAX).max(1);
        if workers > 1 && interval / workers < SHORTEST_PHASE {
            let owed_less = stops.iter().filter(|stop| stop.why == Why::OwedLess).count();
            let mut left = owed_less.div_ceil(self.contenders.len());
            stops.retain(|stop| {
                let owed_less = stop.why == Why::OwedLess;
                let stays = !owed_less || left > 0;
                left = left.saturating_sub(usize::from(owed_less));
                stays
            });
        }
        stops
    }

    /// The jobs of its shard that could start instead: the first ones of all tenants, and some of each tenant whose own
    /// jobs may take turns. Also returns the wake key's value.
    async fn read_heads(
        &mut self,
        when: When,
        running: &[(u64, rotation::Running, Arc<str>)],
        max_jobs: usize,
        max_churn: usize,
    ) -> Result<(BTreeMap<Arc<str>, Vec<Pending>>, Option<Bytes>)> {
        let mut within: BTreeMap<Arc<str>, (i64, usize)> = BTreeMap::new();
        for (_, job, tenant) in running.iter().filter(|(_, job, _)| job.continuous) {
            let (started_us, jobs) = within.entry(tenant.clone()).or_insert((i64::MAX, 0));
            *started_us = job.started_us.min(*started_us);
            *jobs = max_churn.min(*jobs + 1);
        }
        let free = max_jobs.saturating_sub(running.len());
        let (store, keys, job_type) = (&self.shared.store, &self.shared.keys, &self.shared.job_type);
        let tx = store.begin().await?;
        let wake_seen = tx.get_with(&keys.wake(job_type), Isolation::Snapshot).await?;
        self.fair.look(&tx, wake_seen.as_ref(), store.runtime().now_us()).await?;
        within.retain(|tenant, _| self.fair.waits(tenant));
        let mut within: Vec<_> = within.into_iter().collect();
        let now_us = self.shared.store.runtime().now_us();
        let mut before = std::mem::take(&mut self.looked_us);
        before.retain(|tenant, _| within.binary_search_by(|(name, _)| name.cmp(tenant)).is_ok());
        within.sort_by_key(|(tenant, (started_us, jobs))| {
            (before.get(tenant).copied().unwrap_or(0), *started_us, Reverse(*jobs))
        });
        within.truncate(WITHIN * max_churn);
        if when == When::Cycle {
            before.extend(within.iter().map(|(tenant, _)| (tenant.clone(), now_us)));
        }
        self.looked_us = before;
        let also = within.into_iter().map(|(tenant, (_, jobs))| (tenant, jobs)).collect();
        let shard = self.division();
        if self.fair.by_keys() {
            let depth = shard.front(max_churn + free);
            let front = self.fair.front(&tx, wake_seen.as_ref(), [], depth, |id| shard.has(id)).await?;
            let mut heads: BTreeMap<Arc<str>, Vec<Pending>> = BTreeMap::new();
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
        when: When,
        tunables: &Tunables,
        rotation: RotationRules,
        running: &[(u64, rotation::Running, Arc<str>)],
        heads: &BTreeMap<Arc<str>, Vec<Pending>>,
        now_us: i64,
    ) -> Vec<Stop> {
        let mut tenants: Vec<Tenant> = Vec::new();
        let mut places: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let mut place = |tenant: &Arc<str>| {
            *places.entry(tenant.clone()).or_insert_with(|| {
                tenants.push(self.fair.standing(tenant));
                tenants.len() - 1
            })
        };
        let running: Vec<rotation::Running> = running
            .iter()
            .enumerate()
            .map(|(job, (_, running, tenant))| rotation::Running { job, tenant: place(tenant), ..*running })
            .collect();
        let mut waiting = Vec::new();
        for (tenant, jobs) in heads {
            let tenant = place(tenant);
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
        let scheme = match tunables.fair.fairness {
            Fairness::VirtualTime => Scheme::VirtualTime(self.fair.pace()),
            Fairness::Rfc => Scheme::Rfc,
        };
        match when {
            When::Cycle => {
                let stops = rotation::rotate(scheme, &tenants, &running, &waiting, &rules, now_us);
                self.own_part(stops, rotation.interval)
            }
            When::Idle => rotation::yield_idle(scheme, &tenants, &running, &waiting, &rules, now_us),
        }
    }
}
