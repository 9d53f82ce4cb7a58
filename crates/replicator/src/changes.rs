//! The changes reader: the source's `_changes`, as batches of leaf revisions.
//!
//! One request streams everything (`feed=normal` for one-shot runs, `feed=continuous` otherwise) and is parsed as it arrives.
//! When it breaks, or when not even heartbeats come for `connection_timeout`, it is opened again from the last row; rows
//! already read are kept. A batch goes out when it is full, or earlier when somebody is free to work on it and no
//! row has come for a moment: so batches are small when the source is quiet and large when there is much to do.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::{Error, Fault};
use crate::http::{Answer, Peer, Request, beginning};
use crate::json_stream::{self, Shape, Splitter};
use crate::query::Query;
use crate::seq::Seq;
use crate::spec::{ADAPTIVE_BATCH_SIZE, Filter, Replication};

/// Rows wait this long for company: long enough for those that were written together, too short to be noticed.
const LINGER_CONTINUOUS: Duration = Duration::from_millis(10);
/// In a one-shot run a batch that is not full goes out only when the feed has become slow (a filter with few hits).
const LINGER_ONE_SHOT: Duration = Duration::from_millis(500);
/// A row larger than this (about 100,000 conflicts of one document) is refused.
const ROW_BYTES: usize = 8 * 1024 * 1024;
/// A batch is full at this size, however few rows it has.
const BATCH_BYTES: usize = 512 * 1024;
/// A continuous feed that ends at once again and again is not opened more often than this.
const SHORTEST_FEED: Duration = Duration::from_secs(1);

/// Some changes, in the form in which they are asked about next.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Its place in the feed: the first batch of a run is 0, and the next one continues where it ends.
    pub number: u64,
    /// The body of `_revs_diff`: `{"id":["1-a","1-b"],…}`.
    pub revs: Vec<u8>,
    /// Rows.
    pub changes: u64,
    /// Leaf revisions in these rows.
    pub revisions: u64,
    /// The last row's sequence.
    pub end: Seq,
}

impl Batch {
    fn add(&mut self, row: &Row<'_>) {
        let Some(id) = row.id else { return };
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

/// Reads the source's changes and passes them on in batches.
pub(crate) struct Reader {
    source: Peer,
    request: RequestForm,
    since: Seq,
    batch_size: usize,
    out: mpsc::Sender<Batch>,
    /// The rows up to `since` that have not been passed on.
    batch: Batch,
}

/// What stays the same in every request of one reader.
struct RequestForm {
    continuous: bool,
    query: Query,
    body: Option<Vec<u8>>,
}

impl Reader {
    /// A reader that starts after `since`. `source_is_pouchdb` works around what PouchDB Server does differently.
    pub fn new(
        source: Peer,
        replication: &Replication,
        since: Seq,
        source_is_pouchdb: bool,
        out: mpsc::Sender<Batch>,
    ) -> Self {
        let request = RequestForm::new(replication, &source, source_is_pouchdb);
        let batch_size = replication.worker_batch_size.unwrap_or(ADAPTIVE_BATCH_SIZE);
        Self { source, request, since, batch_size, out, batch: Batch::default() }
    }

    /// Reads until a one-shot feed has ended and answers its last sequence; a continuous feed never ends by itself.
    pub async fn run(mut self) -> Result<Seq, Error> {
        let peer = self.source.clone();
        let mut retries = peer.retries();
        loop {
            let (before, opened) = (self.since.clone(), Instant::now());
            match self.read_feed().await {
                Ok(last_seq) if !self.request.continuous => {
                    let last_seq = last_seq.unwrap_or_else(|| self.since.clone());
                    self.flush().await;
                    return Ok(last_seq);
                }
                Ok(last_seq) => {
                    self.since = last_seq.unwrap_or_else(|| self.since.clone());
                    self.flush().await;
                    if self.since == before {
                        tokio::time::sleep_until(opened + SHORTEST_FEED).await;
                    }
                    retries.reset();
                }
                Err(error) => {
                    if self.since != before {
                        retries.reset();
                    }
                    retries.pause(error).await?;
                }
            }
        }
    }

    /// Opens the feed after the last row that was read, and reads it to its end.
    async fn read_feed(&mut self) -> Result<Option<Seq>, Error> {
        let mut answer = self.source.send(&self.request.since(&self.since)).await?;
        let shape = if self.request.continuous { Shape::Lines } else { Shape::Array };
        let mut splitter = Splitter::new(shape, ROW_BYTES);
        let mut last_seq = None;
        while let Some(piece) = self.next_piece(&mut answer).await? {
            let (batch, since) = (&mut self.batch, &mut self.since);
            let mut full = Vec::new();
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
                batch.add(&row);
                if batch.changes as usize >= self.batch_size || batch.revs.len() >= BATCH_BYTES {
                    full.push(end_batch(batch, since));
                }
                Ok(())
            });
            // First, and also if a later row of this piece was bad: `since` is beyond these rows, so that nobody will
            // read them again, and no batch may overtake them.
            for batch in full {
                self.pass_on(batch).await;
            }
            parsed.map_err(|cause| answer.malformed(cause))?;
        }
        let envelope = splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
        if shape == Shape::Lines {
            return Ok(last_seq);
        }
        let envelope: Envelope =
            serde_json::from_slice(&envelope).map_err(|cause| answer.malformed(cause))?;
        match envelope {
            Envelope { error: Some(error), reason, .. } => {
                Err(answer.malformed(format!("{error}: {}", reason.unwrap_or_default())))
            }
            Envelope { last_seq, .. } => Ok(last_seq),
        }
    }

    /// The next piece of the feed; meanwhile, rows that have waited long enough go out once somebody is free.
    async fn next_piece(&mut self, answer: &mut Answer) -> Result<Option<bytes::Bytes>, Error> {
        if self.batch.changes > 0 {
            let linger = if self.request.continuous { LINGER_CONTINUOUS } else { LINGER_ONE_SHOT };
            let somebody_is_free = async {
                tokio::time::sleep(linger).await;
                self.out.reserve().await
            };
            tokio::select! {
                biased;
                piece = answer.chunk() => return piece,
                permit = somebody_is_free => if let Ok(permit) = permit {
                    permit.send(end_batch(&mut self.batch, &self.since));
                }
            }
        }
        answer.chunk().await
    }

    async fn flush(&mut self) {
        if self.batch.changes > 0 {
            let batch = end_batch(&mut self.batch, &self.since);
            self.pass_on(batch).await;
        }
    }

    async fn pass_on(&self, batch: Batch) {
        // The receiver lives as long as this reader: both are parts of one run.
        let _ = self.out.send(batch).await;
    }
}

fn end_batch(batch: &mut Batch, since: &Seq) -> Batch {
    batch.revs.push(b'}');
    batch.end = since.clone();
    let next = Batch { number: batch.number + 1, ..Batch::default() };
    std::mem::replace(batch, next)
}

impl RequestForm {
    fn new(replication: &Replication, source: &Peer, source_is_pouchdb: bool) -> Self {
        let mut query = Query::default();
        query.add("feed", if replication.continuous { "continuous" } else { "normal" });
        query.add("style", if replication.winning_revs_only { "main_only" } else { "all_docs" });
        query.add("heartbeat", &(source.timeout() / 3).as_millis().max(1).to_string());
        let mut body = None;
        match &replication.filter {
            None => {}
            Some(Filter::DocIds(ids)) => {
                query.add("filter", "_doc_ids");
                body = Some(serde_json::json!({ "doc_ids": ids }).to_string().into_bytes());
            }
            Some(Filter::Selector(selector)) => {
                query.add("filter", "_selector");
                let selector = serde_json::Value::Object(selector.clone());
                if source_is_pouchdb {
                    // It reads the selector from the query only, and dies of one in the body.
                    query.add("selector", &selector.to_string());
                } else {
                    body = Some(serde_json::json!({ "selector": selector }).to_string().into_bytes());
                }
            }
            Some(Filter::Function { name, query_params }) => {
                query.add("filter", name);
                for (name, value) in query_params {
                    query.add_json(name, value);
                }
            }
        }
        Self { continuous: replication.continuous, query, body }
    }

    fn since(&self, since: &Seq) -> Request {
        let mut query = self.query.clone();
        query.add("since", &since.to_query());
        let path = query.on("_changes");
        match &self.body {
            Some(body) => Request::post(path, body.clone()).uncounted(),
            None => Request::get(path).uncounted(),
        }
    }
}

/// The splitter's errors and a row's own, in one.
impl From<json_stream::Error> for String {
    fn from(error: json_stream::Error) -> Self {
        error.to_string()
    }
}
