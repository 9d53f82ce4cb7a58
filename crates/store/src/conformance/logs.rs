//! Logs, to which transactions append in the order of their commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::scene::{Case, Scene, cases, key, soon};
use crate::{Appended, Error, Store, Versionstamp};

pub(super) const CASES: &[Case] = cases![
    nothing_is_appended_before_the_switch,
    rows_have_the_stamps_of_their_commits,
    a_row_that_is_seen_later_has_a_higher_stamp,
    a_refused_transaction_appends_nothing,
    many_lines_are_several_rows_in_order,
    the_switch_waits_for_earlier_transactions,
];

const WRITERS: usize = 8;
const COMMITS: usize = 40;

/// All rows of a log, in the order of the commits.
async fn log(store: &Store, name: &'static str) -> Vec<Appended> {
    let tx = store.begin().await.expect("begins");
    let (mut rows, mut after): (Vec<Appended>, Option<Bytes>) = (Vec::new(), None);
    loop {
        let page = tx.log(&key(name), after.as_ref(), 7).await.expect("reads");
        let is_last = page.len() < 7;
        after = page.last().map(|row| row.key.clone());
        rows.extend(page);
        if is_last {
            break;
        }
    }
    rows.sort_by_key(|row| (row.stamp, row.place));
    rows
}

async fn append(scene: &Scene, name: &'static str, lines: &[&str]) -> Option<Versionstamp> {
    let tx = scene.begin().await;
    for line in lines {
        tx.append(&key(name), line.as_bytes()).expect("appends");
    }
    tx.commit().await.expect("commits")
}

async fn nothing_is_appended_before_the_switch(scene: Scene) {
    assert_eq!(append(&scene, "log a", &["lost"]).await, None, "it wrote nothing");
    scene.store.append_from_now_on().await;
    append(&scene, "log a", &["kept"]).await;
    scene.store.append_no_longer();
    append(&scene, "log a", &["lost"]).await;
    let scene = scene.reopened().await;
    append(&scene, "log a", &["lost"]).await;
    let rows = log(&scene.store, "log a").await;
    assert_eq!(rows.iter().map(|row| &row.lines[..]).collect::<Vec<_>>(), [b"kept\n"]);
}

async fn rows_have_the_stamps_of_their_commits(scene: Scene) {
    scene.store.append_from_now_on().await;
    let mut stamps = Vec::new();
    for n in 0..20_u32 {
        let tx = scene.begin().await;
        tx.append(&key("log a"), format!("first {n}").as_bytes()).expect("appends");
        tx.append(&key("log b"), b"other").expect("appends");
        tx.append(&key("log a"), b"second").expect("appends");
        tx.set(key("row"), n.to_string().into()).expect("sets");
        stamps.push(tx.commit().await.expect("commits").expect("it wrote something"));
    }
    let rows = log(&scene.store, "log a").await;
    assert_eq!(rows.iter().map(|row| row.stamp).collect::<Vec<_>>(), stamps);
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row.lines, format!("first {n}\nsecond\n"));
    }
    let tx = scene.begin().await;
    for row in &rows[1..] {
        tx.clear(row.key.clone()).expect("clears");
    }
    tx.commit().await.expect("commits");
    assert_eq!(log(&scene.store, "log a").await, rows[..1]);
    assert_eq!(log(&scene.store, "log b").await.len(), 20);
}

/// So readers may sort what they have seen, and never see a row later that belongs before it.
async fn a_row_that_is_seen_later_has_a_higher_stamp(scene: Scene) {
    scene.store.append_from_now_on().await;
    let ended = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = scene.store.clone();
            tokio::spawn(async move {
                for n in 0..COMMITS {
                    let tx = store.begin().await.expect("begins");
                    tx.append(&key("log a"), format!("{writer} {n}").as_bytes()).expect("appends");
                    // A row that all writers stamp, as a signal to readers.
                    tx.set_versionstamp(key("wake")).expect("sets");
                    match tx.commit().await {
                        Ok(_) => {}
                        Err(error) => panic!("an append has failed: {error}"),
                    }
                }
            })
        })
        .collect();
    let reader = tokio::spawn({
        let (store, ended) = (scene.store.clone(), ended.clone());
        async move {
            let mut seen: Vec<Appended> = Vec::new();
            loop {
                let is_last = ended.load(Ordering::SeqCst);
                let known: BTreeSet<Bytes> = seen.iter().map(|row| row.key.clone()).collect();
                let rows = log(&store, "log a").await;
                assert!(rows.len() >= seen.len(), "a row is gone");
                let new = rows.into_iter().filter(|row| !known.contains(&row.key));
                for row in new {
                    assert!(seen.last().is_none_or(|last| last.stamp < row.stamp), "a row comes too late");
                    seen.push(row);
                }
                if is_last {
                    return seen;
                }
            }
        }
    });
    for writer in writers {
        soon("a writer's end", writer).await.expect("no writer fails");
    }
    ended.store(true, Ordering::SeqCst);
    let seen = soon("the reader's end", reader).await.expect("the reader does not fail");
    assert_eq!(seen.len(), WRITERS * COMMITS);
    for writer in 0..WRITERS {
        let of_writer = seen.iter().filter(|row| row.lines.starts_with(format!("{writer} ").as_bytes()));
        let lines: Vec<String> =
            of_writer.map(|row| String::from_utf8_lossy(&row.lines).into_owned()).collect();
        let expected: Vec<String> = (0..COMMITS).map(|n| format!("{writer} {n}\n")).collect();
        assert_eq!(lines, expected);
    }
}

async fn a_refused_transaction_appends_nothing(scene: Scene) {
    scene.store.append_from_now_on().await;
    let tx = scene.begin().await;
    tx.get(&key("row")).await.expect("reads");
    tx.set(key("row"), key("1")).expect("sets");
    tx.append(&key("log a"), b"refused").expect("appends");
    scene.set(&[("row", "2")]).await;
    assert!(matches!(tx.commit().await, Err(Error::Conflict)));
    append(&scene, "log a", &["accepted"]).await;
    let rows = log(&scene.store, "log a").await;
    assert_eq!(rows.iter().map(|row| &row.lines[..]).collect::<Vec<_>>(), [b"accepted\n"]);
}

async fn many_lines_are_several_rows_in_order(scene: Scene) {
    scene.store.append_from_now_on().await;
    let tx = scene.begin().await;
    let line = |n: usize| format!("{n:06} {}", "x".repeat(1_000));
    for n in 0..200 {
        tx.append(&key("log a"), line(n).as_bytes()).expect("appends");
    }
    assert!(matches!(tx.append(&key("log a"), &[b'x'; 50_000]), Err(Error::TooLarge { .. })));
    tx.commit().await.expect("commits");
    append(&scene, "log a", &["after it"]).await;
    let rows = log(&scene.store, "log a").await;
    assert!(rows.len() > 3, "{} rows", rows.len());
    let lines: Vec<u8> = rows.iter().flat_map(|row| row.lines.to_vec()).collect();
    let expected: String = (0..200).map(|n| line(n) + "\n").collect();
    assert_eq!(String::from_utf8_lossy(&lines), expected + "after it\n");
}

async fn the_switch_waits_for_earlier_transactions(scene: Scene) {
    let earlier = scene.begin().await;
    let store = scene.store.clone();
    let switch = tokio::spawn(async move { store.append_from_now_on().await });
    while !scene.begin().await.appends() {
        tokio::task::yield_now().await;
    }
    assert!(!earlier.appends() && scene.begin().await.appends());
    assert!(!switch.is_finished(), "the earlier transaction may still commit");
    drop(earlier);
    soon("the switch", switch).await.expect("it does not fail");
}
