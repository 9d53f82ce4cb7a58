//! Writing revisions to the target: `_bulk_docs` with `new_edits=false`.
//!
//! A [`WriteBuffer`] is the request's body while it grows: documents are copied into it once, as the text they are. A target
//! that finds it too large (413) gets it in halves, again and again, until a single document is too large: that one is a
//! counted write failure, as are documents whose rows name an error ([`crate::refusal`]). A batch that it takes for wrong (400, 415)
//! is halved as well, so that only the document that is wrong is refused or named, and so is one that it does not get done in time.
//! How much goes into one is decided by how long the target needs ([`crate::pace`]).

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{Error, Fault, Side};
use crate::http::{Peer, Request};
use crate::pace::Pace;
use crate::refusal;
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

    /// A target that is throttled, or slow, gets less at once.
    pub fn is_full(&self, target: &Peer, pace: &Pace) -> bool {
        let is_full = |size: usize, full: usize| size >= pace.of(Side::Target, target.reduced(full));
        is_full(self.text.len(), FULL_BYTES) || is_full(self.ends.len(), FULL_DOCS)
    }

    /// Writes all documents and empties the buffer.
    ///
    /// # Errors
    /// Whatever the target says, except of single documents that it refuses for good: these are counted.
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
                    // All of it would take as long again.
                    match too_long {
                        Some(_) if count > 1 => parts.extend(halves(part)),
                        _ => parts.push(part),
                    }
                }
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
    /// What the first of `docs` is, if it can be read.
    fn head(&self, docs: &Range<usize>) -> Option<Head> {
        let start = docs.start.checked_sub(1).map_or(HEAD.len(), |before| self.ends[before] + 1);
        serde_json::from_slice(&self.text[start..self.ends[docs.start]]).ok()
    }

    /// The request's body for some of the documents; a copy only where it is not for all of them.
    fn body(&self, docs: &Range<usize>) -> Bytes {
        if docs.len() == self.ends.len() {
            return self.text.clone();
        }
        let start = docs.start.checked_sub(1).map_or(HEAD.len(), |before| self.ends[before] + 1);
        [HEAD, &self.text[start..self.ends[docs.end - 1]], TAIL].concat().into()
    }
}

/// What must be known of a document that is refused.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(rename = "_id", default)]
    id: String,
    #[serde(rename = "_attachments")]
    attachments: Option<IgnoredAny>,
}

/// The second half of some documents, and then the first one: the last is taken first.
fn halves(docs: Range<usize>) -> [Range<usize>; 2] {
    let middle = docs.start + docs.len() / 2;
    [middle..docs.end, docs.start..middle]
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    id: String,
    error: Option<String>,
    #[serde(default)]
    reason: String,
}

/// One attempt. Answers how many documents the target refused for good. `took` is told how long the target needed, if it came to an end or
/// was waited for in vain.
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
            let (error, reason) = (target.clean(&error), target.clean(&reason));
            tracing::warn!(doc_id = id, error, reason, "the target refuses a document");
            refused += 1;
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
