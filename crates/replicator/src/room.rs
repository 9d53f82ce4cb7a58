//! Memory for data from peers. Documents larger than a batch may hold wait for a place, and the process has few places.
//!
//! A job's batches are limited, but a source may send a single document of any size, which is unknown before it has
//! arrived. A reader takes a place when it holds more than a limit, and a place of a scarcer second kind beyond the
//! next limit. Readers take places only in this order. A reader with a place of the second kind waits for no other
//! place, so there is no deadlock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;

/// A reader that holds more bytes than this needs a place: the size of a write buffer.
pub(crate) const LARGE_BYTES: usize = 4 << 20;
/// A reader that holds more bytes than this also needs a place of the second kind.
const HUGE_BYTES: usize = 32 << 20;
/// Number of places for large documents. A document is in memory twice while it is copied to the write buffer.
const LARGE_PLACES: usize = 2;
/// How long a reader waits for a place. The source may close its connection earlier.
const PATIENCE: Duration = Duration::from_secs(300);

/// The places of a process.
#[derive(Debug)]
pub(crate) struct Room {
    large: Arc<Semaphore>,
    huge: Arc<Semaphore>,
    patience: Duration,
}

/// The places that a reader holds.
#[derive(Debug, Default)]
pub(crate) struct MemoryPermits {
    large: Option<OwnedSemaphorePermit>,
    huge: Option<OwnedSemaphorePermit>,
}

impl Default for Room {
    fn default() -> Self {
        let (large, huge) = (Arc::new(Semaphore::new(LARGE_PLACES)), Arc::new(Semaphore::new(1)));
        Self { large, huge, patience: PATIENCE }
    }
}

impl Room {
    /// Waits for the places that `bytes` need, unless the reader holds them already.
    ///
    /// # Errors
    /// `Local`, if other readers hold them for too long.
    pub async fn grow(&self, places: &mut MemoryPermits, bytes: usize) -> Result<(), Error> {
        if bytes > LARGE_BYTES && places.large.is_none() {
            places.large = Some(self.one(&self.large).await?);
        }
        if bytes > HUGE_BYTES && places.huge.is_none() {
            places.huge = Some(self.one(&self.huge).await?);
        }
        Ok(())
    }

    async fn one(&self, places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Error> {
        match tokio::time::timeout(self.patience, Arc::clone(places).acquire_owned()).await {
            Ok(permit) => Ok(permit.expect("never closed")),
            Err(_) => Err(Error::Local(format!(
                "no memory for a document of more than {} MB within {} s: other replications of this server copy such documents",
                LARGE_BYTES >> 20,
                self.patience.as_secs()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn large_documents_wait_for_each_other_and_small_ones_do_not() {
        let mut room = Room::default();
        let (mut first, mut second, mut third) =
            (MemoryPermits::default(), MemoryPermits::default(), MemoryPermits::default());
        room.grow(&mut first, HUGE_BYTES + 1).await.unwrap();
        room.grow(&mut second, LARGE_BYTES + 1).await.unwrap();
        // A reader does not wait for places that it holds.
        room.grow(&mut first, usize::MAX).await.unwrap();
        room.grow(&mut third, LARGE_BYTES).await.unwrap();
        room.patience = Duration::ZERO;
        let full = room.grow(&mut third, LARGE_BYTES + 1).await.unwrap_err();
        room.patience = PATIENCE;
        assert!(full.to_string().contains("no memory") && !full.is_terminal());
        let mut waiting = std::pin::pin!(room.grow(&mut second, HUGE_BYTES + 1));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(first);
        waiting.await.unwrap();
        room.grow(&mut third, LARGE_BYTES + 1).await.unwrap();
    }
}
