//! Repeated checks of filter functions.
//!
//! A replication id covers the code of its filter function. When that code changes on the source, the filter passes
//! other documents, so it is another replication, which starts from the beginning. Every document with such a job
//! therefore has an entry in the index of filter checks. When the entry is due, the code is fetched. If the id has
//! changed, the job is replaced immediately, even while it runs.
//!
//! **How often.** With n such documents, the mean time between two checks of one of them is 60 s + n/10 s, as in
//! CouchDB. The random part is at most a day. Up to 432,000 documents, sources therefore get at most ten requests a
//! second in total.
//!
//! **Claims.** Every node runs this task. A node that claims a due entry first moves it to the time of its next check.
//! Of several nodes, therefore, one checks. A failed check needs no bookkeeping, and a check that is lost with its node
//! is repeated by the next one.
//!
//! **A source that does not respond** changes nothing. The job itself reports problems with the source, and the code is
//! checked again after the next period. (CouchDB shows the document as `error` then, while its job continues.)
//!
//! Checks have their own index and slots, so that sources that hang never delay new documents.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::entries::{self, Entry};
use super::resolve::DocProcessor;
use super::schedule::{self, Doc, Row, RowState};
use super::{Settings, parse};
use crate::documents::{DocTx, Error, Result, Revision, read, rows, write::Slot};
use crate::waits::ERROR_PAUSE;
use crate::{Replication, replication_id};

/// The most concurrent requests to sources. Those for new documents have their own limit.
const MAX_CHECKS: usize = 8;
/// The shortest time between two checks of one document, in µs: CouchDB's.
const MIN_PERIOD_US: u64 = 60_000_000;
/// The increase of the longest period per document, in µs. The mean grows by half of it, hence ten checks a second.
const PERIOD_PER_DOCUMENT_US: u64 = 200_000;
/// The largest sum of these increases, in µs: a day.
const MAX_GROWTH_US: u64 = 86_400_000_000;
/// The longest sleep, after which entries that are due earlier than expected are found. No new entry is due before
/// [`MIN_PERIOD_US`], except for documents that were written again.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// The time between two counts of all entries, which read them page by page.
const COUNT_INTERVAL_US: i64 = 60_000_000;
/// Entries that one transaction counts.
const COUNT_BATCH: usize = 1_000;

/// The time until the next check of one of `documents` documents; `random` selects it.
fn period_us(documents: u64, random: u64) -> i64 {
    let range_us = 1_000_000 + documents.saturating_mul(PERIOD_PER_DOCUMENT_US).min(MAX_GROWTH_US);
    i64::try_from(MIN_PERIOD_US + random % range_us).unwrap_or(i64::MAX)
}

/// A document whose filter's code must be fetched.
struct Check {
    entry: Entry,
    rev: Revision,
    /// Its current job.
    job: String,
    replication: Replication,
}

impl DocProcessor {
    /// When to check the filter of a document that has just got its job for the first time.
    pub(super) fn first_check_us(&self) -> i64 {
        let runtime = self.store.runtime();
        // As with enough documents for a mean of two minutes, so that documents of one moment are not checked at the same time.
        runtime.now_us().saturating_add(period_us(600, runtime.random()))
    }

    /// Checks filters repeatedly until it is dropped.
    pub(super) async fn check_filters(self: &Arc<Self>) {
        let runtime = self.store.runtime().clone();
        let mut tasks: JoinSet<()> = JoinSet::new();
        let mut counted: Option<(i64, u64)> = None;
        loop {
            let pause = match self.start_checks(&mut tasks, &mut counted).await {
                Ok(next_us) => {
                    let us = next_us.map_or(i64::MAX, |next_us| next_us - runtime.now_us()).max(0);
                    Duration::from_micros(us.unsigned_abs()).min(LOOK_INTERVAL)
                }
                Err(error) => {
                    tracing::error!(%error, "cannot look for changed filter functions");
                    ERROR_PAUSE
                }
            };
            let full = tasks.len() >= MAX_CHECKS;
            tokio::select! {
                // A panic was logged; the check is repeated after the next period.
                Some(_) = tasks.join_next() => {}
                () = runtime.sleep(pause), if !full => {}
            }
        }
    }

    /// Starts as many of the due checks as there is room for. Returns when the next one is due.
    async fn start_checks(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        counted: &mut Option<(i64, u64)>,
    ) -> Result<Option<i64>> {
        let room = MAX_CHECKS.saturating_sub(tasks.len());
        if room == 0 {
            return Ok(None);
        }
        let (due, next_us) = self.due_checks(room).await?;
        if due.is_empty() {
            return Ok(next_us);
        }
        let runtime = self.store.runtime();
        let now_us = runtime.now_us();
        let documents = match *counted {
            Some((at_us, documents)) if now_us - at_us < COUNT_INTERVAL_US => documents,
            _ => self.count_checks().await?,
        };
        *counted = Some((now_us, documents));
        let (keys, settings) = (&self.keys, &self.settings.get());
        for entry in &due {
            // Another node's next check has another time in µs, so this time also identifies the claim.
            let next_us = runtime.now_us().saturating_add(period_us(documents, runtime.random()));
            let claimed = self
                .store
                .transact(|tx| async move { claim(entry.doc(&tx, keys), settings, entry, next_us).await });
            if let Some(check) = claimed.await? {
                let this = self.clone();
                tasks.spawn(async move { this.check(check).await });
            }
        }
        // There may be more of them.
        Ok(Some(now_us))
    }

    /// Up to `room` due entries, and when the next one is due.
    async fn due_checks(&self, room: usize) -> turnwise_queue::Result<(Vec<Entry>, Option<i64>)> {
        let (store, keys) = (&self.store, &self.keys);
        let parse = |key: &[u8]| keys.parse_filter_check(key);
        // More than there is room for: other nodes read the same entries.
        let entries = store.transact(|tx| async move {
            entries::first(&tx, keys.filter_checks(), 4 * MAX_CHECKS, parse).await
        });
        Ok(entries::due(entries.await?, room, &**store.runtime()))
    }

    async fn count_checks(&self) -> turnwise_queue::Result<u64> {
        let (mut begin, end) = self.keys.filter_checks();
        let mut count = 0;
        loop {
            let (from, to) = (&begin, &end);
            let page = self
                .store
                .transact(|tx| async move { rows::page(&tx, (from.clone(), to.clone()), COUNT_BATCH).await })
                .await?;
            count += page.len() as u64;
            match page.last() {
                Some((last, _)) if page.len() == COUNT_BATCH => {
                    begin = turnwise_store::key::successor(last);
                }
                _ => return Ok(count),
            }
        }
    }

    /// Fetches the code, and replaces the job if its id has changed.
    async fn check(&self, check: Check) {
        let (db, doc) = (&check.entry.db, &check.entry.id);
        let code = match self.fetch(&check.replication).await {
            Ok(code) => code,
            Err(reason) => {
                return tracing::debug!(reason, db, doc, "cannot check a filter function again");
            }
        };
        let settings = self.settings.get();
        let id = replication_id::full(&check.replication, &settings.server_uuid, code.as_deref()).to_string();
        if id == check.job {
            return;
        }
        let (keys, check, id, settings) = (&self.keys, &check, id.as_str(), &settings);
        let replaced = self
            .store
            .transact(|tx| async move {
                let at = check.entry.doc(&tx, keys);
                replace(at, settings, check, id, self.store.runtime().now_us()).await
            })
            .await;
        match replaced {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(
                    db,
                    doc,
                    old = check.job,
                    new = id,
                    "a filter function has changed: a new replication"
                );
            }
            Err(error) => {
                tracing::error!(%error, db, doc, "cannot replace a replication whose filter function has changed");
            }
        }
    }
}

/// Moves an entry to its next check. Returns the check, or `None` if another node has moved the entry, or its document
/// has no job any more.
async fn claim(doc: DocTx<'_>, settings: &Settings, entry: &Entry, next_us: i64) -> Result<Option<Check>> {
    // The second case is an attempt of this claim with an unknown outcome.
    let is_current = |row: &Row| row.check_us == Some(entry.due_us) || row.check_us == Some(next_us);
    let current = doc.row().await?.filter(is_current);
    doc.tx.clear(doc.keys.filter_check(entry.due_us, doc.db, doc.id))?;
    let Some(row) = current else { return Ok(None) };
    let (RowState::Scheduled, Some(job)) = (row.state, row.job.clone()) else { return Ok(None) };
    let body = match read::get(doc.tx, doc.keys, doc.db, doc.id, Some(&row.rev)).await {
        Ok(document) => document.body,
        // The database is being deleted, with all its rows.
        Err(Error::NoDatabase | Error::Missing) => {
            doc.write_row(&Row { check_us: None, ..row })?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let rev = row.rev.clone();
    doc.write_row(&Row { check_us: Some(next_us), ..row })?;
    // It was valid when it was written. If the limits have changed since, the job continues unchanged.
    let Ok(replication) = parse(&body, &settings.defaults) else { return Ok(None) };
    let replication = replication.of_tenant(doc.db);
    let entry = Entry { due_us: next_us, ..entry.clone() };
    Ok(Some(Check { entry, rev, job, replication }))
}

/// Replaces the job of the document by the job `id`, unless the document, its job or its claim has changed since the
/// filter was requested.
async fn replace(at: DocTx<'_>, settings: &Settings, check: &Check, id: &str, now_us: i64) -> Result<bool> {
    let Some(row) = at.row().await?.filter(|row| {
        row.state == RowState::Scheduled
            && row.rev == check.rev
            && row.job.as_deref() == Some(&check.job)
            && row.check_us == Some(check.entry.due_us)
    }) else {
        return Ok(false);
    };
    let body = at.body().await?;
    let Ok(replication) = parse(&body, &settings.defaults) else { return Ok(false) };
    let mut slot = Slot::open_current(at).await?;
    let doc = Doc { at, rev: &row.rev, body: &body, replication: &replication, check_us: row.check_us };
    match schedule::start(&mut slot, &doc, id, now_us).await {
        // The limits have changed since it was written: the job continues unchanged.
        Err(Error::Invalid(_) | Error::Refused(_)) => Ok(false),
        started => started.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_grows_with_the_number_of_documents_up_to_a_day() {
        let longest_s = |documents: u64| {
            let range = 1_000_000 + (documents * PERIOD_PER_DOCUMENT_US).min(MAX_GROWTH_US);
            period_us(documents, range - 1) / 1_000_000
        };
        assert_eq!((period_us(0, 0), longest_s(0)), (60_000_000, 60));
        assert_eq!(longest_s(100), 80);
        assert_eq!(longest_s(10_000), 2_060);
        assert_eq!((longest_s(1_000_000), longest_s(10_000_000)), (86_460, 86_460));
    }
}
