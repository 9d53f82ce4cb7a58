//! The checks before a server starts, and the errors that they report.
//!
//! The row [`Keyspace::format`] states the format of a store's data. A node that finds an empty store writes this row,
//! together with all other initial rows. It does so in one transaction, which also proves that the store was empty. If
//! several nodes start on an empty store at the same time, one of them commits, and the others then find the rows.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use turnwise_config::Config;
use turnwise_config::small_file::{check_protected, check_secret};
use turnwise_outbound::Client;
use turnwise_queue::{Error as QueueError, Format, Keyspace, keyspace, nodes};
use turnwise_replicator::documents::{self, databases, names};
use turnwise_replicator::upstream::Upstream;
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::{
    Condition, Error as StoreError, Isolation, MaybeStoreError, RangeRead, Runtime, Seal, Store, StoreUrl,
    Transaction,
};

/// The time limit of opening a shared store, and of each request to the store during the start.
const PATIENCE: Duration = Duration::from_secs(10);
/// The size of a log segment of a store for tests, which takes three of them in memory.
const VOLATILE_SEGMENT_BYTES: u64 = 4 << 20;
/// A foreign row's key is shown up to this length, in bytes.
const MAX_SHOWN_BYTES: usize = 60;

/// Why a server cannot start: one line, which states what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The command line, or what it names, must be corrected.
    #[error("{0}")]
    Usage(String),
    /// A setting, or what it names, cannot be used now.
    #[error("{0}")]
    Setting(String),
    /// The store cannot be opened or used now, or is not for this server.
    #[error("{}", described(store, cause))]
    Store {
        /// Its URL, without a password.
        store: String,
        /// Why.
        cause: Refused,
    },
}

impl StartError {
    /// Whether the command line, or what it names, must be corrected before a start can succeed.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            StartError::Usage(_) | StartError::Store { cause: Refused::Store(StoreError::Exposed(_)), .. }
        )
    }

    /// The error of an address on which the server cannot listen.
    pub(crate) fn listen(listen: SocketAddr, cause: &io::Error) -> StartError {
        let hint = match cause.kind() {
            io::ErrorKind::AddrInUse => {
                ": another process listens there; stop it, or choose another address with --listen"
            }
            io::ErrorKind::AddrNotAvailable => {
                ": this machine has no such address; choose another one with --listen"
            }
            io::ErrorKind::PermissionDenied => {
                ": ports below 1024 need privileges; choose another one with --listen"
            }
            _ => "",
        };
        StartError::Setting(format!("cannot listen on {listen}: {cause}{hint}"))
    }

    /// The error of a setting with a problem, after some words that say what it is about.
    pub(crate) fn setting<E: fmt::Display>(about: &'static str) -> impl Fn(E) -> StartError {
        move |problem| StartError::Setting(format!("{about}{problem}"))
    }
}

fn described(store: &str, cause: &Refused) -> String {
    match cause {
        Refused::Store(StoreError::Unavailable(reason)) => {
            format!("the store {store} is unavailable: {reason}")
        }
        Refused::Store(StoreError::NoRoom { what, place }) => {
            format!("the store {store} has no room: {what} ({place}); start turnwise once there is room")
        }
        Refused::Store(StoreError::Misuse(reason)) => format!("the store {store} cannot be used: {reason}"),
        Refused::Store(StoreError::Exposed(reason)) => reason.clone(),
        Refused::Store(StoreError::Corrupt(what)) => format!(
            "the store {store} is corrupt: {what}; restore it from a backup, and keep the damaged store for analysis"
        ),
        Refused::Store(error) => format!("the store {store}: {error}; try again"),
        Refused::Foreign(key) => format!(
            "the store {store} holds rows that are not turnwise's (the first key is {key}): give turnwise a prefix or \
             directory of its own, or correct the store's URL"
        ),
        Refused::Format(found) => format!(
            "the data in the store {store} is in format {found}, and this release knows format {}: use the release that \
             wrote it",
            keyspace::FORMAT_VERSION
        ),
        Refused::CopyUnderWay(from) => format!(
            "the store {store} is an unfinished copy of {from}: run `turnwise store copy` again until it says that it is done"
        ),
        Refused::OtherUuid(theirs) => format!(
            "the configured [couchdb] uuid is not {theirs}, which the nodes on the store {store} have: give all of them the \
             same one, or none; to change it, stop all of them first"
        ),
        Refused::Setting(error) => error.to_string(),
    }
}

/// Checks that no other user of the machine may use the files that are not for them. A key that becomes readable later is
/// not used (`web::tls`).
pub(crate) fn check_files(config: &Config) -> Result<(), StartError> {
    let exposed = |setting: &str, problem| StartError::Usage(format!("{setting} {problem}"));
    if let Some(key) = config.tls.key.as_deref().filter(|key| key.exists()) {
        check_secret(key).map_err(|problem| exposed("[listener] key", problem))?;
    }
    // The server creates a missing one with mode 0600. Programs that collect logs may read it as a group.
    if let Some(file) = config.audit_file.as_deref().filter(|file| file.exists()) {
        check_protected(file).map_err(|problem| exposed("[audit] file", problem))?;
    }
    Ok(())
}

/// A store that a start has opened.
pub(crate) struct Opened {
    pub store: Store,
    /// Whether this process has exclusive use of the store.
    pub exclusive: bool,
    /// Its URL, without a password.
    url: String,
}

/// Opens a store.
pub(crate) async fn open(
    url: &StoreUrl,
    runtime: Arc<dyn Runtime>,
    seal: &Seal,
) -> Result<Opened, StartError> {
    let opened = match tokio::time::timeout(PATIENCE, turnwise_store::open_with(url, runtime, seal)).await {
        Ok(opened) => opened,
        Err(_) => Err(silent()),
    };
    let failed = |cause| StartError::Store { store: url.to_string(), cause: Refused::Store(cause) };
    Ok(Opened { store: opened.map_err(failed)?, exclusive: !url.is_shared(), url: url.to_string() })
}

fn silent() -> StoreError {
    let reason =
        format!("no answer within {} s: is it running, and reachable from here?", PATIENCE.as_secs());
    StoreError::Unavailable(reason)
}

impl Opened {
    /// For a store that is already open, and that other nodes may share.
    pub(crate) fn with(store: Store, url: &StoreUrl) -> Self {
        Opened { store, exclusive: false, url: url.to_string() }
    }

    /// The store in this folder, without waits for the disk: a crash of the machine may lose it.
    pub(crate) fn volatile(folder: &Path, runtime: Arc<dyn Runtime>) -> Result<Self, StartError> {
        let options = embedded::Options {
            durable: false,
            segment_bytes: VOLATILE_SEGMENT_BYTES,
            runtime: runtime.clone(),
            ..embedded::Options::default()
        };
        let url = StoreUrl::Embedded { data_dir: folder.to_owned() }.to_string();
        let failed = |cause| StartError::Store { store: url.clone(), cause: Refused::Store(cause) };
        let engine = Embedded::open_with(folder, options).map_err(failed)?;
        Ok(Opened { store: Store::new(engine, runtime), exclusive: true, url })
    }

    /// Runs one operation of the start on the store. A shared store that does not respond in time ends the start. An
    /// embedded store has no time limit, because it may have any amount of work to do.
    pub(crate) async fn asked<T, E: Into<Refused>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, StartError> {
        let answer = match self.patience() {
            None => Ok(asked.await),
            Some(patience) => tokio::time::timeout(patience, asked).await,
        };
        let refused = match answer {
            Ok(answer) => return self.or_start_error(answer),
            Err(_) => Refused::Store(match self.store.condition() {
                Condition::Failing { reason, .. } => StoreError::Unavailable(reason),
                Condition::Working => silent(),
            }),
        };
        self.or_start_error(Err(refused))
    }

    /// How long one operation may take. `None` means no limit.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (!self.exclusive).then_some(PATIENCE)
    }

    /// Converts an error of the store into an error of the start.
    pub(crate) fn or_start_error<T, E: Into<Refused>>(&self, answer: Result<T, E>) -> Result<T, StartError> {
        answer.map_err(|error| StartError::Store { store: self.url.clone(), cause: error.into() })
    }
}

/// Why a server does not start on a store.
#[derive(Debug)]
pub enum Refused {
    /// An error of the store itself.
    Store(StoreError),
    /// The store holds rows that turnwise has not written: the first key, in printable form.
    Foreign(String),
    /// The store holds data of another release, in this format.
    Format(String),
    /// `turnwise store copy` is writing the store, and reads from this one.
    CopyUnderWay(String),
    /// Other nodes run on the store, with this UUID.
    OtherUuid(String),
    /// A setting in the store is invalid.
    Setting(QueueError),
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
            error => Refused::Setting(error),
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

/// The UUID for a store that has none yet: with an upstream, the upstream's UUID, if it has CouchDB's form.
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
    let asked = Upstream::uuid(upstream, &config.replication.peers, client);
    let uuid = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(uuid) => uuid,
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    };
    let no_answer = |cause: String| {
        StartError::Setting(format!(
            "the upstream {upstream} does not answer ({cause}). A new store adopts its uuid, so that replications resume from its \
             checkpoints: start turnwise once it answers, or set [couchdb] uuid"
        ))
    };
    let is_one = |uuid: &String| uuid.len() == 32 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(uuid.map_err(no_answer)?.filter(is_one))
}

/// Checks that the store is turnwise's, or empty, and makes it turnwise's.
pub(crate) async fn claim_store(opened: &Opened, keys: &Keyspace) -> Result<(), Refused> {
    opened.store.transact(|tx| async move { check_format(&tx, keys).await }).await
}

/// Checks the store's format, and writes the rows that every store has. Returns the server's UUID.
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

/// Refuses a store whose data this release does not read. Returns whether it has a format; otherwise it is empty.
pub(crate) async fn check_readable(tx: &Transaction, keys: &Keyspace) -> Result<bool, Refused> {
    let Some(found) = tx.get(&keys.format()).await? else {
        check_empty(tx, keys).await?;
        return Ok(false);
    };
    match Format::read(&found) {
        Format::Version(keyspace::FORMAT_VERSION) => Ok(true),
        Format::Version(other) => Err(Refused::Format(other.to_string())),
        Format::Copying(copying) => Err(Refused::CopyUnderWay(copying.from)),
        Format::Unknown(found) => Err(Refused::Format(found)),
    }
}

async fn check_format(tx: &Transaction, keys: &Keyspace) -> Result<(), Refused> {
    match check_readable(tx, keys).await? {
        true => Ok(()),
        // From now on no release with another format starts on the store.
        false => Ok(tx.set(keys.format(), Format::current())?),
    }
}

/// A store without a format row must be empty: other rows would belong to another program. The commit proves that it was empty.
async fn check_empty(tx: &Transaction, keys: &Keyspace) -> Result<(), Refused> {
    let everything =
        RangeRead { begin: Bytes::new(), end: Bytes::from_static(&[0xff]), limit: 1, reverse: false };
    match tx.range_with(everything, Isolation::Serializable).await?.first() {
        None => Ok(()),
        Some((key, _)) if keys.contains(key) => Err(StoreError::Corrupt(
            "it has rows of turnwise, but not the row that states their format".into(),
        )
        .into()),
        Some((key, _)) => Err(Refused::Foreign(shown(key))),
    }
}

fn shown(key: &[u8]) -> String {
    let more = if key.len() > MAX_SHOWN_BYTES { "…" } else { "" };
    format!("`{}{more}`", key[..key.len().min(MAX_SHOWN_BYTES)].escape_ascii())
}

/// The configured UUID, or the stored one, or a new one. Stores it if it has changed.
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
            // Nodes with different UUIDs look for checkpoints under different ids, so each move of a job would restart it.
            if !exclusive && !nodes::list(tx, keys).await?.is_empty() {
                return Err(Refused::OtherUuid(theirs));
            }
            tracing::warn!(
                "the configured uuid is not the one that this store had before: replications look for checkpoints under \
                 new ids, and start over where there are none"
            );
        }
        tx.set(keys.server_uuid(), serde_json::json!(uuid).to_string().into())?;
    }
    Ok(uuid)
}
