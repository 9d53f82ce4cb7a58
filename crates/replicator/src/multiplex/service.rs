//! A node's service that watches for parked jobs, with one feed for each group that it owns.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use turnwise_queue::parking;
use turnwise_worker::Live;

use super::feed::{Feed, Left};
use super::{MAX_GROUPS, Mode, Multiplex};
use crate::JOB_TYPE;
use crate::doc_processor::Settings;
use crate::ownership::Ownership;
use crate::parked_jobs::ParkedJobs;
use crate::waits::until_stopped;

/// The pause after a bug has ended a feed.
const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// The most groups that one pass reads.
const GROUPS: usize = 10_000;
/// The number of groups that one read returns when all jobs are woken.
const GROUPS_AT_ONCE: usize = 1_000;
/// The jobs that are woken together when a whole group is.
const WAKE_BATCH: usize = 100;
/// The pause after that: the jobs wait for slots anyway.
const WAKE_PAUSE: Duration = Duration::from_millis(50);

/// Watches for the parked jobs of the groups that this node owns.
#[derive(Clone)]
pub struct Service {
    /// The parked jobs.
    pub jobs: ParkedJobs,
    /// The groups' state, which runs share.
    pub multiplex: Multiplex,
    /// The settings for parsing options.
    pub settings: Live<Settings>,
    /// The groups that this node owns.
    pub ownership: Ownership,
}

/// The scope of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PassScope {
    /// Every group: its owner may have changed, or it may never have had one.
    AllGroups,
    /// Groups with jobs that have just parked.
    NewGroups,
}

/// The feeds of a node.
#[derive(Default)]
struct Feeds {
    /// Each with the notification for jobs that have parked.
    known: HashMap<String, (Arc<Notify>, AbortHandle)>,
    tasks: JoinSet<(String, Ended)>,
    /// Groups whose jobs are all being woken.
    waking: HashMap<String, AbortHandle>,
}

/// Why a task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Feed(Left),
    /// All jobs that were parked have been woken.
    Woken,
}

impl Service {
    /// Watches until `stop` is cancelled.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move { self.watch().await })
    }

    async fn watch(&self) {
        let mut feeds = Feeds::default();
        let mut mode = self.multiplex.0.mode.changes();
        let mut members = self.ownership.changes();
        let mut scope = PassScope::AllGroups;
        loop {
            let wake = self.jobs.wake_key().await;
            match self.multiplex.mode() {
                Mode::Off => {
                    feeds = Feeds::default();
                    self.wake_all().await;
                }
                Mode::Auto => self.pass(&mut feeds, scope).await,
            }
            let watch = self.jobs.watch(wake).await;
            scope = tokio::select! {
                () = watch => PassScope::NewGroups,
                Ok(()) = mode.changed() => PassScope::AllGroups,
                Ok(()) = members.changed() => PassScope::AllGroups,
                ended = feeds.ended() => match ended {
                    (group, Ended::Feed(left)) => {
                        if left == Left::Closed {
                            tracing::info!(group, "a server no longer offers `_db_updates`: its idle replications run again");
                            self.multiplex.close(&group);
                        }
                        PassScope::AllGroups
                    }
                    // Jobs may have parked meanwhile, at positions before the last one that was woken.
                    (_, Ended::Woken) => PassScope::NewGroups,
                }
            };
        }
    }

    /// Starts and closes feeds, and notifies those that have new jobs.
    async fn pass(&self, feeds: &mut Feeds, scope: PassScope) {
        if scope == PassScope::AllGroups {
            feeds.known.retain(|group, (_, task)| {
                let stays = self.ownership.is_mine(group);
                if !stays {
                    task.abort();
                }
                stays
            });
        }
        let keys = &self.jobs.keys;
        let groups = self.jobs.tried(|tx| async move {
            match scope {
                PassScope::AllGroups => parking::groups(&tx, keys, JOB_TYPE, None, GROUPS).await,
                PassScope::NewGroups => parking::unwatched_groups(&tx, keys, JOB_TYPE, GROUPS).await,
            }
        });
        for group in groups.await.into_iter().filter(|group| self.ownership.is_mine(group)) {
            if let Some((parked, _)) = feeds.known.get(&group) {
                parked.notify_one();
            } else if self.multiplex.is_closed(&group) {
                self.wake_soon(feeds, group);
            } else if feeds.known.len() >= MAX_GROUPS {
                self.multiplex.close(&group);
                self.wake_soon(feeds, group);
            } else {
                self.follow(feeds, group);
            }
        }
    }

    fn follow(&self, feeds: &mut Feeds, group: String) {
        let parked = Arc::new(Notify::new());
        let Service { jobs, multiplex, settings, .. } = self.clone();
        let feed = Feed::new(multiplex, settings, jobs, group.clone(), parked.clone());
        let named = group.clone();
        let task = feeds.tasks.spawn(async move { (named, Ended::Feed(feed.run().await)) });
        feeds.known.insert(group, (parked, task));
    }

    /// Wakes a group in its own task, unless such a task is running.
    fn wake_soon(&self, feeds: &mut Feeds, group: String) {
        feeds.waking.retain(|_, task| !task.is_finished());
        if !feeds.waking.contains_key(&group) {
            let (service, named) = (self.clone(), group.clone());
            let task = feeds.tasks.spawn(async move {
                service.wake_group(&named).await;
                (named, Ended::Woken)
            });
            feeds.waking.insert(group, task);
        }
    }

    /// Makes every parked job pending.
    async fn wake_all(&self) {
        let keys = &self.jobs.keys;
        let mut last: Option<String> = None;
        loop {
            let after = last.as_deref();
            let groups = self
                .jobs
                .tried(|tx| async move { parking::groups(&tx, keys, JOB_TYPE, after, GROUPS_AT_ONCE).await });
            let groups = groups.await;
            for group in &groups {
                self.wake_group(group).await;
            }
            last = groups.into_iter().last();
            if last.is_none() {
                return;
            }
        }
    }

    /// Makes the parked jobs of a group pending, a few at a time. A job that parks again meanwhile may stay parked.
    async fn wake_group(&self, group: &str) {
        let mut last = None;
        loop {
            let mut page = self.jobs.list(group, last.as_ref(), WAKE_BATCH).await;
            if page.is_empty() {
                return;
            }
            self.jobs.record(&page, &[]).await;
            last = page.pop();
            self.jobs.store.runtime().sleep(WAKE_PAUSE).await;
        }
    }
}

impl Feeds {
    /// The next feed that ends by itself; without feeds, never returns.
    async fn ended(&mut self) -> (String, Ended) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((group, ended))) => {
                    if let Ended::Feed(_) = ended {
                        self.known.remove(&group);
                    }
                    return (group, ended);
                }
                // It was aborted, or a bug ended it. In the second case another one is started.
                Some(Err(error)) if error.is_cancelled() => {}
                Some(Err(error)) => {
                    tracing::error!(%error, "the task of a `_db_updates` feed panicked; the feed is opened again");
                    let ended = self.known.iter().find(|(_, (_, task))| task.is_finished());
                    if let Some(group) = ended.map(|(group, _)| group.clone()) {
                        self.known.remove(&group);
                        tokio::time::sleep(PANIC_PAUSE).await;
                        return (group, Ended::Feed(Left::Empty));
                    }
                }
                None => pending().await,
            }
        }
    }
}
