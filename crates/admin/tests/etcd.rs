//! A copy from an embedded store to a real etcd cluster and back, with an interruption in between.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Home, all_rows, fill};
use turnwise_admin::check::{self, check};
use turnwise_admin::copy::{Copy, Progress};
use turnwise_queue::{Format, Keyspace};
use turnwise_store::{Store, StoreUrl, runtime};
use turnwise_testkit::EtcdCluster;

const JOBS: usize = 2_000;

fn copy(source: &Store, target: &Store, source_is_shared: bool) -> Copy {
    let (source, target) = (source.clone(), target.clone());
    Copy { source, from: "here".into(), source_is_shared, target, progress: Arc::new(Progress::default()) }
}

#[tokio::test]
async fn jobs_go_to_etcd_and_back_and_are_equal_row_by_row() {
    let Some(cluster) = EtcdCluster::shared().await else { return };
    let url: StoreUrl = cluster.url("copied").parse().unwrap();
    let etcd = turnwise_store::open(&url, Arc::new(runtime::System)).await.unwrap();
    let (from, back) = (Home::new().await, Home::new().await);
    fill(&from.store, "u", JOBS).await;
    let rows = all_rows(&from.store).await;

    let interrupted = copy(&from.store, &etcd, false);
    let progress = interrupted.progress.clone();
    let some = async {
        while progress.copied.load(Ordering::Relaxed) < 500 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        done = interrupted.run() => panic!("it is done already: {done:?}"),
        () = some => {}
    }
    let keys = &Keyspace::default();
    let format = etcd.transact(|tx| async move { tx.get(&keys.format()).await }).await.unwrap().unwrap();
    assert!(matches!(Format::read(&format), Format::Copying(_)));
    let there = copy(&from.store, &etcd, false).run().await.unwrap();
    assert!(there.resumed && there.written < there.rows, "{there:?}");
    assert_eq!(all_rows(&etcd).await, rows);
    let report = check(&etcd, true, &check::Progress::default()).await.unwrap();
    assert_eq!((report.findings.as_slice(), report.families["jobs"]), (&[][..], JOBS as u64));

    let returned = copy(&etcd, &back.store, true).run().await.unwrap();
    assert_eq!((returned.checksum, returned.rows), (there.checksum, there.rows));
    assert_eq!(all_rows(&back.store).await, rows);
}
