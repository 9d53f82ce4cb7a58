//! Members that die, hang, and lose each other, while transactions run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use turnwise_store::{Error, Store};
use turnwise_testkit::EtcdCluster;

use super::{get, key, open, set};

/// Longer than any deadline of the engine, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(60);

fn number(value: Option<Bytes>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap())
}

/// Counts up once per row, however often it runs.
async fn count_once(store: &Store, row: Bytes) -> Result<(), Error> {
    store
        .transact(|tx| {
            let row = row.clone();
            async move {
                if tx.get(&row).await?.is_some() {
                    return Ok(());
                }
                let count = number(tx.get(&key("count")).await?);
                tx.set(key("count"), Bytes::from((count + 1).to_string()))?;
                tx.set(row, Bytes::new())
            }
        })
        .await
}

/// Tasks count while members are killed and stopped. Every acknowledged increment is counted, and none twice.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_done_twice_while_members_fail() {
    const TASKS: usize = 6;
    let Some(cluster) = EtcdCluster::start().await else { return };
    let url = cluster.url("p");
    let (done, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let store = open(&url).await.unwrap();
        let (done, running) = (done.clone(), running.clone());
        tasks.push(tokio::spawn(async move {
            for n in 0.. {
                if !running.load(Ordering::Relaxed) {
                    return n;
                }
                while let Err(error) = count_once(&store, Bytes::from(format!("row {task} {n}"))).await {
                    assert!(error.is_retryable(), "{error}");
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            unreachable!("it counts until it is told to stop")
        }));
    }
    let progress = |more: usize| {
        let (done, from) = (done.clone(), done.load(Ordering::Relaxed));
        async move {
            let progress = async {
                while done.load(Ordering::Relaxed) < from + more {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(PATIENCE, progress).await.expect("the counting goes on");
        }
    };
    progress(50).await;
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    progress(50).await;
    cluster.restart(leader).await;
    let leader = cluster.leader().await;
    cluster.stop(leader);
    progress(50).await;
    cluster.resume(leader);
    progress(50).await;
    let follower = (cluster.leader().await + 1) % cluster.members();
    cluster.stop(follower);
    progress(50).await;
    cluster.resume(follower);
    running.store(false, Ordering::Relaxed);
    let mut expected = 0;
    for task in tasks {
        expected += task.await.unwrap();
    }
    let store = open(&url).await.unwrap();
    let rows = store.begin().await.unwrap();
    let found = rows.range(&(key("row "), key("row!")), usize::MAX).await.unwrap().len() as u64;
    assert_eq!((found, number(get(&store, "count").await)), (expected, expected));
}

/// The member that a process uses hangs, so its calls go to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_member_that_hangs_go_to_the_next_one() {
    let Some(cluster) = EtcdCluster::start().await else { return };
    let store = open(&cluster.url("p")).await.unwrap();
    set(&store, "a", "1").await;
    for member in 0..cluster.members() {
        cluster.stop(member);
        let begun = Instant::now();
        set(&store, "a", "2").await;
        assert_eq!(get(&store, "a").await, Some(key("2")));
        let watch = store.watch(key("a"), Some(key("3"))).await;
        drop(watch);
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        cluster.resume(member);
        cluster.leader().await;
    }
}

/// Without a quorum all reads and writes fail, with one line that states it. With a quorum again, all of them work.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_quorum_is_reported() {
    let Some(cluster) = EtcdCluster::start().await else { return };
    let store = open(&cluster.url("p")).await.unwrap();
    set(&store, "a", "1").await;
    let leader = cluster.leader().await;
    let others: Vec<_> = (0..cluster.members()).filter(|member| *member != leader).collect();
    for member in &others {
        cluster.kill(*member).await;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let read = store.begin().await.unwrap().get(&key("a")).await;
        let Err(Error::Unavailable(text)) = read else { panic!("{read:?}") };
        if text.contains("no leader") {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
    }
    let tx = store.begin().await.unwrap();
    tx.set(key("b"), key("1")).unwrap();
    let committed = tx.commit().await;
    assert!(
        matches!(&committed, Err(Error::Unavailable(text)) if text.contains("no leader")),
        "{committed:?}"
    );
    for member in others {
        cluster.restart(member).await;
    }
    assert_eq!(get(&store, "a").await, Some(key("1")));
    assert_eq!(get(&store, "b").await, None);
    set(&store, "b", "2").await;
}
