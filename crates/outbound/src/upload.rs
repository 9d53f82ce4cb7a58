//! A request's body that reports its progress.
//!
//! A request fails when nothing moves for a while. A large body on a slow link moves all the time and gets no response
//! for long. Bodies are therefore sent in pieces, and every piece that the connection takes is counted.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::flow::Flow;

/// The size of the pieces in which a body in memory is sent. Slicing copies nothing.
const PIECE_BYTES: usize = 64 * 1024;

/// How many bytes of a body the connection has taken.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    /// When the connection took the first piece, and the last one so far.
    pieces: Mutex<Option<(Instant, Instant)>>,
}

impl Progress {
    /// Bytes that were taken.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The time between the first and the last piece that the connection took.
    pub fn took(&self) -> Duration {
        let pieces = self.pieces.lock().expect("no thread panics while it holds this lock");
        pieces.map_or(Duration::ZERO, |(first, last)| last.duration_since(first))
    }

    fn add(&self, piece: &Bytes) {
        self.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        let now = Instant::now();
        self.pieces.lock().expect("no thread panics while it holds this lock").get_or_insert((now, now)).1 =
            now;
    }
}

/// The error of a body that is itself read from a peer. It was reported elsewhere.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The pieces of a streamed body, which ends when the sender is dropped.
pub type Pieces = mpsc::Receiver<Result<Bytes, BodyError>>;

/// A body to be sent. The default is none.
#[derive(Default)]
pub struct Upload {
    pub(crate) content_type: String,
    /// `Content-Encoding`.
    pub(crate) encoding: Option<&'static str>,
    content: Content,
    progress: Arc<Progress>,
    /// The run that sends it, for which it counts what the connection takes.
    pub(crate) flow: Option<Arc<Flow>>,
    /// Whether it is sent again because of a new login.
    pub(crate) follows_login: bool,
}

enum Content {
    AtHand(Bytes),
    Streamed { pieces: Pieces, length: Option<u64> },
}

impl Default for Content {
    fn default() -> Self {
        Self::AtHand(Bytes::new())
    }
}

impl Upload {
    /// A body in memory.
    pub fn from_bytes(body: Bytes, content_type: &str) -> Self {
        Self { content_type: content_type.to_owned(), content: Content::AtHand(body), ..Self::default() }
    }

    /// A body of `length` bytes, or, without a length, of all the pieces that come (chunked).
    pub fn streamed(pieces: Pieces, length: Option<u64>, content_type: String) -> Self {
        Self { content_type, content: Content::Streamed { pieces, length }, ..Self::default() }
    }

    /// Sets the encoding that the body already has.
    pub fn encoded(mut self, encoding: &'static str) -> Self {
        self.encoding = Some(encoding);
        self
    }

    /// Sets whether it is sent again because of a new login. A rejection is then final, however long the upload takes.
    pub fn after_login(mut self, follows_login: bool) -> Self {
        self.follows_login = follows_login;
        self
    }

    /// A copy for another attempt; `None` for a stream. Call it only before anything of the body has been sent.
    pub fn again(&self) -> Option<Self> {
        match &self.content {
            Content::AtHand(body) => {
                let again = Self::from_bytes(body.clone(), &self.content_type);
                Some(Self { encoding: self.encoding, ..again })
            }
            Content::Streamed { .. } => None,
        }
    }

    /// How much of it the connection has taken, also after it has been sent.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = match &mut self.content {
            Content::AtHand(rest) if rest.is_empty() => None,
            Content::AtHand(rest) => Some(Ok(rest.split_to(rest.len().min(PIECE_BYTES)))),
            Content::Streamed { pieces, length } => match pieces.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(piece))) => {
                    *length = length.map(|left| left.saturating_sub(piece.len() as u64));
                    Some(Ok(piece))
                }
                Poll::Ready(end) => end,
            },
        };
        if let Some(Ok(piece)) = &next {
            self.progress.add(piece);
            if let Some(flow) = &self.flow {
                flow.moved(piece.len() as u64);
            }
        }
        Poll::Ready(next.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::AtHand(rest) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::AtHand(rest) => SizeHint::with_exact(rest.len() as u64),
            Content::Streamed { length: Some(left), .. } => SizeHint::with_exact(*left),
            Content::Streamed { length: None, .. } => SizeHint::default(),
        }
    }
}
