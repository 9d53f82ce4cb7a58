//! What the parts of a server ask about jobs, tenants and types: what explains them, by the rules of now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use serde_json::value::RawValue;
use turnwise_explain::types::{self, OfType, Wanted};
use turnwise_explain::{Reader, Rules, Viewer, types_of};
use turnwise_queue::Result;
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_replicator::doc_processor::Summary;
use turnwise_store::Transaction;

use crate::Shared;
use crate::access::Caller;

impl Shared {
    /// The rules by which workers decide now.
    pub fn rules(&self) -> Rules {
        let config = self.config.get();
        Rules {
            fair: BTreeMap::from([(REPLICATION, config.replication_rules())]),
            fair_others: config.jobs.fair(),
            queue: self.external.tunables().get().queue.clone(),
            catalogue: Arc::clone(&self.catalogue),
            max_attempts: Arc::new(move |job_type| config.jobs.max_attempts(job_type)),
            document,
        }
    }

    /// Reads in this transaction.
    pub fn reader<'a>(&'a self, tx: &'a Transaction, rules: &'a Rules) -> Reader<'a> {
        Reader { store: &self.store, tx, keys: &self.keys, rules }
    }

    /// The first hundred types that have jobs or workers.
    #[boxed]
    pub async fn types(&self) -> Result<Vec<String>> {
        let (tx, rules) = (self.store.begin().await?, self.rules());
        Ok(types_of(&self.reader(&tx, &rules), None, None).await?.0)
    }

    /// The state of a type. A transaction each: one for all types could become too old.
    #[boxed]
    pub async fn of_type(&self, job_type: &str) -> Result<OfType> {
        let (tx, rules) = (self.store.begin().await?, self.rules());
        types::of_type(&self.reader(&tx, &rules), &self.demand, job_type).await
    }

    /// The slots within which what could run now has started within the target.
    #[boxed]
    pub async fn wanted(&self, job_type: &str, target: Duration) -> Result<Wanted> {
        let (tx, rules) = (self.store.begin().await?, self.rules());
        types::wanted(&self.reader(&tx, &rules), &self.demand, job_type, target).await
    }
}

impl Viewer for Caller {
    fn operates(&self) -> bool {
        Caller::operates(self)
    }

    fn reads(&self, tenant: &str) -> bool {
        Caller::reads(self, tenant)
    }
}

/// The document of a replication.
fn document(job_type: &str, summary: &RawValue) -> Option<String> {
    let summary = Some(summary).filter(|_| job_type == REPLICATION).and_then(Summary::parse)?;
    summary.document().map(|(_, id)| id.to_owned())
}
