//! The bound of the waiting jobs of a tenant, when its schedules fire.
//!
//! The counts are those of a snapshot of their own: a transaction cannot read the sums that it changes. The fires of one transaction are added to
//! them, and what other transactions add at the same moment is not seen. So they conflict over nothing.

use std::collections::BTreeMap;

use turnwise_store::Transaction;

use crate::counts;
use crate::error::Result;
use crate::job::Then;
use crate::jobs;
use crate::keyspace::Keyspace;
use crate::spec::NewJob;
use crate::unique;

/// How many waiting jobs of a type a tenant may have, and how many it has.
pub struct Waiting {
    snapshot: Transaction,
    most: u64,
    /// By job type and tenant.
    known: BTreeMap<(String, String), u64>,
}

impl Waiting {
    /// At most so many, counted in a transaction that writes nothing.
    pub fn new(snapshot: Transaction, most: u64) -> Self {
        Waiting { snapshot, most, known: BTreeMap::new() }
    }

    /// Whether a job would be one too many. One that is there, or whose unique key another job has, adds none.
    pub(super) async fn refuses(
        &mut self,
        tx: &Transaction,
        keys: &Keyspace,
        new: &NewJob,
        now_us: i64,
    ) -> Result<bool> {
        let of = (new.job_type.clone(), new.tenant.clone());
        let waiting = match self.known.get(&of) {
            Some(waiting) => *waiting,
            None => {
                let counts = counts::of_tenant(&self.snapshot, keys, &of.0, &of.1).await?;
                *self.known.entry(of).or_insert(counts.not_started())
            }
        };
        if waiting < self.most {
            return Ok(false);
        }
        let old = jobs::get(tx, keys, &new.job_type, &new.id).await?;
        if old.as_ref().is_some_and(|old| old.then() != Then::Remove) {
            return Ok(false);
        }
        Ok(unique::key_of_new(tx, keys, new, old.as_ref(), now_us).await?.is_ok())
    }

    /// Counts a job that was added.
    pub(super) fn added(&mut self, new: &NewJob) {
        let of = (new.job_type.clone(), new.tenant.clone());
        self.known.entry(of).and_modify(|waiting| *waiting += 1);
    }
}
