//! Retries documents whose replication ids could not be computed, before their backoff is over.

use turnwise_queue::{Keyspace, Result};
use turnwise_store::Store;
use turnwise_store::key::successor;

use super::entries;
use super::schedule::{Row, RowState};
use crate::documents::DocTx;

/// Documents that one transaction reads.
const BATCH: usize = 100;

/// Ends the backoff of documents in state `error`, in one `_replicator` database or in all. Reads at most `limit`
/// entries, rounded up to whole batches. Returns how many documents it has retried.
///
/// # Errors
/// Errors of the store. The documents that were retried before the error stay so.
pub async fn retry_errors(
    store: &Store,
    keys: &Keyspace,
    wanted: impl Fn(&str) -> bool,
    limit: usize,
) -> Result<usize> {
    let wanted = &wanted;
    let now_us = store.runtime().now_us();
    // Due entries come before this key, including those that became due here.
    let mut from = keys.unresolved_entry(now_us.saturating_add(1), "", "");
    let mut retried = 0;
    for _ in 0..limit.div_ceil(BATCH) {
        let begin = &from;
        let batch = store.transact(|tx| async move {
            let index = (begin.clone(), keys.unresolved().1);
            let (mut count, mut last) = (0, None);
            for entry in entries::unresolved(&tx, keys, index, BATCH).await? {
                if last.is_some() && !tx.has_room() {
                    break;
                }
                if wanted(&entry.db) {
                    count += usize::from(retry(entry.doc(&tx, keys), entry.due_us, now_us).await?);
                }
                last = Some(entry);
            }
            Ok::<_, turnwise_queue::Error>((count, last))
        });
        let (count, last) = batch.await?;
        retried += count;
        let Some(last) = last else { break };
        from = successor(&keys.unresolved_entry(last.due_us, &last.db, &last.id));
    }
    Ok(retried)
}

async fn retry(doc: DocTx<'_>, due_us: i64, now_us: i64) -> Result<bool> {
    match doc.row().await? {
        Some(row) if row.state == RowState::Error && row.due_us == Some(due_us) => {
            doc.tx.clear(doc.keys.unresolved_entry(due_us, doc.db, doc.id))?;
            doc.write_row(&Row { due_us: Some(now_us), error_count: 0, ..row })?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
