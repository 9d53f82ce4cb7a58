//! Reads revisions from the source: by `_bulk_get`, or document by document where the source has no `_bulk_get`.
//!
//! Responses are split while they arrive, and each revision is passed on as its JSON text. It goes into the write
//! buffer or, if it has attachments, to [`crate::attachments`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::attachments::{self, Head, Insides, Revision};
use crate::copy::BULK_GET_DOCS;
use crate::error::{Error, Fault, Side};
use crate::http::{Answer, Peer, Request, beginning};
use crate::json_stream::{Shape, Splitter};
use crate::multipart;
use crate::pace::Pace;
use crate::query::{Query, doc_path};
use crate::revs_diff::Missing;
use crate::stats::Tally;

/// `_bulk_get` with its parameters. Attachments come as stubs, which state how they are encoded.
const BULK_GET: &str = "_bulk_get?revs=true&latest=true&attachments=false&att_encoding_info=true";
/// The same for revisions with small attachments, which come inside the document in base64.
const BULK_GET_INLINE: &str = "_bulk_get?revs=true&attachments=true";

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
    /// Whether to try `_bulk_get`; permanently false once the source has shown that it has none.
    bulk_get: AtomicBool,
    /// Whether to request `_bulk_get` with attachments as multipart; permanently false once that has failed.
    multipart: AtomicBool,
    /// The wait before a revision that the source does not have is requested again.
    missing_doc_retry: Duration,
    pace: Arc<Pace>,
}

impl Fetcher {
    pub fn new(source: Peer, use_bulk_get: bool, missing_doc_retry: Duration, pace: Arc<Pace>) -> Self {
        let (bulk_get, multipart) = (AtomicBool::new(use_bulk_get), AtomicBool::new(true));
        Self { source, bulk_get, multipart, missing_doc_retry, pace }
    }

    /// Reads all revisions of `wanted` into `sink`.
    pub async fn fetch(&self, wanted: &[Missing], sink: &mut impl Sink, tally: &Tally) -> Result<(), Error> {
        if self.bulk_get.load(Ordering::Relaxed) {
            match self.by_bulk_get(wanted, sink, tally).await {
                Err(error) if no_bulk_get(&error) => {
                    tracing::info!(%error, "the source has no usable _bulk_get; documents are read one by one");
                    self.bulk_get.store(false, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        for missing in wanted {
            self.by_open_revs(missing, &missing.revs, sink, tally).await?;
        }
        Ok(())
    }

    async fn by_bulk_get(
        &self,
        wanted: &[Missing],
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<(), Error> {
        let mut due = Due::new(wanted);
        let mut retries = self.source.retries();
        loop {
            // After a response that broke off, only the revisions that it did not contain are requested again.
            let left = due.left();
            if left.is_empty() {
                break;
            }
            tally.bulk_get_attempts.add(left.len() as u64);
            let part = self.pace.part((left.len(), 0), (BULK_GET_DOCS, 1));
            let request = Request::post(BULK_GET, bulk_get_body(left.into_iter()));
            match self.one_bulk_get(&request, &mut due, sink, tally).await {
                Ok(took) => {
                    self.pace.took(Side::Source, part, took);
                    break;
                }
                Err(error) => {
                    if let Some(took) = error.took_too_long() {
                        self.pace.took(Side::Source, part, took);
                    }
                    retries.pause(error).await?;
                }
            }
        }
        // Revisions that the response silently omitted are requested again as well, one by one.
        for missing in wanted {
            self.by_open_revs(missing, &due.unread(missing), sink, tally).await?;
        }
        Ok(())
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
            let Some(due) = due.documents.get_mut(&*result.id) else {
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
        let flushing = read_rows(&mut answer, sink, row).await?;
        Ok(answer.sent_at().elapsed().saturating_sub(flushing))
    }

    /// Whether small attachments can come inside their documents.
    pub fn has_inline(&self) -> bool {
        self.bulk_get.load(Ordering::Relaxed)
    }

    /// Reads `revisions` with their attachments inside, and returns those that did not come.
    pub async fn fetch_inline(
        &self,
        mut revisions: Vec<Revision>,
        sink: &mut impl Sink,
    ) -> Result<Vec<Revision>, Error> {
        let mut retries = self.source.retries();
        while !revisions.is_empty() {
            match self.one_inline(&mut revisions, sink).await {
                Ok(()) => break,
                Err(error) if no_bulk_get(&error) => break,
                Err(error) => retries.pause(error).await?,
            }
        }
        Ok(revisions)
    }

    /// One attempt. Removes what has come from `revisions`, even if the response then breaks off.
    async fn one_inline(&self, revisions: &mut Vec<Revision>, sink: &mut impl Sink) -> Result<(), Error> {
        let mut came = HashSet::new();
        // Attachments that are stored encoded are wanted decoded, and multipart returns them as stored.
        let multipart =
            self.multipart.load(Ordering::Relaxed) && !revisions.iter().any(|revision| revision.encoded);
        let mut read = if multipart {
            self.read_multipart(inline_request(revisions), &mut came, sink).await
        } else {
            self.read_inline(inline_request(revisions), &mut came, sink).await
        };
        take(revisions, &came);
        if multipart
            && let Err(error) = &read
            && may_concern_multipart(error)
        {
            tracing::info!(%error, "the source's multipart answers cannot be used; requesting JSON");
            self.multipart.store(false, Ordering::Relaxed);
            read = self.read_inline(inline_request(revisions), &mut came, sink).await;
            take(revisions, &came);
        }
        read
    }

    /// Reads a response with the attachments inside the documents.
    async fn read_inline(
        &self,
        request: Request,
        came: &mut HashSet<(String, String)>,
        sink: &mut impl Sink,
    ) -> Result<(), Error> {
        let mut answer = self.source.send(&request).await?;
        read_inline_rows(&mut answer, came, sink).await
    }

    /// Reads a response with the attachments behind the documents. From a source without multipart responses, they come
    /// inside the documents.
    async fn read_multipart(
        &self,
        request: Request,
        came: &mut HashSet<(String, String)>,
        sink: &mut impl Sink,
    ) -> Result<(), Error> {
        let mut answer = self.source.send(&request.accept("multipart/mixed")).await?;
        let boundary = answer.header(CONTENT_TYPE).and_then(multipart::boundary).map(str::to_owned);
        let Some(boundary) = boundary else {
            return read_inline_rows(&mut answer, came, sink).await;
        };
        let mut insides = Insides::new(answer, &boundary);
        while let Some(whole) = insides.next().await? {
            sink.doc(&whole.doc);
            came.insert((whole.id, whole.rev));
            sink.flush_if_full().await?;
        }
        Ok(())
    }

    async fn by_open_revs(
        &self,
        missing: &Missing,
        revs: &[impl AsRef<str> + Sync],
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<(), Error> {
        let path = doc_path(&missing.id);
        let mut at = 0;
        while at < revs.len() {
            let mut query = Query::default();
            query.add("revs", "true");
            query.add("latest", "true");
            query.add("att_encoding_info", "true");
            at += query.add_some("open_revs", revs[at..].iter().map(AsRef::as_ref), &path);
            let request = Request::get(query.on(&path));
            let mut retries = self.source.retries();
            let mut was_absent = false;
            loop {
                match self.one_open_revs(&request, missing, sink, tally).await {
                    Ok(None) => break,
                    // Between the feed and this request, the document may have changed, or may not have reached every node.
                    Ok(Some(error)) if !was_absent => {
                        tracing::info!(doc_id = missing.id, "requesting a revision once more: {error}");
                        was_absent = true;
                        tokio::time::sleep(self.missing_doc_retry).await;
                    }
                    Ok(Some(error)) => return Err(error),
                    Err(error) => retries.pause(error).await?,
                }
            }
        }
        Ok(())
    }

    /// One attempt. Returns an error if the source reports that it lacks some of the revisions.
    async fn one_open_revs(
        &self,
        request: &Request,
        missing: &Missing,
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<Option<Error>, Error> {
        let mut answer = match self.source.send(request).await {
            Ok(answer) => answer,
            // The source returns 404 for a document of which nothing is left.
            Err(error) if error.status() == Some(404) => return Ok(Some(error)),
            Err(error) => return Err(error),
        };
        let (mut came, mut absent) = (false, None);
        let row = |text: &[u8], sink: &mut _| {
            match parse::<OpenRev<'_>>(text)? {
                OpenRev { ok: Some(doc), .. } => {
                    hand_over(missing, doc, sink)?;
                    tally.docs_read.add(1);
                    came = true;
                }
                OpenRev { missing: rev, .. } => absent = Some(rev.unwrap_or_default()),
            }
            Ok(())
        };
        read_rows(&mut answer, sink, row).await?;
        match absent {
            None if came => Ok(None),
            None => Ok(Some(answer.fault(Fault::Unexpected(
                "an answer without any of the revisions that were asked for".to_owned(),
            )))),
            Some(rev) => Ok(Some(answer.fault(attachments::absent(&rev)))),
        }
    }
}

/// What the responses to one batch of `_bulk_get` have not contained so far.
///
/// Revisions are matched by name and not counted. After a response that broke off, the next one may begin with the same
/// revisions again. Sources also differ in the number of results per document: CouchDB returns one for each requested
/// revision, PouchDB a single one.
struct Due<'a> {
    wanted: &'a [Missing],
    documents: HashMap<&'a str, DueDocument<'a>>,
}

struct DueDocument<'a> {
    missing: &'a Missing,
    /// Number of requested revisions.
    asked: usize,
    /// Requested revisions that have not come.
    left: HashSet<&'a str>,
    /// The source has reported a revision as missing.
    absent: bool,
}

impl<'a> Due<'a> {
    fn new(wanted: &'a [Missing]) -> Self {
        let mut documents = HashMap::with_capacity(wanted.len());
        for missing in wanted {
            // A document that changed while the feed was read may appear twice.
            let document = documents.entry(missing.id.as_str()).or_insert_with(|| DueDocument {
                missing,
                asked: 0,
                left: HashSet::new(),
                absent: false,
            });
            document.asked += missing.revs.len();
            document.left.extend(missing.revs.iter().map(String::as_str));
        }
        Self { wanted, documents }
    }

    /// The ids and revisions that `_bulk_get` must still be asked for.
    fn left(&self) -> Vec<(&'a str, &'a str)> {
        let document = |missing: &'a Missing| {
            let due = &self.documents[missing.id.as_str()];
            let revs = missing.revs.iter().map(String::as_str);
            revs.filter(|rev| !due.absent && due.left.contains(rev)).map(|rev| (missing.id.as_str(), rev))
        };
        self.wanted.iter().flat_map(document).collect()
    }

    /// The revisions of `missing` that must be read in another way: all of them, if any revision of the document was absent.
    fn unread(&self, missing: &'a Missing) -> Vec<&'a str> {
        let due = &self.documents[missing.id.as_str()];
        let revs = missing.revs.iter().map(String::as_str);
        revs.filter(|rev| due.absent || due.left.contains(rev)).collect()
    }
}

impl DueDocument<'_> {
    /// `doc` is a requested revision, or one that has replaced it since.
    fn has_come(&mut self, doc: &RawValue) -> Result<(), String> {
        // The common case; the document need not be parsed then.
        if self.asked == 1 {
            self.left.clear();
            return Ok(());
        }
        let lineage: Lineage = parse(doc.get().as_bytes())?;
        if !self.left.remove(&*lineage.rev) {
            for ancestor in lineage.revisions.names() {
                self.left.remove(&*ancestor);
            }
        }
        Ok(())
    }
}

/// Returns how long the source waited while its rows were processed.
async fn read_rows<S: Sink>(
    answer: &mut Answer,
    sink: &mut S,
    mut row: impl FnMut(&[u8], &mut S) -> Result<(), String> + Send,
) -> Result<Duration, Error> {
    let mut flushing = Duration::ZERO;
    let most = answer.max_document_bytes();
    let mut splitter = Splitter::new(Shape::Array, usize::MAX);
    while let Some(piece) = answer.chunk().await? {
        answer.hold(splitter.held_bytes() + piece.len()).await?;
        splitter.push(&piece, |text| row(text, sink)).map_err(|cause| answer.malformed(cause))?;
        if splitter.held_bytes() > most {
            return Err(answer.fault(Fault::TooLarge(most)));
        }
        let before = Instant::now();
        sink.flush_if_full().await?;
        flushing += before.elapsed();
        answer.release(splitter.held_bytes());
    }
    splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
    Ok(flushing)
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
    read_rows(answer, sink, row).await.map(drop)
}

fn inline_request(revisions: &[Revision]) -> Request {
    let wanted = revisions.iter().map(|revision| (&*revision.id, &*revision.rev));
    Request::post(BULK_GET_INLINE, bulk_get_body(wanted))
}

/// Removes the revisions that came from `revisions`.
fn take(revisions: &mut Vec<Revision>, came: &HashSet<(String, String)>) {
    revisions.retain(|revision| !came.contains(&(revision.id.clone(), revision.rev.clone())));
}

/// Whether the source's multipart responses may be the reason for the error. Other reasons are the connection, or the target.
fn may_concern_multipart(error: &Error) -> bool {
    match error {
        Error::Peer(error) if error.side == Side::Source => match error.fault {
            Fault::Malformed(_) | Fault::Unexpected(_) => true,
            Fault::Status { status, .. } => !matches!(status, 401 | 403 | 404 | 408 | 429 | 502..),
            _ => false,
        },
        _ => false,
    }
}

/// Whether the source's response means that it has no `_bulk_get`.
fn no_bulk_get(error: &Error) -> bool {
    let of_bulk_get = matches!(error, Error::Peer(error) if error.url.ends_with("/_bulk_get"));
    of_bulk_get && matches!(error.status(), Some(400 | 404 | 405 | 406 | 415 | 500 | 501))
}

#[derive(Deserialize)]
struct BulkGetResult<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    docs: Vec<BulkGetDoc<'a>>,
}

#[derive(Deserialize)]
struct BulkGetDoc<'a> {
    #[serde(borrow)]
    ok: Option<&'a RawValue>,
}

/// A revision's name and its ancestors.
#[derive(Deserialize)]
struct Lineage {
    #[serde(rename = "_rev")]
    rev: String,
    #[serde(rename = "_revisions", default)]
    revisions: Revisions,
}

/// `{"start":3,"ids":["c","b","a"]}` is `3-c` and its ancestors `2-b` and `1-a`.
#[derive(Default, Deserialize)]
struct Revisions {
    start: u64,
    ids: Vec<String>,
}

impl Revisions {
    fn names(&self) -> impl Iterator<Item = String> {
        (1..=self.start).rev().zip(&self.ids).map(|(generation, id)| format!("{generation}-{id}"))
    }
}

#[derive(Deserialize)]
struct OpenRev<'a> {
    #[serde(borrow)]
    ok: Option<&'a RawValue>,
    missing: Option<String>,
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|cause| format!("{cause} in {}", beginning(text)))
}

fn hand_over(missing: &Missing, doc: &RawValue, sink: &mut impl Sink) -> Result<(), String> {
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
fn bulk_get_body<'a>(wanted: impl Iterator<Item = (&'a str, &'a str)>) -> Bytes {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn missing(id: &str, revs: &[&str]) -> Missing {
        let revs = revs.iter().map(|&rev| rev.to_owned()).collect();
        Missing { id: id.to_owned(), revs, possible_ancestors: Default::default() }
    }

    fn come(due: &mut Due<'_>, id: &str, doc: &Value) {
        let doc = serde_json::value::to_raw_value(doc).unwrap();
        due.documents.get_mut(id).unwrap().has_come(&doc).unwrap();
    }

    #[test]
    fn a_revision_that_comes_twice_stands_for_no_other() {
        let wanted = [missing("c", &["1-a", "1-b"]), missing("d", &["1-d"])];
        let mut due = Due::new(&wanted);
        for _ in 0..2 {
            come(&mut due, "c", &json!({"_rev": "1-a"}));
            assert_eq!(due.left(), [("c", "1-b"), ("d", "1-d")]);
        }
        come(&mut due, "d", &json!({"_rev": "2-e"}));
        assert_eq!(due.left(), [("c", "1-b")]);
        assert_eq!(due.unread(&wanted[0]), ["1-b"]);
        assert!(due.unread(&wanted[1]).is_empty());
    }

    #[test]
    fn a_later_revision_stands_for_its_ancestor_only() {
        let wanted = [missing("c", &["2-a", "1-b", "1-c"])];
        let mut due = Due::new(&wanted);
        // Both results replace 2-a, so they count as one.
        for rev in ["x", "y"] {
            let doc = json!({"_rev": format!("3-{rev}"), "_revisions": {"start": 3, "ids": [rev, "a", "c"]}});
            come(&mut due, "c", &doc);
        }
        // 1-c is an ancestor as well, because the feed named the document twice.
        assert_eq!(due.left(), [("c", "1-b")]);
    }

    #[test]
    fn a_document_of_which_something_is_absent_is_read_in_another_way() {
        let wanted = [missing("c", &["1-a", "1-b"])];
        let mut due = Due::new(&wanted);
        come(&mut due, "c", &json!({"_rev": "1-a"}));
        due.documents.get_mut("c").unwrap().absent = true;
        assert!(due.left().is_empty());
        assert_eq!(due.unread(&wanted[0]), ["1-a", "1-b"]);
    }

    #[test]
    fn a_document_that_is_named_twice_is_due_with_the_revisions_of_both() {
        let wanted = [missing("c", &["1-a"]), missing("c", &["1-b"])];
        let mut due = Due::new(&wanted);
        come(&mut due, "c", &json!({"_rev": "1-b"}));
        assert_eq!(due.left(), [("c", "1-a")]);
    }
}
