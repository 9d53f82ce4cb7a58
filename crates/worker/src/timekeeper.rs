//! Keeps the clock of this process with that of the store ([`clock`]): what waits for a time is not late when the machine's
//! clock is set forward, or when the machine was suspended.

use tokio_util::sync::CancellationToken;
use turnwise_queue::clock::{self, COMPARE_INTERVAL};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Store, Watch};

use crate::service::keep_up;

/// Compares clocks every few seconds. One for each process.
#[derive(Clone)]
pub struct Timekeeper {
    /// Whose clock it is.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
}

impl Timekeeper {
    /// Compares again and again, until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        keep_up(&self.store, &stop, "cannot compare this node's clock with the store's", || self.pass())
            .await;
    }

    async fn pass(&self) -> Result<Watch> {
        clock::compare(&self.store, &self.keys).await?;
        let runtime = self.store.runtime().clone();
        Ok(Box::pin(async move { runtime.sleep(COMPARE_INTERVAL).await }))
    }
}
