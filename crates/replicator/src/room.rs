//! Memory for what peers send: documents beyond what every batch may hold wait for a place, of which the process has a few.
//!
//! A job's batches are bounded, but a single document may be as large as its source likes, and nobody knows how large before it has come. So a reader
//! takes a place when what it holds passes a bound, and one of a smaller number of places when it passes the next. Places are taken in this order only,
//! and whoever has one of the second kind waits for none: there is no deadlock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;

/// What is held beyond this needs a place, in bytes: as much as a write buffer has.
pub(crate) const LARGE_BYTES: usize = 4 << 20;
/// And beyond this, a place of the second kind.
const HUGE_BYTES: usize = 32 << 20;
/// Places for large documents. A document is in memory twice while it goes over to the write buffer.
const LARGE_PLACES: usize = 2;
/// How long is waited for a place. The source may close its connection before.
const PATIENCE: Duration = Duration::from_secs(300);

/// The places of a process.
#[derive(Debug)]
pub(crate) struct Room {
    large: Arc<Semaphore>,
    huge: Arc<Semaphore>,
    patience: Duration,
}

/// The places that a reader has.
#[derive(Debug, Default)]
pub(crate) struct Places {
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
    /// Waits for the places that `bytes` need, unless they are there.
    ///
    /// # Errors
    /// `Local`, if others have them for too long.
    pub async fn grow(&self, places: &mut Places, bytes: usize) -> Result<(), Error> {
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
        let (mut first, mut second, mut third) = (Places::default(), Places::default(), Places::default());
        room.grow(&mut first, HUGE_BYTES + 1).await.unwrap();
        room.grow(&mut second, LARGE_BYTES + 1).await.unwrap();
        // What it has, it need not wait for.
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
