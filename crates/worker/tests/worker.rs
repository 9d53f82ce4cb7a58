//! The worker's loop against the embedded store: real tasks, and a clock that only the test moves.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use turnwise_policy::backoff;
use turnwise_queue::{Context, EventKind, State, jobs, workers};
use turnwise_worker::{Options, Outcome, Tunables};

use crate::common::{Instruction, PATIENCE, T, World, done};

#[tokio::test]
async fn a_job_added_later_is_started_at_once_and_completes() {
    let mut world = World::new();
    let worker = world.start(10).await;
    world.add("a").await;
    let run = world.next_run().await;
    assert_eq!(run.id, "a");
    run.end(Outcome::completed(&serde_json::json!({ "answer": 42 })));
    let job = world.until_state("a", State::Completed).await;
    assert_eq!(job.result.as_ref().unwrap().get(), r#"{"answer":42}"#);
    let hook = world.store.begin().await.unwrap().get(&"hook".into()).await.unwrap();
    assert_eq!(hook.unwrap(), "Completed", "the handler's rows are written with the end");
    worker.shutdown().await;
}

#[tokio::test]
async fn no_more_than_max_jobs_run_and_a_free_slot_is_filled_at_once() {
    let mut world = World::new();
    for n in 0..10 {
        world.add(&n.to_string()).await;
    }
    let worker = world.start(3).await;
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(world.next_run().await);
    }
    for _ in 3..10 {
        running.remove(0).end(done());
        running.push(world.next_run().await);
    }
    for run in running {
        let id = run.id.clone();
        run.end(done());
        world.until_state(&id, State::Completed).await;
    }
    assert_eq!(world.handler.most_running.load(SeqCst), 3);
    worker.shutdown().await;
}

#[tokio::test]
async fn many_jobs_at_once_all_end() {
    let mut world = World::new();
    let worker = world.start(200).await;
    for n in 0..500 {
        world.add(&format!("{n:03}")).await;
    }
    for _ in 0..500 {
        world.next_run().await.end(done());
    }
    for n in 0..500 {
        world.until_state(&format!("{n:03}"), State::Completed).await;
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn a_crashed_job_runs_again_after_its_backoff_and_not_before() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    for (crashes, backoff_s) in [(1, 30), (2, 60), (3, 120)] {
        world.next_run().await.end(Outcome::Crashed("peer is down".into()));
        let job = world.until_state("a", State::Crashing).await;
        assert_eq!((job.crashes, job.reason()), (crashes, Some("peer is down")));
        world.clock.wait_for_sleeper(Duration::from_secs(backoff_s)).await;
        world.clock.advance(Duration::from_secs(backoff_s) - Duration::from_micros(1));
        // Another job starts and ends: the worker has made passes, and has not started the crashed one.
        world.add("b").await;
        let run = world.next_run().await;
        assert_eq!(run.id, "b");
        run.end(done());
        world.until_state("b", State::Completed).await;
        world.clock.advance(Duration::from_micros(1));
    }
    let run = world.next_run().await;
    assert_eq!(run.job.crashes, 3);
    // It runs for longer than the health threshold: the next crash is again the first of consecutive ones.
    world.clock.advance(Duration::from_secs(121));
    run.end(Outcome::Crashed("again".into()));
    let job = world.until_state("a", State::Crashing).await;
    assert_eq!(job.crashes, 1);
    worker.shutdown().await;
}

#[tokio::test]
async fn a_crash_waits_for_the_backoff_that_applied_when_its_run_started() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    let run = world.next_run().await;
    let backoff = backoff::Rules { base_us: 7_000_000, ..backoff::Rules::default() };
    worker.tunables().set(Tunables { backoff, ..worker.tunables().get() });
    run.end(Outcome::Crashed("peer is down".into()));
    let job = world.until_state("a", State::Crashing).await;
    assert_eq!(job.order_us() - job.changed_us, 30_000_000);
    // The next run starts with the new one.
    world.clock.wait_for_sleeper(Duration::from_secs(30)).await;
    world.clock.advance(Duration::from_secs(30));
    world.next_run().await.end(Outcome::Crashed("peer is down".into()));
    let job = world.until("a", |job| job.crashes == 2).await;
    assert_eq!(job.order_us() - job.changed_us, 14_000_000);
    worker.shutdown().await;
}

#[tokio::test]
async fn a_panic_is_a_crash_with_its_message_as_the_reason() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    let _ = world.next_run().await.instruction.send(Instruction::Panic);
    let job = world.until_state("a", State::Crashing).await;
    assert_eq!(job.reason(), Some("the handler panicked: the roof is on fire"));
    worker.shutdown().await;
}

#[tokio::test]
async fn a_failed_job_is_not_tried_again() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    world.next_run().await.end(Outcome::Failed("nonsense".into()));
    let job = world.until_state("a", State::Failed).await;
    assert_eq!(job.reason(), Some("nonsense"));
    worker.shutdown().await;
}

#[tokio::test]
async fn a_result_that_is_too_large_fails_the_job_instead_of_hanging_it() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    world.next_run().await.end(Outcome::completed(&"x".repeat(1 << 20)));
    let job = world.until_state("a", State::Failed).await;
    assert!(job.reason().unwrap().contains("at most"), "{:?}", job.reason());
    worker.shutdown().await;
}

#[tokio::test]
async fn a_cancelled_job_stops() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    let _run = world.next_run().await;
    world.cancel("a").await;
    world.until_state("a", State::Cancelled).await;
    worker.shutdown().await;
}

#[tokio::test]
async fn a_handler_that_does_not_stop_is_aborted_after_its_grace_period() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    let run = world.next_run().await;
    let (hangs, hanging) = tokio::sync::oneshot::channel();
    assert!(run.instruction.send(Instruction::Hang(hangs)).is_ok());
    hanging.await.unwrap();
    world.cancel("a").await;
    let grace = Options::default().stop_grace;
    loop {
        let cancelled = world.get("a").await.is_some_and(|job| job.state() == State::Cancelled);
        if cancelled {
            break;
        }
        world.clock.advance(grace);
        tokio::task::yield_now().await;
    }
    assert_eq!(world.handler.running.load(SeqCst), 0);
    worker.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_gives_every_job_back_and_leaves_no_worker_row() {
    let mut world = World::new();
    let worker = world.start(10).await;
    for id in ["a", "b", "c"] {
        world.add(id).await;
    }
    let runs = [world.next_run().await, world.next_run().await, world.next_run().await];
    assert_eq!(world.workers().await.len(), 1);
    worker.shutdown().await;
    drop(runs);
    assert_eq!(world.workers().await, Vec::<String>::new());
    for id in ["a", "b", "c"] {
        let job = world.get(id).await.unwrap();
        let stopped = EventKind::Stopped { reason: Some("its worker shuts down".into()) };
        assert_eq!((job.state(), &job.history[0].kind), (State::Pending, &stopped));
    }
    let tx = world.store.begin().await.unwrap();
    for prefix in
        [world.keys.active(T), world.keys.workers(T), (world.keys.health(T, ""), world.keys.health(T, "~"))]
    {
        assert_eq!(tx.range(&prefix, 10).await.unwrap(), []);
    }
}

#[tokio::test]
async fn the_jobs_of_a_worker_that_died_run_again_under_a_new_one() {
    let mut world = World::new();
    let worker = world.start(10).await;
    world.add("a").await;
    let mut first = world.next_run().await;
    let old = world.workers().await;
    drop(worker);
    first.instruction.closed().await;
    let worker = world.start(10).await;
    world.clock.wait_for_sleeper(Duration::from_secs(30)).await;
    world.clock.advance(Duration::from_secs(30));
    let second = world.next_run().await;
    assert_eq!(second.id, "a");
    assert_ne!(second.job.claim(), first.job.claim());
    second.end(done());
    let job = world.until("a", |job| job.state().is_final());
    assert_eq!(job.await.state(), State::Completed);
    let new = world.workers().await;
    assert!(new.len() == 1 && old.len() == 1 && new != old, "{old:?} {new:?}");
    worker.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_was_removed_stops_its_jobs_and_starts_over_under_a_new_id() {
    let mut world = World::new();
    let worker = world.start(10).await;
    world.add("a").await;
    let first = world.next_run().await;
    let old = world.workers().await.remove(0);
    let (keys, id) = (&world.keys, &old);
    world
        .store
        .transact(|tx| async move { workers::remove(Context::new(&tx, keys, T, 7, 20), id, 10).await })
        .await
        .unwrap();
    world.clock.wait_for_sleeper(Options::default().health_interval).await;
    world.clock.advance(Options::default().health_interval);
    let second = world.next_run().await;
    assert_eq!(second.id, "a");
    assert!(first.instruction.is_closed(), "the old run still goes on");
    let new = world.workers().await;
    assert!(new.len() == 1 && new[0] != old);
    second.end(done());
    world.until_state("a", State::Completed).await;
    worker.shutdown().await;
}

#[tokio::test]
async fn reports_are_written_while_the_job_runs_and_kept_when_it_stops() {
    let mut world = World::new();
    let worker = world.start(1).await;
    world.add("a").await;
    let run = world.next_run().await;
    assert!(run.instruction.send(Instruction::Report(7)).is_ok());
    let reported = async {
        loop {
            let tx = world.store.begin().await.unwrap();
            let active = jobs::active(&tx, &world.keys, T, 10).await.unwrap();
            if active
                .iter()
                .any(|(_, _, report)| report.info.as_ref().is_some_and(|info| info.get() == r#"{"n":7}"#))
            {
                return;
            }
            world.clock.advance(Options::default().report_interval);
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, reported).await.expect("the report was never written");
    worker.shutdown().await;
    assert_eq!(world.get("a").await.unwrap().into_fields().info.unwrap().get(), r#"{"n":7}"#);
}

#[tokio::test]
async fn the_health_counter_moves() {
    let world = World::new();
    let worker = world.start(1).await;
    let id = world.workers().await.remove(0);
    let health = world.keys.health(T, &id);
    for _ in 0..3 {
        let seen = world.store.begin().await.unwrap().get(&health).await.unwrap();
        world.clock.wait_for_sleeper(Options::default().health_interval).await;
        world.clock.advance(Options::default().health_interval);
        let changed = world.store.watch(health.clone(), seen).await.unwrap();
        tokio::time::timeout(PATIENCE, changed).await.expect("the counter did not move");
    }
    worker.shutdown().await;
}
