//! Responses: complete JSON, and JSON that is streamed in pieces.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc;

use super::error::ApiError;

/// Maximum number of pieces that wait for a slow reader.
const PIECES_AHEAD: usize = 4;
/// A reader that reads no piece for this long is treated as gone: its request occupies memory that other requests need.
const READER_TIMEOUT: Duration = Duration::from_secs(300);
/// Approximate size of a piece, in bytes. Rows are collected into pieces.
const PIECE_BYTES: usize = 32 << 10;
/// Approximate total size of the rows in memory that are not written yet, in bytes. It exceeds the pieces ahead, so
/// that a slow reader costs few transactions.
const BATCH_BYTES: usize = 256 << 10;

/// A JSON response that ends with a newline, as CouchDB's do.
pub fn json<T: Serialize>(status: StatusCode, body: &T) -> Response {
    text(status, serde_json::to_vec(body).unwrap_or_else(|_| b"null".to_vec()))
}

/// The same of JSON that is written already.
pub fn text(status: StatusCode, mut text: Vec<u8>) -> Response {
    text.push(b'\n');
    respond(status, Body::from(text))
}

/// A response with status 200, such as `{"ok":true}`.
pub fn ok<T: Serialize>(body: &T) -> Response {
    json(StatusCode::OK, body)
}

/// A response with this body of JSON.
pub fn respond(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
    response
}

/// Adds a header, if its value is valid.
pub fn with_header(mut response: Response, name: HeaderName, value: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}

/// The writer of a streamed response; see [`in_pieces`].
pub struct Pieces {
    to: mpsc::Sender<Result<Bytes, Broken>>,
    buffer: Vec<u8>,
    /// Number of rows so far: a comma precedes each row except the first.
    rows: usize,
}

/// The response could not be completed, or its reader is gone.
#[derive(Debug, thiserror::Error)]
#[error("the response ended early")]
pub struct Broken;

impl Pieces {
    /// Writes text as it is.
    #[boxed]
    pub async fn text(&mut self, text: &str) -> Result<(), Broken> {
        self.buffer.extend_from_slice(text.as_bytes());
        if self.buffer.len() >= PIECE_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Writes a row of a JSON array, as CouchDB does: one per line.
    pub async fn row<T: Serialize>(&mut self, row: &T) -> Result<(), Broken> {
        self.after(",\n", row).await
    }

    /// Writes the rows of a batch.
    #[boxed]
    pub async fn batch(&mut self, batch: &Batch) -> Result<(), Broken> {
        for row in batch.rows() {
            self.row(row).await?;
        }
        Ok(())
    }

    /// Writes an element of a JSON array, on the same line as the previous one.
    pub async fn element<T: Serialize>(&mut self, element: &T) -> Result<(), Broken> {
        self.after(",", element).await
    }

    async fn after<T: Serialize>(&mut self, separator: &str, row: &T) -> Result<(), Broken> {
        self.text(if self.rows > 0 { separator } else { "" }).await?;
        self.rows += 1;
        self.line(row).await
    }

    /// Writes a value.
    pub async fn line<T: Serialize>(&mut self, value: &T) -> Result<(), Broken> {
        serde_json::to_writer(&mut self.buffer, value).map_err(|_| Broken)?;
        self.text("").await
    }

    /// Sends the buffered text.
    #[boxed]
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

    /// Resolves when the reader is gone.
    #[boxed]
    pub async fn abandoned(&self) {
        self.to.closed().await;
    }
}

/// Rows that one transaction reads, and that are written after its end. A transaction lives for seconds, and a slow
/// reader may take much longer, so no transaction is open while a writer waits for its reader.
#[derive(Default)]
pub struct Batch {
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

    /// Whether the batch should be written now. The row that fills a batch is its last one, so its size is at most the
    /// limit plus one row.
    pub fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES
    }

    /// The rows, in their order.
    pub fn rows(&self) -> &[Box<RawValue>] {
        &self.rows
    }
}

/// A response that `write` produces while the client reads it, so that it is never complete in memory. `write` returns
/// the pieces when the response is complete. If it fails, the reader sees a truncated response.
pub fn in_pieces<F, Fut>(write: F) -> Response
where
    F: FnOnce(Pieces) -> Fut,
    Fut: Future<Output = Result<Pieces, ApiError>> + Send + 'static,
{
    let (to, from) = mpsc::channel(PIECES_AHEAD);
    let writing = write(Pieces { to: to.clone(), buffer: Vec::new(), rows: 0 });
    tokio::spawn(async move {
        // If the reader is gone, nothing is left to do.
        match writing.await {
            Ok(mut pieces) => drop(pieces.flush().await),
            Err(error) => {
                error.log();
                tracing::warn!(reason = error.reason, "a streamed response ended early");
                drop(to.send(Err(Broken)).await);
            }
        }
    });
    let body = stream::unfold(from, |mut from| async move { from.recv().await.map(|piece| (piece, from)) });
    respond(StatusCode::OK, Body::from_stream(body))
}

impl From<Broken> for ApiError {
    fn from(error: Broken) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "broken", error.to_string())
    }
}
