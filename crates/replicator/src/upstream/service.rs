//! The service: determines which of the upstream's databases this node follows, and handles an upstream that does not respond.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use turnwise_outbound::{Client, Error, Peer, PeerSettings};
use turnwise_queue::Keyspace;
use turnwise_store::Store;
use turnwise_worker::Live;

use super::apply::End;
use super::follow::Follower;
use super::{Address, server};
use crate::doc_processor::Settings;
use crate::documents::{databases, names};
use crate::ownership::Ownership;
use crate::remote::Updates;
use crate::waits::{LONGEST_PAUSE, pause_after, sleep_about, until_stopped};

/// The time between two scans of all databases while their updates are followed.
const SCAN_INTERVAL: Duration = Duration::from_secs(300);
/// The time between two scans of all databases if their updates cannot be followed.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// The pause before the next attempt to follow the updates.
const UPDATES_PAUSE: Duration = Duration::from_secs(300);
/// The shortest time between two scans of all databases.
const SHORTEST_SCAN: Duration = Duration::from_secs(1);
/// The most databases that one node follows; each has a connection.
const MAX_FOLLOWED: usize = 1_000;
/// The most mirrors that a message names.
const SHOWN_MIRRORS: usize = 10;
/// Mirrors that one transaction lists.
const PAGE: usize = 1_000;

/// The condition of the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No request was made yet.
    Unknown,
    /// The upstream responds.
    Answers,
    /// The upstream does not respond, for this reason.
    Silent(String),
}

/// Follows the databases of an upstream CouchDB. Clones are cheap.
#[derive(Clone)]
pub struct Upstream {
    /// The store that holds the mirrors.
    pub store: Store,
    /// Their keys.
    pub keys: Keyspace,
    /// The settings against which documents are validated.
    pub settings: Live<Settings>,
    /// The connections.
    pub client: Client,
    /// The upstream's address.
    pub address: Address,
    /// The databases that this node owns.
    pub ownership: Ownership,
    /// The condition of the upstream.
    pub condition: Live<Condition>,
}

/// What decides when all databases are scanned.
struct Scans {
    /// Notified when a database may have been created or deleted.
    wanted: Notify,
    /// Whether the updates are followed.
    following: watch::Sender<bool>,
}

/// A database that this node follows, or will follow again after a pause.
struct Followed {
    /// Dropping the entry aborts the task.
    task: tokio::task::AbortHandle,
    /// Consecutive failures, and when the latest run began.
    failures: u32,
    began: Instant,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upstream {
    /// The upstream's uuid, if it reports one: part of the replication ids of its own replicator.
    ///
    /// # Errors
    /// The reason why it is not available now, without secrets.
    pub async fn uuid(
        address: &Address,
        settings: &PeerSettings,
        client: &Client,
    ) -> Result<Option<String>, String> {
        let server = address.peer(settings, client);
        server::welcome(&server).await.map(|welcome| welcome.uuid).map_err(|error| error.of_server())
    }

    /// The first mirrors in a store. Even mirrors of an upstream that is no longer configured have jobs.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn mirrors(store: &Store, keys: &Keyspace) -> turnwise_queue::Result<Vec<String>> {
        let page = store.transact(|tx| async move {
            databases::list(&tx, keys, Some(names::MIRROR_PREFIX), SHOWN_MIRRORS).await
        });
        Ok(page.await?.into_iter().map(|(db, _)| db).filter(|db| names::is_mirror(db)).collect())
    }

    /// Follows the databases that this node owns, until `stop` is cancelled.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move { self.keep_following().await })
    }

    async fn keep_following(&self) {
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let Err(end) = self.follow_all().await;
            if began.elapsed() > LONGEST_PAUSE {
                failures = 0;
            }
            let pause = pause_after(failures);
            failures += 1;
            if let End::Upstream(error) = &end {
                self.condition.set(Condition::Silent(error.of_server()));
            }
            tracing::warn!(upstream = %self.address, error = %end, "cannot follow the upstream; retrying in {pause:?}");
            self.sleep(pause).await;
        }
    }

    async fn sleep(&self, about: Duration) {
        sleep_about(&**self.store.runtime(), about).await;
    }

    async fn follow_all(&self) -> Result<Infallible, End> {
        let settings = self.settings.get();
        let server = self.address.peer(&settings.defaults.peers, &self.client);
        let welcome = server::welcome(&server).await?;
        let version = welcome.version.unwrap_or_default();
        let uuid = welcome.uuid.unwrap_or_default();
        tracing::info!(upstream = %self.address, version, uuid, "following the replicator databases of the upstream");
        if uuid != settings.server_uuid {
            tracing::warn!(
                uuid,
                "the upstream has another uuid: checkpoints that its own replicator left are not found; a new store adopts the \
                 uuid, and any other store if `[couchdb] uuid` is set to it"
            );
        }
        if server::is_admin(&server).await.is_ok_and(|is_admin| !is_admin) {
            tracing::warn!(
                "the login of `[upstream] url` is not a server administrator: the upstream may hide the passwords in \
                 replication documents from it, and replications that need them fail"
            );
        }
        self.condition.set(Condition::Answers);
        let scans = Scans { wanted: Notify::new(), following: watch::Sender::new(false) };
        tokio::select! {
            lost = self.follow_updates(&server, &scans) => lost,
            lost = self.keep_looking(&server, &scans) => lost,
        }
    }

    /// Requests a scan of all databases whenever one may have been created or deleted.
    async fn follow_updates(&self, server: &Peer, scans: &Scans) -> Result<Infallible, End> {
        loop {
            match self.read_updates(server, scans).await {
                Ok(()) => self.sleep(SHORTEST_SCAN).await,
                Err(error) => {
                    scans.following.send_replace(false);
                    // If the server itself does not respond, this ends everything.
                    server::welcome(server).await?;
                    let error = error.of_server();
                    tracing::info!(
                        error,
                        "`_db_updates` is not available: the upstream's list of databases is polled"
                    );
                    self.sleep(UPDATES_PAUSE).await;
                }
            }
            // Databases may have changed in between.
            scans.wanted.notify_one();
        }
    }

    async fn read_updates(&self, server: &Peer, scans: &Scans) -> Result<(), Error> {
        let mut updates = Updates::open(server, "now").await?;
        scans.following.send_replace(true);
        scans.wanted.notify_one();
        loop {
            let mut interesting = false;
            let goes_on = updates.next(|update| {
                interesting |= update.database.is_some_and(|name| names::is_replicator(&name));
                Ok(())
            });
            if !goes_on.await? {
                return Ok(());
            }
            if interesting {
                scans.wanted.notify_one();
            }
        }
    }

    /// Follows all existing databases that this node owns.
    async fn keep_looking(&self, server: &Peer, scans: &Scans) -> Result<Infallible, End> {
        let mut updates = scans.following.subscribe();
        let mut owners = self.ownership.changes();
        let mut followed: BTreeMap<String, Followed> = BTreeMap::new();
        let mut tasks: JoinSet<(String, End)> = JoinSet::new();
        loop {
            owners.borrow_and_update();
            let looked = Instant::now();
            let names = self.databases(server).await?;
            followed.retain(|name, _| self.ownership.is_mine(name) && names.contains(name));
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
                    () = scans.wanted.notified() => break,
                    Ok(()) = owners.changed() => break,
                    Ok(()) = updates.changed() => break,
                    () = &mut again => break,
                    Some(ended) = tasks.join_next_with_id() => {
                        let (id, ended) = match ended {
                            Ok((id, ended)) => (id, Some(ended)),
                            Err(error) => (error.id(), None),
                        };
                        // An aborted task has no entry any more.
                        let entry = followed.extract_if(.., |_, entry| entry.task.id() == id).next();
                        let Some((name, entry)) = entry else { continue };
                        let Some((_, end)) = ended else {
                            tracing::error!(name, "the task that follows a database panicked; it restarts soon");
                            break;
                        };
                        let failures = if entry.began.elapsed() > LONGEST_PAUSE { 0 } else { entry.failures };
                        if self.may_go_on(server, &name, end).await? {
                            let next = self.start(&mut tasks, server, &name, failures + 1);
                            followed.insert(name, next);
                        }
                    }
                }
            }
            // Many databases that change together cause one scan.
            tokio::time::sleep_until(looked + SHORTEST_SCAN).await;
        }
    }

    /// The databases that this node may have to follow: the upstream's, and those with a mirror, which may have been deleted.
    async fn databases(&self, server: &Peer) -> Result<BTreeSet<String>, End> {
        let mut names = server::replicator_databases(server).await?;
        let (store, keys) = (&self.store, &self.keys);
        // Sorts before all mirrors.
        let mut after = names::MIRROR_PREFIX.to_owned();
        loop {
            let from = after.as_str();
            let page = store.transact(|tx| async move { databases::list(&tx, keys, Some(from), PAGE).await });
            let page = page.await?;
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
            n => pause_after(n - 1),
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

    /// Whether to follow a database again soon, after this end.
    async fn may_go_on(&self, server: &Peer, name: &str, end: End) -> Result<bool, End> {
        match end {
            End::Gone => {
                tracing::info!(
                    db = local_name(name),
                    "the upstream's database was deleted, and so were its replications"
                );
                Ok(false)
            }
            // The next scan may find that this node owns it after all.
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
                // A broken feed concerns one database only; while the server is away, only one request checks it.
                server::welcome(server).await?;
                tracing::info!(
                    db = local_name(name),
                    error = error.of_server(),
                    "following the upstream's database again after an error"
                );
                Ok(true)
            }
            End::Store(error) => {
                tracing::error!(db = local_name(name), %error, "cannot store the upstream's changes; retrying");
                Ok(true)
            }
        }
    }
}

/// The mirror's name.
pub(super) fn local_name(name: &str) -> String {
    format!("{}{name}", names::MIRROR_PREFIX)
}
