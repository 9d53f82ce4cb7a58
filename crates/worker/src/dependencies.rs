//! Tells jobs of ends that they wait for, where the transaction that ended something could not tell all of them.

use tokio_util::sync::CancellationToken;
use turnwise_queue::{Keyspace, Result, dependencies};
use turnwise_store::{Isolation, Store, Watch};

use crate::service::keep_up;

/// Settles what ends have left behind ([`dependencies::settle`]). Any number of servers may do the same.
#[derive(Clone)]
pub struct Dependencies {
    /// Where the jobs are.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
}

impl Dependencies {
    /// Settles, and waits for more, until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        keep_up(&self.store, &stop, "cannot tell jobs of ends that they wait for", || self.pass()).await;
    }

    /// Settles all that there is; returns what ends when there is more.
    async fn pass(&self) -> Result<Watch> {
        let (store, keys) = (&self.store, &self.keys);
        let wake = &keys.unsettled_wake();
        loop {
            let now_us = store.runtime().now_us();
            // The wake key first: what comes after this look changes it. It cannot be read after it was set.
            let (seen, settled) = store
                .transact(|tx| async move {
                    let seen = tx.get_with(wake, Isolation::Snapshot).await?;
                    let settled = dependencies::settle(&tx, keys, now_us).await?;
                    Ok::<_, turnwise_queue::Error>((seen, settled))
                })
                .await?;
            if settled == 0 {
                return Ok(store.watch(wake.clone(), seen).await?);
            }
        }
    }
}
