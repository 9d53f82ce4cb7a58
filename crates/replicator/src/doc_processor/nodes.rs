//! Finds the node of a worker.

use std::collections::HashMap;

use turnwise_queue::{Job, Keyspace, Result, workers};
use turnwise_store::Transaction;

use crate::spec::JOB_TYPE;

/// The nodes of the workers in one response, each read once. They may soon be outdated, so do not keep them.
#[derive(Debug, Default)]
pub struct Nodes(HashMap<String, Option<String>>);

impl Nodes {
    /// The node of a replication worker; `None` for a worker that is being removed.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn of_worker(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        job_type: &str,
        worker: &str,
    ) -> Result<Option<String>> {
        if let Some(node) = self.0.get(worker) {
            return Ok(node.clone());
        }
        let node = workers::get(tx, keys, job_type, worker).await?.map(|worker| worker.node);
        self.0.insert(worker.to_owned(), node.clone());
        Ok(node)
    }

    /// The node that runs a replication; `None` while it does not run, because any node may run it next.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn of_job(&mut self, tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Option<String>> {
        match job.claim() {
            Some(claim) if job.state().is_claimed() => {
                self.of_worker(tx, keys, JOB_TYPE, &claim.worker).await
            }
            _ => Ok(None),
        }
    }
}
