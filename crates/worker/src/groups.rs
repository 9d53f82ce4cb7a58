//! Ends groups: adds the jobs with which they call back, after the last of their jobs has ended.
//!
//! *Model.* Each end of a job of a group changes the group's mark ([`turnwise_queue::groups`]). Every server watches the marks together, and looks at the groups whose
//! marks are others than at its last look. A look costs two reads, however many jobs the group has. No server leads: two that end the same group conflict, and the
//! second one finds that it has ended. A server that starts looks at all groups that have not ended.
//!
//! *Pauses.* While jobs of groups end all the time, a server looks at most every [`PAUSE`], and spends at most a tenth of its time on it, unless a look is
//! very long. So a group ends at most about as long after its last job, and at most [`LONGEST_PAUSE`] after an outage of the store.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use turnwise_queue::groups::{self, Marked, Settled};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Isolation, Store, Transaction, Watch};

use crate::service::{keep_up, until_stopped};

/// The shortest pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest one. A look that waited for the store took as long as that was away.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The pause is at least so many times as long as the look before it.
const PAUSES: u32 = 9;
/// The maximum number of marks that one read returns.
const PAGE: usize = 1_000;
/// The maximum number of groups that one transaction removes.
const BATCH: usize = 50;

/// Ends and removes groups.
#[derive(Clone)]
pub struct Groups {
    /// The store.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
}

/// The marks of the last look, by tenant and name.
type Seen = HashMap<(String, String), Marked>;

impl Groups {
    /// Ends and removes groups until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let seen = Mutex::new(Seen::new());
            keep_up(&self.store, "cannot end groups", || self.pass(&seen)).await;
        })
    }

    /// Looks at the groups whose marks have changed, and removes those whose time is over. Returns a watch that ends when there may be more.
    async fn pass(&self, seen: &Mutex<Seen>) -> Result<Watch> {
        let (keys, runtime) = (&self.keys, self.store.runtime().clone());
        let begun_us = runtime.elapsed_us();
        let wake = &keys.group_wake();
        // The stamp is read first: a change after this read changes it.
        let stamp = self.store.transact(|tx| async move { tx.get_with(wake, Isolation::Snapshot).await });
        let stamp = stamp.await?;
        self.look(&mut *seen.lock().await).await?;
        let next_us = self.prune(runtime.now_us()).await?;
        let changed = self.store.watch(wake.clone(), stamp).await?;
        let took_us = u64::try_from(runtime.elapsed_us().saturating_sub(begun_us)).unwrap_or(0);
        let pause = (Duration::from_micros(took_us) * PAUSES).clamp(PAUSE, LONGEST_PAUSE);
        Ok(Box::pin(async move {
            let due = async {
                match next_us {
                    Some(next_us) => runtime.sleep_until(next_us).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = due => {}
            }
            runtime.sleep(pause).await;
        }))
    }

    async fn look(&self, seen: &mut Seen) -> Result<()> {
        let keys = &self.keys;
        let (mut now, mut last, mut failed) = (Seen::new(), None, None);
        loop {
            let after: Option<&Marked> = last.as_ref();
            let read = |tx: Transaction| async move { groups::marked(&tx, keys, after, PAGE).await };
            let marked = self.store.transact(read).await?;
            for mark in &marked {
                let of = (mark.tenant.clone(), mark.name.clone());
                if seen.get(&of) != Some(mark)
                    && let Err(error) = self.settle(mark).await
                {
                    failed = Some(error);
                    continue;
                }
                now.insert(of, mark.clone());
            }
            if marked.len() < PAGE {
                break;
            }
            last = marked.into_iter().next_back();
        }
        *seen = now;
        failed.map_or(Ok(()), Err)
    }

    async fn settle(&self, Marked { tenant, name, .. }: &Marked) -> Result<()> {
        let keys = &self.keys;
        let now_us = self.store.runtime().now_us();
        let settle = |tx: Transaction| async move { groups::settle(&tx, keys, tenant, name, now_us).await };
        let Settled { called, ended } = self.store.transact(settle).await?;
        for called in called {
            if let Some(problem) = called.refused {
                tracing::warn!(
                    tenant,
                    group = name,
                    problem,
                    "cannot add the job with which a group calls back"
                );
            }
        }
        if ended.is_some() {
            tracing::debug!(tenant, group = name, "a group has ended");
        }
        Ok(())
    }

    /// Removes the groups whose time is over. Returns when the next one is removed.
    async fn prune(&self, now_us: i64) -> Result<Option<i64>> {
        let keys = &self.keys;
        loop {
            let read = |tx: Transaction| async move { groups::next_removal(&tx, keys).await };
            let next_us = self.store.transact(read).await?;
            if next_us.is_none_or(|next_us| next_us > now_us) {
                return Ok(next_us);
            }
            let prune = |tx: Transaction| async move { groups::prune(&tx, keys, now_us, BATCH).await };
            self.store.transact(prune).await?;
        }
    }
}
