//! Filters at the head of the queue: a job behind thousands of paused jobs starts after a few transactions. That holds for
//! a worker with one free slot, too.

use tokio_util::sync::CancellationToken;
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_queue::{NewJob, State, filters, jobs};
use turnwise_store::Store;
use turnwise_worker::{External, Options, release_filtered};

use crate::common::{PATIENCE, T, World, accept, done, json};

/// The number of jobs that a filter pauses.
const PAUSED: usize = 2_000;
/// The maximum number of transactions. A pass filters up to 500 jobs, after a few smaller passes. The worker itself needs
/// some more transactions.
const MOST_COMMITS: u64 = 40;

/// A world with thousands of paused jobs, and behind them one job that is not paused. Each job declares these locks.
async fn world(locks: &str) -> (World, CancellationToken) {
    let mut world = World::new();
    // The store has the embedded engine's own limits.
    world.store = Store::new(world.engine.clone(), world.clock.clone());
    let stop = CancellationToken::new();
    tokio::spawn(release_filtered((world.store.clone(), world.keys.clone()), stop.clone()));
    let keys = &world.keys;
    let rule = Rule {
        id: "bulk".into(),
        priority: 0,
        watermark_us: 0,
        when: "id ~ '^0-bulk'".into(),
        action: Action::Pause,
        limit: None,
        rate: None,
        note: None,
    };
    let rule = &rule;
    world.store.transact(|tx| async move { filters::put(&tx, keys, rule).await }).await.unwrap();
    let now_us = turnwise_store::Runtime::now_us(&*world.clock);
    let mut ids: Vec<String> = (0..PAUSED).map(|n| format!("0-bulk{n:04}")).collect();
    ids.push("1-urgent".to_owned());
    for ids in ids.chunks(200) {
        let add = |tx| async move {
            for id in ids {
                let mut new = NewJob::new(T, id, json("{}"));
                new.spec.locks = serde_json::from_str(locks).unwrap();
                jobs::add(&tx, keys, &new, now_us).await?;
            }
            Ok::<_, turnwise_queue::Error>(())
        };
        world.store.transact(add).await.unwrap();
    }
    (world, stop)
}

async fn one_slot_is_room_enough(locks: &str, most_commits: u64) {
    let (mut world, stop) = world(locks).await;
    let before = world.store.counters();
    let worker = world.start(1).await;
    let run = world.next_run().await;
    let commits = world.store.counters().since(&before).commits;
    assert_eq!(run.id, "1-urgent");
    assert!(commits < most_commits, "{commits} commits");
    run.end(done());
    world.until_state("1-urgent", State::Completed).await;
    worker.shutdown().await;
    stop.cancel();
}

#[tokio::test]
async fn a_job_behind_thousands_of_paused_jobs_starts_soon() {
    one_slot_is_room_enough("{}", MOST_COMMITS).await;
}

#[tokio::test]
async fn a_job_behind_thousands_of_paused_jobs_that_lock_starts_soon() {
    // Each pass decides several times about a window.
    one_slot_is_room_enough(r#"{"node":{"shared":["n1"]}}"#, PAUSED as u64 / 8).await;
}

#[tokio::test]
async fn an_external_worker_with_one_slot_receives_a_job_behind_thousands_of_paused_jobs_soon() {
    let (world, stop) = world("{}").await;
    let external = External::new(world.store.clone(), world.keys.clone(), Options::default());
    let worker = external.register(T, None, 1, None).await.unwrap().id;
    let before = world.store.counters();
    let leave = CancellationToken::new();
    let accepted = accept(&external, T, &worker, (0, 1, PATIENCE), &leave);
    let accepted = tokio::time::timeout(PATIENCE, accepted).await.expect("nothing was accepted").unwrap();
    let commits = world.store.counters().since(&before).commits;
    assert_eq!(accepted[0].job.id, "1-urgent");
    assert!(commits < MOST_COMMITS, "{commits} commits");
    stop.cancel();
}
