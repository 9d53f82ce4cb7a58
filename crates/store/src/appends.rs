//! Logs: what transactions append in the order of their commits.
//!
//! A transaction appends lines ([`Transaction::append`](crate::Transaction::append)). Its commit sets a row, or several if the lines
//! are many, with keys behind that of the log that no other commit uses. So appending conflicts with nothing. The value of a row
//! begins with the commit's versionstamp, which is known only then. So the keys have no order that matters: readers sort the rows
//! by their stamps and places ([`Appended`]). A reader that sees a commit sees all earlier ones, so what it sorts is final.
//!
//! Appending is switched on and off for all users of a store in this process ([`Store::append_from_now_on`](crate::Store)): a
//! transaction that began while it was off appends nothing, and costs nothing.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::Runtime;
use crate::sync::Mutex;

/// The most bytes of lines in one row. Twice this fits into a value on every engine.
pub(crate) const ROW_BYTES: usize = 45_000;
/// The most bytes that a row's key has behind that of its log.
pub(crate) const SUFFIX_BYTES: usize = 20;
pub(crate) const STAMP_BYTES: usize = 10;

/// What one commit has appended: a row of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The row's key.
    pub key: Bytes,
    /// The commit's versionstamp: lower is earlier.
    pub stamp: crate::Versionstamp,
    /// The order of the rows of one commit.
    pub place: i64,
    /// The lines, each with a line break at its end.
    pub lines: Bytes,
}

/// Whether transactions append, as of their beginning.
#[derive(Debug, Default)]
pub(crate) struct Mode {
    pub(crate) appends: bool,
    keys: Arc<OnceLock<RowKeys>>,
}

/// Keys of rows that no other commit uses.
#[derive(Debug)]
pub(crate) struct RowKeys {
    process: i64,
    next: AtomicI64,
}

impl RowKeys {
    /// `random` tells the rows of this process from those of others.
    pub(crate) fn new(random: u64) -> Self {
        // Tuples with larger integers cannot be read by all.
        RowKeys { process: (random >> 1).cast_signed(), next: AtomicI64::new(0) }
    }

    /// A new key behind that of a log or of a sum.
    pub(crate) fn key(&self, prefix: &Bytes) -> Bytes {
        let suffix = (self.process, self.next.fetch_add(1, Ordering::Relaxed));
        let mut key = prefix.to_vec();
        foundationdb_tuple::pack_into(&suffix, &mut key);
        key.into()
    }
}

impl Mode {
    pub(crate) fn key(&self, log: &Bytes, runtime: &dyn Runtime) -> Bytes {
        self.keys.get_or_init(|| RowKeys::new(runtime.random())).key(log)
    }
}

/// The switch of a store's users in this process.
#[derive(Default)]
pub(crate) struct Appends {
    mode: Mutex<Arc<Mode>>,
    /// The mode before the latest switch. It lives as long as a transaction that began in it.
    former: Mutex<Weak<Mode>>,
}

impl Appends {
    /// The mode for a transaction that begins now.
    pub(crate) fn mode(&self) -> Arc<Mode> {
        self.mode.lock().clone()
    }

    pub(crate) fn switch(&self, on: bool) {
        let mut mode = self.mode.lock();
        if mode.appends != on {
            let next = Arc::new(Mode { appends: on, keys: mode.keys.clone() });
            let former = std::mem::replace(&mut *mode, next);
            *self.former.lock() = Arc::downgrade(&former);
        }
    }

    /// Whether a transaction is left that began before the latest switch.
    pub(crate) fn has_former(&self) -> bool {
        self.former.lock().strong_count() > 0
    }
}

/// The place of a row among those of its commit; `None` if the key is not one of [`Mode::key`].
pub(crate) fn place_of(log: &[u8], key: &[u8]) -> Option<i64> {
    let (_, place): (i64, i64) = foundationdb_tuple::unpack(key.strip_prefix(log)?).ok()?;
    Some(place)
}

/// The lines of a transaction, in rows.
#[derive(Debug, Default)]
pub(crate) struct Rows(Vec<BytesMut>);

impl Rows {
    pub(crate) fn push(&mut self, line: &[u8]) {
        if self.0.last().is_none_or(|row| row.len() + line.len() >= ROW_BYTES) {
            self.0.push(BytesMut::new());
        }
        let row = self.0.last_mut().expect("one was pushed");
        row.put_slice(line);
        row.put_u8(b'\n');
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = Bytes> {
        self.0.into_iter().map(BytesMut::freeze)
    }
}

/// The stored form: the stamp, then the lines.
pub(crate) fn stamped(stamp: &[u8; STAMP_BYTES], lines: &[u8]) -> Bytes {
    [&stamp[..], lines].concat().into()
}
