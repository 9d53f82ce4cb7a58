//! Events that were committed and have no number yet: the copy numbers them in the target.
//!
//! Their rows are sorted by versionstamps of the source, which have no meaning in another store. So they are not copied. A node of the source
//! would number them at its start, and a node of the target cannot. The source is not changed: its disk may be full.

use bytes::Bytes;
use turnwise_queue::events::{self, Ordered};
use turnwise_queue::{Error as QueueError, Keyspace};
use turnwise_store::{Appended, Error as StoreError};

use super::{Copy, Error};

impl Copy {
    /// Numbers the source's events that have no number, after the last one of the target, whose other rows are those of the source.
    pub(super) async fn number_events(&self, keys: &Keyspace, marker: &Bytes) -> Result<(), Error> {
        let tx = self.source.begin().await?;
        // What is left after the end of a recording belongs to nobody.
        let is_recorded = events::recording(&tx, keys).await.map_err(of_store)?.is_on();
        let head = events::head(&tx, keys).await.map_err(of_store)?;
        drop(tx);
        if !is_recorded {
            return Ok(());
        }
        let (mut next, mut last): (u64, Option<Appended>) = (head.next, None);
        loop {
            let tx = self.source.begin().await?;
            let rows = events::collect_after(&tx, keys, last.as_ref()).await.map_err(of_store)?;
            drop(tx);
            let Some(latest) = rows.last().cloned() else { return Ok(()) };
            let mut rest = &rows[..];
            while !rest.is_empty() {
                let (rows, expected) = (rest, next);
                let node = &head.node;
                let number = self.target.transact(|tx| async move {
                    if tx.get(&keys.format()).await?.as_ref() != Some(marker) {
                        return Err(Error::TakenOver);
                    }
                    events::order(&tx, keys, rows, expected, node).await.map_err(of_store)
                });
                // After a commit with an unknown outcome, a repetition finds another head.
                let Ordered::Moved { rows, next: after } = number.await? else { return Err(Error::Events) };
                (rest, next) = (&rest[rows..], after);
            }
            last = Some(latest);
        }
    }
}

fn of_store(error: QueueError) -> Error {
    Error::Store(match error {
        QueueError::Store(error) => error,
        error => StoreError::Corrupt(error.to_string()),
    })
}
