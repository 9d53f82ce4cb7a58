//! Operations that fail, and the one line that states why and what to do.

use std::time::Duration;

use bytes::Bytes;
use turnwise_store::runtime::Manual;
use turnwise_store::{Error, Isolation, RangeRead, Store, StoreUrl};
use turnwise_testkit::EtcdCluster;

use super::{get, key, open, prefix, set};

fn unavailable<T>(result: turnwise_store::Result<T>, expected: &str) {
    match result.err() {
        Some(Error::Unavailable(text)) if text.contains(expected) && !text.contains('\n') => {}
        other => panic!("{other:?} instead of {expected:?}"),
    }
}

async fn set_once(store: &Store, name: Bytes, value: Bytes) -> turnwise_store::Result<()> {
    let tx = store.begin().await?;
    tx.set(name, value)?;
    tx.commit().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_what_cannot_be_reached() {
    unavailable(open("etcd://127.0.0.1:1,127.0.0.1:2").await, "no etcd member answers: 127.0.0.1:");
    unavailable(
        open("etcd://no-such-host.invalid").await,
        "no etcd member answers: no-such-host.invalid:2379 (",
    );
    unavailable(open("etcds://127.0.0.1:1?ca=%2Fno%2Fsuch%2Ffile").await, "cannot read /no/such/file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_revision_is_too_old() {
    // A separate cluster, because transactions of other tests would be too old, too.
    let Some(cluster) = EtcdCluster::options().members(1).start().await else { return };
    let store = open(&cluster.url(&prefix())).await.unwrap();
    set(&store, "a", "1").await;
    let tx = store.begin().await.unwrap();
    assert_eq!(tx.get(&key("a")).await.unwrap(), Some(key("1")));
    set(&store, "a", "2").await;
    cluster.compact().await;
    let read = tx.get(&key("b")).await;
    assert!(matches!(read, Err(Error::TooOld { .. })), "{read:?}");
    let read = RangeRead { begin: key("a"), end: key("z"), limit: 2, reverse: false };
    let read = tx.range_with(read, Isolation::Snapshot).await;
    assert!(matches!(read, Err(Error::TooOld { .. })), "{read:?}");
    assert_eq!(get(&store, "a").await, Some(key("2")));
}

/// The engine compacts by itself, however short its processes live, and keeps the revisions that a transaction needs.
#[tokio::test(flavor = "multi_thread")]
async fn old_revisions_are_compacted() {
    const PERIOD: Duration = Duration::from_secs(20);
    let Some(cluster) = EtcdCluster::options().members(1).start().await else { return };
    let url = cluster.url("p");
    let store = open(&format!("{url}?compact=off")).await.unwrap();
    for (compacts, lives_long) in [(true, true), (true, false), (false, true)] {
        let clock = Manual::new(0, 1);
        let begin = async || {
            let url: StoreUrl =
                if compacts { url.clone() } else { format!("{url}?compact=off") }.parse().unwrap();
            let process = turnwise_store::open(&url, clock.clone()).await.unwrap();
            if compacts {
                clock.wait_for_sleeper(PERIOD).await;
            }
            process
        };
        let mut process = begin().await;
        set(&store, "a", "1").await;
        let tx = store.begin().await.unwrap();
        assert_eq!(tx.get(&key("a")).await.unwrap(), Some(key("1")));
        set(&store, "a", "2").await;
        for period in 0..5 {
            let read = tx.get_with(&key("b"), Isolation::Snapshot).await;
            if let Err(error) = read {
                assert!(
                    compacts && period >= 2 && matches!(error, Error::TooOld { .. }),
                    "{period}: {error}"
                );
                break;
            }
            assert!(!compacts || period < 4, "nothing was compacted");
            // Fewer revisions are not worth it.
            futures::future::join_all((0..1_000).map(|_| set(&store, "c", "1"))).await;
            clock.advance(PERIOD + Duration::from_secs(2));
            if compacts {
                clock.wait_for_sleeper(PERIOD).await;
            }
            if !lives_long {
                drop(process);
                process = begin().await;
            }
        }
        assert_eq!(get(&store, "a").await, Some(key("2")));
        drop(process);
    }
}

/// Fills a small etcd, and makes room again. The engine needs no restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_is_reported_until_there_is_room() {
    let options = EtcdCluster::options().members(1).quota_bytes(2 << 20);
    let Some(cluster) = options.start().await else { return };
    let store = open(&cluster.url("full")).await.unwrap();
    set(&store, "before", "1").await;
    let value = Bytes::from(vec![b'x'; 100_000]);
    let mut refused = None;
    // etcd counts what is in its file, and writes there every 100 ms: until then there is always room.
    let mut rows = 0;
    while refused.is_none() && rows < 2_000 {
        let name = Bytes::from(format!("row {rows}"));
        rows += 1;
        if let Err(error) = set_once(&store, name, value.clone()).await {
            refused = Some(error);
        }
    }
    // The write that filled it may have been done.
    assert!(matches!(&refused, Some(Error::UnknownOutcome(text)) if text.contains("NOSPACE")), "{refused:?}");
    for _ in 0..2 {
        unavailable(set_once(&store, key("after"), key("1")).await, "etcd is full (NOSPACE)");
    }
    assert_eq!(get(&store, "before").await, Some(key("1")));
    assert_eq!(get(&store, "after").await, None);
    for n in 0..rows {
        cluster.delete(&format!("full/row {n}")).await;
    }
    cluster.make_room().await;
    set(&store, "after", "2").await;
    assert_eq!(get(&store, "after").await, Some(key("2")));
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_passwords() {
    let options = EtcdCluster::options().members(1).user("root", "hunter2");
    let Some(cluster) = options.start().await else { return };
    cluster.add_user("worker", "hunter2-hers", "ours/").await;
    let at = cluster.endpoints().join(",");
    let store = open(&format!("etcd://worker:hunter2-hers@{at}/ours")).await.unwrap();
    set(&store, "a", "1").await;
    let watch = store.watch(key("a"), Some(key("1"))).await.unwrap();
    set(&store, "a", "2").await;
    watch.await;

    let wrong = open(&format!("etcd://worker:wr0ng@{at}/ours")).await;
    assert!(!format!("{:?}", wrong.as_ref().err()).contains("wr0ng"));
    unavailable(wrong, "etcd refuses user worker or its password");
    unavailable(open(&format!("etcd://{at}/ours")).await, "etcd asks for user and password");
    let foreign = open(&format!("etcd://worker:hunter2-hers@{at}/theirs")).await;
    unavailable(foreign, "does not let user worker read and write this prefix");

    // A restarted member does not know the tokens that it has issued.
    cluster.kill(0).await;
    cluster.restart(0).await;
    assert_eq!(get(&store, "a").await, Some(key("2")));
    set(&store, "a", "3").await;
    let watch = store.watch(key("a"), Some(key("3"))).await.unwrap();
    set(&store, "a", "4").await;
    watch.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates() {
    let Some(cluster) = EtcdCluster::options().members(1).tls().start().await else { return };
    let url = cluster.url("p");
    let store = open(&url).await.unwrap();
    set(&store, "a", "1").await;
    assert_eq!(get(&store, "a").await, Some(key("1")));
    // Without a client certificate, without encryption, and without the authority.
    let at = cluster.endpoints().join(",");
    unavailable(open(&format!("etcd://{at}/p")).await, "no etcd member answers");
    unavailable(open(&format!("etcds://{at}/p")).await, "no etcd member answers");
    let ca = url.split_once("ca=").unwrap().1.split('&').next().unwrap();
    unavailable(open(&format!("etcds://{at}/p?ca={ca}")).await, "no etcd member answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_etcd_does_not_have() {
    let Some(cluster) = EtcdCluster::shared().await else { return };
    let store = open(&format!("{}?max_txn_ops=1000", cluster.url(&prefix()))).await.unwrap();
    let tx = store.begin().await.unwrap();
    for n in 0..200 {
        tx.set(Bytes::from(format!("row {n}")), Bytes::new()).unwrap();
    }
    match tx.commit().await {
        Err(Error::Misuse(text)) => assert!(text.contains("max_txn_ops"), "{text}"),
        other => panic!("{other:?}"),
    }
    // With etcd's own limits, nested transactions allow this.
    let store = open(&cluster.url(&prefix())).await.unwrap();
    let limits = store.limits();
    assert_eq!((limits.transaction_conflicts, limits.transaction_writes), (120, 960));
    let tx = store.begin().await.unwrap();
    for n in 0..limits.transaction_conflicts {
        assert_eq!(tx.get(&Bytes::from(format!("read {n}"))).await.unwrap(), None);
    }
    for n in 0..limits.transaction_writes {
        tx.set(Bytes::from(format!("row {n}")), Bytes::new()).unwrap();
    }
    tx.commit().await.unwrap();
    let tx = store.begin().await.unwrap();
    assert_eq!(tx.range(&(key("row"), key("row~")), 10_000).await.unwrap().len(), limits.transaction_writes);
}
