//! The store as one process reaches it, with all the faults that can happen between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::sleep;
use turnwise_store::{
    Changes, Engine, Error, KeyValue, Limits, RangeRead, Result, Snapshot, Versionstamp, Watch,
};

use crate::ledger::Op;
use crate::link::{EARLY_WATCH_MS, LATE_MS, Link, TIMEOUT_MS};
use crate::store::{SimStore, VersionLease};

/// The process that made a commit.
#[derive(Clone)]
pub struct Writer {
    /// The process's link, or `None` in tests of the engine alone.
    pub link: Option<Arc<Link>>,
    /// The operation of the client, if a client made the commit.
    pub op: Option<Op>,
    /// Whether the process has already learned that the outcome is unknown.
    pub late: bool,
}

/// A process's handle of the store.
pub struct SimEngine {
    store: Arc<SimStore<Writer>>,
    link: Option<Arc<Link>>,
    id: u64,
}

impl SimEngine {
    /// A handle. It has no faults without a link.
    pub fn new(store: Arc<SimStore<Writer>>, link: Option<Arc<Link>>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(SimEngine { store, link, id: NEXT.fetch_add(1, Relaxed) })
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        self.store.close(self.id);
    }
}

/// Takes a request to the store.
async fn request(link: Option<&Arc<Link>>) -> Result<()> {
    let Some(link) = link else { return Ok(()) };
    link.core.request().await;
    link.gate().await;
    link.check_connection().await?;
    link.travel().await;
    Ok(())
}

/// Takes a response to the process.
async fn answer(link: Option<&Arc<Link>>) {
    let Some(link) = link else { return };
    link.travel().await;
    link.gate().await;
}

#[async_trait]
impl Engine for SimEngine {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        request(self.link.as_ref()).await?;
        let lease = Arc::new(self.store.lease());
        answer(self.link.as_ref()).await;
        Ok(Arc::new(SimSnapshot { lease, link: self.link.clone() }))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        request(self.link.as_ref()).await?;
        let waiting = self.store.watch(self.id, key, seen);
        let link = self.link.clone();
        answer(link.as_ref()).await;
        let early = link.as_ref().filter(|link| link.goes_wrong(link.rates.early_watch));
        let early = early.map(|link| link.rng.ms(0, EARLY_WATCH_MS));
        Ok(Box::pin(async move {
            match early {
                Some(early) => tokio::select! {
                    biased;
                    () = waiting.changed() => {}
                    () = sleep(early) => {}
                },
                None => waiting.changed().await,
            }
            answer(link.as_ref()).await;
        }))
    }
}

struct SimSnapshot {
    lease: Arc<VersionLease<Writer>>,
    link: Option<Arc<Link>>,
}

#[async_trait]
impl Snapshot for SimSnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        request(self.link.as_ref()).await?;
        let value = self.lease.get(key)?;
        answer(self.link.as_ref()).await;
        Ok(value)
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        request(self.link.as_ref()).await?;
        let rows = self.lease.range(read)?;
        answer(self.link.as_ref()).await;
        Ok(rows)
    }

    fn is_remote(&self) -> bool {
        self.link.is_some()
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let Some(link) = &self.link else {
            return self.lease.commit(&changes, &Writer { link: None, op: None, late: false });
        };
        link.core.request().await;
        link.gate().await;
        link.check_connection().await?;
        let result = self.commit_over(link, changes).await;
        answer(Some(link)).await;
        match &result {
            Err(Error::Conflict) => link.core.count(|stats| stats.conflicts += 1),
            Err(Error::UnknownOutcome(_)) => link.core.count(|stats| stats.unknown += 1),
            Err(error) if error.is_too_much() => {
                link.core
                    .violated("a commit has no more parts than its transaction counts", error.to_string());
            }
            _ => {}
        }
        if let Err(error) = &result {
            link.core.note(link.site, "is told", error.to_string());
        }
        result
    }
}

impl SimSnapshot {
    async fn commit_over(&self, link: &Arc<Link>, changes: Changes) -> Result<Versionstamp> {
        let unknown = || Err(Error::UnknownOutcome("the connection broke".into()));
        let writer = Writer { link: Some(link.clone()), op: link.op(), late: false };
        if link.goes_wrong(link.rates.conflict) {
            return Err(Error::Conflict);
        }
        if link.goes_wrong(link.rates.unknown) {
            if link.rng.chance(link.rates.late) {
                // The commit is still in flight, and later operations of its process may overtake it.
                let (lease, delay) = (self.lease.clone(), link.rng.ms(0, LATE_MS));
                let writer = Writer { late: true, ..writer };
                link.core.disturb(delay);
                tokio::spawn(async move {
                    sleep(delay).await;
                    let _ = lease.commit(&changes, &writer);
                });
            } else if link.rng.chance(700) {
                // The commit took effect. Otherwise, it never arrived.
                let _ = self.lease.commit(&changes, &writer);
            }
            // Some connections break immediately, others only after a timeout.
            if link.rng.chance(300) {
                sleep(link.rng.ms(0, TIMEOUT_MS)).await;
            }
            return unknown();
        }
        let Some(latency) = link.latency() else { return self.lease.commit(&changes, &writer) };
        // The store handles what was sent, even if its sender is gone.
        let (lease, (tell, told)) = (self.lease.clone(), oneshot::channel());
        tokio::spawn(async move {
            sleep(latency).await;
            let _ = tell.send(lease.commit(&changes, &writer));
        });
        told.await.unwrap_or_else(|_| unknown())
    }
}
