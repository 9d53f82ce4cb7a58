//! Memory for data from peers: one budget for all replications of a process.
//!
//! A job's batches are limited, but there are many jobs, and a source may send a single row of any size, which is unknown
//! before it has arrived. A reader takes a place when it holds more than [`Use::free_bytes`], a place of a scarcer kind
//! beyond the next limit, and the scarcest beyond the last. Readers take places only in this order.
//!
//! While a reader holds places, it may wait for a reader of another [`Use`], for example for the target's response to what
//! it has read. Each use has places of its own, and waits only for uses behind it in the order feed, documents, responses.
//! So there is no deadlock.
//!
//! Documents that wait to be written are counted. Beyond a limit, batches become smaller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::error::{Error, Side};

/// What a reader of a feed may hold without a place. Documents that are larger do not come with the feed.
pub const FREE_FEED_BYTES: usize = 1 << 20;
/// What another reader may hold without a place.
const FREE_BYTES: usize = 256 << 10;
/// What a reader may hold with the first, the second and the last kind of place. No reader holds more than the last: the
/// upper bound of `max_document_size`.
const PLACE_BYTES: [usize; 3] = [4 << 20, 32 << 20, MAX_DOCUMENT_BYTES];
/// Largest value of `max_document_size`, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 20;
/// The number of places of each kind, for each use. A document is in memory twice while it is copied to the write buffer.
const PLACES: [[usize; 3]; 3] = [[16, 1, 1], [64, 2, 1], [8, 1, 1]];
/// How long a reader keeps a place for which others wait. A place is kept while a slow target takes what was read before.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a reader waits for a place. The source may close its connection earlier.
const LONGEST_WAIT: Duration = Duration::from_secs(900);
/// While documents that wait to be written have more bytes than this, batches are smaller.
const WAITING_BYTES: usize = 256 << 20;
/// By which factor.
const SMALLER: usize = 16;

/// What a reader reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// Rows of a changes feed. A reader with a place may wait until documents have been copied.
    Feed,
    /// Documents, and other responses of sources. A reader with a place may wait until a target has responded.
    Documents,
    /// Responses of targets.
    Responses,
}

impl Use {
    /// What a response of this side is read for, except a feed.
    pub fn of(side: Side) -> Use {
        match side {
            Side::Source => Use::Documents,
            Side::Target => Use::Responses,
        }
    }

    /// What a reader may hold without a place.
    pub fn free_bytes(self) -> usize {
        match self {
            Use::Feed => FREE_FEED_BYTES,
            Use::Documents | Use::Responses => FREE_BYTES,
        }
    }
}

/// The places of a process.
#[derive(Debug)]
pub(crate) struct Room {
    places: [[Places; 3]; 3],
    /// [`PATIENCE`].
    patience: Duration,
    /// [`LONGEST_WAIT`].
    longest_wait: Duration,
    /// The bytes of documents that wait to be written.
    waiting_bytes: AtomicUsize,
}

/// The places of one kind for one use.
#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    /// How many readers wait for one.
    waiting: AtomicUsize,
}

/// The places that a reader holds, and when it got each.
#[derive(Debug, Default)]
pub(crate) struct MemoryPermits([Option<(OwnedSemaphorePermit, Instant)>; 3]);

impl Default for Room {
    fn default() -> Self {
        let places = |count| Places { free: Arc::new(Semaphore::new(count)), waiting: AtomicUsize::new(0) };
        let places = PLACES.map(|counts| counts.map(places));
        Self { places, patience: PATIENCE, longest_wait: LONGEST_WAIT, waiting_bytes: AtomicUsize::new(0) }
    }
}

impl Room {
    /// Waits for the places that `bytes` need, unless the reader holds them already.
    ///
    /// # Errors
    /// `Local`, if other readers hold them for too long, or if this one does and others wait.
    pub async fn grow(&self, reads: Use, permits: &mut MemoryPermits, bytes: usize) -> Result<(), Error> {
        let below = [reads.free_bytes(), PLACE_BYTES[0], PLACE_BYTES[1]];
        for (kind, permit) in permits.0.iter_mut().enumerate().take_while(|(kind, _)| bytes > below[*kind]) {
            let places = &self.places[reads as usize][kind];
            match permit {
                None => *permit = Some((self.one(places, below[kind]).await?, Instant::now())),
                Some((_, since)) => {
                    let others_wait = places.waiting.load(Ordering::Relaxed) > 0;
                    if others_wait && since.elapsed() > self.patience {
                        return Err(Error::Local(format!(
                            "an answer of more than {bytes} bytes has not ended within {} s, and other replications of this \
                             server wait for the memory",
                            PATIENCE.as_secs()
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    async fn one(&self, places: &Places, beyond_bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        if let Ok(permit) = Arc::clone(&places.free).try_acquire_owned() {
            return Ok(permit);
        }
        places.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&places.waiting);
        match tokio::time::timeout(self.longest_wait, Arc::clone(&places.free).acquire_owned()).await {
            Ok(permit) => Ok(permit.expect("never closed")),
            Err(_) => Err(Error::Local(format!(
                "no memory for an answer of more than {} kB within {} s: other replications of this server read such answers",
                beyond_bytes >> 10,
                LONGEST_WAIT.as_secs()
            ))),
        }
    }
}

/// Counts one that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bytes of a batch that waits to be written.
#[derive(Debug)]
pub struct WaitingBytes {
    room: Arc<Room>,
    bytes: usize,
}

/// Of a batch that is counted alone.
impl Default for WaitingBytes {
    fn default() -> Self {
        Self::new(&Arc::default())
    }
}

impl WaitingBytes {
    pub(crate) fn new(room: &Arc<Room>) -> Self {
        Self { room: Arc::clone(room), bytes: 0 }
    }

    /// For another batch.
    pub fn another(&self) -> Self {
        Self::new(&self.room)
    }

    /// Counts `bytes` instead of those that were counted before.
    pub fn set(&mut self, bytes: usize) {
        // First more, then less: the sum never wraps.
        self.room.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.room.waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// The size at which the batch is written if it could have `full` bytes.
    pub fn batch_bytes(&self, full: usize) -> usize {
        match self.room.waiting_bytes.load(Ordering::Relaxed) {
            0..WAITING_BYTES => full,
            _ => full / SMALLER,
        }
    }
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn large_documents_wait_for_each_other_and_small_ones_do_not() {
        let mut room = Room::default();
        let mut permits: Vec<MemoryPermits> = (0..4).map(|_| MemoryPermits::default()).collect();
        let [first, second, third, fourth] = permits.get_disjoint_mut([0, 1, 2, 3]).unwrap();
        let [middle, large, _] = PLACE_BYTES;
        room.grow(Use::Documents, first, large + 1).await.unwrap();
        room.grow(Use::Documents, second, middle + 1).await.unwrap();
        // A reader does not wait for places that it holds.
        room.grow(Use::Documents, first, usize::MAX).await.unwrap();
        room.grow(Use::Documents, third, middle).await.unwrap();
        room.longest_wait = Duration::ZERO;
        let full = room.grow(Use::Documents, third, middle + 1).await.unwrap_err();
        room.longest_wait = LONGEST_WAIT;
        assert!(full.to_string().contains("no memory"));
        // Responses of targets do not wait for documents of sources, whose readers wait for the responses.
        room.grow(Use::Responses, fourth, middle + 1).await.unwrap();
        {
            let mut waiting = std::pin::pin!(room.grow(Use::Documents, third, middle + 1));
            assert!(futures::poll!(waiting.as_mut()).is_pending());
            *first = MemoryPermits::default();
            waiting.await.unwrap();
        }
        room.grow(Use::Documents, third, large + 1).await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_reader_gives_way_to_others_that_wait() {
        let room = Room { patience: Duration::ZERO, ..Room::default() };
        let (mut slow, mut other) = (MemoryPermits::default(), MemoryPermits::default());
        room.grow(Use::Feed, &mut slow, PLACE_BYTES[0] + 1).await.unwrap();
        room.grow(Use::Feed, &mut slow, PLACE_BYTES[0] + 2).await.unwrap();
        let mut waiting = Box::pin(room.grow(Use::Feed, &mut other, PLACE_BYTES[0] + 1));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        let ended = room.grow(Use::Feed, &mut slow, PLACE_BYTES[0] + 3).await.unwrap_err();
        assert!(ended.to_string().contains("wait for the memory"), "{ended}");
        drop(slow);
        waiting.await.unwrap();
    }

    #[test]
    fn batches_are_smaller_while_many_bytes_wait_to_be_written() {
        let room = Arc::new(Room::default());
        let (mut few, mut many) = (WaitingBytes::new(&room), WaitingBytes::new(&room));
        few.set(1);
        many.set(WAITING_BYTES - 2);
        assert_eq!(few.batch_bytes(1600), 1600);
        few.set(2);
        assert_eq!(few.batch_bytes(1600), 100);
        drop(many);
        assert_eq!((few.batch_bytes(1600), room.waiting_bytes.load(Ordering::Relaxed)), (1600, 2));
    }
}
