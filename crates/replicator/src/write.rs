//! Writing revisions to the target: `_bulk_docs` with `new_edits=false`.
//!
//! A [`WriteBuffer`] holds the request's body while it grows; each document is copied into it once, as its JSON text.
//! If a target rejects the request as too large (413), it is halved repeatedly, down to single documents. A single
//! document that is too large counts as a write failure, as do documents whose rows contain an error
//! ([`crate::refusal`]). A batch that the target rejects as wrong (400, 415) is also halved, so that only the wrong
//! document is rejected or named. The same applies to a batch that the target does not finish in time. The time that
//! the target needs determines the size of a write ([`crate::pace`]).

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{Error, Fault, PeerText, Side};
use crate::http::{Peer, Request};
use crate::pace::Pace;
use crate::refusal;
use crate::room::WaitingBytes;
use crate::stats::Tally;

/// A buffer of this size is written even if more documents are available. With `worker_processes` such writes in
/// flight, this bounds memory; larger writes gain nothing at CouchDB.
const FULL_BYTES: usize = 4 * 1024 * 1024;
/// A buffer with this many documents is written: CouchDB slows down beyond some thousands.
const FULL_DOCS: usize = 2_000;
/// The response lists failures only; each takes a few hundred bytes.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

const HEAD: &[u8] = br#"{"new_edits":false,"docs":["#;
const TAIL: &[u8] = b"]}";

/// Documents on their way to the target.
pub(crate) struct WriteBuffer {
    /// The request's body so far: its head, then documents with a comma after each. Empty without documents.
    text: Vec<u8>,
    /// Where each document ends, without its comma.
    ends: Vec<usize>,
    /// Counts its bytes.
    waiting: WaitingBytes,
}

impl WriteBuffer {
    pub fn new(waiting: WaitingBytes) -> Self {
        Self { text: Vec::new(), ends: Vec::new(), waiting }
    }

    pub fn push(&mut self, doc: &[u8]) {
        if self.text.is_empty() {
            self.text.extend_from_slice(HEAD);
        }
        self.text.extend_from_slice(doc);
        self.ends.push(self.text.len());
        self.text.push(b',');
        self.waiting.set(self.text.len());
    }

    /// The limits shrink for a target that is throttled or slow, and while the process holds many documents.
    pub fn is_full(&self, target: &Peer, pace: &Pace) -> bool {
        let is_full = |size: usize, full: usize| size >= pace.of(Side::Target, target.reduced(full));
        is_full(self.text.len(), self.waiting.batch_bytes(FULL_BYTES)) || is_full(self.ends.len(), FULL_DOCS)
    }

    /// Writes all documents and empties the buffer.
    ///
    /// # Errors
    /// Errors of the target, except for single documents that it rejects permanently: these are counted.
    pub async fn flush(&mut self, target: &Peer, pace: &Pace, tally: &Tally) -> Result<(), Error> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let docs = self.take();
        let mut parts: Vec<Range<usize>> = std::iter::once(0..docs.ends.len()).collect();
        let mut retries = target.retries();
        while let Some(part) = parts.pop() {
            let body = docs.body(&part);
            let (count, bytes) = (part.len() as u64, body.len() as u64);
            let of_room = pace.part((part.len(), body.len()), (FULL_DOCS, FULL_BYTES));
            match post(target, body, |took| pace.took(Side::Target, of_room, took)).await {
                Ok(refused) => {
                    retries.reset();
                    tally.docs_written.add(count.saturating_sub(refused));
                    tally.doc_write_failures.add(refused);
                    tally.bytes_written.add(bytes);
                }
                Err(error) if refusal::may_be_one_of_many(&error) && count > 1 => {
                    retries.reset();
                    parts.extend(halves(part));
                }
                Err(error) if refusal::may_be_one_of_many(&error) => {
                    let Head { id, attachments } = docs.head(&part).unwrap_or_default();
                    if refusal::passes_over_single(&error, attachments.is_some()) {
                        tracing::warn!(doc_id = id, %error, "the target refuses a document");
                        tally.doc_write_failures.add(1);
                        continue;
                    }
                    let fault = Fault::Unexpected(format!("document {id:?} is refused: {error}"));
                    return Err(target.fault(http::Method::POST, "_bulk_docs", fault));
                }
                Err(error) => {
                    let too_long = error.took_too_long();
                    retries.pause(error).await?;
                    // All documents together would take as long again.
                    match too_long {
                        Some(_) if count > 1 => parts.extend(halves(part)),
                        _ => parts.push(part),
                    }
                }
            }
        }
        self.waiting.set(0);
        Ok(())
    }

    fn take(&mut self) -> Docs {
        let (mut text, ends) = (std::mem::take(&mut self.text), std::mem::take(&mut self.ends));
        text.pop();
        text.extend_from_slice(TAIL);
        Docs { text: text.into(), ends }
    }
}

/// A buffer during its write.
struct Docs {
    /// The body of the whole request.
    text: Bytes,
    ends: Vec<usize>,
}

impl Docs {
    /// The first of `docs`, if it can be parsed.
    fn head(&self, docs: &Range<usize>) -> Option<Head> {
        let start = docs.start.checked_sub(1).map_or(HEAD.len(), |before| self.ends[before] + 1);
        serde_json::from_slice(&self.text[start..self.ends[docs.start]]).ok()
    }

    /// The request's body for some of the documents; copied unless it covers all of them.
    fn body(&self, docs: &Range<usize>) -> Bytes {
        if docs.len() == self.ends.len() {
            return self.text.clone();
        }
        let start = docs.start.checked_sub(1).map_or(HEAD.len(), |before| self.ends[before] + 1);
        [HEAD, &self.text[start..self.ends[docs.end - 1]], TAIL].concat().into()
    }
}

/// The fields of a rejected document that its handling depends on.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(rename = "_id", default)]
    id: String,
    #[serde(rename = "_attachments")]
    attachments: Option<IgnoredAny>,
}

/// The second half of some documents, and then the first half, because the last part is written first.
fn halves(docs: Range<usize>) -> [Range<usize>; 2] {
    let middle = docs.start + docs.len() / 2;
    [middle..docs.end, docs.start..middle]
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    id: PeerText,
    error: Option<PeerText>,
    #[serde(default)]
    reason: PeerText,
}

/// One attempt. Returns how many documents the target rejected permanently. Calls `took` with the time that the target
/// needed, after a complete response or a timeout.
async fn post(target: &Peer, body: Bytes, took: impl Fn(Duration)) -> Result<u64, Error> {
    let request = Request::post("_bulk_docs", body);
    let answered = async {
        let answer = target.send(&request).await?;
        let sent_at = answer.sent_at();
        let refusals = answer.json::<Vec<Refusal>>(ANSWER_BYTES).await?;
        took(sent_at.elapsed());
        Ok(refusals)
    };
    let refusals =
        answered.await.inspect_err(|error: &Error| error.took_too_long().into_iter().for_each(&took))?;
    let mut refused = 0;
    for Refusal { id, error, reason } in refusals {
        if let Some(error) = error {
            let (error, reason) = (target.clean(&error.0), target.clean(&reason.0));
            tracing::warn!(doc_id = id.0, error, reason, "the target refuses a document");
            refused += 1;
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;

    #[test]
    fn any_part_of_a_buffer_is_a_proper_body() {
        let mut buffer = WriteBuffer::new(WaitingBytes::new(&Arc::default()));
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
