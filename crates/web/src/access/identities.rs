//! Identities as this node knows them: a cache of rows.
//!
//! A row that was read is used until the versionstamp of identities changes. This node looks at the versionstamp every
//! second, and is also woken when it changes. So a token that was revoked through another node is refused here within a
//! second. While the store cannot be read, no row is cached, and every request must read the rows itself.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use turnwise_identity::session::SessionKey;
use turnwise_identity::{MAX_NAME_BYTES, Password, PasswordHash, Secret, Token, User, identities};
use turnwise_outbound::Client;
use turnwise_queue::Keyspace;
use turnwise_store::{Error as StoreError, Isolation, Store, Watch};

use super::Attempts;
use crate::v1_error::V1Error;

/// Without a change, the versionstamp is read again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A store that was open, and does not answer within this time, counts as open.
const SLOW_STORE: Duration = Duration::from_secs(2);
/// The most users, tokens and passwords that are cached of each.
const MAX_CACHED: usize = 10_000;
/// The most passwords that are hashed at the same time: each takes 19 MiB, and a core for some 10 ms.
const MAX_HASHING: usize = 2;
/// The most passwords that wait to be hashed.
const MAX_WAITING: usize = 64;
/// The last use of a token is written at most once in this time.
const USE_PRECISION_US: i64 = 3_600_000_000;

/// The identities of the store. Cheap to clone.
#[derive(Clone)]
pub struct Identities(Arc<Inner>);

struct Inner {
    store: Store,
    keys: Keyspace,
    /// With identities, it keeps tenants from internal addresses.
    client: Client,
    cache: RwLock<Cache>,
    attempts: Attempts,
    hashing: Arc<Semaphore>,
    waiting: Semaphore,
    /// Under which passwords that were right are remembered. Only this process knows it.
    memory_key: ring::hmac::Key,
}

#[derive(Default)]
struct Cache {
    /// Changes with every change of identities that this node sees: a row that was read before is not cached.
    generation: u64,
    /// Whether rows may be cached: not while the store cannot be read.
    caches: bool,
    /// The key of sessions; `Some(None)` if the store was open at the last look, and `None` before the first one. Once there
    /// is a key, it stays.
    session_key: Option<Option<SessionKey>>,
    users: HashMap<String, Arc<User>>,
    tokens: HashMap<String, Arc<Token>>,
    /// Passwords that were right, as MACs over the user, the password and its hash.
    passwords: HashSet<[u8; 32]>,
    /// When the last use of each token was written, in µs.
    uses: HashMap<String, i64>,
}

impl Cache {
    fn forget(&mut self) {
        self.generation += 1;
        self.caches = false;
        self.users.clear();
        self.tokens.clear();
        // What is known of passwords holds for their hashes, so it stays.
    }
}

/// Too many passwords are checked at the same time.
fn busy() -> V1Error {
    let hint = "try again; tokens and sessions are checked faster than passwords";
    V1Error::unavailable("too many logins at the same time", hint)
}

impl Identities {
    /// Reads them from this store.
    pub fn new(store: Store, keys: Keyspace, client: Client) -> Identities {
        let random = ring::rand::SystemRandom::new();
        let memory_key = ring::hmac::Key::generate(ring::hmac::HMAC_SHA256, &random);
        Identities(Arc::new(Inner {
            store,
            keys,
            client,
            cache: RwLock::default(),
            attempts: Attempts::default(),
            hashing: Arc::new(Semaphore::new(MAX_HASHING)),
            waiting: Semaphore::new(MAX_WAITING),
            memory_key: memory_key.expect("the operating system has random bytes"),
        }))
    }

    fn cache(&self) -> RwLockReadGuard<'_, Cache> {
        self.0.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache_mut(&self) -> RwLockWriteGuard<'_, Cache> {
        self.0.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the rows that are cached, and caches none until the next look.
    fn forget(&self) {
        self.cache_mut().forget();
    }

    /// A number that changes with every change of identities; `None` while they are not known.
    pub fn generation(&self) -> Option<u64> {
        let cache = self.cache();
        cache.caches.then_some(cache.generation)
    }

    /// After a change through this node: applies it before the response. If the store cannot be read, requests read what
    /// they need themselves.
    #[boxed]
    pub async fn changed(&self) {
        self.forget();
        if let Err(error) = self.load().await {
            tracing::debug!(%error, "identities are not cached until the store can be read");
        }
    }

    /// Reads whether the store is open.
    #[boxed]
    pub async fn load(&self) -> Result<(), StoreError> {
        self.look(None).await.map(|_| ())
    }

    /// Follows the changes of identities until `stop` is cancelled.
    #[boxed]
    pub async fn follow(self, stop: CancellationToken) {
        let following = async {
            let Inner { store, keys, .. } = &*self.0;
            let mut known: Option<Option<Bytes>> = None;
            // Of the version that is known; it is set up again only after a change.
            let mut watch: Option<Watch> = None;
            loop {
                // A read of a store that hangs must not keep what is cached valid.
                match tokio::time::timeout(LOOK_AGAIN, self.look(known.as_ref())).await {
                    Ok(Ok(seen)) => {
                        if known.as_ref() != Some(&seen) {
                            watch = None;
                        }
                        known = Some(seen);
                    }
                    Ok(Err(_)) | Err(_) => {
                        self.forget();
                        (known, watch) = (None, None);
                    }
                }
                if let (None, Some(seen)) = (&watch, &known) {
                    let watching = store.watch(keys.identities_versionstamp(), seen.clone());
                    watch = tokio::time::timeout(LOOK_AGAIN, watching).await.ok().and_then(Result::ok);
                }
                let changed = async {
                    match watch.as_mut() {
                        Some(watch) => watch.await,
                        None => std::future::pending().await,
                    }
                };
                let is_changed = tokio::select! {
                    () = changed => true,
                    () = store.runtime().sleep(LOOK_AGAIN) => false,
                };
                if is_changed {
                    watch = None;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
    }

    /// Reads the versionstamp, and if it is not `known`, starts the cache anew.
    async fn look(&self, known: Option<&Option<Bytes>>) -> Result<Option<Bytes>, StoreError> {
        let Inner { store, keys, .. } = &*self.0;
        let generation = self.cache().generation;
        let tx = store.begin().await?;
        let seen = tx.get_with(&keys.identities_versionstamp(), Isolation::Snapshot).await?;
        let caches = self.cache().caches;
        if known != Some(&seen) || !caches {
            let session_key = identities::session_key(&tx, keys).await?;
            let mut cache = self.cache_mut();
            // After a change in the meantime, what was read may be older than it.
            if cache.generation == generation {
                cache.forget();
                cache.caches = true;
                cache.session_key = cache.session_key.take().filter(Option::is_some).or(Some(session_key));
                self.0.client.guard_internal(cache.session_key.as_ref().is_some_and(Option::is_some));
            }
        }
        Ok(seen)
    }

    /// The key of sessions; `None` if the store is open.
    #[boxed]
    pub async fn session_key(&self) -> Result<Option<SessionKey>, StoreError> {
        let (known, is_current) = {
            let cache = self.cache();
            (cache.session_key.clone(), cache.caches)
        };
        match known {
            Some(Some(key)) => return Ok(Some(key)),
            Some(None) if is_current => return Ok(None),
            Some(None) => {}
            None => return self.read_session_key().await,
        }
        // While the store cannot answer, no request changes anything, and those that tell about the store must be answered.
        let read = tokio::time::timeout(SLOW_STORE, self.read_session_key()).await;
        Ok(read.ok().and_then(Result::ok).flatten())
    }

    async fn read_session_key(&self) -> Result<Option<SessionKey>, StoreError> {
        let tx = self.0.store.begin().await?;
        identities::session_key(&tx, &self.0.keys).await
    }

    /// Whether the store is known to be open. `false` if that is not known.
    pub fn is_open(&self) -> bool {
        matches!(self.cache().session_key, Some(None))
    }

    /// A user by name.
    #[boxed]
    pub async fn user(&self, name: &str) -> Result<Option<Arc<User>>, StoreError> {
        let generation = match self.known(|cache| cache.users.get(name)) {
            Ok(user) => return Ok(Some(user)),
            Err(generation) => generation,
        };
        let tx = self.0.store.begin().await?;
        let user = identities::user(&tx, &self.0.keys, name).await?.map(Arc::new);
        self.remember(generation, |cache| &mut cache.users, name, user.as_ref());
        Ok(user)
    }

    /// A row that is cached, or the generation in which it must be read.
    fn known<T>(&self, row: impl FnOnce(&Cache) -> Option<&Arc<T>>) -> Result<Arc<T>, u64> {
        let cache = self.cache();
        row(&cache).cloned().ok_or(cache.generation)
    }

    /// Caches a row, unless identities have changed since this generation.
    fn remember<T>(
        &self,
        generation: u64,
        rows: impl FnOnce(&mut Cache) -> &mut HashMap<String, Arc<T>>,
        name: &str,
        row: Option<&Arc<T>>,
    ) {
        let mut cache = self.cache_mut();
        if let Some(row) = row.filter(|_| cache.generation == generation && cache.caches) {
            with_room(rows(&mut cache)).insert(name.to_owned(), row.clone());
        }
    }

    /// The token with this secret, unless it has expired.
    #[boxed]
    pub async fn token(&self, secret: &Secret) -> Result<Option<Arc<Token>>, StoreError> {
        let now_us = self.0.store.runtime().now_us();
        let token = self.token_of(secret.id()).await?;
        let token = token.filter(|token| token.verifies(secret) && !token.is_expired(now_us));
        if let Some(token) = &token {
            self.note_use(&token.id, now_us);
        }
        Ok(token)
    }

    /// The token with this id, unless it has expired.
    pub async fn token_by_id(&self, id: &str) -> Result<Option<Arc<Token>>, StoreError> {
        let now_us = self.0.store.runtime().now_us();
        Ok(self.token_of(id).await?.filter(|token| !token.is_expired(now_us)))
    }

    async fn token_of(&self, id: &str) -> Result<Option<Arc<Token>>, StoreError> {
        let generation = match self.known(|cache| cache.tokens.get(id)) {
            Ok(token) => return Ok(Some(token)),
            Err(generation) => generation,
        };
        let tx = self.0.store.begin().await?;
        let token = identities::token(&tx, &self.0.keys, id).await?.map(Arc::new);
        self.remember(generation, |cache| &mut cache.tokens, id, token.as_ref());
        Ok(token)
    }

    /// Writes that a token was used, in the background, if that was not written lately.
    fn note_use(&self, id: &str, now_us: i64) {
        let is_recent = |at_us: &i64| now_us.saturating_sub(*at_us) < USE_PRECISION_US;
        if self.cache().uses.get(id).is_some_and(is_recent) {
            return;
        }
        let before = with_room(&mut self.cache_mut().uses).insert(id.to_owned(), now_us);
        if before.as_ref().is_some_and(is_recent) {
            return;
        }
        let (identities, id) = (self.clone(), id.to_owned());
        tokio::spawn(async move {
            let Inner { store, keys, .. } = &*identities.0;
            let id = id.as_str();
            let written =
                store.transact(|tx| async move { identities::used(&tx, keys, id, now_us).await }).await;
            if let Err(error) = written {
                tracing::debug!(%error, "the last use of a token is not recorded");
            }
        });
    }

    /// Checks a password. Returns the user if it is right.
    pub async fn check_password(
        &self,
        peer: std::net::IpAddr,
        name: &str,
        password: &str,
    ) -> Result<Option<Arc<User>>, V1Error> {
        if name.len() > MAX_NAME_BYTES {
            return Ok(None);
        }
        let user = self.user(name).await?;
        let memory = user.as_ref().map(|user| self.memory_of(user, password));
        if memory.is_some_and(|memory| self.cache().passwords.contains(&memory)) {
            return Ok(user);
        }
        self.check_wait(peer, name)?;
        let room = self.room().await?;
        // Others may have failed while this one waited for its turn.
        self.check_wait(peer, name)?;
        // A name that does not exist takes as long as one that does.
        let hash = user.as_ref().map(|user| user.password.clone());
        let (identities, name, given) = (self.clone(), name.to_owned(), password.to_owned());
        // The result counts although the client may have gone, and the work is counted until it ends.
        let checking = move || {
            let _room = room;
            let is_right = hash.unwrap_or_else(nobodys_hash).verifies(&given);
            match is_right {
                true => identities.0.attempts.succeeded(peer, &name),
                false => identities.0.attempts.failed(peer, &name, std::time::Instant::now()),
            }
            is_right
        };
        let is_right = tokio::task::spawn_blocking(checking).await.map_err(|_| busy())?;
        let Some(user) = user.filter(|_| is_right) else { return Ok(None) };
        if let Some(memory) = memory {
            let mut cache = self.cache_mut();
            if cache.passwords.len() >= MAX_CACHED {
                cache.passwords.clear();
            }
            cache.passwords.insert(memory);
        }
        Ok(Some(user))
    }

    fn check_wait(&self, peer: std::net::IpAddr, name: &str) -> Result<(), V1Error> {
        let wait = self.0.attempts.wait(peer, name, std::time::Instant::now());
        wait.map_or(Ok(()), |wait| {
            let reason = "too many wrong passwords: this one was not checked";
            let hint = "try again later; the header Retry-After has the time in s";
            Err(V1Error::too_many(reason, hint).retry_after(wait))
        })
    }

    /// Hashes a new password.
    #[boxed]
    pub async fn hash(&self, password: Password) -> Result<PasswordHash, V1Error> {
        let room = self.room().await?;
        let hashing = move || {
            let _room = room;
            password.hash()
        };
        tokio::task::spawn_blocking(hashing).await.map_err(|_| busy())
    }

    /// Waits until a password may be hashed. Move the permit into the work: a request may end before its work does.
    async fn room(&self) -> Result<OwnedSemaphorePermit, V1Error> {
        let _waits = self.0.waiting.try_acquire().map_err(|_| busy())?;
        self.0.hashing.clone().acquire_owned().await.map_err(|_| busy())
    }

    /// What is remembered of a right password. It is of no use without this process's key, and for another hash.
    fn memory_of(&self, user: &User, password: &str) -> [u8; 32] {
        let mut context = ring::hmac::Context::with_key(&self.0.memory_key);
        let hash = user.password.secret_text();
        for part in [user.name.as_bytes(), hash.as_bytes(), password.as_bytes()] {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().try_into().unwrap_or_default()
    }
}

/// A part of the cache that has room for one more row: a full one is emptied.
fn with_room<V>(rows: &mut HashMap<String, V>) -> &mut HashMap<String, V> {
    if rows.len() >= MAX_CACHED {
        rows.clear();
    }
    rows
}

/// The hash of a password that nobody has.
fn nobodys_hash() -> PasswordHash {
    static HASH: OnceLock<PasswordHash> = OnceLock::new();
    HASH.get_or_init(|| Password::unknown().hash()).clone()
}
