//! Releases jobs whose dependencies have ended, where the transaction that ended one could not release all of them.

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::dependencies::{self, Unsettled};
use turnwise_queue::{Error, Keyspace, Result, concurrency};
use turnwise_store::{Isolation, Store, Watch};

use crate::service::{keep_up, until_stopped};

/// Releases the remaining dependents of ended jobs ([`dependencies::settle`]), and marks the remaining jobs of rate
/// limit buckets ([`concurrency::mark_rest`]), until it is stopped. Any number of servers may do this at the same time.
pub fn settle_dependencies(
    (store, keys): (Store, Keyspace),
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    until_stopped(stop, async move {
        keep_up(&store, "cannot release jobs whose dependencies have ended", || pass(&store, &keys)).await;
    })
}

/// Processes all groups of dependents, a part of each in turn, so that no group waits for a larger one. Returns a
/// watch that fires when there is more work.
pub(crate) async fn pass(store: &Store, keys: &Keyspace) -> Result<Watch> {
    let wake = &keys.unsettled_wake();
    let mut last: Option<Unsettled> = None;
    let (mut done, mut failed) = (false, None);
    loop {
        let after = last.as_ref();
        // The wake key is read first: work that arrives after this read changes it.
        let group_read = store.transact(|tx| async move {
            let seen = tx.get_with(wake, Isolation::Snapshot).await?;
            let next = dependencies::next_unsettled(&tx, keys, after).await?;
            let marked = next.is_none() && concurrency::mark_rest(&tx, keys).await?;
            Ok::<_, Error>((seen, next, marked))
        });
        let (seen, next, marked) = group_read.await?;
        done |= marked;
        let Some(group) = next else {
            // As long as there is progress, the groups that failed are tried again.
            match failed {
                _ if std::mem::take(&mut done) => last = None,
                Some(error) => return Err(error),
                None => return Ok(store.watch(wake.clone(), seen).await?),
            }
            continue;
        };
        let now_us = store.runtime().now_us();
        let of = &group;
        match store.transact(|tx| async move { dependencies::settle(&tx, keys, of, now_us).await }).await {
            Ok(_) => done = true,
            // A failure of one group does not stop the next ones.
            Err(error) => failed = Some(error),
        }
        last = Some(group);
    }
}
