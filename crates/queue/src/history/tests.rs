//! Samples are merged, kept and removed.

use turnwise_store::Store;
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::runtime::Manual;

use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durable: false, ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    (folder, Store::new(engine, Manual::new(1_000, 0)))
}

fn state(pending: f64, slots: f64, oldest_ms: u64) -> Sample {
    let tenant = TenantState { entitled: slots, received: 1.0, waiting: pending };
    let state = State {
        jobs: BTreeMap::from([("pending".to_owned(), pending)]),
        slots,
        oldest_ms,
        tenants: BTreeMap::from([("acme".to_owned(), tenant)]),
    };
    Sample { state: BTreeMap::from([("mail".to_owned(), state)]), ..Sample::default() }
}

fn work(claims: u64, waits: &[u64]) -> Sample {
    let work =
        Work { claims, completed: claims, ran_ms: 10 * claims, waits: waits.to_vec(), ..Work::default() };
    Sample { work: BTreeMap::from([("mail".to_owned(), work)]), ..Sample::default() }
}

async fn put(store: &Store, slot: i64, node: &str, sample: &Sample) {
    let tx = store.begin().await.unwrap();
    write(&tx, &Keyspace::default(), slot, node, sample).unwrap();
    tx.commit().await.unwrap();
}

/// Merges what there is to merge at a time. Returns how many intervals.
async fn compact_all(store: &Store, now_us: i64) -> usize {
    for n in 0.. {
        let tx = store.begin().await.unwrap();
        let found = compact(&tx, &Keyspace::default(), now_us).await.unwrap();
        tx.commit().await.unwrap();
        if !found {
            return n;
        }
    }
    unreachable!("a store has finitely many intervals")
}

async fn points(store: &Store, step: Step) -> Vec<(i64, Sample)> {
    let tx = store.begin().await.unwrap();
    let (points, next) = read(&tx, &Keyspace::default(), step, (0, i64::MAX / 2)).await.unwrap();
    assert_eq!(next, None);
    points
}

#[tokio::test]
async fn nodes_add_up_and_states_are_averaged() {
    let (_folder, store) = store();
    // Two nodes, over two hours and a bit: 30 fine samples make a middle one, 12 of those an hour.
    for slot in 0..730 {
        put(&store, slot, "", &state(if slot % 2 == 0 { 10.0 } else { 20.0 }, 4.0, slot.unsigned_abs()))
            .await;
        put(&store, slot, "a", &work(1, &[1])).await;
        put(&store, slot, "b", &work(2, &[0, 2])).await;
    }
    let fine = points(&store, Step::Fine).await;
    assert_eq!(fine.len(), 730);
    assert_eq!((fine[3].0, fine[3].1.work["mail"].claims), (30_000_000, 3));
    assert_eq!(fine[3].1.work["mail"].waits, [1, 2]);
    // The last five minutes have just ended.
    let end_us = Step::Fine.begin_us(730);
    assert_eq!(compact_all(&store, Step::Fine.begin_us(720)).await, 23 + 1);
    assert_eq!(compact_all(&store, end_us).await, 1 + 1);
    assert_eq!(compact_all(&store, end_us).await, 0);
    let middle = points(&store, Step::Middle).await;
    assert_eq!(middle.len(), 24);
    let of_mail = &middle[1].1.state["mail"];
    assert_eq!((of_mail.jobs["pending"], of_mail.slots, of_mail.oldest_ms), (15.0, 4.0, 59));
    assert_eq!(of_mail.tenants["acme"], TenantState { entitled: 4.0, received: 1.0, waiting: 15.0 });
    assert_eq!(middle[1].1.work["mail"].waits, [30, 60]);
    let hours = points(&store, Step::Hour).await;
    assert_eq!(hours.iter().map(|(at_us, _)| at_us / SECOND_US).collect::<Vec<_>>(), [0, 3_600]);
    assert_eq!((hours[1].1.work["mail"].claims, hours[1].1.state["mail"].oldest_ms), (1_080, 719));
}

#[tokio::test]
async fn a_gap_without_nodes_is_skipped() {
    let (_folder, store) = store();
    put(&store, 3, "a", &work(1, &[])).await;
    put(&store, 100_000, "a", &work(2, &[])).await;
    assert_eq!(compact_all(&store, Step::Fine.begin_us(100_400)).await, 4);
    let claims =
        |points: Vec<(i64, Sample)>| points.iter().map(|(_, of)| of.work["mail"].claims).collect::<Vec<_>>();
    assert_eq!(claims(points(&store, Step::Hour).await), [1, 2]);
}

#[tokio::test]
async fn rows_expire_each_after_its_own_time() {
    let (_folder, store) = store();
    put(&store, 0, "a", &work(1, &[])).await;
    compact_all(&store, Step::Hour.begin_us(2)).await;
    let left = async |days: i64| {
        let tx = store.begin().await.unwrap();
        expire(&tx, &Keyspace::default(), days * 86_400 * SECOND_US).unwrap();
        tx.commit().await.unwrap();
        let mut left = Vec::new();
        for step in Step::ALL {
            left.push(points(&store, step).await.len());
        }
        left
    };
    assert_eq!(left(1).await, [1, 1, 1]);
    assert_eq!(left(2).await, [0, 1, 1]);
    assert_eq!(left(8).await, [0, 0, 1]);
    assert_eq!(left(31).await, [0, 0, 0]);
}

#[test]
fn a_sample_has_a_bounded_size() {
    let mut all = Sample::default();
    for n in 0..300 {
        let mut of_type = state(f64::from(n), 1.0, 0).state.remove("mail").unwrap();
        of_type.tenants = (0..50)
            .map(|m| {
                let name = format!("{m}{}", "x".repeat(if m == 49 { MAX_TENANT_BYTES } else { 100 }));
                (name, TenantState { waiting: f64::from(m), ..TenantState::default() })
            })
            .collect();
        all.state.insert(format!("type-{n}-{}", "y".repeat(50)), of_type);
        all.work.insert(
            format!("type-{n}-{}", "y".repeat(50)),
            Work { waits: vec![u64::MAX; 15], ..Work::default() },
        );
    }
    let bounded = all.bounded();
    assert_eq!((bounded.state.len(), bounded.work.len()), (MAX_TYPES, MAX_TYPES));
    let tenants: Vec<_> = bounded.state.values().flat_map(|of| of.tenants.values()).collect();
    assert_eq!(tenants.len(), MAX_TENANTS);
    // Those with the largest demand of each type, except the one whose name is too long.
    assert!(tenants.iter().all(|of| of.waiting == 48.0 || of.waiting == 47.0));
    assert!(encode(&bounded).len() < 90_000, "{} bytes", encode(&bounded).len());
}
