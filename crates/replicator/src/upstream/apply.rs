//! Applies the upstream's changes to the mirror's documents.

use serde_json::{Map, Value};
use turnwise_queue::Keyspace;
use turnwise_store::{MaybeStoreError, Store, Transaction};

use super::rows::{read_mirror, write_mirror};
use crate::Seq;
use crate::doc_processor::{Settings, refuse_mirrored, write_mirrored};
use crate::documents::{DocTx, Draft, Error, databases, names};

/// A document in the upstream's changes.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub id: String,
    /// The upstream's revision.
    pub rev: String,
    /// `None`: the document was deleted.
    pub doc: Option<Map<String, Value>>,
    pub seq: Seq,
}

/// Why a database is not followed any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("the database was deleted, and so was its mirror")]
    Gone,
    #[error("another node follows it now")]
    Overtaken,
    /// It is created again if the upstream's database still exists.
    #[error("the mirror was deleted")]
    NoMirror,
    #[error("the upstream has ended its changes properly")]
    Closed,
    #[error("no database here can have its name: {0}")]
    Impossible(String),
    #[error("{}", .0.of_server())]
    Upstream(#[from] turnwise_outbound::Error),
    #[error("the store: {0}")]
    Store(#[from] turnwise_queue::Error),
}

impl From<turnwise_store::Error> for End {
    fn from(error: turnwise_store::Error) -> Self {
        End::Store(error.into())
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        match error {
            Error::Queue(error) => End::Store(error),
            Error::NoDatabase | Error::DatabaseExists => End::NoMirror,
            error => End::Impossible(error.to_string()),
        }
    }
}

impl MaybeStoreError for End {
    fn store_error(&self) -> Option<&turnwise_store::Error> {
        match self {
            End::Store(error) => error.store_error(),
            _ => None,
        }
    }
}

/// Why changes could not be written.
enum Stopped {
    /// The document with this number cannot be written as it is, but all others can.
    One(usize, Error),
    End(End),
}

impl<E: Into<End>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Stopped::End(error.into())
    }
}

impl MaybeStoreError for Stopped {
    fn store_error(&self) -> Option<&turnwise_store::Error> {
        match self {
            Stopped::One(_, error) => error.store_error(),
            Stopped::End(end) => end.store_error(),
        }
    }
}

/// The destination of changes.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub store: &'a Store,
    pub keys: &'a Keyspace,
    pub settings: &'a Settings,
    /// The mirror's name.
    pub db: &'a str,
    /// The number of the follower that writes.
    pub follower: u64,
}

/// Writes changes, oldest first, in as many transactions as necessary.
pub(super) async fn apply(into: Destination<'_>, mut changes: &[Change]) -> Result<(), End> {
    while !changes.is_empty() {
        let done = apply_some(into, changes).await?;
        changes = &changes[done..];
    }
    Ok(())
}

/// Writes the first changes in one transaction, at least one of them. A document that cannot be stored is left out, and
/// the others are written again without it, so that a document is never written partially.
async fn apply_some(into: Destination<'_>, changes: &[Change]) -> Result<usize, End> {
    let mut refused: Vec<Option<String>> = vec![None; changes.len()];
    let mut most = changes.len();
    loop {
        let (refused_now, some) = (&refused, &changes[..most]);
        let done =
            into.store.transact(|tx| async move { write_some(&tx, into, some, refused_now).await }).await;
        let stopped = match done {
            Ok(done) => return Ok(done),
            Err(stopped) => stopped,
        };
        let too_much = stopped.store_error().is_some_and(turnwise_store::Error::is_too_much);
        match stopped {
            Stopped::One(n, _) if too_much && n > 0 => most = n,
            Stopped::End(_) if too_much && most > 1 => most /= 2,
            // No transaction can hold the first one; the others continue without it.
            Stopped::End(End::Store(error)) if too_much && refused[0].is_none() => {
                refused[0] = Some(error.to_string());
            }
            Stopped::One(_, error @ Error::NoDatabase) => return Err(error.into()),
            Stopped::One(_, error @ Error::Queue(_)) if !too_much => return Err(error.into()),
            Stopped::One(n, error) => refused[n] = Some(error.to_string()),
            Stopped::End(end) => return Err(end),
        }
    }
}

async fn write_some(
    tx: &Transaction,
    into: Destination<'_>,
    changes: &[Change],
    refused: &[Option<String>],
) -> Result<usize, Stopped> {
    let Destination { keys, db, .. } = into;
    let mut mirror = match read_mirror(tx, keys, db).await? {
        Some(mirror) if databases::find(tx, keys, db).await?.is_some() => mirror,
        _ => return Err(End::NoMirror.into()),
    };
    if mirror.follower != into.follower {
        return Err(End::Overtaken.into());
    }
    let mut done = 0;
    for (n, change) in changes.iter().enumerate() {
        if n > 0 && !tx.has_room() {
            break;
        }
        let doc = DocTx { tx, keys, db, id: &change.id };
        let written = write_one(doc, into, change, refused[n].as_deref()).await;
        written.map_err(|error| Stopped::One(n, error))?;
        mirror.since = change.seq.clone();
        done += 1;
    }
    write_mirror(tx, keys, db, &mirror)?;
    Ok(done)
}

/// Writes a change, unless the mirror already has its revision.
async fn write_one(
    doc: DocTx<'_>,
    Destination { settings, store, .. }: Destination<'_>,
    change: &Change,
    refused: Option<&str>,
) -> Result<(), Error> {
    let DocTx { tx, keys, db, id } = doc;
    let now_us = store.runtime().now_us();
    if names::is_design(id) {
        return Ok(());
    }
    if let Err(error) = names::check_id(id) {
        // No row can have this id.
        tracing::error!(db, %error, "a document of the upstream cannot be run, because its id is invalid here");
        return Ok(());
    }
    if doc.seen().await?.as_deref() == Some(&change.rev) {
        return Ok(());
    }
    // An owed state belongs to an older revision. This comes first, because the following code may record a state for
    // the new one.
    doc.clear_owed()?;
    let Some(stored) = &change.doc else {
        tx.clear(keys.mirror_seen(db, id))?;
        let gone = Draft { id: id.to_owned(), rev: None, deleted: true, body: Map::new() };
        return write_mirrored(doc, settings, &gone, now_us).await;
    };
    doc.write_seen(&change.rev)?;
    if let Some(reason) = refused {
        tracing::warn!(db, id, reason, "a document of the upstream cannot be run");
        refuse_mirrored(doc, stored, reason, now_us).await?;
        if is_final(stored) {
            // The document's own state decides.
            doc.clear_owed()?;
        }
        return Ok(());
    }
    let mut body = stored.clone();
    // Attachments have no meaning for a replication, and stay at the upstream.
    body.shift_remove("_attachments");
    let draft = Draft::parse(Some(id), body, "")?;
    write_mirrored(doc, settings, &Draft { rev: None, ..draft }, now_us).await
}

fn is_final(doc: &Map<String, Value>) -> bool {
    matches!(doc.get("_replication_state").and_then(Value::as_str), Some("completed" | "failed"))
}
