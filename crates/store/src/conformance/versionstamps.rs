//! Versionstamps order all commits of a store, also across restarts.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::scene::{Case, Scene, cases, key, soon};
use crate::Versionstamp;

pub(super) const CASES: &[Case] = cases![
    they_grow_with_every_commit,
    the_row_holds_the_commits_own,
    they_grow_over_restarts,
    they_are_unique_and_ordered_under_load,
];

async fn commit(scene: &Scene, name: &'static str) -> Versionstamp {
    let tx = scene.begin().await;
    tx.set_versionstamp(key(name)).expect("sets");
    tx.commit().await.expect("commits").expect("it wrote something")
}

async fn they_grow_with_every_commit(scene: Scene) {
    let mut last = Versionstamp([0; 10]);
    for _ in 0..50 {
        let next = commit(&scene, "a").await;
        assert!(next > last, "{next:?} after {last:?}");
        last = next;
    }
}

async fn the_row_holds_the_commits_own(scene: Scene) {
    let tx = scene.begin().await;
    tx.set_versionstamp(key("a")).expect("sets");
    tx.set_versionstamp(key("b")).expect("sets");
    tx.set(key("c"), key("1")).expect("sets");
    let stamp = tx.commit().await.expect("commits").expect("it wrote something");
    assert_eq!(scene.get("a").await.as_deref(), Some(&stamp.0[..]));
    assert_eq!(scene.get("b").await.as_deref(), Some(&stamp.0[..]));
    assert_eq!(scene.get("c").await, Some(key("1")));
}

async fn they_grow_over_restarts(mut scene: Scene) {
    let mut last = Versionstamp([0; 10]);
    for _ in 0..5 {
        for _ in 0..3 {
            let next = commit(&scene, "a").await;
            assert!(next > last, "{next:?} after {last:?}");
            last = next;
        }
        scene = scene.reopened().await;
        assert_eq!(scene.get("a").await.as_deref(), Some(&last.0[..]));
    }
}

/// Many writers append to a log under one key. The order of the stamps is the order of the log.
async fn they_are_unique_and_ordered_under_load(scene: Scene) {
    let tasks: Vec<_> = (0..8u32)
        .map(|task| {
            let store = scene.store.clone();
            tokio::spawn(async move {
                let mut stamps = Vec::new();
                for round in 0..50u32 {
                    let name = Bytes::from(format!("{task} {round}"));
                    loop {
                        let tx = store.begin().await.expect("begins");
                        let before = tx.get(&key("latest")).await.expect("reads");
                        tx.set(key("latest"), name.clone()).expect("sets");
                        match tx.commit().await {
                            Ok(stamp) => {
                                stamps.push((stamp.expect("it wrote something"), before, name));
                                break;
                            }
                            Err(error) => assert!(error.is_retryable(), "{error}"),
                        }
                    }
                }
                stamps
            })
        })
        .collect();
    let mut log = BTreeMap::new();
    for task in tasks {
        for (stamp, before, name) in soon("a writer's end", task).await.expect("no writer fails") {
            assert!(log.insert(stamp, (before, name)).is_none(), "{stamp:?} was given twice");
        }
    }
    let mut latest = None;
    for (before, name) in log.into_values() {
        assert_eq!(before, latest, "the stamps have another order than the commits");
        latest = Some(name);
    }
}
