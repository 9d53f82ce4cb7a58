//! Parked jobs: what wakes them, what unparks them, and which of them are unwatched.

use std::sync::Arc;

use serde_json::value::RawValue;
use turnwise_queue::claims::{self, Ended, Ending, Park};
use turnwise_queue::jobs::{self, Added, Cancelled};
use turnwise_queue::parking::{self, ParkedJob};
use turnwise_queue::{Claim, Context, Error, Job, Keyspace, NewJob, Parked, Result, State, check, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Isolation, Limits, RangeRead, Store, Transaction, runtime};

const T: &str = "test";

fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn at(group: &str, key: &str) -> Parked {
    Parked { group: group.into(), key: key.into() }
}

struct World {
    store: Store,
    keys: Keyspace,
    _dir: tempfile::TempDir,
}

/// A transaction that commits.
macro_rules! tx {
    ($world:expr, |$tx:ident, $keys:ident| $body:expr) => {{
        let (tx, keys) = ($world.store.begin().await.unwrap(), $world.keys.clone());
        let ($tx, $keys): (&Transaction, &Keyspace) = (&tx, &keys);
        let done = $body.await;
        tx.commit().await.unwrap();
        done
    }};
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { durable: false, ..Options::default() };
        let engine = Embedded::open_with(dir.path(), options).unwrap();
        let store = Store::new(engine, Arc::new(runtime::System)).with_limits(Limits::SMALL);
        let world = World { store, keys: Keyspace::default(), _dir: dir };
        let worker = workers::Worker::new("w", "n", 0, 1);
        tx!(world, |tx, keys| async { workers::register(tx, keys, T, &worker) }).unwrap();
        world
    }

    async fn add(&self, id: &str, now_us: i64) -> Added {
        tx!(self, |tx, keys| jobs::add(tx, keys, &NewJob::new(T, id, json("{}")), now_us)).unwrap()
    }

    /// Runs a pending job under the claim `number`, and parks it.
    async fn park(&self, id: &str, number: u64, at: Parked, token: &str) -> Result<Ended> {
        let claim = Claim { worker: "w".into(), number };
        let claimed =
            tx!(self, |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), id, &claim)).unwrap();
        assert!(claimed.is_some(), "{id} was to be claimed");
        self.end(id, number, at, token).await
    }

    async fn end(&self, id: &str, number: u64, at: Parked, token: &str) -> Result<Ended> {
        let claim = Claim { worker: "w".into(), number };
        let ending = Ending::Parked(Park { at, token: token.into(), not_before_us: 1_000 });
        let info = json("{\"docs_written\":3}");
        tx!(self, |tx, keys| claims::end(
            Context::new(tx, keys, T, 20, 20),
            id,
            &claim,
            &ending,
            Some(&info),
            None
        ))
    }

    async fn get(&self, id: &str) -> Job {
        self.check().await;
        tx!(self, |tx, keys| jobs::get(tx, keys, T, id)).unwrap().unwrap()
    }

    async fn unwatched(&self, group: &str) -> Vec<ParkedJob> {
        tx!(self, |tx, keys| parking::unwatched(tx, keys, T, group, 10)).unwrap()
    }

    async fn parked(&self, group: &str) -> Vec<String> {
        let jobs = tx!(self, |tx, keys| parking::list(tx, keys, T, group, None, 10)).unwrap();
        jobs.into_iter().map(|job| job.id).collect()
    }

    async fn wake(&self, id: &str) -> bool {
        self.wake_at(id, at("g", "k")).await
    }

    async fn wake_at(&self, id: &str, at: Parked) -> bool {
        let parked = ParkedJob { at, id: id.into(), token: "7".into() };
        tx!(self, |tx, keys| parking::wake(tx, keys, T, &parked, 50)).unwrap()
    }

    async fn check(&self) {
        let tx = self.store.begin().await.unwrap();
        let everything =
            RangeRead { begin: "".into(), end: b"\xff"[..].into(), limit: 10_000, reverse: false };
        let rows = tx.range_with(everything, Isolation::Snapshot).await.unwrap();
        assert_eq!(check::check_rows(&self.keys, &rows), []);
    }
}

#[tokio::test]
async fn a_parked_job_waits_until_it_is_woken_and_keeps_its_last_report() {
    let world = World::new().await;
    world.add("a", 1).await;
    world.park("a", 1, at("g", "k"), "7").await.unwrap();
    let job = world.get("a").await;
    assert_eq!((job.state(), job.parked(), job.order_us()), (State::Delayed, Some(&at("g", "k")), 1_000));
    assert_eq!(job.info.unwrap().get(), "{\"docs_written\":3}");
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
    let groups = tx!(world, |tx, keys| parking::groups(tx, keys, T, None, 10)).unwrap();
    assert_eq!(groups, ["g", "i"]);
    let groups = tx!(world, |tx, keys| parking::groups(tx, keys, T, Some("g"), 10)).unwrap();
    assert_eq!(groups, ["i"]);
    assert_eq!(tx!(world, |tx, keys| parking::unwatched_groups(tx, keys, T, 1)).unwrap(), ["g"]);
    assert_eq!(world.parked("g").await, ["b", "a", "d"]);
    let first = tx!(world, |tx, keys| parking::list(tx, keys, T, "g", None, 2)).unwrap();
    let rest = tx!(world, |tx, keys| parking::list(tx, keys, T, "g", first.last(), 2)).unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!((rest[0].id.as_str(), rest[0].token.as_str(), &rest[0].at), ("d", "d", &at("g", "k")));
    let found = tx!(world, |tx, keys| parking::at(tx, keys, T, &at("g", "k"), 10)).unwrap();
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
    tx!(world, |tx, keys| parking::settle(tx, keys, T, &first[0])).unwrap();
    let second = world.unwatched("g").await;
    assert_eq!(second[0].token, "8");
    tx!(world, |tx, keys| parking::settle(tx, keys, T, &second[0])).unwrap();
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
                let done = tx!(world, |tx, keys| jobs::cancel(tx, keys, T, "a", 60)).unwrap();
                assert_eq!(done, Cancelled::Now);
            }
            "remove" => tx!(world, |tx, keys| jobs::remove(tx, keys, T, "a")).unwrap(),
            "due" => {
                let left = tx!(world, |tx, keys| claims::release_due(tx, keys, T, 1_001, 10, |_| true));
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
    tx!(world, |tx, keys| async {
        for id in dangling {
            tx.set(keys.parked_entry(T, &at("g", "k"), id), "\"7\"".into()).unwrap();
            tx.set(keys.unwatched_entry(T, &at("g", "k"), id), "".into()).unwrap();
        }
    });
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
    let claim = |number| Claim { worker: "w".into(), number };
    // Cancelled.
    world.add("a", 1).await;
    tx!(world, |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "a", &claim(1))).unwrap();
    tx!(world, |tx, keys| jobs::cancel(tx, keys, T, "a", 11)).unwrap();
    world.end("a", 1, at("g", "k"), "7").await.unwrap();
    assert_eq!(world.get("a").await.state(), State::Cancelled);
    // Added again.
    world.add("b", 1).await;
    tx!(world, |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "b", &claim(2))).unwrap();
    assert_eq!(world.add("b", 12).await, Added::RunsAgain);
    world.end("b", 2, at("g", "k"), "7").await.unwrap();
    assert_eq!(world.get("b").await.state(), State::Pending);
    // Removed.
    world.add("c", 1).await;
    tx!(world, |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "c", &claim(3))).unwrap();
    tx!(world, |tx, keys| jobs::remove(tx, keys, T, "c")).unwrap();
    world.end("c", 3, at("g", "k"), "7").await.unwrap();
    assert_eq!(world.parked("g").await, Vec::<String>::new());
    world.check().await;
}

#[tokio::test]
async fn parking_resets_consecutive_crashes_and_is_idempotent() {
    let world = World::new().await;
    world.add("a", 1).await;
    let claim = Claim { worker: "w".into(), number: 1 };
    tx!(world, |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "a", &claim)).unwrap();
    let crash = Ending::Crashed { reason: "ouch".into(), crashes: 3, not_before_us: 11 };
    tx!(world, |tx, keys| claims::end(Context::new(tx, keys, T, 10, 20), "a", &claim, &crash, None, None))
        .unwrap();
    tx!(world, |tx, keys| claims::release_due(tx, keys, T, 12, 10, |_| true)).unwrap();
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
