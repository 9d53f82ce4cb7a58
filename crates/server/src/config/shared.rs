//! Settings that servers on one store share: rows over each server's file.
//!
//! ```text
//!   PUT /_node/…/_config ──▶ ("config", section, key) ──▶ every server: its file, and the rows over it
//!                            ("config_vs") ─── watched ──▶ what changed is in force at once
//! ```
//!
//! A row is a setting's text as it would stand in the file, and counts for more than the file. It is checked before it is
//! written; what a server cannot take all the same, because its release is another one, it tells in its log and leaves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Error, Keyspace};
use turnwise_store::{Isolation, MaybeStoreError, RangeRead, Store, Transaction};

use super::{Changes, Config, SETTINGS, Setting};

/// Rows that are read at most.
const MAX_ROWS: usize = 10_000;
/// Longest value, in bytes.
const MAX_VALUE_BYTES: usize = 4 << 10;
/// Without a change, the rows are read again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The pause after a read that failed.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// Values by section and key.
type Rows = BTreeMap<(String, String), String>;

/// The settings that servers share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Shared {
    store: Store,
    keys: Keyspace,
    /// What this server's file says.
    file: Arc<Config>,
}

/// Why a setting is not changed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// There is no such setting. What there is to say of it.
    Unknown(String),
    /// It is not shared. Why.
    InFile(&'static str),
    /// It cannot have this value. What would be right.
    Wrong(String),
    /// It is not set.
    NotSet,
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
    pub fn new(store: Store, keys: Keyspace, file: Config) -> Shared {
        Shared { store, keys, file: Arc::new(file) }
    }

    /// The same, through another handle of the store.
    pub fn on(&self, store: Store) -> Shared {
        Shared { store, ..self.clone() }
    }

    /// What is in force.
    pub async fn current(&self) -> Result<Config, Error> {
        let tx = self.store.begin().await?;
        Ok(self.over(&read(&tx, &self.keys).await?, |_| {}))
    }

    /// Gives a setting a value, for all servers. Returns what it was.
    pub async fn set(&self, section: &str, key: &str, value: &str) -> Result<Option<String>, Refused> {
        let setting = changeable(section, key)?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(Refused::Wrong(format!("at most {MAX_VALUE_BYTES} bytes")));
        }
        setting.write(&mut (*self.file).clone(), value).map_err(Refused::Wrong)?;
        self.change(setting, Some(serde_json::Value::from(value).to_string().into())).await
    }

    /// Leaves a setting to each server's file again. Returns what it was.
    pub async fn unset(&self, section: &str, key: &str) -> Result<Option<String>, Refused> {
        self.change(changeable(section, key)?, None).await
    }

    async fn change(&self, setting: &Setting, row: Option<Bytes>) -> Result<Option<String>, Refused> {
        let (keys, row) = (&self.keys, &row);
        let before = self.store.transact(|tx| async move {
            let rows = read(&tx, keys).await.map_err(Refused::Store)?;
            let entry = keys.config_entry(setting.section, setting.key);
            match (tx.get(&entry).await?, row) {
                (_, Some(row)) => tx.set(entry, row.clone())?,
                (Some(_), None) => tx.clear(entry)?,
                (None, None) => return Err(Refused::NotSet),
            }
            tx.set_versionstamp(keys.config_versionstamp())?;
            Ok(setting.read(&self.over(&rows, |_| {})))
        });
        before.await
    }

    /// Hands what is in force to `apply` whenever it may have changed, until it is stopped.
    pub async fn follow(self, apply: impl Fn(&Config) + Send, stop: CancellationToken) {
        let following = async {
            let (mut known, mut before) = (None, None);
            loop {
                let seen = match self.look().await {
                    Ok((rows, seen)) => {
                        if known.as_ref() != Some(&rows) {
                            let config = self.over(&rows, |problem| tracing::warn!("{problem}"));
                            tell(before.as_ref(), &config);
                            apply(&config);
                            (known, before) = (Some(rows), Some(config));
                        }
                        seen
                    }
                    Err(error) => {
                        tracing::error!(%error, "cannot read the shared settings: tries again");
                        self.store.runtime().sleep(ERROR_PAUSE).await;
                        continue;
                    }
                };
                let changed = match self.store.watch(self.keys.config_versionstamp(), seen).await {
                    Ok(changed) => changed,
                    Err(error) => {
                        tracing::error!(%error, "cannot watch the shared settings: looks again soon");
                        self.store.runtime().sleep(ERROR_PAUSE).await;
                        continue;
                    }
                };
                tokio::select! {
                    () = changed => {}
                    () = self.store.runtime().sleep(LOOK_AGAIN) => {}
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
    }

    /// The rows, and the version that they have.
    async fn look(&self) -> Result<(Rows, Option<Bytes>), Error> {
        let tx = self.store.begin().await?;
        let seen = tx.get_with(&self.keys.config_versionstamp(), Isolation::Snapshot).await?;
        Ok((read(&tx, &self.keys).await?, seen))
    }

    /// The file, and the rows over it. What of them is not taken is told.
    fn over(&self, rows: &Rows, tell: impl Fn(String)) -> Config {
        let mut config = (*self.file).clone();
        for ((section, key), value) in rows {
            let written = changeable(section, key).map(|setting| setting.write(&mut config, value));
            match written {
                Ok(Ok(())) => {}
                Ok(Err(right)) => {
                    tell(format!("the shared setting [{section}] {key} = {value} is left: expected {right}"));
                }
                Err(_) => tell(format!("the shared setting [{section}] {key} is none of this release's")),
            }
        }
        config
    }
}

/// The setting of this name, if it may change while servers run.
fn changeable(section: &str, key: &str) -> Result<&'static Setting, Refused> {
    let Some(setting) = Setting::find(section, key) else {
        return Err(Refused::Unknown(super::parse::why_ignored(section, key)));
    };
    match setting.changes {
        Changes::Live => Ok(setting),
        Changes::InFile(why) => Err(Refused::InFile(why)),
    }
}

async fn read(tx: &Transaction, keys: &Keyspace) -> Result<Rows, Error> {
    let (begin, end) = keys.config();
    let range = RangeRead { begin, end, limit: MAX_ROWS, reverse: false };
    let rows = tx.range_with(range, Isolation::Snapshot).await?;
    let corrupt = |what: &str| turnwise_store::Error::Corrupt(format!("a shared setting's {what}"));
    rows.iter()
        .map(|(key, value)| {
            let name = keys.parse_config(key).ok_or_else(|| corrupt("key"))?;
            let value = serde_json::from_slice(value).map_err(|_| corrupt("value"))?;
            Ok((name, value))
        })
        .collect()
}

/// Tells in the log what has changed. There are no secrets among the settings.
fn tell(before: Option<&Config>, now: &Config) {
    let Some(before) = before else { return };
    for setting in SETTINGS {
        let (was, is) = (setting.read(before), setting.read(now));
        if was != is {
            let shown = |value: Option<String>| value.unwrap_or_else(|| "the default".to_owned());
            let Setting { section, key, .. } = setting;
            tracing::info!("[{section}] {key} is {} now, and was {}", shown(is), shown(was));
        }
    }
}
