//! The latest time that any node has used: a high-water mark, so that time never goes back for the jobs of a store.
//!
//! *Model.* Rows are sorted by times: which job was added first, which job is due. Each process uses the clock of its store
//! ([`turnwise_store::Clock`]), which never goes back. The process compares the clock with the mark at its start and every
//! few seconds after that. A later time becomes the mark *before* any process uses it. So a process may use an earlier time
//! than another process by at most the age of its last comparison plus [`STEP_US`]. This holds on every machine and after
//! every restart.
//!
//! *Forces.* Adding a job costs nothing: it neither reads nor writes the mark, so that adds do not conflict. Commit versions
//! would give an exact order. However, they would not survive a copy to another engine, and due times would still need a
//! clock.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use turnwise_store::Store;

use crate::encoding::encode;
use crate::{Error, Keyspace, Result, reads};

/// The first node that finds the mark older than this writes it: all nodes together write it once per comparison interval.
const STEP_US: i64 = 1_000_000;

/// The approximate time between two comparisons.
pub const COMPARE_INTERVAL: Duration = Duration::from_secs(5);

/// Compares the clock of this process with the mark, and the mark with the machine's clock.
///
/// # Errors
/// Those of the store. The clock then continues as before.
#[boxed]
pub async fn compare(store: &Store, keys: &Keyspace) -> Result<()> {
    let clock = store.clock();
    let agreed_us = store
        .transact(|tx| async move {
            let mark_us: Option<i64> = reads::value(&tx, &keys.clock(), "clock").await?;
            let latest_us = clock.wanted_us().max(mark_us.unwrap_or(i64::MIN));
            if mark_us.is_none_or(|mark_us| latest_us.saturating_sub(mark_us) >= STEP_US) {
                tx.set(keys.clock(), encode(&latest_us))?;
            }
            Ok::<_, Error>(latest_us)
        })
        .await?;
    clock.compare(agreed_us);
    Ok(())
}
