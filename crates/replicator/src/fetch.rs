//! Reading revisions from the source: `_bulk_get`, or document by document where the source has none.
//!
//! Answers are split while they arrive and each revision goes on as the text it is: into the write buffer, or, if it has
//! attachments, to [`crate::attachments`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::attachments::{Head, Revision};
use crate::error::{Error, Fault};
use crate::http::{Answer, Peer, Request, beginning};
use crate::json_stream::{Shape, Splitter};
use crate::query::{Query, doc_path};
use crate::revs_diff::Missing;
use crate::stats::Tally;

/// The largest document that is copied; CouchDB's own limit is 8 MB.
const DOC_BYTES: usize = 256 * 1024 * 1024;
/// `_bulk_get` with its parameters. Attachments come as stubs, which say how they are encoded.
const BULK_GET: &str = "_bulk_get?revs=true&latest=true&attachments=false&att_encoding_info=true";
/// The same for revisions whose attachments are small: they come inside the document, in base64.
const BULK_GET_INLINE: &str = "_bulk_get?revs=true&attachments=true";
/// Revisions in one `open_revs` request: the URL stays below 8 kB.
const OPEN_REVS: usize = 100;

/// Takes what is read.
pub(crate) trait Sink: Send {
    /// A revision without attachments, as JSON text.
    fn doc(&mut self, doc: &[u8]);
    /// A revision with attachments, given as stubs.
    fn doc_with_stubs(&mut self, missing: &Missing, doc: &[u8], head: &Head<'_>);
    /// Called between pieces of an answer: the place to write what has gathered.
    fn breathe(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Reads revisions from the source.
pub(crate) struct Fetcher {
    source: Peer,
    /// Whether `_bulk_get` is worth a try; false for good once the source has shown that it has none.
    bulk_get: AtomicBool,
}

impl Fetcher {
    pub fn new(source: Peer, use_bulk_get: bool) -> Self {
        Self { source, bulk_get: AtomicBool::new(use_bulk_get) }
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
            self.by_open_revs(missing, sink, tally).await?;
        }
        Ok(())
    }

    async fn by_bulk_get(
        &self,
        wanted: &[Missing],
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<(), Error> {
        let mut got = Got {
            results: wanted.iter().map(|missing| (missing.id.as_str(), (missing, 0))).collect(),
            absent: HashSet::new(),
        };
        let mut retries = self.source.retries();
        loop {
            // After an answer that broke off, only what it did not hold is asked for again.
            let left: Vec<&Missing> = wanted.iter().filter(|missing| !got.has_all_of(missing)).collect();
            if left.is_empty() {
                break;
            }
            tally.bulk_get_attempts.add(1);
            match self.one_bulk_get(&left, &mut got, sink, tally).await {
                Ok(()) => break,
                Err(error) => retries.pause(error).await?,
            }
        }
        // Also what the answer passed over in silence is asked for again, one by one.
        for missing in wanted {
            if got.absent.contains(missing.id.as_str()) || !got.has_all_of(missing) {
                self.by_open_revs(missing, sink, tally).await?;
            }
        }
        Ok(())
    }

    async fn one_bulk_get(
        &self,
        wanted: &[&Missing],
        got: &mut Got<'_>,
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<(), Error> {
        let pairs = wanted.iter().flat_map(|missing| missing.revs.iter().map(|rev| (&*missing.id, &**rev)));
        let mut answer = self.source.send(&Request::post(BULK_GET, bulk_get_body(pairs))).await?;
        let row = |text: &[u8], sink: &mut _| {
            let result: BulkGetResult<'_> = parse(text)?;
            let Some((missing, results)) = got.results.get_mut(&*result.id) else {
                return Err(format!("document {:?}, which was not asked for", result.id));
            };
            *results += 1;
            for doc in &result.docs {
                match doc.ok {
                    Some(doc) => {
                        hand_over(missing, doc, sink)?;
                        tally.docs_read.add(1);
                        tally.bulk_get_docs.add(1);
                    }
                    None => {
                        got.absent.insert(missing.id.as_str());
                    }
                }
            }
            Ok(())
        };
        read_rows(&mut answer, sink, row).await
    }

    /// Whether small attachments can come inside their documents.
    pub fn has_inline(&self) -> bool {
        self.bulk_get.load(Ordering::Relaxed)
    }

    /// Reads `revisions` with their attachments inside, and answers those that did not come.
    pub async fn fetch_inline(
        &self,
        mut revisions: Vec<Revision>,
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<Vec<Revision>, Error> {
        let mut retries = self.source.retries();
        while !revisions.is_empty() {
            tally.bulk_get_attempts.add(1);
            match self.one_inline(&mut revisions, sink).await {
                Ok(()) => break,
                Err(error) if no_bulk_get(&error) => break,
                Err(error) => retries.pause(error).await?,
            }
        }
        Ok(revisions)
    }

    /// One attempt; takes what has come out of `revisions`, also when the answer then breaks off.
    async fn one_inline(&self, revisions: &mut Vec<Revision>, sink: &mut impl Sink) -> Result<(), Error> {
        let body = bulk_get_body(revisions.iter().map(|revision| (&*revision.id, &*revision.rev)));
        let mut answer = self.source.send(&Request::post(BULK_GET_INLINE, body)).await?;
        let mut came = HashSet::new();
        let row = |text: &[u8], sink: &mut _| {
            let result: BulkGetResult<'_> = parse(text)?;
            for doc in result.docs.iter().filter_map(|doc| doc.ok) {
                let text = doc.get().as_bytes();
                Sink::doc(sink, text);
                came.insert((result.id.to_string(), parse::<Head<'_>>(text)?.rev));
            }
            Ok(())
        };
        let read = read_rows(&mut answer, sink, row).await;
        revisions.retain(|revision| !came.contains(&(revision.id.clone(), revision.rev.clone())));
        read
    }

    async fn by_open_revs(
        &self,
        missing: &Missing,
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<(), Error> {
        for revs in missing.revs.chunks(OPEN_REVS) {
            let mut query = Query::default();
            query.add("open_revs", &serde_json::Value::from(revs).to_string());
            query.add("revs", "true");
            query.add("latest", "true");
            query.add("att_encoding_info", "true");
            let request = Request::get(query.on(&doc_path(&missing.id)));
            let mut retries = self.source.retries();
            while let Err(error) = self.one_open_revs(&request, missing, sink, tally).await {
                retries.pause(error).await?;
            }
        }
        Ok(())
    }

    async fn one_open_revs(
        &self,
        request: &Request,
        missing: &Missing,
        sink: &mut impl Sink,
        tally: &Tally,
    ) -> Result<(), Error> {
        let mut answer = self.source.send(request).await?;
        let mut absent = None;
        let row = |text: &[u8], sink: &mut _| {
            match parse::<OpenRev<'_>>(text)? {
                OpenRev { ok: Some(doc), .. } => {
                    hand_over(missing, doc, sink)?;
                    tally.docs_read.add(1);
                }
                OpenRev { missing: rev, .. } => absent = Some(rev.unwrap_or_default()),
            }
            Ok(())
        };
        read_rows(&mut answer, sink, row).await?;
        match absent {
            None => Ok(()),
            Some(rev) => Err(answer.fault(Fault::Unexpected(format!(
                "revision {rev} is in the changes feed of the source, but the source does not have it"
            )))),
        }
    }
}

/// What the answers to one batch of `_bulk_get` have held so far.
struct Got<'a> {
    /// Results per document; one is due for each revision asked for.
    results: HashMap<&'a str, (&'a Missing, usize)>,
    /// Documents of which a revision was not there.
    absent: HashSet<&'a str>,
}

impl Got<'_> {
    fn has_all_of(&self, missing: &Missing) -> bool {
        self.results.get(missing.id.as_str()).is_some_and(|&(_, results)| results >= missing.revs.len())
    }
}

async fn read_rows<S: Sink>(
    answer: &mut Answer,
    sink: &mut S,
    mut row: impl FnMut(&[u8], &mut S) -> Result<(), String> + Send,
) -> Result<(), Error> {
    let mut splitter = Splitter::new(Shape::Array, DOC_BYTES);
    while let Some(piece) = answer.chunk().await? {
        splitter.push(&piece, |text| row(text, sink)).map_err(|cause| answer.malformed(cause))?;
        sink.breathe().await?;
    }
    splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
    Ok(())
}

/// Whether the source answered in a way that means: there is no `_bulk_get` here.
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
    // The word may also stand deeper in the document; most documents do not have it at all.
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
