//! Commits of unknown outcome: whatever their real result, the worker finds all of its claims, and uses no slot twice.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use turnwise_queue::{EventKind, State, jobs};
use turnwise_store::Error as StoreError;

use crate::common::faulty::Fault;
use crate::common::{PATIENCE, T, World, done};

/// The loop's pause after an error.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
const ACTIVE: &str = "active";

/// Lets the pause after an error pass.
async fn after_the_pause(world: &World) {
    // Two tasks sleep at least that long: the loop, and the next ping.
    tokio::time::timeout(PATIENCE, world.clock.wait_for_sleepers(ERROR_PAUSE, 2)).await.unwrap();
    world.clock.advance(ERROR_PAUSE);
}

#[tokio::test]
async fn jobs_of_a_claim_of_unknown_outcome_that_was_committed_run_and_no_slot_is_used_twice() {
    let mut world = World::new();
    for n in 0..6 {
        world.add(&n.to_string()).await;
    }
    let (store, faulty) = world.faulty();
    faulty.fail(Fault::Committed, ACTIVE);
    let worker = world.start_beside(&store, 3).await;
    faulty.happened(1).await;
    after_the_pause(&world).await;
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(world.next_run().await);
    }
    let mut first: Vec<&str> = running.iter().map(|run| run.id.as_str()).collect();
    first.sort_unstable();
    assert_eq!(first, ["0", "1", "2"]);
    for _ in 3..6 {
        running.remove(0).end(done());
        running.push(world.next_run().await);
    }
    for run in running {
        run.end(done());
    }
    for n in 0..6 {
        let job = world.until_state(&n.to_string(), State::Completed).await;
        let started = job.history.iter().filter(|event| event.kind == EventKind::Started).count();
        assert_eq!(started, 1);
    }
    assert_eq!(world.handler.most_running.load(SeqCst), 3);
    worker.shutdown().await;
}

#[tokio::test]
async fn jobs_of_a_claim_that_was_not_committed_are_claimed_again() {
    let mut world = World::new();
    world.add("a").await;
    let (store, faulty) = world.faulty();
    faulty.fail(Fault::Lost, ACTIVE);
    let worker = world.start_beside(&store, 3).await;
    faulty.happened(1).await;
    after_the_pause(&world).await;
    let run = world.next_run().await;
    assert_eq!(run.job.claim().unwrap().number, 2, "a number was used twice");
    run.end(done());
    world.until_state("a", State::Completed).await;
    worker.shutdown().await;
}

#[tokio::test]
async fn a_claim_that_arrives_after_the_doubt_has_ended_is_refused() {
    let mut world = World::new();
    world.add("a").await;
    let (store, faulty) = world.faulty();
    faulty.fail(Fault::Late, ACTIVE);
    let worker = world.start_beside(&store, 1).await;
    faulty.happened(1).await;
    // "A" comes before "a" in the queue. So no transaction changes "a", and only the fence can reject its claim.
    world.add("A").await;
    after_the_pause(&world).await;
    let run = world.next_run().await;
    assert_eq!(run.id, "A");
    assert!(matches!(faulty.arrive().await, Err(StoreError::Conflict)));
    run.end(done());
    world.next_run().await.end(done());
    world.until_state("a", State::Completed).await;
    worker.shutdown().await;
}

#[tokio::test]
async fn a_job_that_was_cancelled_before_it_was_adopted_stops() {
    let mut world = World::new();
    world.add("a").await;
    let (store, faulty) = world.faulty();
    faulty.fail(Fault::Committed, ACTIVE);
    let worker = world.start_beside(&store, 1).await;
    faulty.happened(1).await;
    world.cancel("a").await;
    after_the_pause(&world).await;
    world.until_state("a", State::Cancelled).await;
    // Its handler may have been started, and stopped again.
    world.add("b").await;
    while let run = world.next_run().await
        && run.id != "b"
    {}
    worker.shutdown().await;
}

#[tokio::test]
async fn a_full_worker_resolves_an_unknown_outcome_too() {
    let mut world = World::new();
    world.add("a").await;
    let (store, faulty) = world.faulty();
    let worker = world.start_beside(&store, 2).await;
    let first = world.next_run().await;
    faulty.fail(Fault::Committed, ACTIVE);
    world.add("b").await;
    faulty.happened(1).await;
    after_the_pause(&world).await;
    let second = world.next_run().await;
    assert_eq!(second.id, "b");
    for run in [first, second] {
        run.end(done());
    }
    for id in ["a", "b"] {
        world.until_state(id, State::Completed).await;
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn an_end_of_unknown_outcome_is_recorded_once() {
    for fault in [Fault::Committed, Fault::Lost] {
        let mut world = World::new();
        world.add("a").await;
        let (store, faulty) = world.faulty();
        let worker = world.start_beside(&store, 1).await;
        let run = world.next_run().await;
        faulty.fail(fault, ACTIVE);
        run.end(done());
        faulty.happened(1).await;
        // The store's own retry waits a little.
        world.clock.wait_for_sleepers(Duration::from_micros(1), 2).await;
        world.clock.advance(Duration::from_secs(1));
        let job = world.until_state("a", State::Completed).await;
        assert_eq!(job.history.len(), 3, "{:?}", job.history);
        // The worker is healthy: it continues with the next job.
        world.add("b").await;
        world.next_run().await.end(done());
        world.until_state("b", State::Completed).await;
        worker.shutdown().await;
        let left = jobs::active(&world.store.begin().await.unwrap(), &world.keys, T, 9).await.unwrap();
        assert_eq!(left.len(), 0);
    }
}
