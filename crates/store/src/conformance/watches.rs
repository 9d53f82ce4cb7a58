//! A watch never misses a change.

use bytes::Bytes;

use super::scene::{Case, Scene, cases, key, soon, span};

pub(super) const CASES: &[Case] = cases![
    a_change_before_the_watch_resolves_it,
    a_change_after_the_watch_resolves_it,
    appearing_and_disappearing_are_changes,
    a_cleared_range_is_a_change,
    a_versionstamp_is_a_change,
    many_watchers_of_one_key_all_wake,
    watchers_of_many_keys_all_wake,
    a_follower_sees_the_last_of_many_changes,
    a_dropped_watch_affects_no_other,
    closing_the_store_ends_its_watches,
];

async fn watch(scene: &Scene, name: &'static str, seen: Option<&'static str>) -> crate::Watch {
    scene.store.watch(key(name), seen.map(key)).await.expect("watches")
}

async fn a_change_before_the_watch_resolves_it(scene: Scene) {
    scene.set(&[("a", "1")]).await;
    scene.set(&[("a", "2")]).await;
    soon("the change", watch(&scene, "a", Some("1")).await).await;
    soon("the appearance", watch(&scene, "a", None).await).await;
    soon("the absence", watch(&scene, "b", Some("1")).await).await;
}

async fn a_change_after_the_watch_resolves_it(scene: Scene) {
    scene.set(&[("a", "1")]).await;
    let watch = watch(&scene, "a", Some("1")).await;
    scene.set(&[("b", "1")]).await;
    scene.set(&[("a", "2")]).await;
    soon("the change", watch).await;
    assert_eq!(scene.get("a").await, Some(key("2")), "the watch resolves once the change is visible");
}

async fn appearing_and_disappearing_are_changes(scene: Scene) {
    let appears = watch(&scene, "a", None).await;
    scene.set(&[("a", "")]).await;
    soon("the appearance", appears).await;
    let disappears = watch(&scene, "a", Some("")).await;
    let tx = scene.begin().await;
    tx.clear(key("a")).expect("clears");
    tx.commit().await.expect("commits");
    soon("the disappearance", disappears).await;
}

async fn a_cleared_range_is_a_change(scene: Scene) {
    scene.set(&[("a", "1"), ("b", "1"), ("c", "1")]).await;
    let watches = [watch(&scene, "a", Some("1")).await, watch(&scene, "b", Some("1")).await];
    let tx = scene.begin().await;
    tx.clear_range(span("a", "c")).expect("clears");
    tx.commit().await.expect("commits");
    for watch in watches {
        soon("the clearing", watch).await;
    }
}

async fn a_versionstamp_is_a_change(scene: Scene) {
    let watch = watch(&scene, "members", None).await;
    let tx = scene.begin().await;
    tx.set_versionstamp(key("members")).expect("sets");
    tx.commit().await.expect("commits");
    soon("the versionstamp", watch).await;
}

async fn many_watchers_of_one_key_all_wake(scene: Scene) {
    let mut watches = Vec::new();
    for _ in 0..500 {
        watches.push(watch(&scene, "a", None).await);
    }
    scene.set(&[("a", "1")]).await;
    for watch in watches {
        soon("the change", watch).await;
    }
}

async fn watchers_of_many_keys_all_wake(scene: Scene) {
    let name = |n: u32| Bytes::from(format!("key {n:03}"));
    let mut watches = Vec::new();
    for n in 0..200 {
        watches.push(scene.store.watch(name(n), None).await.expect("watches"));
    }
    let tx = scene.begin().await;
    for n in 0..100 {
        tx.set(name(n), Bytes::new()).expect("sets");
    }
    tx.commit().await.expect("commits");
    let rest = watches.split_off(100);
    for watch in watches {
        soon("the change", watch).await;
    }
    let tx = scene.begin().await;
    for n in 100..200 {
        tx.set(name(n), Bytes::new()).expect("sets");
    }
    tx.commit().await.expect("commits");
    for watch in rest {
        soon("the change", watch).await;
    }
}

/// Each follower reads, waits for a change, and reads again. A wake-up that comes too early or never makes it hang.
async fn a_follower_sees_the_last_of_many_changes(scene: Scene) {
    const FOLLOWERS: usize = 8;
    const CHANGES: u32 = 1_000;
    let followers: Vec<_> = (0..FOLLOWERS)
        .map(|_| {
            let store = scene.store.clone();
            tokio::spawn(async move {
                loop {
                    let seen = store.begin().await.expect("begins").get(&key("a")).await.expect("reads");
                    if seen == Some(Bytes::from(CHANGES.to_string())) {
                        return;
                    }
                    store.watch(key("a"), seen).await.expect("watches").await;
                }
            })
        })
        .collect();
    for change in 1..=CHANGES {
        let tx = scene.begin().await;
        tx.set(key("a"), Bytes::from(change.to_string())).expect("sets");
        tx.commit().await.expect("commits");
        if change % 3 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for follower in followers {
        soon("the last change", follower).await.expect("no follower fails");
    }
}

async fn a_dropped_watch_affects_no_other(scene: Scene) {
    let (dropped, kept) = (watch(&scene, "a", None).await, watch(&scene, "a", None).await);
    drop(dropped);
    scene.set(&[("a", "1")]).await;
    soon("the change", kept).await;
}

async fn closing_the_store_ends_its_watches(scene: Scene) {
    let watch = watch(&scene, "a", None).await;
    let Scene { store, subject } = scene;
    drop(store);
    soon("the end", watch).await;
    drop(subject);
}
