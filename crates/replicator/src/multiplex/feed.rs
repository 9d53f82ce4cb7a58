//! One group, while this node owns it: its server's feed, the jobs that it wakes, and the comparisons.
//!
//! Three loops share one task. *Reading* records which of the watched databases have changed. *Waking* makes their jobs
//! pending. *Comparing* checks jobs that have parked since, and all jobs of the group when the feed is new, has broken,
//! or an hour has passed. The order is essential: the position of the feed is known first, then a database is watched,
//! then its jobs' tokens are compared.
//!
//! CouchDB writes its feed half a second late, and from memory, so events shortly before a crash are lost. A feed that
//! breaks is therefore reopened at its position, and everything is compared as well. A feed that ends properly only
//! continues.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::Instant;
use turnwise_outbound::Error;
use turnwise_queue::parking::{self, ParkedJob};
use turnwise_queue::{Job, Parked, jobs};
use turnwise_worker::Live;

use super::{Multiplex, lock};
use crate::doc_processor::Settings;
use crate::parked_jobs::ParkedJobs;
use crate::remote::{MAX_SEQS, Remote, Update, Updates};
use crate::seq::Seq;
use crate::spec::{JOB_TYPE, Replication};
use crate::waits::{SHORTEST_FEED, pause_after};

/// Jobs per comparison, which asks for their databases in one request.
pub(super) const PAGE: usize = MAX_SEQS;
/// The most jobs of a database that are woken together.
const WAKE_BATCH: usize = 100;
/// The most databases whose jobs one transaction searches.
const NAMES_BATCH: usize = 100;
/// Databases that are asked for their changes concurrently.
const ASK_AT_ONCE: usize = 8;
/// The most jobs whose options are tried for a login.
const LOGINS: usize = 20;
/// The pause in which further jobs may park, to be compared together.
const COMPARE_PAUSE: Duration = Duration::from_millis(250);
/// Everything is compared after this long even without a break, in pages that are [`PAGE_PAUSE`] apart.
const SWEEP: Duration = Duration::from_secs(3_600);
/// See [`SWEEP`]. It also separates pages after a break, so that a restarted server does not get all requests immediately.
const PAGE_PAUSE: Duration = Duration::from_millis(20);
/// A feed without jobs is closed after this long.
const EMPTY_FOR: Duration = Duration::from_secs(60);
/// A feed that lasted for this long resets the number of consecutive breaks.
const WELL: Duration = Duration::from_secs(60);
/// A feed that opened but broke early this many consecutive times is given up, and its jobs run.
const BREAKS: u32 = 6;

/// Why a group's feed was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The group has no parked jobs any more.
    Empty,
    /// The server does not report changes of its databases; the parked jobs must run.
    Closed,
}

/// How one opening of the feed ended.
enum End {
    Left(Left),
    /// It ended properly.
    Over,
    /// The server does not respond.
    Away(Error),
    /// The server responded, but the feed or a comparison ended with an error.
    Broken(Error),
}

/// One group's feed.
pub(super) struct Feed {
    pub multiplex: Multiplex,
    pub settings: Live<Settings>,
    pub jobs: ParkedJobs,
    pub group: String,
    /// Notified when jobs have parked.
    pub parked: Arc<Notify>,
    state: State,
}

#[derive(Default)]
struct State {
    /// The position of the feed.
    since: Mutex<Option<Seq>>,
    /// The watched databases: those with jobs that are parked, or were parked within the hour. They stay watched after
    /// their jobs are woken. Otherwise a job that parks again during its comparison would lose its mark, and its
    /// database would not be watched.
    watched: Mutex<HashSet<Box<str>>>,
    news: Mutex<News>,
    has_news: Notify,
    /// The progress of a comparison of all jobs; `None` if none is due.
    comparing: Mutex<Option<Comparing>>,
}

/// Databases that have changed.
#[derive(Default)]
struct News {
    fresh: BTreeSet<Box<str>>,
    /// The databases whose jobs are being woken.
    in_hand: BTreeSet<Box<str>>,
}

/// A comparison of all of a group's jobs.
#[derive(Default)]
struct Comparing {
    /// It continues after this job.
    after: Option<ParkedJob>,
    /// It starts again afterwards, because the feed broke meanwhile.
    again: bool,
}

impl Feed {
    /// The feed of a group that has not been compared yet.
    pub fn new(
        multiplex: Multiplex,
        settings: Live<Settings>,
        jobs: ParkedJobs,
        group: String,
        parked: Arc<Notify>,
    ) -> Self {
        let state = State::default();
        *lock(&state.comparing) = Some(Comparing::default());
        Feed { multiplex, settings, jobs, group, parked, state }
    }

    /// Follows the feed until there is no reason to, and looks at the targets meanwhile.
    pub async fn run(&self) -> Left {
        tokio::select! {
            left = self.watch() => left,
            left = self.look_at_targets() => left,
        }
    }

    async fn watch(&self) -> Left {
        // Consecutive breaks of open feeds, and consecutive failures of feeds and requests.
        let (mut breaks, mut failures) = (0, 0);
        loop {
            let opened = Instant::now();
            let end = self.follow().await;
            if opened.elapsed() > WELL {
                (breaks, failures) = (0, 0);
            }
            let error = match end {
                End::Left(left) => {
                    // Delays a restart by the caller, so that it does not loop without pause.
                    tokio::time::sleep_until(opened + SHORTEST_FEED).await;
                    return left;
                }
                End::Over => {
                    tokio::time::sleep_until(opened + SHORTEST_FEED).await;
                    continue;
                }
                End::Away(error) => error,
                End::Broken(error) => {
                    breaks += 1;
                    error
                }
            };
            tracing::debug!(group = self.group, %error, "the feed of a server's databases broke");
            if breaks >= BREAKS {
                return Left::Closed;
            }
            self.compare_again();
            tokio::time::sleep(pause_after(failures)).await;
            failures += 1;
        }
    }

    /// Schedules a comparison of all jobs. A comparison that is in progress finishes first, so that frequent breaks do
    /// not prevent its end.
    fn compare_again(&self) {
        let mut comparing = lock(&self.state.comparing);
        let comparing = comparing.get_or_insert_default();
        comparing.again = comparing.after.is_some();
    }

    /// One opening of the feed.
    async fn follow(&self) -> End {
        let (server, since) = match self.open().await {
            Ok(Some(opened)) => opened,
            Ok(None) => return End::Left(Left::Empty),
            Err(error) if error.is_refusal() => return End::Left(Left::Closed),
            Err(error) => return End::Away(error),
        };
        {
            let mut news = lock(&self.state.news);
            // The last opening ended before these were woken.
            let in_hand = std::mem::take(&mut news.in_hand);
            news.fresh.extend(in_hand);
        }
        self.state.has_news.notify_one();
        tokio::select! {
            end = self.read(&server, since) => end,
            never = self.wake_named() => never,
            end = self.compare(&server) => end,
        }
    }

    /// The server, with the login of one of the group's jobs, and the position from which to follow its feed. `None` if
    /// the group has no jobs.
    async fn open(&self) -> Result<Option<(Remote, Seq)>, Error> {
        let mut after = None;
        let mut refusal = None;
        for _ in 0..LOGINS {
            let Some((job, replication)) = self.job(after.as_ref()).await else { break };
            let server = Remote(replication.source_server(&self.multiplex.0.client));
            // A feed that was followed before continues at its position. The request is sent anyway, because the login
            // may have changed.
            match server.position().await {
                Ok(now) => {
                    let mut since = lock(&self.state.since);
                    return Ok(Some((server, since.get_or_insert(now).clone())));
                }
                // Another job of the group may have a valid password.
                Err(error) if matches!(error.status(), Some(401 | 403)) => refusal = Some(error),
                Err(error) => return Err(error),
            }
            after = Some(job);
        }
        refusal.map_or(Ok(None), Err)
    }

    /// The first job of the group after `after`, and its replication.
    async fn job(&self, after: Option<&ParkedJob>) -> Option<(ParkedJob, Replication)> {
        let mut after = after.cloned();
        loop {
            let parked = self.jobs.list(&self.group, after.as_ref(), 1).await.pop()?;
            if let Some((replication, _)) = self.replication(&parked.id).await {
                return Some((parked, replication));
            }
            // Its options are not valid any more; the job's next run reports that.
            self.jobs.record(std::slice::from_ref(&parked), &[]).await;
            after = Some(parked);
        }
    }

    /// The replication of a job; `None` if its options are not valid any more, or the job is gone.
    pub(super) async fn replication(&self, id: &str) -> Option<(Replication, Job)> {
        let keys = &self.jobs.keys;
        let found = self.jobs.tried(|tx| async move {
            match jobs::get(&tx, keys, JOB_TYPE, id).await? {
                Some(job) => Ok(Some((jobs::options(&tx, keys, &job).await?, job))),
                None => Ok(None),
            }
        });
        let (options, job) = found.await?;
        let object: Map<String, Value> = serde_json::from_str(options.get()).ok()?;
        let replication = Replication::parse(&object, &self.settings.get().defaults).ok()?;
        Some((replication.of_tenant(&job.tenant), job))
    }

    /// Reads the feed, and records what has changed.
    async fn read(&self, server: &Remote, since: Seq) -> End {
        let mut updates = match server.updates(&since).await {
            Ok(updates) => updates,
            Err(error) => {
                if error.is_refusal() {
                    // The position may not exist any more.
                    *lock(&self.state.since) = None;
                }
                return End::Broken(error);
            }
        };
        let mut is_complete = false;
        let ended = loop {
            match self.note(&mut updates, &mut is_complete).await {
                Ok(true) => {}
                Ok(false) => break updates.finish(is_complete),
                Err(error) => break Err(error),
            }
        };
        ended.map_or_else(End::Broken, |()| End::Over)
    }

    /// Records the events in the next piece of the feed. Returns whether there was one.
    async fn note(&self, updates: &mut Updates, is_complete: &mut bool) -> Result<bool, Error> {
        let mut any = false;
        let noted = updates.next(|Update { database, seq, last_seq }| {
            // Such a line is like an error in the middle of the feed: events may have been lost with it.
            if database.is_none() && last_seq.is_none() {
                return Err("a line of the feed names no database".to_owned());
            }
            *is_complete |= last_seq.is_some();
            if let Some(name) = database
                && lock(&self.state.watched).contains(&name)
            {
                any |= lock(&self.state.news).fresh.insert(name);
            }
            if let Some(seq) = seq.or(last_seq) {
                *lock(&self.state.since) = Some(seq);
            }
            Ok(())
        });
        let noted = noted.await;
        if any {
            self.state.has_news.notify_one();
        }
        noted
    }

    /// Wakes the jobs whose databases have changed.
    async fn wake_named(&self) -> End {
        loop {
            let names: Vec<Box<str>> = {
                let mut news = lock(&self.state.news);
                let names: Vec<Box<str>> = news.fresh.iter().take(NAMES_BATCH).cloned().collect();
                for name in &names {
                    news.fresh.remove(name);
                    news.in_hand.insert(name.clone());
                }
                names
            };
            if names.is_empty() {
                self.state.has_news.notified().await;
                continue;
            }
            let (keys, group, names) = (&self.jobs.keys, &self.group, &names);
            loop {
                let found = self.jobs.tried(|tx| async move {
                    let mut found = Vec::new();
                    for name in names {
                        let at = Parked { group: group.clone(), key: name.to_string() };
                        found.extend(parking::at(&tx, keys, JOB_TYPE, &at, WAKE_BATCH).await?);
                        if found.len() >= WAKE_BATCH {
                            break;
                        }
                    }
                    Ok(found)
                });
                let found = found.await;
                self.jobs.record(&found, &[]).await;
                if !found.is_empty() {
                    tracing::debug!(group, woken = found.len(), "jobs whose sources have changed are woken");
                }
                // Otherwise, these databases may have more jobs.
                if found.len() < WAKE_BATCH {
                    break;
                }
            }
            lock(&self.state.news).in_hand.clear();
        }
    }

    /// Compares tokens with the server: of all jobs if that is due, then of jobs that park.
    async fn compare(&self, server: &Remote) -> End {
        let mut empty_since: Option<Instant> = None;
        loop {
            if let Err(error) = self.compare_all(server).await {
                return End::Broken(error);
            }
            let sweep = Instant::now() + SWEEP;
            loop {
                if let Err(error) = self.compare_unwatched(server).await {
                    return End::Broken(error);
                }
                tokio::select! {
                    () = self.parked.notified() => {
                        empty_since = None;
                        tokio::time::sleep(COMPARE_PAUSE).await;
                    }
                    () = tokio::time::sleep_until(sweep) => break,
                    () = tokio::time::sleep(EMPTY_FOR) => {
                        if !self.jobs.list(&self.group, None, 1).await.is_empty() {
                            empty_since = None;
                        } else if empty_since.replace(Instant::now()).is_some() {
                            return End::Left(Left::Empty);
                        }
                    }
                }
            }
            *lock(&self.state.comparing) = Some(Comparing::default());
            // As with a new feed: databases without parked jobs are dropped, and the others are watched again before
            // they are compared.
            lock(&self.state.watched).clear();
        }
    }

    async fn compare_all(&self, server: &Remote) -> Result<(), Error> {
        loop {
            let after = match &*lock(&self.state.comparing) {
                None => return Ok(()),
                Some(Comparing { after, .. }) => after.clone(),
            };
            // Jobs that have never been compared do not wait for all other jobs.
            self.compare_unwatched(server).await?;
            let page = self.jobs.list(&self.group, after.as_ref(), PAGE).await;
            if page.is_empty() {
                let mut comparing = lock(&self.state.comparing);
                let again = comparing.take().is_some_and(|done| done.again);
                *comparing = again.then(Comparing::default);
            } else {
                let changed = self.changed(server, &page).await?;
                self.jobs.record(&changed, &[]).await;
                lock(&self.state.comparing).get_or_insert_default().after = page.last().cloned();
            }
            tokio::time::sleep(PAGE_PAUSE).await;
        }
    }

    async fn compare_unwatched(&self, server: &Remote) -> Result<(), Error> {
        loop {
            let page = self.jobs.unwatched(&self.group, PAGE).await;
            if page.is_empty() {
                return Ok(());
            }
            let changed = self.changed(server, &page).await?;
            let (changed, same): (Vec<ParkedJob>, Vec<ParkedJob>) =
                page.into_iter().partition(|job| changed.contains(job));
            self.jobs.record(&changed, &same).await;
        }
    }

    /// Returns the jobs whose databases have changed since they parked, or were deleted. Watches these databases from now on.
    async fn changed(&self, server: &Remote, page: &[ParkedJob]) -> Result<Vec<ParkedJob>, Error> {
        let names: BTreeSet<&str> = page.iter().map(|job| job.at.key.as_str()).collect();
        {
            let mut watched = lock(&self.state.watched);
            for name in &names {
                watched.insert(Box::from(*name));
            }
        }
        let names: Vec<&str> = names.into_iter().collect();
        let found = server.seqs(&names).await?;
        let mut changed = Vec::new();
        let mut differ: BTreeMap<(String, String), Vec<ParkedJob>> = BTreeMap::new();
        for job in page {
            match found.get(&job.at.key) {
                Some(seq) if seq.to_string() == job.token => {}
                Some(_) => {
                    let asked = (job.at.key.clone(), job.token.clone());
                    differ.entry(asked).or_default().push(job.clone());
                }
                // It does not exist, denies access, or is broken. Its job's own run finds out.
                None => changed.push(job.clone()),
            }
        }
        let ask = |((name, token), jobs): ((String, String), Vec<ParkedJob>)| {
            let server = server.clone();
            async move {
                let changed = match serde_json::from_str::<Seq>(&token) {
                    Ok(since) => server.has_changed(&name, &since).await,
                    Err(_) => true,
                };
                if changed { jobs } else { Vec::new() }
            }
        };
        let mut answers = stream::iter(differ).map(ask).buffer_unordered(ASK_AT_ONCE);
        while let Some(jobs) = answers.next().await {
            changed.extend(jobs);
        }
        Ok(changed)
    }
}
