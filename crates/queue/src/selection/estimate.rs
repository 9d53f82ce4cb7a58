//! What the counts of jobs say about a search: about how many jobs it will look at, and in which types.

use std::collections::BTreeSet;

use turnwise_policy::eligibility::condition::Indexed;
use turnwise_store::Transaction;

use super::{MAX_READS, Selection, Source};
use crate::counts::{self, Counted, Kind};
use crate::keyspace::KeyRange;
use crate::{Keyspace, Result, reads};

/// The most counts (one for each type and tenant) that are read. With more of them there is no answer.
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
        match self.by_tags {
            true => self.tagged(tx, keys, sees, MAX_COUNTED).await,
            false => self.about_sources(tx, keys, sees).await,
        }
    }

    /// How many rows the tags have, of tenants that `sees` accepts; `None` if more than `most` were read for that, or in too many ranges.
    async fn tagged(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        sees: &(dyn Fn(&str) -> bool + Sync),
        most: usize,
    ) -> Result<Option<u64>> {
        let Some(types) = &self.types else { return Ok(None) };
        let pairs = types.len() * self.tagged.len();
        // The rows of other tenants are neither read nor counted, where that is possible.
        let tenants = self.tenants.as_ref().filter(|tenants| pairs * tenants.len() <= MAX_READS);
        let mut ranges: Vec<KeyRange> = Vec::new();
        for (job_type, source) in
            types.iter().flat_map(|of| self.tagged.iter().map(move |source| (of, source)))
        {
            match (source, tenants) {
                (Source::Tagged(tag, None), Some(tenants)) => {
                    ranges.extend(tenants.iter().map(|tenant| keys.tagged_of(job_type, tag, tenant)));
                }
                _ => ranges.push(source.range(keys, job_type)),
            }
        }
        if ranges.len() > MAX_READS {
            return Ok(None);
        }
        let (mut left, mut seen) = (most, 0);
        for range in ranges {
            let rows = reads::rows(tx, range, left + 1).await?;
            let Some(fewer) = left.checked_sub(rows.len()) else { return Ok(None) };
            left = fewer;
            for (key, _) in rows {
                seen += u64::from(sees(&keys.parse_tagged(&key)?.0));
            }
        }
        Ok(Some(seen))
    }

    /// The same for the sources other than those by tags.
    async fn about_sources(
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
        let mut about = 0;
        let is_complete = self.count(tx, keys, |row| {
            let is_wanted = self.types.as_ref().is_none_or(|types| types.contains(&row.job_type));
            if is_wanted && sees(&row.tenant) {
                let jobs = row.counts.iter().filter(|(kind, _)| is_looked_at(*kind, &row.tenant));
                about += jobs.map(|(_, jobs)| jobs).sum::<u64>();
            }
        });
        Ok(is_complete.await?.then_some(about))
    }

    /// The same search in the types alone that have jobs of tenants that `sees` accepts and that the condition may mean. So the search of one
    /// tenant does not read the records of all others. Jobs of other types and tenants that are added later are not found.
    ///
    /// If the condition names tags, and states too, it reads the rows of the tags where they are fewer than the jobs in these states.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn narrowed(
        mut self,
        tx: &Transaction,
        keys: &Keyspace,
        sees: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Selection> {
        if self.types.is_some() && self.tagged.is_empty() {
            return Ok(self);
        }
        let tenants = self.values(Indexed::Tenant);
        let means = |tenant: &String| tenants.as_ref().is_none_or(|tenants| tenants.contains(tenant));
        let (mut types, mut seen): (BTreeSet<String>, BTreeSet<String>) = Default::default();
        let is_complete = self.count(tx, keys, |row| {
            if sees(&row.tenant) && means(&row.tenant) {
                types.insert(row.job_type.clone());
                seen.insert(row.tenant.clone());
            }
        });
        if is_complete.await? {
            self.types.get_or_insert_with(|| types.into_iter().collect());
            self.tenants = Some(seen);
        }
        if !self.tagged.is_empty() && !self.by_tags {
            let others = self.about_sources(tx, keys, sees).await?;
            let most = others.and_then(|others| usize::try_from(others).ok()).unwrap_or(MAX_COUNTED);
            self.by_tags = self.tagged(tx, keys, sees, most.min(MAX_COUNTED)).await?.is_some();
        }
        Ok(self)
    }

    /// Passes the counts on, of the only type if there is one. Returns whether these were all.
    async fn count(&self, tx: &Transaction, keys: &Keyspace, mut take: impl FnMut(&Counted)) -> Result<bool> {
        let only = self.only_type();
        let mut read = 0;
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
            rows.iter().for_each(&mut take);
            match rows.last() {
                Some(last) if rows.len() == PAGE => {
                    after = Some((last.job_type.clone(), last.tenant.clone()));
                }
                _ => return Ok(true),
            }
            if read >= MAX_COUNTED {
                return Ok(false);
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
        // Their ids are looked up, or their rows counted, and what the search has seen is counted in other sources.
        Source::Record(_) | Source::Tagged(..) => &[],
    }
}
