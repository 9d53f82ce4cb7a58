//! Request bodies are gzipped where the link is slow.
//!
//! JSON shrinks to a quarter or less, at some 10 ms of CPU per megabyte. On a fast link that is only a cost: at 100
//! MB/s, a body is sent sooner than it is compressed. The rate at which the connection takes large bodies is therefore
//! measured, and bodies are compressed only after several consecutive slow ones. CouchDB supports them. A gateway before it may
//! reject them in any way. A body that is rejected compressed is therefore sent once more as it is. If the peer accepts that, it gets
//! no other compressed one for a while ([`super::Optional`]). Once it has accepted a compressed body, only responses that are about the
//! encoding count as a rejection of it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use http::header::CONTENT_TYPE;

use crate::answer::Answer;
use crate::error::Error;

/// Slower than 8 Mbit/s: a megabyte then takes a second uncompressed, and a quarter of that compressed.
const SLOW_BYTES_PER_SECOND: f64 = 1e6;
/// Bytes that buffers take immediately, which show nothing about the link: some 400 kB in the HTTP client, the rest in
/// the socket.
const SWALLOWED_BYTES: u64 = 704 * 1024;
/// Smaller bodies are therefore not measured. It is less than the first limit of a body ([`super::body_limit`]), so that a link behind a
/// gateway that accepts 1 MB is measured too.
const TELLING_BYTES: u64 = 800 * 1024;
/// A busy server also takes a body slowly, but not several consecutive ones.
const SLOW_IN_A_ROW: u32 = 3;
/// Compressing smaller bodies gains nothing.
const WORTH_BYTES: usize = 4 * 1024;
/// Whether the bodies for one peer are compressed.
#[derive(Debug, Default)]
pub(crate) struct Compression {
    slow_in_a_row: AtomicU32,
    /// Whether the peer has accepted a compressed body in this run.
    accepted: AtomicBool,
}

impl Compression {
    /// Whether to compress a body of this size.
    pub fn is_worth(&self, bytes: usize) -> bool {
        bytes >= WORTH_BYTES && self.slow_in_a_row.load(Ordering::Relaxed) >= SLOW_IN_A_ROW
    }

    /// The peer has accepted a compressed body.
    pub fn accepted(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// Whether this may be the response to a body because it is compressed, so that another attempt without that is worth it.
    pub fn may_be_refused(&self, answer: &Result<Answer, Error>) -> bool {
        let is_new = !self.accepted.load(Ordering::Relaxed);
        match answer {
            // A page instead of a database's response.
            Ok(answer) => is_new && answer.header(CONTENT_TYPE).is_some_and(|it| it.starts_with("text/html")),
            Err(error) => match error.status() {
                Some(411 | 415 | 501) => true,
                // As it is, the body is larger, and an overloaded server would get more.
                Some(413 | 429) => false,
                Some(_) => is_new,
                None => is_new && error.is_break_off(),
            },
        }
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
}

/// The compressed body, from a blocking thread; `None` if the compression fails, which only costs time.
pub(crate) async fn gzip(body: Bytes) -> Option<Bytes> {
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
        assert!(!measure(TELLING_BYTES - 1, 5000));
        assert!(measure(MEGABYTE, 1000));
        assert!(!compression.is_worth(WORTH_BYTES - 1));
        assert!(!measure(4 * MEGABYTE, 1000));
    }
}
