//! A transaction sees its own writes, in order. No other transaction sees them before it commits.

use super::scene::{Case, Scene, backwards, cases, forwards, key, span};
use crate::{Error, Isolation, RangeRead, Transaction};

pub(super) const CASES: &[Case] = cases![
    a_transaction_reads_only_its_own_writes,
    own_writes_are_merged_into_ranges,
    limits_count_merged_rows,
    cleared_ranges_are_skipped,
    the_last_own_write_wins,
    a_versionstamp_is_not_read_before_the_commit,
    a_dropped_transaction_has_written_nothing,
];

async fn read(tx: &Transaction, read: RangeRead) -> Vec<(bytes::Bytes, bytes::Bytes)> {
    let strict = tx.range_with(read.clone(), Isolation::Serializable).await.expect("reads");
    let relaxed = tx.range_with(read, Isolation::Snapshot).await.expect("reads");
    assert_eq!(strict, relaxed);
    strict
}

async fn names(tx: &Transaction, range: RangeRead) -> Vec<bytes::Bytes> {
    read(tx, range).await.into_iter().map(|(name, _)| name).collect()
}

async fn a_transaction_reads_only_its_own_writes(scene: Scene) {
    scene.set(&[("a", "stored"), ("b", "stored")]).await;
    let tx = scene.begin().await;
    tx.set(key("a"), key("own")).expect("sets");
    tx.clear(key("b")).expect("clears");
    tx.set(key("c"), key("own")).expect("sets");
    assert_eq!(tx.get(&key("a")).await.expect("reads"), Some(key("own")));
    assert_eq!(tx.get(&key("b")).await.expect("reads"), None);
    assert_eq!(tx.get(&key("c")).await.expect("reads"), Some(key("own")));
    assert_eq!(scene.get("a").await, Some(key("stored")));
    assert_eq!(scene.get("b").await, Some(key("stored")));
    assert_eq!(scene.get("c").await, None);
    tx.commit().await.expect("commits");
    assert_eq!(scene.all().await, [(key("a"), key("own")), (key("c"), key("own"))]);
}

async fn own_writes_are_merged_into_ranges(scene: Scene) {
    scene.set(&[("b", "stored"), ("d", "stored"), ("f", "stored"), ("h", "stored")]).await;
    let tx = scene.begin().await;
    tx.set(key("a"), key("own")).expect("sets");
    tx.set(key("d"), key("own")).expect("sets");
    tx.set(key("e"), key("own")).expect("sets");
    tx.clear(key("f")).expect("clears");
    tx.set(key("i"), key("own")).expect("sets");
    let expected = [
        (key("a"), key("own")),
        (key("b"), key("stored")),
        (key("d"), key("own")),
        (key("e"), key("own")),
        (key("h"), key("stored")),
        (key("i"), key("own")),
    ];
    assert_eq!(read(&tx, forwards("", "z", 100)).await, expected);
    let mut reversed = expected.to_vec();
    reversed.reverse();
    assert_eq!(read(&tx, backwards("", "z", 100)).await, reversed);
    assert_eq!(names(&tx, forwards("b", "e", 100)).await, ["b", "d"]);
    assert_eq!(names(&tx, backwards("b", "e", 100)).await, ["d", "b"]);
}

async fn limits_count_merged_rows(scene: Scene) {
    scene.set(&[("b", "1"), ("d", "1"), ("f", "1"), ("h", "1")]).await;
    let tx = scene.begin().await;
    for name in ["a", "c", "i"] {
        tx.set(key(name), key("own")).expect("sets");
    }
    for name in ["b", "d"] {
        tx.clear(key(name)).expect("clears");
    }
    let all = ["a", "c", "f", "h", "i"];
    let reversed = ["i", "h", "f", "c", "a"];
    for limit in 1..=6 {
        assert_eq!(names(&tx, forwards("", "z", limit)).await, all[..limit.min(5)], "limit {limit}");
        assert_eq!(names(&tx, backwards("", "z", limit)).await, reversed[..limit.min(5)], "limit {limit}");
    }
    assert_eq!(names(&tx, forwards("", "z", 0)).await, [""; 0]);
}

async fn cleared_ranges_are_skipped(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1"), ("f", "1")]).await;
    let tx = scene.begin().await;
    tx.set(key("c"), key("lost")).expect("sets");
    tx.clear_range(span("b", "e")).expect("clears");
    tx.set(key("d"), key("kept")).expect("sets");
    assert_eq!(tx.get(&key("b")).await.expect("reads"), None);
    assert_eq!(tx.get(&key("c")).await.expect("reads"), None);
    assert_eq!(tx.get(&key("d")).await.expect("reads"), Some(key("kept")));
    for limit in 1..=5 {
        let all = ["a", "d", "e", "f"];
        assert_eq!(names(&tx, forwards("", "z", limit)).await, all[..limit.min(4)], "limit {limit}");
        let reversed = ["f", "e", "d", "a"];
        assert_eq!(names(&tx, backwards("", "z", limit)).await, reversed[..limit.min(4)], "limit {limit}");
    }
    tx.commit().await.expect("commits");
    let left: Vec<_> = scene.all().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["a", "d", "e", "f"]);
}

async fn the_last_own_write_wins(scene: Scene) {
    scene.set(&[("a", "0"), ("b", "0"), ("c", "0"), ("d", "0")]).await;
    let tx = scene.begin().await;
    tx.set(key("a"), key("1")).expect("sets");
    tx.clear(key("a")).expect("clears");
    tx.clear(key("b")).expect("clears");
    tx.set(key("b"), key("2")).expect("sets");
    tx.set_versionstamp(key("c")).expect("sets");
    tx.set(key("c"), key("3")).expect("sets");
    tx.set_versionstamp(key("d")).expect("sets");
    tx.clear_range(span("d", "e")).expect("clears");
    tx.commit().await.expect("commits");
    assert_eq!(scene.all().await, [(key("b"), key("2")), (key("c"), key("3"))]);
}

async fn a_versionstamp_is_not_read_before_the_commit(scene: Scene) {
    let tx = scene.begin().await;
    tx.set_versionstamp(key("b")).expect("sets");
    assert!(matches!(tx.get(&key("b")).await, Err(Error::Misuse(_))));
    assert!(matches!(tx.range(&span("a", "c"), 10).await, Err(Error::Misuse(_))));
    assert_eq!(tx.get(&key("a")).await.expect("reads"), None);
    assert_eq!(tx.range(&span("c", "d"), 10).await.expect("reads"), []);
}

async fn a_dropped_transaction_has_written_nothing(scene: Scene) {
    let tx = scene.begin().await;
    tx.set(key("a"), key("1")).expect("sets");
    drop(tx);
    assert_eq!(scene.all().await, []);
}
