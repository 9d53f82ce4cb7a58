//! `_changes`: the changes of a database, as a list or as a feed.

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};
use turnwise_replicator::documents::{Error, Head, changes, databases, names, read};
use turnwise_store::Transaction;
use turnwise_web::answer::{Batch, Pieces, in_pieces};
use turnwise_web::error::ApiError;
use turnwise_web::request;
use turnwise_web::request::Params;
use turnwise_web::room::Cost;
use turnwise_web::rows::{NameSet, Rows};

use super::app::App;
use super::call::Call;
use super::docs;

/// Number of changes that one transaction reads.
const PAGE: usize = 200;
/// Largest body: the ids of a feed's filter, in bytes. The feed holds them in memory until it ends.
const IDS_BYTES: usize = 1 << 20;
/// The default and the longest time that a feed waits for a change, in ms.
const TIMEOUT_MS: usize = 60_000;
const MAX_TIMEOUT_MS: usize = 24 * 3_600_000;
/// Pending changes are counted up to this number.
const MAX_PENDING: usize = 100_000;

/// When a feed ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feed {
    /// After the existing changes.
    Normal,
    /// After the first change.
    Longpoll,
    /// When no change occurs for the timeout.
    Continuous,
}

/// The documents that a feed includes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    All,
    Ids(NameSet),
    Design,
}

/// The parameters of a request.
struct Query {
    db: String,
    feed: Feed,
    filter: Filter,
    /// The sequence number after which it begins; `None` is the latest one.
    since: Option<i64>,
    limit: usize,
    descending: bool,
    include_docs: bool,
    timeout: Duration,
    /// The interval of empty lines while there is no change. With a heartbeat there is no timeout.
    heartbeat: Option<Duration>,
}

impl Query {
    fn new(db: &str, params: &Params, doc_ids: Option<Rows>) -> Result<Query, ApiError> {
        let feed = match params.get("feed") {
            None | Some("normal") => Feed::Normal,
            Some("longpoll") => Feed::Longpoll,
            Some("continuous" | "live") => Feed::Continuous,
            Some(_) => {
                return Err(ApiError::bad_request(
                    "Supported `feed` types: normal, continuous, live, longpoll",
                ));
            }
        };
        let timeout_ms = params.number("timeout")?.unwrap_or(TIMEOUT_MS).min(MAX_TIMEOUT_MS);
        let heartbeat_ms = match params.get("heartbeat") {
            None | Some("false") => None,
            Some("true") => Some(TIMEOUT_MS),
            Some(text) => Some(text.parse().ok().filter(|ms| *ms > 0).ok_or_else(|| {
                ApiError::bad_request(
                    "Invalid heartbeat value. Expecting a positive integer value (in milliseconds).",
                )
            })?),
        };
        Ok(Query {
            db: db.to_owned(),
            feed,
            filter: filter(params, doc_ids)?,
            since: since(params.get("since"))?,
            // As in CouchDB, 0 means 1.
            limit: params.number("limit")?.unwrap_or(usize::MAX).max(1),
            descending: params.flag("descending")?,
            include_docs: params.flag("include_docs")?,
            timeout: Duration::from_millis(timeout_ms as u64),
            heartbeat: heartbeat_ms.map(|ms| Duration::from_millis(ms.min(MAX_TIMEOUT_MS) as u64)),
        })
    }
}

fn since(text: Option<&str>) -> Result<Option<i64>, ApiError> {
    let number = match text.map(|text| text.trim_matches('"')) {
        None | Some("") => return Ok(Some(0)),
        Some("now") => return Ok(None),
        Some(text) => text.split('-').next().unwrap_or(text),
    };
    let malformed = || ApiError::bad_request("Malformed sequence supplied in 'since' parameter.");
    number.parse().ok().filter(|since| *since >= 0).map(Some).ok_or_else(malformed)
}

fn filter(params: &Params, doc_ids: Option<Rows>) -> Result<Filter, ApiError> {
    match params.get("filter") {
        None => Ok(Filter::All),
        Some("_design") => Ok(Filter::Design),
        Some("_doc_ids") => {
            let wrong = || ApiError::bad_request("`doc_ids` must be an array of document ids");
            let in_query =
                params.get("doc_ids").map(|ids| Rows::of_array(Bytes::copy_from_slice(ids.as_bytes())));
            let ids = match in_query {
                Some(Ok(ids)) => ids.ok(),
                Some(Err(_)) => None,
                None => doc_ids,
            };
            let ids = ids.ok_or_else(wrong)?;
            let ids = NameSet::insert_all(ids.iter().map(|id| serde_json::from_slice(id).ok()));
            Ok(Filter::Ids(ids.ok_or_else(wrong)?))
        }
        Some(_) => Err(ApiError::bad_request(
            "`filter` must be `_doc_ids` or `_design`: replicator databases run no code and no selectors",
        )),
    }
}

impl Filter {
    fn admits(&self, id: &str) -> bool {
        match self {
            Filter::All => true,
            Filter::Ids(ids) => ids.contains(id),
            Filter::Design => names::is_design(id),
        }
    }
}

pub async fn changes(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let doc_ids = match call.method {
        // A feed may last long, so it keeps little more of its ids than their text.
        Method::POST => {
            request::json_rows(&app.body_room, body, call.sender(), ("doc_ids", IDS_BYTES), Cost::ROWS)
                .await?
                .0
                .rows
        }
        _ => None,
    };
    let query = Query::new(db, &call.params, doc_ids.and_then(Result::ok))?;
    let tx = app.store.begin().await?;
    let (database, counters) = databases::info(&tx, &app.keys, db).await?;
    let start = match (query.since, query.descending) {
        (None, _) => counters.sequence,
        (Some(0), true) => counters.sequence + 1,
        (Some(since), _) => since,
    };
    let mut writer = Writer { app: app.clone(), query, created_us: database.created_us, at: start, sent: 0 };
    Ok(in_pieces(async move |mut pieces| {
        writer.write(&mut pieces).await?;
        Ok(pieces)
    }))
}

struct Writer {
    app: App,
    query: Query,
    /// The creation time of this database. If another database takes its name, that one's sequence numbers are
    /// meaningless for this feed.
    created_us: i64,
    /// The sequence number that the feed has reached.
    at: i64,
    /// Number of changes sent so far.
    sent: usize,
}

impl Writer {
    async fn write(&mut self, pieces: &mut Pieces) -> Result<(), ApiError> {
        if self.query.feed != Feed::Continuous {
            pieces.text("{\"results\":[\n").await?;
            // Sends the headers now, because the first change may take long.
            pieces.flush().await?;
        }
        let gone = loop {
            let seen = self.seen().await?;
            if !self.catch_up(pieces).await? {
                break true;
            }
            if self.is_done() {
                break false;
            }
            pieces.flush().await?;
            if !self.wait(pieces, seen).await? {
                break false;
            }
        };
        let pending = if gone { 0 } else { self.pending().await? };
        let end = json!({ "last_seq": self.at.to_string(), "pending": pending });
        match self.query.feed {
            Feed::Continuous => {
                pieces.line(&end).await?;
                pieces.text("\n").await?;
            }
            _ => {
                pieces
                    .text(&format!("\n],\n\"last_seq\":{},\"pending\":{pending}}}\n", end["last_seq"]))
                    .await?
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        match self.query.feed {
            _ if self.sent >= self.query.limit => true,
            Feed::Normal => true,
            Feed::Longpoll => self.sent > 0 || self.query.descending,
            Feed::Continuous => self.query.descending,
        }
    }

    /// The current value of the key that every write of the database changes.
    async fn seen(&self) -> Result<Option<Bytes>, ApiError> {
        let tx = self.app.store.begin().await?;
        Ok(tx.get(&self.app.keys.sequence(&self.query.db)).await?)
    }

    /// Sends all existing changes. Returns false if the database was deleted, even if a new one has its name.
    async fn catch_up(&mut self, pieces: &mut Pieces) -> Result<bool, ApiError> {
        while self.sent < self.query.limit {
            let tx = self.app.store.begin().await?;
            let (db, descending) = (&self.query.db, self.query.descending);
            let page = match changes::page(&tx, &self.app.keys, db, self.at, descending, PAGE).await {
                Ok(page) if page.created_us == self.created_us => page,
                Ok(_) | Err(Error::NoDatabase) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let mut changes = page.changes.into_iter();
            let mut batch = Batch::default();
            while self.sent < self.query.limit && !batch.is_full() {
                let Some(head) = changes.next() else { break };
                self.at = head.sequence;
                if self.query.filter.admits(&head.id) {
                    self.sent += 1;
                    batch.push(&self.row(&tx, head).await?)?;
                }
            }
            drop(tx);
            self.send(pieces, &batch).await?;
            let is_complete = changes.as_slice().is_empty() && self.sent < self.query.limit;
            if is_complete && !page.more {
                self.at = page.last;
                break;
            }
        }
        Ok(true)
    }

    async fn row(&self, tx: &Transaction, head: Head) -> Result<Value, ApiError> {
        let mut row =
            json!({ "seq": head.sequence.to_string(), "id": head.id, "changes": [{ "rev": head.rev }] });
        if head.deleted {
            row["deleted"] = json!(true);
        }
        if self.query.include_docs {
            let document = read::with_body(tx, &self.app.keys, &self.query.db, head).await?;
            row["doc"] = Value::Object(docs::shown(document, false));
        }
        Ok(row)
    }

    async fn send(&self, pieces: &mut Pieces, batch: &Batch) -> Result<(), ApiError> {
        if self.query.feed != Feed::Continuous {
            return Ok(pieces.batch(batch).await?);
        }
        for row in batch.rows() {
            pieces.line(row).await?;
            pieces.text("\n").await?;
        }
        Ok(())
    }

    /// Waits until there may be new changes. Returns false if the timeout is over, the server is stopping, or the client is gone.
    async fn wait(&self, pieces: &mut Pieces, seen: Option<Bytes>) -> Result<bool, ApiError> {
        let (store, keys, stop) = (&self.app.store, &self.app.keys, &self.app.stop);
        let mut changed = store.watch(keys.sequence(&self.query.db), seen).await?;
        loop {
            let nap = store.runtime().sleep(self.query.heartbeat.unwrap_or(self.query.timeout));
            tokio::select! {
                () = stop.cancelled() => return Ok(false),
                () = pieces.abandoned() => return Ok(false),
                () = &mut changed => return Ok(true),
                () = nap => {}
            }
            if self.query.heartbeat.is_none() {
                return Ok(false);
            }
            pieces.text("\n").await?;
            pieces.flush().await?;
        }
    }

    /// Number of changes after the last one that was sent.
    async fn pending(&self) -> Result<usize, ApiError> {
        if self.query.descending {
            return Ok(0);
        }
        let tx = self.app.store.begin().await?;
        Ok(changes::count_after(&tx, &self.app.keys, &self.query.db, self.at, MAX_PENDING).await?)
    }
}
