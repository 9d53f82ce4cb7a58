//! The rows of responses with documents.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Mutex;
use tokio::time::Instant;
use turnwise_outbound::{Answer, Error, Fault, beginning};

use super::Sink;
use crate::attachments::Head;
use crate::json_stream::{Shape, Splitter};
use crate::revs_diff::Missing;

/// Passes the rows of a response to `row`. Other responses may share the sink. Returns how long the source waited while its rows were
/// processed.
pub(super) async fn read_rows<S: Sink>(
    answer: &mut Answer,
    sink: &Mutex<&mut S>,
    mut row: impl FnMut(&[u8], &mut S) -> Result<(), String> + Send,
) -> Result<Duration, Error> {
    let mut flushing = Duration::ZERO;
    let most = answer.max_document_bytes();
    let mut splitter = Splitter::new(Shape::Array, usize::MAX);
    while let Some(piece) = answer.chunk().await? {
        answer.hold(splitter.held_bytes() + piece.len()).await?;
        let before = Instant::now();
        let mut sink = sink.lock().await;
        splitter.push(&piece, |text| row(text, &mut **sink)).map_err(|cause| answer.malformed(cause))?;
        if splitter.held_bytes() > most {
            return Err(answer.fault(Fault::TooLarge(most)));
        }
        sink.flush_if_full().await?;
        flushing += before.elapsed();
        answer.release(splitter.held_bytes());
    }
    splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
    Ok(flushing)
}

#[derive(Deserialize)]
pub(super) struct BulkGetResult<'a> {
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    #[serde(borrow)]
    pub docs: Vec<BulkGetDoc<'a>>,
}

#[derive(Deserialize)]
pub(super) struct BulkGetDoc<'a> {
    #[serde(borrow)]
    pub ok: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct OpenRev<'a> {
    #[serde(borrow)]
    pub ok: Option<&'a RawValue>,
    pub missing: Option<String>,
}

pub(super) fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|cause| format!("{cause} in {}", beginning(text)))
}

pub(super) fn hand_over(missing: &Missing, doc: &RawValue, sink: &mut impl Sink) -> Result<(), String> {
    let text = doc.get().as_bytes();
    // The name may also occur deeper in the document; most documents do not contain it at all.
    let may_have_attachments = memchr::memmem::find(text, b"\"_attachments\"").is_some();
    if may_have_attachments
        && let head = parse::<Head<'_>>(text)?
        && head.attachments.is_some_and(|attachments| attachments.get().contains(':'))
    {
        sink.doc_with_stubs(missing, text, &head);
    } else {
        sink.doc(text);
    }
    Ok(())
}

/// `{"docs":[{"id":…,"rev":…},…]}`.
pub(super) fn bulk_get_body<'a>(wanted: impl Iterator<Item = (&'a str, &'a str)>) -> Bytes {
    let mut body = br#"{"docs":["#.to_vec();
    for (nth, (id, rev)) in wanted.enumerate() {
        if nth > 0 {
            body.push(b',');
        }
        body.extend_from_slice(br#"{"id":"#);
        write_string(&mut body, id);
        body.extend_from_slice(br#","rev":"#);
        write_string(&mut body, rev);
        body.push(b'}');
    }
    body.extend_from_slice(b"]}");
    Bytes::from(body)
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is JSON, and a Vec takes it");
}
