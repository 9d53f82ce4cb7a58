//! Strict serializability: transactions have an order, and it agrees with real time.

use std::sync::Arc;

use bytes::Bytes;

use super::scene::{Case, Scene, backwards, cases, forwards, key, soon, span};
use crate::{Error, Isolation, RangeRead, Result, Store, Transaction};

pub(super) const CASES: &[Case] = cases![
    a_lost_update_conflicts,
    write_skew_conflicts,
    reading_what_is_missing_conflicts_with_its_appearance,
    a_phantom_in_a_range_conflicts,
    a_row_that_leaves_a_range_conflicts,
    an_arrival_conflicts,
    an_arrival_costs_one_conflict,
    beyond_the_limit_is_no_conflict,
    before_the_last_row_seen_is_a_conflict,
    a_page_that_is_not_full_reaches_to_the_end,
    snapshot_reads_take_no_conflict,
    an_added_conflict_key_counts,
    own_writes_take_no_conflict,
    blind_writes_do_not_conflict,
    a_transaction_that_only_reads_commits,
    a_conflict_writes_nothing,
    a_snapshot_does_not_move,
    an_acknowledged_commit_is_seen_by_the_next_snapshot,
    increments_in_parallel_are_all_counted,
    numbers_in_parallel_have_no_gap_and_no_double,
    transfers_in_parallel_keep_the_sum,
];

/// Runs `other` and commits it between the reads of `tx` and its commit. `tx` also writes a row.
async fn meanwhile(
    scene: &Scene,
    tx: &Transaction,
    other: impl Fn(&Transaction) -> Result<()>,
) -> Result<()> {
    let winner = scene.begin().await;
    other(&winner).expect("writes");
    winner.commit().await.expect("the first one commits");
    tx.set(key("mine"), key("1")).expect("sets");
    tx.commit().await.map(drop)
}

fn assert_conflict(result: Result<()>) {
    assert!(matches!(result, Err(Error::Conflict)), "{result:?}");
}

async fn a_lost_update_conflicts(scene: Scene) {
    scene.set(&[("a", "0")]).await;
    let (one, two) = (scene.begin().await, scene.begin().await);
    for tx in [&one, &two] {
        tx.get(&key("a")).await.expect("reads");
    }
    one.set(key("a"), key("1")).expect("sets");
    two.set(key("a"), key("2")).expect("sets");
    one.commit().await.expect("the first one commits");
    assert_conflict(two.commit().await.map(drop));
    assert_eq!(scene.get("a").await, Some(key("1")));
}

async fn write_skew_conflicts(scene: Scene) {
    scene.set(&[("a", "on duty"), ("b", "on duty")]).await;
    let (one, two) = (scene.begin().await, scene.begin().await);
    for tx in [&one, &two] {
        tx.get(&key("a")).await.expect("reads");
        tx.get(&key("b")).await.expect("reads");
    }
    one.clear(key("a")).expect("clears");
    two.clear(key("b")).expect("clears");
    one.commit().await.expect("the first one commits");
    assert_conflict(two.commit().await.map(drop));
    assert_eq!(scene.get("b").await, Some(key("on duty")));
}

async fn reading_what_is_missing_conflicts_with_its_appearance(scene: Scene) {
    let tx = scene.begin().await;
    assert_eq!(tx.get(&key("a")).await.expect("reads"), None);
    assert_conflict(meanwhile(&scene, &tx, |other| other.set(key("a"), key("1"))).await);
}

async fn a_phantom_in_a_range_conflicts(scene: Scene) {
    scene.set(&[("b", "1"), ("d", "1")]).await;
    for reverse in [false, true] {
        for phantom in ["a", "c", "e"] {
            let tx = scene.begin().await;
            let read = RangeRead { reverse, ..forwards("a", "f", 100) };
            tx.range_with(read, Isolation::Serializable).await.expect("reads");
            assert_conflict(meanwhile(&scene, &tx, |other| other.set(key(phantom), key("1"))).await);
        }
    }
    let tx = scene.begin().await;
    tx.range(&span("a", "f"), 100).await.expect("reads");
    meanwhile(&scene, &tx, |other| other.set(key("f"), key("1")))
        .await
        .expect("the end is not part of a range");
}

async fn a_row_that_leaves_a_range_conflicts(scene: Scene) {
    scene.set(&[("b", "1"), ("c", "1"), ("d", "1")]).await;
    let tx = scene.begin().await;
    tx.range(&span("a", "f"), 100).await.expect("reads");
    assert_conflict(meanwhile(&scene, &tx, |other| other.clear(key("c"))).await);
    let tx = scene.begin().await;
    tx.range(&span("a", "f"), 100).await.expect("reads");
    assert_conflict(meanwhile(&scene, &tx, |other| other.clear_range(span("c", "e"))).await);
    let tx = scene.begin().await;
    tx.get(&key("b")).await.expect("reads");
    assert_conflict(meanwhile(&scene, &tx, |other| other.clear_range(span("a", "c"))).await);
}

async fn an_arrival_conflicts(scene: Scene) {
    scene.set(&[("b", "1"), ("d", "1")]).await;
    for arrival in ["a", "b", "c", "d", "e"] {
        let tx = scene.begin().await;
        let (_, proof) = tx.range_to_prove(forwards("a", "f", 100)).await.expect("reads");
        tx.prove_arrivals(proof);
        assert_conflict(meanwhile(&scene, &tx, |other| other.set(key(arrival), key("2"))).await);
        let tx = scene.begin().await;
        let (_, proof) = tx.range_to_prove(forwards("a", "f", 100)).await.expect("reads");
        tx.prove_arrivals(proof);
        meanwhile(&scene, &tx, |other| other.set(key("f"), key("1")))
            .await
            .expect("the end is not part of it");
    }
    // A read conflict on a key counts even if the key is within an arrivals range.
    let tx = scene.begin().await;
    let (_, proof) = tx.range_to_prove(forwards("a", "f", 100)).await.expect("reads");
    tx.prove_arrivals(proof);
    tx.get(&key("c")).await.expect("reads");
    assert_conflict(meanwhile(&scene, &tx, |other| other.clear(key("c"))).await);
}

async fn an_arrival_costs_one_conflict(scene: Scene) {
    const ROWS: usize = 200;
    let limits = crate::Limits { transaction_conflicts: 112, ..scene.store.limits() };
    let store = scene.store.clone().with_limits(limits);
    let tx = store.begin().await.expect("begins");
    for n in 0..ROWS {
        tx.set(Bytes::from(format!("r{n:03}")), Bytes::new()).expect("sets");
    }
    tx.commit().await.expect("commits");
    let tx = store.begin().await.expect("begins");
    let (rows, proof) = tx.range_to_prove(forwards("r", "s", 2 * ROWS)).await.expect("reads");
    assert_eq!(rows.len(), ROWS);
    tx.prove_arrivals(proof);
    tx.set(key("mine"), key("1")).expect("sets");
    tx.commit().await.expect("there is room for one");
}

async fn beyond_the_limit_is_no_conflict(scene: Scene) {
    scene.set(&[("a", "1"), ("c", "1"), ("e", "1"), ("g", "1")]).await;
    for phantom in ["d", "e", "f", "x"] {
        let tx = scene.begin().await;
        let rows = tx.range_with(forwards("a", "z", 2), Isolation::Serializable).await.expect("reads");
        assert_eq!(rows.len(), 2);
        meanwhile(&scene, &tx, |other| other.set(key(phantom), key("2"))).await.expect(phantom);
    }
    scene.set(&[("g", "1")]).await;
    for phantom in ["e", "c", "0"] {
        let tx = scene.begin().await;
        let rows = tx.range_with(backwards("", "h", 2), Isolation::Serializable).await.expect("reads");
        assert_eq!(rows.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["g", "f"]);
        meanwhile(&scene, &tx, |other| other.set(key(phantom), key("2"))).await.expect(phantom);
    }
}

async fn before_the_last_row_seen_is_a_conflict(scene: Scene) {
    scene.set(&[("b", "1"), ("d", "1"), ("f", "1"), ("h", "1")]).await;
    for phantom in ["a", "c", "d"] {
        let tx = scene.begin().await;
        let rows = tx.range_with(forwards("a", "z", 2), Isolation::Serializable).await.expect("reads");
        assert_eq!(rows.len(), 2);
        assert_conflict(meanwhile(&scene, &tx, |other| other.set(key(phantom), key("2"))).await);
        let tx = scene.begin().await;
        tx.clear_range(span("a", "b")).expect("clears");
        tx.clear_range(span("c", "d")).expect("clears");
        tx.commit().await.expect("commits");
    }
    for phantom in ["f", "g", "i"] {
        let tx = scene.begin().await;
        let rows = tx.range_with(backwards("a", "k", 2), Isolation::Serializable).await.expect("reads");
        assert_eq!(rows.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["h", "f"]);
        assert_conflict(meanwhile(&scene, &tx, |other| other.set(key(phantom), key("2"))).await);
        let tx = scene.begin().await;
        tx.clear_range(span("g", "h")).expect("clears");
        tx.clear_range(span("i", "j")).expect("clears");
        tx.commit().await.expect("commits");
    }
}

async fn a_page_that_is_not_full_reaches_to_the_end(scene: Scene) {
    scene.set(&[("b", "1"), ("d", "1")]).await;
    let tx = scene.begin().await;
    assert_eq!(tx.range(&span("a", "z"), 3).await.expect("reads").len(), 2);
    assert_conflict(meanwhile(&scene, &tx, |other| other.set(key("y"), key("1"))).await);
    let tx = scene.begin().await;
    let read = backwards("a", "m", 3);
    assert_eq!(tx.range_with(read, Isolation::Serializable).await.expect("reads").len(), 2);
    assert_conflict(meanwhile(&scene, &tx, |other| other.set(key("a"), key("1"))).await);
}

async fn snapshot_reads_take_no_conflict(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "1")]).await;
    let tx = scene.begin().await;
    let one = tx.get_with(&key("a"), Isolation::Snapshot).await.expect("reads");
    assert_eq!(one, Some(key("1")));
    let rows = tx.range_with(forwards("a", "z", 100), Isolation::Snapshot).await.expect("reads");
    assert_eq!(rows.len(), 2);
    let all = |other: &Transaction| {
        other.set(key("a"), key("2"))?;
        other.clear(key("b"))?;
        other.set(key("c"), key("2"))
    };
    meanwhile(&scene, &tx, all).await.expect("no conflict");
}

/// An engine may take its snapshot as late as the first read, so the cases that expect a conflict read first.
async fn an_added_conflict_key_counts(scene: Scene) {
    let tx = scene.begin().await;
    tx.get_with(&key("other"), Isolation::Snapshot).await.expect("reads");
    tx.add_read_conflict(key("a"));
    assert_conflict(meanwhile(&scene, &tx, |other| other.set(key("a"), key("1"))).await);
    let tx = scene.begin().await;
    tx.add_read_conflict(key("a"));
    meanwhile(&scene, &tx, |other| other.set(key("b"), key("1"))).await.expect("another key");
    let tx = scene.begin().await;
    tx.get_with(&key("other"), Isolation::Snapshot).await.expect("reads");
    tx.add_read_conflict(key("a"));
    assert_conflict(meanwhile(&scene, &tx, |other| other.set_versionstamp(key("a"))).await);
    let tx = scene.begin().await;
    tx.get_with(&key("other"), Isolation::Snapshot).await.expect("reads");
    tx.add_read_conflict(key("a"));
    assert_conflict(meanwhile(&scene, &tx, |other| other.clear(key("a"))).await);
}

async fn own_writes_take_no_conflict(scene: Scene) {
    let tx = scene.begin().await;
    tx.set(key("a"), key("own")).expect("sets");
    tx.get(&key("a")).await.expect("reads");
    meanwhile(&scene, &tx, |other| other.set(key("a"), key("1")))
        .await
        .expect("it never read what was stored");
    assert_eq!(scene.get("a").await, Some(key("own")));
}

async fn blind_writes_do_not_conflict(scene: Scene) {
    let (one, two) = (scene.begin().await, scene.begin().await);
    one.set(key("a"), key("1")).expect("sets");
    two.set(key("a"), key("2")).expect("sets");
    two.commit().await.expect("commits");
    one.commit().await.expect("commits");
    assert_eq!(scene.get("a").await, Some(key("1")));
}

async fn a_transaction_that_only_reads_commits(scene: Scene) {
    scene.set(&[("a", "1")]).await;
    let tx = scene.begin().await;
    tx.get(&key("a")).await.expect("reads");
    scene.set(&[("a", "2")]).await;
    assert_eq!(tx.commit().await.expect("it saw one consistent state"), None);
}

async fn a_conflict_writes_nothing(scene: Scene) {
    let tx = scene.begin().await;
    tx.get(&key("a")).await.expect("reads");
    tx.set(key("b"), key("1")).expect("sets");
    tx.set_versionstamp(key("c")).expect("sets");
    scene.set(&[("a", "1")]).await;
    assert_conflict(tx.commit().await.map(drop));
    assert_eq!(scene.all().await, [(key("a"), key("1"))]);
}

async fn a_snapshot_does_not_move(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "1"), ("c", "1")]).await;
    let tx = scene.begin().await;
    tx.get_with(&key("other"), Isolation::Snapshot).await.expect("reads");
    for round in ["2", "3"] {
        scene.set(&[("a", round), ("b", round), ("d", round)]).await;
        let other = scene.begin().await;
        other.clear(key("c")).expect("clears");
        other.commit().await.expect("commits");
        assert_eq!(tx.get(&key("a")).await.expect("reads"), Some(key("1")));
        let rows = tx.range(&span("a", "z"), 100).await.expect("reads");
        assert_eq!(rows, [(key("a"), key("1")), (key("b"), key("1")), (key("c"), key("1"))]);
        let last = tx.range_with(backwards("a", "z", 1), Isolation::Snapshot).await.expect("reads");
        assert_eq!(last, [(key("c"), key("1"))]);
    }
}

async fn an_acknowledged_commit_is_seen_by_the_next_snapshot(scene: Scene) {
    const WRITERS: usize = 8;
    const ROUNDS: u32 = 100;
    let tasks = (0..WRITERS).map(|writer| {
        let store = scene.store.clone();
        tokio::spawn(async move {
            let name = Bytes::from(format!("writer {writer}"));
            for round in 0..ROUNDS {
                let tx = store.begin().await.expect("begins");
                tx.set(name.clone(), Bytes::from(round.to_string())).expect("sets");
                tx.commit().await.expect("commits");
                let seen = store.begin().await.expect("begins").get(&name).await.expect("reads");
                assert_eq!(seen, Some(Bytes::from(round.to_string())), "writer {writer}");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("a writer's end", task).await.expect("no writer fails");
    }
}

fn number(value: Option<&Bytes>) -> u64 {
    value.map_or(0, |value| {
        std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("a number")
    })
}

/// Runs `tasks` tasks that each run `body` `rounds` times.
async fn in_parallel<F, Fut>(scene: &Scene, tasks: u64, rounds: u64, body: F)
where
    F: Fn(Transaction, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    let body = Arc::new(body);
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (store, body): (Store, _) = (scene.store.clone(), body.clone());
            tokio::spawn(async move {
                for round in 0..rounds {
                    store.transact(|tx| body(tx, task * rounds + round)).await.expect("commits in the end");
                }
            })
        })
        .collect();
    for task in running {
        soon("a task's end", task).await.expect("no task fails");
    }
}

async fn increments_in_parallel_are_all_counted(scene: Scene) {
    in_parallel(&scene, 8, 25, |tx, _| async move {
        let now = number(tx.get(&key("counter")).await?.as_ref());
        tx.set(key("counter"), Bytes::from((now + 1).to_string()))
    })
    .await;
    assert_eq!(number(scene.get("counter").await.as_ref()), 200);
}

/// Each transaction uses the number after the last row of a range: an overlooked phantom creates a duplicate.
async fn numbers_in_parallel_have_no_gap_and_no_double(scene: Scene) {
    in_parallel(&scene, 8, 25, |tx, id| async move {
        let last = tx.range_with(backwards("number ", "number!", 1), Isolation::Serializable).await?;
        let next = last.first().map_or(0, |(name, _)| number(Some(&name.slice(7..))) + 1);
        tx.set(Bytes::from(format!("number {next:05}")), Bytes::from(id.to_string()))
    })
    .await;
    let rows = scene.all().await;
    let names: Vec<_> = (0..200).map(|n| Bytes::from(format!("number {n:05}"))).collect();
    assert_eq!(rows.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), names);
    let mut ids: Vec<_> = rows.iter().map(|(_, id)| number(Some(id))).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..200).collect::<Vec<_>>());
}

async fn transfers_in_parallel_keep_the_sum(scene: Scene) {
    const ACCOUNTS: u64 = 5;
    let account = |n: u64| Bytes::from(format!("account {}", n % ACCOUNTS));
    let tx = scene.begin().await;
    for n in 0..ACCOUNTS {
        tx.set(account(n), Bytes::from_static(b"100")).expect("sets");
    }
    tx.commit().await.expect("commits");
    in_parallel(&scene, 8, 25, move |tx, id| async move {
        let rows = tx.range(&span("account ", "account!"), 100).await?;
        let sum: u64 = rows.iter().map(|(_, value)| number(Some(value))).sum();
        assert_eq!(sum, 100 * ACCOUNTS, "a torn state was read");
        let (from, to) = (account(id), account(id / ACCOUNTS + id + 1));
        let (left, right) = (number(tx.get(&from).await?.as_ref()), number(tx.get(&to).await?.as_ref()));
        if from != to && left > 0 {
            tx.set(from, Bytes::from((left - 1).to_string()))?;
            tx.set(to, Bytes::from((right + 1).to_string()))?;
        }
        Ok(())
    })
    .await;
    let sum: u64 = scene.all().await.iter().map(|(_, value)| number(Some(value))).sum();
    assert_eq!(sum, 100 * ACCOUNTS);
}
