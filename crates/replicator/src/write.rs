//! Writing revisions to the target: `_bulk_docs` with `new_edits=false`.
//!
//! A [`WriteBuffer`] holds the request's body while it grows; each document is copied into it once, as its JSON text.
//!
//! **Size.** No body is larger than the target is known to accept ([`turnwise_outbound::BodyLimit`]). If a target rejects a request as too
//! large (413), or closes its connection, the request is divided repeatedly, down to single documents. A batch that the target rejects as
//! wrong (400, 415) is also divided, so that only the wrong document is rejected or named. The same applies to a batch that the target does
//! not finish in time. The time that the target needs determines the size of a write ([`crate::pace`]).
//!
//! **Rows.** The response lists the documents that were not stored. Errors that are about a document are write failures
//! ([`crate::refusal`]), as is a single document that is too large. The other documents are written again ([`crate::bulk_rows`]).

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;
use turnwise_outbound::{BodyLimit, Error, Fault, Peer, Request, Side, Ticket, WaitingBytes};

use crate::bulk_rows::{Row, Sorted, sort};
use crate::pace::Pace;
use crate::refusal::{self, TooLarge};
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

    /// The limits shrink for a target that is throttled or slow, or rejects large bodies, and while the process holds many documents.
    pub fn is_full(&self, target: &Peer, pace: &Pace) -> bool {
        let is_full = |size: usize, full: usize| size >= pace.of(Side::Target, target.reduced(full));
        // The last documents may lead beyond it, which would need another request.
        let limit = target.body_limit().bytes() / 8 * 7;
        let most_docs = target.body_limit().docs(Instant::now()).min(FULL_DOCS);
        is_full(self.text.len(), self.waiting.batch_bytes(FULL_BYTES).min(limit))
            || is_full(self.ends.len(), most_docs)
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
        let limit = target.body_limit();
        let mut parts = docs.divide(Part::new((0..docs.ends.len()).collect()), limit);
        let mut retries = target.retries();
        while let Some(part) = parts.pop() {
            let body = docs.body(&part.docs);
            let (count, bytes) = (part.docs.len(), body.len());
            let of_room = pace.part((count, bytes), (FULL_DOCS, FULL_BYTES));
            match post(target, body, |took| pace.took(Side::Target, of_room, took)).await {
                Ok((rows, ticket)) => {
                    limit.accepted(bytes, Instant::now());
                    let may_log_in = !part.follows_login
                        && rows.iter().any(Row::is_about_rights)
                        && target.may_be_logged_out(ticket);
                    let Sorted { refused, logged_out, not_written, error } =
                        sort(target, &rows, &docs.named(&part.docs, &rows), may_log_in);
                    let again = logged_out.len() + not_written.len();
                    tally.docs_written.add(count.saturating_sub(refused + again) as u64);
                    tally.doc_write_failures.add(refused as u64);
                    tally.bytes_written.add(bytes as u64);
                    if !logged_out.is_empty() {
                        parts.push(Part { docs: logged_out, follows_login: true });
                    }
                    match error {
                        None => retries.reset(),
                        Some(error) => {
                            let fault =
                                target.fault(http::Method::POST, "_bulk_docs", Fault::NotWritten(error));
                            retries.pause(fault).await?;
                            parts.push(Part { docs: not_written, ..part });
                        }
                    }
                }
                Err(error) if refusal::may_be_one_of_many(&error) && count > 1 => {
                    match refusal::too_large(&error) {
                        TooLarge::Bytes => limit.refused(bytes, Instant::now()),
                        TooLarge::Documents(most) => {
                            limit.refused_docs(most.unwrap_or(count / 2), Instant::now())
                        }
                        TooLarge::No => {}
                    }
                    retries.reset();
                    parts.extend(docs.smaller(part, limit));
                }
                Err(error) if refusal::may_be_one_of_many(&error) => {
                    let Head { id, attachments, .. } = docs.head(part.docs[0]).unwrap_or_default();
                    if refusal::passes_over_single(&error, attachments.is_some()) {
                        tracing::warn!(doc_id = id, %error, "the target refuses a document");
                        tally.doc_write_failures.add(1);
                        continue;
                    }
                    let fault = Fault::Unexpected(format!("document {id:?} is refused: {error}"));
                    return Err(target.fault(http::Method::POST, "_bulk_docs", fault));
                }
                // A peer may reject a body that it does not read by closing the connection.
                Err(error) if count > 1 && error.is_break_off() && limit.broke_off(bytes, Instant::now()) => {
                    retries.pause_to_divide(&error).await;
                    parts.extend(docs.smaller(part, limit));
                }
                Err(error) => {
                    let too_long = error.took_too_long();
                    retries.pause(error).await?;
                    // All documents together would take as long again.
                    match too_long {
                        Some(_) if count > 1 => parts.extend(part.halves()),
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
    /// The text of one document.
    fn text(&self, doc: usize) -> &[u8] {
        let start = doc.checked_sub(1).map_or(HEAD.len(), |before| self.ends[before] + 1);
        &self.text[start..self.ends[doc]]
    }

    /// The fields of one document that its handling depends on, if they can be parsed.
    fn head(&self, doc: usize) -> Option<Head> {
        serde_json::from_slice(self.text(doc)).ok()
    }

    /// The names of the documents, which are needed only if there are errors in rows.
    fn named(&self, docs: &[usize], rows: &[Row]) -> Vec<(usize, Head)> {
        if !rows.iter().any(Row::is_error) {
            return Vec::new();
        }
        docs.iter().map(|&doc| (doc, self.head(doc).unwrap_or_default())).collect()
    }

    /// The request's body for some of the documents; copied unless it covers all of them.
    fn body(&self, docs: &[usize]) -> Bytes {
        if docs.len() == self.ends.len() {
            return self.text.clone();
        }
        let bytes = docs.iter().map(|&doc| self.text(doc).len() + 1).sum::<usize>();
        let mut body = Vec::with_capacity(HEAD.len() + bytes + TAIL.len());
        body.extend_from_slice(HEAD);
        for (nth, &doc) in docs.iter().enumerate() {
            if nth > 0 {
                body.push(b',');
            }
            body.extend_from_slice(self.text(doc));
        }
        body.extend_from_slice(TAIL);
        body.into()
    }

    /// Divides a part into parts within the limit, the first one last. A document that is larger is alone.
    fn divide(&self, part: Part, limit: &BodyLimit) -> Vec<Part> {
        let (most_bytes, most_docs) = (limit.bytes(), limit.docs(Instant::now()));
        let around = HEAD.len() + TAIL.len();
        let mut parts: Vec<Part> = Vec::new();
        let mut bytes = usize::MAX;
        for doc in part.docs {
            let more = self.text(doc).len() + 1;
            match parts.last_mut() {
                Some(last) if bytes + more <= most_bytes && last.docs.len() < most_docs => {
                    last.docs.push(doc)
                }
                _ => {
                    parts.push(Part { docs: vec![doc], follows_login: part.follows_login });
                    bytes = around;
                }
            }
            bytes += more;
        }
        parts.reverse();
        parts
    }

    /// The same for a part that was rejected: at least two parts.
    fn smaller(&self, part: Part, limit: &BodyLimit) -> Vec<Part> {
        let mut parts = self.divide(part, limit);
        match parts.pop() {
            Some(only) if parts.is_empty() => only.halves().into(),
            last => parts.into_iter().chain(last).collect(),
        }
    }
}

/// Documents of one request, by their positions in the buffer.
struct Part {
    docs: Vec<usize>,
    /// Whether they are written again because of a new login.
    follows_login: bool,
}

impl Part {
    fn new(docs: Vec<usize>) -> Self {
        Self { docs, follows_login: false }
    }

    /// The second half, and then the first half, because the last part is written first.
    fn halves(mut self) -> [Self; 2] {
        let second = self.docs.split_off(self.docs.len() / 2);
        [Self { docs: second, ..self }, self]
    }
}

/// The fields of a document that its handling depends on.
#[derive(Default, Deserialize)]
pub(crate) struct Head {
    #[serde(rename = "_id", default)]
    pub id: String,
    #[serde(rename = "_rev", default)]
    pub rev: String,
    #[serde(rename = "_attachments")]
    attachments: Option<IgnoredAny>,
}

/// One attempt. Returns the rows of the response, and the login of the request. Calls `took` with the time that the target
/// needed, after a complete response or a timeout.
async fn post(target: &Peer, body: Bytes, took: impl Fn(Duration)) -> Result<(Vec<Row>, Ticket), Error> {
    let request = Request::post("_bulk_docs", body);
    let answered = async {
        let answer = target.send(&request).await?;
        let (sent_at, ticket) = (answer.sent_at(), answer.ticket());
        let rows = answer.json::<Vec<Row>>(ANSWER_BYTES).await?;
        took(sent_at.elapsed());
        Ok((rows, ticket))
    };
    answered.await.inspect_err(|error: &Error| error.took_too_long().into_iter().for_each(&took))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn docs(texts: &[&str]) -> Docs {
        let mut buffer = WriteBuffer::new(WaitingBytes::default());
        texts.iter().for_each(|doc| buffer.push(doc.as_bytes()));
        buffer.take()
    }

    #[test]
    fn any_part_of_a_buffer_is_a_proper_body() {
        let docs = docs(&[r#"{"_id":"a"}"#, r#"{"_id":"b"}"#, r#"{"_id":"c"}"#]);
        let body = |part: &[usize]| String::from_utf8(docs.body(part).to_vec()).unwrap();
        assert_eq!(body(&[0, 1, 2]), r#"{"new_edits":false,"docs":[{"_id":"a"},{"_id":"b"},{"_id":"c"}]}"#);
        assert_eq!(body(&[1]), r#"{"new_edits":false,"docs":[{"_id":"b"}]}"#);
        assert_eq!(body(&[1, 2]), r#"{"new_edits":false,"docs":[{"_id":"b"},{"_id":"c"}]}"#);
        assert_eq!(body(&[0, 2]), r#"{"new_edits":false,"docs":[{"_id":"a"},{"_id":"c"}]}"#);
    }

    #[test]
    fn a_buffer_is_divided_into_bodies_within_the_limit_and_a_larger_document_is_alone() {
        let limit = BodyLimit::default();
        let text = |bytes: usize| format!(r#"{{"_id":"a","x":"{}"}}"#, "x".repeat(bytes));
        let (small, large) = (text(limit.bytes() / 4), text(limit.bytes() + 1));
        let docs = docs(&[&small, &small, &small, &small, &large, &small]);
        let parts = docs.divide(Part::new((0..6).collect()), &limit);
        let of: Vec<Vec<usize>> = parts.iter().rev().map(|part| part.docs.clone()).collect();
        assert_eq!(of, [vec![0, 1, 2], vec![3], vec![4], vec![5]]);
        for part in of.iter().filter(|part| **part != [4]) {
            assert!(docs.body(part).len() <= limit.bytes());
        }
        // A part within the limit that is rejected is still divided.
        let parts = docs.smaller(Part::new(vec![0, 1, 2]), &limit);
        assert_eq!(parts.iter().map(|part| &part.docs[..]).collect::<Vec<_>>(), [&[1, 2][..], &[0]]);
        limit.refused_docs(1, Instant::now());
        assert_eq!(docs.divide(Part::new(vec![0, 1, 2]), &limit).len(), 3);
    }
}
