//! Priorities: how they order a tenant's queue, when they change, and that jobs keep them.

use crate::common::{T, json};
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::concurrency::ReleaseOptions;
use turnwise_queue::jobs::{self, Prioritized};
use turnwise_queue::tasks::Tasks;
use turnwise_queue::{
    Claim, Context, Error, Keyspace, NewJob, Result, State, concurrency, filters, locks, tenants,
};
use turnwise_store::Transaction;

type World = crate::common::World<Priorities>;

#[derive(Default)]
struct Priorities;

impl World {
    async fn add(&self, id: &str, priority: Option<i8>, now_us: i64) {
        let new = NewJob { priority, ..NewJob::new(T, id, json("{}")) };
        self.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await.map(drop)).await;
    }

    async fn set(&self, id: &str, priority: i8) -> Result<Prioritized> {
        self.try_run(async |tx, keys| jobs::set_priority(tx, keys, T, id, priority).await).await
    }

    async fn queue(&self) -> Vec<(String, i8)> {
        let front = self.run(async |tx, keys| tenants::front(tx, keys, T, "default", 100).await).await;
        front.into_iter().map(|job| (job.id, job.priority)).collect()
    }

    async fn claim(&self, id: &str, number: u64) -> Claim {
        let claim = Claim { worker: "w".into(), number };
        let claimed = self
            .try_run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 7, 20), id, &claim).await)
            .await;
        assert!(claimed.unwrap().is_some());
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending) {
        let ended = async |tx: &Transaction, keys: &Keyspace| {
            claims::end(Context::new(tx, keys, T, 90, 20), id, claim, &ending, None, None).await.map(drop)
        };
        self.run(ended).await;
    }
}

fn queued(jobs: &[(&str, i8)]) -> Vec<(String, i8)> {
    jobs.iter().map(|(id, priority)| ((*id).to_owned(), *priority)).collect()
}

#[tokio::test]
async fn lower_numbers_come_first_and_equal_ones_in_the_order_of_time() {
    let world = World::new().await;
    for (n, (id, priority)) in (1..).zip([
        ("a", None),
        ("b", Some(19)),
        ("c", Some(-20)),
        ("d", Some(0)),
        ("e", Some(-20)),
        ("f", Some(-1)),
    ]) {
        world.add(id, priority, n).await;
    }
    assert_eq!(
        world.queue().await,
        queued(&[("c", -20), ("e", -20), ("f", -1), ("a", 0), ("d", 0), ("b", 19)])
    );
    assert_eq!(world.set("b", -20).await.unwrap(), Prioritized::Set(State::Pending));
    assert_eq!(world.queue().await[..3], queued(&[("b", -20), ("c", -20), ("e", -20)]), "as it came");
    assert_eq!(world.set("c", 7).await.unwrap(), Prioritized::Set(State::Pending));
    assert_eq!(world.queue().await.last(), Some(&("c".to_owned(), 7)));
    let rank = async |id: &str| {
        let job = world.get(id).await;
        world.run(async |tx, keys| tenants::rank(tx, keys, &job, 100).await).await
    };
    assert_eq!((rank("b").await, rank("c").await), (0, 5));
    for priority in [-21, 20] {
        assert!(matches!(world.set("a", priority).await, Err(Error::Invalid { field: "priority", .. })));
        let new = NewJob { priority: Some(priority), ..NewJob::new(T, "x", json("{}")) };
        assert!(matches!(new.check(), Err(Error::Invalid { field: "priority", .. })));
    }
    assert!(matches!(world.set("nobody", 1).await, Err(Error::NotFound)));
}

#[tokio::test]
async fn a_job_keeps_its_class_until_a_client_changes_it() {
    let world = World::new().await;
    world.add("a", Some(-3), 1).await;
    world.add("b", None, 2).await;
    for (number, ending) in [
        (1, Ending::Stopped),
        (2, Ending::Preempted),
        (3, Ending::Crashed { error: "ouch".into(), retry_us: Some(95) }),
    ] {
        let claim = world.claim("a", number).await;
        world.end("a", &claim, ending).await;
        world.run(async |tx, keys| claims::release_due(tx, keys, T, 99, 9, |_| true).await).await;
        assert_eq!(world.queue().await, queued(&[("a", -3), ("b", 0)]));
    }
    world.add("a", None, 100).await;
    assert_eq!(world.get("a").await.priority, -3, "added again without one");
    world.add("a", Some(2), 101).await;
    assert_eq!(world.queue().await, queued(&[("b", 0), ("a", 2)]));
    // The priority of a running job is stored for its next run.
    let claim = world.claim("a", 4).await;
    assert_eq!(world.set("a", -1).await.unwrap(), Prioritized::Set(State::Running));
    world.end("a", &claim, Ending::Stopped).await;
    assert_eq!(world.queue().await, queued(&[("a", -1), ("b", 0)]));
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 102).await).await;
    assert_eq!(world.set("a", 5).await.unwrap(), Prioritized::Ended(State::Cancelled));
    assert_eq!(world.get("a").await.priority, -1);
}

#[tokio::test]
async fn the_class_changes_wherever_a_job_waits() {
    let world = World::new().await;
    for (n, id) in (1..).zip(["keyed", "reserves", "held-back", "paused", "first"]) {
        let mut new = NewJob::new(T, id, json("{}"));
        if id == "reserves" {
            new.spec.locks = serde_json::from_str(r#"{"node":{"exclusive":["n"]}}"#).unwrap();
        }
        world.run(async |tx, keys| jobs::add(tx, keys, &new, n).await).await;
    }
    let rule = &Rule {
        id: "p".into(),
        priority: 0,
        watermark_us: 0,
        when: String::new(),
        action: Action::Pause,
        limit: None,
        rate: None,
        note: None,
    };
    world.run(async |tx, keys| filters::put(tx, keys, rule).await).await;
    let limit = &Limit { bucket: Bucket::Reason("net".into()), most: 1 };
    world
        .run(async |tx, keys| {
            tenants::set_key(tx, keys, T, "keyed", Some(0.5)).await?;
            locks::reserve(tx, keys, T, "reserves", 9).await?;
            concurrency::hold_back(tx, keys, T, "held-back", limit, None, 9).await?;
            filters::pause(tx, keys, T, "paused", "p", b"stamp", 9).await.map(drop)
        })
        .await;
    for id in ["keyed", "reserves", "held-back", "paused"] {
        world.set(id, 4).await.unwrap();
    }
    assert_eq!(world.queue().await, queued(&[("first", 0), ("reserves", 4), ("keyed", 4)]));
    assert!(world.get("reserves").await.reserved().is_some(), "it keeps what it has reserved");
    world.run(async |tx, keys| filters::release(tx, keys, None, 9).await).await;
    let all = |waiting: &[(String, usize)], _: usize| (0..waiting.len()).collect();
    world
        .run(async |tx, keys| {
            concurrency::release_limited(
                tx,
                keys,
                T,
                ReleaseOptions {
                    rotation: &concurrency::Rotation::default(),
                    most: 9,
                    clears: true,
                    tasks: &Tasks::default(),
                    now_us: 9,
                },
                |_, _| true,
                all,
            )
            .await
        })
        .await;
    let behind = [("first", 0), ("reserves", 4), ("held-back", 4), ("paused", 4), ("keyed", 4)];
    assert_eq!(world.queue().await, queued(&behind));
}

/// A worker whose slots become fewer stops one-shot jobs too. They take no turns with continuous ones.
#[tokio::test]
async fn a_one_shot_job_whose_slot_is_gone_is_the_next_to_start_and_a_continuous_one_is_the_last() {
    let world = World::new().await;
    for (id, continuous, added_us) in [("one-shot", false, 1), ("turn", true, 2), ("waits", true, 3)] {
        let new = NewJob::new(T, id, json("{}")).with(|spec| spec.continuous = continuous);
        world.run(async |tx, keys| jobs::add(tx, keys, &new, added_us).await.map(drop)).await;
    }
    // They start at 7, after the third began to wait, and are stopped at 90.
    let claims = [("one-shot", world.claim("one-shot", 1).await), ("turn", world.claim("turn", 2).await)];
    for (id, claim) in &claims {
        world.end(id, claim, Ending::Preempted).await;
    }
    assert_eq!(world.queue().await, queued(&[("one-shot", 0), ("waits", 0), ("turn", 0)]));
}
