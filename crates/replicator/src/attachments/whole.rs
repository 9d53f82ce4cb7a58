//! The short way: a `multipart/related` part of the source's answer is the body of the request to the target.

use http::Method;
use http::header::CONTENT_TYPE;

use super::doc_last::{DocLast, closed_without_doc};
use super::{Body, Copier, Outcome, Revision};
use crate::error::{Error, Fault};
use crate::http::{Answer, Request};
use crate::multipart::{self, Event, Headers, Parser};
use crate::query::{Query, doc_path};
use crate::stats::Tally;
use crate::upload::Upload;

/// How many ancestors are named: the URL stays below 8 kB, however many conflicts a document has.
const ANCESTORS: usize = 50;
/// A document whose attachments are all at the target already; CouchDB's limit is 8 MB.
const DOC_BYTES: usize = 256 * 1024 * 1024;

impl Copier {
    /// One attempt to copy `revision` by way of `open_revs` with `multipart/mixed`.
    pub(super) async fn send_whole(&self, revision: &Revision, tally: &Tally) -> Result<Outcome, Error> {
        let mut query = Query::default();
        query.add("open_revs", &serde_json::json!([revision.rev]).to_string());
        query.add("revs", "true");
        query.add("latest", "true");
        if !revision.ancestors.is_empty() {
            query.add("atts_since", &serde_json::Value::from(latest(&revision.ancestors)).to_string());
        }
        let request = Request::get(query.on(&doc_path(&revision.id))).accept("multipart/mixed");
        let answer = self.source.send(&request).await?;
        let boundary = answer.header(CONTENT_TYPE).and_then(multipart::boundary).map(str::to_owned);
        let Some(boundary) = boundary else {
            return Ok(Outcome::NoMultipart);
        };
        let mut parts = Parts { answer, parser: Parser::new(&boundary) };
        let mut outcome = None;
        while let Some(headers) = parts.next_part().await? {
            let content_type = headers.get("content-type").unwrap_or_default().to_owned();
            let sent = if content_type.starts_with("multipart/related") {
                self.pass_on(&mut parts, &revision.id, content_type, tally).await?
            } else if content_type.contains("error=\"true\"") {
                let problem = format!(
                    "revision {} is in the changes feed of the source, but the source does not have it",
                    revision.rev
                );
                return Err(parts.answer.fault(Fault::Unexpected(problem)));
            } else {
                let doc = parts.whole_part().await?;
                self.put_doc(&revision.id, doc, tally).await?
            };
            // With `latest`, one revision may have become several; one that was refused counts for all.
            outcome = Some(match outcome {
                Some(Outcome::Refused) => Outcome::Refused,
                _ => sent,
            });
        }
        outcome.ok_or_else(|| parts.answer.malformed("a multipart answer without parts"))
    }

    /// Sends the part that comes now as it comes, or, to PouchDB Server, with the document last.
    async fn pass_on(
        &self,
        parts: &mut Parts,
        id: &str,
        content_type: String,
        tally: &Tally,
    ) -> Result<Outcome, Error> {
        let inner = multipart::boundary(&content_type).filter(|_| self.target_is_pouchdb).map(str::to_owned);
        let body = Body { content_type, length: None, when_failed: inner.as_deref().map(closed_without_doc) };
        let mut doc_last = inner.as_deref().map(DocLast::new);
        self.put(id, body, tally, async |filler| {
            while let Some(piece) = parts.data().await? {
                if filler.is_closed() {
                    return Ok(());
                }
                match &mut doc_last {
                    None => filler.send(piece).await,
                    Some(body) => {
                        for piece in body.push(&piece).map_err(|cause| parts.answer.malformed(cause))? {
                            filler.send(piece).await;
                        }
                    }
                }
            }
            if let Some(body) = doc_last {
                filler.send(body.finish().map_err(|cause| parts.answer.malformed(cause))?).await;
            }
            Ok(())
        })
        .await
    }

    /// Writes a document whose attachments, if any, are stubs that the target knows.
    async fn put_doc(&self, id: &str, doc: Vec<u8>, tally: &Tally) -> Result<Outcome, Error> {
        let path = format!("{}?new_edits=false", doc_path(id));
        tally.bytes_written.add(doc.len() as u64);
        let upload = Upload::from_bytes(doc.into(), "application/json");
        match self.target.send_upload(Method::PUT, &path, upload).await {
            Ok(mut answer) => answer.bytes(64 * 1024).await.map(|_| Outcome::Written),
            Err(error) if matches!(error.status(), Some(401 | 403 | 413)) => Ok(Outcome::Refused),
            Err(error) => Err(error),
        }
    }
}

/// Those of the highest generations.
fn latest(revs: &[String]) -> Vec<&str> {
    let generation =
        |rev: &str| rev.split('-').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    let mut revs: Vec<&str> = revs.iter().map(String::as_str).collect();
    revs.sort_by_key(|rev| std::cmp::Reverse(generation(rev)));
    revs.truncate(ANCESTORS);
    revs
}

/// A multipart answer that is taken apart while it arrives.
struct Parts {
    answer: Answer,
    parser: Parser,
}

impl Parts {
    async fn event(&mut self) -> Result<Event, Error> {
        loop {
            match self.parser.next().map_err(|cause| self.answer.malformed(cause))? {
                Event::NeedMore => match self.answer.chunk().await? {
                    Some(piece) => self.parser.push(&piece),
                    None => {
                        self.parser
                            .finish()
                            .map_err(|cause| self.answer.fault(Fault::BrokeOff(cause.to_string())))?;
                        return Ok(Event::End);
                    }
                },
                event => return Ok(event),
            }
        }
    }

    /// The next part's headers. What is left of the last part is skipped.
    async fn next_part(&mut self) -> Result<Option<Headers>, Error> {
        loop {
            match self.event().await? {
                Event::Part(headers) => return Ok(Some(headers)),
                Event::End => return Ok(None),
                _ => {}
            }
        }
    }

    /// The next piece of the part's content; `None` at its end.
    async fn data(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        match self.event().await? {
            Event::Data(piece) => Ok(Some(piece)),
            Event::PartEnd => Ok(None),
            event => Err(self.answer.malformed(format!("a multipart body with {event:?} within a part"))),
        }
    }

    async fn whole_part(&mut self) -> Result<Vec<u8>, Error> {
        let mut content = Vec::new();
        while let Some(piece) = self.data().await? {
            if content.len() + piece.len() > DOC_BYTES {
                return Err(self
                    .answer
                    .fault(Fault::Unexpected(format!("a document of more than {DOC_BYTES} bytes"))));
            }
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }
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
