//! Every engine has limits, reports them, and enforces them.

use std::time::Duration;

use bytes::Bytes;

use super::scene::{Case, Scene, cases, key, span};
use crate::{Error, Result};

pub(super) const CASES: &[Case] = cases![
    a_key_has_a_limit,
    a_value_has_a_limit,
    a_transaction_has_a_limit_in_bytes,
    a_transaction_has_a_limit_in_rows,
    conflict_keys_count_too,
    an_old_transaction_is_refused,
    a_transaction_at_its_age_limit_is_not,
];

fn assert_too_large(result: Result<()>, expected: &str) {
    assert!(matches!(result, Err(Error::TooLarge { what, .. }) if what == expected), "{result:?}");
}

async fn a_key_has_a_limit(scene: Scene) {
    let limit = scene.store.limits().key_bytes;
    let (longest, longer) = (Bytes::from(vec![b'k'; limit]), Bytes::from(vec![b'k'; limit + 1]));
    let tx = scene.begin().await;
    assert_too_large(tx.set(longer.clone(), key("1")), "key");
    assert_too_large(tx.clear(longer.clone()), "key");
    assert_too_large(tx.set_versionstamp(longer), "key");
    tx.set(longest.clone(), key("1")).expect("sets");
    tx.commit().await.expect("commits");
    assert_eq!(scene.begin().await.get(&longest).await.expect("reads"), Some(key("1")));
    let after = (longest.clone(), crate::key::successor(&longest));
    assert_eq!(scene.begin().await.range(&after, 2).await.expect("reads").len(), 1);
    let tx = scene.begin().await;
    tx.clear_range(after).expect("clears");
    tx.commit().await.expect("commits");
    assert_eq!(scene.all().await, []);
}

async fn a_value_has_a_limit(scene: Scene) {
    let limit = scene.store.limits().value_bytes;
    let (longest, longer) = (Bytes::from(vec![b'v'; limit]), Bytes::from(vec![b'v'; limit + 1]));
    let tx = scene.begin().await;
    assert_too_large(tx.set(key("a"), longer), "value");
    tx.set(key("a"), longest.clone()).expect("sets");
    tx.commit().await.expect("commits");
    assert_eq!(scene.get("a").await, Some(longest));
}

async fn a_transaction_has_a_limit_in_bytes(scene: Scene) {
    let limits = scene.store.limits();
    let value = Bytes::from(vec![b'v'; limits.value_bytes.min(limits.transaction_bytes / 20)]);
    let tx = scene.begin().await;
    let mut rows = 0u32;
    let refused = loop {
        match tx.set(Bytes::from(format!("row {rows:04}")), value.clone()) {
            Ok(()) => rows += 1,
            Err(refused) => break refused,
        }
    };
    assert_too_large(Err(refused), "transaction");
    assert_eq!(rows as usize, limits.transaction_bytes / (value.len() + 8));
    assert_too_large(tx.commit().await.map(drop), "transaction");
    assert_eq!(scene.all().await, []);

    let tx = scene.begin().await;
    for row in 0..rows {
        tx.set(Bytes::from(format!("row {row:04}")), value.clone()).expect("sets");
    }
    tx.commit().await.expect("the largest transaction commits");
    assert_eq!(scene.all().await.len(), rows as usize);
}

async fn a_transaction_has_a_limit_in_rows(scene: Scene) {
    let limit = scene.store.limits().transaction_writes;
    let tx = scene.begin().await;
    for row in 0..limit {
        tx.set(Bytes::from(format!("{row:07}")), Bytes::new()).expect("sets");
    }
    tx.commit().await.expect("commits");
    assert_eq!(scene.all().await.len(), limit);

    let tx = scene.begin().await;
    for row in 0..limit {
        tx.clear(Bytes::from(format!("{row:07}"))).expect("clears");
    }
    let refused = tx.set(key("one more"), Bytes::new());
    assert!(matches!(refused, Err(Error::TooMany { .. })), "{refused:?}");
}

async fn conflict_keys_count_too(scene: Scene) {
    let limits = scene.store.limits();
    let tx = scene.begin().await;
    for n in 0..=limits.transaction_bytes / limits.key_bytes {
        let mut name = vec![b'k'; limits.key_bytes];
        name[..8].copy_from_slice(&(n as u64).to_be_bytes());
        tx.add_read_conflict(Bytes::from(name));
    }
    assert_too_large(tx.set(key("a"), key("1")), "transaction");
    let tx = scene.begin().await;
    tx.set(key("a"), key("1")).expect("sets");
    for n in 0..=limits.transaction_bytes / limits.key_bytes {
        let mut name = vec![b'k'; limits.key_bytes];
        name[..8].copy_from_slice(&(n as u64).to_be_bytes());
        tx.get(&Bytes::from(name)).await.expect("reads");
    }
    assert_too_large(tx.commit().await.map(drop), "transaction");
    assert_eq!(scene.all().await, []);
}

async fn an_old_transaction_is_refused(scene: Scene) {
    let Some(clock) = scene.subject.clock() else { return };
    scene.set(&[("a", "1")]).await;
    let (reader, writer) = (scene.begin().await, scene.begin().await);
    writer.get(&key("a")).await.expect("reads");
    writer.set(key("b"), key("1")).expect("sets");
    clock.advance(Duration::from_millis(scene.store.limits().transaction_ms + 1));
    let read = reader.get(&key("a")).await;
    assert!(matches!(read, Err(Error::TooOld { .. })), "{read:?}");
    let read = reader.range(&span("a", "z"), 10).await;
    assert!(matches!(read, Err(Error::TooOld { .. })), "{read:?}");
    let committed = writer.commit().await;
    assert!(matches!(committed, Err(Error::TooOld { .. })), "{committed:?}");
    assert_eq!(scene.all().await, [(key("a"), key("1"))]);
    scene.set(&[("b", "2")]).await;
    assert_eq!(scene.get("b").await, Some(key("2")));
}

async fn a_transaction_at_its_age_limit_is_not(scene: Scene) {
    let Some(clock) = scene.subject.clock() else { return };
    scene.set(&[("a", "1")]).await;
    let (lucky, unlucky) = (scene.begin().await, scene.begin().await);
    for tx in [&lucky, &unlucky] {
        tx.get(&key("a")).await.expect("reads");
        tx.set(key("b"), key("1")).expect("sets");
    }
    for n in 0..10 {
        clock.advance(Duration::from_millis(scene.store.limits().transaction_ms / 10));
        scene.set(&[("c", if n % 2 == 0 { "even" } else { "odd" })]).await;
    }
    lucky.commit().await.expect("what it read is as it was");
    scene.set(&[("a", "2")]).await;
    let committed = unlucky.commit().await;
    assert!(matches!(committed, Err(Error::Conflict)), "{committed:?}");
}
