//! Removes the rows of starts that no rate counts any more.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Keyspace, Result, rates};
use turnwise_store::{Store, Watch};

use crate::service::{keep_up, until_stopped};

/// The number of buckets that one transaction reads.
const BATCH: usize = 200;
/// The time between two removals.
const INTERVAL: Duration = Duration::from_secs(60);

/// Removes the rows of buckets whose starts do not count any more ([`rates::remove_expired`]), once a minute until it is stopped. Any number of
/// servers may do this at the same time.
pub fn remove_starts((store, keys): (Store, Keyspace), stop: CancellationToken) -> BoxFuture<'static, ()> {
    until_stopped(stop, async move {
        keep_up(&store, "cannot remove the rows of starts", || pass(&store, &keys)).await;
    })
}

async fn pass(store: &Store, keys: &Keyspace) -> Result<Watch> {
    let mut cursor: Option<Bytes> = None;
    loop {
        let (after, now_us) = (cursor.as_ref(), store.runtime().now_us());
        cursor = store
            .transact(|tx| async move { rates::remove_expired(&tx, keys, after, BATCH, now_us).await })
            .await?;
        if cursor.is_none() {
            let runtime = store.runtime().clone();
            return Ok(Box::pin(async move { runtime.sleep(INTERVAL).await }));
        }
    }
}
