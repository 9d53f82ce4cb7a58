//! The service: which of the upstream's databases this node follows, and what it does when the upstream does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use turnwise_queue::Keyspace;
use turnwise_store::Store;
use turnwise_worker::Live;

use super::follow::{End, Follower};
use super::{Address, server};
use crate::doc_processor::Settings;
use crate::documents::{self, databases, names};
use crate::error::Error;
use crate::events::{Event, Events};
use crate::http::Peer;
use crate::json_stream::{Shape, Splitter};
use crate::ownership::Ownership;
use crate::{Client, Defaults};

/// Before the upstream is asked again that did not answer; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between two looks at all databases while their updates are followed.
const SCAN_INTERVAL: Duration = Duration::from_secs(300);
/// Between two looks at all databases where their updates cannot be followed.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// Before the updates are asked for again where they could not be followed.
const UPDATES_PAUSE: Duration = Duration::from_secs(300);
/// Looks at all databases follow each other no faster.
const SHORTEST_SCAN: Duration = Duration::from_secs(1);
/// Databases that one node follows, at most: each has a connection.
const MAX_FOLLOWED: usize = 1_000;
/// A row of the updates is short.
const UPDATE_BYTES: usize = 64 << 10;
/// Mirrors that are told of, at most.
const SHOWN_MIRRORS: usize = 10;
/// Mirrors that one transaction lists.
const PAGE: usize = 1_000;

/// How the upstream is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It was not asked yet.
    Unknown,
    /// It answers.
    Answers,
    /// It does not, and why.
    Silent(String),
}

/// Follows the databases of an upstream CouchDB. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    /// Where the mirrors are.
    pub store: Store,
    /// Their keys.
    pub keys: Keyspace,
    /// What documents are validated against.
    pub settings: Live<Settings>,
    /// The connections.
    pub client: Client,
    /// Where the upstream is.
    pub address: Address,
    /// Which databases are this node's.
    pub ownership: Ownership,
    /// Who is told.
    pub events: Events,
    /// How the upstream is.
    pub condition: Live<Condition>,
}

/// Why all that is followed ends at once.
enum Lost {
    Upstream(Error),
    Store(turnwise_queue::Error),
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Lost::Upstream(error)
    }
}

impl From<turnwise_queue::Error> for Lost {
    fn from(error: turnwise_queue::Error) -> Self {
        Lost::Store(error)
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Upstream(error) => f.write_str(&server::told(error)),
            Lost::Store(error) => write!(f, "the store: {error}"),
        }
    }
}

/// A database that this node follows, or will follow again in a while.
struct Followed {
    /// Drops with the entry: the task ends.
    task: tokio::task::AbortHandle,
    /// Failures in a row, and when the latest run began.
    failures: u32,
    began: Instant,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upstream {
    /// The upstream's uuid, if it tells one: part of the replication ids that its own replicator makes.
    ///
    /// # Errors
    /// Why it cannot be had now; without secrets.
    pub async fn uuid(
        address: &Address,
        defaults: &Defaults,
        client: &Client,
    ) -> Result<Option<String>, String> {
        let server = address.server(defaults, client).map_err(|error| error.to_string())?;
        server::welcome(&server).await.map(|welcome| welcome.uuid).map_err(|error| server::told(&error))
    }

    /// Mirrors that are in a store, the first of them: those of an upstream that is not configured any more have jobs all the same.
    ///
    /// # Errors
    /// The store's.
    pub async fn mirrors(store: &Store, keys: &Keyspace) -> turnwise_queue::Result<Vec<String>> {
        let page = store
            .transact(|tx| async move {
                databases::list(&tx, keys, Some(names::MIRROR_PREFIX), SHOWN_MIRRORS).await
            })
            .await;
        let page = page.map_err(|error| match error {
            documents::Error::Queue(error) => error,
            error => documents::corrupt("database list", error),
        })?;
        Ok(page.into_iter().map(|(db, _)| db).filter(|db| names::is_mirror(db)).collect())
    }

    /// Follows what this node owns, until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep_following() => {}
        }
    }

    async fn keep_following(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let lost = match self.follow_all().await {
                Ok(never) => match never {},
                Err(lost) => lost,
            };
            if began.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            if let Lost::Upstream(_) = &lost
                && self.condition.set(Condition::Silent(lost.to_string()))
            {
                self.events.tell(Event::UpstreamAnswers(false));
            }
            tracing::warn!(upstream = %self.address, error = %lost, "the upstream is not followed: tries again in {pause:?}");
            self.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// About this long: nodes that lost the same server do not come back to it at the same moment.
    async fn sleep(&self, about: Duration) {
        let runtime = self.store.runtime();
        let part = runtime.random() % 1_000;
        runtime.sleep(about.mul_f64(0.75 + part as f64 / 2_000.0)).await;
    }

    async fn follow_all(&self) -> Result<std::convert::Infallible, Lost> {
        let settings = self.settings.get();
        let server = self
            .address
            .server(&settings.defaults, &self.client)
            .map_err(|error| Lost::Upstream(Error::Spec(error)))?;
        let welcome = server::welcome(&server).await?;
        let version = welcome.version.unwrap_or_default();
        let uuid = welcome.uuid.unwrap_or_default();
        tracing::info!(upstream = %self.address, version, uuid, "follows the replicator databases of the upstream");
        if uuid != settings.server_uuid {
            tracing::warn!(
                uuid,
                "the upstream has another uuid: checkpoints that its own replicator left are not found; a new store takes the \
                 uuid over, another one with `[couchdb] uuid`"
            );
        }
        if server::is_admin(&server).await.is_ok_and(|is_admin| !is_admin) {
            tracing::warn!(
                "the login of `[upstream] url` is no server administrator's: the upstream may not show it the passwords in \
                 replication documents, and replications fail that need them"
            );
        }
        if self.condition.set(Condition::Answers) {
            self.events.tell(Event::UpstreamAnswers(true));
        }
        let look = Notify::new();
        let (following, updates) = watch::channel(false);
        tokio::select! {
            lost = self.follow_updates(&server, &look, &following) => lost,
            lost = self.keep_looking(&server, &look, updates) => lost,
        }
    }

    /// Asks for a look at all databases whenever one of them may have come or gone.
    async fn follow_updates(
        &self,
        server: &Peer,
        look: &Notify,
        following: &watch::Sender<bool>,
    ) -> Result<std::convert::Infallible, Lost> {
        loop {
            match self.read_updates(server, look, following).await {
                Ok(()) => self.sleep(SHORTEST_SCAN).await,
                Err(error) => {
                    following.send_replace(false);
                    // Whether it is the server that is away: then all of this ends.
                    server::welcome(server).await?;
                    let error = server::told(&error);
                    tracing::info!(
                        error,
                        "the upstream's databases are looked at now and then: `_db_updates` is not to be had"
                    );
                    self.sleep(UPDATES_PAUSE).await;
                }
            }
            // Something may have happened in between.
            look.notify_one();
        }
    }

    async fn read_updates(
        &self,
        server: &Peer,
        look: &Notify,
        following: &watch::Sender<bool>,
    ) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct Update {
            db_name: Option<String>,
        }
        let mut answer = server.send(&server::database_updates(server)).await?;
        following.send_replace(true);
        look.notify_one();
        let mut splitter = Splitter::new(Shape::Lines, UPDATE_BYTES);
        while let Some(piece) = answer.chunk().await? {
            let mut interesting = false;
            let parsed = splitter.push(&piece, |text| -> Result<(), String> {
                let update: Update = serde_json::from_slice(text).map_err(|error| error.to_string())?;
                interesting |= update.db_name.is_some_and(|name| names::is_replicator(&name));
                Ok(())
            });
            parsed.map_err(|cause| answer.malformed(cause))?;
            if interesting {
                look.notify_one();
            }
        }
        Ok(())
    }

    /// Follows all databases that there are and that are this node's.
    async fn keep_looking(
        &self,
        server: &Peer,
        look: &Notify,
        mut updates: watch::Receiver<bool>,
    ) -> Result<std::convert::Infallible, Lost> {
        let mut owners = self.ownership.changes();
        let mut followed: BTreeMap<String, Followed> = BTreeMap::new();
        let mut tasks: JoinSet<(String, End)> = JoinSet::new();
        loop {
            owners.borrow_and_update();
            let looked = Instant::now();
            let names = self.databases(server).await?;
            for (name, _) in
                followed.extract_if(.., |name, _| !self.ownership.is_mine(name) || !names.contains(name))
            {
                self.events.tell(Event::Left(local_name(&name).as_str().into()));
            }
            for name in names.iter().filter(|name| self.ownership.is_mine(name)) {
                if followed.contains_key(name) {
                    continue;
                }
                if followed.len() >= MAX_FOLLOWED {
                    tracing::error!(
                        "more than {MAX_FOLLOWED} replicator databases: the others are not followed by this node"
                    );
                    break;
                }
                followed.insert(name.clone(), self.start(&mut tasks, server, name, 0));
            }
            let interval = if *updates.borrow_and_update() { SCAN_INTERVAL } else { POLL_INTERVAL };
            let mut again = std::pin::pin!(self.sleep(interval));
            loop {
                tokio::select! {
                    () = look.notified() => break,
                    Ok(()) = owners.changed() => break,
                    Ok(()) = updates.changed() => break,
                    () = &mut again => break,
                    Some(ended) = tasks.join_next_with_id() => {
                        let (id, ended) = match ended {
                            Ok((id, ended)) => (id, Some(ended)),
                            Err(error) => (error.id(), None),
                        };
                        // A task that was aborted has no entry any more.
                        let entry = followed.extract_if(.., |_, entry| entry.task.id() == id).next();
                        let Some((name, entry)) = entry else { continue };
                        let Some((_, end)) = ended else {
                            tracing::error!(name, "following a database ended badly: begins again soon");
                            break;
                        };
                        let failures = if entry.began.elapsed() > LONGEST_PAUSE { 0 } else { entry.failures };
                        self.events.tell(Event::Left(local_name(&name).as_str().into()));
                        if self.may_go_on(server, &name, end).await? {
                            let next = self.start(&mut tasks, server, &name, failures + 1);
                            followed.insert(name, next);
                        }
                    }
                }
            }
            // Many databases that come together are one reason to look.
            tokio::time::sleep_until(looked + SHORTEST_SCAN).await;
        }
    }

    /// What this node may have to follow: the upstream's databases, and those of which there is a mirror, in case that they are gone.
    async fn databases(&self, server: &Peer) -> Result<BTreeSet<String>, Lost> {
        let mut names: BTreeSet<String> = server::replicator_databases(server).await?.into_iter().collect();
        let (store, keys) = (&self.store, &self.keys);
        // Sorts right before them.
        let mut after = names::MIRROR_PREFIX.to_owned();
        loop {
            let from = after.as_str();
            let page = store.transact(|tx| async move { databases::list(&tx, keys, Some(from), PAGE).await });
            let page = page.await.map_err(|error| match error {
                documents::Error::Queue(error) => Lost::Store(error),
                error => Lost::Store(documents::corrupt("database list", error)),
            })?;
            let mirrors = page.iter().map_while(|(db, _)| db.strip_prefix(names::MIRROR_PREFIX));
            names.extend(mirrors.map(str::to_owned));
            match page.last() {
                Some((last, _)) if page.len() == PAGE && last.starts_with(names::MIRROR_PREFIX) => {
                    after.clone_from(last);
                }
                _ => return Ok(names),
            }
        }
    }

    fn start(
        &self,
        tasks: &mut JoinSet<(String, End)>,
        server: &Peer,
        name: &str,
        failures: u32,
    ) -> Followed {
        let runtime = self.store.runtime();
        let follower = Follower {
            upstream: self.clone(),
            server: server.clone(),
            name: name.to_owned(),
            db: local_name(name),
            number: runtime.random() >> 11,
        };
        let pause = match failures {
            0 => Duration::ZERO,
            n => FIRST_PAUSE.saturating_mul(1 << (n - 1).min(10)).min(LONGEST_PAUSE),
        };
        let began = Instant::now() + pause;
        let task = tasks.spawn(async move {
            if !pause.is_zero() {
                follower.upstream.sleep(pause).await;
            }
            let end = follower.run().await;
            (follower.name, end)
        });
        Followed { task, failures, began }
    }

    /// Whether a database whose following has ended is to be followed again soon.
    async fn may_go_on(&self, server: &Peer, name: &str, end: End) -> Result<bool, Lost> {
        match end {
            End::Gone => {
                tracing::info!(
                    db = local_name(name),
                    "the upstream's database is gone: so are its replications"
                );
                Ok(false)
            }
            // The next look may find that it is this node's after all.
            End::Overtaken => {
                tracing::info!(db = local_name(name), "another node follows the upstream's database");
                Ok(false)
            }
            End::NoMirror | End::Closed => Ok(true),
            End::Impossible(reason) => {
                tracing::error!(db = local_name(name), reason, "the upstream's database cannot be followed");
                Ok(false)
            }
            End::Upstream(error) => {
                // One feed that breaks is one feed; a server that is away is asked by one only.
                server::welcome(server).await?;
                tracing::info!(
                    db = local_name(name),
                    error = server::told(&error),
                    "follows the upstream's database again"
                );
                Ok(true)
            }
            End::Store(error) => {
                tracing::error!(db = local_name(name), %error, "cannot write what the upstream says: tries again");
                Ok(true)
            }
        }
    }
}

/// The mirror's name.
pub(super) fn local_name(name: &str) -> String {
    format!("{}{name}", names::MIRROR_PREFIX)
}
