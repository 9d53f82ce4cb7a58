//! Commits that set the same key to their versionstamp are sent together, and each has its own outcome.

use bytes::Bytes;
use futures::future::join_all;
use turnwise_store::{Error, Versionstamp};
use turnwise_testkit::EtcdCluster;

use super::{get, key, open, prefix};

/// Enough for several groups.
const COMMITS: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_stamp_is_the_latest_of_all() {
    let Some(cluster) = EtcdCluster::shared().await else { return };
    let store = open(&cluster.url(&prefix())).await.unwrap();
    let row = |n: usize| Bytes::from(format!("row {n}"));
    let mut begun = Vec::new();
    for n in 0..COMMITS {
        let tx = store.begin().await.unwrap();
        // Every third transaction has read a row that another one writes before it commits.
        tx.get(&if n % 3 == 0 { key("contended") } else { row(n) }).await.unwrap();
        tx.set(row(n), Bytes::new()).unwrap();
        tx.set_versionstamp(key("wake")).unwrap();
        begun.push(tx);
    }
    super::set(&store, "contended", "1").await;
    let mut latest: Option<Versionstamp> = None;
    for (n, outcome) in join_all(begun.iter().map(|tx| tx.commit())).await.into_iter().enumerate() {
        let written = store.begin().await.unwrap().get(&row(n)).await.unwrap().is_some();
        match outcome {
            Ok(stamp) => latest = latest.max(stamp),
            Err(Error::Conflict) => assert_eq!(n % 3, 0, "{n} has read only its own row"),
            Err(error) => panic!("{n}: {error}"),
        }
        assert_eq!(written, n % 3 != 0, "{n}");
    }
    let wake = get(&store, "wake").await.expect("most of them have set it");
    assert!(wake[..] >= latest.expect("most of them have committed").0[..]);
}
