//! The watcher of a server: follows its feed of updates, compares all databases when updates may have been lost, and measures the server
//! while this process builds its indexes. See [`super`] for what must hold.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use turnwise_queue::parking::ParkedJob;
use turnwise_replicator::ownership::Ownership;
use turnwise_replicator::{MAX_SEQS, ParkedJobs, Seq, Updates};

use super::dirty::{Dirty, Since};
use super::{Indexing, Server};

/// The pause after a failure; it doubles with each one that follows soon.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The time between two comparisons of all databases while the feed is followed.
const SWEEP: Duration = Duration::from_secs(600);
/// The same, if the server has no feed of updates.
const SWEEP_WITHOUT_FEED: Duration = Duration::from_secs(15);
/// How long a server without a feed is not asked for it again.
const FEED_AGAIN: Duration = Duration::from_secs(300);
/// The most databases of a server.
const MAX_DATABASES: usize = 100_000;
/// Parked jobs that one transaction reads.
const PARKED: usize = 1_000;
/// Indexes that are looked at once more before databases that have changed meanwhile.
const VERIFIED: usize = 20;
/// The time between two samples of a server's speed.
const SAMPLE: Duration = Duration::from_millis(250);
/// The samples between two looks at the server's tasks.
const SAMPLES_PER_LOOK: u32 = 4;
/// A small request: it reads one document of a system database.
const SMALL: &str = "_all_dbs?limit=1";

/// Watches the servers that this node owns, and measures all of them.
#[derive(Clone)]
pub struct Service {
    /// The jobs.
    pub jobs: ParkedJobs,
    /// The servers.
    pub indexing: Indexing,
    /// The servers that this node owns.
    pub ownership: Ownership,
}

/// What the watcher of a server remembers while it runs.
pub(super) struct Watcher<'a> {
    pub service: &'a Service,
    pub server: &'a Server,
    dirty: Mutex<Dirty>,
    /// The jobs whose indexes must be looked at once more, by id.
    built: Mutex<Dirty>,
    /// Notified when a database was marked.
    marked: Notify,
    seen: Mutex<HashMap<Box<str>, Seen>>,
}

/// How a database was when its indexes were last found up to date, or woken: two numbers, because there may be many databases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Of its design documents.
    pub designs: u64,
    /// Of its sequence; 0 if its indexes are not yet woken.
    pub seq: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Watches until `stop` is cancelled.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            // Aborts them when it is dropped.
            let mut tasks: JoinSet<()> = JoinSet::new();
            for server in self.indexing.0.servers.values() {
                let (service, watched, measured) = (self.clone(), server.clone(), server.clone());
                tasks.spawn(async move { service.keep_watching(&watched).await });
                tasks.spawn(async move { measure(&measured).await });
            }
            tokio::select! {
                () = stop.cancelled() => {}
                // Only a panic ends one of them: everything is started again.
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the watcher of a server ended; it restarts");
                    }
                }
                else => stop.cancelled().await,
            }
        })
    }

    /// Watches a server while this node owns it.
    async fn keep_watching(&self, server: &Server) {
        let mut owners = self.ownership.changes();
        loop {
            owners.borrow_and_update();
            let watch = async {
                match self.ownership.is_mine(&server.name) {
                    true => self.watch(server).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                never = watch => match never {},
                Ok(()) = owners.changed() => {}
            }
        }
    }

    async fn watch(&self, server: &Server) -> std::convert::Infallible {
        let watcher = Watcher {
            service: self,
            server,
            dirty: Mutex::default(),
            built: Mutex::default(),
            marked: Notify::new(),
            seen: Mutex::default(),
        };
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let error = match watcher.follow().await {
                Ok(()) => "the feed has ended".to_owned(),
                Err(error) => error.of_server(),
            };
            if began.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tracing::warn!(
                server = server.name,
                error,
                "cannot watch a server's indexes; retrying in {pause:?}"
            );
            self.jobs.store.runtime().sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

type Result<T> = std::result::Result<T, turnwise_outbound::Error>;

impl Watcher<'_> {
    /// Follows the server until an error, or until its feed ends.
    async fn follow(&self) -> Result<()> {
        let remote = &self.server.remote;
        let feed = match remote.position().await {
            Ok(now) => remote.updates(&now).await,
            Err(error) => Err(error),
        };
        let (feed, interval) = match feed {
            Ok(feed) => (Some(feed), SWEEP),
            // 401 is also CouchDB's answer to a user who is no administrator. A wrong password ends the comparison of all databases.
            Err(error) if error.is_refusal() => {
                let error = error.of_server();
                tracing::info!(
                    server = self.server.name,
                    error,
                    "the server has no `_db_updates` for this login: its databases are polled"
                );
                (None, SWEEP_WITHOUT_FEED)
            }
            Err(error) => return Err(error),
        };
        tokio::select! {
            end = self.read(feed) => end,
            end = self.work(interval) => end,
        }
    }

    /// Marks the databases of the feed; without a feed, ends when it should be tried again.
    async fn read(&self, feed: Option<Updates>) -> Result<()> {
        let Some(mut feed) = feed else {
            self.service.jobs.store.runtime().sleep(FEED_AGAIN).await;
            return Ok(());
        };
        let settings = self.service.indexing.settings();
        loop {
            let mut databases = BTreeSet::new();
            let goes_on = feed.next(|update| {
                databases.extend(update.database);
                Ok(())
            });
            if !goes_on.await? {
                return Ok(());
            }
            let now = Instant::now();
            for database in databases.iter().filter(|database| settings.want(database)) {
                self.mark(database, Since::At(now), now + settings.min_delay);
            }
        }
    }

    pub(super) fn mark(&self, database: &str, since: Since, due: Instant) {
        lock(&self.dirty).mark(database, since, due);
        self.marked.notify_one();
    }

    pub(super) fn is_marked(&self, database: &str) -> bool {
        lock(&self.dirty).contains(database)
    }

    pub(super) fn built(&self) -> MutexGuard<'_, Dirty> {
        lock(&self.built)
    }

    pub(super) fn seen(&self, database: &str) -> Seen {
        lock(&self.seen).get(database).copied().unwrap_or_default()
    }

    /// Remembers how a database was; `None` forgets it.
    pub(super) fn remember(&self, database: &str, how: Option<Seen>) {
        let mut seen = lock(&self.seen);
        match how {
            Some(how) if seen.len() < MAX_DATABASES || seen.contains_key(database) => {
                seen.insert(database.into(), how);
            }
            Some(_) => {}
            None => drop(seen.remove(database)),
        }
    }

    /// Looks at all databases, and then at those that have changed, and those at which jobs have parked.
    async fn work(&self, interval: Duration) -> Result<()> {
        let mut sweep = Instant::now();
        loop {
            if sweep <= Instant::now() {
                self.sweep().await?;
                sweep = Instant::now() + interval;
            }
            let wake = self.service.jobs.wake_key().await;
            let parked = self.unwatched().await;
            if !parked.is_empty() {
                let now = Instant::now();
                self.examine(
                    parked.iter().map(|database| (database.as_str().into(), Since::At(now))).collect(),
                )
                .await?;
            }
            let due = lock(&self.dirty).take(Instant::now(), MAX_SEQS);
            if !due.is_empty() {
                self.examine(due).await?;
                continue;
            }
            let built = self.built().take(Instant::now(), VERIFIED);
            if !built.is_empty() {
                self.verify(built).await?;
                continue;
            }
            if !parked.is_empty() {
                continue;
            }
            if self.built().overflown() {
                // The next sweep looks at all databases, and at their indexes.
                lock(&self.seen).clear();
            }
            let mut next = self.built().next().map_or(sweep, |due| due.min(sweep));
            {
                let mut dirty = lock(&self.dirty);
                if dirty.overflown() {
                    sweep = Instant::now();
                    next = sweep;
                }
                next = dirty.next().map_or(next, |due| due.min(next));
            }
            let watch = self.service.jobs.watch(wake).await;
            tokio::select! {
                () = watch => {}
                () = self.marked.notified() => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Databases at which jobs have parked that were not compared since.
    async fn unwatched(&self) -> BTreeSet<String> {
        let page = self.service.jobs.unwatched(&self.server.name, MAX_SEQS).await;
        page.into_iter().map(|job| job.at.key).collect()
    }

    /// Marks all databases that may have changed since they were last looked at, and those with jobs that do not exist any more.
    async fn sweep(&self) -> Result<()> {
        let (settings, remote) = (self.service.indexing.settings(), &self.server.remote);
        let mut all: HashSet<String> = HashSet::new();
        let mut from: Option<String> = None;
        while all.len() < MAX_DATABASES {
            let (names, next) = remote.databases(from).await?;
            let fresh: Vec<String> =
                names.into_iter().filter(|name| settings.want(name) && !all.contains(name)).collect();
            for names in fresh.chunks(MAX_SEQS) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let seqs = remote.seqs(&names).await?;
                for name in names {
                    let seq = seqs.get(name).map(number);
                    if seq.is_none_or(|seq| seq != self.seen(name).seq) {
                        self.mark(name, Since::Unknown, Instant::now());
                    }
                }
            }
            all.extend(fresh);
            if next.is_none() {
                break;
            }
            from = next;
        }
        if all.len() >= MAX_DATABASES {
            tracing::error!(
                server = self.server.name,
                "more than {MAX_DATABASES} databases: the others are not indexed"
            );
        }
        let mut last: Option<ParkedJob> = None;
        loop {
            let page = self.service.jobs.list(&self.server.name, last.as_ref(), PARKED).await;
            for job in page.iter().filter(|job| !all.contains(&job.at.key)) {
                self.mark(&job.at.key, Since::Unknown, Instant::now());
            }
            match page.into_iter().next_back() {
                Some(job) => last = Some(job),
                None => return Ok(()),
            }
        }
    }
}

/// A number for a sequence; never 0.
pub(super) fn number(seq: &Seq) -> u64 {
    super::index::hash(seq.to_string().as_bytes()).max(1)
}

/// Measures a server while this process builds its indexes, and reads how far they are.
async fn measure(server: &Server) {
    let mut samples: u32 = 0;
    loop {
        tokio::time::sleep(SAMPLE).await;
        if !server.pace.is_busy() {
            continue;
        }
        let began = Instant::now();
        // A server that does not answer is slow, too.
        let _ = server.remote.get::<Value>(SMALL).await;
        server.pace.sample(began.elapsed());
        samples = samples.wrapping_add(1);
        if samples.is_multiple_of(SAMPLES_PER_LOOK)
            && let Ok(tasks) = server.remote.get("_active_tasks").await
        {
            server.tasks.set(tasks);
        }
    }
}
