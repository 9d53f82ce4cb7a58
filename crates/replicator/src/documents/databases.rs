//! Creates, lists and deletes databases.

use serde::{Deserialize, Serialize};
use turnwise_queue::{Keyspace, Result as QueueResult};
use turnwise_store::{KeyValue, Transaction};

use super::rows::{self, decode, encode};
use super::{Counters, Error, Result, names};

/// A replicator database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    /// When it was created, in µs since the epoch.
    pub created_us: i64,
    /// It is being deleted, job by job: no request sees it, and no client can create it again yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

/// Creates a database.
///
/// # Errors
/// `DatabaseExists`; `IllegalName` and `NotReplicator` for names that are not allowed.
pub async fn create(tx: &Transaction, keys: &Keyspace, db: &str, now_us: i64) -> Result<()> {
    names::check_database(db)?;
    if find_any(tx, keys, db).await?.is_some() {
        return Err(Error::DatabaseExists);
    }
    let database = Database { created_us: now_us, deleting: false };
    tx.set(keys.database(db), encode(&database))?;
    tx.set(keys.sequence(db), encode(&Counters::default()))?;
    Ok(())
}

/// A database, even one that is being deleted.
pub(crate) async fn find_any(tx: &Transaction, keys: &Keyspace, db: &str) -> QueueResult<Option<Database>> {
    rows::read(tx, &keys.database(db), "database row").await
}

/// A database, if it exists and is not being deleted.
pub(crate) async fn find(tx: &Transaction, keys: &Keyspace, db: &str) -> QueueResult<Option<Database>> {
    Ok(find_any(tx, keys, db).await?.filter(|database| !database.deleting))
}

/// Verifies that a database exists. A write to it in the same transaction conflicts with its deletion.
///
/// # Errors
/// `NoDatabase`; `IllegalName` and `NotReplicator` for names that are not allowed.
pub async fn check(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<Database> {
    names::check_database(db)?;
    find(tx, keys, db).await?.ok_or(Error::NoDatabase)
}

/// A database and its counters.
///
/// # Errors
/// As [`check`].
pub async fn info(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<(Database, Counters)> {
    Ok((check(tx, keys, db).await?, rows::read_counters(tx, keys, db).await?))
}

/// Up to `limit` databases by name, after `after`, including those that are being deleted.
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    limit: usize,
) -> QueueResult<Vec<(String, Database)>> {
    let (mut begin, end) = keys.databases();
    if let Some(after) = after {
        begin = turnwise_store::key::successor(&keys.database(after));
    }
    let database = |(key, value): &KeyValue| {
        let name = keys.parse_database(key)?;
        Ok((name, decode("database row", value)?))
    };
    rows::page(tx, (begin, end), limit).await?.iter().map(database).collect()
}

/// Hides a database, so that it no longer exists for clients. [`erase`] removes its rows after its jobs are gone.
///
/// # Errors
/// As [`check`].
pub async fn hide(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<()> {
    let mut database = check(tx, keys, db).await?;
    database.deleting = true;
    tx.set(keys.database(db), encode(&database))?;
    // Feeds watch the sequence, and end when it is cleared.
    Ok(tx.clear(keys.sequence(db))?)
}

/// Clears every row of a hidden database, including its name.
pub fn erase(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<()> {
    tx.clear_range(keys.documents(db))?;
    tx.clear_range(keys.bodies(db))?;
    tx.clear_range(keys.changes(db))?;
    tx.clear_range(keys.locals(db))?;
    tx.clear_range(keys.replications(db))?;
    tx.clear_range(keys.mirror_details(db))?;
    tx.clear(keys.mirror(db))?;
    tx.clear(keys.sequence(db))?;
    Ok(tx.clear(keys.database(db))?)
}
