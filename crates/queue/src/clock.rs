//! The latest time that any node has gone by: a high-water mark, so that time never goes back for the jobs of a store.
//!
//! *Model.* Rows are sorted by times: who was added before whom, who is due. Each process goes by the clock of its store
//! ([`turnwise_store::Clock`]), which never goes back, and compares it with the mark when it starts and every few seconds after that. What
//! is later becomes the mark *before* anybody goes by it. So no process, on whichever machine and after whichever restart, goes by a time
//! that is earlier than another one's by more than its last comparison is old, and [`STEP_US`].
//!
//! *Forces.* Adding a job costs nothing for that: it neither reads nor writes the mark, so that those who add do not conflict. Commit
//! versions would order exactly, but not survive a copy to another engine, and they are no times: what is due would need one nevertheless.

use std::time::Duration;

use turnwise_store::Store;

use crate::rows::{decode, encode};
use crate::{Error, Keyspace, Result};

/// The mark is written when it is older than this, by whoever is first: all nodes together write it once in a comparison's interval.
const STEP_US: i64 = 1_000_000;

/// Between two comparisons, about.
pub const COMPARE_INTERVAL: Duration = Duration::from_secs(5);

/// Compares the clock of this process with the mark, and the mark with the machine's clock.
///
/// # Errors
/// Those of the store. The clock goes on as before.
pub async fn compare(store: &Store, keys: &Keyspace) -> Result<()> {
    let clock = store.clock();
    let agreed_us = store
        .transact(|tx| async move {
            let mark_us: Option<i64> = match tx.get(&keys.clock()).await? {
                Some(value) => Some(decode("clock", &value)?),
                None => None,
            };
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
