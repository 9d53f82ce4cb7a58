//! The faster way: one request to the source returns the document and all its attachments.

use http::header::CONTENT_TYPE;
use turnwise_outbound::{Answer, Error, Fault, Request};

use super::frame::frame;
use super::parts::Parts;
use super::{Copier, CopyResult, Revision, stubs};
use crate::multipart;
use crate::query::{Query, doc_path};
use crate::stats::Tally;

/// What a source without multipart answers, such as PouchDB Server.
const NOT_MULTIPART: &str = "an answer that is not multipart";

/// How many ancestors the request names, if the URL has room. Attachments that only earlier ancestors have are sent again.
const ANCESTORS: usize = 50;

impl Copier {
    /// One attempt to copy `revision` by way of `open_revs` with `multipart/mixed`.
    pub(super) async fn send_whole(&self, revision: &Revision, tally: &Tally) -> Result<CopyResult, Error> {
        let revs = serde_json::json!([revision.rev]).to_string();
        let mut query = Query::of([("open_revs", &revs), ("revs", "true"), ("latest", "true")]);
        let path = doc_path(&revision.id);
        if !revision.ancestors.is_empty() {
            query.add_some("atts_since", latest(&revision.ancestors).into_iter(), &path);
        }
        let request = Request::get(query.on(&path)).accept("multipart/mixed");
        let answer = self.source.send(&request).await?;
        let boundary = answer.header(CONTENT_TYPE).and_then(multipart::boundary).map(str::to_owned);
        let Some(boundary) = boundary else {
            return Ok(CopyResult::NoMultipart(answer.fault(Fault::Unexpected(NOT_MULTIPART.to_owned()))));
        };
        let mut parts = Parts::new(answer, &boundary);
        let mut outcome = None;
        while let Some(headers) = parts.next_part().await? {
            let content_type = headers.get("content-type").unwrap_or_default();
            let sent = if content_type.starts_with("multipart/related") {
                let boundary = multipart::boundary(content_type)
                    .ok_or_else(|| parts.malformed("a multipart part without a boundary"))?;
                self.send_related(Parts::new(&mut parts, boundary), revision, tally).await?
            } else if content_type.contains("error=\"true\"") {
                return Ok(CopyResult::Absent(parts.fault(absent(&revision.rev))));
            } else {
                let doc = parts.doc().await?;
                self.put_doc(&revision.id, doc, tally).await?
            };
            if matches!(sent, CopyResult::Encoded | CopyResult::Absent(_)) {
                return Ok(sent);
            }
            // With `latest`, one revision may have become several; if one is rejected, the result is a rejection.
            outcome = Some(match outcome {
                Some(CopyResult::Refused) => CopyResult::Refused,
                _ => sent,
            });
        }
        outcome.ok_or_else(|| parts.malformed("a multipart answer without parts"))
    }

    /// Writes the revision in one part of the response: the document first, then its attachments.
    async fn send_related(
        &self,
        mut parts: Parts<&mut Parts<Answer>>,
        revision: &Revision,
        tally: &Tally,
    ) -> Result<CopyResult, Error> {
        if parts.next_part().await?.is_none() {
            return Err(parts.malformed("a multipart part without a document"));
        }
        let doc = parts.doc().await?;
        let following = stubs::following(doc).map_err(|cause| parts.malformed(cause))?;
        if following.stubs.is_empty() {
            return self.put_doc(&revision.id, following.doc, tally).await;
        }
        if self.target_is_pouchdb && following.stubs.iter().any(|stub| stub.encoding.is_some()) {
            return Ok(CopyResult::Encoded);
        }
        let (frame, body) = frame(&following, self.target_is_pouchdb);
        self.put(revision, body, tally, async |filler| {
            for (stub, before) in following.stubs.iter().zip(frame.before) {
                if parts.next_part().await?.is_none() {
                    return Err(parts.malformed("a multipart part without all attachments"));
                }
                if !filler.attachment(stub, before, &mut &mut parts).await? {
                    return Ok(());
                }
            }
            filler.send(frame.end).await;
            Ok(())
        })
        .await
    }
}

/// The error of a source that does not have a revision of its own feed.
pub(crate) fn absent(rev: &str) -> Fault {
    Fault::Unexpected(format!(
        "revision {rev} is in the changes feed of the source, but the source does not have it"
    ))
}

/// The revisions of the highest generations.
fn latest(revs: &[String]) -> Vec<&str> {
    let generation =
        |rev: &str| rev.split('-').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    let mut revs: Vec<&str> = revs.iter().map(String::as_str).collect();
    revs.sort_by_key(|rev| std::cmp::Reverse(generation(rev)));
    revs.truncate(ANCESTORS);
    revs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_ancestors_the_latest_are_named() {
        let revs: Vec<String> = (1..=80).map(|generation| format!("{generation}-abc")).collect();
        let named = latest(&revs);
        assert_eq!((named.len(), named[0], named[49]), (50, "80-abc", "31-abc"));
    }
}
