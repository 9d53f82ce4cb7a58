//! A read at the head of a long queue does not visit the whole queue, and returns the same rows.

use std::collections::BTreeSet;

use bytes::Bytes;
use turnwise_testkit::EtcdCluster;

use super::{key, open, prefix};

/// Rows are cleared at the head of a long queue, and set before it, in it and after it.
#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_a_long_queue_is_its_first_rows() {
    let Some(cluster) = EtcdCluster::shared().await else { return };
    let store = open(&cluster.url(&prefix())).await.unwrap();
    let name = |n: u32| Bytes::from(format!("queue {n:06}"));
    let mut expected: BTreeSet<Bytes> = (0..3_000).map(|n| name(10_000 + n * 10)).collect();
    for chunk in expected.iter().cloned().collect::<Vec<_>>().chunks(900) {
        let tx = store.begin().await.unwrap();
        for row in chunk {
            tx.set(row.clone(), Bytes::new()).unwrap();
        }
        tx.commit().await.unwrap();
    }
    let queue = (key("queue "), key("queue!"));
    for round in 0..120u32 {
        let limit = if round % 10 == 9 { 400 } else { 30 };
        let tx = store.begin().await.unwrap();
        let head = tx.range_with(
            turnwise_store::RangeRead { begin: queue.0.clone(), end: queue.1.clone(), limit, reverse: false },
            turnwise_store::Isolation::Snapshot,
        );
        let head: Vec<_> = head.await.unwrap().into_iter().map(|(row, _)| row).collect();
        assert_eq!(head, expected.iter().take(limit).cloned().collect::<Vec<_>>(), "round {round}");
        let taken = head.into_iter().take(30);
        for row in taken {
            expected.remove(&row);
            tx.clear(row).unwrap();
        }
        // Before all other rows, at any place, and last.
        for n in [round * 50, 10_000 + round * 251, 60_000 + round] {
            expected.insert(name(n));
            tx.set(name(n), Bytes::new()).unwrap();
        }
        tx.commit().await.unwrap();
    }
    assert!(expected.len() < 1_000);
}
