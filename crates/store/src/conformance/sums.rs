//! Sums, to which transactions add without reading them. Their keys begin with `sum`: rows of sums are not sealed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::scene::{Case, Scene, cases, key, soon, span};
use crate::{Error, Isolation, RangeRead, Sum};

pub(super) const CASES: &[Case] = cases![
    they_are_what_was_added,
    they_are_unknown_within_the_transaction,
    adds_never_conflict,
    a_refused_transaction_adds_nothing,
    their_rows_can_be_replaced_by_one,
    a_sum_that_was_cleared_begins_again,
];

/// Within the first eight bytes, and across two of the pieces that an engine may use.
const SHIFTS: [usize; 3] = [0, 40, 440];

async fn add(scene: &Scene, name: &'static str, count: i64) {
    let tx = scene.begin().await;
    for shift in SHIFTS {
        tx.add(key(name), Sum::of(count, shift)).expect("adds");
    }
    tx.commit().await.expect("commits");
}

async fn sum(scene: &Scene, name: &'static str) -> [u64; 3] {
    let sum = scene.begin().await.sum(&key(name)).await.expect("reads");
    SHIFTS.map(|shift| sum.field(shift, 40))
}

async fn they_are_what_was_added(scene: Scene) {
    assert_eq!(sum(&scene, "sum a").await, [0; 3]);
    add(&scene, "sum a", 1 << 30).await;
    add(&scene, "sum b", 7).await;
    add(&scene, "sum a", -(1 << 29)).await;
    add(&scene, "sum a", 5).await;
    assert_eq!(sum(&scene, "sum a").await, [(1 << 29) + 5; 3]);
    let scene = scene.reopened().await;
    add(&scene, "sum a", -5).await;
    assert_eq!(sum(&scene, "sum a").await, [1 << 29; 3]);
    // What an engine appends begins lower than any printable byte.
    assert!(!scene.begin().await.range(&span("sum a", "sum a "), 100).await.expect("reads").is_empty());
    add(&scene, "sum a", -(1 << 29)).await;
    assert_eq!(sum(&scene, "sum a").await, [0; 3]);
}

async fn they_are_unknown_within_the_transaction(scene: Scene) {
    let tx = scene.begin().await;
    tx.add(key("sum a"), Sum::of(1, 0)).expect("adds");
    assert!(matches!(tx.get(&key("sum a")).await, Err(Error::Misuse(_))));
    assert!(matches!(tx.sum(&key("sum a")).await, Err(Error::Misuse(_))));
    tx.set(key("b"), key("1")).expect("sets");
    assert!(matches!(tx.add(key("b"), Sum::of(1, 0)), Err(Error::Misuse(_))));
    // Adding nothing in the end is no write of this row.
    tx.add(key("sum a"), Sum::of(-1, 0)).expect("adds");
    tx.commit().await.expect("commits");
    assert_eq!(scene.all().await, [(key("b"), key("1"))]);
    let tx = scene.begin().await;
    tx.add(key("sum a"), Sum::of(1, 0)).expect("adds");
    tx.add(key("sum a"), Sum::of(-1, 0)).expect("adds");
    assert_eq!(tx.commit().await.expect("commits"), None, "it wrote nothing");
}

async fn adds_never_conflict(scene: Scene) {
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let store = scene.store.clone();
            tokio::spawn(async move {
                for round in 0..50 {
                    let tx = store.begin().await.expect("begins");
                    tx.add(key("sum a"), Sum::of(round, 40)).expect("adds");
                    tx.add(key("sum b"), Sum::of(task, 0)).expect("adds");
                    match tx.commit().await {
                        Ok(_) => {}
                        Err(error) => panic!("an add has failed: {error}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        soon("a writer's end", task).await.expect("no writer fails");
    }
    let tx = scene.begin().await;
    assert_eq!(tx.sum(&key("sum a")).await.expect("reads").field(40, 40), 8 * 49 * 50 / 2);
    assert_eq!(tx.sum(&key("sum b")).await.expect("reads").field(0, 40), 50 * 28);
}

/// Writers increment a row, which conflicts, and add to a sum in the same transaction.
async fn a_refused_transaction_adds_nothing(scene: Scene) {
    let (done, refused) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (store, done, refused) = (scene.store.clone(), done.clone(), refused.clone());
            tokio::spawn(async move {
                for _ in 0..40 {
                    let tx = store.begin().await.expect("begins");
                    let before = tx.get(&key("row")).await.expect("reads");
                    let before: i64 =
                        before.map_or(0, |row| String::from_utf8_lossy(&row).parse().expect("a number"));
                    tokio::task::yield_now().await;
                    tx.set(key("row"), (before + 1).to_string().into()).expect("sets");
                    tx.add(key("sum c"), Sum::of(1, 0)).expect("adds");
                    match tx.commit().await {
                        Ok(_) => done.fetch_add(1, Ordering::SeqCst),
                        Err(Error::Conflict) => refused.fetch_add(1, Ordering::SeqCst),
                        Err(error) => panic!("a commit has failed: {error}"),
                    };
                }
            })
        })
        .collect();
    for task in tasks {
        soon("a writer's end", task).await.expect("no writer fails");
    }
    assert!(refused.load(Ordering::SeqCst) > 0, "no transaction was refused");
    let done = done.load(Ordering::SeqCst);
    assert_eq!(scene.get("row").await.expect("was written"), done.to_string());
    let sum = scene.begin().await.sum(&key("sum c")).await.expect("reads");
    assert_eq!(sum.field(0, 40), done.unsigned_abs());
}

async fn their_rows_can_be_replaced_by_one(scene: Scene) {
    for _ in 0..5 {
        add(&scene, "sum a", 3).await;
    }
    let tx = scene.begin().await;
    let (begin, end) = span("sum a", "sum b");
    let read = RangeRead { begin, end, limit: 100, reverse: false };
    let rows = tx.range_with(read, Isolation::Snapshot).await.expect("reads");
    let mut sum_of_rows = Sum::default();
    for (row, value) in rows {
        sum_of_rows += Sum::read(&value).expect("a sum");
        tx.clear(row).expect("clears");
    }
    tx.set(key("sum a"), sum_of_rows.to_bytes()).expect("sets");
    tx.commit().await.expect("commits");
    assert_eq!(scene.all().await.len(), 1);
    assert_eq!(sum(&scene, "sum a").await, [15; 3]);
    add(&scene, "sum a", 1).await;
    assert_eq!(sum(&scene, "sum a").await, [16; 3]);
}

async fn a_sum_that_was_cleared_begins_again(scene: Scene) {
    add(&scene, "sum a", 3).await;
    let tx = scene.begin().await;
    tx.clear_range(span("sum a", "sum b")).expect("clears");
    tx.commit().await.expect("commits");
    assert_eq!(sum(&scene, "sum a").await, [0; 3]);
    add(&scene, "sum a", 4).await;
    assert_eq!(sum(&scene, "sum a").await, [4; 3]);
}
