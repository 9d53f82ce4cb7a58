//! What an explanation is read from, and for whom.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use turnwise_catalogue::Catalogue;
use turnwise_queue::{Job, Keyspace, Result, types};
use turnwise_store::{Store, Transaction};
use turnwise_worker::{FairRules, QueueRules};

/// A setting that depends on the type.
type OfType = Arc<dyn Fn(&str) -> Option<u32> + Send + Sync>;

/// The rules by which workers decide.
#[derive(Clone)]
pub struct Rules {
    /// How jobs of some types share their slots.
    pub fair: BTreeMap<&'static str, FairRules>,
    /// How jobs of all other types share theirs.
    pub fair_others: FairRules,
    /// How many jobs a pass compares, and how locks weigh.
    pub queue: Arc<QueueRules>,
    /// What derives the locks of jobs that declare none.
    pub catalogue: Arc<Catalogue>,
    /// The attempts of a job that states none, by its type; `None` is without end.
    pub max_attempts: OfType,
    /// Names the document that a job came from, by the job's type and summary.
    pub document: fn(&str, &RawValue) -> Option<String>,
}

impl Rules {
    pub(crate) fn fair(&self, job_type: &str) -> &FairRules {
        self.fair.get(job_type).unwrap_or(&self.fair_others)
    }
}

/// What an explanation is read from.
pub struct Reader<'a> {
    /// The store of the transaction.
    pub store: &'a Store,
    /// The transaction: all values are from its snapshot.
    pub tx: &'a Transaction,
    /// The store's keys.
    pub keys: &'a Keyspace,
    /// The rules.
    pub rules: &'a Rules,
}

impl Reader<'_> {
    /// The time of the store's clock, in µs since 1970.
    /// The attempts that a job has, and who states them; `None` is without end.
    pub(crate) async fn max_attempts(&self, job: &Job) -> Result<(Option<u32>, &'static str)> {
        let stated = types::stated(self.tx, self.keys, &job.job_type).await?;
        let of_type = stated.and_then(|stated| stated.max_attempts(job.task.as_deref()));
        let settings = (self.rules.max_attempts)(&job.job_type);
        let source = match (job.spec.max_attempts, of_type) {
            (Some(_), _) => "the job",
            (None, Some((_, source))) => source,
            (None, None) => "the server's settings",
        };
        Ok((job.attempts_in_all(of_type.map(|(most, _)| most).or(settings)), source))
    }

    pub(crate) fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }
}

/// Who reads an explanation.
pub trait Viewer: Sync {
    /// Whether it may know about all tenants.
    fn operates(&self) -> bool;
    /// Whether it may read the jobs of a tenant.
    fn reads(&self, tenant: &str) -> bool;
}
