//! A transaction: a snapshot, the transaction's own writes on top of it, and what must not have changed at commit.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map};
use std::hash::BuildHasher as _;
use std::ops::Bound;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use foldhash::fast::FixedState;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::appends::{self, Appended, Mode, ROW_BYTES, STAMP_BYTES, SUFFIX_BYTES};
use crate::counters::Metered;
use crate::key::successor;
use crate::sync::Mutex;
use crate::{Changes, Error, KeyValue, Limits, RangeRead, Result, Runtime, Step, Sum, Versionstamp, Visit};

/// Whether a read must still be valid at commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// If another transaction writes to what was read, the commit fails.
    Serializable,
    /// The read uses the same snapshot but adds no conflict. For hints and statistics.
    Snapshot,
}

/// A transaction. Clones share it, so that functions and futures can own a handle.
///
/// Reads see the snapshot and the transaction's own writes. No other transaction sees the writes before
/// [`commit`](Transaction::commit). Dropping every clone without a commit rolls back.
#[derive(Clone)]
pub struct Transaction {
    snapshot: Metered,
    limits: Limits,
    runtime: Arc<dyn Runtime>,
    /// When the transaction began, in µs of `runtime`'s elapsed time.
    begun_us: i64,
    mode: Arc<Mode>,
    pending: Arc<Mutex<Pending>>,
}

/// What has been read and written so far.
#[derive(Default)]
struct Pending {
    /// The value read for each key, so that a second read costs nothing. `None` if the key is only a conflict. Hashed: most keys of
    /// a transaction differ only at their ends, so a tree would compare each with many others.
    read_keys: HashMap<Bytes, Option<Option<Bytes>>, FixedState>,
    read_ranges: Vec<(Bytes, Bytes)>,
    /// What [`Transaction::prefetch`] has read, without a conflict.
    prefetched: BTreeMap<Bytes, Option<Bytes>>,
    /// The same for ranges.
    prefetched_ranges: HashMap<RangeRead, Vec<KeyValue>>,
    /// The hashes of the keys in `writes` and `unknown`, and perhaps of others: most keys that are read or written are not in it.
    touched: HashSet<u64, FixedState>,
    /// The value of each key that was set; `None` if it was cleared. Written after `cleared`: an entry here overrides a cleared range
    /// around it.
    writes: BTreeMap<Bytes, Option<Bytes>>,
    /// The same for keys whose values are unknown before the commit. Hashed: each step of a batch writes the same ones again.
    unknown: HashMap<Bytes, Unknown, FixedState>,
    /// The keys of `unknown`, in order.
    unknown_keys: BTreeSet<Bytes>,
    cleared: Vec<(Bytes, Bytes)>,
    /// The lines to append, by log.
    appended: BTreeMap<Bytes, appends::Rows>,
    /// Keys written within a range that was cleared before. An engine whose commits cannot do both to one key clears the ranges
    /// around it, which costs one more operation per key.
    splits: usize,
    /// Ranges in which no other transaction may set a key.
    arrivals: Vec<(Bytes, Bytes)>,
    /// Rows that were read in `read_ranges`.
    rows_seen: usize,
    bytes: usize,
}

/// What becomes of a key whose value is unknown before the commit.
#[derive(Clone, Copy)]
enum Unknown {
    Versionstamp,
    Add(Sum),
}

fn read_of_unknown() -> Error {
    Error::Misuse("a versionstamp, or a sum, is unknown before the commit".into())
}

/// The reads of a [`Transaction::prefetch`] that are under way at the same time.
const CONCURRENT_READS: usize = 64;
/// The conflicts that a batch leaves free for its last step. The largest step is the end of a run with a place in each of
/// eleven buckets. It needs 22 for the buckets, and 8 for its handler's reads and all others.
const STEP: usize = 32;
/// The writes that a batch leaves free for its last step. The largest step is the end of such a run of a replication, with
/// as many locks as a small store accepts, and with the largest document body. It writes 33 rows for the buckets, 15 for
/// locks, 12 pieces of the body, and 20 others.
const STEP_WRITES: usize = 96;

/// The rows that a step may write by appending to a log, and to wake its readers.
const APPENDED: usize = 4;

impl Pending {
    /// The own write that decides the value of `key`, if there is one.
    fn own(&self, key: &Bytes) -> Result<Option<Option<Bytes>>> {
        if self.is_touched(key) {
            if self.unknown.contains_key(key) {
                return Err(read_of_unknown());
            }
            if let Some(value) = self.writes.get(key) {
                return Ok(Some(value.clone()));
            }
        }
        Ok(self.is_cleared(key).then_some(None))
    }

    /// Whether the key may have been written.
    fn is_touched(&self, key: &Bytes) -> bool {
        self.touched.contains(&hash_of(key))
    }

    /// Sets a key, or clears it, instead of what was written to it before.
    fn write(&mut self, key: Bytes, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        let was_unknown = self.touch(&key) && self.unknown.remove(&key).is_some();
        if was_unknown {
            self.unknown_keys.remove(&key);
        }
        let is_cleared = self.is_cleared(&key);
        let is_first = self.writes.insert(key, value).is_none() && !was_unknown;
        self.splits += usize::from(is_cleared && is_first);
    }

    /// The same with a value that is unknown before the commit.
    fn write_unknown(&mut self, key: Bytes, value: Unknown) {
        self.bytes += key.len();
        if let Unknown::Add(_) = value {
            self.bytes += SUM_SUFFIX_BYTES + Sum::BYTES;
        }
        let was_written = self.touch(&key) && self.writes.remove(&key).is_some();
        let is_cleared = self.is_cleared(&key);
        self.unknown_keys.insert(key.clone());
        let is_first = self.unknown.insert(key, value).is_none() && !was_written;
        self.splits += usize::from(is_cleared && is_first);
    }

    /// Notes that a key is written. Returns whether it may have been written before.
    fn touch(&mut self, key: &Bytes) -> bool {
        !self.touched.insert(hash_of(key))
    }

    /// Drops what was written to the keys of a range.
    fn forget(&mut self, begin: &Bytes, end: &Bytes) {
        let bounds = (Bound::Included(begin), Bound::Excluded(end));
        let set = self.writes.range::<Bytes, _>(bounds).map(|(key, _)| key);
        let written: Vec<Bytes> = set.chain(self.unknown_keys.range::<Bytes, _>(bounds)).cloned().collect();
        for key in written {
            self.splits -= usize::from(self.is_cleared(&key));
            if self.writes.remove(&key).is_none() {
                self.unknown.remove(&key);
                self.unknown_keys.remove(&key);
            }
        }
    }

    fn add_read_key(&mut self, key: Bytes) {
        let bytes = key.len();
        if let hash_map::Entry::Vacant(place) = self.read_keys.entry(key) {
            self.bytes += bytes;
            place.insert(None);
        }
    }

    fn note_read(&mut self, key: Bytes, value: &Option<Bytes>) {
        let bytes = key.len();
        if self.read_keys.insert(key, Some(value.clone())).is_none() {
            self.bytes += bytes;
        }
    }

    fn is_cleared(&self, key: &[u8]) -> bool {
        is_within(key, &self.cleared)
    }

    /// The number of rows and ranges that the commit writes.
    fn written(&self) -> usize {
        let appended: usize = self.appended.values().map(appends::Rows::len).sum();
        self.writes.len() + self.unknown.len() + appended + self.cleared.len() + self.splits
    }

    /// The number of conflicts that the commit checks.
    fn conflicts(&self) -> usize {
        self.read_keys.len() + self.read_ranges.len() + self.arrivals.len() + self.rows_seen
    }
}

const SUM_PAGE: usize = 1_000;
/// The most bytes that an engine appends to the key of a sum.
const SUM_SUFFIX_BYTES: usize = 20;

/// The end of the rows that are the sum of a key, exclusive. Engines append tuples, whose first byte is lower than this one.
fn end_of_sum(key: &Bytes) -> Bytes {
    [&key[..], &[0xff][..]].concat().into()
}

fn hash_of(key: &Bytes) -> u64 {
    FixedState::default().hash_one(key)
}

fn is_within(key: &[u8], ranges: &[(Bytes, Bytes)]) -> bool {
    ranges.iter().any(|(begin, end)| begin.as_ref() <= key && key < end.as_ref())
}

struct OwnWrites {
    /// In the direction of the read.
    rows: std::iter::Peekable<std::vec::IntoIter<(Bytes, Option<Bytes>)>>,
    cleared: Vec<(Bytes, Bytes)>,
}

/// What a read saw of a range, so that the caller can add the conflict later.
#[derive(Debug, Clone, Default)]
pub struct Proof {
    range: Option<(Bytes, Bytes)>,
    /// The rows that the read returned of the snapshot.
    rows: usize,
    /// The total size of their keys.
    bytes: usize,
}

impl Proof {
    fn add(&mut self, rows: &[KeyValue]) {
        self.rows += rows.len();
        self.bytes += rows.iter().map(|(key, _)| key.len()).sum::<usize>();
    }
}

impl Transaction {
    pub(crate) fn new(
        snapshot: Metered,
        limits: Limits,
        runtime: Arc<dyn Runtime>,
        begun_us: i64,
        mode: Arc<Mode>,
    ) -> Self {
        Transaction { snapshot, limits, runtime, begun_us, mode, pending: Arc::default() }
    }

    /// The value of a key.
    pub async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        self.get_owned(key.clone(), Isolation::Serializable).await
    }

    /// The value of a key, read with the given isolation.
    pub async fn get_with(&self, key: &Bytes, isolation: Isolation) -> Result<Option<Bytes>> {
        self.get_owned(key.clone(), isolation).await
    }

    /// The same for a key that the caller no longer needs, which saves a copy of it.
    pub async fn get_owned(&self, key: Bytes, isolation: Isolation) -> Result<Option<Bytes>> {
        if let Some(value) = self.known(&key, isolation)? {
            return Ok(value);
        }
        let value = self.snapshot.get(&key).await?;
        if isolation == Isolation::Serializable {
            self.pending.lock().note_read(key, &value);
        }
        Ok(value)
    }

    /// The value of a key that many parts of a transaction read: only the first of them is a read. Adds no read conflict.
    pub async fn get_once(&self, key: Bytes) -> Result<Option<Bytes>> {
        if let Some(value) = self.known(&key, Isolation::Snapshot)? {
            return Ok(value);
        }
        let value = self.snapshot.get(&key).await?;
        self.pending.lock().prefetched.insert(key, value.clone());
        Ok(value)
    }

    /// The value of a key, if the transaction has written or read it.
    fn known(&self, key: &Bytes, isolation: Isolation) -> Result<Option<Option<Bytes>>> {
        let mut pending = self.pending.lock();
        if let Some(own) = pending.own(key)? {
            return Ok(Some(own));
        }
        if let Some(Some(read)) = pending.read_keys.get(key) {
            return Ok(Some(read.clone()));
        }
        let prefetched = pending.prefetched.get(key).cloned();
        if let Some(value) = &prefetched
            && isolation == Isolation::Serializable
        {
            pending.note_read(key.clone(), value);
        }
        Ok(prefetched)
    }

    /// Whether each read waits for another machine.
    pub fn is_remote(&self) -> bool {
        self.snapshot.snapshot.is_remote()
    }

    /// Reads at the same time the keys that the caller will read one after the other. Adds no conflict: reading a key adds it.
    /// Does nothing where a read does not wait ([`crate::Snapshot::is_remote`]).
    pub async fn prefetch(&self, keys: impl IntoIterator<Item = Bytes>) -> Result<()> {
        if !self.is_remote() {
            return Ok(());
        }
        let wanted: Vec<Bytes> = {
            let pending = self.pending.lock();
            let is_known = |key: &Bytes| {
                pending.prefetched.contains_key(key) || matches!(pending.read_keys.get(key), Some(Some(_)))
            };
            keys.into_iter().filter(|key| !is_known(key)).collect()
        };
        let read = |key: Bytes| async move {
            let value = self.snapshot.get(&key).await?;
            Ok::<_, Error>((key, value))
        };
        let read: Vec<_> = stream::iter(wanted).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        self.pending.lock().prefetched.extend(read);
        Ok(())
    }

    /// The same for ranges. A range counts as read only by a read with the same bounds and limit.
    pub async fn prefetch_ranges(&self, reads: impl IntoIterator<Item = RangeRead>) -> Result<()> {
        if !self.is_remote() {
            return Ok(());
        }
        let wanted: Vec<RangeRead> = {
            let pending = self.pending.lock();
            let is_known = |read: &RangeRead| pending.prefetched_ranges.contains_key(read);
            reads.into_iter().filter(|read| !read.is_empty() && !is_known(read)).collect()
        };
        let read = |read: RangeRead| async move {
            let rows = self.snapshot.range(&read).await?;
            Ok::<_, Error>((read, rows))
        };
        let read: Vec<_> = stream::iter(wanted).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        self.pending.lock().prefetched_ranges.extend(read);
        Ok(())
    }

    /// The rows of a range in the snapshot.
    async fn stored(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        let known = self.pending.lock().prefetched_ranges.get(read).cloned();
        match known {
            Some(rows) => Ok(rows),
            None => self.snapshot.range(read).await,
        }
    }

    /// Up to `limit` rows of `[begin, end)`, in key order.
    pub async fn range(&self, range: &(Bytes, Bytes), limit: usize) -> Result<Vec<KeyValue>> {
        let (begin, end) = range.clone();
        self.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Serializable).await
    }

    /// Up to `limit` rows of a range. Only the part that was read adds a conflict: up to the last row returned if there may be
    /// more, otherwise the whole range.
    pub async fn range_with(&self, read: RangeRead, isolation: Isolation) -> Result<Vec<KeyValue>> {
        let (rows, proof) = self.range_to_prove(read).await?;
        if isolation == Isolation::Serializable {
            self.prove(proof);
        }
        Ok(rows)
    }

    /// Up to `limit` rows of a range, without a conflict. If the rows turn out to matter, the caller passes the proof to
    /// [`prove`](Transaction::prove) instead of reading them again.
    pub async fn range_to_prove(&self, read: RangeRead) -> Result<(Vec<KeyValue>, Proof)> {
        if read.limit == 0 || read.begin >= read.end {
            return Ok((Vec::new(), Proof::default()));
        }
        let (rows, seen) = self.merged(&read).await?;
        let (mut begin, mut end) = (read.begin, read.end);
        if let (true, Some((last, _))) = (rows.len() == read.limit, rows.last()) {
            if read.reverse {
                begin = last.clone();
            } else {
                end = successor(last);
            }
        }
        Ok((rows, Proof { range: Some((begin, end)), ..seen }))
    }

    /// Adds the conflict of a read: the commit fails if another transaction writes to what was read.
    pub fn prove(&self, proof: Proof) {
        let Proof { range: Some((begin, end)), rows, bytes } = proof else { return };
        let mut pending = self.pending.lock();
        pending.bytes += begin.len() + end.len() + bytes;
        pending.rows_seen += rows;
        pending.read_ranges.push((begin, end));
    }

    /// Makes the commit fail if another transaction sets a row in the range that was read. It may miss that rows were cleared, so
    /// it serves callers that rely on the absence of further rows. It costs one conflict, however many rows were read.
    pub fn prove_arrivals(&self, proof: Proof) {
        let Some((begin, end)) = proof.range else { return };
        let mut pending = self.pending.lock();
        pending.bytes += begin.len() + end.len();
        pending.arrivals.push((begin, end));
    }

    /// Shows `visit` rows of a range, from its begin or backwards from its end, where each row tells where to go on. Adds no conflict. Where
    /// the engine has no walks, and where this transaction has written, it reads ranges of up to `limit` rows.
    pub async fn walk(
        &self,
        (begin, end): (Bytes, Bytes),
        reverse: bool,
        limit: usize,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let mut rest = RangeRead { begin, end, limit, reverse };
        if !rest.is_empty() && self.own_writes_in(&rest)?.is_none() && self.snapshot.walk(&rest, visit)? {
            return Ok(());
        }
        let mut to = Vec::new();
        while !rest.is_empty() {
            let rows = self.range_with(rest.clone(), Isolation::Snapshot).await?;
            let is_last = rows.len() < limit;
            for (key, value) in rows {
                // The walk may go on behind it.
                if key < rest.begin || key >= rest.end {
                    continue;
                }
                let step = visit(&key, &value, &mut to)?;
                rest.pass(&key);
                match step {
                    Step::Next => {}
                    Step::Seek => rest.seek(&to),
                    Step::End => return Ok(()),
                }
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Merges the snapshot's rows with the own writes until `limit` rows are found or the range ends. Also returns what was read
    /// of the snapshot.
    async fn merged(&self, read: &RangeRead) -> Result<(Vec<KeyValue>, Proof)> {
        let mut seen = Proof::default();
        let Some(OwnWrites { rows: mut own, cleared }) = self.own_writes_in(read)? else {
            let rows = self.stored(read).await?;
            seen.add(&rows);
            return Ok((rows, seen));
        };
        let mut rows = Vec::new();
        let mut rest = read.clone();
        loop {
            let chunk = self.stored(&rest).await?;
            seen.add(&chunk);
            let exhausted = chunk.len() < rest.limit;
            if let Some((last, _)) = chunk.last() {
                rest.pass(last);
            }
            for (key, value) in chunk {
                while let Some((own_key, own_value)) =
                    own.next_if(|(own_key, _)| read.precedes(own_key, &key))
                {
                    rows.extend(own_value.map(|value| (own_key, value)));
                }
                if let Some((own_key, own_value)) = own.next_if(|(own_key, _)| *own_key == key) {
                    rows.extend(own_value.map(|value| (own_key, value)));
                } else if !is_within(&key, &cleared) {
                    rows.push((key, value));
                }
            }
            if exhausted {
                rows.extend(own.filter_map(|(key, value)| value.map(|value| (key, value))));
                break;
            }
            if rows.len() >= read.limit {
                break;
            }
        }
        rows.truncate(read.limit);
        Ok((rows, seen))
    }

    /// The own writes within a range; `None` if there are none, as in most reads.
    fn own_writes_in(&self, read: &RangeRead) -> Result<Option<OwnWrites>> {
        let pending = self.pending.lock();
        let bounds = (Bound::Included(&read.begin), Bound::Excluded(&read.end));
        if pending.unknown_keys.range::<Bytes, _>(bounds).next().is_some() {
            return Err(read_of_unknown());
        }
        let written = pending.writes.range::<Bytes, _>(bounds);
        let mut rows: Vec<_> = written.map(|(key, value)| (key.clone(), value.clone())).collect();
        let overlaps = |(begin, end): &&(Bytes, Bytes)| *begin < read.end && read.begin < *end;
        let cleared: Vec<_> = pending.cleared.iter().filter(overlaps).cloned().collect();
        if rows.is_empty() && cleared.is_empty() {
            return Ok(None);
        }
        if read.reverse {
            rows.reverse();
        }
        Ok(Some(OwnWrites { rows: rows.into_iter().peekable(), cleared }))
    }

    /// Sets a key.
    pub fn set(&self, key: Bytes, value: Bytes) -> Result<()> {
        self.check("value", value.len(), self.limits.value_bytes)?;
        self.write(key, Some(value))
    }

    /// Removes a key, if it is there.
    pub fn clear(&self, key: Bytes) -> Result<()> {
        self.write(key, None)
    }

    fn write(&self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        self.check("key", key.len(), self.limits.key_bytes)?;
        let mut pending = self.pending.lock();
        pending.write(key, value);
        self.check_transaction(&pending)
    }

    /// Removes every key of `[begin, end)`.
    pub fn clear_range(&self, range: (Bytes, Bytes)) -> Result<()> {
        let (begin, end) = range;
        if begin >= end {
            return Ok(());
        }
        // The end of a range may be the successor of the longest key.
        self.check("key", begin.len().max(end.len()), self.limits.key_bytes + 1)?;
        let mut pending = self.pending.lock();
        pending.forget(&begin, &end);
        pending.bytes += begin.len() + end.len();
        // The new range covers these.
        pending.cleared.retain(|(first, last)| !(begin <= *first && *last <= end));
        pending.cleared.push((begin, end));
        self.check_transaction(&pending)
    }

    /// Sets a key to the versionstamp of this transaction's commit: ten bytes, larger than any before.
    ///
    /// Use it only to signal a change. On etcd the key may be set although the transaction conflicts. That happens if
    /// another transaction of this process commits at the same moment and also sets it.
    pub fn set_versionstamp(&self, key: Bytes) -> Result<()> {
        self.check("key", key.len(), self.limits.key_bytes)?;
        let mut pending = self.pending.lock();
        if let Some(Unknown::Versionstamp) = pending.unknown.get(&key) {
            return Ok(());
        }
        pending.write_unknown(key, Unknown::Versionstamp);
        self.check_transaction(&pending)
    }

    /// Makes the commit fail if another transaction writes `key`, without reading it.
    pub fn add_read_conflict(&self, key: Bytes) {
        self.pending.lock().add_read_key(key);
    }

    /// Adds to the sum of a key, which no part of this transaction may read, set or clear. No other row's key may begin with this
    /// key, and the row must not be sealed. It conflicts with no other transaction
    /// that adds to it, and counts as a written row. [`Transaction::sum`] reads it.
    pub fn add(&self, key: Bytes, sum: Sum) -> Result<()> {
        self.check("key", key.len() + SUM_SUFFIX_BYTES, self.limits.key_bytes)?;
        let mut pending = self.pending.lock();
        if let Some(Unknown::Add(before)) = pending.unknown.get_mut(&key) {
            *before += sum;
            return Ok(());
        }
        let is_written = || pending.unknown.contains_key(&key) || pending.writes.contains_key(&key);
        if pending.is_cleared(&key) || pending.is_touched(&key) && is_written() {
            return Err(Error::Misuse("a transaction adds to a key that it has set or cleared".into()));
        }
        pending.write_unknown(key, Unknown::Add(sum));
        self.check_transaction(&pending)
    }

    /// Whether this transaction appends to logs: see [`Store::append_from_now_on`](crate::Store::append_from_now_on).
    pub fn appends(&self) -> bool {
        self.mode.appends
    }

    /// Appends a line without a line break to a log, in the order of commits. No key but those of the log may begin with `log`. It
    /// conflicts with nothing. The lines of a transaction are one written row, or several if they have more than 45 kB. Does nothing
    /// if this transaction does not [append](Transaction::appends).
    pub fn append(&self, log: &Bytes, line: &[u8]) -> Result<()> {
        if !self.appends() {
            return Ok(());
        }
        self.check("key", log.len() + SUFFIX_BYTES, self.limits.key_bytes)?;
        self.check("value", line.len(), ROW_BYTES)?;
        let mut pending = self.pending.lock();
        let rows = pending.appended.entry(log.clone()).or_default();
        let before = rows.len();
        rows.push(line);
        let keys = (rows.len() - before) * (log.len() + SUFFIX_BYTES + STAMP_BYTES);
        pending.bytes += keys + line.len() + 1;
        self.check_transaction(&pending)
    }

    /// Up to `limit` rows of a log behind the row `after`, in the order of their keys, which is not that of the commits. Adds no
    /// conflict. Fewer rows than `limit` mean that there are no more.
    pub async fn log(&self, log: &Bytes, after: Option<&Bytes>, limit: usize) -> Result<Vec<Appended>> {
        let begin = after.map_or_else(|| log.clone(), |after| successor(after));
        let read = RangeRead { begin, end: end_of_sum(log), limit, reverse: false };
        let rows = self.range_with(read, Isolation::Snapshot).await?;
        let appended = |(key, value): KeyValue| {
            let broken = || Error::Corrupt("a row of a log has no versionstamp".to_owned());
            let stamp = value.get(..STAMP_BYTES).ok_or_else(broken)?;
            let stamp = Versionstamp(stamp.try_into().expect("ten bytes"));
            let place = appends::place_of(log, &key).ok_or_else(broken)?;
            let lines = self.snapshot.snapshot.appended(&key, value.slice(STAMP_BYTES..))?;
            Ok(Appended { key, stamp, place, lines })
        };
        rows.into_iter().map(appended).collect()
    }

    /// The sum of a key, without a conflict.
    pub async fn sum(&self, key: &Bytes) -> Result<Sum> {
        let mut rest =
            RangeRead { begin: key.clone(), end: end_of_sum(key), limit: SUM_PAGE, reverse: false };
        let mut sum = Sum::default();
        loop {
            let rows = self.range_with(rest.clone(), Isolation::Snapshot).await?;
            for (_, value) in &rows {
                sum += Sum::read(value)?;
            }
            match rows.last() {
                Some((last, _)) if rows.len() == SUM_PAGE => rest.pass(last),
                _ => return Ok(sum),
            }
        }
    }

    /// Whether a batch may continue in this transaction: it has space and time left ([`Self::has_space`], [`Self::has_time`]). So
    /// slow stores, large rows and small limits make batches smaller.
    pub fn has_room(&self) -> bool {
        self.has_time() && self.has_space()
    }

    /// Whether less than a quarter of this transaction's time is used.
    pub fn has_time(&self) -> bool {
        let age_us = self.runtime.elapsed_us().saturating_sub(self.begun_us);
        let time_us = i64::try_from(self.limits.transaction_ms).unwrap_or(i64::MAX).saturating_mul(1_000);
        age_us < time_us / 4
    }

    /// Whether one more step of any kind fits. Less than two fifths of the bytes are used, and the step's share of writes
    /// and of conflicts is left. This share is [`STEP_WRITES`] and [`STEP`], or half of the limit if that is less.
    pub fn has_space(&self) -> bool {
        let below = |most: usize, step: usize| most - step.min(most / 2);
        let pending = self.pending.lock();
        pending.bytes < self.limits.transaction_bytes / 5 * 2
            && pending.written() < below(self.limits.transaction_writes, STEP_WRITES)
            && pending.conflicts() < below(self.limits.transaction_conflicts, STEP)
    }

    /// Whether a step with `writes` written rows and `conflicts` conflicts fits into this transaction.
    pub fn has_room_for(&self, writes: usize, conflicts: usize) -> bool {
        // Its steps may append.
        let appended = if self.appends() { APPENDED } else { 0 };
        let pending = self.pending.lock();
        pending.written().saturating_add(writes + appended) <= self.limits.transaction_writes
            && pending.conflicts().saturating_add(conflicts) <= self.limits.transaction_conflicts
    }

    /// The time of the store's clock, in µs.
    pub fn now_us(&self) -> i64 {
        self.runtime.now_us()
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        self.runtime.random()
    }

    /// The limits of this transaction.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Commits. A transaction that wrote nothing always succeeds, because it read one consistent snapshot. The call consumes the
    /// reads and writes so far, whether it succeeds or not.
    #[boxed]
    pub async fn commit(&self) -> Result<Option<Versionstamp>> {
        let mut pending = std::mem::take(&mut *self.pending.lock());
        // Changes that cancel each other out are no write.
        let is_nothing = |written: &Unknown| matches!(written, Unknown::Add(sum) if sum.is_zero());
        pending.unknown.retain(|_, written| !is_nothing(written));
        if pending.written() == 0 {
            return Ok(None);
        }
        self.check_transaction(&pending)?;
        let appends = pending.appended.into_iter().flat_map(|(log, rows)| {
            rows.into_iter().map(move |lines| (self.mode.key(&log, &*self.runtime), lines))
        });
        let mut changes = Changes {
            read_keys: pending.read_keys.into_keys().collect(),
            read_ranges: pending.read_ranges,
            arrivals: pending.arrivals,
            clear_ranges: pending.cleared,
            puts: pending.writes.into_iter().collect(),
            appends: appends.collect(),
            ..Changes::default()
        };
        for key in pending.unknown_keys {
            match pending.unknown.get(&key) {
                Some(Unknown::Versionstamp) => changes.versionstamped.push(key),
                Some(Unknown::Add(sum)) => changes.adds.push((key, *sum)),
                None => {}
            }
        }
        self.snapshot.commit(changes).await.map(Some)
    }

    fn too_many(&self, what: String, limit: usize) -> Result<()> {
        self.snapshot.meter.counts.too_much.add(1);
        Err(Error::TooMany { what, limit })
    }

    fn check(&self, what: &'static str, size: usize, limit: usize) -> Result<()> {
        if size > limit {
            self.snapshot.meter.counts.too_much.add(1);
            return Err(Error::TooLarge { what, size, limit });
        }
        Ok(())
    }

    fn check_transaction(&self, pending: &Pending) -> Result<()> {
        self.check("transaction", pending.bytes, self.limits.transaction_bytes)?;
        let (writes, most) = (pending.written(), self.limits.transaction_writes);
        if writes > most {
            return self.too_many(format!("writes {writes} rows"), most);
        }
        let (conflicts, most) = (pending.conflicts(), self.limits.transaction_conflicts);
        if conflicts > most {
            return self.too_many(format!("proves {conflicts} reads"), most);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
