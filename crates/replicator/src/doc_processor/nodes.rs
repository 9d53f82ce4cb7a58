//! On which node a worker is.

use std::collections::HashMap;

use turnwise_queue::{Job, Keyspace, workers};
use turnwise_store::Transaction;

use crate::handler::JOB_TYPE;

/// The nodes of the workers that one answer names, each read once. It is about one moment or a few: not to be kept.
#[derive(Debug, Default)]
pub struct Nodes(HashMap<String, Option<String>>);

impl Nodes {
    /// The node that a replication worker is on; `None` for one that is being removed.
    ///
    /// # Errors
    /// The store's.
    pub async fn of_worker(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        worker: &str,
    ) -> turnwise_queue::Result<Option<String>> {
        if let Some(node) = self.0.get(worker) {
            return Ok(node.clone());
        }
        let node = workers::get(tx, keys, JOB_TYPE, worker).await?.map(|worker| worker.node);
        self.0.insert(worker.to_owned(), node.clone());
        Ok(node)
    }

    /// The node that a replication runs on; `None` while it does not run: any node may be next.
    ///
    /// # Errors
    /// The store's.
    pub async fn of_job(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        job: &Job,
    ) -> turnwise_queue::Result<Option<String>> {
        match job.claim() {
            Some(claim) if job.state().is_claimed() => self.of_worker(tx, keys, &claim.worker).await,
            _ => Ok(None),
        }
    }
}
