//! A pass that has more open subjects than memory allows.
#![allow(clippy::unwrap_used)]

use turnwise_queue::keyspace::QueuePlace;
use turnwise_queue::{NewJob, jobs, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::runtime;

use super::*;

#[tokio::test]
async fn a_pass_in_parts_finds_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durable: false, ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let store = Store::new(engine, Arc::new(runtime::System));
    let keys = &Keyspace::default();
    let fill = |tx: turnwise_store::Transaction| async move {
        tx.set(keys.format(), Format::current())?;
        workers::register(&tx, keys, "t", &turnwise_queue::Worker::new("w", "n", 1, 1))?;
        for n in 0..60 {
            let options = serde_json::value::RawValue::from_string("{}".into()).unwrap();
            jobs::add(&tx, keys, &NewJob::new("t", &n.to_string(), options), n).await?;
        }
        Ok::<_, turnwise_queue::Error>(())
    };
    store.transact(fill).await.unwrap();
    let progress = Progress::default();
    let report = check_with(&store, false, &progress, 1_000).await.unwrap();
    assert_eq!((report.findings, report.families["jobs"]), (vec![], 60));
    let lose = |tx: turnwise_store::Transaction| async move {
        tx.clear(keys.pending_entry("t", &QueuePlace::by_time("default", 7), "7"))?;
        tx.clear(keys.job("t", "9"))
    };
    store.transact(lose).await.unwrap();
    let whole = check_with(&store, false, &progress, 1_000).await.unwrap();
    // Where others may use the store, counts are compared in one transaction.
    let shared = check_with(&store, true, &progress, 1_000).await.unwrap();
    assert_eq!((&shared.findings, shared.undecided.len()), (&whole.findings, 0));
    // Each pass opens 59 jobs before it reads their places.
    let parts = check_with(&store, false, &progress, 10).await.unwrap();
    let found: Vec<_> = whole.findings.iter().map(|finding| finding.invariant).collect();
    assert_eq!(found, [Invariant::OnePlace, Invariant::JobsCounted, Invariant::Owned]);
    assert_eq!((parts.findings, parts.found, parts.families), (whole.findings, whole.found, whole.families));
}
