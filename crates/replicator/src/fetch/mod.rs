//! Reads revisions from the source: by `_bulk_get`, or document by document where the source refuses that.
//!
//! Responses are split while they arrive, and each revision is passed on as its JSON text. It goes into the write
//! buffer or, if it has attachments, to [`crate::attachments`].
//!
//! Whatever a `_bulk_get` does not deliver is read document by document ([`single`]): because the whole request fails, the response
//! breaks off at one document, or a row holds an error. If that succeeds, and the request has delivered nothing, the source refuses
//! `_bulk_get`. A revision that does not come in this way either is [unread](crate::unread), and the others are copied.

mod due;
mod inline;
mod rows;
mod single;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::attachments::Head;
use crate::copy::BULK_GET_DOCS;
use crate::pace::Pace;
use crate::revs_diff::Missing;
use crate::spec::{Defaults, Replication};
use crate::stats::Tally;

use due::Due;
pub(crate) use inline::NotInline;
use rows::{BulkGetResult, bulk_get_body, hand_over, parse, read_rows};
use turnwise_outbound::{Error, Optional, Peer, Request, Side};

/// `_bulk_get` with its parameters. Attachments come as stubs, which state how they are encoded.
const BULK_GET: &str = "_bulk_get?revs=true&latest=true&attachments=false&att_encoding_info=true";
/// The same for a source that refuses the last parameter.
const BULK_GET_PLAIN: &str = "_bulk_get?revs=true&latest=true&attachments=false";

/// Receives the revisions that are read.
pub(crate) trait Sink: Send {
    /// A revision without attachments, as JSON text.
    fn doc(&mut self, doc: &[u8]);
    /// A revision with attachments, given as stubs.
    fn doc_with_stubs(&mut self, missing: &Missing, doc: &[u8], head: &Head<'_>);
    /// Called between pieces of a response: the place to write what has been collected.
    fn flush_if_full(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Reads revisions from the source.
pub(crate) struct Fetcher {
    source: Peer,
    /// Whether the replication wants `_bulk_get`.
    use_bulk_get: bool,
    /// Documents that are read one by one, concurrently. The job's connections bound all of its batches together.
    at_once: usize,
    /// The wait before a revision that the source does not have is requested again.
    missing_doc_retry: Duration,
    pace: Arc<Pace>,
}

impl Fetcher {
    pub fn new(source: Peer, replication: &Replication, pace: Arc<Pace>) -> Self {
        let Defaults { use_bulk_get, missing_doc_retry, ref peers, .. } = replication.settings;
        Self { source, use_bulk_get, at_once: peers.http_connections.max(1), missing_doc_retry, pace }
    }

    /// Whether `_bulk_get` is tried.
    fn has_bulk_get(&self) -> bool {
        self.use_bulk_get && self.source.may_use(Optional::BulkGet)
    }

    /// Reads all revisions of `wanted` into `sink`. Returns how many the source did not deliver.
    pub async fn fetch(&self, wanted: &[Missing], sink: &mut impl Sink, tally: &Tally) -> Result<u64, Error> {
        let mut due = Due::new(wanted);
        let failed = if self.has_bulk_get() { self.by_bulk_get(&mut due, sink, tally).await? } else { None };
        let left = wanted.iter().map(|missing| (missing, due.unread(missing)));
        let mut left: VecDeque<_> = left.filter(|(_, revs)| !revs.is_empty()).collect();
        let asked: usize = left.iter().map(|(_, revs)| revs.len()).sum();
        let mut unread = 0;
        if failed.is_some()
            && let Some(first) = left.pop_front()
        {
            // A source that is down fails in this way as well: then the first error is the one to report.
            match self.one_by_one([first].into(), sink, tally).await {
                Ok(more) => unread += more,
                Err(error) => return Err(failed.unwrap_or(error)),
            }
        }
        unread += self.one_by_one(left, sink, tally).await?;
        if let Some(failed) = failed
            && unread < asked as u64
            && !due.has_come_any()
            // Fewer documents may take less time.
            && failed.took_too_long().is_none()
        {
            self.source.refuses(Optional::BulkGet, &failed);
        }
        Ok(unread)
    }

    /// Removes what comes from `due`. Returns the error of the last attempt, if documents may come in another way in spite of it.
    async fn by_bulk_get(
        &self,
        due: &mut Due<'_>,
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<Option<Error>, Error> {
        let mut retries = self.source.retries();
        let mut parameters = Parameters::of(&self.source);
        loop {
            // After a response that broke off, only the revisions that it did not contain are requested again.
            let left = due.left();
            if left.is_empty() {
                return Ok(None);
            }
            tally.bulk_get_attempts.add(left.len() as u64);
            let part = self.pace.part((left.len(), 0), (BULK_GET_DOCS, 1));
            let path = if parameters.encoding_info { BULK_GET } else { BULK_GET_PLAIN };
            let request = Request::post(path, bulk_get_body(left.into_iter()));
            let error = match self.one_bulk_get(&request, due, sink, tally).await {
                Ok(took) => {
                    self.pace.took(Side::Source, part, took);
                    parameters.succeeded(&self.source);
                    return Ok(None);
                }
                Err(error) => error,
            };
            let Some(error) = parameters.after(error) else { continue };
            if let Some(took) = error.took_too_long() {
                self.pace.took(Side::Source, part, took);
            }
            if let Some(error) = retries.pause_optional(error).await? {
                return Ok(Some(error));
            }
        }
    }

    /// One attempt. Returns how long the source needed.
    async fn one_bulk_get(
        &self,
        request: &Request,
        due: &mut Due<'_>,
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<Duration, Error> {
        let mut answer = self.source.send(request).await?;
        let row = |text: &[u8], sink: &mut _| {
            let result: BulkGetResult<'_> = parse(text)?;
            let Some(due) = due.document(&result.id) else {
                return Err(format!("document {:?}, which was not asked for", result.id));
            };
            for doc in &result.docs {
                match doc.ok {
                    Some(doc) => {
                        hand_over(due.missing, doc, sink)?;
                        due.has_come(doc)?;
                        tally.docs_read.add(1);
                        tally.bulk_get_docs.add(1);
                    }
                    None => due.absent = true,
                }
            }
            Ok(())
        };
        let flushing = read_rows(&mut answer, &Mutex::new(sink), row).await?;
        Ok(answer.sent_at().elapsed().saturating_sub(flushing))
    }
}

/// The parameters of one request for documents that may be left out.
struct Parameters {
    encoding_info: bool,
    /// The error of the request with it, while the request without it has not succeeded.
    failed: Option<Error>,
}

impl Parameters {
    fn of(source: &Peer) -> Self {
        Self { encoding_info: source.may_use(Optional::EncodingInfo), failed: None }
    }

    /// `None`: the request is to be sent without the parameters. Otherwise they are not the reason for the error to report.
    fn after(&mut self, error: Error) -> Option<Error> {
        let is_refusal = error.status().is_some_and(|status| !matches!(status, 401 | 404 | 429 | 500..));
        if self.encoding_info && error.side() == Some(Side::Source) && is_refusal {
            (self.encoding_info, self.failed) = (false, Some(error));
            return None;
        }
        Some(self.failed.take().unwrap_or(error))
    }

    fn succeeded(&mut self, source: &Peer) {
        if let Some(failed) = self.failed.take() {
            source.refuses(Optional::EncodingInfo, &failed);
        }
    }
}
