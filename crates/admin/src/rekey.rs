//! Writes every row that is sealed again, so that it is sealed with the first key.
//!
//! Servers may run meanwhile: each transaction reads the rows that it writes, so it conflicts with their changes, and is
//! repeated. A run that is interrupted has sealed a part of the rows, and another one does the rest.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use turnwise_queue::Keyspace;
use turnwise_queue::sealing::SEALED_FAMILIES;
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Result, Store};

/// The most rows of one transaction; fewer if it has no room for them.
const BATCH: usize = 40;

/// Seals all rows of a store again. Returns their number; `progress` counts them meanwhile.
///
/// # Errors
/// The store's. A part of the rows is sealed again.
pub async fn rekey(store: &Store, progress: &AtomicU64) -> Result<u64> {
    let keys = &Keyspace::default();
    for family in SEALED_FAMILIES {
        let (mut begin, end) = keys.family_range(family);
        loop {
            let (from, end) = (&begin, &end);
            let batch = store.transact(|tx| async move {
                let read = RangeRead { begin: from.clone(), end: end.clone(), limit: BATCH, reverse: false };
                let rows = tx.range_with(read, Isolation::Snapshot).await?;
                let (mut count, mut last) = (0, None);
                for (key, _) in &rows {
                    if count > 0 && !tx.has_room() {
                        break;
                    }
                    if let Some(value) = tx.get(key).await? {
                        tx.set(key.clone(), value)?;
                    }
                    (count, last) = (count + 1, Some(key.clone()));
                }
                Ok::<_, turnwise_store::Error>((count, last))
            });
            let (count, last) = batch.await?;
            progress.fetch_add(count, Relaxed);
            match last {
                Some(last) => begin = successor(&last),
                None => break,
            }
        }
    }
    // From now on the other keys are not needed.
    store.transact(|tx| async move { tx.set(keys.sealed(), "true".into()) }).await?;
    Ok(progress.load(Relaxed))
}
