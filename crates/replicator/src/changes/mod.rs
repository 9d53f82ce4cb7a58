//! The changes reader: reads the source's `_changes` as batches of leaf revisions.
//!
//! One request streams everything (`feed=normal` for one-shot runs, `feed=continuous` otherwise), and is parsed as it
//! arrives. When it breaks, or when even heartbeats are missing, the reader reopens it after the last row; rows already
//! read are kept. A batch is sent when it is full. It is sent earlier when the receiver is free and no row has come for
//! a moment. Batches are therefore small when the source is quiet, and large when there is much to do.
//!
//! A feed may also work without being useful. If it omits changes that the source has, the reader reopens it
//! ([`patience`] defines when). A feed with a filter reports nothing about changes that the filter skips: only its end
//! shows how far it has come. A continuous run with a filter therefore begins with a normal feed, which ends. It reads
//! another one whenever the source has further changes and its continuous feed has been quiet for a while. The end of
//! each is a batch without changes.
//!
//! Documents come with the rows while [`Demand`] asks for them; when that changes, the reader reopens the feed.
//!
//! A cluster computes a sequence from all its shards. For every row, that is half of what a feed costs. So a feed that ends
//! asks for the sequence of each 20th row, until it breaks off once: rows after the last sequence are then read again.
//! A continuous feed has all sequences, so that a run that has caught up has a checkpoint for each change. So has a feed with
//! a filter, which may search for hours between two rows. A continuous run that begins with a large database reads a feed
//! that ends first.

mod extras;
mod leaves;
mod patience;
mod request;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::database::{self, Info};
use crate::feed_docs::{Demand, FeedDocs};
use crate::json_stream::{self, Shape, Splitter};
use crate::pace::Pace;
use crate::seq::Seq;
use crate::spec::Replication;
use crate::waits::SHORTEST_FEED;

use extras::{Extras, Search};
pub(crate) use leaves::TargetLeaves;
use patience::Patience;
use request::RequestForm;
use turnwise_outbound::{Answer, Error, FREE_FEED_BYTES, Fault, Optional, Peer, beginning};

/// Rows wait this long for further rows: long enough for rows that were written together, too short to be noticed.
const LINGER_CONTINUOUS: Duration = Duration::from_millis(10);
/// In a one-shot run, an incomplete batch is sent only when the feed has become slow (a filter with few hits).
const LINGER_ONE_SHOT: Duration = Duration::from_millis(500);
/// A larger row (about 100,000 conflicts of one document) is an error.
const ROW_BYTES: usize = 8 * 1024 * 1024;
/// A continuous run from the beginning of a database with at least this many documents begins with a feed that ends.
const BACKLOG: u64 = 5_000;
/// A batch is full at this size, however few rows it has.
const BATCH_BYTES: usize = 512 * 1024;

/// Some changes, in the form of the request that follows.
pub(crate) struct Batch {
    /// Its position in the feed: the first batch of a run is 0, and each batch continues where the previous one ends.
    pub number: u64,
    /// The body of `_revs_diff`: `{"id":["1-a","1-b"],…}`, of the changes that the target is not known to have. Empty
    /// without such changes.
    pub revs: Vec<u8>,
    /// Number of rows.
    pub changes: u64,
    /// Number of leaf revisions in these rows.
    pub revisions: u64,
    /// Number of rows that are skipped because their documents' ids are too long.
    pub left_out: u64,
    /// The sequence of the last row, or that up to which there are no further rows.
    pub end: Seq,
    /// Documents that came with the rows.
    pub docs: FeedDocs,
}

impl Batch {
    /// An empty batch.
    fn new(number: u64, docs: FeedDocs) -> Self {
        Batch { number, revs: Vec::new(), changes: 0, revisions: 0, left_out: 0, end: Seq::default(), docs }
    }

    /// Whether the receiver needs this batch.
    fn has_something(&self) -> bool {
        self.changes > 0 || self.left_out > 0
    }

    /// Adds a row, unless its document's id has more than `longest_id` bytes.
    fn add(&mut self, row: &Row<'_>, longest_id: usize, on_target: &TargetLeaves) {
        let Some(id) = row.id else { return };
        let bytes = id_bytes(id);
        if bytes > longest_id {
            let beginning = beginning(id.get().as_bytes());
            tracing::warn!(
                bytes,
                longest_id,
                "a document is skipped, because its id {beginning} is too long"
            );
            self.left_out += 1;
            return;
        }
        if bytes == 0 {
            // Early versions of CouchDB accepted such documents, which no request can read.
            tracing::warn!("a document without an id is skipped");
            return;
        }
        self.changes += 1;
        self.revisions += row.changes.len() as u64;
        if on_target.have(id, &row.changes) {
            return;
        }
        if let (Some(doc), [leaf]) = (row.doc, &row.changes[..]) {
            self.docs.keep(leaf.rev, doc);
        }
        self.revs.push(if self.revs.is_empty() { b'{' } else { b',' });
        self.revs.extend_from_slice(id.get().as_bytes());
        self.revs.push(b':');
        for (nth, change) in row.changes.iter().enumerate() {
            self.revs.push(if nth == 0 { b'[' } else { b',' });
            self.revs.extend_from_slice(change.rev.get().as_bytes());
        }
        self.revs.push(b']');
    }
}

/// The length of an id that is given as JSON.
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
    #[serde(borrow, default, deserialize_with = "with_null")]
    seq: Option<&'a RawValue>,
    #[serde(borrow)]
    last_seq: Option<&'a RawValue>,
    #[serde(borrow)]
    doc: Option<&'a RawValue>,
}

/// A value that may be `null`, which is not the same as a missing one.
fn with_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(from).map(Some)
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

impl Envelope {
    /// The last sequence in the envelope of a feed's rows.
    fn last_seq(envelope: &[u8], answer: &Answer) -> Result<Option<Seq>, Error> {
        match serde_json::from_slice(envelope).map_err(|cause| answer.malformed(cause))? {
            Envelope { error: Some(error), reason, .. } => {
                Err(answer.malformed(format!("{error}: {}", reason.unwrap_or_default())))
            }
            Envelope { last_seq, .. } => Ok(last_seq),
        }
    }
}

/// The kind of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    /// Ends with the last change.
    Normal,
    Continuous,
}

/// How the reading of a feed ended without an error.
enum End {
    /// The feed ended properly, and stated its last sequence.
    Of(Option<Seq>),
    /// The reader gave the feed up: the source has more changes than it reported.
    GivenUp,
    /// The reader gave the feed up, to reopen it with or without documents, or when the target's feed has been read.
    Switched,
}

/// What comes next from a feed.
enum Next {
    Piece(bytes::Bytes),
    End,
    /// The source has more changes than the feed reports.
    More,
}

/// Reads the source's changes and passes them on in batches.
pub(crate) struct Reader {
    source: Peer,
    request: RequestForm,
    continuous: bool,
    /// Whether the first feed is one that ends.
    ends_first: bool,
    filtered: bool,
    source_is_pouchdb: bool,
    since: Seq,
    pace: Arc<Pace>,
    longest_id: usize,
    out: mpsc::Sender<Batch>,
    /// The rows up to `since` that have not been sent.
    batch: Batch,
    /// The end of the last batch that was sent.
    passed_on: Seq,
    patience: Patience,
    demand: Arc<Demand>,
    on_target: Arc<TargetLeaves>,
    /// Whether a feed has broken off, so that every row shall have its sequence.
    broke_off: bool,
    /// The parameters that the source may refuse.
    extras: Search,
}

impl Reader {
    /// A reader that starts after `since`. `info` describes the source.
    pub fn new(
        source: Peer,
        replication: &Replication,
        since: Seq,
        info: &Info,
        (demand, pace, on_target): (Arc<Demand>, Arc<Pace>, Arc<TargetLeaves>),
        out: mpsc::Sender<Batch>,
    ) -> Self {
        let (filtered, source_is_pouchdb) = (replication.filter.is_some(), info.is_pouchdb());
        let has_backlog = since.number() == Some(0) && info.documents() >= BACKLOG && !source_is_pouchdb;
        Self {
            request: RequestForm::new(replication, &source, source_is_pouchdb),
            continuous: replication.continuous,
            ends_first: !replication.continuous || filtered || has_backlog,
            filtered,
            source_is_pouchdb,
            passed_on: since.clone(),
            since,
            pace,
            longest_id: replication.settings.max_document_id_length.unwrap_or(usize::MAX),
            out,
            batch: Batch::new(0, FeedDocs::new(source.waiting_bytes())),
            patience: Patience::new(source.timeout(), Instant::now()),
            demand,
            on_target,
            broke_off: false,
            extras: Search::default(),
            source,
        }
    }

    /// Reads until a one-shot feed has ended, and returns its last sequence. A continuous feed never ends by itself.
    pub async fn run(mut self) -> Result<Seq, Error> {
        let peer = self.source.clone();
        let mut retries = peer.retries();
        let mut feed = if self.ends_first { Feed::Normal } else { Feed::Continuous };
        loop {
            let (before, opened) = (self.since.clone(), Instant::now());
            match self.read_feed(feed).await {
                Ok(End::Of(last_seq)) => {
                    self.patience.progress(Instant::now());
                    self.extras.succeeded(&self.source);
                    // Without a filter, its time went into copying, not into a search.
                    if feed == Feed::Normal && self.filtered {
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
                    self.on_target.until_read().await;
                    tracing::debug!(since = %self.since, docs = self.demand.is_wanted(), "the feed is opened again");
                    retries.reset();
                }
                // Only a feed that ends shows how far a filter has come.
                Ok(End::GivenUp) if self.filtered => feed = Feed::Normal,
                Ok(End::GivenUp) => {
                    tracing::warn!(since = %self.since, "the feed omits changes that its source has; opening it again");
                }
                Err(error) if self.since != before => {
                    self.broke_off = true;
                    self.patience.progress(Instant::now());
                    retries.reset();
                    retries.pause(error).await?;
                }
                Err(error) => match self.extras.failed(error) {
                    extras::Next::Open => {}
                    extras::Next::Fail(error) => {
                        self.broke_off = true;
                        retries.pause(error).await?;
                    }
                },
            }
        }
    }

    /// Opens the feed after the last row that was read, and reads it to its end.
    async fn read_feed(&mut self, feed: Feed) -> Result<End, Error> {
        let few_seqs = !(feed == Feed::Continuous || self.filtered || self.broke_off);
        let extras = self.extras.open(Extras { docs: self.demand.is_wanted(), few_seqs }, &self.source);
        let (with_docs, every_seq) = (extras.docs, !extras.few_seqs);
        let request = self.request.ask(feed, &self.since, with_docs, every_seq, self.patience.silence());
        let mut answer = match self.source.send(&request).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.silent_before(error)),
        };
        self.patience.attend(Instant::now());
        let shape = if feed == Feed::Continuous { Shape::Lines } else { Shape::Array };
        let mut splitter = Splitter::new(shape, ROW_BYTES);
        let mut last_seq = None;
        let mut heard = false;
        // The feed shall be opened again; it ends with the next row that has a sequence.
        let mut switching = false;
        let mut at_seq = true;
        loop {
            let piece = match self.next_piece(&mut answer, feed).await {
                Ok(Next::Piece(piece)) => piece,
                Ok(Next::End) => break,
                Ok(Next::More) => return Ok(End::GivenUp),
                Err(error) if heard => return Err(error),
                Err(error) => return Err(self.silent_before(error)),
            };
            heard = true;
            answer.hold(splitter.held_bytes() + piece.len()).await?;
            let batch_size = self.source.reduced(self.pace.changes());
            let (batch, since) = (&mut self.batch, &mut self.since);
            let (longest_id, on_target) = (self.longest_id, &*self.on_target);
            let mut full = Vec::new();
            let mut rows = false;
            let parsed = splitter.push(&piece, |text| -> Result<(), String> {
                if switching && at_seq {
                    return Ok(());
                }
                let row: Row<'_> =
                    serde_json::from_slice(text).map_err(|e| format!("{e} in {}", beginning(text)))?;
                if let Some(seq) = row.last_seq {
                    last_seq = Some(Seq::from_raw(seq));
                    return Ok(());
                }
                let Some(seq) = row.seq.filter(|_| row.id.is_some()) else {
                    return Err(format!("a row of changes without `id` or `seq`: {}", beginning(text)));
                };
                at_seq = seq.get() != "null";
                if at_seq {
                    *since = Seq::from_raw(seq);
                }
                rows = true;
                batch.add(&row, longest_id, on_target);
                let full_bytes = batch.revs.len() >= BATCH_BYTES || batch.docs.is_full();
                if batch.changes as usize >= batch_size || full_bytes {
                    full.push(end_batch(batch, since));
                }
                Ok(())
            });
            if rows {
                self.patience.progress(Instant::now());
                self.extras.succeeded(&self.source);
            }
            answer.rest(splitter.is_at_rest());
            // First, even if a later row of this piece was invalid: `since` is after these rows, so they will not be
            // read again, and no batch may overtake them.
            let some_are_full = !full.is_empty();
            for batch in full {
                self.pass_on(batch).await;
            }
            parsed.map_err(|cause| answer.malformed(cause))?;
            answer.release(splitter.held_bytes());
            if with_docs && splitter.held_bytes() > FREE_FEED_BYTES {
                // The document is read separately, when there is memory for it.
                self.demand.refuse();
                return Ok(End::Switched);
            }
            let wants_docs = self.demand.is_wanted() && self.source.may_use(Optional::IncludeDocs);
            switching |= some_are_full && (wants_docs != with_docs || self.on_target.are_read());
            if switching && at_seq {
                return Ok(End::Switched);
            }
        }
        let envelope = splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
        if shape == Shape::Lines {
            return Ok(End::Of(last_seq));
        }
        // A feed must end with its last sequence. Without it, nothing may count as done.
        match Envelope::last_seq(&envelope, &answer)? {
            None => Err(answer.malformed("a feed without `last_seq`")),
            last_seq => Ok(End::Of(last_seq)),
        }
    }

    /// A feed failed before any of it arrived. If the error was silence, the next feed may be silent for longer.
    fn silent_before(&mut self, error: Error) -> Error {
        if error.is_silence() {
            self.patience.silent();
        }
        error
    }

    /// The next piece of the feed. Meanwhile, sends rows that have waited long enough once the receiver is free. Also
    /// checks a continuous feed that has been quiet for long.
    async fn next_piece(&mut self, answer: &mut Answer, feed: Feed) -> Result<Next, Error> {
        let silent_at = Instant::now() + self.patience.silence();
        let mut look_at = self.patience.look_at();
        loop {
            let linger = if self.continuous { LINGER_CONTINUOUS } else { LINGER_ONE_SHOT };
            let waiting = self.batch.has_something();
            let receiver_is_free = async {
                tokio::time::sleep(linger).await;
                self.out.reserve().await
            };
            tokio::select! {
                biased;
                piece = answer.chunk() => return Ok(piece?.map_or(Next::End, Next::Piece)),
                permit = receiver_is_free, if waiting => {
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

    /// Asks the source whether it has changes that its feed has not reported. Returns whether to give the feed up.
    async fn look(&mut self) -> Result<bool, Error> {
        let has_more = match database::has_more(&self.source, self.source_is_pouchdb, &self.since).await {
            Ok(has_more) => has_more.unwrap_or(false),
            // The feed of a deleted database may not report the deletion.
            Err(error) if error.status() == Some(404) => return Err(error),
            // An error of this check is no error of the feed.
            Err(error) => {
                tracing::info!(%error, "the source does not report whether it has more changes than its feed");
                false
            }
        };
        Ok(if self.filtered { has_more } else { self.patience.looked(has_more, Instant::now()) })
    }

    /// Sends the collected rows or, without rows, how far the feed has come.
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
        // The feed was not read while the batch waited.
        self.patience.attend(Instant::now());
    }
}

fn end_batch(batch: &mut Batch, since: &Seq) -> Batch {
    if !batch.revs.is_empty() {
        batch.revs.push(b'}');
    }
    batch.end = since.clone();
    let next = Batch::new(batch.number + 1, batch.docs.next());
    std::mem::replace(batch, next)
}

/// Combines the splitter's errors with the errors of a row.
impl From<json_stream::Error> for String {
    fn from(error: json_stream::Error) -> Self {
        error.to_string()
    }
}
