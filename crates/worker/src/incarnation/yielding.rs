//! Yielding: idle jobs are preempted for waiting ones between two cycles.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use turnwise_policy::rotation::Moment;

use super::preemption::PreemptionResult;
use super::{Incarnation, Running};
use crate::event::Event;
use crate::times::duration_us;

/// The minimum time between two checks for waiting jobs, for which idle jobs can be preempted.
const PAUSE: Duration = Duration::from_secs(1);

/// When the next check for waiting jobs is due, for which idle jobs can be preempted.
#[derive(Default)]
pub(super) struct Yielding {
    /// The earliest time of the next check, in µs.
    from_us: i64,
    due: Event,
    /// Happens when a job becomes pending.
    wake: Event,
}

impl Yielding {
    /// Returns true if a check is due, and false if a job has become pending: the next check must then be scheduled
    /// again.
    #[boxed]
    pub async fn due(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.wake.happens() => false,
            () = self.due.happens() => true,
        }
    }
}

impl Running {
    /// Whether it may be preempted because it is idle.
    fn may_yield(&self) -> bool {
        self.charges.rotates && self.controls.idle.is_idle() && !self.is_stopping()
    }
}

impl Incarnation {
    /// Schedules the next check: when an idle job has run for its minimum time, but not before the pause since the last
    /// check is over.
    pub(super) fn schedule_yield(&mut self) {
        let due = || {
            let idle_turn = self.rotation_rules().filter(|_| !self.mode.is_quiet())?.idle_turn;
            let may_yield = self.running.values().filter(|running| running.may_yield());
            let earliest_us = may_yield.map(|running| running.charges.started_us).min()?;
            let turn_us = earliest_us.saturating_add(duration_us(idle_turn));
            Some(self.after(self.until(turn_us.max(self.yielding.from_us))))
        };
        self.yielding.due = due().unwrap_or_default();
    }

    /// Preempts idle jobs for waiting ones.
    pub(super) async fn yield_idle(&mut self) {
        let idle_turn = self.rotation_rules().map_or(PAUSE, |rotation| rotation.idle_turn.max(PAUSE));
        let (pause, again, wake_seen) = match self.preempt(Moment::Idle, None).await {
            // The jobs that start now may be idle, too. Each must run for its minimum time before it is preempted.
            Ok(PreemptionResult { stopped, wake_seen, .. }) if stopped > 0 => {
                (idle_turn, Some(idle_turn), wake_seen)
            }
            // The deficit of a waiting tenant grows with time.
            Ok(PreemptionResult { any_waits, wake_seen, .. }) => {
                (PAUSE.max(idle_turn / 4), any_waits.then_some(idle_turn), wake_seen)
            }
            Err(error) => {
                tracing::warn!(%error, "no idle job is preempted: the queue cannot be read");
                (PAUSE, Some(PAUSE), None)
            }
        };
        self.yielding.from_us = self.now_us().saturating_add(duration_us(pause));
        self.yielding.due = again.map_or_else(Event::default, |pause| self.after(pause));
        let key = self.shared.keys.wake(&self.shared.job_type);
        self.yielding.wake = match self.shared.store.watch(key, wake_seen).await {
            Ok(watch) => watch.into(),
            Err(error) => {
                tracing::error!(%error, "cannot watch the store: checks again soon");
                self.after(PAUSE)
            }
        };
    }
}
