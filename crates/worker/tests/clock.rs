//! Clocks that are set forward and back: jobs that wait for a time are neither late nor out of order.

use std::time::Duration;

use crate::common::{PATIENCE, T, World, done, json, slots};
use tokio_util::sync::CancellationToken;
use turnwise_queue::clock::{self, COMPARE_INTERVAL};
use turnwise_queue::{NewJob, State, jobs};
use turnwise_store::{Limits, Runtime, Store, runtime};
use turnwise_worker::keep_clock;

const HOUR: Duration = Duration::from_secs(3_600);
const HOUR_US: i64 = 3_600_000_000;

/// The store of a separate process on the world's machine: its clock begins with the machine's.
fn process(world: &World) -> Store {
    Store::new(world.engine.clone(), world.clock.clone()).with_limits(Limits::SMALL)
}

/// Adds a job through a process, for that process's current time or later.
async fn add(world: &World, store: &Store, id: &str, delay: Duration) {
    let now_us = store.runtime().now_us();
    let delay_us = i64::try_from(delay.as_micros()).unwrap();
    let not_before_us = (delay_us > 0).then_some(now_us + delay_us);
    let new = &NewJob { not_before_us, ..NewJob::new(T, id, json("{}")) };
    let keys = &world.keys;
    store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
}

#[tokio::test]
async fn a_job_that_is_due_by_a_clock_that_was_set_forward_starts() {
    let mut world = World::new();
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(keep_clock((world.store.clone(), world.keys.clone()), stop.clone()));
    let worker = world.start(1).await;
    add(&world, &world.store, "a", HOUR).await;
    world.clock.wait_for_sleeper(HOUR).await;
    // The worker sleeps for an hour by a clock that is never set. A suspended machine looks the same.
    world.clock.set_clock(2 * HOUR_US);
    world.clock.advance(COMPARE_INTERVAL);
    let run = world.next_run().await;
    assert_eq!(run.id, "a");
    run.end(done());
    world.until_state("a", State::Completed).await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, keeping).await.unwrap().unwrap();
    worker.shutdown().await;
}

#[tokio::test]
async fn after_a_clock_was_set_back_new_jobs_do_not_overtake_and_delayed_jobs_are_not_late() {
    let mut world = World::new();
    let options = slots(1);
    add(&world, &world.store, "a", Duration::ZERO).await;
    add(&world, &world.store, "delayed", Duration::from_secs(70)).await;
    clock::compare(&world.store, &world.keys).await.unwrap();
    world.clock.set_clock(-2 * HOUR_US);
    world.clock.advance(Duration::from_secs(1));
    add(&world, &world.store, "b", Duration::ZERO).await;
    clock::compare(&world.store, &world.keys).await.unwrap();
    // The next process starts with that clock.
    world.store = process(&world);
    let worker = world.start_with(&world.store, options).await;
    let first = world.next_run().await;
    assert_eq!(first.id, "a");
    world.clock.advance(Duration::from_secs(1));
    add(&world, &world.store, "c", Duration::ZERO).await;
    first.end(done());
    for id in ["b", "c"] {
        let run = world.next_run().await;
        assert_eq!(run.id, id);
        run.end(done());
    }
    // It is late by a seventh at most.
    let left = Duration::from_secs(70) * 8 / 7;
    world.until_state("c", State::Completed).await;
    world.clock.wait_for_sleeper(Duration::from_secs(60)).await;
    world.clock.advance(left);
    world.next_run().await.end(done());
    world.until_state("delayed", State::Completed).await;
    worker.shutdown().await;
}

#[tokio::test]
async fn nodes_follow_the_clock_that_is_ahead() {
    let world = World::new();
    let behind = runtime::Manual::new(world.clock.now_us() - 2 * HOUR_US, 2);
    let other = Store::new(world.engine.clone(), behind.clone()).with_limits(Limits::SMALL);
    clock::compare(&world.store, &world.keys).await.unwrap();
    clock::compare(&other, &world.keys).await.unwrap();
    assert_eq!(other.runtime().now_us(), world.store.runtime().now_us());
    // A process that is ahead of the mark by at least its granularity writes it; otherwise no process does.
    let writes = async |store: &Store| {
        let before = store.counters().rows_written;
        clock::compare(store, &world.keys).await.unwrap();
        store.counters().rows_written - before
    };
    assert_eq!((writes(&world.store).await, writes(&other).await), (0, 0));
    behind.advance(COMPARE_INTERVAL);
    world.clock.advance(COMPARE_INTERVAL);
    assert_eq!((writes(&world.store).await, writes(&other).await), (1, 0));
    // No process follows the clock that is behind. After its restart, that process continues from the time that both
    // have agreed on.
    let again = Store::new(world.engine.clone(), behind).with_limits(Limits::SMALL);
    assert_eq!(again.runtime().now_us(), world.clock.now_us() - 2 * HOUR_US);
    clock::compare(&again, &world.keys).await.unwrap();
    assert_eq!(again.runtime().now_us(), world.clock.now_us());
}
