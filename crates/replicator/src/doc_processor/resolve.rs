//! Computes the replication ids of documents with a filter function.
//!
//! The id covers the function's code, which is on the source. Such a document therefore has an entry in the index of
//! unresolved documents until this task has fetched the code. A source that does not respond is retried after a
//! backoff, and does not delay other documents.
//!
//! Every node runs this task, and the nodes divide the entries by claims. A claim moves an entry to the time at which
//! its source must have responded or failed, and thus to the end of the index. No other node reads it before that time,
//! and the claim of a crashed node expires then. The claimer also writes its result under the new time. If two nodes
//! ask (because clocks differ, or a store hangs), only one of them writes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwise_outbound::Client;
use turnwise_queue::Keyspace;
use turnwise_store::{Isolation, Store, Watch};
use turnwise_worker::Live;

use super::entries::{self, Entry};
use super::schedule::{self, Doc, Row, RowState};
use super::{Settings, corrupt, ended, finish_deletion, parse, sweep};
use crate::documents::{DocTx, Error, Result, Revision, databases, read, rows, write::Slot};
use crate::waits::{ERROR_PAUSE, or_never, sleep_about, until_stopped};
use crate::{Replication, replication_id};

/// The most concurrent requests to sources.
const MAX_IN_FLIGHT: usize = 32;
/// How long a source may take to return its filter's code.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a claim lasts: the time for a response, and some for writing the result.
const CLAIM: Duration = Duration::from_secs(90);
/// The time between two sweeps of finished requests that no client waits for any more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3_600);
/// The time between two scans for unfinished deletions of databases, which an error of the store may leave.
const DELETIONS_INTERVAL: Duration = Duration::from_secs(60);
/// Databases that one page of such a scan reads.
const DATABASES_BATCH: usize = 1_000;

/// Fetches the code of filter functions.
#[async_trait]
pub trait FilterCode: Send + Sync + 'static {
    /// The code of the filter function of `replication`; `None` if it has none.
    ///
    /// # Errors
    /// The reason why the code is not available now, for the document's user, without secrets.
    async fn fetch(&self, replication: &Replication) -> Result<Option<String>, String>;
}

#[async_trait]
impl FilterCode for Client {
    async fn fetch(&self, replication: &Replication) -> Result<Option<String>, String> {
        crate::filter_code(replication, self).await.map_err(|error| error.to_string())
    }
}

/// The background task of replicator databases.
#[derive(Clone)]
pub struct DocProcessor {
    /// The store that holds the documents.
    pub store: Store,
    /// Their keys.
    pub keys: Keyspace,
    /// The settings against which documents are validated.
    pub settings: Live<Settings>,
    /// Fetches filter functions from sources.
    pub filters: Arc<dyn FilterCode>,
}

impl DocProcessor {
    /// Runs until `stop` is cancelled. All its work is recorded in the store, so the next run continues what a crash interrupts.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let this = Arc::new(self);
            tokio::join!(this.finish_deletions(), this.resolve_all(), this.check_filters(), this.sweep());
        })
    }

    async fn finish_deletions(&self) {
        loop {
            self.finish_deletions_once().await;
            sleep_about(&**self.store.runtime(), DELETIONS_INTERVAL).await;
        }
    }

    async fn finish_deletions_once(&self) {
        let mut after: Option<String> = None;
        loop {
            let (store, keys, from) = (&self.store, &self.keys, after.as_deref());
            let batch =
                store.transact(|tx| async move { databases::list(&tx, keys, from, DATABASES_BATCH).await });
            let batch = match batch.await {
                Ok(batch) => batch,
                Err(error) => {
                    return tracing::error!(%error, "cannot look for unfinished deletions of databases");
                }
            };
            let Some((last, _)) = batch.last() else { return };
            after = Some(last.clone());
            for (db, _) in batch.iter().filter(|(_, database)| database.deleting) {
                if let Err(error) = finish_deletion(store, keys, db).await {
                    tracing::error!(%error, db, "cannot finish the deletion of a database");
                }
            }
        }
    }

    async fn sweep(&self) {
        loop {
            let pause = match sweep::remove_finished_requests(&self.store, &self.keys).await {
                Ok(_) => SWEEP_INTERVAL,
                Err(error) => {
                    tracing::warn!(%error, "cannot remove finished requests; retrying later");
                    DELETIONS_INTERVAL
                }
            };
            sleep_about(&**self.store.runtime(), pause).await;
        }
    }

    async fn resolve_all(self: &Arc<Self>) {
        let mut in_flight: HashSet<Entry> = HashSet::new();
        let mut tasks: JoinSet<Entry> = JoinSet::new();
        let runtime = self.store.runtime().clone();
        loop {
            let (next_us, wake) = match self.look(&in_flight).await {
                Ok((due, next_us, wake)) => {
                    for entry in due {
                        in_flight.insert(entry.clone());
                        let this = self.clone();
                        tasks.spawn(async move {
                            this.resolve(&entry).await;
                            entry
                        });
                    }
                    // At the limit, the next pass follows the end of a request.
                    let full = in_flight.len() >= MAX_IN_FLIGHT;
                    (next_us.filter(|_| !full), Some(wake).filter(|_| !full))
                }
                Err(error) => {
                    tracing::error!(%error, "cannot read which replications wait for their filters");
                    (Some(runtime.now_us().saturating_add(duration_us(ERROR_PAUSE))), None)
                }
            };
            tokio::select! {
                Some(done) = tasks.join_next() => match done {
                    Ok(entry) => { in_flight.remove(&entry); }
                    // Which one is unknown, so all entries are read again. Finished ones have no entry any more.
                    Err(error) => {
                        tracing::error!(%error, "the task that computes a replication id panicked");
                        in_flight.clear();
                        tasks = JoinSet::new();
                    }
                },
                () = or_never(next_us.map(|next_us| runtime.sleep_until(next_us))) => {}
                () = or_never(wake) => {}
            }
        }
    }

    /// Entries that are due and not in flight, when the next one is due, and a watch for new ones.
    pub(super) async fn look(
        &self,
        in_flight: &HashSet<Entry>,
    ) -> turnwise_queue::Result<(Vec<Entry>, Option<i64>, Watch)> {
        let (store, keys) = (&self.store, &self.keys);
        let (mut entries, seen) = store
            .transact(|tx| async move {
                let seen = tx.get_with(&keys.unresolved_wake(), Isolation::Snapshot).await?;
                // Entries that were found but not claimed yet come first; beyond them, as many again may be found.
                let entries = entries::unresolved(&tx, keys, keys.unresolved(), 2 * MAX_IN_FLIGHT).await?;
                Ok::<_, turnwise_queue::Error>((entries, seen))
            })
            .await?;
        entries.retain(|entry| !in_flight.contains(entry));
        let room = MAX_IN_FLIGHT.saturating_sub(in_flight.len());
        let (due, next_us) = entries::due(entries, room, &**store.runtime());
        let wake = store.watch(keys.unresolved_wake(), seen).await?;
        Ok((due, next_us, wake))
    }

    pub(super) async fn resolve(&self, entry: &Entry) {
        if let Err(error) = self.try_resolve(entry).await {
            tracing::error!(%error, db = entry.db, doc = entry.id, "cannot write a replication's state");
            self.store.runtime().sleep(ERROR_PAUSE).await;
        }
    }

    async fn try_resolve(&self, entry: &Entry) -> Result<()> {
        let (keys, settings) = (&self.keys, &self.settings.get());
        let runtime = self.store.runtime();
        // Another node's claim ends at another time in µs, so this time also identifies the claim.
        let apart_us = i64::try_from(runtime.random() % 1_000_000).unwrap_or(0);
        let until_us = runtime.now_us().saturating_add(duration_us(CLAIM) + apart_us);
        let claimed = self.store.transact(|tx| async move {
            claim(entry.doc(&tx, keys), settings, entry.due_us, until_us).await
        });
        let Some((rev, replication)) = claimed.await? else { return Ok(()) };
        let code = match &replication {
            Err(reason) => Err(reason.clone()),
            Ok(replication) if replication_id::needs_filter_code(replication) => {
                self.fetch(replication).await
            }
            Ok(_) => Ok(None),
        };
        let (rev, code) = (&rev, &code);
        self.store
            .transact(|tx| async move {
                let now_us = runtime.now_us();
                let at = entry.doc(&tx, keys);
                let found = waiting(at, settings, until_us).await?;
                let Some((_, replication)) = found.filter(|(now_rev, _)| now_rev == rev) else {
                    return Ok(());
                };
                let row = at.row().await?.ok_or_else(|| corrupt("unresolved row"))?;
                match (&replication, code) {
                    (Ok(replication), Ok(code)) => {
                        let id = replication_id::full(replication, &settings.server_uuid, code.as_deref());
                        let mut slot = Slot::open_current(at).await?;
                        let body = at.body().await?;
                        let check_us = code.as_ref().map(|_| self.first_check_us());
                        let doc = Doc { at, rev, body: &body, replication, check_us };
                        let started = schedule::start(&mut slot, &doc, &id.to_string(), now_us).await;
                        let Err(Error::Invalid(reason) | Error::Refused(reason)) = started else {
                            return started;
                        };
                        // It was valid when it was written, but perhaps under other limits: a retry cannot help.
                        clear(at, until_us)?;
                        Ok(ended::fail(&mut slot, &row, body, &reason, now_us)?)
                    }
                    (Err(reason), _) | (_, Err(reason)) => {
                        clear(at, until_us)?;
                        Ok(at.write_row(&schedule::errored(&row, Some(&row), reason, now_us))?)
                    }
                }
            })
            .await
    }

    /// The code of a filter function, or why the source does not return it.
    pub(super) async fn fetch(&self, replication: &Replication) -> Result<Option<String>, String> {
        let late = self.store.runtime().sleep(FETCH_TIMEOUT);
        tokio::select! {
            code = self.filters.fetch(replication) => code,
            () = late => Err(format!("the source did not answer within {} s", FETCH_TIMEOUT.as_secs())),
        }
    }
}

/// A document that waits: its revision, and its replication, if that is still valid.
type Waiting = (Revision, Result<Replication, String>);

/// Clears the entry of a document that does not wait any more.
fn clear(doc: DocTx<'_>, due_us: i64) -> turnwise_queue::Result<()> {
    Ok(doc.tx.clear(doc.keys.unresolved_entry(due_us, doc.db, doc.id))?)
}

/// Moves the entry of a document to a new time, if the document still waits and no other node has claimed it.
async fn claim(doc: DocTx<'_>, settings: &Settings, due_us: i64, until_us: i64) -> Result<Option<Waiting>> {
    let DocTx { tx, keys, db, id } = doc;
    let row = doc.row().await?;
    // By an attempt whose outcome was unknown.
    let is_mine = row.as_ref().is_some_and(|row| row.due_us == Some(until_us));
    let held_us = if is_mine { until_us } else { due_us };
    let Some(found) = waiting(doc, settings, held_us).await? else { return Ok(None) };
    if !is_mine && let Some(row) = row {
        clear(doc, due_us)?;
        // This wakes no other node, because there is no new work.
        tx.set(keys.unresolved_entry(until_us, db, id), bytes::Bytes::new())?;
        tx.set(keys.replication(db, id), rows::encode(&Row { due_us: Some(until_us), ..row }))?;
    }
    Ok(Some(found))
}

fn duration_us(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The document of an entry, if it still waits. An entry without a waiting document is cleared.
async fn waiting(doc: DocTx<'_>, settings: &Settings, due_us: i64) -> Result<Option<Waiting>> {
    let current = doc.row().await?.filter(|row| row.due_us == Some(due_us));
    let Some(Row { state: RowState::Initializing | RowState::Error, rev, .. }) = current else {
        clear(doc, due_us)?;
        return Ok(None);
    };
    let body = match read::get(doc.tx, doc.keys, doc.db, doc.id, Some(&rev)).await {
        Ok(document) => document.body,
        // The database is being deleted. The entry would be due, and read again, as long as that takes.
        Err(Error::NoDatabase | Error::Missing) => {
            clear(doc, due_us)?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // It was valid when it was written; the configuration may have changed since.
    let replication = parse(&body, &settings.defaults).map(|replication| replication.of_tenant(doc.db));
    Ok(Some((rev, replication.map_err(|error| error.to_string()))))
}
