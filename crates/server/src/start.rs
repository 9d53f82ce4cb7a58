//! What must be right before a server starts, and what it says if it is not.
//!
//! A store says itself what it holds: the row [`Keyspace::format`]. Whoever finds a store without any row writes it, together
//! with everything else that a store has from the beginning, in one transaction that has proved that there was nothing:
//! of several nodes that start at once on an empty store one does so, and the others find it done.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use turnwise_queue::{Error as QueueError, Format, Keyspace, keyspace, nodes};
use turnwise_replicator::Client;
use turnwise_replicator::documents::{self, databases, names};
use turnwise_replicator::upstream::Upstream;
use turnwise_store::{
    Condition, Error as StoreError, Isolation, MaybeStoreError, RangeRead, Runtime, Store, StoreUrl,
    Transaction,
};

use crate::config::Config;

/// How long a shared store may take to be opened, and as long again to answer what a start asks of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// As much of a foreign row's key is shown, in bytes.
const MAX_SHOWN_BYTES: usize = 60;

/// Why a server cannot start. One line, that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node cannot be called so.
    #[error("the node's name {0}")]
    Name(String),
    /// Another node has the name.
    #[error(
        "a node called {name} runs on this store{}: give each node a name of its own with --name", at(url.as_deref())
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where that node is reached.
        url: Option<String>,
    },
    /// The node cannot be reached there.
    #[error("the node's URL: {0}")]
    Advertised(String),
    /// The store cannot be used now.
    #[error("{}", told(store, cause))]
    Store {
        /// Its URL, without a password.
        store: String,
        /// Why not.
        cause: StoreError,
    },
    /// The store holds what no turnwise has written.
    #[error(
        "the store {store} holds rows that are not turnwise's (the first key is {key}): give turnwise a part of its own, \
         with another prefix or directory, or the store that was meant"
    )]
    Foreign {
        /// Its URL, without a password.
        store: String,
        /// The first key, as it may be shown.
        key: String,
    },
    /// The store holds data of another release.
    #[error(
        "the data in the store {store} is in format {found}, and this release knows format {}: use the release that wrote it",
        keyspace::FORMAT_VERSION
    )]
    Format {
        /// Its URL, without a password.
        store: String,
        /// The format found.
        found: String,
    },
    /// The store is being written by `turnwise store copy`.
    #[error(
        "the store {store} is an unfinished copy of {from}: run `turnwise store copy` again until it says that it is done"
    )]
    CopyUnderWay {
        /// Its URL, without a password.
        store: String,
        /// Where it is copied from.
        from: String,
    },
    /// Other nodes are on the store, with another UUID.
    #[error(
        "the configured [couchdb] uuid is not {theirs}, which the nodes on the store {store} have: give all of them the same \
         one, or none; to change it, stop all of them first"
    )]
    OtherUuid {
        /// Its URL, without a password.
        store: String,
        /// The UUID that they have.
        theirs: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {listen}: {cause}{}", listen_hint(cause))]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why not.
        cause: io::Error,
    },
    /// The catalogue cannot be used.
    #[error("{0}")]
    Catalogue(String),
    /// A setting is wrong.
    #[error(transparent)]
    Settings(QueueError),
    /// The upstream does not tell its UUID, which a new store would take over.
    #[error(
        "the upstream {upstream} does not answer ({cause}), and a new store takes its uuid over, so that replications go on \
         from the checkpoints that it left: start turnwise once it answers, or set [couchdb] uuid"
    )]
    Upstream {
        /// Its URL, without a password.
        upstream: String,
        /// Why not.
        cause: String,
    },
    /// The HTTP client cannot be made.
    #[error("cannot start the HTTP client: {0}")]
    Client(turnwise_replicator::Error),
}

fn told(store: &str, cause: &StoreError) -> String {
    match cause {
        StoreError::Unavailable(reason) => format!("the store {store} is unavailable: {reason}"),
        StoreError::NoRoom { what, place } => {
            format!("the store {store} has no room: {what} ({place}); start turnwise once there is some")
        }
        StoreError::Misuse(reason) => format!("the store {store} cannot be used: {reason}"),
        StoreError::Corrupt(what) => {
            format!(
                "the store {store} is corrupt: {what}; restore it from a backup, and keep what is there to be looked at"
            )
        }
        error => format!("the store {store}: {error}; try again"),
    }
}

fn at(url: Option<&str>) -> String {
    url.map(|url| format!(" ({url})")).unwrap_or_default()
}

fn listen_hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            ": another process listens there; stop it, or choose another address with --listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            ": this machine has no such address; choose another one with --listen"
        }
        io::ErrorKind::PermissionDenied => {
            ": ports below 1024 are the system's; choose another one with --listen"
        }
        _ => "",
    }
}

/// A start's use of a store.
pub(crate) struct Opened {
    pub store: Store,
    /// Whether nobody else can use the store.
    pub exclusive: bool,
    /// Its URL, without a password.
    url: String,
}

/// Opens a store.
pub(crate) async fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<Opened, StartError> {
    let opened = match tokio::time::timeout(PATIENCE, turnwise_store::open(url, runtime)).await {
        Ok(opened) => opened,
        Err(_) => Err(silent()),
    };
    match opened {
        Ok(store) => Ok(Opened { store, exclusive: !url.is_shared(), url: url.to_string() }),
        Err(cause) => Err(StartError::Store { store: url.to_string(), cause }),
    }
}

fn silent() -> StoreError {
    let reason =
        format!("no answer within {} s: is it running, and reachable from here?", PATIENCE.as_secs());
    StoreError::Unavailable(reason)
}

impl Opened {
    /// A store that was opened before, perhaps for others, too.
    pub(crate) fn with(store: Store, url: &StoreUrl) -> Self {
        Opened { store, exclusive: false, url: url.to_string() }
    }

    /// Something that a start asks of the store. A shared one that does not answer for a while ends the start; an embedded
    /// one may have as much to do as there is.
    pub(crate) async fn asked<T, E: Into<Refused>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, StartError> {
        let answer = match self.patience() {
            None => Ok(asked.await),
            Some(patience) => tokio::time::timeout(patience, asked).await,
        };
        let refused = match answer {
            Ok(answer) => return self.told(answer),
            Err(_) => Refused::Store(match self.store.condition() {
                Condition::Failing { reason, .. } => StoreError::Unavailable(reason),
                Condition::Working => silent(),
            }),
        };
        self.told(Err(refused))
    }

    /// How long the store may take to answer.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (!self.exclusive).then_some(PATIENCE)
    }

    /// What the store answered, as a start tells it.
    pub(crate) fn told<T, E: Into<Refused>>(&self, answer: Result<T, E>) -> Result<T, StartError> {
        let store = self.url.clone();
        answer.map_err(|error| match error.into() {
            Refused::Store(cause) => StartError::Store { store, cause },
            Refused::Foreign { key } => StartError::Foreign { store, key },
            Refused::Format { found } => StartError::Format { store, found },
            Refused::CopyUnderWay { from } => StartError::CopyUnderWay { store, from },
            Refused::OtherUuid { theirs } => StartError::OtherUuid { store, theirs },
            Refused::Settings(error) => StartError::Settings(error),
        })
    }
}

/// Why a store is not started on.
#[derive(Debug)]
pub(crate) enum Refused {
    Store(StoreError),
    Foreign { key: String },
    Format { found: String },
    CopyUnderWay { from: String },
    OtherUuid { theirs: String },
    Settings(QueueError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Refused::Store(error)
    }
}

impl From<QueueError> for Refused {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => Refused::Store(error),
            error => Refused::Settings(error),
        }
    }
}

impl MaybeStoreError for Refused {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Refused::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// The UUID for a store that has none yet, of a server beside a CouchDB: that one's, if it has one as CouchDB makes them.
pub(crate) async fn taken_over(
    opened: &Opened,
    keys: &Keyspace,
    config: &Config,
    client: &Client,
) -> Result<Option<String>, StartError> {
    let Some(upstream) = config.upstream.as_ref().filter(|_| config.uuid.is_none()) else { return Ok(None) };
    let stored = opened.store.transact(|tx| async move { tx.get(&keys.server_uuid()).await });
    if opened.asked(stored).await?.is_some() {
        return Ok(None);
    }
    let asked = Upstream::uuid(upstream, &config.replication, client);
    let uuid = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(uuid) => uuid,
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    };
    let no_answer = |cause| StartError::Upstream { upstream: upstream.to_string(), cause };
    let is_one = |uuid: &String| uuid.len() == 32 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(uuid.map_err(no_answer)?.filter(is_one))
}

/// Checks the store's format, and makes what every store has. Returns the server's UUID.
pub(crate) async fn initialise(
    opened: &Opened,
    keys: &Keyspace,
    uuid: Option<&str>,
    new_uuid: Option<String>,
) -> Result<String, Refused> {
    let Opened { store, exclusive, .. } = opened;
    let runtime = store.runtime();
    let new_uuid = new_uuid.unwrap_or_else(|| format!("{:016x}{:016x}", runtime.random(), runtime.random()));
    let (now_us, new_uuid) = (runtime.now_us(), new_uuid.as_str());
    store
        .transact(|tx| async move {
            check_format(&tx, keys).await?;
            let uuid = server_uuid(&tx, keys, uuid, new_uuid, *exclusive).await?;
            match databases::create(&tx, keys, names::REPLICATOR, now_us).await {
                Ok(()) | Err(documents::Error::DatabaseExists) => Ok(uuid),
                Err(documents::Error::Queue(error)) => Err(error.into()),
                Err(error) => unreachable!("the name is right, and nothing else can go wrong: {error}"),
            }
        })
        .await
}

async fn check_format(tx: &Transaction, keys: &Keyspace) -> Result<(), Refused> {
    let Some(found) = tx.get(&keys.format()).await? else {
        check_empty(tx, keys).await?;
        return Ok(tx.set(keys.format(), Format::current())?);
    };
    match Format::read(&found) {
        Format::Version(keyspace::FORMAT_VERSION) => Ok(()),
        Format::Version(other) => Err(Refused::Format { found: other.to_string() }),
        Format::Copying(copying) => Err(Refused::CopyUnderWay { from: copying.from }),
        Format::Unknown(found) => Err(Refused::Format { found }),
    }
}

/// Without a format, nothing may be there: it would be someone else's. The commit proves that it is so.
async fn check_empty(tx: &Transaction, keys: &Keyspace) -> Result<(), Refused> {
    let everything =
        RangeRead { begin: Bytes::new(), end: Bytes::from_static(&[0xff]), limit: 1, reverse: false };
    match tx.range_with(everything, Isolation::Serializable).await?.first() {
        None => Ok(()),
        Some((key, _)) if keys.contains(key) => Err(StoreError::Corrupt(
            "it has rows of turnwise's, and not the one that tells their format".into(),
        )
        .into()),
        Some((key, _)) => Err(Refused::Foreign { key: shown(key) }),
    }
}

fn shown(key: &[u8]) -> String {
    let more = if key.len() > MAX_SHOWN_BYTES { "…" } else { "" };
    format!("`{}{more}`", key[..key.len().min(MAX_SHOWN_BYTES)].escape_ascii())
}

/// The configured UUID, or the one that the store has, or a new one; and the store has it from now on.
async fn server_uuid(
    tx: &Transaction,
    keys: &Keyspace,
    configured: Option<&str>,
    new: &str,
    exclusive: bool,
) -> Result<String, Refused> {
    let corrupt = |error| turnwise_store::Error::Corrupt(format!("server uuid: {error}"));
    let stored: Option<String> = match tx.get(&keys.server_uuid()).await? {
        Some(value) => Some(serde_json::from_slice(&value).map_err(corrupt)?),
        None => None,
    };
    let uuid = configured.or(stored.as_deref()).unwrap_or(new).to_owned();
    if stored.as_ref() != Some(&uuid) {
        if let Some(theirs) = stored {
            // Each would look for checkpoints under ids of its own, and every move of a job would start it over.
            if !exclusive && !nodes::list(tx, keys).await?.is_empty() {
                return Err(Refused::OtherUuid { theirs });
            }
            tracing::warn!(
                "the configured uuid is not the one that this store was used with: replications look for checkpoints under \
                 new ids, and start over where there are none"
            );
        }
        tx.set(keys.server_uuid(), serde_json::json!(uuid).to_string().into())?;
    }
    Ok(uuid)
}
