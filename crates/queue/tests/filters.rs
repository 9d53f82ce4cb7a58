//! Job filters as rows: which jobs they pause, and which return when they change.

use crate::common::{T, json};
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_queue::{Error, NewJob, State, filters, jobs};
use turnwise_store::Limits;

fn rule(id: &str, when: &str) -> Rule {
    Rule {
        id: id.into(),
        priority: 0,
        watermark_us: 0,
        when: when.into(),
        action: Action::Pause,
        limit: None,
        rate: None,
        note: None,
    }
}

type World = crate::common::World<Filters>;

#[derive(Default)]
struct Filters;

impl World {
    async fn add(&self, id: &str, now_us: i64) {
        let new = NewJob::new(T, id, json("{}"));
        self.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await).await;
    }

    async fn put(&self, rule: &Rule) -> Vec<u8> {
        self.run(async |tx, keys| filters::put(tx, keys, rule).await).await;
        self.run(async |tx, keys| filters::stamp(tx, keys).await).await.unwrap().to_vec()
    }

    async fn pause(&self, id: &str, filter: &str, stamp: &[u8]) -> bool {
        self.run(async |tx, keys| filters::pause(tx, keys, T, id, filter, stamp, 50).await).await
    }

    /// Returns how many transactions it took.
    async fn release(&self) -> usize {
        let mut after = None;
        for transactions in 1..1_000 {
            let from = after.clone();
            after = self.run(async |tx, keys| filters::release(tx, keys, from.as_ref(), 4).await).await;
            if after.is_none() {
                return transactions;
            }
        }
        panic!("there is no end of it");
    }
}

#[tokio::test]
async fn a_paused_job_comes_back_to_its_place_when_the_filters_change() {
    let world = World::empty(Limits::SMALL);
    for (n, id) in (1..).zip(["a", "b", "c", "d", "e", "f", "g", "h", "i"]) {
        world.add(id, n).await;
    }
    let stamp = world.put(&rule("p", "")).await;
    for id in ["a", "b", "d", "e", "f", "g", "i"] {
        assert!(world.pause(id, "p", &stamp).await);
        assert!(!world.pause(id, "p", &stamp).await, "it is not pending any more");
    }
    let job = world.get("b").await;
    assert_eq!((job.state(), job.paused(), job.order_us()), (State::Delayed, Some("p"), 2));
    assert_eq!(world.front("default").await, ["c", "h"]);
    world.release().await;
    assert_eq!(world.front("default").await, ["c", "h"], "as long as the filters stay as they are");
    assert!(world.run(async |tx, keys| filters::remove(tx, keys, "p").await).await);
    assert!(world.release().await > 1);
    assert_eq!(world.front("default").await, ["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
    assert_eq!(world.get("b").await.paused(), None);
    assert!(!world.run(async |tx, keys| filters::remove(tx, keys, "p").await).await);
}

#[tokio::test]
async fn a_paused_job_can_be_cancelled_removed_retried_and_added_again() {
    let world = World::empty(Limits::SMALL);
    let stamp = world.put(&rule("p", "")).await;
    for id in ["cancel", "remove", "retry", "again"] {
        world.add(id, 1).await;
        assert!(world.pause(id, "p", &stamp).await);
    }
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "cancel", 5).await).await;
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "remove").await).await;
    world.run(async |tx, keys| jobs::retry(tx, keys, T, "retry", 6).await).await;
    world.add("again", 7).await;
    assert_eq!(world.front("default").await, ["retry", "again"]);
    assert_eq!(world.get("cancel").await.state(), State::Cancelled);
    let done = world
        .try_run(async |tx, keys| filters::reject(tx, keys, T, "retry", "filter `x` rejects it", 8).await)
        .await;
    assert!(done.unwrap());
    let job = world.get("retry").await;
    assert_eq!((job.state(), job.reason()), (State::Cancelled, Some("filter `x` rejects it")));
}

#[tokio::test]
async fn filters_are_checked_and_bounded() {
    let world = World::empty(Limits::SMALL);
    let refused = |rule: &Rule| match filters::check(rule) {
        Err(Error::Invalid { field, problem }) => format!("{field}: {problem}"),
        other => panic!("not refused: {other:?}"),
    };
    assert!(refused(&rule("a", "type = ")).starts_with("when: column 8: "));
    assert!(refused(&rule("", "")).starts_with("id: "));
    assert!(refused(&Rule { priority: 1_001, ..rule("a", "") }).starts_with("priority: "));
    assert!(refused(&Rule { watermark_us: -1, ..rule("a", "") }).starts_with("watermark_us: "));
    for n in 0..filters::MAX_FILTERS {
        world.put(&rule(&n.to_string(), "type = mail")).await;
    }
    let tx = world.tx().await;
    assert!(filters::put(&tx, &world.keys, &rule("one too many", "")).await.is_err());
    filters::put(&tx, &world.keys, &rule("7", "")).await.unwrap();
    assert_eq!(filters::list(&tx, &world.keys).await.unwrap().len(), filters::MAX_FILTERS);
}
