//! Copies a store into an empty one.
//!
//! *Model.* The copy reads source and target side by side, in key order, and makes the target's rows equal to the source's.
//! A copy that was killed is resumed by running it again. Equal rows are not written again, and rows that have changed
//! since are corrected. Then the copy reads both stores again and compares them. Only then it writes the source's format
//! row to the target. Until then the target has a [marker](Copying) there, and no server starts on it.
//!
//! *Forces.* A copy shows one moment only if nothing writes to the source. An embedded source is locked while it is open.
//! On a shared source, no server or worker may run. The copy checks that health counters do not move for their timeout. It
//! also checks that the memberships are the same at the end as at the beginning: a node or worker that starts meanwhile
//! joins one. Values are copied as bytes. So a versionstamp is still that of the source's engine, and may be higher than
//! any that the target's engine will set. Code that compares stamps therefore checks only for equality, or treats the
//! stamps that it finds first as older than all others.
//!
//! Events that have no number yet are not copied as rows, but [numbered](Copy::number_events) in the target after the comparison.
//!
//! Every batch checks that the marker is still that of its run. Of two copies to the same target, the first one therefore stops.

mod merge;
mod quiet;
mod unnumbered;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use turnwise_queue::check::key_text;
use turnwise_queue::keyspace::FORMAT_VERSION;
use turnwise_queue::{Copying, Format, Keyspace};
use turnwise_store::{Error as StoreError, MaybeStoreError, Store};

use crate::scan;
use merge::{Merge, Step};

/// The number of batches in flight, so that commits that wait for a disk or a quorum overlap.
const BATCHES_IN_FLIGHT: usize = 8;
/// The maximum number of rows in a batch; an engine may allow less.
const BATCH_ROWS: usize = 2_000;
/// The maximum number of bytes in a batch; an engine may allow less.
const BATCH_BYTES: usize = 2 << 20;

/// Why a store was not copied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source holds no turnwise data.
    #[error("the source holds no turnwise store")]
    NoSource,
    /// The source has another format.
    #[error(
        "the source has format {0}, and this release knows format {FORMAT_VERSION}: use the release that wrote it"
    )]
    Format(String),
    /// The source is itself an unfinished copy.
    #[error("the source is itself an unfinished copy of {0}: finish that one first")]
    Unfinished(String),
    /// A server or worker uses the source.
    #[error("the source is in use, {0}: stop every node and worker that uses it first")]
    InUse(String),
    /// The target holds other data.
    #[error(
        "the target is not empty, and no unfinished copy of this source: name an empty one, or another prefix"
    )]
    NotEmpty,
    /// The target is an unfinished copy of another store.
    #[error("the target is an unfinished copy of another store, {0}: finish that one, or name an empty one")]
    OtherCopy(String),
    /// Another copy writes to the same target.
    #[error("another `store copy` has taken over this target")]
    TakenOver,
    /// A row cannot be written to the target.
    #[error("row {key} does not fit into the target: {cause}")]
    Row {
        /// The row's key as text.
        key: String,
        /// The error of the target.
        cause: StoreError,
    },
    /// The comparison found a difference.
    #[error(
        "source and target differ at {0}: something writes to one of them; stop it and run the copy again"
    )]
    Differs(String),
    /// It is unknown whether a commit has numbered events.
    #[error("it is unknown whether the last events were written to the target: run the copy again")]
    Events,
    /// A server or worker used the source during the copy.
    #[error(
        "the source was used while it was copied: stop every node and worker that uses it, and run the copy again"
    )]
    Changed,
}

impl MaybeStoreError for Error {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Error::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// The progress of a copy, readable while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Rows of the source that are in the target.
    pub copied: AtomicU64,
    /// The bytes of these rows.
    pub bytes: AtomicU64,
    /// Rows that were compared.
    pub compared: AtomicU64,
    /// While the copy watches the source: the number of health counters and memberships that must not change.
    pub watched: AtomicU64,
}

impl Progress {
    fn count(&self, rows: usize, bytes: usize) {
        self.copied.fetch_add(rows as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The result of a complete copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Whether the run resumed an unfinished copy.
    pub resumed: bool,
    /// Rows that this run wrote or cleared.
    pub written: u64,
    /// Rows of the store.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// SHA-256 over all rows except the format row. For each row: the length of the key (32 bits, little endian), the key,
    /// the length of the value, the value.
    pub checksum: String,
}

/// A copy from one store to another.
pub struct Copy {
    /// The store to copy.
    pub source: Store,
    /// The source's URL, without secrets.
    pub from: String,
    /// Whether other processes may use the source.
    pub source_is_shared: bool,
    /// The store to copy to.
    pub target: Store,
    /// The progress.
    pub progress: Arc<Progress>,
}

impl Copy {
    /// Copies and compares the rows, and then makes the target usable.
    ///
    /// # Errors
    /// [`Error`]. After any of them, the copy can be run again.
    pub async fn run(&self) -> Result<Report, Error> {
        let keys = Keyspace::default();
        let format = self.source_format(&keys).await?;
        let quiet = quiet::watch(self, &keys).await?;
        let marker = self.marker(&keys).await?;
        let resumed = self.mark(&keys, &marker).await?;
        let marker = marker.to_value();
        let written = self.make_equal(&keys, &marker).await?;
        let report = self.compare(&keys).await?;
        self.number_events(&keys, &marker).await?;
        quiet::check(self, &keys, &quiet).await?;
        self.target
            .transact(|tx| {
                let (keys, format, marker) = (&keys, &format, &marker);
                async move {
                    match tx.get(&keys.format()).await? {
                        Some(found) if found == *marker => Ok(tx.set(keys.format(), format.clone())?),
                        // An earlier attempt, whose commit had an unknown outcome, has written it.
                        Some(found) if found == *format => Ok(()),
                        _ => Err(Error::TakenOver),
                    }
                }
            })
            .await?;
        Ok(Report { resumed, written, ..report })
    }

    /// The source's format row, if this release can copy the source.
    async fn source_format(&self, keys: &Keyspace) -> Result<Bytes, Error> {
        let format = self.source.transact(|tx| async move { tx.get(&keys.format()).await }).await?;
        let format = format.ok_or(Error::NoSource)?;
        match Format::read(&format) {
            Format::Version(FORMAT_VERSION) => Ok(format),
            Format::Version(other) => Err(Error::Format(other.to_string())),
            Format::Copying(copying) => Err(Error::Unfinished(copying.from)),
            Format::Unknown(found) => Err(Error::Format(found)),
        }
    }

    /// The row that replaces the format row in the target until the copy is complete.
    async fn marker(&self, keys: &Keyspace) -> Result<Copying, Error> {
        let uuid = self.source.transact(|tx| async move { tx.get(&keys.server_uuid()).await }).await?;
        let of = uuid.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default();
        let random = self.target.runtime().random();
        Ok(Copying { of, from: self.from.clone(), run: format!("{random:016x}") })
    }

    /// Writes the marker to the target; returns whether the target is an unfinished copy of the same source.
    async fn mark(&self, keys: &Keyspace, marker: &Copying) -> Result<bool, Error> {
        self.target
            .transact(|tx| async move {
                let format = tx.get(&keys.format()).await?;
                let resumed = match format.as_deref().map(Format::read) {
                    None if tx.range(&scan::everything(), 1).await?.is_empty() => false,
                    // The run's own marker is there if an earlier commit had an unknown outcome.
                    Some(Format::Copying(found)) if found.of == marker.of => found.run != marker.run,
                    Some(Format::Copying(found)) => return Err(Error::OtherCopy(found.from)),
                    _ => return Err(Error::NotEmpty),
                };
                tx.set(keys.format(), marker.to_value())?;
                Ok(resumed)
            })
            .await
    }

    /// Makes the target's rows equal to the source's; returns how many rows were written or cleared.
    async fn make_equal(&self, keys: &Keyspace, marker: &Bytes) -> Result<u64, Error> {
        let limits = self.target.limits();
        // The same share as in `Transaction::has_room`. One write is left for the marker, which the commit checks.
        let most_bytes = BATCH_BYTES.min(limits.transaction_bytes / 5 * 2);
        let most_rows = BATCH_ROWS.min(limits.transaction_writes.saturating_sub(1)).max(1);
        let format = keys.format();
        let mut merge = Merge::new(&self.source, &self.target);
        let mut batch = Rows::new();
        let (mut batch_bytes, mut written) = (0, 0);
        let mut in_flight: JoinSet<Result<(), Error>> = JoinSet::new();
        loop {
            let step = merge.next().await?;
            let is_last = step.is_none();
            let (mut row, mut row_bytes) = (None, 0);
            if let Some(Step { key, value, is_same }) = step {
                let bytes = key.len() + value.as_ref().map_or(0, Bytes::len);
                if is_same {
                    self.progress.count(1, bytes);
                } else if key != format {
                    (row, row_bytes) = (Some((key, value)), bytes);
                }
            }
            let is_full = batch.len() == most_rows || batch_bytes + row_bytes > most_bytes;
            if !batch.is_empty() && (is_full || is_last) {
                if in_flight.len() == BATCHES_IN_FLIGHT
                    && let Some(done) = in_flight.join_next().await
                {
                    done.expect("a batch is written without a panic")?;
                }
                let (target, progress) = (self.target.clone(), self.progress.clone());
                let rows = std::mem::take(&mut batch);
                in_flight.spawn(write(target, keys.clone(), marker.clone(), rows, progress));
                batch_bytes = 0;
            }
            if is_last {
                break;
            }
            if let Some(row) = row {
                batch.push(row);
                batch_bytes += row_bytes;
                written += 1;
            }
        }
        while let Some(done) = in_flight.join_next().await {
            done.expect("a batch is written without a panic")?;
        }
        Ok(written)
    }

    /// Reads both stores again, and compares them row by row.
    async fn compare(&self, keys: &Keyspace) -> Result<Report, Error> {
        let format = keys.format();
        let mut merge = Merge::new(&self.source, &self.target);
        let mut digest = Sha256::new();
        let (mut rows, mut bytes) = (0, 0);
        while let Some(step) = merge.next().await? {
            match step {
                Step { key, value: Some(value), is_same: true } => {
                    for part in [&key, &value] {
                        digest.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
                        digest.update(part);
                    }
                    rows += 1;
                    bytes += (key.len() + value.len()) as u64;
                    self.progress.compared.store(rows, Ordering::Relaxed);
                }
                // The target has the marker in place of the format row.
                Step { key, .. } if key == format => {}
                Step { key, .. } => return Err(Error::Differs(key_text(&key))),
            }
        }
        let checksum = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Report { resumed: false, written: 0, rows, bytes, checksum })
    }
}

/// Keys with their new values; `None` clears the row.
type Rows = Vec<(Bytes, Option<Bytes>)>;

/// Writes a batch, if the marker in the target is still that of this run.
async fn write(
    target: Store,
    keys: Keyspace,
    marker: Bytes,
    rows: Rows,
    progress: Arc<Progress>,
) -> Result<(), Error> {
    let (keys, marker, all) = (&keys, &marker, &rows);
    target
        .transact(|tx| async move {
            if tx.get(&keys.format()).await?.as_ref() != Some(marker) {
                return Err(Error::TakenOver);
            }
            for (key, value) in all {
                let written = match value {
                    Some(value) => tx.set(key.clone(), value.clone()),
                    None => tx.clear(key.clone()),
                };
                written.map_err(|cause| Error::Row { key: key_text(key), cause })?;
            }
            Ok(())
        })
        .await?;
    let bytes = rows.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len)).sum();
    progress.count(rows.iter().filter(|(_, value)| value.is_some()).count(), bytes);
    Ok(())
}

#[cfg(test)]
mod tests;
