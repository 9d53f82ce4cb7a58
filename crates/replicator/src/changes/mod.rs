//! The changes reader: the source's `_changes`, as batches of leaf revisions.
//!
//! One request streams everything (`feed=normal` for one-shot runs, `feed=continuous` otherwise) and is parsed as it arrives.
//! When it breaks, or when not even heartbeats come, it is opened again from the last row; rows already read are kept.
//! A batch goes out when it is full, or earlier when somebody is free to work on it and no
//! row has come for a moment: so batches are small when the source is quiet and large when there is much to do.
//!
//! A feed can also be well and useless. Where it says nothing of changes that the source has, it is opened anew
//! ([`patience`] says when). And a feed with a filter says nothing of what it has passed over: only its end tells how far it has
//! come. So a continuous run with a filter begins with a normal feed, which ends, and reads another one whenever the
//! source has moved on and its continuous feed has been quiet for a while. The end of each is a batch without changes.
//!
//! Documents come with the rows while there is [`Demand`] for them; when that changes, the feed is opened again.

mod patience;
mod request;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::database;
use crate::error::{Error, Fault};
use crate::feed_docs::{self, Demand, FeedDocs};
use crate::http::{Answer, Peer, beginning};
use crate::json_stream::{self, Shape, Splitter};
use crate::pace::Pace;
use crate::seq::Seq;
use crate::spec::Replication;

use patience::Patience;
use request::RequestForm;

/// Rows wait this long for company: long enough for those that were written together, too short to be noticed.
const LINGER_CONTINUOUS: Duration = Duration::from_millis(10);
/// In a one-shot run a batch that is not full goes out only when the feed has become slow (a filter with few hits).
const LINGER_ONE_SHOT: Duration = Duration::from_millis(500);
/// A row larger than this (about 100,000 conflicts of one document) is refused.
const ROW_BYTES: usize = 8 * 1024 * 1024;
/// The same where it brings its document: that has a limit of its own, the one that others have.
const LARGE_DOC_BYTES: usize = ROW_BYTES / 2;
/// A batch is full at this size, however few rows it has.
const BATCH_BYTES: usize = 512 * 1024;
/// A continuous feed that ends at once again and again is not opened more often than this.
const SHORTEST_FEED: Duration = Duration::from_secs(1);

/// Some changes, in the form in which they are asked about next.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Its place in the feed: the first batch of a run is 0, and the next one continues where it ends.
    pub number: u64,
    /// The body of `_revs_diff`: `{"id":["1-a","1-b"],…}`. Empty without changes.
    pub revs: Vec<u8>,
    /// Rows.
    pub changes: u64,
    /// Leaf revisions in these rows.
    pub revisions: u64,
    /// Rows that are left out because their documents' ids are too long.
    pub left_out: u64,
    /// The last row's sequence, or that up to which there is none.
    pub end: Seq,
    /// Documents that came with the rows.
    pub docs: FeedDocs,
}

impl Batch {
    /// Whether somebody has to hear of it.
    fn has_something(&self) -> bool {
        self.changes > 0 || self.left_out > 0
    }

    /// Adds a row, unless its document's id has more than `longest_id` bytes.
    fn add(&mut self, row: &Row<'_>, longest_id: usize) {
        let Some(id) = row.id else { return };
        let bytes = id_bytes(id);
        if bytes > longest_id {
            let beginning = beginning(id.get().as_bytes());
            tracing::warn!(bytes, longest_id, "a document is left out, whose id {beginning} is too long");
            self.left_out += 1;
            return;
        }
        if bytes == 0 {
            // Early versions of CouchDB took such documents, and nothing can read them.
            tracing::warn!("a document without an id is left out");
            return;
        }
        if let (Some(doc), [leaf]) = (row.doc, &row.changes[..]) {
            self.docs.keep(leaf.rev, doc);
        }
        self.revs.push(if self.changes == 0 { b'{' } else { b',' });
        self.revs.extend_from_slice(id.get().as_bytes());
        self.revs.push(b':');
        for (nth, change) in row.changes.iter().enumerate() {
            self.revs.push(if nth == 0 { b'[' } else { b',' });
            self.revs.extend_from_slice(change.rev.get().as_bytes());
        }
        self.revs.push(b']');
        self.changes += 1;
        self.revisions += row.changes.len() as u64;
    }
}

/// How long an id is, given as JSON.
fn id_bytes(id: &RawValue) -> usize {
    let text = id.get();
    if !text.contains('\\') {
        return text.len().saturating_sub(2);
    }
    serde_json::from_str::<String>(text).map_or(text.len(), |id| id.len())
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    changes: Vec<Change<'a>>,
    #[serde(borrow)]
    seq: Option<&'a RawValue>,
    #[serde(borrow)]
    last_seq: Option<&'a RawValue>,
    #[serde(borrow)]
    doc: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Change<'a> {
    #[serde(borrow)]
    rev: &'a RawValue,
}

#[derive(Deserialize)]
struct Envelope {
    last_seq: Option<Seq>,
    error: Option<String>,
    reason: Option<String>,
}

/// Which feed is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    /// Ends with the last change.
    Normal,
    Continuous,
}

/// How the reading of one feed ended that did not fail.
enum End {
    /// It ended properly, and has said where.
    Of(Option<Seq>),
    /// It was given up: the source has more than it said.
    GivenUp,
    /// It was given up: it is to bring documents from now on, or no more.
    Switched,
}

/// What comes next of a feed.
enum Next {
    Piece(bytes::Bytes),
    End,
    /// The source has more than the feed says.
    More,
}

/// Reads the source's changes and passes them on in batches.
pub(crate) struct Reader {
    source: Peer,
    request: RequestForm,
    continuous: bool,
    filtered: bool,
    source_is_pouchdb: bool,
    since: Seq,
    pace: Arc<Pace>,
    longest_id: usize,
    out: mpsc::Sender<Batch>,
    /// The rows up to `since` that have not been passed on.
    batch: Batch,
    /// The end of the last batch that was passed on.
    passed_on: Seq,
    patience: Patience,
    demand: Arc<Demand>,
}

impl Reader {
    /// A reader that starts after `since`. `source_is_pouchdb` works around what PouchDB Server does differently.
    pub fn new(
        source: Peer,
        replication: &Replication,
        since: Seq,
        source_is_pouchdb: bool,
        (demand, pace): (Arc<Demand>, Arc<Pace>),
        out: mpsc::Sender<Batch>,
    ) -> Self {
        Self {
            request: RequestForm::new(replication, &source, source_is_pouchdb),
            continuous: replication.continuous,
            filtered: replication.filter.is_some(),
            source_is_pouchdb,
            passed_on: since.clone(),
            since,
            pace,
            longest_id: replication.max_document_id_length.unwrap_or(usize::MAX),
            out,
            batch: Batch::default(),
            patience: Patience::new(source.timeout(), Instant::now()),
            demand,
            source,
        }
    }

    /// Reads until a one-shot feed has ended and answers its last sequence; a continuous feed never ends by itself.
    pub async fn run(mut self) -> Result<Seq, Error> {
        let peer = self.source.clone();
        let mut retries = peer.retries();
        let mut feed = if self.continuous && !self.filtered { Feed::Continuous } else { Feed::Normal };
        loop {
            let (before, opened) = (self.since.clone(), Instant::now());
            match self.read_feed(feed).await {
                Ok(End::Of(last_seq)) => {
                    self.patience.progress(Instant::now());
                    if feed == Feed::Normal {
                        self.patience.searched(opened.elapsed(), Instant::now());
                    }
                    retries.reset();
                    self.since = last_seq.unwrap_or_else(|| self.since.clone());
                    self.flush().await;
                    if !self.continuous {
                        return Ok(self.since);
                    }
                    if feed == Feed::Continuous && self.since == before {
                        tokio::time::sleep_until(opened + SHORTEST_FEED).await;
                    }
                    feed = Feed::Continuous;
                }
                Ok(End::Switched) => {
                    tracing::debug!(since = %self.since, docs = self.demand.is_wanted(), "the feed is opened again");
                    retries.reset();
                }
                // Only a feed that ends tells how far a filter has looked.
                Ok(End::GivenUp) if self.filtered => feed = Feed::Normal,
                Ok(End::GivenUp) => {
                    tracing::warn!(since = %self.since, "the feed says nothing of changes that its source has");
                }
                Err(error) => {
                    if self.since != before {
                        self.patience.progress(Instant::now());
                        retries.reset();
                    }
                    retries.pause(error).await?;
                }
            }
        }
    }

    /// Opens the feed after the last row that was read, and reads it to its end.
    async fn read_feed(&mut self, feed: Feed) -> Result<End, Error> {
        let with_docs = self.demand.is_wanted();
        let request = self.request.ask(feed, &self.since, with_docs, self.patience.silence());
        let mut answer = match self.source.send(&request).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.silent_before(error)),
        };
        self.patience.attend(Instant::now());
        let shape = if feed == Feed::Continuous { Shape::Lines } else { Shape::Array };
        let mut splitter = Splitter::new(shape, ROW_BYTES);
        let mut last_seq = None;
        let mut heard = false;
        loop {
            let piece = match self.next_piece(&mut answer, feed).await {
                Ok(Next::Piece(piece)) => piece,
                Ok(Next::End) => break,
                Ok(Next::More) => return Ok(End::GivenUp),
                Err(error) if heard => return Err(error),
                Err(error) => return Err(self.silent_before(error)),
            };
            heard = true;
            let batch_size = self.source.reduced(self.pace.changes());
            let (batch, since) = (&mut self.batch, &mut self.since);
            let longest_id = self.longest_id;
            let mut full = Vec::new();
            let mut rows = false;
            let parsed = splitter.push(&piece, |text| -> Result<(), String> {
                let row: Row<'_> =
                    serde_json::from_slice(text).map_err(|e| format!("{e} in {}", beginning(text)))?;
                if let Some(seq) = row.last_seq {
                    last_seq = Some(Seq::from_raw(seq));
                    return Ok(());
                }
                let Some(seq) = row.seq.filter(|_| row.id.is_some()) else {
                    return Err(format!("a row of changes without `id` or `seq`: {}", beginning(text)));
                };
                if seq.get() != "null" {
                    *since = Seq::from_raw(seq);
                }
                rows = true;
                batch.add(&row, longest_id);
                let full_bytes =
                    batch.revs.len() >= BATCH_BYTES || batch.docs.bytes() >= feed_docs::FULL_BYTES;
                if batch.changes as usize >= batch_size || full_bytes {
                    full.push(end_batch(batch, since));
                }
                Ok(())
            });
            if rows {
                self.patience.progress(Instant::now());
            }
            answer.rest(splitter.is_at_rest());
            // First, and also if a later row of this piece was bad: `since` is beyond these rows, so that nobody will
            // read them again, and no batch may overtake them.
            let some_are_full = !full.is_empty();
            for batch in full {
                self.pass_on(batch).await;
            }
            parsed.map_err(|cause| answer.malformed(cause))?;
            if with_docs && splitter.held_bytes() > LARGE_DOC_BYTES {
                // This one is read when there is memory for it.
                self.demand.refuse();
                return Ok(End::Switched);
            }
            if some_are_full && self.demand.is_wanted() != with_docs {
                return Ok(End::Switched);
            }
        }
        let envelope = splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
        if shape == Shape::Lines {
            return Ok(End::Of(last_seq));
        }
        let envelope: Envelope =
            serde_json::from_slice(&envelope).map_err(|cause| answer.malformed(cause))?;
        match envelope {
            Envelope { error: Some(error), reason, .. } => {
                Err(answer.malformed(format!("{error}: {}", reason.unwrap_or_default())))
            }
            // Without an end it is no feed, whatever it is: nothing may be taken for done.
            Envelope { last_seq: None, .. } => Err(answer.malformed("a feed without `last_seq`")),
            Envelope { last_seq, .. } => Ok(End::Of(last_seq)),
        }
    }

    /// A feed has failed of which nothing at all had come. If it was for silence, the next one may be silent for longer.
    fn silent_before(&mut self, error: Error) -> Error {
        if error.is_silence() {
            self.patience.silent();
        }
        error
    }

    /// The next piece of the feed. Meanwhile, rows that have waited long enough go out once somebody is free, and a
    /// continuous feed that has been quiet for long is looked after.
    async fn next_piece(&mut self, answer: &mut Answer, feed: Feed) -> Result<Next, Error> {
        let silent_at = Instant::now() + self.patience.silence();
        let mut look_at = self.patience.look_at();
        loop {
            let linger = if self.continuous { LINGER_CONTINUOUS } else { LINGER_ONE_SHOT };
            let waiting = self.batch.has_something();
            let somebody_is_free = async {
                tokio::time::sleep(linger).await;
                self.out.reserve().await
            };
            tokio::select! {
                biased;
                piece = answer.chunk() => return Ok(piece?.map_or(Next::End, Next::Piece)),
                permit = somebody_is_free, if waiting => {
                    if let Ok(permit) = permit {
                        permit.send(end_batch(&mut self.batch, &self.since));
                        self.passed_on = self.since.clone();
                    }
                    continue;
                }
                () = tokio::time::sleep_until(look_at), if feed == Feed::Continuous => {}
            }
            if Instant::now() >= silent_at {
                return Err(answer.fault(Fault::Silent(self.patience.silence())));
            }
            if self.look().await? {
                return Ok(Next::More);
            }
            look_at = self.patience.look_at();
        }
    }

    /// Asks the source whether it has changes of which its feed has said nothing. True if the feed is to be given up.
    async fn look(&mut self) -> Result<bool, Error> {
        let has_more = match database::has_more(&self.source, self.source_is_pouchdb, &self.since).await {
            Ok(has_more) => has_more.unwrap_or(false),
            // The feed of a database that is gone may say nothing of that.
            Err(error) if error.status() == Some(404) => return Err(error),
            // It is the feed that counts.
            Err(error) => {
                tracing::info!(%error, "the source does not say whether it has more than its feed");
                false
            }
        };
        Ok(if self.filtered { has_more } else { self.patience.looked(has_more, Instant::now()) })
    }

    /// Passes on what has gathered, or, if nothing has, how far the feed has come.
    async fn flush(&mut self) {
        if self.batch.has_something() || (self.continuous && self.since.is_other_than(&self.passed_on)) {
            let batch = end_batch(&mut self.batch, &self.since);
            self.pass_on(batch).await;
        }
    }

    async fn pass_on(&mut self, batch: Batch) {
        self.passed_on = batch.end.clone();
        // The receiver lives as long as this reader: both are parts of one run.
        let _ = self.out.send(batch).await;
        // Until now nobody has read the feed.
        self.patience.attend(Instant::now());
    }
}

fn end_batch(batch: &mut Batch, since: &Seq) -> Batch {
    if batch.changes > 0 {
        batch.revs.push(b'}');
    }
    batch.end = since.clone();
    let next = Batch { number: batch.number + 1, ..Batch::default() };
    std::mem::replace(batch, next)
}

/// The splitter's errors and a row's own, in one.
impl From<json_stream::Error> for String {
    fn from(error: json_stream::Error) -> Self {
        error.to_string()
    }
}
