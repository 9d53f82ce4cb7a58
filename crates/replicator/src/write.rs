//! Writing revisions to the target: `_bulk_docs` with `new_edits=false`.
//!
//! A [`WriteBuffer`] is the request's body while it grows: documents are copied into it once, as the text they are. A target
//! that finds it too large (413) gets it in halves, again and again, until a single document is too large: that one is a
//! counted write failure, as are documents that the target forbids.

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;

use crate::error::{Error, Fault};
use crate::http::{Peer, Request};
use crate::stats::Tally;

/// A buffer of this size is written although more documents are at hand. With `worker_processes` of them in flight this
/// bounds memory; CouchDB gains nothing from more.
const FULL_BYTES: usize = 4 * 1024 * 1024;
/// And at this number of documents: CouchDB slows down beyond some thousands.
const FULL_DOCS: usize = 2_000;
/// The answer names failures only; each is a few hundred bytes.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

const HEAD: &[u8] = br#"{"new_edits":false,"docs":["#;
const TAIL: &[u8] = b"]}";

/// Documents on their way to the target.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    /// The request's body so far: its head, then documents with a comma after each. Empty without documents.
    text: Vec<u8>,
    /// Where each document ends, its comma left out.
    ends: Vec<usize>,
}

impl WriteBuffer {
    pub fn push(&mut self, doc: &[u8]) {
        if self.text.is_empty() {
            self.text.extend_from_slice(HEAD);
        }
        self.text.extend_from_slice(doc);
        self.ends.push(self.text.len());
        self.text.push(b',');
    }

    pub fn is_full(&self) -> bool {
        self.text.len() >= FULL_BYTES || self.ends.len() >= FULL_DOCS
    }

    /// Writes all documents and empties the buffer.
    ///
    /// # Errors
    /// Whatever the target says, except of single documents that it refuses: these are counted.
    pub async fn flush(&mut self, target: &Peer, tally: &Tally) -> Result<(), Error> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let docs = self.take();
        let mut parts: Vec<Range<usize>> = std::iter::once(0..docs.ends.len()).collect();
        while let Some(part) = parts.pop() {
            let body = docs.body(&part);
            let (count, bytes) = (part.len() as u64, body.len() as u64);
            match post(target, body).await {
                Ok(refused) => {
                    tally.docs_written.add(count.saturating_sub(refused));
                    tally.doc_write_failures.add(refused);
                    tally.bytes_written.add(bytes);
                }
                Err(error) if error.status() == Some(413) && count == 1 => {
                    tracing::warn!(%error, "a document is too large for the target");
                    tally.doc_write_failures.add(1);
                }
                Err(error) if error.status() == Some(413) => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Docs {
        let (mut text, ends) = (std::mem::take(&mut self.text), std::mem::take(&mut self.ends));
        text.pop();
        text.extend_from_slice(TAIL);
        Docs { text: text.into(), ends }
    }
}

/// A buffer that is being written.
struct Docs {
    /// The whole request's body.
    text: Bytes,
    ends: Vec<usize>,
}

impl Docs {
    /// The request's body for some of the documents; a copy only where it is not for all of them.
    fn body(&self, docs: &Range<usize>) -> Bytes {
        if docs.len() == self.ends.len() {
            return self.text.clone();
        }
        let start = docs.start.checked_sub(1).map_or(HEAD.len(), |before| self.ends[before] + 1);
        [HEAD, &self.text[start..self.ends[docs.end - 1]], TAIL].concat().into()
    }
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    id: String,
    error: Option<String>,
    #[serde(default)]
    reason: String,
}

/// One request. Answers how many documents the target refused for good.
async fn post(target: &Peer, body: Bytes) -> Result<u64, Error> {
    let request = Request::post("_bulk_docs", body);
    let refusals: Vec<Refusal> = target.json(&request, ANSWER_BYTES).await?;
    let mut refused = 0;
    for Refusal { id, error, reason } in refusals {
        match error.as_deref() {
            None => {}
            Some(
                error @ ("unauthorized"
                | "forbidden"
                | "too_large"
                | "document_too_large"
                | "request_entity_too_large"),
            ) => {
                let reason = target.clean(&reason);
                tracing::warn!(doc_id = id, error, reason, "the target refuses a document");
                refused += 1;
            }
            Some(error) => {
                let fault = Fault::Unexpected(format!("document {id:?} was not written: {error}: {reason}"));
                return Err(target.fault(http::Method::POST, "_bulk_docs", fault));
            }
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn any_part_of_a_buffer_is_a_proper_body() {
        let mut buffer = WriteBuffer::default();
        for doc in [r#"{"_id":"a"}"#, r#"{"_id":"b"}"#, r#"{"_id":"c"}"#] {
            buffer.push(doc.as_bytes());
        }
        let docs = buffer.take();
        let body = |range: Range<usize>| String::from_utf8(docs.body(&range).to_vec()).unwrap();
        assert_eq!(body(0..3), r#"{"new_edits":false,"docs":[{"_id":"a"},{"_id":"b"},{"_id":"c"}]}"#);
        assert_eq!(body(1..2), r#"{"new_edits":false,"docs":[{"_id":"b"}]}"#);
        assert_eq!(body(1..3), r#"{"new_edits":false,"docs":[{"_id":"b"},{"_id":"c"}]}"#);
    }
}
