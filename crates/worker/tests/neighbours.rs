//! Workers that monitor each other: several processes on one store, some of which die, pause or stop during a removal.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use turnwise_queue::{Context, Error, EventKind, Job, Keyspace, NewJob, State, jobs, workers};
use turnwise_store::Transaction;
use turnwise_worker::{JobContext, JobHandler, Options, Outcome, Worker};

use crate::common::{PATIENCE, T, World, done, slots};

/// The number of 5 s ticks in two health timeouts of 15 s.
const TWO_TIMEOUTS: usize = 6;
/// The number of ticks in the backoff of a lost worker's job: 30 s.
const BACKOFF_TICKS: usize = 6;

/// Ends a worker like a crash of its process.
async fn kill(worker: Worker) {
    drop(worker);
    // The runtime drops its tasks, and with them their sleepers, after a few turns.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

async fn ids_with_jobs(world: &World) -> Vec<String> {
    let tx = world.store.begin().await.unwrap();
    let active = turnwise_queue::jobs::active(&tx, &world.keys, T, 1_000).await.unwrap();
    active.into_iter().map(|(worker, _, _)| worker).collect()
}

async fn exists(world: &World, worker: &str) -> bool {
    world.run(async |tx, keys| workers::health(tx, keys, T, worker).await).await.is_some()
}

/// Waits until no row of a worker is left.
async fn until_gone(world: &World, worker: &str) {
    let key = world.keys.health(T, worker);
    let gone = async {
        while let Some(seen) = world.store.begin().await.unwrap().get(&key).await.unwrap() {
            world.store.watch(key.clone(), Some(seen)).await.unwrap().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("no neighbour removes the worker");
}

#[tokio::test]
async fn the_jobs_of_a_dead_worker_are_pending_again_within_two_timeouts_and_not_before_one() {
    let mut world = World::new();
    let dying = world.start_beside(&world.store, 1).await;
    world.add("a").await;
    let first = world.next_run().await;
    let old = world.workers().await.remove(0);
    let living = world.start_beside(&world.store, 1).await;
    // Both have pinged once.
    world.tick(2).await;
    world.clock.wait_for_sleepers(Options::default().health_interval, 2).await;
    kill(dying).await;
    // Two ticks, not three: if the worker pinged and was checked just before it died, a third tick completes its timeout.
    for _ in 0..2 {
        world.tick(1).await;
    }
    world.clock.wait_for_sleepers(Options::default().health_interval, 1).await;
    assert_eq!(world.get("a").await.unwrap().state(), State::Running, "removed before its timeout");
    for _ in 2..TWO_TIMEOUTS {
        world.tick(1).await;
    }
    world.until_state("a", State::Crashing).await;
    for _ in 0..BACKOFF_TICKS {
        world.tick(1).await;
    }
    let second = world.next_run().await;
    let lost = EventKind::Crashed { reason: format!("its worker {old} was lost") };
    assert_eq!((second.id.as_str(), &second.job.history[1].kind), ("a", &lost));
    assert_ne!(second.job.claim(), first.job.claim());
    second.end(done());
    world.until_state("a", State::Completed).await;
    assert!(!world.workers().await.contains(&old));
    living.shutdown().await;
}

#[tokio::test]
async fn many_deaths_at_once_are_found_as_fast_as_one() {
    let world = World::new();
    let living = world.start_beside(&world.store, 0).await;
    // Their ids come after the live worker's, and fill more than one window.
    let ghosts: Vec<String> = (0..100).map(|n| format!("ghost {n:03}")).collect();
    for ghost in &ghosts {
        world.ghost(ghost, &[&format!("job of {ghost}")]).await;
    }
    for _ in 0..TWO_TIMEOUTS {
        world.tick(1).await;
    }
    for ghost in &ghosts {
        world.until_state(&format!("job of {ghost}"), State::Crashing).await;
        until_gone(&world, ghost).await;
    }
    assert_eq!(world.workers().await.len(), 1);
    living.shutdown().await;
}

#[tokio::test]
async fn a_removal_that_another_worker_began_is_completed() {
    let world = World::new();
    let living = world.start_beside(&world.store, 0).await;
    world.ghost("ghost", &["a", "b", "c"]).await;
    let done =
        world.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 3, 20), "ghost", 1).await).await;
    assert!(!done);
    assert_eq!(ids_with_jobs(&world).await.len(), 2);
    for _ in 0..TWO_TIMEOUTS {
        world.tick(1).await;
    }
    until_gone(&world, "ghost").await;
    for (id, state) in [("a", State::Pending), ("b", State::Crashing), ("c", State::Crashing)] {
        assert_eq!(world.get(id).await.unwrap().state(), state, "{id}");
    }
    living.shutdown().await;
}

#[tokio::test]
async fn live_workers_do_not_remove_each_other() {
    let world = World::new();
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(world.start_beside(&world.store, 1).await);
    }
    let before = world.workers().await;
    for _ in 0..30 {
        world.tick(4).await;
    }
    world.clock.wait_for_sleepers(Options::default().health_interval, 4).await;
    assert_eq!(world.workers().await, before);
    for worker in workers {
        worker.shutdown().await;
    }
}

#[tokio::test]
async fn a_paused_worker_registers_under_a_new_id_and_does_not_change_its_old_jobs() {
    let mut world = World::new();
    let (store, faulty) = world.faulty();
    let paused = world.start_beside(&store, 1).await;
    let old = world.workers().await.remove(0);
    world.add("a").await;
    let first = world.next_run().await;
    let living = world.start_beside(&world.store, 1).await;
    faulty.pause(true);
    // Its first ping hangs in the pause.
    world.tick(2).await;
    for _ in 0..TWO_TIMEOUTS {
        world.tick(1).await;
    }
    world.until_state("a", State::Crashing).await;
    for _ in 0..BACKOFF_TICKS {
        world.tick(1).await;
    }
    let second = world.next_run().await;
    assert_eq!(second.id, "a");
    // The paused worker's handler ends; only then can the worker reach the store again.
    first.end(Outcome::Failed("by the stale run".into()));
    faulty.pause(false);
    let members = async {
        loop {
            let workers = world.workers().await;
            if workers.len() == 2 && !workers.contains(&old) {
                return;
            }
            let key = world.keys.workers_versionstamp(T);
            let seen = world.store.begin().await.unwrap().get(&key).await.unwrap();
            if world.workers().await == workers {
                world.store.watch(key, seen).await.unwrap().await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, members).await.expect("the paused worker did not start over");
    let job = world.get("a").await.unwrap();
    assert_eq!(
        (job.state(), job.claim()),
        (State::Running, second.job.claim()),
        "a stale claim changed something"
    );
    second.end(done());
    world.until_state("a", State::Completed).await;
    // It works under its new id.
    living.shutdown().await;
    world.add("b").await;
    let run = world.next_run().await;
    assert_eq!(run.id, "b");
    run.end(done());
    world.until_state("b", State::Completed).await;
    paused.shutdown().await;
}

#[tokio::test]
async fn neighbours_ignore_external_workers_and_do_not_rely_on_them() {
    let world = World::new();
    let living = world.start_beside(&world.store, 0).await;
    let row = workers::Worker { external: true, ..workers::Worker::new("external", "n", 0, 9) };
    world.run(async |tx, keys| workers::register(tx, keys, T, &row)).await;
    world.ghost("ghost", &["a"]).await;
    for _ in 0..2 * TWO_TIMEOUTS {
        world.tick(1).await;
    }
    until_gone(&world, "ghost").await;
    assert!(exists(&world, "external").await);
    living.shutdown().await;
}

#[tokio::test]
async fn the_owner_of_an_exclusive_store_removes_all_workers_except_external_ones() {
    let world = World::new();
    let external = |id| workers::Worker { external: true, ..workers::Worker::new(id, "n", 0, 9) };
    for id in ["external", "half removed"] {
        world.run(async |tx, keys| workers::register(tx, keys, T, &external(id))).await;
    }
    world.ghost("ghost", &["a", "b"]).await;
    let claim = turnwise_queue::Claim { worker: "half removed".into(), number: 1 };
    for id in ["c", "d"] {
        world.add(id).await;
        world
            .run(async |tx, keys| {
                turnwise_queue::claims::claim(Context::new(tx, keys, T, 2, 20), id, &claim).await
            })
            .await;
    }
    assert!(
        !world
            .run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 3, 20), "half removed", 1).await)
            .await
    );
    let worker = world.start(0).await;
    assert!(exists(&world, "external").await);
    for id in ["ghost", "half removed"] {
        assert!(!exists(&world, id).await, "{id}");
    }
    for (id, state) in
        [("a", State::Crashing), ("b", State::Crashing), ("c", State::Pending), ("d", State::Crashing)]
    {
        assert_eq!(world.get(id).await.unwrap().state(), state, "{id}");
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn a_worker_sends_heartbeats_while_its_handlers_stop_slowly() {
    let mut world = World::new();
    let grace = Duration::from_secs(60);
    let options = Options { stop_grace: grace, ..slots(1) };
    let slow = world.start_with(&world.store, options).await;
    world.add("a").await;
    let run = world.next_run().await;
    let (hangs, hanging) = tokio::sync::oneshot::channel();
    assert!(run.instruction.send(crate::common::Instruction::Hang(hangs)).is_ok());
    hanging.await.unwrap();
    let old = world.workers().await.remove(0);
    let health = async || {
        world
            .run(async |tx, keys| workers::health(tx, keys, T, &old).await)
            .await
            .map(|health| health.counter)
    };
    let leaving = tokio::spawn(slow.shutdown());
    // The handler's grace period, the shutdown's deadline, and the next ping.
    for n in 1..6 {
        world.tick(3).await;
        world.clock.wait_for_sleepers(Options::default().health_interval, 3).await;
        assert_eq!(health().await, Some(n));
    }
    world.clock.advance(grace);
    leaving.await.unwrap();
    assert_eq!(health().await, None);
}

#[tokio::test]
async fn a_worker_that_is_never_idle_sends_heartbeats() {
    let world = World::new();
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let ended = tokio::sync::watch::Sender::new(0);
    let handler = Endless { ended: ended.clone() };
    for n in 0..100 {
        world.add(&format!("{n}")).await;
    }
    let options = Options { exclusive: true, ..slots(50) };
    let worker = Worker::start(store, keys, T, Arc::new(handler), options).await.unwrap();
    let id = world.workers().await.remove(0);
    world.clock.wait_for_sleeper(Options::default().health_interval).await;
    world.clock.advance(Options::default().health_interval);
    // Far more ends than it can have processed in one step.
    let before = *ended.borrow();
    ended.subscribe().wait_for(|ended| *ended >= before + 1_000).await.unwrap();
    let health = world.run(async |tx, keys| workers::health(tx, keys, T, &id).await).await;
    assert_eq!(health.unwrap().counter, 1, "no ping while it works");
    drop(worker);
}

/// Its jobs end immediately, and their ends add them again.
struct Endless {
    ended: tokio::sync::watch::Sender<usize>,
}

#[async_trait]
impl JobHandler for Endless {
    async fn run(&self, _: JobContext) -> Outcome {
        done()
    }

    async fn ended(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        job: Option<&Job>,
    ) -> turnwise_queue::Result<()> {
        self.ended.send_modify(|ended| *ended += 1);
        let again = NewJob::new(T, &job.unwrap().id, crate::common::json("{}"));
        jobs::add(tx, keys, &again, 9).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_health_interval_that_is_too_long_is_refused_with_the_correct_value() {
    let world = World::new();
    for (interval_s, timeout_s) in [(0, 15), (8, 15), (15, 15)] {
        let options = Options {
            health_interval: Duration::from_secs(interval_s),
            health_timeout: Duration::from_secs(timeout_s),
            ..Options::default()
        };
        let (store, keys) = (world.store.clone(), world.keys.clone());
        let started = Worker::start(store, keys, T, world.handler.clone(), options).await;
        let Err(Error::Invalid { field, .. }) = started else {
            panic!("{interval_s} of {timeout_s} is taken")
        };
        assert_eq!(field, "health_interval");
    }
    assert_eq!(world.workers().await.len(), 0);
}
