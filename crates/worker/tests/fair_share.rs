//! Which job is next, and what it is charged: real workers on a real store, and a clock that only the test moves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_queue::usage::{self, Charged};
use turnwise_queue::{NewJob, State, jobs, tenants, workers};
use turnwise_worker::{
    Accepted, DEFAULT_HEALTH_INTERVAL, External, ExternalEnd, FairRules, Monitor, Options, RotationRules,
    Tunables, Worker,
};

use crate::common::{self, PATIENCE, Run, T, World, done, json, tuned};

/// Much longer than any step of a test takes.
const INTERVAL: Duration = Duration::from_secs(60);

async fn start(world: &World, max_jobs: usize, shares: &[(&str, u32)]) -> Worker {
    let shares = shares.iter().map(|(tenant, shares)| ((*tenant).to_owned(), *shares)).collect();
    let fair = FairRules { shares: Arc::new(shares), ..FairRules::default() };
    world
        .start_with(
            &world.store,
            Options { exclusive: true, ..tuned(Tunables { max_jobs, fair, ..Tunables::default() }) },
        )
        .await
}

/// The tenant of a run: its id begins with it.
fn tenant(run: &Run) -> String {
    run.job.tenant.clone()
}

/// Ends a run after a time, and waits until that is recorded.
async fn end_after(world: &World, run: Run, time: Duration) {
    world.clock.advance(time);
    let id = run.id.clone();
    run.end(done());
    world.until_state(&id, State::Completed).await;
}

async fn rows(world: &World, tenant: &str) -> Vec<(String, Charged)> {
    let tx = world.store.begin().await.unwrap();
    usage::of_tenant(&tx, &world.keys, T, tenant).await.unwrap()
}

/// Waits until the written charges satisfy a condition.
async fn until_charged(
    world: &World,
    tenant: &str,
    condition: impl Fn(&[(String, Charged)]) -> bool,
) -> Vec<(String, Charged)> {
    let written = async {
        loop {
            let rows = rows(world, tenant).await;
            if condition(&rows) {
                return rows;
            }
            world.clock.advance(Duration::from_millis(300));
            world.settle().await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("it was never written")
}

#[tokio::test]
async fn the_only_job_of_a_tenant_is_next_before_many_of_another_one() {
    let mut world = World::new();
    for n in 0..500 {
        world.add_for("many", &format!("m{n:03}"), false).await;
    }
    let worker = start(&world, 2, &[]).await;
    let mut running = vec![world.next_run().await, world.next_run().await];
    world.add_for("one", "lonely", false).await;
    end_after(&world, running.remove(0), Duration::from_secs(5)).await;
    // It gets the first free slot, however long other jobs have waited.
    let next = world.next_run().await;
    assert_eq!(next.id, "lonely");
    running.push(next);
    worker.shutdown().await;
}

#[tokio::test]
async fn run_times_are_learnt_per_task_and_a_tenant_has_one_account_for_all() {
    const RUNS: u64 = 3;
    let mut world = World::new();
    let worker = start(&world, 1, &[]).await;
    for n in 0..RUNS {
        for (task, seconds) in [(Some("short"), 2), (Some("long"), 30), (None, 7)] {
            let new = &NewJob::new(T, &format!("{n}-{seconds}"), json("{}"))
                .with(|spec| (spec.tenant, spec.task) = ("a".into(), task.map(str::to_owned)));
            let (keys, now_us) = (&world.keys, turnwise_store::Runtime::now_us(&*world.clock));
            world.store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
            let run = world.next_run().await;
            end_after(&world, run, Duration::from_secs(seconds)).await;
        }
    }
    let ran_us = RUNS * 39_000_000;
    let charged =
        until_charged(&world, "a", |rows| rows.iter().any(|(_, row)| row.service_us >= ran_us)).await;
    assert_eq!(charged.len(), 1);
    worker.shutdown().await;
    let tx = world.store.begin().await.unwrap();
    let learnt = usage::run_times(&tx, &world.keys, T).await.unwrap();
    assert_eq!(learnt.keys().collect::<Vec<_>>(), ["long", "short"]);
    for (task, seconds) in [("short", 2.0), ("long", 30.0)] {
        assert!((learnt[task] / 1e6 / seconds - 1.0).abs() < 0.2, "{learnt:?}");
    }
}

#[tokio::test]
async fn each_tenant_gets_run_time_by_its_shares_however_long_its_jobs_are() {
    let mut world = World::new();
    // The costs of their jobs, which the worker does not know yet.
    let costs_s = BTreeMap::from([("a", 30), ("b", 1), ("c", 4)]);
    for (tenant, jobs) in [("a", 60), ("b", 900), ("c", 500)] {
        for n in 0..jobs {
            world.add_for(tenant, &format!("{tenant}{n:03}"), false).await;
        }
    }
    let worker = start(&world, 1, &[("a", 100), ("b", 100), ("c", 200)]).await;
    let mut ran_s = BTreeMap::<String, u64>::new();
    for _ in 0..600 {
        let run = world.next_run().await;
        let tenant = tenant(&run);
        let cost_s = costs_s[tenant.as_str()];
        end_after(&world, run, Duration::from_secs(cost_s)).await;
        *ran_s.entry(tenant).or_default() += cost_s;
    }
    let total: u64 = ran_s.values().sum();
    for (tenant, shard) in [("a", 1), ("b", 1), ("c", 2)] {
        // The tolerance is one job of the longest kind, plus the runs before their cost was known.
        assert!(ran_s[tenant].abs_diff(total * shard / 4) <= 40, "{ran_s:?}");
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn no_slot_is_free_while_a_job_waits() {
    let mut world = World::new();
    let worker = start(&world, 7, &[]).await;
    let mut running: Vec<Run> = Vec::new();
    let (mut rng, mut waiting) = (7_usize, 0_usize);
    for step in 0..400 {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let roll = (rng >> 33) % 100;
        // In the first half, more jobs than slots; in the second half, fewer.
        if roll < if step < 200 { 60 } else { 30 } {
            world.add_for(&format!("t{}", roll % 5), &format!("{step:03}"), false).await;
            waiting += 1;
        } else if !running.is_empty() {
            let run = running.remove(roll % running.len());
            end_after(&world, run, Duration::from_millis(roll as u64)).await;
        }
        while running.len() < 7 && waiting > 0 {
            running.push(world.next_run().await);
            waiting -= 1;
        }
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn changed_shares_count_at_once() {
    let mut world = World::new();
    for n in 0..60 {
        for tenant in ["a", "b"] {
            world.add_for(tenant, &format!("{tenant}{n:02}"), false).await;
        }
    }
    let worker = start(&world, 1, &[]).await;
    let ended = async |world: &mut World, jobs: usize| {
        let mut of_a = 0;
        for _ in 0..jobs {
            let run = world.next_run().await;
            of_a += usize::from(tenant(&run) == "a");
            end_after(world, run, Duration::from_secs(1)).await;
        }
        of_a
    };
    assert!(ended(&mut world, 20).await.abs_diff(10) <= 1);
    let tunables = worker.tunables().get();
    let shares = Arc::new([("a".to_owned(), 900)].into_iter().collect());
    worker.tunables().set(Tunables { fair: FairRules { shares, ..tunables.fair.clone() }, ..tunables });
    assert!(ended(&mut world, 40).await.abs_diff(36) <= 3);
    worker.shutdown().await;
}

#[tokio::test]
async fn run_time_before_a_change_of_settings_is_charged_in_full() {
    let mut world = World::new();
    world.add_for("a", "a1", false).await;
    let worker = start(&world, 1, &[]).await;
    let run = world.next_run().await;
    // Without rotation, the run is not charged yet.
    world.clock.advance(Duration::from_secs(50));
    world.settle().await;
    let tunables = worker.tunables().get();
    // One charge covers at most two such intervals.
    let rotation = RotationRules { interval: Duration::from_secs(1), ..RotationRules::default() };
    let fair = FairRules { rotation: Some(rotation), ..tunables.fair.clone() };
    worker.tunables().set(Tunables { fair, ..tunables });
    end_after(&world, run, Duration::from_millis(500)).await;
    let ended =
        |rows: &[(String, Charged)]| rows.iter().any(|(_, row)| row.service_us > 0 && row.running == 0);
    let charged = until_charged(&world, "a", ended).await;
    assert!((50_500_000..51_500_000).contains(&charged[0].1.service_us), "{charged:?}");
    worker.shutdown().await;
}

#[tokio::test]
async fn a_tenant_whose_queue_is_empty_for_a_while_is_not_listed_any_more() {
    let mut world = World::new();
    world.add_for("a", "a1", false).await;
    let worker = start(&world, 1, &[]).await;
    let waiting = async |world: &World| {
        let tx = world.store.begin().await.unwrap();
        let mut waiting = 0;
        tenants::each_waiting(&tx, &world.keys, T, None, (9, 9), |_, _| waiting += 1).await.unwrap();
        waiting
    };
    let run = world.next_run().await;
    assert_eq!(waiting(&world).await, 1, "not at once: the next job may come soon");
    let cleared = async {
        while waiting(&world).await == 1 {
            world.clock.advance(Duration::from_millis(300));
            world.settle().await;
        }
    };
    tokio::time::timeout(PATIENCE, cleared).await.expect("it is listed for ever");
    run.end(done());
    world.until_state("a1", State::Completed).await;
    world.add_for("a", "a2", false).await;
    assert_eq!(world.next_run().await.id, "a2");
    worker.shutdown().await;
}

#[tokio::test]
async fn a_worker_reads_the_charges_of_a_worker_that_died() {
    let mut world = World::new();
    for id in ["a1", "a2"] {
        world.add_for("a", id, false).await;
    }
    let worker = start(&world, 1, &[]).await;
    let run = world.next_run().await;
    end_after(&world, run, Duration::from_secs(100)).await;
    until_charged(&world, "a", |rows| rows.iter().any(|(_, row)| row.service_us > 0)).await;
    let _lost = world.next_run().await;
    drop(worker);
    world.add_for("a", "a3", false).await;
    world.add_for("b", "b1", false).await;
    let _worker = start(&world, 1, &[]).await;
    // The other jobs have waited for longer.
    assert_eq!(world.next_run().await.id, "b1");
}

#[tokio::test]
async fn a_tenant_whose_usage_has_decayed_has_no_row() {
    let mut world = World::new();
    world.add_for("a", "a1", false).await;
    let worker = start(&world, 1, &[]).await;
    let run = world.next_run().await;
    end_after(&world, run, Duration::from_secs(3)).await;
    let charged = until_charged(&world, "a", |rows| rows.iter().any(|(_, row)| row.service_us > 0)).await;
    assert!((3_000_000..4_000_000).contains(&charged[0].1.service_us), "{charged:?}");
    // Half of its usage remains after each minute: after twelve minutes less than a millisecond.
    let mut minutes = 0;
    while !rows(&world, "a").await.is_empty() {
        minutes += 1;
        assert!(minutes < 30, "{:?}", rows(&world, "a").await);
        for _ in 0..12 {
            world.clock.wait_for_sleeper(Duration::from_millis(1)).await;
            world.clock.advance(Duration::from_secs(5));
            world.settle().await;
        }
    }
    assert!(minutes >= 11, "after {minutes} minutes only");
    worker.shutdown().await;
}

#[tokio::test]
async fn jobs_that_start_together_are_spread_and_a_single_one_is_not() {
    let mut world = World::new();
    let rotation =
        RotationRules { startup_jitter: Duration::from_secs(3), max_churn: 1, ..RotationRules::default() };
    let fair = FairRules { rotation: Some(rotation), ..FairRules::default() };
    let worker =
        world.start_with(&world.store, tuned(Tunables { max_jobs: 60, fair, ..Tunables::default() })).await;
    world.add_for("a", "alone", true).await;
    let alone = world.next_run().await;
    worker.shutdown().await;
    drop(alone);
    for n in 0..40 {
        world.add_for("a", &format!("{n:02}"), true).await;
    }
    let fair = FairRules { rotation: Some(rotation), ..FairRules::default() };
    let worker =
        world.start_with(&world.store, tuned(Tunables { max_jobs: 60, fair, ..Tunables::default() })).await;
    // 41 jobs, claimed in as many passes as the store's limits require: at most 10 ms for each.
    world.until_state("39", State::Running).await;
    world.settle().await;
    let mut runs = Vec::new();
    while let Ok(run) = world.runs.try_recv() {
        runs.push(run);
    }
    assert!(runs.len() <= 8, "{} started at once", runs.len());
    world.clock.advance(Duration::from_millis(410));
    while runs.len() < 41 {
        runs.push(world.next_run().await);
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn the_server_that_records_the_end_of_an_external_run_charges_it() {
    let world = World::new();
    let external = || External::new(world.store.clone(), world.keys.clone(), Options::default());
    let accept = async |external: &External, worker: &str| {
        let leave = CancellationToken::new();
        common::accept(external, T, worker, (0, 1, INTERVAL), &leave).await.unwrap().remove(0)
    };
    let first = external();
    let worker = first.register(T, None, 3, None).await.unwrap().id;
    for id in ["a1", "a2"] {
        world.add_for("a", id, false).await;
    }
    let given = accept(&first, &worker).await;
    world.clock.advance(Duration::from_secs(4));
    let end = || ExternalEnd::completed(json("1"));
    first.end(T, &worker, &given.job.id, given.claim, end(), None).await.unwrap();
    let charger = workers::node_contender(&Options::default().node);
    let charged = until_charged(&world, "a", |rows| rows.iter().any(|(_, row)| row.service_us > 0)).await;
    assert_eq!(charged.len(), 1);
    assert_eq!((charged[0].0.as_str(), charged[0].1.service_us), (charger.as_str(), 4_000_000));
    // Repeating the same end does not charge it again.
    first.end(T, &worker, &given.job.id, given.claim, end(), None).await.unwrap();
    let leave = CancellationToken::new();
    let given =
        common::accept(&first, T, &worker, (given.claim, 1, INTERVAL), &leave).await.unwrap().remove(0);
    let started_us = given.job.started_us.unwrap();
    // Another server takes over: it knows from the record when the run began.
    drop(first);
    let second = external();
    world.clock.advance(Duration::from_secs(7));
    let now_us = turnwise_store::Runtime::now_us(&*world.clock);
    second.end(T, &worker, &given.job.id, given.claim, end(), None).await.unwrap();
    let ran_us = 4_000_000 + u64::try_from(now_us - started_us).unwrap();
    // It continues from the row once it has read it.
    leave.cancel();
    assert!(
        common::accept(&second, T, &worker, (given.claim, 1, INTERVAL), &leave).await.unwrap().is_empty()
    );
    let charged =
        until_charged(&world, "a", |rows| rows.iter().any(|(_, row)| row.service_us > 4_000_000)).await;
    assert_eq!((charged.len(), charged[0].1.service_us, charged[0].1.running), (1, ran_us, 0));
}

/// Two servers with one worker, and a job that the first server claimed and whose end the second one has recorded. Also
/// returns the claim, and the run time in µs.
async fn given_here_and_ended_there(world: &World) -> (External, External, String, u64, u64) {
    let (here, there) = (server(world, "here"), server(world, "there"));
    let worker = here.register(T, None, 3, None).await.unwrap().id;
    world.add_for("a", "a1", false).await;
    let leave = CancellationToken::new();
    let given = common::accept(&here, T, &worker, (0, 1, INTERVAL), &leave).await.unwrap().remove(0);
    until_charged(world, "a", |rows| rows.iter().any(|(_, row)| row.running == 1)).await;
    world.clock.advance(Duration::from_secs(4));
    let end = ExternalEnd::completed(json("1"));
    let ran_us = turnwise_store::Runtime::now_us(&*world.clock) - given.job.started_us.unwrap();
    there.end(T, &worker, "a1", given.claim, end, None).await.unwrap();
    (here, there, worker, given.claim, u64::try_from(ran_us).unwrap())
}

/// Waits for the written state in which the first server has no running job. Returns what the first and the second
/// server have charged, in µs.
async fn charged_here_and_there(world: &World) -> (u64, u64) {
    let of = |rows: &[(String, Charged)], node: &str| {
        let charger = workers::node_contender(node);
        rows.iter().find(|(name, _)| *name == charger).map(|(_, row)| row.clone())
    };
    let rows = until_charged(world, "a", |rows| {
        of(rows, "here").is_none_or(|row| row.running == 0)
            && of(rows, "there").is_some_and(|row| row.service_us > 0)
    });
    let rows = rows.await;
    // There is no row without charges.
    let charged_us = |node| of(&rows, node).map_or(0, |row| row.service_us);
    (charged_us("here"), charged_us("there"))
}

#[tokio::test]
async fn a_run_that_another_server_has_charged_is_not_charged_again_when_its_worker_leaves() {
    let world = World::new();
    let (here, _there, worker, _, ran_us) = given_here_and_ended_there(&world).await;
    world.clock.advance(Duration::from_secs(30));
    here.leave(T, &worker).await.unwrap();
    assert_eq!(charged_here_and_there(&world).await, (0, ran_us));
}

#[tokio::test]
async fn a_run_that_has_ended_elsewhere_does_not_count_for_long() {
    let world = World::new();
    let (here, _there, worker, claim, ran_us) = given_here_and_ended_there(&world).await;
    let leave = CancellationToken::new();
    leave.cancel();
    for _ in 0..2 {
        world.clock.advance(Duration::from_secs(6));
        assert!(common::accept(&here, T, &worker, (claim, 1, INTERVAL), &leave).await.unwrap().is_empty());
    }
    assert_eq!(charged_here_and_there(&world).await, (0, ran_us));
}

/// A server, as external workers use it.
fn server(world: &World, node: &str) -> External {
    let options = Options { node: node.to_owned(), ..Options::default() };
    External::new(world.store.clone(), world.keys.clone(), options)
}

/// Accepts up to `limit` jobs, without waiting.
async fn accept(external: &External, worker: &str, received: u64, limit: usize) -> Vec<Accepted> {
    let leave = CancellationToken::new();
    leave.cancel();
    common::accept(external, T, worker, (received, limit, INTERVAL), &leave).await.unwrap()
}

async fn end(external: &External, worker: &str, given: &Accepted) {
    let end = ExternalEnd::completed(json("1"));
    external.end(T, worker, &given.job.id, given.claim, end, None).await.unwrap();
}

/// Starts the monitor of a server.
fn monitor(world: &World, external: &External) -> CancellationToken {
    let stop = CancellationToken::new();
    let (store, keys) = (world.store.clone(), world.keys.clone());
    tokio::spawn(Monitor { store, keys, external: external.clone() }.run(stop.clone()));
    stop
}

/// The totals of all chargers: running jobs, µs in flight, µs of service.
async fn totals(world: &World, tenant: &str) -> (u64, f64, u64) {
    let rows = rows(world, tenant).await;
    rows.iter().fold((0, 0.0, 0), |(running, in_flight_us, service_us), (_, row)| {
        (running + row.running, in_flight_us + row.in_flight_us, service_us + row.service_us)
    })
}

/// Waits until the written totals are these, and checks that they stay.
async fn until_totals(world: &World, tenant: &str, expected: (u64, f64, u64)) {
    let written = async {
        while totals(world, tenant).await != expected {
            settle(world).await;
        }
    };
    if tokio::time::timeout(PATIENCE, written).await.is_ok() {
        settle(world).await;
    }
    assert_eq!(totals(world, tenant).await, expected);
}

/// Waits until all pending writes are done.
async fn settle(world: &World) {
    for _ in 0..5 {
        world.clock.advance(Duration::from_millis(300));
        world.settle().await;
    }
}

#[tokio::test]
async fn every_run_costs_at_least_the_minimum() {
    let mut world = World::new();
    for n in 0..100 {
        world.add_for("a", &format!("a{n}"), false).await;
    }
    let worker = start(&world, 1, &[]).await;
    for _ in 0..100 {
        let run = world.next_run().await;
        // No time passes by the clock.
        end_after(&world, run, Duration::ZERO).await;
    }
    worker.shutdown().await;
    assert_eq!(totals(&world, "a").await, (0, 0.0, 100_000));
    world.add_for("a", "last", false).await;
    let external = server(&world, "n");
    let worker = external.register(T, None, 1, None).await.unwrap().id;
    let given = accept(&external, &worker, 0, 1).await.remove(0);
    world.clock.advance(Duration::from_micros(400));
    end(&external, &worker, &given).await;
    until_totals(&world, "a", (0, 0.0, 101_000)).await;
}

#[tokio::test]
async fn the_row_of_a_long_run_is_seldom_written() {
    let world = World::new();
    world.add_for("a", "long", false).await;
    let external = server(&world, "n");
    let worker = external.register(T, None, 2, None).await.unwrap().id;
    // If there are other members that need them, rows are written immediately.
    server(&world, "other").register(T, None, 1, None).await.unwrap();
    let given = accept(&external, &worker, 0, 1).await.remove(0);
    let started_us = given.job.started_us.unwrap();
    let mut in_flight_us = Vec::new();
    for _ in 0..150 {
        world.clock.advance(Duration::from_secs(3));
        assert!(accept(&external, &worker, given.claim, 1).await.is_empty());
        settle(&world).await;
        in_flight_us.extend(rows(&world, "a").await.iter().map(|(_, row)| row.in_flight_us));
    }
    settle(&world).await;
    let ran_us = (turnwise_store::Runtime::now_us(&*world.clock) - started_us) as f64;
    let (running, last_us, _) = totals(&world, "a").await;
    assert!(running == 1 && last_us > ran_us * 0.75 && last_us <= ran_us * 1.5, "{last_us} of {ran_us}");
    in_flight_us.dedup();
    assert!((5..50).contains(&in_flight_us.len()), "{} rows", in_flight_us.len());
}

#[tokio::test]
async fn a_run_that_another_server_ended_is_forgotten_when_its_worker_requests_jobs() {
    let world = World::new();
    let (a, b) = (server(&world, "a"), server(&world, "b"));
    let worker = a.register(T, None, 40, None).await.unwrap().id;
    let mut received = 0;
    for round in 0..30 {
        for n in 0..10 {
            world.add_for("t", &format!("{round} {n}"), false).await;
        }
        let given = accept(&a, &worker, received, 10).await;
        assert_eq!(given.len(), 10);
        world.clock.advance(Duration::from_millis(10));
        for given in &given {
            end(&b, &worker, given).await;
            received = given.claim;
        }
    }
    // It holds no job, so none is sent again. Soon afterwards no server counts one.
    assert!(accept(&a, &worker, received, 1).await.is_empty());
    until_totals(&world, "t", (0, 0.0, 300 * 10_000)).await;
    // When the worker leaves, no run is left to be charged.
    b.leave(T, &worker).await.unwrap();
    until_totals(&world, "t", (0, 0.0, 300 * 10_000)).await;
}

#[tokio::test]
async fn a_run_that_another_server_ended_is_forgotten_even_if_its_worker_makes_no_request() {
    let world = World::new();
    let (a, b) = (server(&world, "a"), server(&world, "b"));
    let (busy, gone) =
        (a.register(T, None, 3, None).await.unwrap().id, a.register(T, None, 1, None).await.unwrap().id);
    for n in 0..4 {
        world.add_for("t", &format!("{n}"), false).await;
    }
    assert_eq!(accept(&a, &busy, 0, 3).await.len(), 3);
    let given = accept(&a, &gone, 0, 1).await.remove(0);
    world.clock.advance(Duration::from_secs(1));
    end(&b, &gone, &given).await;
    let running = async |running: u64| {
        until_charged(&world, "t", |rows| rows.iter().map(|(_, row)| row.running).sum::<u64>() == running)
            .await
    };
    // The other server was not informed.
    running(4).await;
    let _stop = monitor(&world, &a);
    for _ in 0..3 {
        world.tick(1).await;
        world.clock.wait_for_sleeper(DEFAULT_HEALTH_INTERVAL).await;
        // Both live.
        for worker in [&busy, &gone] {
            b.ping(T, worker).await.unwrap();
        }
    }
    // Three still run.
    running(3).await;
    assert_eq!(totals(&world, "t").await.2, 1_000_000);
}

#[tokio::test]
async fn the_server_that_removes_a_worker_charges_its_runs() {
    for restarted in [false, true] {
        let world = World::new();
        let (mut a, b) = (server(&world, "a"), server(&world, "b"));
        let worker = a.register(T, None, 60, None).await.unwrap().id;
        for n in 0..45 {
            world.add_for("t", &format!("{n:02}"), false).await;
        }
        let mut given = Vec::new();
        while given.len() < 45 {
            let received = given.last().map_or(0, |given: &Accepted| given.claim);
            given.extend(accept(&a, &worker, received, 45 - given.len()).await);
        }
        let began_us = turnwise_store::Runtime::now_us(&*world.clock);
        if restarted {
            a = server(&world, "a");
        }
        let _stop = monitor(&world, &b);
        for _ in 0..4 {
            world.tick(1).await;
            world.clock.wait_for_sleeper(DEFAULT_HEALTH_INTERVAL).await;
        }
        let ended_us = turnwise_store::Runtime::now_us(&*world.clock);
        assert!(world.workers().await.is_empty());
        // The server that gave them learns of it, and charges nothing.
        a.ping(T, &worker).await.unwrap_err();
        let ran_us = u64::try_from(45 * (ended_us - began_us)).unwrap();
        until_totals(&world, "t", (0, 0.0, ran_us)).await;
    }
}

#[tokio::test]
async fn a_worker_that_leaves_is_charged_once_whatever_server_it_uses() {
    let world = World::new();
    let (a, b) = (server(&world, "a"), server(&world, "b"));
    let worker = a.register(T, None, 2, None).await.unwrap().id;
    for id in ["1", "2"] {
        world.add_for("t", id, false).await;
    }
    let given = accept(&a, &worker, 0, 2).await;
    world.clock.advance(Duration::from_secs(2));
    // Both requests repeat an end: the second server's response is correct, and it charges nothing.
    end(&b, &worker, &given[0]).await;
    end(&a, &worker, &given[0]).await;
    world.clock.advance(Duration::from_secs(3));
    b.leave(T, &worker).await.unwrap();
    a.ping(T, &worker).await.unwrap_err();
    until_totals(&world, "t", (0, 0.0, 2_000_000 + 5_000_000)).await;
}
