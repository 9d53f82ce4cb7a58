//! Rows of counts, as engines write them.

use turnwise_store::Limits;
use turnwise_store::runtime::Manual;
use turnwise_store::tuple::pack;

use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let options = turnwise_store::embedded::Options { durable: false, ..Default::default() };
    let engine = turnwise_store::embedded::Embedded::open_with(folder.path(), options).unwrap();
    (folder, Store::new(engine, Manual::new(1_000, 0)).with_limits(Limits::SMALL))
}

/// The row that a commit appends to the counts of a tenant, on an engine that cannot add.
async fn append(store: &Store, tenant: &str, n: i64, sum: Sum) {
    let tx = store.begin().await.unwrap();
    let mut key = Keyspace::default().counts_of("t", tenant).to_vec();
    key.extend(pack(&(7, n)));
    tx.set(key.into(), sum.to_bytes()).unwrap();
    tx.commit().await.unwrap();
}

async fn counted(store: &Store, tenant: &str) -> Counts {
    let tx = store.begin().await.unwrap();
    of_tenant(&tx, &Keyspace::default(), "t", tenant).await.unwrap()
}

async fn rows(store: &Store) -> usize {
    let tx = store.begin().await.unwrap();
    tx.range(&Keyspace::default().all_counts(), usize::MAX).await.unwrap().len()
}

/// Folds until the end. Returns in how many transactions.
async fn fold_all(store: &Store) -> usize {
    let (mut after, mut transactions) = (None, 0);
    loop {
        let tx = store.begin().await.unwrap();
        let folded = fold(&tx, &Keyspace::default(), Family::Jobs, after.as_ref()).await.unwrap();
        tx.commit().await.unwrap();
        transactions += 1;
        assert!(folded.rows <= MAX_WRITES + 1, "{} rows", folded.rows);
        after = folded.next;
        if after.is_none() {
            return transactions;
        }
    }
}

#[tokio::test]
async fn appended_rows_become_one_per_tenant_and_none_where_nothing_is_counted() {
    let (_folder, store) = store();
    let pending = one(&Place::pending(1));
    for n in 0..1_300 {
        append(&store, "many", n, pending).await;
    }
    for n in 0..5 {
        append(&store, "gone", n, pending).await;
    }
    append(&store, "gone", 6, Sum::of(-5, 0)).await;
    append(&store, "one", 0, pending).await;
    let before = [counted(&store, "many").await, counted(&store, "gone").await, counted(&store, "one").await];
    assert_eq!(before.map(|counts| counts[Kind::Pending]), [1_300, 0, 1]);
    assert!(fold_all(&store).await > 3);
    assert_eq!(rows(&store).await, 2);
    let after = [counted(&store, "many").await, counted(&store, "gone").await, counted(&store, "one").await];
    assert_eq!(after, before);
    assert_eq!(fold_all(&store).await, 1);
}

#[tokio::test]
async fn more_sums_than_a_transaction_can_prove_are_folded() {
    let (_folder, store) = store();
    let pending = one(&Place::pending(1));
    let tenants: Vec<String> =
        (0..3 * Limits::SMALL.transaction_conflicts).map(|n| format!("{n:04}")).collect();
    for tenant in &tenants {
        append(&store, tenant, 1, pending).await;
        append(&store, tenant, 2, pending).await;
    }
    assert!(fold_all(&store).await > 3);
    assert_eq!(rows(&store).await, tenants.len());
    for tenant in &tenants {
        assert_eq!(counted(&store, tenant).await[Kind::Pending], 2, "{tenant}");
    }
}

#[tokio::test]
async fn a_fold_does_not_lose_an_add_beside_it() {
    let (_folder, store) = store();
    let keys = Keyspace::default();
    append(&store, "a", 1, Sum::of(3, 0)).await;
    let fold_tx = store.begin().await.unwrap();
    fold(&fold_tx, &keys, Family::Jobs, None).await.unwrap();
    append(&store, "a", 2, Sum::of(4, 0)).await;
    fold_tx.commit().await.unwrap();
    assert_eq!(counted(&store, "a").await[Kind::Pending], 7);
    // To the row itself.
    let fold_tx = store.begin().await.unwrap();
    fold(&fold_tx, &keys, Family::Jobs, None).await.unwrap();
    let tx = store.begin().await.unwrap();
    tx.add(keys.counts_of("t", "a"), Sum::of(-7, 0)).unwrap();
    tx.commit().await.unwrap();
    assert!(matches!(fold_tx.commit().await, Err(turnwise_store::Error::Conflict)));
    assert_eq!(counted(&store, "a").await, Counts::default());
    fold_all(&store).await;
    assert_eq!(rows(&store).await, 0);
}

#[tokio::test]
async fn two_folds_conflict() {
    let (_folder, store) = store();
    let keys = Keyspace::default();
    for n in 0..3 {
        append(&store, "a", n, Sum::of(1, 0)).await;
    }
    let (one, other) = (store.begin().await.unwrap(), store.begin().await.unwrap());
    fold(&one, &keys, Family::Jobs, None).await.unwrap();
    fold(&other, &keys, Family::Jobs, None).await.unwrap();
    one.commit().await.unwrap();
    assert!(matches!(other.commit().await, Err(turnwise_store::Error::Conflict)));
    assert_eq!(counted(&store, "a").await[Kind::Pending], 3);
}

#[tokio::test]
async fn lists_leave_out_tenants_without_jobs_and_continue() {
    let (_folder, store) = store();
    for (n, tenant) in ["a", "b", "c", "d"].into_iter().enumerate() {
        append(&store, tenant, 0, Sum::of(if tenant == "b" { 0 } else { n as i64 + 1 }, 0)).await;
    }
    let tx = store.begin().await.unwrap();
    let keys = Keyspace::default();
    let names = |list: Vec<Counted>| list.into_iter().map(|counted| counted.tenant).collect::<Vec<_>>();
    assert_eq!(names(list(&tx, &keys, None, 2).await.unwrap()), ["a", "c"]);
    assert_eq!(names(list(&tx, &keys, Some(("t", "a")), 9).await.unwrap()), ["c", "d"]);
    assert_eq!(names(list_of_type(&tx, &keys, "t", Some("c"), 9).await.unwrap()), ["d"]);
    assert_eq!(names(list_of_type(&tx, &keys, "u", None, 9).await.unwrap()), [""; 0]);
    assert_eq!(of_type(&tx, &keys, "t").await.unwrap()[Kind::Pending], 8);
}
