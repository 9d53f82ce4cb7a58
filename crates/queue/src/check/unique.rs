//! Invariants of the keys whose period has an end. Those of jobs that hold keys are with the job's rows.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Finding, Invariant, JobKey, Row};
use crate::Keyspace;
use crate::unique_rows::UniqueRow;

/// The job that holds a key until it gives it up, by the key's row; `None` for a period.
pub fn unique_holder(value: &[u8]) -> Option<JobKey> {
    let row: UniqueRow = serde_json::from_slice(value).ok()?;
    row.until_us.is_none().then_some((row.job_type, row.id))
}

/// The end of a key's period, by the key's row.
pub fn unique_end(value: &[u8]) -> Option<i64> {
    serde_json::from_slice::<UniqueRow>(value).ok()?.until_us
}

/// The keys of periods: by hash, the end that the key's row states, and the ends in the index.
#[derive(Debug, Default)]
pub struct UniqueTally(BTreeMap<String, (Option<i64>, BTreeSet<i64>)>);

impl UniqueTally {
    /// Enters a row. Other rows have no effect.
    pub fn enter(&mut self, key: &[u8], row: &Row, value: &Bytes) -> Option<Finding> {
        match row {
            Row::Unique(hash) => match serde_json::from_slice::<UniqueRow>(value) {
                Ok(UniqueRow { until_us: None, .. }) => {}
                Ok(row) => self.0.entry(hash.clone()).or_default().0 = row.until_us,
                Err(error) => return Some(Finding::new(Invariant::Readable, key, error.to_string())),
            },
            Row::UniqueUntil(at_us, hash) => {
                self.0.entry(hash.clone()).or_default().1.insert(*at_us);
            }
            _ => {}
        }
        None
    }

    /// The rows without their counterpart.
    pub fn finish(self, keys: &Keyspace) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (hash, (end_us, index)) in self.0 {
            if let Some(end_us) = end_us.filter(|end_us| !index.contains(end_us)) {
                let row = super::key_text(&keys.unique_until(end_us, &hash));
                let problem = format!("the row {row} is missing");
                findings.push(Finding::new(Invariant::UniqueAgrees, &keys.unique(&hash), problem));
            }
            for at_us in index.into_iter().filter(|at_us| end_us != Some(*at_us)) {
                let problem = "no row of this key has this time".to_owned();
                findings.push(Finding::new(
                    Invariant::UniqueAgrees,
                    &keys.unique_until(at_us, &hash),
                    problem,
                ));
            }
        }
        findings
    }
}
