//! `_local` documents: notes of replicators that copy to or from the database. They have no history, no changes, and no effect.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use turnwise_queue::Keyspace;
use turnwise_store::Transaction;

use super::rows::{self, encode};
use super::{Error, Result, databases, names};

/// The largest body, in bytes of JSON: it is one row.
pub const MAX_BODY_BYTES: usize = 64 << 10;

/// A `_local` document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Local {
    /// Number of its writes; displayed as `0-N`.
    pub rev: u64,
    /// Its members except `_id` and `_rev`.
    pub body: Map<String, Value>,
}

/// Reads a document. `id` has no `_local/` prefix, here and below.
///
/// # Errors
/// `Missing`, and those of [`databases::check`].
pub async fn get(tx: &Transaction, keys: &Keyspace, db: &str, id: &str) -> Result<Local> {
    databases::check(tx, keys, db).await?;
    rows::read(tx, &keys.local(db, id), "local document").await?.ok_or(Error::Missing)
}

/// Writes a document for a client that knows `rev` (`0-N`), and returns its new revision.
///
/// # Errors
/// `Conflict`, `TooLarge`, `IllegalId`, and those of [`databases::check`].
pub async fn put(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    id: &str,
    rev: Option<&str>,
    body: &Map<String, Value>,
) -> Result<String> {
    if id.is_empty() || id.len() > names::MAX_ID_BYTES {
        return Err(Error::IllegalId("Document id must have 1 to 1024 bytes"));
    }
    let current = current(tx, keys, db, id, rev).await?;
    let local = Local { rev: current + 1, body: body.clone() };
    let row = encode(&local);
    if row.len() > MAX_BODY_BYTES {
        return Err(Error::TooLarge { id: format!("_local/{id}"), size: row.len(), limit: MAX_BODY_BYTES });
    }
    tx.set(keys.local(db, id), row)?;
    Ok(format!("0-{}", local.rev))
}

/// Deletes a document.
///
/// # Errors
/// `Missing`, `Conflict`, and those of [`databases::check`].
pub async fn delete(tx: &Transaction, keys: &Keyspace, db: &str, id: &str, rev: Option<&str>) -> Result<()> {
    get(tx, keys, db, id).await?;
    current(tx, keys, db, id, rev).await?;
    Ok(tx.clear(keys.local(db, id))?)
}

/// The number of the current revision, if it is the one that the client knows; 0 if the document does not exist.
async fn current(tx: &Transaction, keys: &Keyspace, db: &str, id: &str, rev: Option<&str>) -> Result<u64> {
    let current = match get(tx, keys, db, id).await {
        Ok(local) => local.rev,
        Err(Error::Missing) => 0,
        Err(error) => return Err(error),
    };
    match rev {
        Some(rev) if current > 0 && rev != format!("0-{current}") => Err(Error::Conflict),
        None if current > 0 => Err(Error::Conflict),
        _ => Ok(current),
    }
}
