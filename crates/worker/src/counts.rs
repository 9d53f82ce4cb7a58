//! Keeps the rows of counts few ([`turnwise_queue::counts::fold`]).

use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::counts::{Cursor, Family, Folded, fold};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Error, Store};

use crate::service::until_stopped;

/// The pause after a pass that found little to do.
const INTERVAL: Duration = Duration::from_secs(10);
/// The shortest pause, while each commit appends a row.
const SHORTEST: Duration = Duration::from_millis(200);
/// A pass that replaced more rows than this is followed by another one soon.
const MANY: usize = 1_000;
/// The most transactions of a pass.
const MAX_TRANSACTIONS: usize = 1_000;

/// Replaces the rows of counts that commits append, on engines where they do, and removes those that count nothing, until it is
/// stopped.
pub fn fold_counts((store, keys): (Store, Keyspace), stop: CancellationToken) -> BoxFuture<'static, ()> {
    until_stopped(stop, async move {
        let (mut pause, mut jobs, mut groups) = (INTERVAL, None, None);
        loop {
            store.runtime().sleep(pause).await;
            let passed = match pass(&store, &keys, Family::Jobs, &mut jobs).await {
                Ok(rows) => pass(&store, &keys, Family::Groups, &mut groups).await.map(|more| rows + more),
                failed => failed,
            };
            pause = match passed {
                Ok(rows) if rows > MANY || jobs.is_some() || groups.is_some() => (pause / 2).max(SHORTEST),
                Ok(_) => (pause * 2).min(INTERVAL),
                Err(error) => {
                    tracing::error!(%error, "cannot replace rows of counts: tries again later");
                    INTERVAL
                }
            };
        }
    })
}

/// Goes over all rows once, or as far as [`MAX_TRANSACTIONS`] reach. The next pass continues there. Returns how many rows were
/// replaced or removed.
async fn pass(store: &Store, keys: &Keyspace, family: Family, after: &mut Option<Cursor>) -> Result<usize> {
    let mut rows = 0;
    for _ in 0..MAX_TRANSACTIONS {
        let tx = store.begin().await?;
        let folded = fold(&tx, keys, family, after.as_ref()).await?;
        match tx.commit().await {
            Ok(_) => rows += folded.rows,
            // Another node has done the same work, or a row that counted nothing counts again.
            Err(Error::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
        let Folded { next, .. } = folded;
        *after = next;
        if after.is_none() {
            break;
        }
    }
    Ok(rows)
}
