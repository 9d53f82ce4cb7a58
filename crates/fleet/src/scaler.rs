//! How many workers of a type run, and which of them stop: values to actions, without a clock or a process.
//!
//! Model: the server states how many slots the type's backlog needs (`wanted_slots`, which does not fall before the demand has been lower
//! for as long as the drain target) and what it needs right now (`needed_slots`): the type is active as long as that is not 0. A worker process has a fixed number of slots. The target is
//! `ceil(wanted_slots / slots)`, between `min` and `max`. It is `min` once the type was not active for `idle`.
//!
//! Forces:
//! - A burst must not wait: everything that is missing starts at once, up to [`MAX_STARTS`] per step.
//! - A stop costs: the worker drains, and starting it again takes time. So workers stop a quarter at a time, none before `min_lifetime`.
//! - A command that fails must not be started as fast as it fails. After a failure, one process starts per pause, and the pauses
//!   double up to a minute ([`backoff`]), until a process that has started since has lived for [`STEADY`].
//! - A demand that is unknown changes nothing: the last target stays.
//! - A command that was changed while its workers ran on replaces them one by one, and only while the new one proves itself.

use std::time::Duration;

use turnwise_client::protocol::Demand;

/// A process that lives this long has started well: the failures before it are forgotten.
pub const STEADY: Duration = Duration::from_secs(30);
/// A replacement that lives this long lets the next outdated process stop.
pub const SETTLED: Duration = Duration::from_secs(5);
/// Most processes that one step starts.
pub const MAX_STARTS: usize = 64;
/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Of the running processes, a quarter may drain at the same time, but at least one.
const DRAINING_PART: usize = 4;

/// The limits of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Slots of each process, at least 1.
    pub slots: usize,
    /// Processes that always run.
    pub min: usize,
    /// Most processes, including those that drain; not below `min`.
    pub max: usize,
    /// How long the type must not be active before only `min` processes are left.
    pub idle: Duration,
    /// How long a process runs at least, unless the fleet stops or its type is removed.
    pub min_lifetime: Duration,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// A process of the type. Times are durations since any fixed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// Its number, which no other process of the fleet ever has.
    pub number: u64,
    /// When it started.
    pub started: Duration,
    /// When it got SIGTERM.
    pub stopping: Option<Duration>,
    /// Whether it runs another command than the configured one.
    pub is_outdated: bool,
    /// The jobs that it runs, if the server has said so.
    pub running: Option<usize>,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start one process.
    Start,
    /// Send SIGTERM to this process.
    Stop(u64),
    /// Send SIGKILL to this process and its group.
    Kill(u64),
}

/// The pause before the next start after this many failures in a row.
pub fn backoff(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10));
    if failures == 0 { Duration::ZERO } else { doubled.min(LONGEST_PAUSE) }
}

/// Decides about the processes of one type.
#[derive(Debug, Clone)]
pub struct Scaler {
    limits: Limits,
    target: usize,
    /// The demand that the target comes from; `None` while it is unknown.
    demand: Option<Demand>,
    /// Since when the type is not active.
    idle_since: Option<Duration>,
    failures: u32,
    /// When the last failure was counted.
    failed: Duration,
    /// No process starts before.
    not_before: Duration,
}

impl Scaler {
    /// With this many processes that run already.
    pub fn new(limits: Limits, running: usize) -> Scaler {
        Scaler {
            limits,
            target: running.clamp(limits.min, limits.max),
            demand: None,
            idle_since: None,
            failures: 0,
            failed: Duration::ZERO,
            not_before: Duration::ZERO,
        }
    }

    /// Takes the demand as the server states it; `None` if it is unknown. Returns whether the target has changed.
    pub fn observe(&mut self, now: Duration, demand: Option<Demand>) -> bool {
        self.demand = demand;
        let Some(demand) = &self.demand else {
            // What is unknown may have been active.
            self.idle_since = None;
            return false;
        };
        let Limits { slots, min, max, idle, .. } = self.limits;
        let wanted = usize::try_from(demand.wanted_slots).unwrap_or(usize::MAX).div_ceil(slots.max(1));
        let is_active = is_active(demand);
        if is_active {
            self.idle_since = None;
        }
        let target = match self.idle_since {
            _ if is_active => wanted.max(1),
            Some(since) if now.saturating_sub(since) >= idle => 0,
            None if idle.is_zero() => 0,
            // The last process stays for the jobs that come next.
            _ => {
                self.idle_since.get_or_insert(now);
                wanted.max(self.target.min(1))
            }
        };
        let target = target.clamp(min, max);
        std::mem::replace(&mut self.target, target) != target
    }

    /// Counts a process that has ended without being told to. Returns whether it counts as a failure of the command: it has lived
    /// for less than [`STEADY`].
    pub fn died(&mut self, now: Duration, started: Duration) -> bool {
        if now.saturating_sub(started) >= STEADY {
            return false;
        }
        // Processes that started together and fail together are one failure.
        if self.failures == 0 || started >= self.failed {
            self.failures = self.failures.saturating_add(1);
            self.failed = now;
            self.not_before = now.saturating_add(backoff(self.failures));
        }
        true
    }

    /// What to do now. The caller does all of it before it asks again.
    pub fn plan(&mut self, now: Duration, workers: &[Worker]) -> Vec<Action> {
        let Limits { max, min_lifetime, grace, .. } = self.limits;
        let age = |worker: &Worker| now.saturating_sub(worker.started);
        if workers.iter().any(|worker| worker.started >= self.failed && age(worker) >= STEADY) {
            self.failures = 0;
        }
        let mut actions = kills(now, workers, grace);
        let mut running: Vec<&Worker> = workers.iter().filter(|worker| worker.stopping.is_none()).collect();
        let draining = workers.len() - running.len();

        let is_outdated = running.iter().any(|worker| worker.is_outdated);
        // A replacement starts before the outdated process stops, if there is room for one.
        let wanted = if is_outdated && self.target > 0 { (self.target + 1).min(max) } else { self.target };
        if running.len() < wanted {
            let missing = (wanted - running.len()).min(max.saturating_sub(workers.len())).min(MAX_STARTS);
            let starts = match self.failures {
                0 => missing,
                _ if now < self.not_before => 0,
                _ => missing.min(1),
            };
            if self.failures > 0 && starts > 0 {
                // Of a command that has failed, the next process is a trial.
                self.not_before = now.saturating_add(backoff(self.failures));
            }
            actions.extend((0..starts).map(|_| Action::Start));
        }

        let proves = self.failures == 0
            && running.iter().all(|worker| worker.is_outdated || age(worker) >= SETTLED)
            && draining == 0;
        let excess = match running.len().saturating_sub(self.target) {
            // With a replacement that has started, or where there is no room for one.
            0 | 1 if is_outdated && self.target > 0 => usize::from(proves && running.len() >= wanted),
            excess => excess,
        };
        let at_once = match self.target {
            0 => running.len(),
            _ => (running.len() / DRAINING_PART).max(1).saturating_sub(draining),
        };
        running.retain(|worker| age(worker) >= min_lifetime);
        // Outdated ones first, then those with the least to lose: the fewest jobs, and the youngest.
        running.sort_by_key(|worker| {
            (!worker.is_outdated, worker.running.unwrap_or(0), std::cmp::Reverse(worker.started))
        });
        let stops = running.iter().take(excess.min(at_once));
        actions.extend(stops.map(|worker| Action::Stop(worker.number)));
        actions
    }

    /// The limits of the type.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The number of processes that the fleet wants to run.
    pub fn target(&self) -> usize {
        self.target
    }

    /// Failures of the command in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Why the target is what it is, and what holds up a start.
    pub fn why(&self, now: Duration) -> String {
        let Limits { min, max, .. } = self.limits;
        let mut why = match &self.demand {
            None => "the demand is unknown, so the number stays".to_owned(),
            Some(demand) if !is_active(demand) => match self.idle_since {
                Some(_) if self.target > min => "nothing runs or could run, for less than idle".to_owned(),
                _ => "nothing runs or could run".to_owned(),
            },
            Some(demand) => format!(
                "{} slots are wanted: {} jobs run, {} could run, each for about {} ms",
                demand.wanted_slots,
                demand.running,
                demand.runnable,
                demand.expected_run_us / 1_000
            ),
        };
        if let Some(demand) = self.demand.as_ref().filter(|demand| is_active(demand)) {
            let wanted = usize::try_from(demand.wanted_slots).unwrap_or(usize::MAX);
            if wanted.div_ceil(self.limits.slots.max(1)) > max {
                why.push_str("; max is reached");
            }
        }
        if self.failures > 0 {
            let pause = self.not_before.saturating_sub(now).as_secs_f64();
            why.push_str(&format!(
                "; the command has failed {} times in a row, next start in {pause:.0} s",
                self.failures
            ));
        }
        why
    }
}

/// Whether anything runs or could run. `wanted_slots` says so for longer.
fn is_active(demand: &Demand) -> bool {
    demand.needed_slots > 0
}

/// SIGKILL for the processes whose grace period is over.
pub(crate) fn kills(now: Duration, workers: &[Worker], grace: Duration) -> Vec<Action> {
    let is_late = |since: Duration| now.saturating_sub(since) >= grace;
    let late = workers.iter().filter(|worker| worker.stopping.is_some_and(is_late));
    late.map(|worker| Action::Kill(worker.number)).collect()
}

#[cfg(test)]
#[path = "scaler_tests.rs"]
mod tests;
