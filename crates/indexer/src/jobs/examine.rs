//! A look at databases that may have changed: their design documents, and which of their jobs are due.

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Map, Value};
use tokio::time::Instant;
use turnwise_outbound::Error;
use turnwise_queue::parking::ParkedJob;
use turnwise_queue::{Job, NewJob, Parked, State, jobs};
use turnwise_replicator::{Seq, encode};

use super::designs::{Design, Designs, MAX_DESIGNS};
use super::dirty::Since;
use super::index::{hash, token};
use super::watch::{Seen, Watcher, number};
use super::{Index, Info, JOB_TYPE, Summary};
use crate::{Kind, is_automatic};

/// Databases that are looked at at the same time.
const AT_ONCE: usize = 8;
/// Jobs that one transaction adds.
const BATCH: usize = 50;
/// The most parked jobs of a database.
const MAX_PARKED: usize = 4 * MAX_DESIGNS;

impl Watcher<'_> {
    /// Looks at databases, and marks those again that must wait.
    pub(super) async fn examine(&self, changed: Vec<(Box<str>, Since)>) -> Result<(), Error> {
        let names: Vec<&str> = changed.iter().map(|(database, _)| &**database).collect();
        let done = async {
            let seqs = &self.server.remote.seqs(&names).await?;
            let looks: Vec<BoxFuture<'_, Result<(), Error>>> = changed
                .iter()
                .map(|(database, since)| self.look_at(database, seqs.get(&**database), *since).boxed())
                .collect();
            stream::iter(looks).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await
        };
        let done = done.await.map(drop);
        if done.is_err() {
            // Before the server is followed again, all databases are compared; these keep their times.
            for (database, since) in &changed {
                self.mark(database, *since, Instant::now());
            }
        }
        done
    }

    /// Looks at a database, whose sequence may not be reported. After an error that concerns this database only, its jobs run at the next
    /// comparison of all databases.
    async fn look_at(&self, database: &str, seq: Option<&Seq>, since: Since) -> Result<(), Error> {
        let looked = match seq {
            Some(seq) => self.look(database, seq, since).await,
            None => self.look_for(database).await,
        };
        match looked {
            Err(error) if error.concerns_one_request() => {
                let error = error.of_server();
                tracing::warn!(server = self.server.name, database, error, "a database cannot be indexed");
                self.remember(database, None);
                self.service.jobs.record(&[], &self.parked(database).await).await;
                Ok(())
            }
            looked => looked,
        }
    }

    /// Looks at a database whose sequence the server does not report.
    async fn look_for(&self, database: &str) -> Result<(), Error> {
        match self.server.remote.get::<Value>(&encode(database)).await {
            Err(error) if error.status() == Some(404) => {
                self.remember(database, None);
                // Their runs find out, and end.
                self.service.jobs.record(&self.parked(database).await, &[]).await;
                Ok(())
            }
            Ok(state) => self.look(database, &Seq::from(&state["update_seq"]), Since::Unknown).await,
            Err(error) => Err(error),
        }
    }

    async fn look(&self, database: &str, seq: &Seq, since: Since) -> Result<(), Error> {
        let seen = self.seen(database);
        let (designs, more) = Designs::of(&self.server.remote, database).list().await?;
        let mut text = String::new();
        for (name, rev) in &designs {
            text.extend([name, "\n", rev, "\n"]);
        }
        let of_designs = hash(text.as_bytes());
        if of_designs != seen.designs {
            self.ensure(&self.indexes(database, &designs).await?).await;
            if more {
                tracing::warn!(
                    server = self.server.name,
                    database,
                    "more than {MAX_DESIGNS} design documents: the others are not indexed"
                );
            }
        }
        let waits = self.wake_due(database, seq, since).await;
        if let Some(due) = waits {
            self.mark(database, since, due);
        }
        let seq = if waits.is_some() { 0 } else { number(seq) };
        self.remember(database, Some(Seen { designs: of_designs, seq }));
        Ok(())
    }

    /// The jobs of the indexes that a database's design documents have.
    async fn indexes(&self, database: &str, designs: &[Design]) -> Result<Vec<NewJob>, Error> {
        let tenant = self.service.indexing.settings().tenant.of(database);
        let mut wanted = Vec::new();
        let each = |name: &str, rev: &str, doc: &Map<String, Value>| {
            if !is_automatic(doc) {
                return;
            }
            for kind in Kind::ALL.into_iter().filter(|kind| !kind.indexes(doc).is_empty()) {
                let index = Index {
                    server: self.server.name.clone(),
                    database: database.to_owned(),
                    design: name.to_owned(),
                    kind,
                };
                match index.job(tenant.clone(), rev) {
                    Some(job) => wanted.push(job),
                    None => tracing::warn!(database, design = name, "is not indexed: its name is too long"),
                }
            }
        };
        Designs::of(&self.server.remote, database).read(designs, each).await?;
        Ok(wanted)
    }

    /// Adds the jobs that are missing, or that were added for other versions of their design documents.
    async fn ensure(&self, wanted: &[NewJob]) {
        let jobs = &self.service.jobs;
        let keys = &jobs.keys;
        let mut done = 0;
        while done < wanted.len() {
            let rest = &wanted[done..];
            done += jobs
                .tried(|tx| async move {
                    let now_us = jobs.store.runtime().now_us();
                    for (n, new) in rest.iter().enumerate() {
                        if n == BATCH || n > 0 && !tx.has_room() {
                            return Ok(n);
                        }
                        let job = jobs::get(&tx, keys, JOB_TYPE, &new.id).await?;
                        if job.as_ref().is_some_and(|job| !is_outdated(job, new)) {
                            continue;
                        }
                        jobs::add(&tx, keys, new, now_us).await?;
                        if job.is_some_and(|job| job.state() == State::Crashing) {
                            jobs::retry(&tx, keys, JOB_TYPE, &new.id, now_us).await?;
                        }
                    }
                    Ok(rest.len())
                })
                .await;
        }
    }

    /// Wakes the parked jobs of a database that are due. Returns when the next one of the others is.
    async fn wake_due(&self, database: &str, seq: &Seq, since: Since) -> Option<Instant> {
        let parked = self.parked(database).await;
        let current = token(Some(seq));
        let (mut same, mut changed): (Vec<ParkedJob>, Vec<ParkedJob>) =
            parked.into_iter().partition(|job| job.token == current);
        // The copies of a cluster number changes differently, so another sequence of the same number may be the same state.
        if let Some(first) = changed.first().cloned()
            && changed.iter().all(|job| job.token == first.token)
            && let Ok(of_token) = serde_json::from_str::<Seq>(&first.token)
            && of_token.number().is_some()
            && of_token.number() == seq.number()
            && !self.server.remote.has_changed(database, &of_token).await
        {
            same.append(&mut changed);
        }
        let settings = self.service.indexing.settings();
        let now = Instant::now();
        let (mut due, mut waiting, mut next): (Vec<ParkedJob>, Vec<ParkedJob>, Option<Instant>) =
            (Vec::new(), Vec::new(), None);
        for job in changed {
            let at = match since {
                Since::Unknown => now,
                Since::At(since) => since + settings.delay(self.cost(&job).await),
            };
            if at <= now {
                due.push(job);
            } else {
                waiting.push(job);
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        self.verify_later(&same);
        // Those that wait are remembered here; another watcher compares all databases first.
        same.append(&mut waiting);
        self.service.jobs.record(&due, &same).await;
        next
    }

    /// How long the last build took.
    async fn cost(&self, job: &ParkedJob) -> std::time::Duration {
        let built = self.service.jobs.job(&job.id).await.and_then(|job| Info::of(job.info.as_deref()).built);
        std::time::Duration::from_millis(built.map_or(0, |built| built.took_ms))
    }

    async fn parked(&self, database: &str) -> Vec<ParkedJob> {
        let at = Parked { group: self.server.name.clone(), key: database.to_owned() };
        self.service.jobs.at(&at, MAX_PARKED).await
    }
}

/// Whether a job must be added again.
fn is_outdated(job: &Job, new: &NewJob) -> bool {
    let rev = |summary: Option<Summary>| summary.map(|summary| summary.rev);
    let is_other = rev(Summary::of(job)) != rev(serde_json::from_str(new.summary.get()).ok());
    match job.state() {
        // Its index was gone, and is there again.
        State::Completed => true,
        // It stays so until its design document changes, or a user retries it.
        State::Failed | State::Cancelled => is_other,
        _ => is_other || job.tenant != new.tenant,
    }
}
