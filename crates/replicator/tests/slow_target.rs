//! Targets that are slow: they get smaller requests, and everything arrives.

use std::time::Duration;

use crate::common::run;
use serde_json::json;
use turnwise_testkit::{Asked, Fake};

/// The number of documents in a write.
fn documents(asked: &Asked) -> Option<u32> {
    let documents = || u32::try_from(asked.json()["docs"].as_array().unwrap().len()).unwrap();
    (asked.path == "/_bulk_docs").then(documents)
}

/// A source with documents, and a target that needs `per_document` for each document of a write.
async fn slow(documents_there: usize, per_document: Duration) -> (Fake, Fake) {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", documents_there, 100);
    target.delay(move |asked| Some(per_document * documents(asked)?));
    (source, target)
}

fn writes(target: &Fake) -> Vec<u32> {
    target.requests().iter().filter_map(documents).collect()
}

#[tokio::test]
async fn a_slow_target_gets_smaller_batches() {
    let (source, target) = slow(600, Duration::from_millis(6)).await;
    // More than a quarter of a second counts as long here, and 100 documents need 600 ms.
    let fields = json!({"worker_batch_size": 100, "worker_processes": 1, "checkpoint_interval": 1_500});
    let report = run(&source.url(), &target.url(), fields).await.unwrap();
    assert_eq!((report.stats.docs_written, target.leaves()), (600, 600));
    let writes = writes(&target);
    assert_eq!((writes[0], writes.iter().max()), (100, Some(&100)));
    // After the first batch come one that waits for a worker, one that waits to be sent, and one that is being read.
    assert!(writes.len() >= 12 && writes[4..].iter().all(|documents| *documents <= 50), "{writes:?}");
}

#[tokio::test]
async fn what_a_target_cannot_write_in_time_is_halved() {
    // 100 documents would need 2.5 s, and silence is detected after one to two.
    let (source, target) = slow(200, Duration::from_millis(25)).await;
    let fields = json!({"worker_batch_size": 100, "worker_processes": 1, "connection_timeout": 1_000, "retries_per_request": 3});
    let report = run(&source.url(), &target.url(), fields).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (200, 0));
    assert_eq!(target.leaves(), 200);
    assert_eq!(writes(&target)[..2], [100, 50]);
}

#[tokio::test]
async fn a_fast_target_gets_as_much_as_ever() {
    let (source, target) = slow(600, Duration::ZERO).await;
    run(&source.url(), &target.url(), json!({"worker_batch_size": 100})).await.unwrap();
    assert_eq!(writes(&target), [100; 6]);
}
