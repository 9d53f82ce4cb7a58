//! Events: what is recorded, in which order, and what readers get.

#![allow(clippy::unwrap_used)]

use turnwise_store::runtime::Manual;
use turnwise_store::{Limits, Store};

use super::*;
use crate::workers::{self, Worker};
use crate::{NewJob, NodeOptions, jobs};

const NOW_US: i64 = 1_000_000;

struct World {
    _folder: tempfile::TempDir,
    store: Store,
    keys: Keyspace,
}

impl World {
    /// A store on which events are recorded.
    async fn recording() -> World {
        let world = World::new();
        world.store.append_from_now_on().await;
        world.run(async |tx, keys| want(&tx, &keys, i64::MAX).await).await;
        let recording = world.run(async |tx, keys| confirm(&tx, &keys).await).await;
        assert_eq!(recording.from, Some(1));
        world
    }

    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let options = turnwise_store::embedded::Options { durable: false, ..Default::default() };
        let engine = turnwise_store::embedded::Embedded::open_with(folder.path(), options).unwrap();
        let store = Store::new(engine, Manual::new(NOW_US, 0)).with_limits(Limits::SMALL);
        World { _folder: folder, store, keys: Keyspace::default() }
    }

    async fn run<T>(&self, body: impl AsyncFn(Transaction, Keyspace) -> Result<T>) -> T {
        let tx = self.store.begin().await.unwrap();
        let value = body(tx.clone(), self.keys.clone()).await.unwrap();
        tx.commit().await.unwrap();
        value
    }

    async fn add(&self, id: &str) {
        let new = NewJob::new("t", id, RawValue::from_string("{}".to_owned()).unwrap());
        self.run(async |tx, keys| jobs::add(&tx, &keys, &new, NOW_US).await).await;
    }

    /// Numbers what is there, up to `rows` per transaction.
    async fn number(&self, rows: usize) {
        let collected = self.run(async |tx, keys| collect(&tx, &keys).await).await;
        let mut next = self.run(async |tx, keys| head(&tx, &keys).await).await.next;
        let mut rest = &collected[..];
        while !rest.is_empty() {
            let some = &rest[..rows.min(rest.len())];
            let ordered = self.run(async |tx, keys| order(&tx, &keys, some, next, "n").await).await;
            let Ordered::Moved { rows, next: after } = ordered else { panic!("{ordered:?}") };
            (rest, next) = (&rest[rows..], after);
        }
    }

    async fn page(&self, since: u64) -> Page {
        self.run(async |tx, keys| page(&tx, &keys, since, 100).await).await
    }

    /// The events after a number, with their numbers.
    async fn after(&self, since: u64) -> Vec<(u64, JobEvent)> {
        let Page::Events(rows) = self.page(since).await else { panic!("{:?}", self.page(since).await) };
        let events = rows.into_iter().flat_map(|row| (row.first..).zip(row.events));
        events.map(|(number, json)| (number, serde_json::from_slice(&json).unwrap())).collect()
    }

    async fn words(&self) -> Vec<String> {
        let events = self.after(0).await;
        events
            .into_iter()
            .map(|(number, event)| format!("{number} {} {} {}", event.id, event.event, event.state))
            .collect()
    }
}

#[tokio::test]
async fn nothing_is_recorded_before_the_first_request() {
    let world = World::new();
    world.add("a").await;
    world.number(9).await;
    assert_eq!(world.page(0).await, Page::Events(Vec::new()));
    let rows = world.run(async |tx, keys| Ok(tx.range(&keys.events_in(), 9).await?)).await;
    assert!(rows.is_empty());
}

#[tokio::test]
async fn the_steps_of_jobs_are_events_in_order() {
    let world = World::recording().await;
    world.add("a").await;
    let later = NewJob {
        not_before_us: Some(NOW_US * 2),
        ..NewJob::new("t", "b", RawValue::from_string("{}".to_owned()).unwrap())
    }
    .with(|spec| spec.tenant = "acme".to_owned());
    world.run(async |tx, keys| jobs::add(&tx, &keys, &later, NOW_US).await).await;
    // Added while it waits: nothing happens to it.
    world.add("a").await;
    world.run(async |tx, keys| jobs::retry(&tx, &keys, "t", "b", NOW_US + 1).await).await;
    world.run(async |tx, keys| jobs::cancel(&tx, &keys, "t", "a", NOW_US + 2).await).await;
    world.run(async |tx, keys| jobs::cancel(&tx, &keys, "t", "a", NOW_US + 2).await).await;
    world.run(async |tx, keys| jobs::rerun(&tx, &keys, "t", "a", NOW_US + 3).await).await;
    world.run(async |tx, keys| jobs::remove(&tx, &keys, "t", "a").await).await;
    // Retention removes jobs, too.
    world.run(async |tx, keys| jobs::cancel(&tx, &keys, "t", "b", NOW_US + 4).await).await;
    let pruned = world
        .run(async |tx, keys| jobs::prune(&tx, &keys, "t", NOW_US + 5, 9, &mut Default::default()).await)
        .await;
    assert_eq!(pruned, 1);
    assert_eq!(world.words().await, Vec::<String>::new(), "they have no numbers yet");
    world.number(2).await;
    let expected = [
        "1 a added pending",
        "2 b added delayed",
        "3 b added pending",
        "4 a cancelled cancelled",
        "5 a added pending",
        "6 a removed removed",
        "7 b cancelled cancelled",
        "8 b removed removed",
    ];
    assert_eq!(world.words().await, expected);
    assert_eq!(world.after(3).await.len(), 5, "from the middle of a row");
    let (_, event) = world.after(1).await.remove(0);
    assert_eq!((event.tenant.as_str(), event.at_us, event.reason), ("acme", NOW_US, None));
    assert!(world.after(8).await.is_empty());
    assert_eq!(world.page(9).await, Page::Unknown);
}

#[tokio::test]
async fn a_reason_is_short_and_has_no_half_characters() {
    let world = World::recording().await;
    world.add("a").await;
    let long = "ä".repeat(MAX_EVENT_REASON_BYTES);
    world
        .run(async |tx, keys| {
            let mut job = jobs::get(&tx, &keys, "t", "a").await?.unwrap();
            job.refused = Some(long.clone());
            happened(&tx, &keys, &job, &EventKind::Cancelled, State::Cancelled, 7)
        })
        .await;
    world.number(9).await;
    let reason = world.after(1).await[0].1.reason.clone().unwrap();
    assert_eq!(reason.len(), MAX_EVENT_REASON_BYTES);
    assert!(long.starts_with(&reason));
}

#[tokio::test]
async fn many_events_of_one_transaction_are_several_rows() {
    let world = World::recording().await;
    let tx = world.store.begin().await.unwrap();
    let filler = "x".repeat(900);
    for n in 0..300 {
        tx.append(
            &world.keys.event_in(),
            format!(
                r#"{{"event":"added","type":"t","id":"{n}","tenant":"{filler}","state":"pending","at_us":1}}"#
            )
            .as_bytes(),
        )
        .unwrap();
    }
    tx.commit().await.unwrap();
    world.number(3).await;
    let events = world.after(0).await;
    assert_eq!(events.len(), 300);
    assert!((0..300).zip(&events).all(|(n, (number, event))| *number == n + 1 && event.id == n.to_string()));
    let rows = world.run(async |tx, keys| Ok(tx.range(&keys.events(), 99).await?)).await;
    assert!(rows.len() > 4 && rows.iter().all(|(_, row)| row.len() < 65_000), "{} rows", rows.len());
}

/// Keys of rows have another order than their stamps.
#[tokio::test]
async fn the_earliest_rows_are_collected_however_many_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let options = turnwise_store::embedded::Options { durable: false, ..Default::default() };
    let engine = turnwise_store::embedded::Embedded::open_with(folder.path(), options).unwrap();
    let keys = Keyspace::default();
    // Each process has its own keys.
    let stores: Vec<Store> = (0..5).map(|n| Store::new(engine.clone(), Manual::new(NOW_US, n))).collect();
    for store in &stores {
        store.append_from_now_on().await;
    }
    for n in 0..1_000_usize {
        let tx = stores[n * 7 % 5].begin().await.unwrap();
        tx.append(&keys.event_in(), format!("{n:04} {}", "x".repeat(n * 37 % 300)).as_bytes()).unwrap();
        tx.commit().await.unwrap();
    }
    let mut counts = Vec::new();
    for most_bytes in [1, 1_000, 20_000, usize::MAX] {
        let tx = stores[0].begin().await.unwrap();
        let rows = collect_up_to(&tx, &keys, None, most_bytes).await.unwrap();
        for (n, row) in rows.iter().enumerate() {
            assert!(row.lines.starts_with(format!("{n:04}").as_bytes()), "{n} with {most_bytes} bytes");
        }
        counts.push(rows.len());
    }
    assert!(counts[0] == 1 && counts.is_sorted() && counts[1] > 1 && counts[3] == 1_000, "{counts:?}");
}

#[tokio::test]
async fn two_nodes_number_events_once() {
    let world = World::recording().await;
    world.add("a").await;
    let slow = world.run(async |tx, keys| collect(&tx, &keys).await).await;
    let next = world.run(async |tx, keys| head(&tx, &keys).await).await.next;
    // Both have begun.
    let tx = world.store.begin().await.unwrap();
    let ordered = order(&tx, &world.keys, &slow, next, "slow").await.unwrap();
    assert_eq!(ordered, Ordered::Moved { rows: 1, next: 2 });
    world.number(9).await;
    assert!(tx.commit().await.is_err(), "the other node was first");
    let late = world.run(async |tx, keys| order(&tx, &keys, &slow, next, "slow").await).await;
    assert_eq!(late, Ordered::Stale);
    assert_eq!(world.words().await, ["1 a added pending"]);
}

#[tokio::test]
async fn old_events_are_removed_and_their_readers_told() {
    let world = World::recording().await;
    for id in ["a", "b", "c", "d"] {
        world.add(id).await;
        world.number(9).await;
    }
    let prune_to =
        async |before_us, most| world.run(async |tx, keys| prune(&tx, &keys, before_us, most).await).await;
    assert_eq!(prune_to(NOW_US, 4).await, 0);
    assert_eq!(prune_to(NOW_US, 3).await, 1);
    assert_eq!(world.page(0).await, Page::Gone { oldest: 2 });
    assert_eq!(world.after(1).await.len(), 3);
    assert_eq!(prune_to(NOW_US + 1, 4).await, 3);
    assert_eq!(world.page(2).await, Page::Gone { oldest: 5 });
    assert_eq!(world.page(4).await, Page::Events(Vec::new()), "it has seen all");
    world.add("e").await;
    world.number(9).await;
    assert_eq!(world.after(4).await[0].0, 5, "numbers go on");
}

#[tokio::test]
async fn a_record_is_complete_once_all_nodes_record() {
    let world = World::new();
    world.store.append_from_now_on().await;
    for node in ["one", "two"] {
        let options =
            NodeOptions { url: String::new(), version: String::new(), place: None, upstream: false };
        let worker = Worker { node_options: Some(options), ..Worker::new(node, node, 1, 0) };
        world.run(async |tx, keys| workers::register(&tx, &keys, nodes::NODE_TYPE, &worker)).await;
    }
    let first = world.run(async |tx, keys| want(&tx, &keys, 5).await).await;
    assert_eq!((first.number, first.until_us, first.from), (1, Some(5), None));
    let again = world.run(async |tx, keys| want(&tx, &keys, 3).await).await;
    assert_eq!(again, first, "a later time is kept");
    world.add("too early").await;
    world.number(9).await;
    world.run(async |tx, keys| acknowledge(&tx, &keys, "one", &first)).await;
    assert_eq!(world.run(async |tx, keys| confirm(&tx, &keys).await).await.from, None);
    world.run(async |tx, keys| acknowledge(&tx, &keys, "two", &first)).await;
    assert_eq!(world.run(async |tx, keys| confirm(&tx, &keys).await).await.from, Some(2));
    assert_eq!(world.page(0).await, Page::Gone { oldest: 2 });
    world.add("a").await;
    world.number(9).await;
    assert_eq!(world.after(1).await.len(), 1);
    // Nobody asks any more.
    assert!(!world.run(async |tx, keys| end(&tx, &keys, 4).await).await);
    assert!(world.run(async |tx, keys| end(&tx, &keys, 5).await).await);
    assert_eq!(world.page(1).await, Page::Gone { oldest: 3 });
    world.add("left over").await;
    assert_eq!(world.run(async |tx, keys| drop_unordered(&tx, &keys, 9).await).await, 1);
    // The next recording does not begin with what nodes said about the last one.
    let second = world.run(async |tx, keys| want(&tx, &keys, 9).await).await;
    assert_eq!(second.number, 2);
    assert_eq!(world.run(async |tx, keys| confirm(&tx, &keys).await).await.from, None);
    assert_eq!(world.run(async |tx, keys| drop_unordered(&tx, &keys, 9).await).await, 0, "it is on again");
}
