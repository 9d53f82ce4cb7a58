//! Keeps what the jobs of each tenant log within a bound.
//!
//! *Model.* A sweep adds up the logs of each tenant, from their heads alone. Of a tenant above the bound, it drops logs until the tenant is
//! within it: those first whose last line is the oldest, each as a whole. A log states how many of its lines are gone.
//!
//! *Forces.* A counter per tenant would be exact, but each line would change it, and a cluster would have to sum it up. So a tenant may exceed
//! the bound by what it logs between two sweeps: [`INTERVAL`], or longer where there are very many logs, because a sweep may take no more than
//! a part of the time. One node sweeps: the first by name of those that live.

use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::output::{self, LogSize};
use turnwise_queue::{Error, Keyspace, Result, nodes};
use turnwise_store::Store;

use crate::service::until_stopped;
use crate::{Live, RetentionOptions};

/// The shortest time between two sweeps.
pub const INTERVAL: Duration = Duration::from_secs(20);
/// The pause after a sweep, as a multiple of the time that it took.
const PAUSE_FACTOR: u32 = 20;
/// The number of heads that one read returns, and one transaction reads.
const PAGE: (usize, usize) = (1_000, 20_000);
/// The most logs that one sweep drops. What is left is dropped by the next one, soon.
const MAX_DROPS: usize = 20_000;
/// The most logs that one transaction drops.
const BATCH: usize = 100;

/// Drops the oldest logs of tenants that keep too much of them.
#[derive(Clone)]
pub struct LogBounds {
    /// The store.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// This node's name.
    pub node: String,
    /// Settings.
    pub options: Live<RetentionOptions>,
}

impl LogBounds {
    /// Repeats sweeps until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let runtime = self.store.runtime();
            loop {
                let begun_us = runtime.elapsed_us();
                if let Err(error) = self.sweep().await {
                    tracing::error!(%error, "cannot bound the logs of tenants: tries again later");
                }
                let took_us = runtime.elapsed_us().saturating_sub(begun_us);
                let took = Duration::from_micros(u64::try_from(took_us).unwrap_or(0));
                runtime.sleep(INTERVAL.max(took * PAUSE_FACTOR)).await;
            }
        })
    }

    async fn sweep(&self) -> Result<()> {
        let nodes = nodes::list(&self.store.begin().await?, &self.keys).await?;
        if nodes.iter().any(|other| other.node < self.node) {
            return Ok(());
        }
        let bound = self.options.get().tenant_log_bytes;
        let mut bytes: HashMap<String, u64> = HashMap::new();
        self.each(|log| match bytes.get_mut(&log.tenant) {
            Some(bytes) => *bytes += log.bytes,
            None => _ = bytes.insert(log.tenant, log.bytes),
        })
        .await?;
        bytes.retain(|_, bytes| *bytes > bound);
        if bytes.is_empty() {
            return Ok(());
        }
        // The oldest logs of each of these tenants.
        let most = (MAX_DROPS / bytes.len()).max(1);
        let mut oldest: HashMap<String, BinaryHeap<(i64, String, String, u64)>> = HashMap::new();
        self.each(|log| {
            if bytes.contains_key(&log.tenant) {
                let of_tenant = oldest.entry(log.tenant).or_default();
                of_tenant.push((log.at_us, log.job_type, log.id, log.bytes));
                if of_tenant.len() > most {
                    of_tenant.pop();
                }
            }
        })
        .await?;
        for (tenant, logs) in oldest {
            let mut left = bytes.get(&tenant).copied().unwrap_or(0);
            let mut drops = Vec::new();
            for (at_us, job_type, id, bytes) in logs.into_sorted_vec() {
                if left <= bound {
                    break;
                }
                left = left.saturating_sub(bytes);
                drops.push(LogSize { job_type, id, tenant: tenant.clone(), bytes, at_us });
            }
            tracing::info!(tenant, logs = drops.len(), "drops the oldest logs of a tenant above its bound");
            self.drop_all(&drops).await?;
        }
        Ok(())
    }

    /// Calls `each` with all logs that have lines.
    async fn each(&self, mut each: impl FnMut(LogSize)) -> Result<()> {
        let mut after: Option<(String, String)> = None;
        loop {
            let tx = self.store.begin().await?;
            let from = after.as_ref().map(|(job_type, id)| (job_type.as_str(), id.as_str()));
            after = output::log_sizes(&tx, &self.keys, from, PAGE, &mut each).await?;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Drops these logs, as many in a transaction as fit. One that has changed meanwhile stays.
    async fn drop_all(&self, drops: &[LogSize]) -> Result<()> {
        let (keys, mut rest) = (&self.keys, drops);
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(BATCH)];
            let dropped = self
                .store
                .transact(|tx| async move {
                    for (n, log) in batch.iter().enumerate() {
                        if n > 0 && !tx.has_room() {
                            return Ok::<_, Error>(n);
                        }
                        output::drop_lines(&tx, keys, log).await?;
                    }
                    Ok(batch.len())
                })
                .await?;
            rest = &rest[dropped..];
        }
        Ok(())
    }
}
