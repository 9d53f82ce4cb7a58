//! Request bodies gzipped where the link is slow.
//!
//! JSON shrinks to a quarter or less, at some 10 ms of CPU for each megabyte. On a fast link that is only a cost: 100 MB/s leave a
//! body sooner than it is compressed. So the speed is measured at which the connection takes bodies of some size, and only once
//! several in a row were slow are those that follow compressed. CouchDB understands them; whoever answers that it
//! does not (400, 415, 501) gets the same body plain, and never another compressed one in this run.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression as Level;
use flate2::write::GzEncoder;

/// Slower than 8 Mbit/s: then a megabyte takes a second plain, and a quarter of one compressed.
const SLOW_BYTES_PER_SECOND: f64 = 1e6;
/// What the buffers swallow at once says nothing of the link: some 400 kB are the HTTP client's own, the rest is the socket's.
const SWALLOWED_BYTES: u64 = 768 * 1024;
/// So smaller bodies say nothing at all.
const TELLING_BYTES: u64 = 1024 * 1024;
/// A busy server takes a body slowly, too, but not several in a row.
const SLOW_IN_A_ROW: u32 = 3;
/// Smaller bodies gain nothing.
const WORTH_BYTES: usize = 4 * 1024;

/// Whether the bodies for one peer are compressed.
#[derive(Debug, Default)]
pub(super) struct Compression {
    slow_in_a_row: AtomicU32,
    refused: AtomicBool,
}

impl Compression {
    /// Whether a body of this size is to be compressed.
    pub fn is_worth(&self, bytes: usize) -> bool {
        bytes >= WORTH_BYTES
            && self.slow_in_a_row.load(Ordering::Relaxed) >= SLOW_IN_A_ROW
            && !self.refused.load(Ordering::Relaxed)
    }

    /// The connection took a plain body of so many bytes in this time.
    pub fn measured(&self, bytes: u64, took: Duration) {
        if bytes < TELLING_BYTES {
            return;
        }
        let bytes = bytes - SWALLOWED_BYTES;
        let slow = bytes as f64 / took.as_secs_f64().max(1e-6) < SLOW_BYTES_PER_SECOND;
        let next = |before: u32| if slow { before.saturating_add(1) } else { 0 };
        let _ = self.slow_in_a_row.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| Some(next(it)));
    }

    /// Whether an answer with this status may mean that the peer does not understand compressed bodies. It gets no more of them.
    pub fn refused(&self, status: Option<u16>) -> bool {
        let refused = matches!(status, Some(400 | 415 | 501));
        if refused {
            self.refused.store(true, Ordering::Relaxed);
        }
        refused
    }
}

/// The body, compressed, on a thread for such work; `None` if it cannot be, which only costs time.
pub(super) async fn gzip(body: Bytes) -> Option<Bytes> {
    tokio::task::spawn_blocking(move || {
        let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 3), Level::fast());
        encoder.write_all(&body).ok()?;
        encoder.finish().ok().map(Bytes::from)
    })
    .await
    .ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: u64 = 1024 * 1024;

    #[test]
    fn only_a_link_that_is_slow_again_and_again_is_worth_it() {
        let compression = Compression::default();
        let measure = |bytes: u64, ms: u64| {
            compression.measured(bytes, Duration::from_millis(ms));
            compression.is_worth(WORTH_BYTES)
        };
        assert_eq!([1000, 1000, 100, 1000, 1000].map(|ms| measure(MEGABYTE, ms)), [false; 5]);
        // Small bodies tell nothing.
        assert!(!measure(MEGABYTE - 1, 5000));
        assert!(measure(MEGABYTE, 1000));
        assert!(!compression.is_worth(WORTH_BYTES - 1));
        assert!(!measure(4 * MEGABYTE, 1000));
    }

    #[test]
    fn a_refusal_is_for_good() {
        let compression = Compression::default();
        for _ in 0..SLOW_IN_A_ROW {
            compression.measured(MEGABYTE, Duration::from_secs(1));
        }
        assert!(!compression.refused(None) && !compression.refused(Some(500)));
        assert!(compression.is_worth(WORTH_BYTES));
        assert!(compression.refused(Some(415)));
        assert!(!compression.is_worth(WORTH_BYTES));
    }
}
