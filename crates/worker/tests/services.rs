//! The services that a server runs beside its workers: the monitor of external workers, and the retention of ended
//! jobs.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_queue::claims::{Ending, Report};
use turnwise_queue::output::{self, Level};
use turnwise_queue::{
    After, Claim, Context, Lifetime, LogLine, NewJob, RunKey, State, StatedTerms, claims, jobs, types,
    workers,
};
use turnwise_store::Runtime;
use turnwise_worker::{
    DEFAULT_HEALTH_INTERVAL, External, LOG_SWEEP_INTERVAL, Live, LogBounds, Monitor, Options, Retention,
    RetentionOptions, settle_dependencies, settle_lifetimes,
};

use crate::common::faulty::Fault;
use crate::common::{PATIENCE, T, World, accept, json};

/// A day, in µs.
const DAY_US: i64 = 24 * 60 * 60 * 1_000_000;

fn external(world: &World) -> External {
    External::new(world.store.clone(), world.keys.clone(), Options::default())
}

/// Starts the monitor of a server.
fn monitor(world: &World) -> CancellationToken {
    let stop = CancellationToken::new();
    let (store, keys) = (world.store.clone(), world.keys.clone());
    tokio::spawn(Monitor { store, keys, external: external(world) }.run(stop.clone()));
    stop
}

async fn exists(world: &World, job_type: &str, worker: &str) -> bool {
    world.run(async |tx, keys| workers::health(tx, keys, job_type, worker).await).await.is_some()
}

/// Waits for the end of the monitor's check that the latest tick began.
async fn checked(world: &World) {
    let wait = world.clock.wait_for_sleeper(DEFAULT_HEALTH_INTERVAL);
    tokio::time::timeout(PATIENCE, wait).await.expect("the monitor does not go on");
}

#[tokio::test]
async fn external_workers_of_all_types_that_miss_their_heartbeats_are_removed_within_two_timeouts() {
    let world = World::new();
    let external = external(&world);
    let silent = external.register(T, None, 1, None).await.unwrap().id;
    let other = external.register("other", None, 1, None).await.unwrap().id;
    let lively = external.register(T, None, 1, None).await.unwrap().id;
    let inner = workers::Worker::new("in a process", "n", 0, 1);
    world.run(async |tx, keys| workers::register(tx, keys, T, &inner)).await;
    world.add("a").await;
    let leave = CancellationToken::new();
    accept(&external, T, &silent, (0, 1, PATIENCE), &leave).await.unwrap();
    let _stop = monitor(&world);
    for tick in 0..12 {
        world.tick(1).await;
        checked(&world).await;
        external.ping(T, &lively).await.unwrap();
        // It gives each worker a full timeout from its first check on.
        let gone = tick >= 3;
        assert_eq!(exists(&world, T, &silent).await, !gone, "tick {tick}");
        assert_eq!(exists(&world, "other", &other).await, !gone, "tick {tick}");
        // This worker's neighbours would remove it earlier, if there were any.
        assert_eq!(exists(&world, T, "in a process").await, tick < 6, "tick {tick}");
    }
    assert_eq!(world.get("a").await.unwrap().state(), State::Crashing);
    assert!(exists(&world, T, &lively).await);
}

#[tokio::test]
async fn a_server_that_has_just_started_gives_each_worker_a_full_timeout() {
    let world = World::new();
    let external = external(&world);
    let worker = external.register(T, None, 1, None).await.unwrap().id;
    let first = monitor(&world);
    for _ in 0..3 {
        world.tick(1).await;
        checked(&world).await;
    }
    first.cancel();
    // The restart takes long, and the worker cannot ping meanwhile.
    world.clock.advance(Duration::from_secs(3_600));
    let _second = monitor(&world);
    for _ in 0..3 {
        world.tick(1).await;
        checked(&world).await;
        assert!(exists(&world, T, &worker).await);
    }
    world.tick(1).await;
    checked(&world).await;
    assert!(!exists(&world, T, &worker).await);
}

#[tokio::test]
async fn no_worker_is_removed_while_none_can_send_heartbeats() {
    let world = World::new();
    let external = external(&world);
    let worker = external.register(T, None, 1, None).await.unwrap().id;
    let (store, faulty) = world.faulty();
    let commit = async || {
        let tx = store.begin().await.unwrap();
        tx.set("mark".into(), "x".into()).unwrap();
        tx.commit().await.is_ok()
    };
    let stop = CancellationToken::new();
    let monitor = Monitor { store: store.clone(), keys: world.keys.clone(), external: external.clone() };
    tokio::spawn(monitor.run(stop.clone()));
    for tick in 0..12 {
        // Reads still succeed.
        faulty.fail(Fault::Lost, "mark");
        assert!(!commit().await);
        world.tick(1).await;
        checked(&world).await;
        assert!(exists(&world, T, &worker).await, "tick {tick}");
    }
    assert!(commit().await);
    for tick in 0..4 {
        world.tick(1).await;
        checked(&world).await;
        assert_eq!(exists(&world, T, &worker).await, tick < 3, "tick {tick}");
    }
    // An old failure without any later attempt proves nothing.
    let second = external.register(T, None, 1, None).await.unwrap().id;
    faulty.fail(Fault::Lost, "mark");
    assert!(!commit().await);
    for _ in 0..5 {
        world.tick(1).await;
        checked(&world).await;
    }
    assert!(!exists(&world, T, &second).await);
    stop.cancel();
}

/// The number of types with jobs: more than any single read returns, or any earlier limit on types.
const TYPES: usize = 10_400;
/// The last one by name.
const LAST: &str = "type-z";

/// Calls `body` for each type.
async fn of_each_type(
    world: &World,
    body: impl AsyncFn(&turnwise_store::Transaction, &turnwise_queue::Keyspace, &str),
) {
    for some in (0..TYPES).collect::<Vec<_>>().chunks(50) {
        let all = async |tx: &turnwise_store::Transaction, keys: &turnwise_queue::Keyspace| {
            for n in some {
                body(tx, keys, &format!("type-{n:05}")).await;
            }
            Ok(())
        };
        world.run(all).await;
    }
}

#[tokio::test]
async fn a_worker_of_the_last_of_many_types_is_removed() {
    let world = World::new();
    let external = external(&world);
    let patient = workers::Worker {
        external: true,
        health_timeout_us: 3_600_000_000,
        ..workers::Worker::new("patient", "n", 0, 1)
    };
    of_each_type(&world, async |tx, keys, job_type| {
        workers::register(tx, keys, job_type, &patient).unwrap();
    })
    .await;
    let silent = external.register(LAST, None, 1, None).await.unwrap().id;
    world.run(async |tx, keys| jobs::add(tx, keys, &NewJob::new(LAST, "a", json("{}")), 1).await).await;
    let leave = CancellationToken::new();
    assert_eq!(accept(&external, LAST, &silent, (0, 1, PATIENCE), &leave).await.unwrap().len(), 1);
    let stop = monitor(&world);
    for _ in 0..4 {
        world.tick(1).await;
        checked(&world).await;
    }
    assert!(!exists(&world, LAST, &silent).await);
    assert!(exists(&world, "type-00000", "patient").await);
    let job = world.run(async |tx, keys| jobs::get(tx, keys, LAST, "a").await).await.unwrap();
    assert_eq!(job.state(), State::Crashing);
    stop.cancel();
}

#[tokio::test]
async fn a_removal_of_an_external_worker_that_was_interrupted_is_completed() {
    let world = World::new();
    let external = external(&world);
    let worker = external.register(T, None, 5, None).await.unwrap().id;
    for id in ["a", "b", "c"] {
        world.add(id).await;
    }
    let leave = CancellationToken::new();
    assert_eq!(accept(&external, T, &worker, (0, 5, PATIENCE), &leave).await.unwrap().len(), 3);
    assert!(
        !world
            .run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 3, 20), &worker, 1).await)
            .await
    );
    let _stop = monitor(&world);
    for _ in 0..4 {
        world.tick(1).await;
        checked(&world).await;
    }
    assert!(!exists(&world, T, &worker).await);
    for (id, state) in [("a", State::Pending), ("b", State::Crashing), ("c", State::Crashing)] {
        assert_eq!(world.get(id).await.unwrap().state(), state, "{id}");
    }
}

/// Ends a job at `at_us`.
async fn ended(world: &World, job_type: &str, id: &str, at_us: i64) {
    let worker = workers::Worker::new("w", "n", 0, 1);
    let claim = Claim { worker: "w".into(), number: 1 };
    let new = NewJob::new(job_type, id, json("{}"));
    let end = Ending::completed(json("1"));
    world
        .run(async |tx, keys| {
            workers::register(tx, keys, job_type, &worker)?;
            jobs::add(tx, keys, &new, at_us).await?;
            claims::claim(Context::new(tx, keys, job_type, at_us, 20), id, &claim).await?;
            claims::end(Context::new(tx, keys, job_type, at_us, 20), id, &claim, &end, None, None).await
        })
        .await;
}

async fn left(world: &World, job_type: &str) -> Vec<String> {
    let jobs = world.run(async |tx, keys| jobs::list(tx, keys, job_type, None, 9_999).await).await;
    jobs.into_iter().map(|job| job.into_fields().id).collect()
}

#[tokio::test]
async fn jobs_that_ended_long_ago_are_removed_and_no_others() {
    let world = World::new();
    world.clock.advance(Duration::from_secs(30 * 24 * 60 * 60));
    let now_us = world.clock.now_us();
    // More than one batch of one type, and a few of another.
    for n in 0..450 {
        ended(&world, T, &format!("old {n:03}"), now_us - 8 * DAY_US).await;
    }
    ended(&world, T, "young", now_us - 6 * DAY_US).await;
    ended(&world, "other", "old", now_us - 8 * DAY_US).await;
    world.run(async |tx, keys| jobs::add(tx, keys, &NewJob::new(T, "pending", json("{}")), 1).await).await;
    let options = Live::from(RetentionOptions::default());
    let interval = options.get().interval;
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let stop = CancellationToken::new();
    let service = tokio::spawn(Retention { store, keys, options: options.clone() }.run(stop.clone()));
    let pass_done = async || {
        let wait = world.clock.wait_for_sleeper(interval);
        tokio::time::timeout(PATIENCE, wait).await.expect("the pass does not end");
    };
    pass_done().await;
    assert_eq!(left(&world, T).await, ["pending", "young"]);
    assert_eq!(left(&world, "other").await, [""; 0]);
    // It becomes old.
    world.clock.advance(Duration::from_secs(2 * 24 * 60 * 60));
    pass_done().await;
    assert_eq!(left(&world, T).await, ["pending"]);
    // The shorter time takes effect immediately.
    ended(&world, T, "just ended", world.clock.now_us() - 1).await;
    options.set(RetentionOptions { retention: Duration::ZERO, ..options.get() });
    let removed = async {
        while left(&world, T).await != ["pending"] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, removed).await.expect("it is not removed");
    stop.cancel();
    service.await.unwrap();
}

/// The oldest logs of a tenant above its bound go, and those of others stay.
#[tokio::test]
async fn a_tenant_keeps_no_more_log_than_its_bound() {
    let world = World::new();
    let worker = workers::Worker::new("w", "n", 0, 1);
    world.run(async |tx, keys| workers::register(tx, keys, T, &worker)).await;
    let line = |n: usize| LogLine {
        at_us: 1,
        level: Level::Info,
        message: format!("{n} {}", "x".repeat(2_000)),
        fields: None,
    };
    let lines: Vec<LogLine> = (0..100).map(line).collect();
    // 200 kB each. The oldest one of the tenant logs again.
    for (n, tenant) in ["large", "large", "large", "small", "large", "large"].into_iter().enumerate() {
        let (id, claim) = (&n.to_string(), Claim { worker: "w".into(), number: n as u64 + 1 });
        let new = NewJob::new(T, id.as_str(), json("{}")).with(|spec| spec.tenant = tenant.into());
        let (at_us, report) = (10 + n as i64, Report { log: &lines, ..Report::default() });
        world
            .run(async |tx, keys| {
                jobs::add(tx, keys, &new, 1).await?;
                claims::claim(Context::new(tx, keys, T, 2, 20), id, &claim).await?;
                claims::report(tx, keys, RunKey::new(T, id, &claim), report, at_us).await
            })
            .await;
    }
    let claim = Claim { worker: "w".into(), number: 1 };
    let report = Report { log: &lines[..1], ..Report::default() };
    world.run(async |tx, keys| claims::report(tx, keys, RunKey::new(T, "0", &claim), report, 99).await).await;
    let options = RetentionOptions { tenant_log_bytes: 500_000, ..RetentionOptions::default() };
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let stop = CancellationToken::new();
    let bounds = LogBounds { store, keys, node: "n".into(), options: options.into() };
    let service = tokio::spawn(bounds.run(stop.clone()));
    let swept = world.clock.wait_for_sleeper(LOG_SWEEP_INTERVAL);
    tokio::time::timeout(PATIENCE, swept).await.expect("the sweep does not end");
    let mut kept = Vec::new();
    for n in 0..6 {
        let id = n.to_string();
        let page = output::lines(&world.store.begin().await.unwrap(), &world.keys, (T, &id), 0, 1_000)
            .await
            .unwrap();
        assert_eq!(page.first + page.lines.len() as u64, page.next);
        kept.push((page.first, page.lines.len()));
    }
    assert_eq!(kept, [(0, 101), (100, 0), (100, 0), (0, 100), (100, 0), (0, 100)]);
    stop.cancel();
    service.await.unwrap();
}

#[tokio::test]
async fn a_type_states_how_long_its_records_are_kept() {
    let world = World::new();
    world.clock.advance(Duration::from_secs(30 * 24 * 60 * 60));
    let lifetime = Lifetime { keep_us: Some(DAY_US), ..Lifetime::default() };
    let terms = StatedTerms { lifetime, ..StatedTerms::default() };
    let stated = types::TypeTerms { terms, ..types::TypeTerms::default() };
    world.run(async |tx, keys| types::put_terms(tx, keys, T, &stated).await).await;
    let now_us = world.clock.now_us();
    for job_type in [T, "other"] {
        ended(&world, job_type, "two days old", now_us - 2 * DAY_US).await;
        ended(&world, job_type, "young", now_us - DAY_US / 2).await;
    }
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let stop = CancellationToken::new();
    let options: Live<RetentionOptions> = RetentionOptions::default().into();
    let interval = options.get().interval;
    let service = tokio::spawn(Retention { store, keys, options }.run(stop.clone()));
    tokio::time::timeout(PATIENCE, world.clock.wait_for_sleeper(interval))
        .await
        .expect("the pass does not end");
    assert_eq!(left(&world, T).await, ["young"]);
    assert_eq!(left(&world, "other").await, ["two days old", "young"]);
    stop.cancel();
    service.await.unwrap();
}

#[tokio::test]
async fn a_clock_that_jumps_does_not_end_the_jobs_of_the_time_that_it_skips() {
    let world = World::new();
    let add = async |id: &str, within_s: i64| {
        let lifetime = Lifetime { start_within_us: Some(within_s * 1_000_000), keep_us: None };
        let new = NewJob::new(T, id, json("{}")).with(|spec| spec.lifetime = lifetime);
        let now_us = world.clock.now_us();
        world.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await).await;
    };
    let state =
        async |id: &str| world.run(async |tx, keys| jobs::get(tx, keys, T, id).await).await.unwrap().state();
    let stop = CancellationToken::new();
    let service = tokio::spawn(settle_lifetimes((world.store.clone(), world.keys.clone()), stop.clone()));
    let round = async || {
        let second = Duration::from_secs(1);
        tokio::time::timeout(PATIENCE, world.clock.wait_for_sleeper(second)).await.expect("no round");
        world.clock.advance(second);
        tokio::time::timeout(PATIENCE, world.clock.wait_for_sleeper(second)).await.expect("no round");
    };
    add("soon", 3).await;
    for _ in 0..5 {
        round().await;
    }
    assert_eq!(state("soon").await, State::Failed);
    add("later", 3_600).await;
    world.clock.advance(Duration::from_secs(7_200));
    for _ in 0..30 {
        round().await;
    }
    assert_eq!(state("later").await, State::Pending);
    // The clock was right: the job is really too late.
    for _ in 0..40 {
        round().await;
    }
    assert_eq!(state("later").await, State::Failed);
    stop.cancel();
    service.await.unwrap();
}

#[tokio::test]
async fn jobs_of_the_last_of_many_types_are_removed() {
    let world = World::new();
    world.clock.advance(Duration::from_secs(30 * 24 * 60 * 60));
    of_each_type(&world, async |tx, keys, job_type| {
        jobs::add(tx, keys, &NewJob::new(job_type, "pending", json("{}")), 1).await.unwrap();
    })
    .await;
    ended(&world, LAST, "old", 1).await;
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let stop = CancellationToken::new();
    let options = Live::from(RetentionOptions::default());
    let service = tokio::spawn(Retention { store, keys, options }.run(stop.clone()));
    // A pass covers some of the types, and the next one follows a second later.
    let removed = async {
        while !left(&world, LAST).await.is_empty() {
            world.clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, removed).await.expect("it is not removed");
    stop.cancel();
    service.await.unwrap();
}

#[tokio::test]
async fn a_server_releases_dependents_that_an_end_could_not_release() {
    let world = World::new();
    let stop = CancellationToken::new();
    tokio::spawn(settle_dependencies((world.store.clone(), world.keys.clone()), stop.clone()));
    world.add("a").await;
    let waiting = NewJob { after: vec![After::completed(T, "a")], ..NewJob::new(T, "b", json("{}")) };
    world.run(async |tx, keys| jobs::add(tx, keys, &waiting, 1).await).await;
    let (store, keys) = (&world.store, &world.keys);
    let row = keys.job(T, "b");
    let tx = store.begin().await.unwrap();
    let seen = tx.get(&row).await.unwrap();
    let released = store.watch(row, seen).await.unwrap();
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
    tokio::time::timeout(PATIENCE, released).await.expect("the dependent is not released");
    let job = world.get("b").await.unwrap();
    assert_eq!((job.state(), job.reason().unwrap().contains("was removed")), (State::Cancelled, true));
    stop.cancel();
}
