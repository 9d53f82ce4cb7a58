//! Preemption of continuous jobs: real workers on a real store, and a clock that only the test moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::backoff::OnLost;
use turnwise_policy::fair_share::Fairness;
use turnwise_queue::{State, jobs, tenants, usage, workers};
use turnwise_worker::{FairRules, Options, Outcome, RotationRules, Tunables};

use crate::common::{Instruction, PATIENCE, Run, T, World, done, tuned};

const INTERVAL: Duration = Duration::from_secs(60);

/// Cycles of a minute, so that no other task sleeps for as long.
fn rules(max_churn: usize, shares: &[(&str, u32)]) -> FairRules {
    let rotation = RotationRules {
        interval: INTERVAL,
        max_churn,
        startup_jitter: Duration::ZERO,
        idle_turn: Duration::from_secs(10),
        quiet_period: INTERVAL,
    };
    let shares = shares.iter().map(|(tenant, shares)| ((*tenant).to_owned(), *shares)).collect();
    FairRules { rotation: Some(rotation), shares: Arc::new(shares), ..FairRules::default() }
}

fn options(max_jobs: usize, fair: FairRules) -> Options {
    Options { exclusive: true, ..tuned(Tunables { max_jobs, fair, ..Tunables::default() }) }
}

/// Adds a continuous job, and moves the clock a little.
async fn add(world: &World, tenant: &str, id: &str) {
    world.add_for(tenant, id, true).await;
    world.clock.advance(Duration::from_millis(1));
}

/// The running jobs, by id. A job that was stopped has another run later.
#[derive(Default)]
struct Running(BTreeMap<String, Run>);

impl Running {
    /// The next `count` starts.
    async fn start(&mut self, world: &mut World, count: usize) -> Vec<String> {
        let mut started = Vec::new();
        for _ in 0..count {
            let run = world.next_run().await;
            started.push(run.id.clone());
            self.0.insert(run.id.clone(), run);
        }
        started
    }

    /// The next `count` starts, if several workers claim from the queue: jobs of another shard are claimed only after a
    /// pause.
    async fn start_of_all(&mut self, world: &mut World, count: usize) {
        let all = async {
            for _ in 0..count {
                let run = loop {
                    world.settle().await;
                    if let Ok(run) = world.runs.try_recv() {
                        break run;
                    }
                    world.clock.advance(Duration::from_millis(10));
                };
                self.0.insert(run.id.clone(), run);
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("not all of them start");
    }

    /// The jobs that started in a cycle that is over, if any.
    async fn started_meanwhile(&mut self, world: &mut World) -> Vec<String> {
        let wait = world.clock.wait_for_sleepers(INTERVAL / 2, 1);
        tokio::time::timeout(PATIENCE, wait).await.expect("the worker does not wait for its next cycle");
        world.settle().await;
        let mut started = Vec::new();
        while let Ok(run) = world.runs.try_recv() {
            started.push(run.id.clone());
            self.0.insert(run.id.clone(), run);
        }
        started
    }

    /// The number of a tenant's jobs that are running, according to their records.
    async fn of(&self, world: &World, tenant: &str) -> usize {
        let tx = world.store.begin().await.unwrap();
        let all = jobs::list(&tx, &world.keys, T, None, 1_000).await.unwrap();
        all.iter().filter(|job| job.tenant == tenant && job.state() == State::Running).count()
    }
}

/// One cycle passes for `workers` of them, once all of them wait for it.
async fn cycle(world: &World, workers: usize) {
    // No other task sleeps for as long.
    let wait = world.clock.wait_for_sleepers(INTERVAL / 2, workers);
    tokio::time::timeout(PATIENCE, wait).await.expect("not all workers wait for their next cycle");
    world.clock.advance(INTERVAL);
}

/// Waits until all workers have had their cycle, and checks that it started nothing.
async fn nothing_starts(world: &mut World, workers: usize) {
    // No other task sleeps for as long.
    let wait = world.clock.wait_for_sleepers(INTERVAL / 2, workers);
    tokio::time::timeout(PATIENCE, wait).await.expect("not all workers wait for their next cycle");
    world.settle().await;
    assert!(world.runs.try_recv().is_err(), "a job was started");
}

#[tokio::test]
async fn every_job_has_its_turn() {
    let mut world = World::new();
    for n in 0..12 {
        add(&world, "a", &format!("a{n:02}")).await;
    }
    let worker = world.start_with(&world.store, options(3, rules(2, &[]))).await;
    let mut running = Running::default();
    let mut order = running.start(&mut world, 3).await;
    // More than two rounds: each time, the job started longest ago is next.
    for _ in 0..12 {
        cycle(&world, 1).await;
        order.extend(running.start(&mut world, 2).await);
        assert_eq!(running.of(&world, "a").await, 3);
    }
    for (place, id) in order.iter().enumerate().take(12) {
        assert!(order[..place].iter().all(|before| before != id), "{order:?}");
    }
    for round in order.windows(14) {
        assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 12, "{order:?}");
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn tenants_get_slots_by_their_shares() {
    let mut world = World::new();
    for (tenant, jobs) in [("a", 4), ("b", 20), ("c", 40)] {
        for n in 0..jobs {
            add(&world, tenant, &format!("{tenant}{n:02}")).await;
        }
    }
    let shares = [("a", 100), ("b", 100), ("c", 200)];
    let worker = world.start_with(&world.store, options(8, rules(4, &shares))).await;
    let mut running = Running::default();
    running.start(&mut world, 8).await;
    let mut ran = BTreeMap::<&str, usize>::new();
    for n in 0..40 {
        if n >= 4 {
            for tenant in ["a", "b", "c"] {
                *ran.entry(tenant).or_default() += running.of(&world, tenant).await;
            }
        }
        cycle(&world, 1).await;
        running.start(&mut world, 4).await;
    }
    // 36 cycles of 8 slots.
    for (tenant, slots) in [("a", 72), ("b", 72), ("c", 144)] {
        assert!(ran[tenant].abs_diff(slots) <= 3, "{ran:?}");
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn the_only_job_of_a_tenant_starts_at_once_and_keeps_its_slot() {
    let mut world = World::new();
    for n in 0..50 {
        add(&world, "many", &format!("m{n:02}")).await;
    }
    let worker = world.start_with(&world.store, options(4, rules(2, &[]))).await;
    let mut running = Running::default();
    running.start(&mut world, 4).await;
    cycle(&world, 1).await;
    running.start(&mut world, 2).await;
    add(&world, "one", "lonely").await;
    cycle(&world, 1).await;
    let started = running.start(&mut world, 2).await;
    assert!(started.contains(&"lonely".to_owned()), "{started:?}");
    // Its share is half of the slots: no cycle ever stops it.
    for _ in 0..8 {
        cycle(&world, 1).await;
        assert!(!running.start(&mut world, 2).await.contains(&"lonely".to_owned()));
        assert_eq!(running.of(&world, "one").await, 1);
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn one_shot_jobs_are_never_preempted() {
    let mut world = World::new();
    world.add_for("a", "once", false).await;
    let worker = world.start_with(&world.store, options(1, rules(5, &[]))).await;
    let mut running = Running::default();
    running.start(&mut world, 1).await;
    for id in ["b1", "b2"] {
        add(&world, "b", id).await;
    }
    for _ in 0..5 {
        cycle(&world, 1).await;
        nothing_starts(&mut world, 1).await;
    }
    running.0.remove("once").unwrap().end(done());
    let started = running.start(&mut world, 1).await;
    assert_eq!(started, ["b1"]);
    cycle(&world, 1).await;
    assert_eq!(running.start(&mut world, 1).await, ["b2"]);
    worker.shutdown().await;
}

#[tokio::test]
async fn excess_jobs_are_stopped_at_the_next_cycle_and_one_shot_jobs_last() {
    let mut world = World::new();
    for n in 0..2 {
        world.add_for("a", &format!("once{n}"), false).await;
    }
    for n in 0..4 {
        add(&world, "a", &format!("a{n}")).await;
    }
    let worker = world.start_with(&world.store, options(6, rules(1, &[]))).await;
    let mut running = Running::default();
    running.start(&mut world, 6).await;
    let tunables = worker.tunables().get();
    for (max_jobs, gone) in [(3, 3), (1, 5)] {
        worker.tunables().set(Tunables { max_jobs, ..tunables.clone() });
        cycle(&world, 1).await;
        let left = 6 - gone;
        let ids = ["a0", "a1", "a2", "a3", "once0", "once1"];
        let patience = async {
            while running.of(&world, "a").await != left {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, patience).await.expect("too many run");
        let mut once = 0;
        for id in ids {
            once +=
                usize::from(id.starts_with("once") && world.get(id).await.unwrap().state() == State::Running);
        }
        assert_eq!(once, left.min(2));
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn slots_that_follow_the_demand_stop_no_job_within_their_bounds() {
    let mut world = World::new();
    for n in 0..6 {
        add(&world, "a", &format!("a{n}")).await;
    }
    let bounds = |least, most| Some(turnwise_queue::Bounds { least, most });
    let mut elastic = options(5, rules(1, &[]));
    elastic.tunables.bounds = bounds(1, 6);
    let worker = world.start_with(&world.store, elastic).await;
    let mut running = Running::default();
    running.start(&mut world, 5).await;
    let row = || async {
        let tx = world.store.begin().await.unwrap();
        workers::list(&tx, &world.keys, T).await.unwrap()[0].clone()
    };
    assert_eq!((row().await.slots, row().await.bounds), (5, bounds(1, 6)));
    let tunables = worker.tunables().get();
    worker.tunables().set(Tunables { max_jobs: 1, ..tunables.clone() });
    for _ in 0..3 {
        cycle(&world, 1).await;
    }
    assert_eq!((row().await.slots, running.of(&world, "a").await), (1, 5));
    // A lower upper bound stops the excess, as with a plain number.
    worker.tunables().set(Tunables { max_jobs: 1, bounds: bounds(1, 3), ..tunables });
    cycle(&world, 1).await;
    let patience = async {
        while running.of(&world, "a").await != 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, patience).await.expect("too many run");
    worker.shutdown().await;
}

#[tokio::test]
async fn an_idle_job_is_preempted_after_its_turn_and_not_before() {
    let mut world = World::new();
    for id in ["a1", "a2", "a3"] {
        add(&world, "a", id).await;
    }
    let worker = world.start_with(&world.store, options(2, rules(5, &[]))).await;
    let mut running = Running::default();
    running.start(&mut world, 2).await;
    let _ = running.0.remove("a2").unwrap().instruction.send(Instruction::Idle);
    // The worker checks when the job's turn is over. Until then, it does nothing.
    let wait = world.clock.wait_for_sleepers(Duration::from_secs(10), 2);
    tokio::time::timeout(PATIENCE, wait).await.expect("the worker does not wait for the end of its turn");
    world.clock.advance(Duration::from_millis(9_999));
    world.clock.wait_for_sleeper(Duration::from_millis(1)).await;
    assert!(world.runs.try_recv().is_err());
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(running.start(&mut world, 1).await, ["a3"]);
    assert_eq!(world.until_state("a2", State::Pending).await.started_us, Some(1_000_003_000));
    assert_eq!(world.get("a1").await.unwrap().state(), State::Running, "it is busy");
    worker.shutdown().await;
}

#[tokio::test]
async fn an_idle_job_of_a_tenant_with_a_deficit_keeps_its_slot() {
    let mut world = World::new();
    add(&world, "few", "f1").await;
    for n in 0..5 {
        add(&world, "many", &format!("m{n}")).await;
    }
    let worker = world.start_with(&world.store, options(4, rules(5, &[]))).await;
    let mut running = Running::default();
    running.start(&mut world, 4).await;
    assert_eq!(running.of(&world, "few").await, 1);
    let _ = running.0.remove("f1").unwrap().instruction.send(Instruction::Idle);
    for _ in 0..3 {
        let wait = world.clock.wait_for_sleepers(Duration::from_secs(10), 2);
        tokio::time::timeout(PATIENCE, wait).await.expect("the worker does not wait for the end of its turn");
        world.clock.advance(Duration::from_secs(10));
    }
    world.clock.wait_for_sleepers(Duration::from_secs(10), 2).await;
    assert!(world.runs.try_recv().is_err(), "a job was started in its place");
    assert_eq!(world.get("f1").await.unwrap().state(), State::Running);
    worker.shutdown().await;
}

#[tokio::test]
async fn two_workers_do_not_both_preempt_a_job_for_the_same_waiting_job() {
    let mut world = World::new();
    for n in 0..8 {
        add(&world, "a", &format!("a{n}")).await;
    }
    // Far longer than the steps of the test before the cycle.
    let interval = 60 * INTERVAL;
    let mut fair = rules(4, &[]);
    fair.rotation = fair.rotation.map(|rotation| RotationRules { interval, ..rotation });
    let beside = |max_jobs| tuned(Tunables { max_jobs, fair: fair.clone(), ..Tunables::default() });
    let one = world.start_with(&world.store, beside(4)).await;
    let mut running = Running::default();
    running.start(&mut world, 4).await;
    let two = world.start_with(&world.store, beside(4)).await;
    running.start_of_all(&mut world, 4).await;
    // All jobs run, and one more waits. Both workers have their cycles at about the same time, but the job is in one shard.
    world.tick(2).await;
    add(&world, "a", "late").await;
    let wait = world.clock.wait_for_sleepers(interval / 2, 2);
    tokio::time::timeout(PATIENCE, wait).await.expect("not all workers wait for their next cycle");
    world.clock.advance(interval * 3 / 2);
    assert_eq!(running.start(&mut world, 1).await, ["late"]);
    nothing_starts(&mut world, 2).await;
    for worker in [one, two] {
        worker.shutdown().await;
    }
}

#[tokio::test]
async fn two_workers_do_not_pass_jobs_back_and_forth() {
    let mut world = World::new();
    // Far longer than the steps of the test between two cycles.
    let interval = 60 * INTERVAL;
    let mut fair = rules(8, &[]);
    fair.rotation = fair.rotation.map(|rotation| RotationRules { interval, ..rotation });
    let options = tuned(Tunables { max_jobs: 4, fair, ..Tunables::default() });
    let mut running = Running::default();
    let workers = [
        world.start_with(&world.store, options.clone()).await,
        world.start_with(&world.store, options).await,
    ];
    world.tick(2).await;
    for n in 0..16 {
        add(&world, "t", &format!("t{n:02}")).await;
    }
    running.start_of_all(&mut world, 8).await;
    for n in 0..16 {
        add(&world, "u", &format!("u{n:02}")).await;
    }
    // From here on, time passes in half intervals. In each, one worker has its cycle, ten seconds after the beginning.
    let half_us = i64::try_from(interval.as_micros() / 2).unwrap();
    let now_us = turnwise_store::Runtime::now_us(&*world.clock);
    let until_us = half_us - (now_us + 10_000_000).rem_euclid(half_us);
    world.clock.advance(Duration::from_micros(until_us.unsigned_abs()));
    let mut slots = Vec::new();
    for _ in 0..24 {
        // Pings, charges, stops and starts.
        for _ in 0..40 {
            world.clock.advance(Duration::from_millis(500));
            world.settle().await;
            while let Ok(run) = world.runs.try_recv() {
                running.0.insert(run.id.clone(), run);
            }
        }
        slots.push(running.of(&world, "t").await);
        world.clock.advance(interval / 2 - Duration::from_secs(20));
    }
    // Once the first tenant has had its turn, each has half of the slots. At times, a job is seen between two runs.
    let settled = slots[8..].iter().filter(|slots| (3..=5).contains(*slots)).count();
    assert!(settled >= 13, "{slots:?}");
    for worker in workers {
        worker.shutdown().await;
    }
}

#[tokio::test]
async fn a_slow_stop_is_not_followed_by_another_one() {
    let mut world = World::new();
    add(&world, "a", "a1").await;
    let options = Options { stop_grace: INTERVAL * 3, ..options(2, rules(1, &[])) };
    let worker = world.start_with(&world.store, options).await;
    let mut running = Running::default();
    running.start(&mut world, 1).await;
    add(&world, "a", "a2").await;
    running.start(&mut world, 1).await;
    add(&world, "a", "a3").await;
    let (hang, hangs) = tokio::sync::oneshot::channel();
    let _ = running.0.remove("a1").unwrap().instruction.send(Instruction::Hang(hang));
    hangs.await.unwrap();
    // It was started first, so it is preempted.
    cycle(&world, 1).await;
    nothing_starts(&mut world, 1).await;
    cycle(&world, 1).await;
    nothing_starts(&mut world, 1).await;
    assert_eq!(running.of(&world, "a").await, 2, "the other one runs still");
    drop(worker);
}

#[tokio::test]
async fn the_charges_of_a_dead_worker_stay() {
    let mut world = World::new();
    add(&world, "a", "a1").await;
    let mut options = options(1, rules(1, &[]));
    options.tunables.on_lost = OnLost::Requeue;
    let worker = world.start_with(&world.store, options.clone()).await;
    let _first = world.next_run().await;
    cycle(&world, 1).await;
    let keys = world.keys.clone();
    let rows = async |world: &World| {
        let tx = world.store.begin().await.unwrap();
        usage::of_tenant(&tx, &keys, T, "a").await.unwrap()
    };
    let written = async {
        while rows(&world).await.first().is_none_or(|(_, charged)| charged.service_us == 0) {
            world.clock.wait_for_sleeper(Duration::from_millis(900)).await;
            world.clock.advance(Duration::from_millis(900));
            world.settle().await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("nothing was written");
    drop(worker);
    let (_, charged) = &rows(&world).await[0];
    // The time that has passed, in the clock's steps.
    assert!(charged.service_us >= 60_000_000, "{charged:?}");
    assert!((charged.virtual_us * 100.0 - charged.service_us as f64).abs() < 1.0, "{charged:?}");
    // The next worker continues from there.
    let worker = world.start_with(&world.store, options).await;
    let _second = world.next_run().await;
    cycle(&world, 1).await;
    worker.shutdown().await;
    let chargers = rows(&world).await;
    assert_eq!(chargers.len(), 2);
    assert!(chargers.iter().all(|(_, charged)| charged.tag >= 600_000.0), "{chargers:?}");
}

/// The numbers of a tenant's pending jobs that are sorted by keys, and by their time.
async fn keyed(world: &World, tenant: &str) -> (usize, usize) {
    let tx = world.store.begin().await.unwrap();
    let queue = tenants::front(&tx, &world.keys, T, tenant, 1_000).await.unwrap();
    let keyed = queue.iter().filter(|job| job.key.is_some()).count();
    (keyed, queue.len() - keyed)
}

#[tokio::test]
async fn schemes_can_change_while_jobs_run_and_wait() {
    let mut world = World::new();
    for n in 0..9 {
        add(&world, if n < 6 { "a" } else { "b" }, &format!("j{n}")).await;
    }
    let worker = world.start_with(&world.store, options(3, rules(2, &[]))).await;
    let mut running = Running::default();
    running.start(&mut world, 3).await;
    let tunables = worker.tunables().get();
    for fairness in [Fairness::Rfc, Fairness::VirtualTime, Fairness::Rfc] {
        let fair = FairRules { fairness, ..tunables.fair.clone() };
        worker.tunables().set(Tunables { fair, ..tunables.clone() });
        let mut ran = BTreeSet::new();
        // A surplus from the other scheme holds a tenant back for at most 30 cycles.
        for _ in 0..60 {
            cycle(&world, 1).await;
            ran.extend(running.started_meanwhile(&mut world).await);
        }
        // Under either scheme, every job has its turn, and the slots are never empty.
        assert_eq!(ran.len(), 9, "{fairness}: {ran:?}");
        let full = async {
            while running.of(&world, "a").await + running.of(&world, "b").await < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, full).await.expect("a slot stays empty");
        let settled = async {
            loop {
                let (a, b) = (keyed(&world, "a").await, keyed(&world, "b").await);
                let others = match fairness {
                    Fairness::Rfc => a.1 + b.1,
                    Fairness::VirtualTime => a.0 + b.0,
                };
                if others == 0 {
                    return;
                }
                world.clock.advance(Duration::from_millis(900));
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, settled)
            .await
            .expect("jobs are sorted by what does not matter any more");
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn by_keys_the_usage_of_a_tenant_delays_its_jobs() {
    let mut world = World::new();
    for n in 0..20 {
        add(&world, "many", &format!("m{n:02}")).await;
    }
    let fair = FairRules { fairness: Fairness::Rfc, ..rules(4, &[]) };
    let worker = world.start_with(&world.store, options(4, fair)).await;
    let mut running = Running::default();
    running.start(&mut world, 4).await;
    let mut ran = BTreeSet::new();
    for _ in 0..20 {
        cycle(&world, 1).await;
        ran.extend(running.started_meanwhile(&mut world).await);
    }
    assert_eq!(ran.len(), 20);
    for n in 0..4 {
        add(&world, "few", &format!("f{n}")).await;
    }
    // A new tenant has no usage, so its jobs come first.
    cycle(&world, 1).await;
    // At most four runs of the previous cycle arrive late.
    let started = running.start(&mut world, 4).await;
    let mut few = started.iter().filter(|id| id.starts_with('f')).count();
    for _ in 0..4 {
        if few < 4 {
            few += usize::from(running.start(&mut world, 1).await[0].starts_with('f'));
        }
    }
    assert_eq!(few, 4, "{started:?}");
    // The record keeps a job's key.
    worker.shutdown().await;
    let job = world.get("f0").await.unwrap();
    assert!(job.sort_key.is_some(), "{job:?}");
}

#[tokio::test]
async fn by_keys_a_job_that_arrives_after_a_read_of_many_tenants_starts_at_once() {
    let mut world = World::new();
    let by_keys = FairRules { fairness: Fairness::Rfc, ..rules(1, &[]) };
    let worker = world.start_with(&world.store, options(200, by_keys)).await;
    // With a hundred tenants or more, the known state may be some ms old; here no time passes at all.
    let mut running = Vec::new();
    for n in 0..120 {
        world.add_for(&format!("t{n:03}"), &format!("{n:03}"), true).await;
        running.push(world.next_run().await);
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn a_job_whose_backoff_is_over_gets_a_turn_although_all_slots_are_in_use() {
    for fairness in [Fairness::VirtualTime, Fairness::Rfc] {
        let mut world = World::new();
        add(&world, "a", "crashed").await;
        let fair = FairRules { fairness, ..rules(2, &[]) };
        let worker = world.start_with(&world.store, options(2, fair)).await;
        world.next_run().await.end(Outcome::Crashed("once".to_owned()));
        world.until_state("crashed", State::Crashing).await;
        // From here on, jobs that never end occupy both slots, and the others wait only for their time.
        let mut running = Running::default();
        for id in ["a1", "a2"] {
            add(&world, "a", id).await;
        }
        running.start(&mut world, 2).await;
        let mut started = Vec::new();
        for _ in 0..12 {
            cycle(&world, 1).await;
            started.extend(running.started_meanwhile(&mut world).await);
        }
        assert!(started.contains(&"crashed".to_owned()), "{fairness}: {started:?}");
        worker.shutdown().await;
    }
}

/// The number of jobs that each worker runs.
async fn loads(world: &World) -> Vec<usize> {
    let tx = world.store.begin().await.unwrap();
    let all = jobs::list(&tx, &world.keys, T, None, 1_000).await.unwrap();
    let mut loads: BTreeMap<String, usize> = BTreeMap::new();
    for worker in world.workers().await {
        loads.insert(worker, 0);
    }
    for claim in all.into_iter().filter_map(|job| job.claim().cloned()) {
        *loads.get_mut(&claim.worker).unwrap() += 1;
    }
    loads.into_values().collect()
}

/// Time passes, in steps that let every transaction finish, and runs continue.
async fn time_passes(world: &mut World, running: &mut Running, time: Duration) {
    const STEP: Duration = Duration::from_secs(2);
    for _ in 0..time.as_secs() / STEP.as_secs() {
        world.clock.advance(STEP);
        world.settle().await;
        while let Ok(run) = world.runs.try_recv() {
            running.0.insert(run.id.clone(), run);
        }
    }
}

#[tokio::test]
async fn workers_that_are_restarted_one_by_one_end_with_equal_loads() {
    let mut world = World::new();
    let options = tuned(Tunables { max_jobs: 6, fair: rules(2, &[]), ..Tunables::default() });
    let mut running = Running::default();
    let mut workers = std::collections::VecDeque::new();
    for _ in 0..3 {
        workers.push_back(world.start_with(&world.store, options.clone()).await);
    }
    world.tick(3).await;
    for n in 0..9 {
        add(&world, "a", &format!("a{n}")).await;
    }
    running.start_of_all(&mut world, 9).await;
    for _ in 0..3 {
        workers.pop_front().unwrap().shutdown().await;
        time_passes(&mut world, &mut running, INTERVAL).await;
        workers.push_back(world.start_with(&world.store, options.clone()).await);
        time_passes(&mut world, &mut running, 4 * INTERVAL).await;
    }
    assert_eq!(loads(&world).await, [3, 3, 3]);
    // Once they are equal, no job moves any more.
    let started = |running: &Running| running.0.values().map(|run| run.job.started_us).collect::<Vec<_>>();
    let before = started(&running);
    time_passes(&mut world, &mut running, 5 * INTERVAL).await;
    assert_eq!(before, started(&running));
    for worker in workers {
        worker.shutdown().await;
    }
}
