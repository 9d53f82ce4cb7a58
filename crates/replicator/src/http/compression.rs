//! Request bodies are gzipped where the link is slow.
//!
//! JSON shrinks to a quarter or less, at some 10 ms of CPU per megabyte. On a fast link that is only a cost: at 100
//! MB/s, a body is sent sooner than it is compressed. The rate at which the connection takes large bodies is therefore
//! measured, and bodies are compressed only after several consecutive slow ones. CouchDB supports them. A peer that
//! does not (400, 415, 501) gets the same body uncompressed, and no other compressed one in this run.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression as Level;
use flate2::write::GzEncoder;

/// Slower than 8 Mbit/s: a megabyte then takes a second uncompressed, and a quarter of that compressed.
const SLOW_BYTES_PER_SECOND: f64 = 1e6;
/// Bytes that buffers take immediately, which show nothing about the link: some 400 kB in the HTTP client, the rest in
/// the socket.
const SWALLOWED_BYTES: u64 = 768 * 1024;
/// Smaller bodies are therefore not measured.
const TELLING_BYTES: u64 = 1024 * 1024;
/// A busy server also takes a body slowly, but not several consecutive ones.
const SLOW_IN_A_ROW: u32 = 3;
/// Compressing smaller bodies gains nothing.
const WORTH_BYTES: usize = 4 * 1024;

/// Whether the bodies for one peer are compressed.
#[derive(Debug, Default)]
pub(super) struct Compression {
    slow_in_a_row: AtomicU32,
    refused: AtomicBool,
}

impl Compression {
    /// Whether to compress a body of this size.
    pub fn is_worth(&self, bytes: usize) -> bool {
        bytes >= WORTH_BYTES
            && self.slow_in_a_row.load(Ordering::Relaxed) >= SLOW_IN_A_ROW
            && !self.refused.load(Ordering::Relaxed)
    }

    /// The connection took an uncompressed body of `bytes` bytes in this time.
    pub fn measured(&self, bytes: u64, took: Duration) {
        if bytes < TELLING_BYTES {
            return;
        }
        let bytes = bytes - SWALLOWED_BYTES;
        let slow = bytes as f64 / took.as_secs_f64().max(1e-6) < SLOW_BYTES_PER_SECOND;
        let next = |before: u32| if slow { before.saturating_add(1) } else { 0 };
        let _ = self.slow_in_a_row.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| Some(next(it)));
    }

    /// Whether a response with this status may mean that the peer does not support compressed bodies. If so, it gets no
    /// more of them.
    pub fn refused(&self, status: Option<u16>) -> bool {
        let refused = matches!(status, Some(400 | 415 | 501));
        if refused {
            self.refused.store(true, Ordering::Relaxed);
        }
        refused
    }
}

/// The compressed body, from a blocking thread; `None` if the compression fails, which only costs time.
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
        // Small bodies are not measured.
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
