//! Settings that servers on one store share: rows that override each server's file.
//!
//! ```text
//!   PUT /_node/…/_config ──▶ ("config", section, key) ──▶ every server: its file, and the rows over it
//!                            ("config_vs") ─── watched ──▶ a change applies immediately
//! ```
//!
//! A row holds a setting's text as in the file, and overrides the file. A server checks a value before it writes it. A
//! server of another release may still be unable to use a row: it logs the problem and ignores the row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Error, Keyspace};
use turnwise_store::{Isolation, MaybeStoreError, RangeRead, Store, Transaction, Watch};

use super::entry::{Entry, MAX_TENANTS, MAX_TYPES};
use super::{Changes, Config, SETTINGS, TENANT_SHARES, TYPE_TIMEOUTS, effect};

/// Maximum number of rows that are read: every setting, and twice the maximum of tenants and types. Two requests that
/// add the last ones at the same time do not conflict.
const MAX_ROWS: usize =
    SETTINGS.len() + 2 * (MAX_TENANTS * TENANT_SHARES.len() + MAX_TYPES * TYPE_TIMEOUTS.len());
/// Longest value, in bytes.
const MAX_VALUE_BYTES: usize = 4 << 10;
/// Without a change, the rows are read again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The pause after a failed read.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// Values by section and key.
type Rows = BTreeMap<(String, String), String>;

/// The settings that servers share. Cheap to clone.
#[derive(Clone)]
pub struct Shared {
    store: Store,
    keys: Keyspace,
    /// The settings of this server's file that are in force.
    file: watch::Sender<Arc<Config>>,
}

/// Why a setting was not changed.
#[derive(Debug)]
pub enum Refused {
    /// The setting does not exist. The text is the message.
    Unknown(String),
    /// The setting is not shared. The text is the reason.
    InFile(&'static str),
    /// The value is invalid. The text describes the valid values.
    Wrong(String),
    /// The setting has no shared value.
    NotSet,
    /// The store does not answer.
    Store(Error),
}

impl From<turnwise_store::Error> for Refused {
    fn from(error: turnwise_store::Error) -> Self {
        Refused::Store(error.into())
    }
}

impl MaybeStoreError for Refused {
    fn store_error(&self) -> Option<&turnwise_store::Error> {
        match self {
            Refused::Store(error) => error.store_error(),
            _ => None,
        }
    }
}

impl Shared {
    /// With the settings of a file.
    pub fn new(store: Store, keys: Keyspace, file: Config) -> Shared {
        Shared { store, keys, file: watch::Sender::new(Arc::new(file)) }
    }

    /// The same settings, through another handle of the store.
    pub fn on(&self, store: Store) -> Shared {
        Shared { store, ..self.clone() }
    }

    /// Applies those settings of a new file that can change at run time. Returns the settings that need a restart, as
    /// section and key.
    pub fn reload(&self, file: Config) -> Vec<(&'static str, &'static str)> {
        let running = self.file.borrow().clone();
        // A UUID that the file does not contain is the store's.
        let file = Config { uuid: file.uuid.clone().or_else(|| running.uuid.clone()), ..file };
        let new = running.reloaded(&file);
        let waiting = SETTINGS.iter().filter(|setting| !(setting.is_same)(&file, &new));
        let waiting = waiting.map(|setting| (setting.section, setting.key)).collect();
        self.file.send_replace(Arc::new(new));
        waiting
    }

    /// The configuration in force.
    pub async fn current(&self) -> Result<Config, Error> {
        let tx = self.store.begin().await?;
        Ok(self.over(&read(&tx, &self.keys).await?, |_| {}))
    }

    /// The configuration in force, the one of this server's file, and the section and key of each shared value.
    pub async fn layers(&self) -> Result<(Config, Arc<Config>, BTreeSet<(String, String)>), Error> {
        let tx = self.store.begin().await?;
        let rows = read(&tx, &self.keys).await?;
        let (config, file) = (self.over(&rows, |_| {}), self.file.borrow().clone());
        Ok((config, file, rows.into_keys().collect()))
    }

    /// Sets a setting for all servers. Returns its previous value.
    pub async fn set(&self, section: &str, key: &str, value: &str) -> Result<Option<String>, Refused> {
        let entry = changeable(section, key)?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(Refused::Wrong(format!("at most {MAX_VALUE_BYTES} bytes")));
        }
        entry.write(&mut Config::clone(&self.file.borrow()), value).map_err(Refused::Wrong)?;
        self.change(entry, Some(serde_json::Value::from(value).to_string().into())).await
    }

    /// Removes a setting's shared value, so that each server's file applies again. Returns the previous value.
    pub async fn unset(&self, section: &str, key: &str) -> Result<Option<String>, Refused> {
        self.change(changeable(section, key)?, None).await
    }

    async fn change(&self, entry: Entry<'_>, row: Option<Bytes>) -> Result<Option<String>, Refused> {
        let (keys, row) = (&self.keys, &row);
        let before = self.store.transact(|tx| async move {
            let rows = read(&tx, keys).await.map_err(Refused::Store)?;
            let key = keys.config_entry(entry.section(), entry.key());
            match (tx.get(&key).await?, row) {
                (None, Some(row)) => {
                    check_room(&rows, entry)?;
                    tx.set(key, row.clone())?;
                }
                (Some(_), Some(row)) => tx.set(key, row.clone())?,
                (Some(_), None) => tx.clear(key)?,
                (None, None) => return Err(Refused::NotSet),
            }
            tx.set_versionstamp(keys.config_versionstamp())?;
            Ok(entry.read(&self.over(&rows, |_| {})))
        });
        before.await
    }

    /// Calls `apply` with the configuration whenever it may have changed, until `stop` is cancelled.
    pub async fn follow(self, apply: impl Fn(&Config) + Send, stop: CancellationToken) {
        let following = async {
            let mut file = self.file.subscribe();
            let (mut known, mut before) = (None, None);
            loop {
                let (rows, changed) = match self.look().await {
                    Ok(read) => read,
                    Err(error) => {
                        tracing::error!(%error, "cannot read the shared settings; retrying");
                        self.store.runtime().sleep(ERROR_PAUSE).await;
                        continue;
                    }
                };
                let reloaded = file.has_changed().unwrap_or_default();
                file.mark_unchanged();
                if known.as_ref() != Some(&rows) || reloaded {
                    let config = self.over(&rows, |problem| tracing::warn!("{problem}"));
                    log_changes(before.as_ref(), &config);
                    apply(&config);
                    (known, before) = (Some(rows), Some(config));
                }
                tokio::select! {
                    () = changed => {}
                    _ = file.changed() => file.mark_changed(),
                    () = self.store.runtime().sleep(LOOK_AGAIN) => {}
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
    }

    /// Reads the rows, and watches for their next change.
    async fn look(&self) -> Result<(Rows, Watch), Error> {
        let tx = self.store.begin().await?;
        let key = self.keys.config_versionstamp();
        let seen = tx.get_with(&key, Isolation::Snapshot).await?;
        let rows = read(&tx, &self.keys).await?;
        drop(tx);
        Ok((rows, self.store.watch(key, seen).await?))
    }

    /// The file, overridden by the rows. Reports each row that cannot be used.
    fn over(&self, rows: &Rows, report: impl Fn(String)) -> Config {
        let mut config = Config::clone(&self.file.borrow());
        for ((section, key), value) in rows {
            let written = changeable(section, key).map(|entry| entry.write(&mut config, value));
            match written {
                Ok(Ok(())) => {}
                Ok(Err(right)) => {
                    report(format!(
                        "the shared setting [{section}] {key} = {value} is ignored: expected {right}"
                    ));
                }
                Err(_) => report(format!(
                    "the shared setting [{section}] {key} is unknown to this release, and is ignored"
                )),
            }
        }
        let names = rows.keys().filter_map(|(section, key)| effect::missing(&config, section, key));
        names.for_each(|problem| report(format!("the shared setting {problem}")));
        config
    }
}

/// The entry of this name, if it can change at run time.
fn changeable<'a>(section: &str, key: &'a str) -> Result<Entry<'a>, Refused> {
    let Some(entry) = Entry::find(section, key) else {
        return Err(Refused::Unknown(super::parse::why_refused(section, key)));
    };
    match entry.changes() {
        Changes::Live => Ok(entry),
        Changes::InFile(why) => Err(Refused::InFile(why)),
    }
}

/// Checks that the section has room for one more tenant or type.
fn check_room(rows: &Rows, entry: Entry<'_>) -> Result<(), Refused> {
    let (most, what) = match entry {
        Entry::Tenant(..) => (MAX_TENANTS, "tenants"),
        Entry::Type(..) => (MAX_TYPES, "job types"),
        Entry::Setting(_) => return Ok(()),
    };
    let named = rows.keys().filter(|(section, _)| section == entry.section()).count();
    if named < most {
        return Ok(());
    }
    Err(Refused::Wrong(format!("at most {most} {what}: remove one to add another")))
}

async fn read(tx: &Transaction, keys: &Keyspace) -> Result<Rows, Error> {
    let (begin, end) = keys.config();
    let range = RangeRead { begin, end, limit: MAX_ROWS, reverse: false };
    let rows = tx.range_with(range, Isolation::Snapshot).await?;
    let corrupt = |_| turnwise_store::Error::Corrupt("a shared setting's value".to_owned());
    rows.iter()
        .map(|(key, value)| {
            let name = keys.parse_config(key)?;
            let value = serde_json::from_slice(value).map_err(corrupt)?;
            Ok((name, value))
        })
        .collect()
}

/// Logs the changes. Secret values are masked.
fn log_changes(before: Option<&Config>, now: &Config) {
    let Some(before) = before else { return };
    let values = |config| {
        Entry::all(config)
            .map(|(entry, value)| ((entry.section(), entry.key()), value))
            .collect::<BTreeMap<_, _>>()
    };
    let (was, is) = (values(before), values(now));
    let shown = |value: Option<&String>| value.map_or("the default", String::as_str).to_owned();
    for name in was.keys().chain(is.keys().filter(|name| !was.contains_key(*name))) {
        let (was, is) = (was.get(name), is.get(name));
        if was != is {
            let (section, key) = name;
            tracing::info!("[{section}] {key} is {} now, and was {}", shown(is), shown(was));
        }
    }
}
