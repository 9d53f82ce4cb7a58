//! Revisions with small attachments: many of them come in one response, with their attachments inside.

use std::collections::HashSet;

use http::header::CONTENT_TYPE;
use tokio::sync::Mutex;
use turnwise_outbound::{Answer, Error, Optional, Request, Side};

use super::rows::{BulkGetResult, bulk_get_body, parse, read_rows};
use super::{Fetcher, Sink};
use crate::attachments::{Head, Parts, Revision};
use crate::multipart;

/// `_bulk_get` for revisions with small attachments, which come inside the document in base64.
const BULK_GET_INLINE: &str = "_bulk_get?revs=true&attachments=true";

/// What did not come, and why, if the source may refuse this way.
pub(crate) type NotInline = (Vec<Revision>, Option<Error>);

impl Fetcher {
    /// Whether small attachments can come inside their documents.
    pub fn has_inline(&self) -> bool {
        self.has_bulk_get() && self.source.may_use(Optional::InlineAttachments)
    }

    /// The revisions that did not come inside have been read in another way, so this one is refused.
    pub fn refuses_inline(&self, error: &Error) {
        self.source.refuses(Optional::InlineAttachments, error);
    }

    /// Reads `revisions` with their attachments inside, and returns those that did not come.
    pub async fn fetch_inline(
        &self,
        mut revisions: Vec<Revision>,
        sink: &mut impl Sink,
    ) -> Result<NotInline, Error> {
        let mut retries = self.source.retries();
        let asked = revisions.len();
        while !revisions.is_empty() {
            let Err(error) = self.one_inline(&mut revisions, sink).await else { break };
            if let Some(error) = retries.pause_optional(error).await? {
                tracing::info!(%error, "attachments do not come inside their documents; they are read separately");
                let refused = (revisions.len() == asked && error.took_too_long().is_none()).then_some(error);
                return Ok((revisions, refused));
            }
        }
        Ok((revisions, None))
    }

    /// One attempt. Removes what has come from `revisions`, even if the response then breaks off.
    async fn one_inline(&self, revisions: &mut Vec<Revision>, sink: &mut impl Sink) -> Result<(), Error> {
        let mut came = HashSet::new();
        // Attachments that are stored encoded are wanted decoded, and multipart returns them as stored.
        let multipart = self.source.may_use(Optional::InlineMultipart)
            && !revisions.iter().any(|revision| revision.encoded);
        let request = inline_request(revisions);
        let request = if multipart { request.accept("multipart/mixed") } else { request };
        let read = self.read_inline(request, &mut came, sink).await;
        take(revisions, &came);
        match read {
            // The connection broke off, or the source is throttled: JSON would fare no better.
            Err(error)
                if multipart
                    && error.side() == Some(Side::Source)
                    && error.concerns_one_request()
                    && error.may_concern_request() =>
            {
                let read = self.read_inline(inline_request(revisions), &mut came, sink).await;
                take(revisions, &came);
                if read.is_ok() {
                    self.source.refuses(Optional::InlineMultipart, &error);
                }
                read
            }
            read => read,
        }
    }

    /// Reads a response with the attachments behind the documents or, from a source without multipart responses, inside them.
    async fn read_inline(
        &self,
        request: Request,
        came: &mut HashSet<(String, String)>,
        sink: &mut impl Sink,
    ) -> Result<(), Error> {
        let mut answer = self.source.send(&request).await?;
        let boundary = answer.header(CONTENT_TYPE).and_then(multipart::boundary).map(str::to_owned);
        let Some(boundary) = boundary else {
            return read_inline_rows(&mut answer, came, sink).await;
        };
        let mut parts = Parts::new(answer, &boundary);
        while let Some(whole) = parts.next_whole().await? {
            sink.doc(&whole.doc);
            came.insert((whole.id, whole.rev));
            sink.flush_if_full().await?;
        }
        Ok(())
    }
}

async fn read_inline_rows(
    answer: &mut Answer,
    came: &mut HashSet<(String, String)>,
    sink: &mut impl Sink,
) -> Result<(), Error> {
    let row = |text: &[u8], sink: &mut _| {
        let result: BulkGetResult<'_> = parse(text)?;
        for doc in result.docs.iter().filter_map(|doc| doc.ok) {
            let text = doc.get().as_bytes();
            Sink::doc(sink, text);
            came.insert((result.id.to_string(), parse::<Head<'_>>(text)?.rev));
        }
        Ok(())
    };
    read_rows(answer, &Mutex::new(sink), row).await.map(drop)
}

fn inline_request(revisions: &[Revision]) -> Request {
    let wanted = revisions.iter().map(|revision| (&*revision.id, &*revision.rev));
    Request::post(BULK_GET_INLINE, bulk_get_body(wanted))
}

/// Removes the revisions that came from `revisions`.
fn take(revisions: &mut Vec<Revision>, came: &HashSet<(String, String)>) {
    revisions.retain(|revision| !came.contains(&(revision.id.clone(), revision.rev.clone())));
}
