//! Job filters as rows: which jobs they pause, and which return when they change.

use std::sync::Arc;

use serde_json::value::RawValue;
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_queue::{Error, Job, Keyspace, NewJob, State, check, filters, jobs, tenants};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Isolation, Limits, RangeRead, Store, Transaction, runtime};

const T: &str = "test";

fn rule(id: &str, when: &str) -> Rule {
    Rule {
        id: id.into(),
        priority: 0,
        watermark_us: 0,
        when: when.into(),
        action: Action::Pause,
        limit: None,
        note: None,
    }
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
        $world.check().await;
        done
    }};
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { durable: false, ..Options::default() };
        let engine = Embedded::open_with(dir.path(), options).unwrap();
        let store = Store::new(engine, Arc::new(runtime::System)).with_limits(Limits::SMALL);
        World { store, keys: Keyspace::default(), _dir: dir }
    }

    async fn add(&self, id: &str, now_us: i64) {
        let new = NewJob::new(T, id, RawValue::from_string("{}".into()).unwrap());
        tx!(self, |tx, keys| jobs::add(tx, keys, &new, now_us)).unwrap();
    }

    async fn put(&self, rule: &Rule) -> Vec<u8> {
        tx!(self, |tx, keys| filters::put(tx, keys, rule)).unwrap();
        tx!(self, |tx, keys| filters::stamp(tx, keys)).unwrap().unwrap().to_vec()
    }

    async fn pause(&self, id: &str, filter: &str, stamp: &[u8]) -> bool {
        tx!(self, |tx, keys| filters::pause(tx, keys, T, id, filter, stamp, 50)).unwrap()
    }

    /// Returns how many transactions it took.
    async fn release(&self) -> usize {
        let mut after = None;
        for transactions in 1..1_000 {
            let from = after.clone();
            after = tx!(self, |tx, keys| filters::release(tx, keys, from.as_ref(), 4)).unwrap();
            if after.is_none() {
                return transactions;
            }
        }
        panic!("there is no end of it");
    }

    async fn get(&self, id: &str) -> Job {
        tx!(self, |tx, keys| jobs::get(tx, keys, T, id)).unwrap().unwrap()
    }

    async fn queue(&self) -> Vec<String> {
        let front = tx!(self, |tx, keys| tenants::front(tx, keys, T, "default", 100)).unwrap();
        front.into_iter().map(|job| job.id).collect()
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
async fn a_paused_job_comes_back_to_its_place_when_the_filters_change() {
    let world = World::new();
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
    assert_eq!(world.queue().await, ["c", "h"]);
    world.release().await;
    assert_eq!(world.queue().await, ["c", "h"], "as long as the filters stay as they are");
    assert!(tx!(world, |tx, keys| filters::remove(tx, keys, "p")).unwrap());
    assert!(world.release().await > 1);
    assert_eq!(world.queue().await, ["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
    assert_eq!(world.get("b").await.paused(), None);
    assert!(!tx!(world, |tx, keys| filters::remove(tx, keys, "p")).unwrap());
}

#[tokio::test]
async fn a_paused_job_can_be_cancelled_removed_retried_and_added_again() {
    let world = World::new();
    let stamp = world.put(&rule("p", "")).await;
    for id in ["cancel", "remove", "retry", "again"] {
        world.add(id, 1).await;
        assert!(world.pause(id, "p", &stamp).await);
    }
    tx!(world, |tx, keys| jobs::cancel(tx, keys, T, "cancel", 5)).unwrap();
    tx!(world, |tx, keys| jobs::remove(tx, keys, T, "remove")).unwrap();
    tx!(world, |tx, keys| jobs::retry(tx, keys, T, "retry", 6)).unwrap();
    world.add("again", 7).await;
    assert_eq!(world.queue().await, ["retry", "again"]);
    assert_eq!(world.get("cancel").await.state(), State::Cancelled);
    let done = tx!(world, |tx, keys| filters::reject(tx, keys, T, "retry", "filter `x` rejects it", 8));
    assert!(done.unwrap());
    let job = world.get("retry").await;
    assert_eq!((job.state(), job.reason()), (State::Cancelled, Some("filter `x` rejects it")));
}

#[tokio::test]
async fn filters_are_checked_and_bounded() {
    let world = World::new();
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
    let tx = world.store.begin().await.unwrap();
    assert!(filters::put(&tx, &world.keys, &rule("one too many", "")).await.is_err());
    filters::put(&tx, &world.keys, &rule("7", "")).await.unwrap();
    assert_eq!(filters::list(&tx, &world.keys).await.unwrap().len(), filters::MAX_FILTERS);
}
