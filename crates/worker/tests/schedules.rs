//! The service that fires schedules: on time, once for all servers, and as soon as a client has changed one.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_calendar::{Calendar, When};
use turnwise_queue::schedules::{self, NewSchedule, Template, job_id};
use turnwise_queue::{JobSpec, jobs};
use turnwise_store::{Limits, Runtime, Store};
use turnwise_worker::{Live, Metrics, Schedules};

use crate::common::{PATIENCE, T, World, json};

const TEN_SECONDS: Duration = Duration::from_secs(10);
const TEN_SECONDS_US: i64 = 10_000_000;

fn every_ten_seconds(name: &str) -> NewSchedule {
    let when = When::Every { every_us: TEN_SECONDS_US, offset_us: 0 };
    let template =
        Template { job_type: T.to_owned(), spec: JobSpec::default(), priority: None, states_locks: false };
    let calendar = Calendar { when, from_us: None, until_us: None };
    NewSchedule::new(name, calendar, template, json("{}"))
}

/// A server, each with a clock of its own. Returns what it counts.
fn serve(world: &World, stop: &CancellationToken) -> Arc<Metrics> {
    serve_with(world, stop, 0.into())
}

fn serve_with(world: &World, stop: &CancellationToken, waiting_jobs: Live<usize>) -> Arc<Metrics> {
    let store = Store::new(world.engine.clone(), world.clock.clone()).with_limits(Limits::SMALL);
    let metrics = Arc::<Metrics>::default();
    let keys = world.keys.clone();
    let schedules = Schedules { store, keys, waiting_jobs, metrics: metrics.clone() };
    tokio::spawn(schedules.run(stop.clone()));
    metrics
}

async fn put(world: &World, new: &NewSchedule) {
    let now_us = world.clock.now_us();
    world.run(async |tx, keys| schedules::put(tx, keys, new, now_us).await).await;
}

/// Waits until this many servers sleep until the next instant, and lets it come. Returns it, in µs.
async fn next_instant(world: &World, servers: usize) -> i64 {
    let wait = world.clock.wait_for_sleepers(TEN_SECONDS, servers);
    tokio::time::timeout(PATIENCE, wait).await.expect("not all servers wait for the next instant");
    world.clock.advance(TEN_SECONDS);
    world.clock.now_us()
}

fn count(metrics: &Metrics, outcome: &str) -> u64 {
    metrics.fires().filter(|(name, _)| *name == outcome).map(|(_, count)| count).sum()
}

#[tokio::test]
async fn servers_fire_on_time_and_each_instant_once() {
    let world = World::new();
    let stop = CancellationToken::new();
    let servers = [serve(&world, &stop), serve(&world, &stop)];
    // They wait for nothing but a change.
    world.settle().await;
    put(&world, &every_ten_seconds("s")).await;
    for n in 1..=3 {
        let at_us = next_instant(&world, 2).await;
        let job = world.until(&job_id("s", at_us), |_| true).await;
        assert_eq!(job.schedule.as_ref().map(|of| of.fired_us), Some(at_us));
        world.settle().await;
        assert_eq!(servers.iter().map(|metrics| count(metrics, "added")).sum::<u64>(), n);
        world.run(async |tx, keys| jobs::remove(tx, keys, T, &job.id).await).await;
    }
    // Without a job that has ended, the next instant is skipped.
    let at_us = next_instant(&world, 2).await;
    world.until(&job_id("s", at_us), |_| true).await;
    next_instant(&world, 2).await;
    world.settle().await;
    assert_eq!(servers.iter().map(|metrics| count(metrics, "skipped")).sum::<u64>(), 1);
    stop.cancel();
}

#[tokio::test]
async fn hundreds_that_are_due_at_the_same_time_all_fire() {
    let world = World::new();
    let stop = CancellationToken::new();
    for n in 0..250 {
        put(&world, &every_ten_seconds(&format!("s{n}"))).await;
    }
    let servers = [serve(&world, &stop), serve(&world, &stop), serve(&world, &stop)];
    let at_us = next_instant(&world, 3).await;
    for n in 0..250 {
        world.until(&job_id(&format!("s{n}"), at_us), |_| true).await;
    }
    world.settle().await;
    assert_eq!(servers.iter().map(|metrics| count(metrics, "added")).sum::<u64>(), 250);
    stop.cancel();
}

#[tokio::test]
async fn schedules_that_cannot_fire_keep_no_others() {
    let world = World::new();
    let stop = CancellationToken::new();
    // More of them than a server reads at a time, of a zone that no server knows, or of rows that nobody can read.
    let zone = r#"{"cron":{"expression":"* * * * *","zone":"Europe/Atlantis"}}"#;
    let every = format!(r#"{{"every":{{"every_us":{TEN_SECONDS_US},"offset_us":0}}}}"#);
    put(&world, &every_ten_seconds("z-last")).await;
    put(&world, &every_ten_seconds("a")).await;
    let row = world.store.begin().await.unwrap().get(&world.keys.schedule("a")).await.unwrap().unwrap();
    let row = String::from_utf8(row.to_vec()).unwrap();
    assert!(row.contains(&every), "{row}");
    let at_us =
        schedules::next_due(&world.store.begin().await.unwrap(), &world.keys, None).await.unwrap().unwrap();
    for part in 0..22 {
        world
            .run(async |tx, keys| {
                for n in 0..50 {
                    let name = format!("b{part}-{n}");
                    let value = if n == 0 { "{".to_owned() } else { row.replace(&every, zone) };
                    tx.set(keys.schedule(&name), value.into())?;
                    tx.set(keys.schedule_due_entry(at_us, &name), bytes::Bytes::new())?;
                }
                Ok(())
            })
            .await;
    }
    serve(&world, &stop);
    next_instant(&world, 1).await;
    for _ in 0..2 {
        let at_us = world.clock.now_us();
        let job = world.until(&job_id("z-last", at_us), |_| true).await;
        world.run(async |tx, keys| jobs::remove(tx, keys, T, &job.id).await).await;
        next_instant(&world, 1).await;
    }
    stop.cancel();
}
