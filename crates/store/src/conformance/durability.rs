//! Acknowledged writes survive closing and reopening the store.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::scene::{Case, Scene, cases, key, soon, span};

pub(super) const CASES: &[Case] = cases![
    rows_are_there_after_reopening,
    an_untouched_store_reopens_as_it_was,
    many_generations_add_up,
    what_was_cleared_stays_cleared,
    watches_work_after_reopening,
    conflicts_are_found_after_reopening,
    commits_that_wait_at_the_close_are_done_or_refused,
];

async fn rows_are_there_after_reopening(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "")]).await;
    let scene = scene.reopened().await;
    assert_eq!(scene.all().await, [(key("a"), key("1")), (key("b"), key(""))]);
}

async fn an_untouched_store_reopens_as_it_was(scene: Scene) {
    let scene = scene.reopened().await.reopened().await;
    assert_eq!(scene.all().await, []);
    scene.set(&[("a", "1")]).await;
    let scene = scene.reopened().await.reopened().await;
    assert_eq!(scene.all().await, [(key("a"), key("1"))]);
}

async fn many_generations_add_up(mut scene: Scene) {
    let mut expected = BTreeMap::new();
    for generation in 0..10u32 {
        for n in 0..20u32 {
            let name = Bytes::from(format!("row {}", (generation * 7 + n) % 50));
            let value = Bytes::from(format!("{generation} {n}"));
            let tx = scene.begin().await;
            if n % 5 == 4 {
                tx.clear(name.clone()).expect("clears");
                expected.remove(&name);
            } else {
                tx.set(name.clone(), value.clone()).expect("sets");
                expected.insert(name, value);
            }
            tx.commit().await.expect("commits");
        }
        scene = scene.reopened().await;
        let rows: BTreeMap<_, _> = scene.all().await.into_iter().collect();
        assert_eq!(rows, expected, "generation {generation}");
    }
}

async fn what_was_cleared_stays_cleared(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]).await;
    let scene = scene.reopened().await;
    let tx = scene.begin().await;
    tx.clear(key("a")).expect("clears");
    tx.clear_range(span("b", "d")).expect("clears");
    tx.commit().await.expect("commits");
    drop(tx);
    let scene = scene.reopened().await;
    assert_eq!(scene.all().await, [(key("d"), key("1"))]);
}

async fn watches_work_after_reopening(scene: Scene) {
    scene.set(&[("a", "1")]).await;
    let scene = scene.reopened().await;
    let watch = scene.store.watch(key("a"), Some(key("1"))).await.expect("watches");
    scene.set(&[("a", "2")]).await;
    soon("the change", watch).await;
}

async fn conflicts_are_found_after_reopening(scene: Scene) {
    scene.set(&[("a", "1")]).await;
    let scene = scene.reopened().await;
    let tx = scene.begin().await;
    tx.get(&key("a")).await.expect("reads");
    tx.set(key("b"), key("1")).expect("sets");
    scene.set(&[("a", "2")]).await;
    assert!(matches!(tx.commit().await, Err(crate::Error::Conflict)));
}

async fn commits_that_wait_at_the_close_are_done_or_refused(scene: Scene) {
    let tasks: Vec<_> = (0..50u32)
        .map(|n| {
            let store = scene.store.clone();
            tokio::spawn(async move {
                let name = Bytes::from(format!("row {n:02}"));
                let tx = store.begin().await.expect("begins");
                drop(store);
                tx.set(name.clone(), Bytes::new()).expect("sets");
                tx.commit().await.is_ok().then_some(name)
            })
        })
        .collect();
    let Scene { subject, store } = scene;
    drop(store);
    let mut acknowledged = Vec::new();
    for task in tasks {
        acknowledged.extend(soon("an answer", task).await.expect("no task fails"));
    }
    let scene = Scene::new(subject).await;
    let rows: Vec<_> = scene.all().await.into_iter().map(|(name, _)| name).collect();
    for name in acknowledged {
        assert!(rows.contains(&name), "{name:?} was acknowledged");
    }
}
