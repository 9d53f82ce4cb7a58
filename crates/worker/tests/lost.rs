//! What happens to a job whose worker is lost, and when consecutive crashes are reset.

use std::time::Duration;

use turnwise_queue::{NewJob, State, jobs};
use turnwise_store::Runtime;
use turnwise_worker::{Options, Outcome};

use crate::common::{T, World, json};

/// The backoff after the first crash, in µs.
const BACKOFF_US: i64 = 30_000_000;
/// A little longer than a run that counts as healthy.
const HEALTHY: Duration = Duration::from_secs(121);

/// Runs the job until its process dies, then lets the next process take over.
async fn lose_its_worker(world: &mut World, healthy: bool) {
    let dying = world.start(1).await;
    let mut run = world.next_run().await;
    if healthy {
        world.clock.wait_for_sleeper(Options::default().health_interval).await;
        world.clock.advance(HEALTHY);
        // It has pinged.
        world.clock.wait_for_sleeper(Options::default().health_interval).await;
    }
    drop(dying);
    run.instruction.closed().await;
    drop(world.start(0).await);
}

#[tokio::test]
async fn a_job_that_ends_its_workers_backs_off_and_fails_with_its_last_attempt() {
    let mut world = World::new();
    let new = NewJob::new(T, "a", json("{}")).with(|spec| spec.max_attempts = Some(3));
    world.run(async |tx, keys| jobs::add(tx, keys, &new, 5).await).await;
    for attempts in 1..=2 {
        lose_its_worker(&mut world, false).await;
        let job = world.get("a").await.unwrap();
        assert_eq!((job.state(), job.attempts, job.crashes), (State::Crashing, attempts, attempts));
        assert!(job.reason().is_some_and(|reason| reason.ends_with("was lost")), "{:?}", job.reason());
        let wait_us = BACKOFF_US << (attempts - 1);
        assert_eq!(job.order_us() - world.clock.now_us(), wait_us);
        world.clock.advance(Duration::from_micros(wait_us.unsigned_abs()));
    }
    lose_its_worker(&mut world, false).await;
    let job = world.get("a").await.unwrap();
    assert_eq!((job.state(), job.attempts), (State::Failed, 3));
    assert!(job.reason().is_some_and(|reason| reason.ends_with("was lost")), "{:?}", job.reason());
}

#[tokio::test]
async fn a_healthy_run_resets_consecutive_crashes_however_it_ends() {
    for lost in [false, true] {
        let mut world = World::new();
        world.add("a").await;
        let worker = world.start(1).await;
        for crashes in 1..=2 {
            world.next_run().await.end(Outcome::Crashed("peer is down".into()));
            let job = world.until_state("a", State::Crashing).await;
            assert_eq!(job.crashes, crashes);
            let wait = Duration::from_micros((job.order_us() - world.clock.now_us()).unsigned_abs());
            world.clock.wait_for_sleeper(wait).await;
            world.clock.advance(wait);
        }
        let run = world.next_run().await;
        assert_eq!(run.job.crashes, 2);
        worker.shutdown().await;
        assert_eq!(world.get("a").await.unwrap().crashes, 2, "it was stopped before it was healthy");
        drop(run);
        if lost {
            lose_its_worker(&mut world, true).await;
            let job = world.get("a").await.unwrap();
            assert_eq!((job.state(), job.crashes), (State::Crashing, 1));
            continue;
        }
        let worker = world.start(1).await;
        let run = world.next_run().await;
        world.clock.advance(HEALTHY);
        worker.shutdown().await;
        drop(run);
        assert_eq!(world.get("a").await.unwrap().crashes, 0);
        let worker = world.start(1).await;
        world.next_run().await.end(Outcome::Crashed("a hiccup".into()));
        let job = world.until_state("a", State::Crashing).await;
        assert_eq!((job.crashes, job.order_us() - world.clock.now_us()), (1, BACKOFF_US));
        worker.shutdown().await;
    }
}

#[tokio::test]
async fn every_end_of_a_run_counts_as_an_attempt_except_a_stop() {
    let mut world = World::new();
    world.add("a").await;
    let worker = world.start(1).await;
    let run = world.next_run().await;
    worker.shutdown().await;
    drop(run);
    assert_eq!(world.get("a").await.unwrap().attempts, 0);
    let worker = world.start(1).await;
    world.next_run().await.end(Outcome::Crashed("ouch".into()));
    let job = world.until_state("a", State::Crashing).await;
    assert_eq!(job.attempts, 1);
    world.clock.wait_for_sleeper(Duration::from_secs(30)).await;
    world.clock.advance(Duration::from_secs(30));
    world.next_run().await.end(Outcome::Failed("nonsense".into()));
    assert_eq!(world.until_state("a", State::Failed).await.attempts, 2);
    worker.shutdown().await;
}
