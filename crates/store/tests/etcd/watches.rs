//! Watches when connections break, and when there are many.

use std::time::Duration;

use bytes::Bytes;
use turnwise_testkit::{EtcdCluster, Link};

use super::{get, key, open, prefix, set};

const PATIENCE: Duration = Duration::from_secs(60);

/// A waiting watch wakes up, or detects by itself that its connection is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_survives_a_cut_connection() {
    let Some(cluster) = EtcdCluster::shared().await else { return };
    let (prefix, mut links) = (prefix(), Vec::new());
    for endpoint in cluster.endpoints() {
        links.push(Link::before(&endpoint).await);
    }
    let addresses: Vec<_> = links.iter().map(Link::address).collect();
    let near = open(&cluster.url_at(&addresses, &prefix)).await.unwrap();
    let other = open(&cluster.url(&prefix)).await.unwrap();
    set(&other, "a", "1").await;
    for link in &links {
        let seen = get(&near, "a").await;
        let watch = near.watch(key("a"), seen.clone()).await.unwrap();
        // Whichever member has the stream, it is the one behind this link at least once.
        link.cut();
        set(&other, "a", if seen == Some(key("1")) { "2" } else { "1" }).await;
        tokio::time::timeout(PATIENCE, watch).await.expect("the change, or the end of the stream");
        while get(&near, "a").await == seen {
            tokio::task::yield_now().await;
        }
        link.restore();
    }
    for link in &links {
        link.refuse();
    }
    for link in &links {
        link.restore();
    }
    let seen = get(&near, "a").await;
    set(&other, "a", "3").await;
    let follow = async {
        while get(&near, "a").await != Some(key("3")) {
            near.watch(key("a"), seen.clone()).await.unwrap().await;
        }
    };
    tokio::time::timeout(PATIENCE, follow).await.expect("the last change");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_watches() {
    const WATCHES: usize = 3_000;
    let Some(cluster) = EtcdCluster::shared().await else { return };
    let store = open(&cluster.url(&prefix())).await.unwrap();
    let name = |n: usize| Bytes::from(format!("key {n}"));
    let watching = (0..WATCHES).map(|n| store.watch(name(n), None));
    let mut watches = futures::future::try_join_all(watching).await.unwrap();
    let kept = watches.split_off(WATCHES - 500);
    drop(watches);
    for chunk in (WATCHES - 500..WATCHES).collect::<Vec<_>>().chunks(100) {
        let tx = store.begin().await.unwrap();
        for n in chunk {
            tx.set(name(*n), Bytes::new()).unwrap();
        }
        tx.commit().await.unwrap();
    }
    let all = futures::future::join_all(kept);
    tokio::time::timeout(PATIENCE, all).await.expect("all of them wake");
}
