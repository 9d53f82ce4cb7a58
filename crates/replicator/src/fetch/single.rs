//! Reads documents one by one, several concurrently.

use std::collections::VecDeque;

use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;
use tokio::sync::Mutex;
use turnwise_outbound::{Error, Fault, Request};

use super::rows::{OpenRev, hand_over, parse, read_rows};
use super::{Fetcher, Parameters, Sink};
use crate::attachments;
use crate::query::{DocName, Query, doc_path};
use crate::revs_diff::Missing;
use crate::stats::Tally;

/// Revisions of a document that the source says it lacks.
struct Absent {
    error: Error,
    /// Their names; empty if the response does not name them.
    revs: Vec<String>,
}

/// The sink of all documents that are read concurrently. Its holder never waits for another document.
type Shared<'a, S> = Mutex<&'a mut S>;

impl Fetcher {
    /// Reads the revisions into `sink`. Returns how many the source did not deliver.
    pub(super) async fn one_by_one<S: Sink>(
        &self,
        wanted: VecDeque<(&Missing, Vec<&str>)>,
        sink: &mut S,
        tally: &Tally,
    ) -> Result<u64, Error> {
        let sink = Mutex::new(sink);
        let read = |(missing, revs)| self.read_document(missing, revs, &sink, tally);
        let reads: Vec<_> = wanted.into_iter().map(read).collect();
        let mut reads = stream::iter(reads).buffer_unordered(self.at_once);
        let mut unread = 0;
        while let Some(more) = reads.try_next().await? {
            unread += more;
        }
        Ok(unread)
    }

    /// Reads the revisions of one document. Returns how many the source did not deliver.
    async fn read_document<S: Sink>(
        &self,
        missing: &Missing,
        revs: Vec<&str>,
        sink: &Shared<'_, S>,
        tally: &Tally,
    ) -> Result<u64, Error> {
        let path = doc_path(&missing.id);
        if DocName::of(&missing.id) == DocName::Reserved {
            // The URL would name something else.
            let fault = Fault::Unexpected("a document with a reserved name".to_owned());
            let error = self.source.fault(http::Method::GET, &path, fault);
            tally.unread.add(&self.source, &missing.id, revs.len() as u64, &error);
            return Ok(revs.len() as u64);
        }
        let (mut at, mut unread) = (0, 0);
        while at < revs.len() {
            let some = Query::default().add_some("open_revs", revs[at..].iter().copied(), &path);
            let some = &revs[at..at + some];
            unread += self.read_revisions(missing, &path, some.to_vec(), sink, tally).await?;
            at += some.len();
        }
        Ok(unread)
    }

    /// Reads as many revisions of a document as one URL names. Returns how many the source did not deliver.
    async fn read_revisions<S: Sink>(
        &self,
        missing: &Missing,
        path: &str,
        mut revs: Vec<&str>,
        sink: &Shared<'_, S>,
        tally: &Tally,
    ) -> Result<u64, Error> {
        let mut retries = self.source.retries();
        let mut parameters = Parameters::of(&self.source);
        let mut was_absent = false;
        loop {
            let mut query = Query::of([("revs", "true"), ("latest", "true")]);
            if parameters.encoding_info {
                query.add("att_encoding_info", "true");
            }
            query.add("open_revs", &serde_json::Value::from(revs.clone()).to_string());
            let request = Request::get(query.on(path));
            let error = match self.one_open_revs(&request, missing, sink, tally).await {
                Ok(None) => {
                    parameters.succeeded(&self.source);
                    return Ok(0);
                }
                Ok(Some(absent)) => {
                    if !absent.revs.is_empty() {
                        revs.retain(|rev| absent.revs.iter().any(|other| other == rev));
                    }
                    if was_absent || !tally.unread.has_patience() || revs.is_empty() {
                        let lacks = absent.revs.len().max(revs.len()) as u64;
                        tally.unread.add(&self.source, &missing.id, lacks, &absent.error);
                        return Ok(lacks);
                    }
                    // Between the feed and this request, the document may have changed, or may not have reached every node.
                    tracing::info!(doc_id = missing.id, "requesting a revision once more: {}", absent.error);
                    was_absent = true;
                    tokio::time::sleep(self.missing_doc_retry).await;
                    continue;
                }
                Err(error) => error,
            };
            let Some(error) = parameters.after(error) else { continue };
            let paused = if error.may_concern_request() && !tally.unread.has_patience() {
                Err(error)
            } else {
                retries.pause(error).await
            };
            if let Err(error) = paused {
                let lacks = revs.len() as u64;
                tally.unread.judge(&self.source, &missing.id, lacks, error).await?;
                return Ok(lacks);
            }
        }
    }

    /// One attempt. Returns what the source reports that it lacks.
    async fn one_open_revs<S: Sink>(
        &self,
        request: &Request,
        missing: &Missing,
        sink: &Shared<'_, S>,
        tally: &Tally,
    ) -> Result<Option<Absent>, Error> {
        let mut answer = match self.source.send(request).await {
            Ok(answer) => answer,
            // The source returns 404 for a document of which nothing is left.
            Err(error) if error.status() == Some(404) => {
                // Or for a database that is gone.
                crate::database::info_once(&self.source).await?;
                return Ok(Some(Absent { error, revs: Vec::new() }));
            }
            Err(error) => return Err(error),
        };
        let may_be_folded = DocName::of(&missing.id) == DocName::Dots;
        let (mut came, mut absent) = (false, Vec::new());
        let row = |text: &[u8], sink: &mut S| {
            match parse::<OpenRev<'_>>(text)? {
                OpenRev { ok: Some(doc), .. } => {
                    if may_be_folded && parse::<Named>(doc.get().as_bytes())?.id != missing.id {
                        return Err("another document than the one that was asked for".to_owned());
                    }
                    hand_over(missing, doc, sink)?;
                    tally.docs_read.add(1);
                    came = true;
                }
                OpenRev { missing: rev, .. } => absent.push(rev.unwrap_or_default()),
            }
            Ok(())
        };
        read_rows(&mut answer, sink, row).await?;
        let error = match absent.first() {
            None if came => return Ok(None),
            None => answer.fault(Fault::Unexpected(
                "an answer without any of the revisions that were asked for".to_owned(),
            )),
            Some(rev) => answer.fault(attachments::absent(rev)),
        };
        absent.retain(|rev| !rev.is_empty());
        Ok(Some(Absent { error, revs: absent }))
    }
}

/// A document's id.
#[derive(Deserialize)]
struct Named {
    #[serde(rename = "_id")]
    id: String,
}
