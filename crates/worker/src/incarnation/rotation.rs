//! Rotation: at its cycles, a worker charges its jobs, preempts running jobs for waiting ones ([`preemption`](super::preemption)), and
//! gives jobs back to emptier workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::rotation::Moment;
use turnwise_policy::rotation::balance::{Turn, has_its_part};

use super::Incarnation;
use super::balance::Loads;
use super::preemption::PreemptionResult;
use crate::RotationRules;
use crate::event::Event;
use crate::times::duration_us;

/// After this long, other workers have read what a worker's cycle has done: its rows are written, and read.
pub(super) const SHORTEST_PHASE: Duration = Duration::from_secs(3);

/// When the next cycle is due, and when cycles have checked each tenant.
pub(super) struct Rotation {
    pub due: Event,
    /// The time of the latest cycle, in µs; without rotation, the time when it last charged its jobs.
    cycle_us: i64,
    /// When it last checked whether a tenant's own jobs may take turns, in µs. Only tenants with jobs here.
    pub checked_us: BTreeMap<Arc<str>, i64>,
}

impl Rotation {
    pub fn new(now_us: i64) -> Rotation {
        Rotation { due: Event::default(), cycle_us: now_us, checked_us: BTreeMap::new() }
    }
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
        let may_give = loads.as_ref().filter(|loads| loads.turn != Turn::Later);
        match self.preempt(Moment::Cycle, may_give).await {
            Ok(PreemptionResult { stopped, surplus, .. }) => {
                let has_its_part = loads.as_ref().is_some_and(|loads| has_its_part(loads.own, &loads.all));
                self.balance.is_above_its_part = surplus > 0 || has_its_part;
                if let Some(Loads { turn: Turn::Now { round }, .. }) = loads
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
}
