//! Parked jobs: what wakes them, what unparks them, and which of them are unwatched.

use crate::common::{T, by, json};
use turnwise_queue::claims::{self, Ended, Ending, Park};
use turnwise_queue::jobs::{self, Added, Cancelled};
use turnwise_queue::parking::{self, ParkedJob};
use turnwise_queue::{Claim, Context, Error, NewJob, Parked, Result, State};

fn at(group: &str, key: &str) -> Parked {
    Parked { group: group.into(), key: key.into() }
}

type World = crate::common::World<Parking>;

#[derive(Default)]
struct Parking;

impl World {
    async fn add(&self, id: &str, now_us: i64) -> Added {
        self.run(async |tx, keys| jobs::add(tx, keys, &NewJob::new(T, id, json("{}")), now_us).await).await
    }

    /// Runs a pending job under the claim `number`, and parks it.
    async fn park(&self, id: &str, number: u64, at: Parked, token: &str) -> Result<Ended> {
        let claim = by(number);
        let claimed = self
            .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), id, &claim).await)
            .await;
        assert!(claimed.is_some(), "{id} was to be claimed");
        self.end(id, number, at, token).await
    }

    async fn end(&self, id: &str, number: u64, at: Parked, token: &str) -> Result<Ended> {
        let claim = by(number);
        let ending = Ending::Parked(Park { at, token: token.into(), not_before_us: 1_000 });
        let info = json("{\"docs_written\":3}");
        self.try_run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 20, 20), id, &claim, &ending, Some(&info), None).await
        })
        .await
    }

    async fn unwatched(&self, group: &str) -> Vec<ParkedJob> {
        self.unchecked(async |tx, keys| parking::unwatched(tx, keys, T, group, 10).await).await.unwrap()
    }

    async fn parked(&self, group: &str) -> Vec<String> {
        let jobs =
            self.unchecked(async |tx, keys| parking::list(tx, keys, T, group, None, 10).await).await.unwrap();
        jobs.into_iter().map(|job| job.id).collect()
    }

    async fn wake(&self, id: &str) -> bool {
        self.wake_at(id, at("g", "k")).await
    }

    async fn wake_at(&self, id: &str, at: Parked) -> bool {
        let parked = ParkedJob { at, id: id.into(), token: "7".into() };
        self.unchecked(async |tx, keys| parking::wake(tx, keys, T, &parked, 50).await).await.unwrap()
    }
}

#[tokio::test]
async fn a_parked_job_waits_until_it_is_woken_and_keeps_its_last_report() {
    let world = World::new().await;
    world.add("a", 1).await;
    world.park("a", 1, at("g", "k"), "7").await.unwrap();
    let job = world.get("a").await;
    assert_eq!((job.state(), job.parked(), job.order_us()), (State::Delayed, Some(&at("g", "k")), 1_000));
    assert_eq!(job.info.as_ref().unwrap().get(), "{\"docs_written\":3}");
    assert!(!world.wake("b").await, "there is no such job");
    assert!(!world.wake_at("a", at("g", "j")).await, "it is parked elsewhere");
    assert!(world.wake("a").await);
    let job = world.get("a").await;
    assert_eq!((job.state(), job.parked(), job.order_us()), (State::Pending, None, 50));
    assert_eq!(world.parked("g").await, Vec::<String>::new());
    assert!(!world.wake("a").await, "it is not parked any more");
    // It runs, and parks elsewhere.
    world.park("a", 2, at("h", "k"), "8").await.unwrap();
    assert_eq!(world.get("a").await.parked(), Some(&at("h", "k")));
}

#[tokio::test]
async fn groups_keys_and_jobs_are_found_in_order() {
    let world = World::new().await;
    for (number, (id, group, key)) in
        [("a", "g", "k"), ("b", "g", "j"), ("c", "i", "k"), ("d", "g", "k")].into_iter().enumerate()
    {
        world.add(id, 1).await;
        world.park(id, number as u64 + 1, at(group, key), id).await.unwrap();
    }
    let groups = world.run(async |tx, keys| parking::groups(tx, keys, T, None, 10).await).await;
    assert_eq!(groups, ["g", "i"]);
    let groups = world.run(async |tx, keys| parking::groups(tx, keys, T, Some("g"), 10).await).await;
    assert_eq!(groups, ["i"]);
    assert_eq!(world.run(async |tx, keys| parking::unwatched_groups(tx, keys, T, 1).await).await, ["g"]);
    assert_eq!(world.parked("g").await, ["b", "a", "d"]);
    let first = world.run(async |tx, keys| parking::list(tx, keys, T, "g", None, 2).await).await;
    let rest = world.run(async |tx, keys| parking::list(tx, keys, T, "g", first.last(), 2).await).await;
    assert_eq!(rest.len(), 1);
    assert_eq!((rest[0].id.as_str(), rest[0].token.as_str(), &rest[0].at), ("d", "d", &at("g", "k")));
    let found = world.run(async |tx, keys| parking::at(tx, keys, T, &at("g", "k"), 10).await).await;
    assert_eq!(found.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["a", "d"]);
}

#[tokio::test]
async fn the_unwatched_mark_is_cleared_only_after_its_token_was_compared() {
    let world = World::new().await;
    world.add("a", 1).await;
    world.park("a", 1, at("g", "k"), "7").await.unwrap();
    let first = world.unwatched("g").await;
    assert_eq!(first, [ParkedJob { at: at("g", "k"), id: "a".into(), token: "7".into() }]);
    // It has run and parked again before the result for its first token is written.
    world.wake("a").await;
    world.park("a", 2, at("g", "k"), "8").await.unwrap();
    world.run(async |tx, keys| parking::settle(tx, keys, T, &first[0]).await).await;
    let second = world.unwatched("g").await;
    assert_eq!(second[0].token, "8");
    world.run(async |tx, keys| parking::settle(tx, keys, T, &second[0]).await).await;
    assert_eq!(world.unwatched("g").await, []);
    assert_eq!(world.parked("g").await, ["a"], "it is parked still, and watched now");
    world.check().await;
}

#[tokio::test]
async fn every_way_out_of_parking_leaves_no_row() {
    for way in ["add", "cancel", "remove", "due", "wake"] {
        let world = World::new().await;
        world.add("a", 1).await;
        world.park("a", 1, at("g", "k"), "7").await.unwrap();
        match way {
            "add" => assert_eq!(world.add("a", 60).await, Added::Queued),
            "cancel" => {
                let done = world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 60).await).await;
                assert_eq!(done, Cancelled::Now);
            }
            "remove" => world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await,
            "due" => {
                let left = world
                    .try_run(async |tx, keys| claims::release_due(tx, keys, T, 1_001, 10, |_| true).await)
                    .await;
                assert_eq!(left.unwrap().next_due_us, None);
            }
            _ => assert!(world.wake("a").await),
        }
        assert_eq!((world.parked("g").await, world.unwatched("g").await), (vec![], vec![]), "{way}");
        world.check().await;
    }
}

/// A node of a version without parking moves jobs out of the delayed ones, and leaves these rows.
#[tokio::test]
async fn waking_a_job_that_is_elsewhere_or_gone_clears_its_rows() {
    let world = World::new().await;
    for (n, id) in ["pending", "elsewhere"].into_iter().enumerate() {
        world.add(id, 1).await;
        world.park(id, n as u64 + 1, at("g", "k"), "7").await.unwrap();
    }
    assert!(world.wake("pending").await && world.wake("elsewhere").await);
    world.park("elsewhere", 3, at("h", "k"), "8").await.unwrap();
    let dangling = ["pending", "elsewhere", "gone"];
    let tx = world.tx().await;
    for id in dangling {
        tx.set(world.keys.parked_entry(T, &at("g", "k"), id), "\"7\"".into()).unwrap();
        tx.set(world.keys.unwatched_entry(T, &at("g", "k"), id), "".into()).unwrap();
    }
    tx.commit().await.unwrap();
    assert_eq!((world.parked("g").await.len(), world.unwatched("g").await.len()), (3, 3));
    for id in dangling {
        assert!(!world.wake(id).await, "{id}");
    }
    // No row is left, and no other job was woken.
    assert_eq!((world.parked("g").await, world.unwatched("g").await), (vec![], vec![]));
    assert_eq!(world.get("pending").await.state(), State::Pending);
    assert_eq!(world.get("elsewhere").await.parked(), Some(&at("h", "k")));
}

#[tokio::test]
async fn a_request_of_a_client_takes_precedence_over_parking() {
    let world = World::new().await;
    let claim = |number| by(number);
    // Cancelled.
    world.add("a", 1).await;
    world.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "a", &claim(1)).await).await;
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 11).await).await;
    world.end("a", 1, at("g", "k"), "7").await.unwrap();
    assert_eq!(world.get("a").await.state(), State::Cancelled);
    // Added again.
    world.add("b", 1).await;
    world.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "b", &claim(2)).await).await;
    assert_eq!(world.add("b", 12).await, Added::RunsAgain);
    world.end("b", 2, at("g", "k"), "7").await.unwrap();
    assert_eq!(world.get("b").await.state(), State::Pending);
    // Removed.
    world.add("c", 1).await;
    world.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "c", &claim(3)).await).await;
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "c").await).await;
    world.end("c", 3, at("g", "k"), "7").await.unwrap();
    assert_eq!(world.parked("g").await, Vec::<String>::new());
    world.check().await;
}

#[tokio::test]
async fn parking_resets_consecutive_crashes_and_is_idempotent() {
    let world = World::new().await;
    world.add("a", 1).await;
    let claim = Claim { worker: "w".into(), number: 1 };
    world.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "a", &claim).await).await;
    let crash = Ending::Crashed { error: "ouch".into(), retry_us: Some(11) };
    world
        .run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 10, 20), "a", &claim, &crash, None, None).await
        })
        .await;
    world.run(async |tx, keys| claims::release_due(tx, keys, T, 12, 10, |_| true).await).await;
    world.park("a", 2, at("g", "k"), "7").await.unwrap();
    assert_eq!(world.get("a").await.crashes, 0);
    let again = world.end("a", 2, at("g", "k"), "7").await.unwrap();
    assert!(matches!(again, Ended::AlreadyRecorded(_)), "{again:?}");
    // A token or key that no row can hold is refused before anything is written.
    world.wake("a").await;
    let refused = world.park("a", 3, at("g", "k"), &"x".repeat(parking::MAX_TOKEN_BYTES + 1)).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(world.get("a").await.state(), State::Running);
}
