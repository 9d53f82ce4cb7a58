//! Membership of workers: registration, heartbeats, the ring of neighbours, and a removal that any worker can finish.

use crate::common::{T, json};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::workers::{self, Worker};
use turnwise_queue::{Claim, Context, Error, Health, Keyspace, NewJob, State, jobs};
use turnwise_store::tuple::Subspace;
use turnwise_store::{Error as StoreError, Limits, Transaction};

const HISTORY: usize = 20;

type World = crate::common::World<Membership>;

#[derive(Default)]
struct Membership;

impl World {
    /// With workers of these ids.
    async fn with(workers: &[&str]) -> Self {
        let world = World::empty(Limits::SMALL);
        for worker in workers {
            world.join(T, worker).await;
        }
        world
    }

    async fn join(&self, job_type: &str, id: &str) {
        let worker = Worker::new(id, "n", 0, 1);
        self.run(async |tx, keys| workers::register(tx, keys, job_type, &worker)).await;
    }

    /// Adds a job and claims it for a worker.
    async fn give(&self, id: &str, worker: &str, number: u64) -> Claim {
        let claim = Claim { worker: worker.into(), number };
        let new = NewJob::new(T, id, json("{}"));
        let claimed = self.try_run(async |tx, keys| {
            jobs::add(tx, keys, &new, 1).await?;
            claims::claim(Context::new(tx, keys, T, 2, HISTORY), id, &claim).await
        });
        assert!(claimed.await.unwrap().is_some());
        claim
    }

    async fn remove(&self, worker: &str, limit: usize) -> bool {
        self.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 3, HISTORY), worker, limit).await)
            .await
    }

    async fn neighbours(&self, worker: &str, limit: usize) -> Vec<String> {
        let ring = self.try_run(async |tx, keys| workers::neighbours(tx, keys, T, worker, limit).await).await;
        ring.unwrap().into_iter().map(|(id, _)| id).collect()
    }

    async fn health(&self, worker: &str) -> Option<Health> {
        self.run(async |tx, keys| workers::health(tx, keys, T, worker).await).await
    }

    async fn versionstamp(&self) -> Option<bytes::Bytes> {
        self.tx().await.get(&self.keys.workers_versionstamp(T)).await.unwrap()
    }

    /// Every key that contains the text.
    async fn rows_with(&self, text: &str) -> Vec<String> {
        let (begin, end) = Subspace::from(("turnwise",)).range();
        let rows = self.tx().await.range(&(begin.into(), end.into()), 1_000).await;
        let keys = rows.unwrap().into_iter().map(|(key, _)| String::from_utf8_lossy(&key).into_owned());
        keys.filter(|key| key.contains(text)).collect()
    }
}

#[tokio::test]
async fn a_ping_moves_the_counter_and_keeps_the_rest_of_the_row() {
    let world = World::empty(Limits::SMALL);
    let worker = Worker { health_timeout_us: 7, external: true, ..Worker::new("w", "n", 0, 1) };
    world.run(async |tx, keys| workers::register(tx, keys, T, &worker)).await;
    assert_eq!(
        world.health("w").await,
        Some(Health { counter: 0, timeout_us: 7, external: true, seen_us: 0 })
    );
    world.run(async |tx, keys| workers::ping(tx, keys, T, "w", 9).await).await;
    assert_eq!(
        world.health("w").await,
        Some(Health { counter: 1, timeout_us: 7, external: true, seen_us: 9 })
    );
    let row = world.tx().await.get(&world.keys.health(T, "w")).await.unwrap().unwrap();
    assert_eq!(row, r#"{"counter":1,"timeout_us":7,"external":true,"seen_us":9}"#);
    let found = world.run(async |tx, keys| workers::get(tx, keys, T, "w").await).await;
    assert_eq!(found, Some(worker));
}

#[tokio::test]
async fn a_worker_that_is_no_member_cannot_ping() {
    let world = World::with(&["w"]).await;
    world.give("a", "w", 1).await;
    for removed in [false, true] {
        let worker = if removed { "w" } else { "never heard of" };
        if removed {
            assert!(!world.remove("w", 1).await);
        }
        let pinged = world.try_run(async |tx, keys| workers::ping(tx, keys, T, worker, 9).await).await;
        assert!(matches!(pinged, Err(Error::Halt)), "{pinged:?}");
    }
    assert_eq!(world.health("w").await.unwrap().counter, 0, "a removed worker looks alive");
}

#[tokio::test]
async fn neighbours_follow_in_the_order_of_ids_closed_to_a_ring() {
    let world = World::with(&["b", "a", "d", "c"]).await;
    world.join("other", "bb").await;
    assert_eq!(world.neighbours("b", 9).await, ["c", "d", "a"]);
    assert_eq!(world.neighbours("b", 2).await, ["c", "d"]);
    assert_eq!(world.neighbours("d", 2).await, ["a", "b"]);
    assert_eq!(world.neighbours("cc", 9).await, ["d", "a", "b", "c"]);
    let alone = World::with(&["a"]).await;
    assert_eq!(alone.neighbours("a", 9).await, [""; 0]);
}

#[tokio::test]
async fn heartbeats_are_paged_and_types_are_listed() {
    let world = World::with(&["a", "b", "c"]).await;
    world.join("other", "w").await;
    let page = async |after: Option<&'static str>, limit| {
        let page = world.try_run(async |tx, keys| workers::healths(tx, keys, T, after, limit).await).await;
        page.unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2).await, ["a", "b"]);
    assert_eq!(page(Some("b"), 2).await, ["c"]);
    let types =
        async |limit| world.run(async |tx, keys| workers::types_after(tx, keys, None, limit).await).await;
    assert_eq!(types(9).await, ["other", T]);
    assert_eq!(types(1).await, ["other"]);
}

#[tokio::test]
async fn a_removal_that_stops_half_way_can_be_seen_and_finished() {
    let world = World::with(&["v", "w"]).await;
    for (n, id) in (1..).zip(["a", "b", "c"]) {
        world.give(id, "w", n).await;
    }
    let claim = Claim { worker: "w".into(), number: 3 };
    let before = world.versionstamp().await;
    assert!(!world.remove("w", 2).await);
    let after_first = world.versionstamp().await;
    assert_ne!(before, after_first, "the membership changed unseen");
    // It is no longer a member: none of its writes count, although its job is not given back yet.
    let listed = world.run(async |tx, keys| workers::list(tx, keys, T).await).await;
    assert_eq!(listed.len(), 1);
    let ending = Ending::completed(json("1"));
    let ended = world
        .try_run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 3, HISTORY), "c", &claim, &ending, None, None).await
        })
        .await;
    assert!(matches!(ended, Err(Error::Halt)), "{ended:?}");
    // Its neighbour still sees it, and completes the removal.
    assert_eq!(world.neighbours("v", 9).await, ["w"]);
    assert!(world.remove("w", 2).await);
    assert_eq!(world.versionstamp().await, after_first, "the membership changed once only");
    for id in ["a", "b", "c"] {
        let job = world.run(async |tx, keys| jobs::get(tx, keys, T, id).await).await.unwrap();
        assert_eq!((job.state(), job.claim()), (State::Pending, None));
    }
    assert_eq!(world.neighbours("v", 9).await, [""; 0]);
}

#[tokio::test]
async fn nothing_is_left_of_a_removed_worker() {
    let world = World::with(&["the worker"]).await;
    for (n, id) in (1..).zip(["a", "b", "c"]) {
        world.give(id, "the worker", n).await;
    }
    let numbers = async |tx: &Transaction, keys: &Keyspace| {
        for _ in 0..3 {
            claims::next_number(tx, keys, T, "the worker").await?;
        }
        Ok(())
    };
    world.run(numbers).await;
    assert!(!world.remove("the worker", 2).await);
    // Cancelling a job between the batches writes the signal again.
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "c", 3).await).await;
    assert_ne!(world.rows_with("signal").await, [""; 0]);
    assert!(world.remove("the worker", 2).await);
    assert_eq!(world.rows_with("the worker").await, [""; 0]);
    let job = world.run(async |tx, keys| jobs::get(tx, keys, T, "c").await).await.unwrap();
    assert_eq!(job.state(), State::Cancelled);
}

#[tokio::test]
async fn two_removers_at_once_give_every_job_back_once() {
    let world = World::with(&["w"]).await;
    for (n, id) in (1..).zip(["a", "b", "c", "d"]) {
        world.give(id, "w", n).await;
    }
    let (keys, store) = (&world.keys, &world.store);
    let remover = async || loop {
        let removed = store.transact(|tx| async move {
            workers::remove(Context::new(&tx, keys, T, 3, HISTORY), "w", 1).await
        });
        if removed.await.unwrap() {
            return;
        }
    };
    tokio::join!(remover(), remover());
    for id in ["a", "b", "c", "d"] {
        let job = world.run(async |tx, keys| jobs::get(tx, keys, T, id).await).await.unwrap();
        let stops = job
            .history
            .iter()
            .filter(|event| matches!(event.kind, turnwise_queue::EventKind::Stopped { .. }));
        assert_eq!((job.state(), stops.count()), (State::Pending, 1));
    }
}

#[tokio::test]
async fn a_claim_in_flight_while_its_worker_is_removed_is_refused() {
    let world = World::with(&["w"]).await;
    world.run(async |tx, keys| jobs::add(tx, keys, &NewJob::new(T, "a", json("{}")), 1).await).await;
    let tx = world.tx().await;
    let claim = Claim { worker: "w".into(), number: 1 };
    assert!(
        claims::claim(Context::new(&tx, &world.keys, T, 2, HISTORY), "a", &claim).await.unwrap().is_some()
    );
    assert!(world.remove("w", 9).await);
    assert!(matches!(tx.commit().await, Err(StoreError::Conflict)));
}

#[tokio::test]
async fn a_claim_that_overtakes_the_removal_of_its_worker_is_given_back() {
    let world = World::with(&["w"]).await;
    world.run(async |tx, keys| jobs::add(tx, keys, &NewJob::new(T, "a", json("{}")), 1).await).await;
    let tx = world.tx().await;
    assert!(
        workers::remove(Context::new(&tx, &world.keys, T, 2, HISTORY), "w", 9).await.unwrap(),
        "it has no job"
    );
    let claim = Claim { worker: "w".into(), number: 1 };
    let claimed = world
        .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 2, HISTORY), "a", &claim).await)
        .await;
    assert!(claimed.is_some());
    // It read the rows before there was something to give back.
    assert!(matches!(tx.commit().await, Err(StoreError::Conflict)));
    assert!(world.remove("w", 9).await);
    let job = world.run(async |tx, keys| jobs::get(tx, keys, T, "a").await).await.unwrap();
    assert_eq!((job.state(), job.claim()), (State::Pending, None));
}

#[tokio::test]
async fn after_a_fence_nothing_that_began_before_it_is_committed() {
    let world = World::with(&["w"]).await;
    world.run(async |tx, keys| jobs::add(tx, keys, &NewJob::new(T, "a", json("{}")), 1).await).await;
    let tx = world.tx().await;
    let claim = Claim { worker: "w".into(), number: 1 };
    assert!(
        claims::claim(Context::new(&tx, &world.keys, T, 2, HISTORY), "a", &claim).await.unwrap().is_some()
    );
    let before = world.versionstamp().await;
    world.run(async |tx, keys| workers::fence(tx, keys, T, "w").await).await;
    assert!(matches!(tx.commit().await, Err(StoreError::Conflict)));
    assert_eq!(world.versionstamp().await, before, "nobody joined or left");
    let stranger = world.try_run(async |tx, keys| workers::fence(tx, keys, T, "x").await).await;
    assert!(matches!(stranger, Err(Error::Halt)), "{stranger:?}");
}

#[tokio::test]
async fn a_name_or_type_that_is_too_long_is_refused() {
    let world = World::empty(Limits::SMALL);
    let long = Worker { name: Some("x".repeat(129)), ..Worker::new("w", "n", 0, 1) };
    for (job_type, worker) in [(T, long), (&*"t".repeat(65), Worker::new("w", "n", 0, 1))] {
        let refused = world.try_run(async |tx, keys| workers::register(tx, keys, job_type, &worker)).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
}
