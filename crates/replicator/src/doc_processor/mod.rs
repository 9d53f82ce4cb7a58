//! The meaning of replication documents: a document and its job are written in one transaction.
//!
//! ```text
//!   a client's write                          a job's end
//!        │ validate, restore hidden secrets        │ completed · failed · cancelled
//!        ▼                                         ▼
//!   document ─── replication id known? ─── job    document gets `_replication_state`, the job goes
//!        │ no: its filter's code is on the source
//!        ▼
//!   INITIALIZING ──(fetch the code)──▶ job
//!        │  ▲ backoff                         │  ▲ now and then: has the code changed?
//!        ▼  │                                   └──┘ yes: a job with the new id, the old one goes
//!       ERROR
//! ```
//!
//! What must hold:
//!
//! 1. A document without `_replication_state` has a job or an entry in the index of unresolved documents, and never two jobs.
//! 2. A job belongs to one document. If two documents have the same replication id, the later one fails with a message.
//! 3. A rejected document changes nothing.
//! 4. The end of a job is written only for the document's current job; a late end of an old job writes nothing.
//!
//! The state of each document's replication is a separate row ([`Row`]), so that `_scheduler/docs` reads no bodies.

mod ended;
mod entries;
mod filter_checks;
mod nodes;
mod resolve;
mod retry;
mod schedule;
mod status;
mod summary;
mod sweep;
mod traces;

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use turnwise_queue::{Keyspace, jobs};
use turnwise_store::{Store, Transaction};

use crate::documents::{
    self, DocTx, Draft, Error, Result, Written, databases, names, redaction, rows, write::Slot,
};
use crate::spec::JOB_TYPE;
use crate::{Defaults, Replication, replication_id};

pub use ended::job_ended;
pub use nodes::Nodes;
pub use resolve::{DocProcessor, FETCH_TIMEOUT, FilterCode};
pub use retry::retry_errors;
pub use schedule::{Row, RowState, add as add_job};
pub use status::{STATES, Status, state_name, status, statuses};
pub use summary::{Origin, Summary, new_job, request_tenant, same_options};
pub use sweep::remove_finished_requests;
pub use traces::traced;

/// The most jobs that one transaction removes when their database is deleted.
const REMOVE_BATCH: usize = 100;

/// The settings that determine validation and replication ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The server's UUID, part of every replication id.
    pub server_uuid: String,
    /// `[replicator]`'s defaults for fields that documents omit.
    pub defaults: Defaults,
}

/// Writes a document for a client, and updates the document's job.
///
/// # Errors
/// Those of [`Slot::open`]. `Invalid` with the field's name, if the document is not a valid replication. `Deleted` or
/// `Missing`, if a deletion finds no document.
pub fn write<'a>(
    tx: &'a Transaction,
    keys: &'a Keyspace,
    settings: &'a Settings,
    db: &'a str,
    draft: &'a Draft,
    now_us: i64,
) -> BoxFuture<'a, Result<Written>> {
    // Boxed, so that the crates that await it do not compile it again.
    Box::pin(async move {
        let slot = Slot::open(DocTx { tx, keys, db, id: &draft.id }, draft.rev.as_ref()).await?;
        write_slot(slot, settings, draft, now_us).await
    })
}

/// Writes a document of a mirror in its current version at the upstream.
///
/// # Errors
/// As [`write()`], except for those of a client that may not write, or does not know the current revision.
pub(crate) async fn write_mirrored(
    doc: DocTx<'_>,
    settings: &Settings,
    draft: &Draft,
    now_us: i64,
) -> Result<()> {
    let slot = Slot::open_current(doc).await?;
    if draft.deleted && slot.current().is_none() {
        return Ok(());
    }
    write_slot(slot, settings, draft, now_us).await.map(drop)
}

/// Records the failure of an upstream's document that cannot be stored here.
pub(crate) async fn refuse_mirrored(
    doc: DocTx<'_>,
    body: &Map<String, Value>,
    reason: &str,
    now_us: i64,
) -> turnwise_queue::Result<()> {
    doc.forget().await?;
    let mut slot = Slot::open_current(doc).await?;
    let rev = documents::Revision::next(None, false, b"");
    let row = Row::of_ended(RowState::Failed, &rev, body, now_us);
    ended::fail(&mut slot, &row, Map::new(), reason, now_us)
}

async fn write_slot(mut slot: Slot<'_>, settings: &Settings, draft: &Draft, now_us: i64) -> Result<Written> {
    let doc = slot.doc;
    if names::is_design(doc.id) {
        return slot.write(draft.deleted, &draft.body);
    }
    let mut body = draft.body.clone();
    let stored = match slot.current() {
        Some(_) => Some(doc.body().await?),
        None => None,
    };
    redaction::restore(&mut body, stored.as_ref())?;
    if draft.deleted {
        doc.forget().await?;
        return slot.write(true, &body);
    }
    match ended_state(&mut body)? {
        Some(state) => {
            // As in CouchDB: a document that has failed may be invalid.
            if state != RowState::Failed {
                parse(&body, &settings.defaults)?;
            }
            doc.forget().await?;
            let written = slot.write(false, &body)?;
            doc.write_row(&Row::of_ended(state, &written.rev, &body, now_us))?;
            Ok(written)
        }
        None => {
            let replication = &parse(&body, &settings.defaults)?;
            let written = slot.write(false, &body)?;
            let document =
                schedule::Doc { at: doc, rev: &written.rev, body: &body, replication, check_us: None };
            if !replication_id::needs_filter_code(replication) {
                let id = replication_id::full(replication, &settings.server_uuid, None).to_string();
                schedule::start(&mut slot, &document, &id, now_us).await?;
            } else if !schedule::keep(&document, now_us).await? {
                schedule::wait_for_filter(&document, now_us).await?;
            }
            Ok(written)
        }
    }
}

/// Checks whether a draft could be written, as far as possible without the store.
///
/// # Errors
/// `Invalid` with the field's name if it is not a valid replication.
pub fn check(settings: &Settings, draft: &Draft) -> Result<()> {
    if draft.deleted || names::is_design(&draft.id) {
        return Ok(());
    }
    match ended_state(&mut draft.body.clone())? {
        Some(RowState::Failed) => Ok(()),
        _ => parse(&draft.body, &settings.defaults).map(|_| ()),
    }
}

/// The state in which a document says that it has ended; `None` if it must run. Removes the states that old releases wrote while a job
/// ran, which have no meaning.
fn ended_state(body: &mut Map<String, Value>) -> Result<Option<RowState>> {
    let Some(state) = body.get("_replication_state") else { return Ok(None) };
    match state.as_str() {
        Some("completed") => return Ok(Some(RowState::Completed)),
        Some("failed") => return Ok(Some(RowState::Failed)),
        Some("triggered" | "error") => {}
        None if state.is_null() => {}
        _ => {
            let problem = "must be `completed` or `failed`; leave it out to run the replication";
            return Err(Error::Invalid(format!("_replication_state: {problem}")));
        }
    }
    body.retain(|name, _| !name.starts_with("_replication_"));
    Ok(None)
}

fn parse(body: &Map<String, Value>, defaults: &Defaults) -> Result<Replication> {
    Replication::parse(body, defaults).map_err(Error::field)
}

/// Deletes a document.
///
/// # Errors
/// `Missing`, `Deleted`, `Conflict` and those of [`databases::check`].
pub fn delete<'a>(
    tx: &'a Transaction,
    keys: &'a Keyspace,
    db: &'a str,
    id: &'a str,
    rev: Option<&'a documents::Revision>,
) -> BoxFuture<'a, Result<Written>> {
    // Boxed, so that the crates that await it do not compile it again.
    Box::pin(async move {
        databases::check(tx, keys, db).await?;
        let doc = DocTx { tx, keys, db, id };
        match doc.head().await? {
            None => return Err(Error::Missing),
            Some(head) if head.deleted => return Err(Error::Deleted),
            Some(_) => {}
        }
        let mut slot = Slot::open(doc, rev).await?;
        doc.forget().await?;
        slot.write(true, &Map::new())
    })
}

/// Deletes a database with all documents and jobs. The first transaction hides it from all clients, and further ones
/// delete it. [`DocProcessor::run`] completes a deletion after a crash, or when its caller is gone.
///
/// # Errors
/// Those of [`databases::check`].
pub fn delete_database<'a>(store: &'a Store, keys: &'a Keyspace, db: &'a str) -> BoxFuture<'a, Result<()>> {
    // Boxed, so that the crates that await it do not compile it again.
    Box::pin(async move {
        store.transact(|tx| async move { databases::hide(&tx, keys, db).await }).await?;
        finish_deletion(store, keys, db).await
    })
}

pub(crate) async fn finish_deletion(store: &Store, keys: &Keyspace, db: &str) -> Result<()> {
    loop {
        let done = store.transact(|tx| async move { remove_some(&tx, keys, db).await }).await?;
        if done {
            return Ok(());
        }
    }
}

/// Removes the jobs of some documents of a hidden database, and the database itself after the last one.
async fn remove_some(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<bool> {
    match databases::find_any(tx, keys, db).await? {
        // Another process has finished the deletion, and a client may have created the database again.
        Some(database) if database.deleting => {}
        _ => return Ok(true),
    }
    // Adds conflicts only for single rows: a transaction that would add a row sees that the database is hidden.
    let found = rows::page(tx, keys.replications(db), REMOVE_BATCH).await?;
    for (n, (key, _)) in found.iter().enumerate() {
        if n > 0 && !tx.has_room() {
            return Ok(false);
        }
        let (_, id) = keys.parse_replication(key)?;
        DocTx { tx, keys, db, id: &id }.forget().await?;
    }
    let done = found.len() < REMOVE_BATCH;
    if done {
        databases::erase(tx, keys, db)?;
    }
    Ok(done)
}

fn corrupt(what: &str) -> turnwise_queue::Error {
    documents::corrupt(what, "not as it is written")
}

/// Removes a job that may already be gone.
async fn remove_job(tx: &Transaction, keys: &Keyspace, id: &str) -> turnwise_queue::Result<()> {
    match jobs::remove(tx, keys, JOB_TYPE, id).await {
        Err(turnwise_queue::Error::NotFound) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
