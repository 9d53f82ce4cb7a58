//! About how many jobs a search will look at, from the counts of jobs.

use std::collections::BTreeSet;

use turnwise_store::Transaction;

use super::{Selection, Source};
use crate::counts::{self, Kind};
use crate::{Keyspace, Result};

/// The most counts (one for each type and tenant) that an estimate reads. With more of them there is none.
const MAX_COUNTED: usize = 10_000;
/// Counts per read.
const PAGE: usize = 1_000;

impl Selection {
    /// About how many jobs of tenants that `sees` accepts a search looks at from its beginning to its end: at least as many
    /// as meet the condition. `None` if counting them would take too long.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn about(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        sees: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Option<u64>> {
        let ids = self.sources.iter().filter(|source| matches!(source, Source::Record(_))).count();
        if ids > 0 {
            let types = self.types.as_ref().map_or(1, Vec::len);
            return Ok(Some((ids * types) as u64));
        }
        let kinds: BTreeSet<Kind> = self.sources.iter().flat_map(kinds).copied().collect();
        // All of the sources are queues of tenants, or none is.
        let tenants: BTreeSet<&str> = self.sources.iter().filter_map(queue_of).collect();
        let is_looked_at = |kind: Kind, tenant: &str| {
            kinds.contains(&kind) && (kind != Kind::Pending || tenants.is_empty() || tenants.contains(tenant))
        };
        let only = self.only_type();
        let (mut about, mut read) = (0, 0);
        let mut after: Option<(String, String)> = None;
        loop {
            let from = after.as_ref().map(|(job_type, tenant)| (job_type.as_str(), tenant.as_str()));
            let rows = match only {
                Some(only) => {
                    counts::list_of_type(tx, keys, only, from.map(|(_, tenant)| tenant), PAGE).await?
                }
                None => counts::list(tx, keys, from, PAGE).await?,
            };
            read += rows.len();
            for row in &rows {
                let is_wanted = self.types.as_ref().is_none_or(|types| types.contains(&row.job_type));
                if is_wanted && sees(&row.tenant) {
                    let jobs = row.counts.iter().filter(|(kind, _)| is_looked_at(*kind, &row.tenant));
                    about += jobs.map(|(_, jobs)| jobs).sum::<u64>();
                }
            }
            match rows.last() {
                Some(last) if rows.len() == PAGE => {
                    after = Some((last.job_type.clone(), last.tenant.clone()));
                }
                _ => return Ok(Some(about)),
            }
            if read >= MAX_COUNTED {
                return Ok(None);
            }
        }
    }
}

fn queue_of(source: &Source) -> Option<&str> {
    match source {
        Source::QueueOf(tenant) => Some(tenant),
        _ => None,
    }
}

/// The jobs that a source has.
fn kinds(source: &Source) -> &'static [Kind] {
    match source {
        Source::Records => &Kind::ALL,
        Source::QueueOf(_) | Source::Queues => &[Kind::Pending],
        Source::Delayed => &[Kind::Delayed, Kind::Crashing, Kind::Parked],
        Source::Blocked => &[Kind::Blocked],
        Source::Paused => &[Kind::Paused],
        Source::Active => &[Kind::Running],
        Source::Ended(partitions) => crate::ended::kinds(partitions),
        // Their ids are looked up, and what the search has seen is counted in other sources.
        Source::Record(_) | Source::EndedBefore => &[],
    }
}
