//! The FoundationDB engine: rows of a cluster that other applications may share.
//!
//! ```text
//!  snapshot()  get_read_version                      one transaction of the client, for reads only
//!     get, range   snapshot reads at that version    (takes no conflicts: `Transaction` collects them)
//!     commit       a second one, at the same version: conflict keys and ranges, clears, sets ─▶ resolver
//!  watch()     get and watch in one transaction, so that no change between the two is missed
//! ```
//!
//! Every key follows the store's prefix, encoded as the tuple `(prefix,)`, so any client can find the rows with the tuple layer.
//! [`errors`] has which error codes become which errors.
//!
//! The client itself retries without end; only the transaction's timeout bounds an operation. A read that timed out has written
//! nothing and is `Unavailable`. A commit that timed out may still happen.

mod errors;
mod network;
mod snapshot;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use foundationdb::options::{DatabaseOption, TransactionOption};
use foundationdb::{Database, Transaction};
use tokio::sync::watch;

use self::errors::Cluster;
use self::snapshot::FoundationdbSnapshot;
use crate::tuple::pack;
use crate::{Engine, Error, Limits, Result, Snapshot, Watch};

/// How long the cluster may take to return its read version, which begins every transaction, in milliseconds.
const BEGIN_TIMEOUT_MS: i32 = 4_000;
/// The timeout for the reads of a transaction, in milliseconds after its begin. The cluster itself refuses reads that come later
/// than [`Limits::transaction_ms`]. This timeout covers a cluster that became unreachable in between.
const READ_TIMEOUT_MS: i32 = 8_000;
/// How long a commit may take, in milliseconds. It is longer than a transaction may live: after that, the cluster can only refuse
/// a transaction that read something.
const COMMIT_TIMEOUT_MS: i32 = 8_000;
/// Most watches at a time. Each external worker that waits and each follower of a feed or an event stream holds one.
const MAX_WATCHES: i32 = 100_000;

/// Most rows that a transaction writes, and most conflicts that it adds.
const MAX_ROWS: usize = 5_000;
/// FoundationDB's limit for a transaction, in bytes as it counts them.
const CLUSTER_TRANSACTION_BYTES: usize = 10_000_000;
/// What it counts for a written row besides its key and value: the mutation, and the write conflict range, which contains the key
/// twice.
const WRITE_OVERHEAD: usize = 40 + 32 + 1;
/// What it counts for a conflict besides the two keys of its range.
const CONFLICT_OVERHEAD: usize = 32 + 1;
/// No transaction needs more, and large slow ones would slow the cluster down for all its clients.
const MAX_TRANSACTION_BYTES: usize = 3_000_000;

/// The limits of a store with a prefix of this many bytes.
fn limits(prefix: usize) -> Limits {
    let writes = MAX_ROWS * (WRITE_OVERHEAD + 3 * prefix);
    let conflicts = MAX_ROWS * (CONFLICT_OVERHEAD + 2 * prefix);
    // In the worst case all other bytes are keys that are written, which count three times.
    let bytes = (CLUSTER_TRANSACTION_BYTES - writes - conflicts) / 3;
    Limits {
        // One byte is reserved for the end of a range that begins with the longest key.
        key_bytes: Limits::DEFAULT.key_bytes - prefix - 1,
        transaction_bytes: bytes.min(MAX_TRANSACTION_BYTES),
        transaction_writes: MAX_ROWS,
        transaction_conflicts: MAX_ROWS,
        ..Limits::DEFAULT
    }
}

/// The rows under one prefix of a FoundationDB cluster, for any number of processes.
pub struct Foundationdb {
    shared: Arc<Shared>,
    /// Dropped with the engine, which ends its watches.
    _open: watch::Sender<()>,
    closed: watch::Receiver<()>,
}

/// What the engine and its snapshots share.
struct Shared {
    database: Database,
    cluster: Cluster,
    prefix: Bytes,
    limits: Limits,
}

impl Shared {
    /// The key in the cluster.
    fn key(&self, key: &[u8]) -> Bytes {
        [&self.prefix[..], key].concat().into()
    }

    /// A transaction of the client that ends after `timeout_ms`.
    fn transaction(&self, timeout_ms: i32) -> Result<Transaction> {
        let transaction = self.database.create_trx().map_err(|error| self.cluster.unavailable(error))?;
        let timeout = transaction.set_option(TransactionOption::Timeout(timeout_ms));
        timeout.map_err(|error| self.cluster.unavailable(error))?;
        Ok(transaction)
    }
}

impl Foundationdb {
    /// Opens the part of the cluster under `prefix`, and waits until the cluster answers.
    ///
    /// # Errors
    /// `Unavailable` if the cluster file cannot be read or the cluster does not answer.
    pub async fn open(cluster_file: &Path, prefix: &str) -> Result<Arc<Self>> {
        let name = cluster_file.display();
        let connection = std::fs::read_to_string(cluster_file)
            .map_err(|error| Error::Unavailable(format!("cannot read the cluster file {name}: {error}")))?;
        // Without a connection string the client would wait forever.
        if !connection.lines().any(|line| !line.starts_with('#') && line.contains('@')) {
            return Err(Error::Unavailable(format!(
                "{name} is no cluster file: a line of DESCRIPTION:ID@HOST:PORT,… is missing"
            )));
        }
        network::boot()?;
        let path = cluster_file
            .to_str()
            .ok_or_else(|| Error::Unavailable(format!("the path of the cluster file {name} is not UTF-8")))?;
        let opened = Database::from_path(path).and_then(|database| {
            database.set_option(DatabaseOption::MaxWatches(MAX_WATCHES)).map(|()| database)
        });
        let database = opened
            .map_err(|error| Error::Unavailable(format!("cannot open the cluster of {name}: {error}")))?;
        let prefix = Bytes::from(pack(&(prefix,)));
        let limits = limits(prefix.len());
        let shared =
            Arc::new(Shared { database, cluster: Cluster { file: path.to_owned() }, prefix, limits });
        FoundationdbSnapshot::take(shared.clone()).await?;
        network::answered();
        let (open, closed) = watch::channel(());
        Ok(Arc::new(Foundationdb { shared, _open: open, closed }))
    }
}

#[async_trait]
impl Engine for Foundationdb {
    fn limits(&self) -> Limits {
        self.shared.limits
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(FoundationdbSnapshot::take(self.shared.clone()).await?))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        let shared = &self.shared;
        let transaction = shared.transaction(BEGIN_TIMEOUT_MS)?;
        let key = shared.key(&key);
        let value = transaction.get(&key, true).await.map_err(|error| shared.cluster.read_error(error))?;
        if value.as_deref() != seen.as_deref() {
            return Ok(Box::pin(std::future::ready(())));
        }
        let changed = transaction.watch(&key);
        // The transaction has written nothing. Its commit hands the watch over to the cluster.
        transaction.commit().await.map_err(|error| shared.cluster.read_error(error.into()))?;
        let mut closed = self.closed.clone();
        Ok(Box::pin(async move {
            tokio::select! {
                // A failed watch may have missed a change. The caller reads the key again, and gets the error there.
                _ = changed => {}
                _ = closed.changed() => {}
            }
        }))
    }
}

#[cfg(test)]
mod tests;
