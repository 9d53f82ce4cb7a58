//! The conformance suite, with a separate prefix for each case.

use std::sync::Arc;

use async_trait::async_trait;
use turnwise_store::conformance::Subject;
use turnwise_store::etcd::Etcd;
use turnwise_store::runtime::{Manual, System};
use turnwise_store::{Engine, EtcdUrl, StoreUrl};
use turnwise_testkit::EtcdCluster;

struct InCluster(EtcdUrl);

#[async_trait]
impl Subject for InCluster {
    async fn open(&self) -> Arc<dyn Engine> {
        Etcd::open(&self.0, Arc::new(System)).await.unwrap()
    }

    fn clock(&self) -> Option<Arc<Manual>> {
        None
    }

    fn stamps_may_stay(&self) -> bool {
        true
    }
}

async fn in_cluster() -> Option<Arc<dyn Subject>> {
    let cluster = EtcdCluster::shared().await?;
    match cluster.url(&crate::prefix()).parse().unwrap() {
        StoreUrl::Etcd(url) => Some(Arc::new(InCluster(url))),
        other => panic!("{other} is no etcd"),
    }
}

turnwise_store::conformance_tests!(in_cluster);
