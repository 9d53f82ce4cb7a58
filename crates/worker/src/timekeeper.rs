//! Keeps this process's clock in step with the store's ([`clock`]). Otherwise, jobs that wait for a time would be late
//! after the machine was suspended or its clock was set forward.

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::clock::{self, COMPARE_INTERVAL};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Store, Watch};

use crate::service::{keep_up, until_stopped};

/// Compares the clocks every few seconds, until it is stopped. Each process runs one.
pub fn keep_clock((store, keys): (Store, Keyspace), stop: CancellationToken) -> BoxFuture<'static, ()> {
    until_stopped(stop, async move {
        keep_up(&store, "cannot compare this node's clock with the store's", || pass(&store, &keys)).await;
    })
}

async fn pass(store: &Store, keys: &Keyspace) -> Result<Watch> {
    clock::compare(store, keys).await?;
    let runtime = store.runtime().clone();
    Ok(Box::pin(async move { runtime.sleep(COMPARE_INTERVAL).await }))
}
