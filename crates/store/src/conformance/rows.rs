//! Rows are kept unchanged, in the order of their bytes.

use bytes::Bytes;

use super::scene::{Case, Scene, backwards, cases, everything, forwards, key, span};
use crate::{Isolation, RangeRead, Step, Transaction};

pub(super) const CASES: &[Case] = cases![
    an_empty_store_has_no_rows,
    a_row_is_set_changed_and_cleared,
    clearing_nothing_succeeds,
    a_range_is_cleared_without_its_end,
    ranges_are_in_the_order_of_bytes,
    any_bytes_are_kept,
    pages_in_both_directions_are_complete,
    rows_that_come_and_go_at_the_head_leave_the_rest,
    a_walk_goes_where_it_is_told,
];

async fn an_empty_store_has_no_rows(scene: Scene) {
    assert_eq!(scene.get("a").await, None);
    assert_eq!(scene.all().await, []);
}

async fn a_row_is_set_changed_and_cleared(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "1")]).await;
    scene.set(&[("a", "2")]).await;
    assert_eq!(scene.all().await, [(key("a"), key("2")), (key("b"), key("1"))]);
    let tx = scene.begin().await;
    tx.clear(key("a")).expect("clears");
    tx.commit().await.expect("commits");
    assert_eq!(scene.get("a").await, None);
    assert_eq!(scene.all().await, [(key("b"), key("1"))]);
    scene.set(&[("a", "3")]).await;
    assert_eq!(scene.get("a").await, Some(key("3")));
}

async fn clearing_nothing_succeeds(scene: Scene) {
    let tx = scene.begin().await;
    tx.clear(key("a")).expect("clears");
    tx.clear_range(span("b", "d")).expect("clears");
    tx.clear_range(span("d", "b")).expect("an empty range is no mistake");
    tx.commit().await.expect("commits");
    assert_eq!(scene.all().await, []);
}

async fn a_range_is_cleared_without_its_end(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")]).await;
    let tx = scene.begin().await;
    tx.clear_range(span("b", "d")).expect("clears");
    tx.set(key("c"), key("2")).expect("sets after the clearing");
    tx.commit().await.expect("commits");
    let names: Vec<_> = scene.all().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "c", "d", "e"]);
    let tx = scene.begin().await;
    assert_eq!(tx.range(&span("d", "b"), 10).await.expect("reads"), []);
    assert_eq!(tx.range(&span("b", "b"), 10).await.expect("reads"), []);
}

async fn ranges_are_in_the_order_of_bytes(scene: Scene) {
    let names: [&'static [u8]; 8] =
        [b"\x00", b"\x00\x00", b"\x00\xff", b"a", b"a\x00", b"aa", b"b", b"\xfe\xff\xff"];
    let tx = scene.begin().await;
    for name in names.iter().rev() {
        tx.set(Bytes::from_static(name), Bytes::from_static(name)).expect("sets");
    }
    tx.commit().await.expect("commits");
    let rows = scene.all().await;
    assert_eq!(rows.iter().map(|(name, _)| name.as_ref()).collect::<Vec<_>>(), names);
    assert!(rows.iter().all(|(name, value)| name == value));
    let tx = scene.begin().await;
    let (begin, end) = everything();
    let read = RangeRead { begin, end, limit: 3, reverse: true };
    let last = tx.range_with(read, Isolation::Serializable).await.expect("reads");
    assert_eq!(
        last.iter().map(|(name, _)| name.as_ref()).collect::<Vec<_>>(),
        [names[7], names[6], names[5]]
    );
    let one = tx.range_with(forwards("a", "a\0", 10), Isolation::Serializable).await.expect("reads");
    assert_eq!(one, [(key("a"), key("a"))]);
    let none = tx.range_with(backwards("b\0", "c", 10), Isolation::Serializable).await.expect("reads");
    assert_eq!(none, []);
}

async fn any_bytes_are_kept(scene: Scene) {
    let garbage: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    let rows = [
        (Bytes::from_static(b"empty"), Bytes::new()),
        (Bytes::from(garbage[..100].to_vec()), Bytes::from(garbage.clone())),
        (Bytes::from_static(b"zeros"), Bytes::from(vec![0; 10_000])),
    ];
    let tx = scene.begin().await;
    for (name, value) in &rows {
        tx.set(name.clone(), value.clone()).expect("sets");
    }
    tx.commit().await.expect("commits");
    drop(tx);
    let scene = scene.reopened().await;
    let tx = scene.begin().await;
    for (name, value) in &rows {
        assert_eq!(tx.get(name).await.expect("reads").as_ref(), Some(value));
    }
}

async fn pages_in_both_directions_are_complete(scene: Scene) {
    const ROWS: u32 = 5_000;
    let rows: Vec<_> =
        (0..ROWS).map(|n| (Bytes::from(format!("row {n:05}")), Bytes::from(n.to_string()))).collect();
    for chunk in rows.chunks(scene.store.limits().transaction_writes.min(500)) {
        let tx = scene.begin().await;
        for (name, value) in chunk {
            tx.set(name.clone(), value.clone()).expect("sets");
        }
        tx.commit().await.expect("commits");
    }
    for limit in [1, 7, 999, 5_000, 5_001] {
        let tx = scene.begin().await;
        let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
        let (begin, end) = everything();
        let mut read = RangeRead { begin, end, limit, reverse: false };
        // Reading single rows is slow over a network, and some of them suffice.
        let enough = if limit == 1 { 50 } else { rows.len() };
        while forwards.len() < enough {
            let page = tx.range_with(read.clone(), Isolation::Snapshot).await.expect("reads");
            assert!(page.len() <= limit);
            let Some((last, _)) = page.last() else { break };
            read.begin = crate::key::successor(last);
            forwards.extend(page);
        }
        // A new transaction, so that neither becomes too old where each page is a request.
        let tx = scene.begin().await;
        let (begin, end) = everything();
        let mut read = RangeRead { begin, end, limit, reverse: true };
        while backwards.len() < enough {
            let page = tx.range_with(read.clone(), Isolation::Snapshot).await.expect("reads");
            let Some((last, _)) = page.last() else { break };
            read.end = last.clone();
            backwards.extend(page);
        }
        assert_eq!(forwards, rows[..enough]);
        backwards.reverse();
        assert_eq!(backwards, rows[rows.len() - enough..]);
    }
}

/// A queue: rows are cleared at the head and set at the tail, and sometimes before the head.
async fn rows_that_come_and_go_at_the_head_leave_the_rest(scene: Scene) {
    let name = |n: u32| Bytes::from(format!("queue {n:05}"));
    let queue = (Bytes::from_static(b"queue "), Bytes::from_static(b"queue!"));
    let tx = scene.begin().await;
    for n in 1_000..1_100 {
        tx.set(name(n), Bytes::new()).expect("sets");
    }
    tx.commit().await.expect("commits");
    let mut expected: std::collections::BTreeSet<Bytes> = (1_000..1_100).map(name).collect();
    for round in 0..200 {
        let tx = scene.begin().await;
        let head = tx.range(&queue, 3).await.expect("reads");
        assert_eq!(
            head.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            expected.iter().take(3).collect::<Vec<_>>(),
            "round {round}"
        );
        for (name, _) in &head {
            tx.clear(name.clone()).expect("clears");
            expected.remove(name);
        }
        let tail = name(1_100 + round);
        let mut added = vec![tail];
        if round % 10 == 0 {
            added.push(name(500 - round));
        }
        for name in added {
            tx.set(name.clone(), Bytes::new()).expect("sets");
            expected.insert(name);
        }
        tx.commit().await.expect("commits");
    }
    let left: Vec<_> = scene.all().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, expected.into_iter().collect::<Vec<_>>());
}

/// A walk that shows the first row of each group, where groups are the first letters; without the rows of `c`, and until the group `e`.
async fn firsts(tx: &Transaction, reverse: bool, limit: usize) -> Vec<(String, String)> {
    let mut firsts = Vec::new();
    let mut visit = |key: &[u8], value: &[u8], to: &mut Vec<u8>| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("these rows are texts");
        firsts.push((text(key), text(value)));
        to.clear();
        to.extend_from_slice(&key[..1]);
        if !reverse {
            to.push(0xff);
        }
        Ok(match key[0] {
            b'c' => Step::Next,
            b'e' => Step::End,
            _ => Step::Seek,
        })
    };
    tx.walk(span("a", "g"), reverse, limit, &mut visit).await.expect("reads");
    firsts
}

async fn a_walk_goes_where_it_is_told(scene: Scene) {
    let names = ["a1", "a2", "b1", "c1", "c2", "d1", "d2", "d3", "e1", "e2", "f1", "g1"];
    scene.set(&names.map(|name| (name, "1"))).await;
    let shown = |names: &[&str]| -> Vec<(String, String)> {
        names.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect()
    };
    let tx = scene.begin().await;
    let empty = tx.walk(span("g", "a"), false, 1, &mut |_, _, _| panic!("there is no row")).await;
    empty.expect("an empty range is no mistake");
    for limit in [1, 2, 100] {
        assert_eq!(firsts(&tx, false, limit).await, shown(&["a1", "b1", "c1", "c2", "d1", "e1"]));
        assert_eq!(firsts(&tx, true, limit).await, shown(&["f1", "e2"]));
    }
    // It sees what its transaction has written.
    tx.set(key("a0"), key("1")).expect("sets");
    tx.clear_range(span("b", "d2")).expect("clears");
    for limit in [1, 2, 100] {
        assert_eq!(firsts(&tx, false, limit).await, shown(&["a0", "d2", "e1"]));
    }
    // It adds no conflict.
    scene.set(&[("a1", "2"), ("e1", "2")]).await;
    tx.commit().await.expect("commits");
    assert_eq!(scene.get("a0").await, Some(key("1")));
}
