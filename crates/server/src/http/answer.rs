//! Answers: JSON at once, and JSON in pieces.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc;

use super::error::ApiError;

/// Pieces of a long answer that wait for a slow reader, at most.
const PIECES_AHEAD: usize = 4;
/// A reader that takes no piece for so long is gone: what its request holds in memory is wanted by others.
const READER_TIMEOUT: Duration = Duration::from_secs(300);
/// Rows are collected into pieces of about this size, in bytes.
const PIECE_BYTES: usize = 32 << 10;
/// Rows that are in memory before they are written have about this size together, in bytes: more than the pieces ahead,
/// so that a slow reader costs few transactions.
const BATCH_BYTES: usize = 256 << 10;

/// A JSON answer, with CouchDB's newline at its end.
pub(crate) fn json<T: Serialize>(status: StatusCode, body: &T) -> Response {
    let mut text = serde_json::to_vec(body).unwrap_or_else(|_| b"null".to_vec());
    text.push(b'\n');
    respond(status, Body::from(text))
}

/// `{"ok":true}` and the like.
pub(crate) fn ok<T: Serialize>(body: &T) -> Response {
    json(StatusCode::OK, body)
}

pub(crate) fn respond(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
    response
}

/// Adds a header, if its value can be one.
pub(crate) fn with_header(mut response: Response, name: HeaderName, value: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}

/// Where a long answer is written to. It ends when it is dropped; if it is never [finished](Pieces::finish), the reader
/// sees that it broke off.
pub(crate) struct Pieces {
    to: mpsc::Sender<Result<Bytes, Broken>>,
    buffer: Vec<u8>,
    /// Rows so far: a comma goes before all but the first.
    rows: usize,
}

/// The answer could not be ended well, or nobody reads it.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub(crate) struct Broken;

impl Pieces {
    /// Writes text as it is.
    pub async fn text(&mut self, text: &str) -> Result<(), Broken> {
        self.buffer.extend_from_slice(text.as_bytes());
        if self.buffer.len() >= PIECE_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Writes a row of a JSON array, as CouchDB does: one per line.
    pub async fn row<T: Serialize>(&mut self, row: &T) -> Result<(), Broken> {
        let before = if self.rows > 0 { ",\n" } else { "" };
        self.rows += 1;
        self.text(before).await?;
        self.line(row).await
    }

    /// Writes the rows of a batch.
    pub async fn batch(&mut self, batch: &Batch) -> Result<(), Broken> {
        for row in batch.rows() {
            self.row(row).await?;
        }
        Ok(())
    }

    /// Writes an element of a JSON array, on the same line as the others.
    pub async fn element<T: Serialize>(&mut self, element: &T) -> Result<(), Broken> {
        let before = if self.rows > 0 { "," } else { "" };
        self.rows += 1;
        self.text(before).await?;
        self.line(element).await
    }

    /// Writes a value.
    pub async fn line<T: Serialize>(&mut self, value: &T) -> Result<(), Broken> {
        serde_json::to_writer(&mut self.buffer, value).map_err(|_| Broken)?;
        self.text("").await
    }

    /// Sends what was written so far.
    pub async fn flush(&mut self) -> Result<(), Broken> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        match tokio::time::timeout(READER_TIMEOUT, self.to.send(Ok(piece))).await {
            Ok(sent) => sent.map_err(|_| Broken),
            Err(_) => Err(Broken),
        }
    }

    /// Resolves when nobody reads any more.
    pub async fn abandoned(&self) {
        self.to.closed().await;
    }

    async fn finish(mut self, written: Result<(), ApiError>) {
        let end = match written {
            Ok(()) => self.flush().await,
            Err(error) => {
                tracing::warn!(reason = error.reason, "a long answer broke off");
                self.to.send(Err(Broken)).await.map_err(|_| Broken)
            }
        };
        // Nobody reads it any more: nothing is left to do.
        let _ = end;
    }
}

/// Rows that were read in one transaction and are written when it is over. A transaction lives for seconds, and a slow
/// reader takes as long as it likes: nothing waits for a reader while there is a transaction.
#[derive(Default)]
pub(crate) struct Batch {
    rows: Vec<Box<RawValue>>,
    bytes: usize,
}

impl Batch {
    /// Adds a row.
    pub fn push<T: Serialize>(&mut self, row: &T) -> Result<(), Broken> {
        let row = to_raw_value(row).map_err(|_| Broken)?;
        self.bytes += row.get().len();
        self.rows.push(row);
        Ok(())
    }

    /// It is time to write them. The row that filled it is its last: so it is never longer than its bound and a row.
    pub fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES
    }

    /// The rows, in their order.
    pub fn rows(&self) -> &[Box<RawValue>] {
        &self.rows
    }
}

/// An answer that `write` writes while it is read, so that no answer is ever whole in memory. `write` gives the pieces
/// back, with how it went.
pub(crate) fn in_pieces<F, Fut>(write: F) -> Response
where
    F: FnOnce(Pieces) -> Fut,
    Fut: Future<Output = (Pieces, Result<(), ApiError>)> + Send + 'static,
{
    let (to, from) = mpsc::channel(PIECES_AHEAD);
    let writing = write(Pieces { to, buffer: Vec::new(), rows: 0 });
    tokio::spawn(async move {
        let (pieces, written) = writing.await;
        pieces.finish(written).await;
    });
    let body = stream::unfold(from, |mut from| async move { from.recv().await.map(|piece| (piece, from)) });
    respond(StatusCode::OK, Body::from_stream(body))
}

impl From<Broken> for ApiError {
    fn from(error: Broken) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "broken", error.to_string())
    }
}
