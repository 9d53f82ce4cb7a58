//! Values that are encrypted at rest: an [`Engine`] over another one.
//!
//! The rows that hold secrets are sealed before a commit, and opened when they are read. Everything above this layer sees plain
//! values, and every engine, its log and its backups only sealed ones. Keys of rows are not encrypted: they are what rows are
//! found by.
//!
//! ```text
//!   sealed value: 0x01 │ id of the key (4 bytes) │ nonce (12) │ ciphertext │ tag (16)
//! ```
//!
//! AES-256-GCM, under a key that is derived for each row from a master key and the row's key. So a sealed value is of no use in
//! another row. The nonce is derived from the plain value, too: equal values of one row have one sealed form, and two values
//! never share a nonce, whatever a clock or a random number generator does. The first master key seals. All of them open.
//!
//! A store with sealed rows has a *mark*, a row that only this layer sees: without the keys, or without the right one, such a
//! store is not opened.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hmac;

use crate::engine::{Changes, Engine, KeyValue, Limits, RangeRead, Snapshot, Versionstamp, Watch};
use crate::metrics::Times;
use crate::{Error, Result, Step, Visit};

/// The first byte of every sealed value. JSON does not begin with it.
const SEALED: u8 = 1;
const ID_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
/// What sealing adds to a value, in bytes.
const OVERHEAD: usize = 1 + ID_BYTES + NONCE_LEN + TAG_BYTES;
const KEY_BYTES: usize = 32;
const MAX_KEYS: usize = 100;

/// The master keys, and which rows they seal. Cheap to clone.
#[derive(Clone)]
pub struct Sealing {
    keys: Arc<[MasterKey]>,
    /// Whether the row with this key is sealed.
    seals: fn(&[u8]) -> bool,
}

struct MasterKey {
    id: [u8; ID_BYTES],
    rows: hmac::Key,
    nonces: hmac::Key,
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealing").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl MasterKey {
    fn new(key: &[u8]) -> MasterKey {
        let master = hmac::Key::new(hmac::HMAC_SHA256, key);
        let derived =
            |what: &str| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, what.as_bytes()).as_ref());
        let mut id = [0; ID_BYTES];
        let hash = digest(&SHA256, hmac::sign(&master, b"turnwise id").as_ref());
        id.copy_from_slice(&hash.as_ref()[..ID_BYTES]);
        MasterKey { id, rows: derived("turnwise rows"), nonces: derived("turnwise nonces") }
    }

    fn of_row(&self, row: &[u8]) -> LessSafeKey {
        let key = hmac::sign(&self.rows, row);
        let key =
            UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("an HMAC-SHA256 has the length of the key");
        LessSafeKey::new(key)
    }

    fn seal(&self, row: &[u8], value: &[u8]) -> Bytes {
        let mut context = hmac::Context::with_key(&self.nonces);
        context.update(&row.len().to_le_bytes());
        context.update(row);
        context.update(value);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&context.sign().as_ref()[..NONCE_LEN]);
        let mut sealed = BytesMut::with_capacity(value.len() + OVERHEAD);
        sealed.put_u8(SEALED);
        sealed.put_slice(&self.id);
        sealed.put_slice(&nonce);
        let mut text = sealed.split_off(sealed.len());
        text.put_slice(value);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.of_row(row).seal_in_place_separate_tag(nonce, Aad::from(row), &mut text);
        sealed.unsplit(text);
        sealed.put_slice(tag.expect("the value is far below the limit of the cipher").as_ref());
        sealed.freeze()
    }

    /// The plain value; `None` if the sealed one is not authentic.
    fn open(&self, row: &[u8], nonce: &[u8], text: &[u8]) -> Option<Bytes> {
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let length = self.of_row(row).open_in_place(nonce, Aad::from(row), &mut text).ok()?.len();
        text.truncate(length);
        Some(text.into())
    }
}

impl Sealing {
    /// Reads a file of master keys: 64 hexadecimal digits per line. Empty lines and those that begin with `#` are skipped.
    /// `seals` states which rows are sealed, by their keys.
    ///
    /// # Errors
    /// A line is no key, or there is none. The error does not repeat the line.
    pub fn parse(text: &str, seals: fn(&[u8]) -> bool) -> Result<Sealing, String> {
        let mut keys = Vec::new();
        for (n, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key =
                hex(line).ok_or_else(|| format!("line {n} is no key: expected 64 hexadecimal digits"))?;
            keys.push(MasterKey::new(&key));
        }
        match keys.len() {
            1..=MAX_KEYS => Ok(Sealing { keys: keys.into(), seals }),
            0 => Err("there is no key in it: `openssl rand -hex 32` makes one".to_owned()),
            _ => Err(format!("at most {MAX_KEYS} keys")),
        }
    }

    fn seal(&self, row: &[u8], value: &[u8]) -> Bytes {
        self.keys[0].seal(row, value)
    }

    fn open(&self, row: &[u8], value: Bytes) -> Result<Bytes> {
        if value.first() != Some(&SEALED) || !(self.seals)(row) {
            return Ok(value);
        }
        let broken = || Error::Corrupt("a sealed row is not authentic".to_owned());
        if value.len() < OVERHEAD {
            return Err(broken());
        }
        let (id, rest) = value[1..].split_at(ID_BYTES);
        let (nonce, text) = rest.split_at(NONCE_LEN);
        let key = self.keys.iter().find(|key| key.id == id).ok_or_else(|| {
            Error::Misuse("its rows are sealed with a key that is not in the file of --seal-keys".to_owned())
        })?;
        key.open(row, nonce, text).ok_or_else(broken)
    }
}

fn hex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    if text.len() != 2 * KEY_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (n, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(key)
}

/// Whether and how the rows of a store are sealed.
#[derive(Debug, Clone)]
pub struct Seal {
    /// The keys; `None` for a store without sealed rows.
    pub sealing: Option<Sealing>,
    /// The key of the row that sealed stores have. It is sealed itself.
    pub mark: Bytes,
}

/// Puts sealing over an engine, or refuses one whose sealed rows could not be read. A store that is opened to write gets the mark.
pub(crate) async fn over(engine: Arc<dyn Engine>, seal: &Seal, writes: bool) -> Result<Arc<dyn Engine>> {
    let Seal { sealing, mark } = seal;
    let snapshot = engine.snapshot().await?;
    let found = snapshot.get(mark).await?;
    let Some(sealing) = sealing else {
        return match found {
            None => Ok(engine),
            Some(_) => {
                Err(Error::Misuse("its rows are sealed: give the file with the keys (--seal-keys)".into()))
            }
        };
    };
    match found {
        Some(value) => drop(sealing.open(mark, value)?),
        None if writes => {
            let value = sealing.seal(mark, b"true");
            let changes = Changes {
                read_keys: vec![mark.clone()],
                puts: vec![(mark.clone(), Some(value))],
                ..Changes::default()
            };
            match snapshot.commit(changes).await {
                // Another node has written it.
                Ok(_) | Err(Error::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        None => {}
    }
    Ok(Arc::new(Sealed { inner: engine, sealing: sealing.clone(), mark: mark.clone() }))
}

/// An engine or a snapshot whose secret rows are sealed.
struct Sealed<T: ?Sized> {
    inner: Arc<T>,
    sealing: Sealing,
    /// The key of the row that is not visible.
    mark: Bytes,
}

#[async_trait]
impl Engine for Sealed<dyn Engine> {
    fn limits(&self) -> Limits {
        let limits = self.inner.limits();
        // Every row that a transaction writes may be sealed.
        let overheads = limits.transaction_writes.saturating_mul(OVERHEAD);
        Limits {
            value_bytes: limits.value_bytes.saturating_sub(OVERHEAD),
            transaction_bytes: limits.transaction_bytes.saturating_sub(overheads),
            ..limits
        }
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let (sealing, mark) = (self.sealing.clone(), self.mark.clone());
        Ok(Arc::new(Sealed { inner: self.inner.snapshot().await?, sealing, mark }))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        if !(self.sealing.seals)(&key) {
            return self.inner.watch(key, seen).await;
        }
        // The engine compares what is stored, and a value may be stored under another key, or not sealed yet.
        let stored = self.inner.snapshot().await?.get(&key).await?;
        let opened = stored.clone().map(|value| self.sealing.open(&key, value)).transpose()?;
        match opened == seen {
            true => self.inner.watch(key, stored).await,
            false => Ok(Box::pin(std::future::ready(()))),
        }
    }

    async fn ended(&self) -> String {
        self.inner.ended().await
    }

    fn log_writes(&self) -> Option<Times> {
        self.inner.log_writes()
    }
}

#[async_trait]
impl Snapshot for Sealed<dyn Snapshot> {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.inner.get(key).await?.filter(|_| key != self.mark);
        value.map(|value| self.sealing.open(key, value)).transpose()
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        // Fewer rows than the limit would mean that there are no more.
        let limit = match read.begin <= self.mark && self.mark < read.end {
            true => read.limit.saturating_add(1),
            false => read.limit,
        };
        let mut rows = self.inner.range(&RangeRead { limit, ..read.clone() }).await?;
        rows.retain(|(key, _)| *key != self.mark);
        rows.truncate(read.limit);
        for (key, value) in &mut rows {
            *value = self.sealing.open(key, std::mem::take(value))?;
        }
        Ok(rows)
    }

    fn walk(&self, range: &RangeRead, visit: &mut Visit<'_>) -> Option<Result<usize>> {
        let mut opened = |key: &[u8], value: &[u8], to: &mut Vec<u8>| {
            if key == self.mark {
                return Ok(Step::Next);
            }
            match value.first() == Some(&SEALED) {
                true => visit(key, &self.sealing.open(key, Bytes::copy_from_slice(value))?, to),
                false => visit(key, value, to),
            }
        };
        self.inner.walk(range, &mut opened)
    }

    fn appended(&self, key: &[u8], stored: Bytes) -> Result<Bytes> {
        let stored = self.inner.appended(key, stored)?;
        self.sealing.open(key, stored)
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }

    async fn commit(&self, mut changes: Changes) -> Result<Versionstamp> {
        let Sealed { sealing, mark, .. } = self;
        let clears = changes.clear_ranges.iter().any(|(begin, end)| begin <= mark && mark < end);
        if clears && let Err(at) = changes.puts.binary_search_by(|(key, _)| key.cmp(mark)) {
            changes.puts.insert(at, (mark.clone(), Some(Bytes::from_static(b"true"))));
        }
        for (key, value) in &mut changes.puts {
            if let Some(value) = value.as_mut().filter(|_| (sealing.seals)(key)) {
                *value = sealing.seal(key, value);
            }
        }
        for (key, lines) in changes.appends.iter_mut().filter(|(key, _)| (sealing.seals)(key)) {
            *lines = sealing.seal(key, lines);
        }
        self.inner.commit(changes).await
    }
}

#[cfg(test)]
#[path = "sealed_conformance.rs"]
mod conformance;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::embedded::Embedded;
    use crate::{Store, runtime};

    const ONE: &str = "0101010101010101010101010101010101010101010101010101010101010101";
    const TWO: &str = "0202020202020202020202020202020202020202020202020202020202020202";

    fn sealing(text: &str) -> Sealing {
        Sealing::parse(text, |key| key.starts_with(b"secret")).unwrap()
    }

    async fn store(folder: &tempfile::TempDir, keys: &str) -> Result<Store> {
        let engine: Arc<dyn Engine> = Embedded::open(folder.path().join("store"))?;
        let sealing = (!keys.is_empty()).then(|| sealing(keys));
        let engine = over(engine, &Seal { sealing, mark: "secret mark".into() }, true).await?;
        Ok(Store::new(engine, Arc::new(runtime::System)))
    }

    async fn set(store: &Store, key: &'static str, value: &'static str) {
        store.transact(|tx| async move { tx.set(key.into(), value.into()) }).await.unwrap();
    }

    async fn get(store: &Store, key: &str) -> Result<Option<Bytes>> {
        store.begin().await?.get(&Bytes::copy_from_slice(key.as_bytes())).await
    }

    #[test]
    fn a_sealed_value_is_one_rows_with_one_key() {
        let (one, two) = (sealing(ONE), sealing(TWO));
        let sealed = one.seal(b"secret a", b"{}");
        assert_eq!(sealed.len(), 2 + OVERHEAD);
        assert_eq!(one.open(b"secret a", sealed.clone()).unwrap(), "{}");
        assert_eq!(one.seal(b"secret a", b"{}"), sealed, "equal values are sealed alike");
        assert_ne!(one.seal(b"secret b", b"{}")[5..], sealed[5..]);
        assert!(matches!(one.open(b"secret b", sealed.clone()), Err(Error::Corrupt(_))), "in another row");
        assert!(matches!(two.open(b"secret a", sealed.clone()), Err(Error::Misuse(_))), "without its key");
        for n in 5..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[n] ^= 1;
            assert!(one.open(b"secret a", changed.into()).is_err(), "byte {n}");
        }
        assert!(one.open(b"secret a", sealed.slice(..10)).is_err());
        let both = sealing(&format!("# new first\n{TWO}\n\n{ONE}\n"));
        assert_eq!(both.open(b"secret a", sealed.clone()).unwrap(), "{}");
        assert_eq!(both.seal(b"secret a", b"{}"), two.seal(b"secret a", b"{}"));
        for wrong in ["", "# none", "01", &ONE[1..], &format!("{}x", &ONE[1..])] {
            let parsed = Sealing::parse(wrong, |_| true);
            assert!(parsed.is_err_and(|problem| wrong.is_empty() || !problem.contains(wrong)), "{wrong}");
        }
        assert!(!format!("{one:?}").contains("0101"));
    }

    #[tokio::test]
    async fn rows_are_sealed_on_disk_and_plain_above() {
        let folder = tempfile::tempdir().unwrap();
        let plain = store(&folder, "").await.unwrap();
        set(&plain, "secret old", "written before").await;
        drop(plain);
        let sealed = store(&folder, ONE).await.unwrap();
        set(&sealed, "secret a", "hunter2").await;
        set(&sealed, "public", "for all").await;
        assert_eq!(get(&sealed, "secret old").await.unwrap().unwrap(), "written before");
        assert_eq!(get(&sealed, "secret a").await.unwrap().unwrap(), "hunter2");
        let tx = sealed.begin().await.unwrap();
        let rows = tx.range(&("a".into(), "z".into()), 10).await.unwrap();
        let values: Vec<&[u8]> = rows.iter().map(|(_, value)| &value[..]).collect();
        assert_eq!(values, [&b"for all"[..], b"hunter2", b"written before"], "the mark is not visible");
        assert_eq!(tx.range(&("a".into(), "z".into()), 2).await.unwrap().len(), 2, "a page is full");
        sealed.transact(|tx| async move { tx.clear_range(("t".into(), "z".into())) }).await.unwrap();
        let everything = ("secret b".into(), "secret y".into());
        sealed
            .transact(|tx| {
                let everything = (Bytes::clone(&everything.0), Bytes::clone(&everything.1));
                async move { tx.clear_range(everything) }
            })
            .await
            .unwrap();
        set(&sealed, "secret old", "written before").await;
        drop((tx, sealed));
        let mut found = Vec::new();
        for file in walk(folder.path()) {
            let bytes = std::fs::read(&file).unwrap();
            assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{}", file.display());
            found.extend(bytes.windows(7).filter(|window| *window == b"for all").map(|_| file.clone()));
        }
        assert!(!found.is_empty(), "the search finds what is not sealed");
        // Without the keys, nothing is served.
        for (keys, problem) in [("", "are sealed: give the file"), (TWO, "not in the file of --seal-keys")] {
            let Err(error) = store(&folder, keys).await else { panic!("it opens: {problem}") };
            assert!(error.to_string().contains(problem), "{error}");
        }
        let both = store(&folder, &format!("{TWO}\n{ONE}")).await.unwrap();
        assert_eq!(get(&both, "secret a").await.unwrap().unwrap(), "hunter2");
    }

    #[tokio::test]
    async fn a_watch_waits_whatever_key_its_row_is_sealed_with() {
        let folder = tempfile::tempdir().unwrap();
        let first = store(&folder, ONE).await.unwrap();
        set(&first, "secret a", "1").await;
        drop(first);
        let both = store(&folder, &format!("{TWO}\n{ONE}")).await.unwrap();
        let seen = get(&both, "secret a").await.unwrap();
        let mut watch = both.watch("secret a".into(), seen).await.unwrap();
        tokio::select! {
            biased;
            () = &mut watch => panic!("nothing has changed"),
            () = std::future::ready(()) => {}
        }
        set(&both, "secret a", "2").await;
        tokio::time::timeout(std::time::Duration::from_secs(20), watch).await.unwrap();
        let stale = both.watch("secret a".into(), Some("1".into())).await.unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(20), stale).await.unwrap();
    }

    fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
    }
}
