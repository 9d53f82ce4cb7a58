//! Keeps this process's clock in step with the store's ([`clock`]). Otherwise, jobs that wait for a time would be late
//! after the machine was suspended or its clock was set forward.

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::clock::{self, COMPARE_INTERVAL};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Store, Watch};

use crate::service::{keep_up, until_stopped};

/// Compares the clocks every few seconds. Each process runs one.
#[derive(Clone)]
pub struct Timekeeper {
    /// The store whose clock it follows.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
}

impl Timekeeper {
    /// Compares the clocks repeatedly, until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            keep_up(&self.store, "cannot compare this node's clock with the store's", || self.pass()).await;
        })
    }

    async fn pass(&self) -> Result<Watch> {
        clock::compare(&self.store, &self.keys).await?;
        let runtime = self.store.runtime().clone();
        Ok(Box::pin(async move { runtime.sleep(COMPARE_INTERVAL).await }))
    }
}
