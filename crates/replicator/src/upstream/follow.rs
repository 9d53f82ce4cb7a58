//! One database of the upstream: creates its mirror, and fills it from the changes.

use std::convert::Infallible;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};
use turnwise_outbound::{Fault, Peer};
use turnwise_queue::Keyspace;
use turnwise_store::Transaction;

use super::apply::{Change, Destination, End, apply};
use super::rows::{Mirror, read_mirror, write_mirror};
use super::server::{self, DOCUMENT_BYTES};
use super::service::Upstream;
use crate::Seq;
use crate::doc_processor::{delete_database, finish_deletion};
use crate::documents::{self, databases, names};
use crate::json_stream::{Shape, Splitter};
use crate::waits::SHORTEST_FEED;

/// The most changes that are written together.
const BATCH: usize = 50;
/// The most bytes of changes that are held, plus one more change.
const BATCH_BYTES: usize = 4 << 20;
/// Changes wait this long for further changes.
const LINGER: Duration = Duration::from_millis(10);
/// The pause before a missing database is requested again.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// Follows one database.
#[derive(Clone)]
pub(super) struct Follower {
    pub upstream: Upstream,
    pub server: Peer,
    /// Its name at the upstream.
    pub name: String,
    /// The mirror's name.
    pub db: String,
    /// The unique number of this follower.
    pub number: u64,
}

impl Follower {
    /// Follows the database until an error or an end stops it.
    pub async fn run(&self) -> End {
        let since = match self.open().await {
            Ok(since) => since,
            Err(end) => return end,
        };
        let ended = tokio::select! {
            ended = self.read(since) => ended,
            ended = self.write_back() => ended,
        };
        let Err(end) = ended;
        end
    }

    /// Creates the mirror if it does not exist or belongs to another database, and becomes its follower.
    async fn open(&self) -> Result<Seq, End> {
        let Upstream { store, keys, .. } = &self.upstream;
        names::check_database(&self.db)?;
        let incarnation = server::incarnation(&self.server, &self.name).await?;
        let is_of = self.is_of(incarnation.as_deref()).await?;
        let Some(incarnation) = incarnation.as_deref() else {
            if !self.is_gone().await? {
                return Err(End::Closed);
            }
            self.delete_mirror().await?;
            return Err(End::Gone);
        };
        if !is_of {
            tracing::warn!(
                db = self.db,
                "the upstream's database was replaced by another one: its replications start over"
            );
            self.delete_mirror().await?;
        }
        store.transact(|tx| async move { self.take(&tx, keys, incarnation).await }).await
    }

    /// Verifies that the database was really deleted. A proxy may return 404 for a server that is starting, and all
    /// jobs of the database depend on this. The list must not contain it, and it must be missing again a while later.
    async fn is_gone(&self) -> Result<bool, End> {
        if server::replicator_databases(&self.server).await?.contains(&self.name) {
            tokio::time::sleep(ASKED_AGAIN).await;
            return Ok(false);
        }
        tokio::time::sleep(ASKED_AGAIN).await;
        server::welcome(&self.server).await?;
        Ok(server::incarnation(&self.server, &self.name).await?.is_none())
    }

    /// Whether the mirror may belong to this database, or does not exist.
    async fn is_of(&self, incarnation: Option<&str>) -> Result<bool, End> {
        let Upstream { store, keys, .. } = &self.upstream;
        let db = &self.db;
        let (database, mirror) = store
            .transact(|tx| async move {
                let database = databases::find_any(&tx, keys, db).await?;
                Ok::<_, turnwise_queue::Error>((database, read_mirror(&tx, keys, db).await?))
            })
            .await?;
        match (database, mirror) {
            (None, _) => Ok(true),
            (Some(database), _) if database.deleting => Ok(false),
            (Some(_), Some(mirror)) => {
                Ok(incarnation
                    .is_some_and(|incarnation| server::may_be_same(&mirror.incarnation, incarnation)))
            }
            (Some(_), None) => Err(End::Impossible(
                "a database of this name was made by a client: move its documents elsewhere, and delete it"
                    .to_owned(),
            )),
        }
    }

    async fn take(&self, tx: &Transaction, keys: &Keyspace, incarnation: &str) -> Result<Seq, End> {
        let now_us = self.upstream.store.runtime().now_us();
        let mut mirror = match databases::find(tx, keys, &self.db).await? {
            Some(_) => read_mirror(tx, keys, &self.db).await?.ok_or(End::NoMirror)?,
            None => {
                databases::create(tx, keys, &self.db, now_us).await?;
                Mirror { incarnation: incarnation.to_owned(), since: Seq::zero(), follower: 0 }
            }
        };
        if !server::may_be_same(&mirror.incarnation, incarnation) {
            return Err(End::NoMirror);
        }
        if incarnation != server::UNKNOWN {
            incarnation.clone_into(&mut mirror.incarnation);
        }
        mirror.follower = self.number;
        write_mirror(tx, keys, &self.db, &mirror)?;
        Ok(mirror.since)
    }

    async fn delete_mirror(&self) -> Result<(), End> {
        let Upstream { store, keys, .. } = &self.upstream;
        let deleted = match delete_database(store, keys, &self.db).await {
            // Hidden already, or not there: removes what is left.
            Err(documents::Error::NoDatabase) => finish_deletion(store, keys, &self.db).await,
            deleted => deleted,
        };
        Ok(deleted?)
    }

    /// Reads the changes until the upstream ends them.
    async fn read(&self, mut since: Seq) -> Result<Infallible, End> {
        loop {
            let opened = Instant::now();
            match self.read_feed(&mut since).await {
                // The position does not exist in this database. Documents that are already known change nothing.
                Err(End::Upstream(error)) if error.status() == Some(400) && !since.is_zero() => {
                    let error = error.of_server();
                    tracing::warn!(db = self.db, error, "the upstream's changes are read from the beginning");
                    since = Seq::zero();
                }
                Err(end) => return Err(end),
                // Whether it is still the same database is checked before the next opening.
                Ok(()) => {
                    tokio::time::sleep_until(opened + SHORTEST_FEED).await;
                    return Err(End::Closed);
                }
            }
        }
    }

    async fn read_feed(&self, since: &mut Seq) -> Result<(), End> {
        let request = server::changes(&self.server, &self.name, &since.to_query());
        let mut answer = self.server.send(&request).await?;
        let mut splitter = Splitter::new(Shape::Lines, DOCUMENT_BYTES);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let wait = if batch.is_empty() { Duration::MAX } else { LINGER };
            let Ok(piece) = timeout(wait, answer.chunk()).await else {
                self.apply(&mut batch, since).await?;
                bytes = 0;
                continue;
            };
            let Some(piece) = piece? else { break };
            let parsed = splitter.push(&piece, |text| -> Result<(), String> {
                let change = parse(text)?;
                bytes += text.len();
                batch.extend(change);
                Ok(())
            });
            // First the changes before an invalid one, if there is one.
            if batch.len() >= BATCH || bytes >= BATCH_BYTES || parsed.is_err() {
                self.apply(&mut batch, since).await?;
                bytes = 0;
            }
            parsed.map_err(|cause| answer.malformed(cause))?;
        }
        self.apply(&mut batch, since).await?;
        splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
        Ok(())
    }

    async fn apply(&self, batch: &mut Vec<Change>, since: &mut Seq) -> Result<(), End> {
        let Some(last) = batch.last() else { return Ok(()) };
        let seq = last.seq.clone();
        let Upstream { store, keys, settings, .. } = &self.upstream;
        let settings = &settings.get();
        let into = Destination { store, keys, settings, db: &self.db, follower: self.number };
        apply(into, batch).await?;
        *since = seq;
        batch.clear();
        Ok(())
    }
}

/// A row of the feed; `None` at its end.
fn parse(text: &[u8]) -> Result<Option<Change>, String> {
    #[derive(Deserialize)]
    struct Row<'a> {
        id: Option<String>,
        #[serde(borrow)]
        seq: Option<&'a RawValue>,
        #[serde(default)]
        changes: Vec<Leaf>,
        #[serde(default)]
        deleted: bool,
        doc: Option<Map<String, Value>>,
        error: Option<String>,
        reason: Option<Value>,
    }
    #[derive(Deserialize)]
    struct Leaf {
        rev: String,
    }
    // The row's text and serde's message are left out, because they may hold a password of the document.
    let row: Row<'_> = serde_json::from_slice(text)
        .map_err(|error| format!("an invalid change, at byte {}", error.column()))?;
    if let Some(error) = row.error {
        return Err(format!("{error}: {}", row.reason.unwrap_or_default()));
    }
    let (Some(id), Some(seq)) = (row.id, row.seq) else { return Ok(None) };
    let doc = row.doc.filter(|_| !row.deleted);
    let of_doc = doc.as_ref().and_then(|doc| doc.get("_rev")?.as_str().map(str::to_owned));
    let rev = of_doc.or(row.changes.into_iter().next().map(|leaf| leaf.rev)).ok_or("no revision")?;
    if doc.is_none() && !row.deleted {
        return Err("a change without its document, although documents were requested".to_owned());
    }
    Ok(Some(Change { id, rev, doc, seq: Seq::from_raw(seq) }))
}
