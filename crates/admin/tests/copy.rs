//! Copies between embedded stores are equal row by row, resumed, refused, and never usable before they are complete.

use std::sync::Arc;

use crate::common::{Home, all_rows, fill};
use bytes::Bytes;
use turnwise_admin::copy::{Copy, Error, Progress};
use turnwise_queue::Keyspace;
use turnwise_queue::events;
use turnwise_store::Store;

fn copy(source: &Store, target: &Store) -> Copy {
    Copy {
        source: source.clone(),
        from: "embedded:source".into(),
        source_is_shared: false,
        target: target.clone(),
        progress: Arc::new(Progress::default()),
    }
}

async fn set(store: &Store, key: &Bytes, value: Option<&'static str>) {
    let write = |tx: turnwise_store::Transaction| async move {
        match value {
            Some(value) => tx.set(key.clone(), value.into()),
            None => tx.clear(key.clone()),
        }
    };
    store.transact(write).await.unwrap();
}

#[tokio::test]
async fn a_copy_is_equal_row_by_row_and_back_again() {
    let (a, b, c) = (Home::new().await, Home::new().await, Home::new().await);
    fill(&a.store, "u1", 3_000).await;
    let there = copy(&a.store, &b.store).run().await.unwrap();
    let rows = all_rows(&a.store).await;
    assert_eq!(rows, all_rows(&b.store).await);
    assert_eq!((there.rows, there.written, there.resumed), (rows.len() as u64 - 1, there.rows, false));
    let back = copy(&b.store, &c.store).run().await.unwrap();
    assert_eq!(back, there, "the same rows have the same checksum");
    assert_eq!(rows, all_rows(&c.store).await);

    let again = copy(&a.store, &b.store).run().await;
    assert!(matches!(again, Err(Error::NotEmpty)), "{again:?}");
}

/// Their rows begin with a versionstamp of the source, which has another meaning in the target. So they are numbered there, as a node of the
/// source would have done: none is lost, and the source stays as it is.
#[tokio::test]
async fn events_without_a_number_get_one_in_the_target() {
    let keys = &Keyspace::default();
    for is_recorded in [true, false] {
        let (a, b) = (Home::new().await, Home::new().await);
        fill(&a.store, "u1", 10).await;
        if is_recorded {
            let until_us = i64::MAX;
            let want =
                |tx: turnwise_store::Transaction| async move { events::want(&tx, keys, until_us).await };
            a.store.transact(want).await.unwrap();
        }
        a.store.append_from_now_on().await;
        for n in 1..=700 {
            let line = format!(r#"{{"n":{n}}}"#);
            let (log, line) = (&keys.event_in(), line.as_bytes());
            a.store.transact(|tx| async move { tx.append(log, line) }).await.unwrap();
        }
        set(&a.store, &keys.events_until(1), Some("[{}]")).await;
        set(&a.store, &keys.event_head(), Some(r#"{"next":2,"node":"n"}"#)).await;
        let before = all_rows(&a.store).await;
        let report = copy(&a.store, &b.store).run().await.unwrap();
        assert_eq!(before, all_rows(&a.store).await);
        let in_log = |key: &Bytes| keys.events_in().0 <= *key && *key < keys.events_in().1;
        let of_events = |key: &Bytes| {
            in_log(key) || keys.events().0 <= *key && *key < keys.events().1 || *key == keys.event_head()
        };
        let without = |rows: &[(Bytes, Bytes)]| -> Vec<(Bytes, Bytes)> {
            rows.iter().filter(|(key, _)| !of_events(key)).cloned().collect()
        };
        let copied = all_rows(&b.store).await;
        assert_eq!(without(&before), without(&copied));
        assert!(!copied.iter().any(|(key, _)| in_log(key)));
        assert_eq!(report.rows as usize, before.iter().filter(|(key, _)| !in_log(key)).count() - 1);
        let tx = b.store.begin().await.unwrap();
        // In the order of their numbers: each row has the number of its last event.
        let (begin, end) = keys.events();
        let numbered: Vec<serde_json::Value> = copied
            .iter()
            .filter(|(key, _)| begin <= *key && *key < end)
            .flat_map(|(_, row)| serde_json::from_slice::<Vec<serde_json::Value>>(row).unwrap())
            .collect();
        let last = if is_recorded { 701 } else { 1 };
        assert_eq!(events::head(&tx, keys).await.unwrap().next, last + 1);
        let expected = (1..last).map(|n| serde_json::json!({ "n": n }));
        assert_eq!(numbered, std::iter::once(serde_json::json!({})).chain(expected).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn equal_rows_are_not_written_again_and_changed_rows_are_corrected() {
    let keys = Keyspace::default();
    let (a, b) = (Home::new().await, Home::new().await);
    fill(&a.store, "u1", 500).await;
    copy(&a.store, &b.store).run().await.unwrap();
    // As if the copy was interrupted, and the source was used after that.
    let marker = turnwise_queue::Copying { of: "u1".into(), from: "x".into(), run: "1".into() };
    b.store
        .transact(|tx| {
            let (keys, value) = (&keys, marker.to_value());
            async move { tx.set(keys.format(), value) }
        })
        .await
        .unwrap();
    set(&a.store, &keys.job("t", "new"), Some("\"changed\"")).await;
    set(&a.store, &keys.job("t", "job-3"), None).await;
    set(&b.store, &keys.job("t", "job-4"), Some("\"changed\"")).await;
    set(&b.store, &keys.job("z", "extra"), Some("\"extra\"")).await;
    let report = copy(&a.store, &b.store).run().await.unwrap();
    assert_eq!((report.written, report.resumed), (4, true));
    assert_eq!(all_rows(&a.store).await, all_rows(&b.store).await);
}

#[tokio::test]
async fn a_wrong_source_or_target_is_refused() {
    let keys = Keyspace::default();
    let (a, b, empty) = (Home::new().await, Home::new().await, Home::new().await);
    fill(&a.store, "u1", 10).await;
    let refused = copy(&empty.store, &b.store).run().await;
    assert!(matches!(refused, Err(Error::NoSource)), "{refused:?}");
    assert_eq!(all_rows(&b.store).await, []);
    // The target is another store's unfinished copy.
    let marker = turnwise_queue::Copying { of: "u2".into(), from: "elsewhere".into(), run: "1".into() };
    b.store
        .transact(|tx| {
            let (keys, value) = (&keys, marker.to_value());
            async move { tx.set(keys.format(), value) }
        })
        .await
        .unwrap();
    let refused = copy(&a.store, &b.store).run().await;
    assert!(matches!(&refused, Err(Error::OtherCopy(from)) if from == "elsewhere"), "{refused:?}");
    let refused = copy(&b.store, &empty.store).run().await;
    assert!(matches!(&refused, Err(Error::Unfinished(from)) if from == "elsewhere"), "{refused:?}");
    set(&b.store, &keys.format(), Some("99")).await;
    let refused = copy(&b.store, &empty.store).run().await;
    assert!(matches!(&refused, Err(Error::Format(found)) if found == "99"), "{refused:?}");
    // The target holds anything else.
    set(&b.store, &keys.format(), None).await;
    set(&b.store, &Bytes::from_static(b"\x02other\0"), Some("x")).await;
    let refused = copy(&a.store, &b.store).run().await;
    assert!(matches!(refused, Err(Error::NotEmpty)), "{refused:?}");
}

#[tokio::test]
async fn a_shared_source_in_use_is_refused() {
    let (a, b) = (Home::new().await, Home::new().await);
    fill(&a.store, "u1", 10).await;
    let keys = Keyspace::default();
    let worker = turnwise_queue::Worker {
        health_timeout_us: 2_000_000,
        ..turnwise_queue::Worker::new("w", "n", 1, 1)
    };
    let (keys, worker) = (&keys, &worker);
    a.store
        .transact(|tx| async move { turnwise_queue::workers::register(&tx, keys, "t", worker) })
        .await
        .unwrap();
    let shared = || Copy { source_is_shared: true, ..copy(&a.store, &b.store) };
    let run = shared();
    let progress = run.progress.clone();
    let refused = tokio::spawn(async move { run.run().await });
    while progress.watched.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    a.store
        .transact(|tx| async move { turnwise_queue::workers::ping(&tx, keys, "t", "w", 1).await })
        .await
        .unwrap();
    let refused = refused.await.unwrap();
    assert!(
        matches!(&refused, Err(Error::InUse(who)) if who == "worker w of type t is alive"),
        "{refused:?}"
    );
    assert_eq!(all_rows(&b.store).await, []);
    // The counter does not move any more: the rows are those of a crashed worker.
    shared().run().await.unwrap();
    assert_eq!(all_rows(&a.store).await, all_rows(&b.store).await);
}
