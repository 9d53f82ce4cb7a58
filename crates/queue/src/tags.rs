//! Tags: words by which jobs are found.
//!
//! Each tag of a job is a row `("tags", type, tag, tenant, id)`. It says nothing of the job's place, so it is written when the job is
//! added, and cleared when the job is removed. In between, only adding the job again with other tags or another tenant changes it: a job
//! without tags pays nothing, and one with tags pays nothing for its transitions. Lists and searches read the records of a
//! tag's jobs where these are few ([`crate::listing`], [`crate::selection`]).

use std::collections::BTreeSet;

use bytes::Bytes;
use turnwise_store::Transaction;

pub use crate::names::{MAX_TAG_BYTES, check_tag};
use crate::spec::JobSpec;
pub use crate::spec::MAX_TAGS;
use crate::{Job, Keyspace, Result};

impl Job {
    /// The keys of the rows of its tags.
    pub fn tag_rows(&self, keys: &Keyspace) -> BTreeSet<Bytes> {
        each(keys, self, &self.spec).collect()
    }
}

/// The keys of the rows of a job's tags, with another spec.
fn each(keys: &Keyspace, job: &Job, spec: &JobSpec) -> impl Iterator<Item = Bytes> {
    spec.all_tags().map(|tag| keys.tag_entry(&job.job_type, &tag, &spec.tenant, &job.id))
}

/// Writes the rows of a new job.
pub(crate) fn write(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    each(keys, job, &job.spec).try_for_each(|row| Ok(tx.set(row, Bytes::new())?))
}

/// Changes the rows of a job to those of another spec.
pub(crate) fn change(tx: &Transaction, keys: &Keyspace, job: &Job, spec: &JobSpec) -> Result<()> {
    let (old, new): (BTreeSet<Bytes>, BTreeSet<Bytes>) =
        (job.tag_rows(keys), each(keys, job, spec).collect());
    for row in old.difference(&new) {
        tx.clear(row.clone())?;
    }
    for row in new.difference(&old) {
        tx.set(row.clone(), Bytes::new())?;
    }
    Ok(())
}

/// Clears the rows of a job that is removed.
pub(crate) fn clear(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    each(keys, job, &job.spec).try_for_each(|row| Ok(tx.clear(row)?))
}
