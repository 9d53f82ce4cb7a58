//! Applies the upstream's changes to the mirror's documents.

use serde_json::{Map, Value};
use turnwise_queue::Keyspace;
use turnwise_store::{MaybeStoreError, Store, Transaction};

use super::rows::{read_mirror, read_seen, write_mirror, write_seen};
use crate::Seq;
use crate::doc_processor::{Settings, refuse_mirrored, write_mirrored};
use crate::documents::{Draft, Error, databases, names};

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

/// Why changes could not be written.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Another node follows the database now.
    Overtaken,
    /// The mirror does not exist any more.
    NoMirror,
    /// The document with this number cannot be written as it is, but all others can.
    One(usize, Error),
    /// An error of the store.
    Queue(turnwise_queue::Error),
}

impl From<turnwise_queue::Error> for Stopped {
    fn from(error: turnwise_queue::Error) -> Self {
        Stopped::Queue(error)
    }
}

impl From<turnwise_store::Error> for Stopped {
    fn from(error: turnwise_store::Error) -> Self {
        Stopped::Queue(error.into())
    }
}

impl MaybeStoreError for Stopped {
    fn store_error(&self) -> Option<&turnwise_store::Error> {
        match self {
            Stopped::Queue(error) => error.store_error(),
            Stopped::One(_, error) => error.store_error(),
            Stopped::Overtaken | Stopped::NoMirror => None,
        }
    }
}

/// The destination of changes.
#[derive(Clone, Copy)]
pub(super) struct Into<'a> {
    pub store: &'a Store,
    pub keys: &'a Keyspace,
    pub settings: &'a Settings,
    /// The mirror's name.
    pub db: &'a str,
    /// The number of the follower that writes.
    pub follower: u64,
}

/// Writes changes, oldest first, in as many transactions as necessary.
pub(super) async fn apply(into: Into<'_>, mut changes: &[Change]) -> Result<(), Stopped> {
    while !changes.is_empty() {
        let done = apply_some(into, changes).await?;
        changes = &changes[done..];
    }
    Ok(())
}

/// Writes the first changes in one transaction, at least one of them. A document that cannot be stored is left out, and
/// the others are written again without it, so that a document is never written partially.
async fn apply_some(into: Into<'_>, changes: &[Change]) -> Result<usize, Stopped> {
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
            Stopped::Queue(_) if too_much && most > 1 => most /= 2,
            // No transaction can hold the first one; the others continue without it.
            Stopped::Queue(error) if too_much && refused[0].is_none() => refused[0] = Some(error.to_string()),
            Stopped::One(_, Error::NoDatabase) => return Err(Stopped::NoMirror),
            Stopped::One(_, Error::Queue(error)) if !too_much => return Err(Stopped::Queue(error)),
            Stopped::One(n, error) => refused[n] = Some(error.to_string()),
            stopped => return Err(stopped),
        }
    }
}

async fn write_some(
    tx: &Transaction,
    into: Into<'_>,
    changes: &[Change],
    refused: &[Option<String>],
) -> Result<usize, Stopped> {
    let Into { keys, db, .. } = into;
    let mut mirror = match read_mirror(tx, keys, db).await? {
        Some(mirror) if databases::find(tx, keys, db).await?.is_some() => mirror,
        _ => return Err(Stopped::NoMirror),
    };
    if mirror.follower != into.follower {
        return Err(Stopped::Overtaken);
    }
    let mut done = 0;
    for (n, change) in changes.iter().enumerate() {
        if n > 0 && !tx.has_room() {
            break;
        }
        write_one(tx, into, change, refused[n].as_deref()).await.map_err(|error| Stopped::One(n, error))?;
        mirror.since = change.seq.clone();
        done += 1;
    }
    write_mirror(tx, keys, db, &mirror)?;
    Ok(done)
}

/// Writes a change, unless the mirror already has its revision.
async fn write_one(
    tx: &Transaction,
    into: Into<'_>,
    change: &Change,
    refused: Option<&str>,
) -> Result<(), Error> {
    let Into { keys, settings, db, store, .. } = into;
    let (id, now_us) = (change.id.as_str(), store.runtime().now_us());
    if names::is_design(id) {
        return Ok(());
    }
    if let Err(error) = names::check_id(id) {
        // No row can have this id.
        tracing::error!(db, %error, "a document of the upstream cannot be run, because its id is invalid here");
        return Ok(());
    }
    if read_seen(tx, keys, db, id).await?.as_deref() == Some(&change.rev) {
        return Ok(());
    }
    // An owed state belongs to an older revision. This comes first, because the following code may record a state for
    // the new one.
    tx.clear(keys.mirror_owed(db, id))?;
    let Some(doc) = &change.doc else {
        tx.clear(keys.mirror_seen(db, id))?;
        let gone = Draft { id: id.to_owned(), rev: None, deleted: true, body: Map::new() };
        return write_mirrored(tx, keys, settings, db, &gone, now_us).await;
    };
    write_seen(tx, keys, db, id, &change.rev)?;
    if let Some(reason) = refused {
        tracing::warn!(db, id, reason, "a document of the upstream cannot be run");
        refuse_mirrored(tx, keys, db, id, doc, reason, now_us).await?;
        if is_final(doc) {
            // The document's own state decides.
            tx.clear(keys.mirror_owed(db, id))?;
        }
        return Ok(());
    }
    let mut body = doc.clone();
    // Attachments have no meaning for a replication, and stay at the upstream.
    body.shift_remove("_attachments");
    let draft = Draft::parse(Some(id), body, "")?;
    write_mirrored(tx, keys, settings, db, &Draft { rev: None, ..draft }, now_us).await
}

fn is_final(doc: &Map<String, Value>) -> bool {
    matches!(doc.get("_replication_state").and_then(Value::as_str), Some("completed" | "failed"))
}
