//! Retries documents whose replication ids could not be computed, before their backoff is over.

use turnwise_queue::Keyspace;
use turnwise_store::{Isolation, RangeRead, Store, Transaction};

use super::schedule::{Row, RowState, read_row, write_row};
use turnwise_queue::Result;

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
            let read =
                RangeRead { begin: begin.clone(), end: keys.unresolved().1, limit: BATCH, reverse: false };
            let rows = tx.range_with(read, Isolation::Snapshot).await?;
            let (mut count, mut last) = (0, None);
            for (key, _) in &rows {
                let (due_us, db_of, id) = keys.parse_unresolved(key)?;
                if last.is_some() && !tx.has_room() {
                    break;
                }
                last = Some(key.clone());
                if wanted(&db_of) {
                    count += usize::from(retry(&tx, keys, due_us, &db_of, &id, now_us).await?);
                }
            }
            Ok::<_, turnwise_queue::Error>((count, last, rows.is_empty()))
        });
        let (count, last, empty) = batch.await?;
        retried += count;
        match last {
            Some(last) if !empty => from = turnwise_store::key::successor(&last),
            _ => break,
        }
    }
    Ok(retried)
}

async fn retry(
    tx: &Transaction,
    keys: &Keyspace,
    due_us: i64,
    db: &str,
    id: &str,
    now_us: i64,
) -> Result<bool> {
    match read_row(tx, keys, db, id).await? {
        Some(row) if row.state == RowState::Error && row.due_us == Some(due_us) => {
            tx.clear(keys.unresolved_entry(due_us, db, id))?;
            let row = Row { due_us: Some(now_us), error_count: 0, ..row };
            write_row(tx, keys, db, id, &row)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
