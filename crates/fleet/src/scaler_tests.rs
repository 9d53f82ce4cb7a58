//! The scaler on simulated processes: examples, and what holds for every demand.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The time between two steps of a simulation.
const STEP: Duration = Duration::from_millis(500);

fn limits(slots: usize, min: usize, max: usize) -> Limits {
    Limits {
        slots,
        min,
        max,
        idle: Duration::from_secs(20),
        min_lifetime: Duration::from_secs(10),
        grace: Duration::from_secs(30),
    }
}

fn demand(wanted_slots: u64) -> Demand {
    Demand {
        job_type: "t".to_owned(),
        runnable: wanted_slots,
        expected_run_us: 200_000,
        needed_slots: wanted_slots,
        wanted_slots,
        active: wanted_slots > 0,
        ..Demand::default()
    }
}

/// Simulated processes. Each drains for some time.
struct World {
    scaler: Scaler,
    workers: Vec<Worker>,
    now: Duration,
    next: u64,
    /// How long a process takes to stop; longer than the grace period for one that must be killed.
    drain: Duration,
    starts: usize,
    stops: usize,
    kills: usize,
}

impl World {
    fn new(limits: Limits) -> World {
        World {
            scaler: Scaler::new(limits, 0),
            workers: Vec::new(),
            now: Duration::from_secs(1_000_000),
            next: 0,
            drain: Duration::from_secs(2),
            starts: 0,
            stops: 0,
            kills: 0,
        }
    }

    fn running(&self) -> usize {
        self.workers.iter().filter(|worker| worker.stopping.is_none()).count()
    }

    /// One step: what must hold for each of its actions is checked here.
    fn step(&mut self, seen: Option<u64>) -> usize {
        self.now += STEP;
        let (now, drain) = (self.now, self.drain);
        self.workers.retain(|worker| worker.stopping.is_none_or(|since| now - since < drain));
        self.scaler.observe(now, seen.map(demand));
        let limits = *self.scaler.limits();
        let target = self.scaler.target();
        assert!((limits.min..=limits.max).contains(&target));
        let actions = self.scaler.plan(now, &self.workers);
        for action in &actions {
            match action {
                Action::Start => {
                    self.workers.push(Worker {
                        number: self.next,
                        started: now,
                        stopping: None,
                        is_outdated: false,
                        running: None,
                    });
                    self.next += 1;
                    self.starts += 1;
                }
                Action::Stop(number) => {
                    let worker = self.workers.iter_mut().find(|worker| worker.number == *number).unwrap();
                    assert!(worker.stopping.is_none(), "it stops already");
                    assert!(now - worker.started >= limits.min_lifetime, "it is too young");
                    worker.stopping = Some(now);
                    self.stops += 1;
                }
                Action::Kill(number) => {
                    let at = self.workers.iter().position(|worker| worker.number == *number).unwrap();
                    let worker = self.workers.remove(at);
                    assert!(now - worker.stopping.unwrap() >= limits.grace, "its grace period is not over");
                    self.kills += 1;
                }
            }
        }
        assert!(
            self.workers.len() <= limits.max,
            "{} processes, and at most {}",
            self.workers.len(),
            limits.max
        );
        actions.len()
    }

    fn steps(&mut self, seconds: u64, seen: Option<u64>) {
        for _ in 0..seconds * 2 {
            self.step(seen);
        }
    }
}

#[test]
fn a_burst_starts_everything_at_once_and_ends_at_zero() {
    let mut world = World::new(limits(4, 0, 20));
    world.steps(60, Some(0));
    assert_eq!(world.workers.len(), 0);
    world.step(Some(17));
    assert_eq!(world.running(), 5, "17 slots, 4 for each");
    world.step(Some(1_000));
    assert_eq!(world.running(), 20);
    world.steps(60, Some(1_000));
    assert_eq!((world.starts, world.stops), (20, 0));
    let quiet = world.now;
    while !world.workers.is_empty() {
        world.step(Some(0));
    }
    let took = world.now - quiet;
    assert!(took <= Duration::from_secs(20) + world.drain + STEP * 2, "{took:?}");
    assert_eq!((world.starts, world.kills), (20, 0));
}

#[test]
fn jobs_that_may_not_start_start_no_worker() {
    let mut world = World::new(limits(1, 0, 20));
    // Locked, filtered and limited jobs are not runnable, so the server wants no slots for them.
    world.steps(600, Some(0));
    assert_eq!(world.starts, 0);
}

#[test]
fn one_worker_stays_while_the_type_was_active_lately() {
    let mut world = World::new(limits(1, 0, 20));
    world.steps(15, Some(8));
    assert_eq!(world.running(), 8);
    world.steps(19, Some(0));
    assert_eq!(world.running(), 1);
    world.steps(15, Some(1));
    assert_eq!((world.running(), world.starts), (1, 8));
    world.steps(22, Some(0));
    assert_eq!(world.running(), 0);
    // Something runs, but no slots are wanted.
    let active = Demand { needed_slots: 1, ..demand(0) };
    world.scaler.observe(world.now, Some(active));
    assert_eq!(world.scaler.target(), 1);
}

#[test]
fn idle_ends_before_a_long_drain_target() {
    let mut world = World::new(limits(1, 0, 20));
    world.steps(15, Some(8));
    // The server still wants what was needed within the target, and nothing is left.
    let damped = Demand { wanted_slots: 8, ..demand(0) };
    for second in [0, 10, 19] {
        world.scaler.observe(world.now + Duration::from_secs(second), Some(damped.clone()));
        assert_eq!(world.scaler.target(), 8);
    }
    world.scaler.observe(world.now + Duration::from_secs(20), Some(damped));
    assert_eq!(world.scaler.target(), 0);
}

#[test]
fn an_unknown_demand_changes_nothing_and_what_dies_is_replaced() {
    let mut world = World::new(limits(1, 0, 20));
    world.steps(1, Some(8));
    world.steps(600, None);
    assert_eq!((world.running(), world.starts, world.stops), (8, 8, 0));
    let dead = world.workers.pop().unwrap();
    assert!(!world.scaler.died(world.now, dead.started), "it was steady");
    world.step(None);
    assert_eq!((world.running(), world.starts), (8, 9));
    assert!(world.scaler.why(world.now).contains("unknown"));
}

#[test]
fn a_restart_keeps_what_runs_until_the_demand_is_known() {
    let mut scaler = Scaler::new(limits(1, 2, 20), 7);
    assert_eq!(scaler.target(), 7);
    scaler.observe(Duration::ZERO, None);
    assert_eq!(scaler.target(), 7);
    assert_eq!(Scaler::new(limits(1, 2, 20), 0).target(), 2);
    assert_eq!(Scaler::new(limits(1, 2, 20), 30).target(), 20);
}

#[test]
fn a_command_that_fails_starts_once_per_pause() {
    let mut world = World::new(limits(1, 0, 50));
    let mut starts = Vec::new();
    for _ in 0..3_600 * 2 {
        world.step(Some(50));
        if !world.workers.is_empty() {
            starts.push(world.workers.len());
        }
        // All of them end within the step.
        for worker in std::mem::take(&mut world.workers) {
            assert!(world.scaler.died(world.now, worker.started));
        }
    }
    assert_eq!(starts[0], 50, "the first time, nothing is known");
    assert!(starts[1..].iter().all(|started| *started == 1), "{starts:?}");
    assert!(starts.len() < 70, "{} starts in an hour", starts.len());
    assert!(world.scaler.failures() > 5 && world.scaler.why(world.now).contains("times in a row"));
    // Once it works again, one process is the trial, and the rest follows.
    world.steps(61, Some(50));
    assert!(world.running() >= 1);
    world.steps(31, Some(50));
    assert_eq!((world.running(), world.scaler.failures()), (50, 0));
}

#[test]
fn the_pauses_double_up_to_a_minute() {
    let pauses: Vec<u64> = (0..9).map(|failures| backoff(failures).as_secs()).collect();
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(backoff(u32::MAX), Duration::from_secs(60));
}

#[test]
fn one_failure_among_steady_workers_delays_the_next_start_only_a_little() {
    let mut world = World::new(limits(1, 0, 10));
    world.steps(60, Some(5));
    world.step(Some(6));
    let youngest = world.workers.pop().unwrap();
    world.scaler.died(world.now, youngest.started);
    world.steps(2, Some(6));
    assert_eq!((world.running(), world.scaler.failures()), (6, 1));
    world.steps(31, Some(6));
    assert_eq!(world.scaler.failures(), 0);
}

#[test]
fn the_one_with_the_fewest_jobs_stops_then_the_youngest() {
    let worker = |number: u64, started_s: u64, running: usize| Worker {
        number,
        started: Duration::from_secs(started_s),
        stopping: None,
        is_outdated: false,
        running: Some(running),
    };
    let now = Duration::from_secs(1_000);
    let workers = [worker(1, 100, 2), worker(2, 200, 1), worker(3, 300, 1), worker(4, 995, 0)];
    let stops = |wanted: u64| {
        let mut scaler = Scaler::new(limits(1, 0, 10), 4);
        scaler.observe(now, Some(demand(wanted)));
        scaler.plan(now, &workers)
    };
    assert_eq!(stops(3), [Action::Stop(3)], "the fourth is too young");
    assert_eq!(stops(1), [Action::Stop(3)], "a quarter at a time");
    assert_eq!(stops(4), []);
}

#[test]
fn a_worker_that_does_not_stop_is_killed_after_the_grace_period() {
    let mut world = World::new(limits(1, 0, 3));
    world.drain = Duration::from_secs(1_000);
    world.steps(15, Some(3));
    world.steps(52, Some(0));
    assert_eq!((world.kills, world.workers.len()), (3, 0));
}

#[test]
fn outdated_workers_are_replaced_one_by_one_while_the_new_command_proves_itself() {
    for (min, max) in [(0, 5), (2, 4), (4, 4)] {
        let mut world = World::new(limits(1, min, max));
        world.steps(60, Some(4));
        let old: Vec<u64> = world.workers.iter().map(|worker| worker.number).collect();
        let outdate = |world: &mut World| {
            for worker in &mut world.workers {
                worker.is_outdated = old.contains(&worker.number);
            }
        };
        outdate(&mut world);
        let mut least = 4;
        for _ in 0..200 {
            world.step(Some(4));
            outdate(&mut world);
            least = least.min(world.running());
        }
        assert!(world.workers.iter().all(|worker| !worker.is_outdated), "{min} to {max}: some are left");
        assert_eq!((world.running(), world.stops), (4, 4), "{min} to {max}");
        assert_eq!(least, if max == 4 { 3 } else { 4 }, "{min} to {max}");
    }

    // A new command that fails replaces nothing.
    let mut world = World::new(limits(1, 0, 8));
    world.steps(60, Some(4));
    for worker in &mut world.workers {
        worker.is_outdated = true;
    }
    for _ in 0..200 {
        world.step(Some(4));
        let now = world.now;
        let scaler = &mut world.scaler;
        world.workers.retain(|worker| worker.is_outdated || !scaler.died(now, worker.started));
    }
    assert_eq!((world.running(), world.stops), (4, 0));
}

proptest! {
    /// [`World::step`] checks each action. Processes die at any time.
    #[test]
    fn prop_limits_hold_for_every_demand(
        slots in 1_usize..6,
        min in 0_usize..4,
        more in 0_usize..12,
        drain_s in 0_u64..40,
        events in prop::collection::vec((prop::option::weighted(0.9, 0_u64..80), 0_usize..40, 1_u64..30), 1..60),
    ) {
        prop_assume!(min + more > 0);
        let mut world = World::new(limits(slots, min, min + more));
        world.drain = Duration::from_secs(drain_s);
        for (seen, dies, seconds) in events {
            if dies < world.workers.len() {
                let dead = world.workers.remove(dies);
                if dead.stopping.is_none() {
                    world.scaler.died(world.now, dead.started);
                }
            }
            for _ in 0..seconds * 2 {
                let before = world.running();
                world.step(seen);
                let target = world.scaler.target();
                let after = world.running();
                prop_assert!(after <= before.max(target), "started too many: {before}, {after}, {target}");
                prop_assert!(after >= before.min(target), "stopped too many: {before}, {after}, {target}");
            }
        }
        // At the end all is well for as long as it takes: what is wanted runs.
        world.steps(300, Some(7));
        let target = 7_usize.div_ceil(slots).clamp(min, min + more);
        prop_assert_eq!(world.running(), target);
    }

    /// A demand that does not change moves nothing, once what it wants runs.
    #[test]
    fn prop_a_constant_demand_does_not_oscillate(
        slots in 1_usize..6,
        min in 0_usize..4,
        more in 1_usize..12,
        first in 0_u64..80,
        then in 0_u64..80,
    ) {
        let mut world = World::new(limits(slots, min, min + more));
        world.steps(60, Some(first));
        world.steps(200, Some(then));
        let mut actions = BTreeMap::new();
        for n in 0..400 {
            let count = world.step(Some(then));
            if count > 0 {
                actions.insert(n, count);
            }
        }
        prop_assert!(actions.is_empty(), "{actions:?}");
    }
}
