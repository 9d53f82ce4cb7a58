//! Jobs under rates: they start when there is a place, and no period has more starts than its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_policy::eligibility::rate::Rate;
use turnwise_queue::{Keyspace, NewJob, State, filters, jobs};
use turnwise_store::{Runtime, Store};
use turnwise_worker::{JobContext, Worker, handler_fn};

use crate::common::{PATIENCE, T, World, done, json, open, slots};

const SECOND_US: i64 = 1_000_000;

fn rule(rate: Rate) -> Rule {
    Rule {
        id: "api".into(),
        priority: 0,
        watermark_us: 0,
        when: "id ~ '^j'".into(),
        action: Action::Rate,
        limit: None,
        rate: Some(rate),
        note: None,
    }
}

async fn prepare(store: &Store, keys: &Keyspace, rate: Rate, ids: &[String]) {
    let (rule, now_us) = (&rule(rate), store.runtime().now_us());
    store.transact(|tx| async move { filters::put(&tx, keys, rule).await }).await.unwrap();
    for (n, id) in (0..).zip(ids) {
        let new = &NewJob::new(T, id, json("{}"));
        store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us + n).await }).await.unwrap();
    }
}

#[tokio::test]
async fn a_job_starts_at_the_time_of_its_place_and_delays_no_other_job() {
    let mut world = World::new();
    let ids = ["j1", "j2", "j3", "j4", "other"].map(str::to_owned);
    let rate = Rate { key: Some("options.customer".into()), ..Rate::new(2, 10_000) };
    prepare(&world.store, &world.keys, rate, &ids).await;
    let begun_us = world.clock.now_us();
    let worker = world.start(10).await;
    for expected in ["j1", "j2", "other"] {
        let run = world.next_run().await;
        assert_eq!(run.id, expected);
        run.end(done());
    }
    world.until("j4", |job| job.limited().is_some()).await;
    // The worker sleeps until there is a place, whatever else wakes it.
    world.clock.wait_for_sleeper(Duration::from_secs(10)).await;
    world.clock.advance(Duration::from_secs(10));
    for expected in ["j3", "j4"] {
        let run = world.next_run().await;
        assert_eq!(run.id, expected);
        let started_us = world.get(expected).await.unwrap().started_us.unwrap();
        assert!(started_us >= begun_us + 10 * SECOND_US, "{started_us}");
        run.end(done());
    }
    world.until_state("j4", State::Completed).await;
    worker.shutdown().await;
}

/// Two workers share a rate in real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_never_exceed_a_rate() {
    const JOBS: usize = 250;
    let (dir, keys) = (tempfile::tempdir().unwrap(), Keyspace::default());
    let store = open(&dir);
    let ids: Vec<String> = (0..JOBS).map(|n| format!("j{n:03}")).collect();
    prepare(&store, &keys, Rate::new(100, 1_000), &ids).await;
    let (ended, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (ended, all) = (ended.clone(), all.clone());
        let handler = handler_fn(move |_: JobContext| {
            let (ended, all) = (ended.clone(), all.clone());
            async move {
                if ended.fetch_add(1, SeqCst) + 1 == JOBS {
                    all.notify_one();
                }
                done()
            }
        });
        let started = Worker::start(store.clone(), keys.clone(), T, Arc::new(handler), slots(20)).await;
        workers.push(started.unwrap());
    }
    tokio::time::timeout(PATIENCE, all.notified()).await.expect("some jobs were not started");
    let mut times = Vec::new();
    for id in &ids {
        let tx = store.begin().await.unwrap();
        times.push(jobs::get(&tx, &keys, T, id).await.unwrap().unwrap().started_us.unwrap());
    }
    times.sort_unstable();
    for (first, next) in times.iter().zip(&times[100..]) {
        assert!(next - first >= SECOND_US, "more than 100 start between {first} and {next}");
    }
    for worker in workers {
        worker.shutdown().await;
    }
}
