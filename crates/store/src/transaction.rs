//! A transaction: a snapshot, the own writes on top of it, and what must not have changed at commit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::counters::Metered;
use crate::key::successor;
use crate::{Changes, Error, KeyValue, Limits, RangeRead, Result, Runtime, Versionstamp};

/// Whether a read must still hold at commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A later write by someone else to what was read makes the commit fail.
    Serializable,
    /// The read is of the same snapshot, but takes no conflict: for hints and statistics.
    Snapshot,
}

/// A transaction. Clones share it, so that it can be handed to functions and into futures freely.
///
/// Reads see the snapshot and the transaction's own writes. Nothing is visible to others before
/// [`commit`](Transaction::commit); dropping every clone without it rolls back.
#[derive(Clone)]
pub struct Transaction {
    snapshot: Metered,
    limits: Limits,
    runtime: Arc<dyn Runtime>,
    /// When it began, in µs on that clock.
    begun_us: i64,
    pending: Arc<Mutex<Pending>>,
}

/// What has been read and written so far.
#[derive(Default)]
struct Pending {
    /// What was read under each key, so that reading it again costs nothing; `None` where nothing was read.
    read_keys: BTreeMap<Bytes, Option<Option<Bytes>>>,
    read_ranges: Vec<(Bytes, Bytes)>,
    /// Later than `cleared`: an entry here overrules a cleared range around it.
    writes: BTreeMap<Bytes, Option<Bytes>>,
    cleared: Vec<(Bytes, Bytes)>,
    versionstamped: BTreeSet<Bytes>,
    /// Keys that are written within a range that was cleared before. An engine whose commits cannot do both to one key
    /// clears what is around them, in one more step for each.
    splits: usize,
    /// Ranges into which nothing may come.
    arrivals: Vec<(Bytes, Bytes)>,
    /// Rows that were seen in `read_ranges`.
    rows_seen: usize,
    bytes: usize,
}

/// Of the conflicts that a transaction may have, those that a batch leaves free for its last step. The largest step is the end of a
/// run with a place in each of eleven buckets, with what its handler reads: 22 for the buckets, 8 others.
const STEP: usize = 32;
/// The same of the writes. The largest step is the end of such a run that holds as many locks as a small store takes, and of a
/// replication whose document has the largest body: 33 rows for the buckets, 15 for locks, 12 pieces, 20 others.
const STEP_WRITES: usize = 96;

impl Pending {
    /// The own write that decides the value of `key`, if there is one.
    fn own(&self, key: &[u8]) -> Option<Option<Bytes>> {
        if let Some(written) = self.writes.get(key) {
            return Some(written.clone());
        }
        self.is_cleared(key).then_some(None)
    }

    fn add_read_key(&mut self, key: &Bytes) {
        if !self.read_keys.contains_key(key) {
            self.bytes += key.len();
            self.read_keys.insert(key.clone(), None);
        }
    }

    fn is_cleared(&self, key: &[u8]) -> bool {
        is_within(key, &self.cleared)
    }

    /// A key is about to be written that was not written before.
    fn note_split(&mut self, key: &Bytes) {
        let is_new = !self.writes.contains_key(key) && !self.versionstamped.contains(key);
        self.splits += usize::from(is_new && self.is_cleared(key));
    }

    /// How many rows and ranges the commit writes.
    fn written(&self) -> usize {
        self.writes.len() + self.versionstamped.len() + self.cleared.len() + self.splits
    }

    /// How many things the commit proves.
    fn conflicts(&self) -> usize {
        self.read_keys.len() + self.read_ranges.len() + self.arrivals.len() + self.rows_seen
    }
}

fn is_within(key: &[u8], ranges: &[(Bytes, Bytes)]) -> bool {
    ranges.iter().any(|(begin, end)| begin.as_ref() <= key && key < end.as_ref())
}

/// The own writes that decide about a range.
struct OwnWrites {
    /// In the direction of the read.
    rows: std::iter::Peekable<std::vec::IntoIter<(Bytes, Option<Bytes>)>>,
    cleared: Vec<(Bytes, Bytes)>,
}

/// What a read saw of a range, for it to take a conflict later.
#[derive(Debug, Clone, Default)]
pub struct Proof {
    range: Option<(Bytes, Bytes)>,
    seen: Seen,
}

/// Rows of the snapshot that a range read came across.
#[derive(Debug, Clone, Default)]
struct Seen {
    rows: usize,
    /// Of their keys.
    bytes: usize,
}

impl Seen {
    fn add(&mut self, rows: &[KeyValue]) {
        self.rows += rows.len();
        self.bytes += rows.iter().map(|(key, _)| key.len()).sum::<usize>();
    }
}

impl Transaction {
    pub(crate) fn new(snapshot: Metered, limits: Limits, runtime: Arc<dyn Runtime>, begun_us: i64) -> Self {
        Transaction { snapshot, limits, runtime, begun_us, pending: Arc::default() }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a key.
    pub async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        self.get_with(key, Isolation::Serializable).await
    }

    /// The value of a key, read with the given isolation.
    pub async fn get_with(&self, key: &Bytes, isolation: Isolation) -> Result<Option<Bytes>> {
        {
            let mut pending = self.pending();
            if pending.versionstamped.contains(key) {
                return Err(Error::Misuse("a versionstamp is unknown before the commit".into()));
            }
            if let Some(own) = pending.own(key) {
                return Ok(own);
            }
            if let Some(Some(read)) = pending.read_keys.get(key) {
                return Ok(read.clone());
            }
            if isolation == Isolation::Serializable {
                pending.add_read_key(key);
            }
        }
        let value = self.snapshot.get(key).await?;
        if isolation == Isolation::Serializable {
            self.pending().read_keys.insert(key.clone(), Some(value.clone()));
        }
        Ok(value)
    }

    /// Up to `limit` rows of `[begin, end)`, in key order.
    pub async fn range(&self, range: &(Bytes, Bytes), limit: usize) -> Result<Vec<KeyValue>> {
        let (begin, end) = range.clone();
        self.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Serializable).await
    }

    /// Up to `limit` rows of a range. Only the part of the range that was really seen takes a conflict: up
    /// to the last row returned if there may be more, the whole range otherwise.
    pub async fn range_with(&self, read: RangeRead, isolation: Isolation) -> Result<Vec<KeyValue>> {
        let (rows, proof) = self.range_to_prove(read).await?;
        if isolation == Isolation::Serializable {
            self.prove(proof);
        }
        Ok(rows)
    }

    /// Up to `limit` rows of a range, without a conflict; and what takes it ([`prove`](Transaction::prove)), if they turn out to
    /// matter: reading them again would see the same.
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
        Ok((rows, Proof { range: Some((begin, end)), seen }))
    }

    /// A later write by someone else to what was read makes the commit fail.
    pub fn prove(&self, proof: Proof) {
        let Proof { range: Some((begin, end)), seen } = proof else { return };
        let mut pending = self.pending();
        pending.bytes += begin.len() + end.len() + seen.bytes;
        pending.rows_seen += seen.rows;
        pending.read_ranges.push((begin, end));
    }

    /// Makes the commit fail if someone else writes a row to what was read meanwhile. That rows of it are cleared may go unnoticed: for
    /// who wants to know that there are no others. One conflict, however many rows were seen.
    pub fn prove_arrivals(&self, proof: Proof) {
        let Some((begin, end)) = proof.range else { return };
        let mut pending = self.pending();
        pending.bytes += begin.len() + end.len();
        pending.arrivals.push((begin, end));
    }

    /// Merges the snapshot's rows with the own writes until `limit` rows are found or the range ends. With them, what was
    /// seen of the snapshot.
    async fn merged(&self, read: &RangeRead) -> Result<(Vec<KeyValue>, Seen)> {
        let mut seen = Seen::default();
        let Some(OwnWrites { rows: mut own, cleared }) = self.own_writes_in(read)? else {
            let rows = self.snapshot.range(read).await?;
            seen.add(&rows);
            return Ok((rows, seen));
        };
        let mut rows = Vec::new();
        let mut rest = read.clone();
        loop {
            let chunk = self.snapshot.range(&rest).await?;
            seen.add(&chunk);
            let exhausted = chunk.len() < rest.limit;
            if let Some((last, _)) = chunk.last() {
                if read.reverse {
                    rest.end = last.clone();
                } else {
                    rest.begin = successor(last);
                }
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
        let pending = self.pending();
        let bounds = (Bound::Included(&read.begin), Bound::Excluded(&read.end));
        if pending.versionstamped.range::<Bytes, _>(bounds).next().is_some() {
            return Err(Error::Misuse("a versionstamp is unknown before the commit".into()));
        }
        let mut rows: Vec<_> = pending
            .writes
            .range::<Bytes, _>(bounds)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
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
        self.check("key", key.len(), self.limits.key_bytes)?;
        self.check("value", value.len(), self.limits.value_bytes)?;
        self.write(key, Some(value))
    }

    /// Removes a key, if it is there.
    pub fn clear(&self, key: Bytes) -> Result<()> {
        self.check("key", key.len(), self.limits.key_bytes)?;
        self.write(key, None)
    }

    fn write(&self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        let mut pending = self.pending();
        pending.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        pending.note_split(&key);
        pending.versionstamped.remove(&key);
        pending.writes.insert(key, value);
        self.check_transaction(&pending)
    }

    /// Removes every key of `[begin, end)`.
    pub fn clear_range(&self, range: (Bytes, Bytes)) -> Result<()> {
        let (begin, end) = range;
        if begin >= end {
            return Ok(());
        }
        // The first key after the longest one must do as an end.
        self.check("key", begin.len().max(end.len()), self.limits.key_bytes + 1)?;
        let mut pending = self.pending();
        let inside = |key: &Bytes| begin <= *key && *key < end;
        pending.writes.retain(|key, _| !inside(key));
        pending.versionstamped.retain(|key| !inside(key));
        pending.bytes += begin.len() + end.len();
        // What lies within is cleared by this, too.
        pending.cleared.retain(|(first, last)| !(begin <= *first && *last <= end));
        pending.cleared.push((begin, end));
        let written = pending.writes.keys().chain(&pending.versionstamped);
        pending.splits = written.filter(|key| pending.is_cleared(key)).count();
        self.check_transaction(&pending)
    }

    /// Sets a key to the versionstamp of this transaction's commit: ten bytes, larger than any before.
    ///
    /// It is to tell others of a change: on etcd it may be set although the transaction conflicts, if another one of this process that was
    /// committed at the same moment sets it, too.
    pub fn set_versionstamp(&self, key: Bytes) -> Result<()> {
        self.check("key", key.len(), self.limits.key_bytes)?;
        let mut pending = self.pending();
        pending.bytes += key.len();
        pending.note_split(&key);
        pending.writes.remove(&key);
        pending.versionstamped.insert(key);
        self.check_transaction(&pending)
    }

    /// Makes the commit fail if `key` is written by someone else meanwhile, without reading it.
    pub fn add_read_conflict(&self, key: Bytes) {
        self.pending().add_read_key(&key);
    }

    /// Whether a batch may go on in this transaction: less than two fifths of the bytes that it may have are used up,
    /// less than a quarter of its time, and of the writes and conflicts that it may have [`STEP_WRITES`] and [`STEP`] are left, or
    /// half of a very small number. So a batch is as large as a store that is slow, or rows that are large, or an engine that takes
    /// few rows at once allow; one more step of any kind still fits.
    pub fn has_room(&self) -> bool {
        let age_us = self.runtime.elapsed_us().saturating_sub(self.begun_us);
        let time_us = i64::try_from(self.limits.transaction_ms).unwrap_or(i64::MAX).saturating_mul(1_000);
        let below = |most: usize, step: usize| most - step.min(most / 2);
        let pending = self.pending();
        age_us < time_us / 4
            && pending.bytes < self.limits.transaction_bytes / 5 * 2
            && pending.written() < below(self.limits.transaction_writes, STEP_WRITES)
            && pending.conflicts() < below(self.limits.transaction_conflicts, STEP)
    }

    /// Whether a step that writes `writes` rows and has to prove `conflicts` reads fits into this transaction.
    pub fn has_room_for(&self, writes: usize, conflicts: usize) -> bool {
        let pending = self.pending();
        pending.written().saturating_add(writes) <= self.limits.transaction_writes
            && pending.conflicts().saturating_add(conflicts) <= self.limits.transaction_conflicts
    }

    /// What a transaction of this store may have.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Commits. A transaction that wrote nothing always succeeds: it saw one consistent snapshot. What was
    /// read and written up to here is settled by this call, whether it succeeds or not.
    pub async fn commit(&self) -> Result<Option<Versionstamp>> {
        let pending = std::mem::take(&mut *self.pending());
        let wrote_nothing =
            pending.writes.is_empty() && pending.cleared.is_empty() && pending.versionstamped.is_empty();
        if wrote_nothing {
            return Ok(None);
        }
        self.check_transaction(&pending)?;
        let changes = Changes {
            read_keys: pending.read_keys.into_keys().collect(),
            read_ranges: pending.read_ranges,
            arrivals: pending.arrivals,
            clear_ranges: pending.cleared,
            puts: pending.writes.into_iter().collect(),
            versionstamped: pending.versionstamped.into_iter().collect(),
        };
        self.snapshot.commit(changes).await.map(Some)
    }

    fn too_many(&self, what: String, limit: usize) -> Result<()> {
        self.snapshot.meter.was_too_much();
        Err(Error::TooMany { what, limit })
    }

    fn check(&self, what: &'static str, size: usize, limit: usize) -> Result<()> {
        if size > limit {
            self.snapshot.meter.was_too_much();
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

impl RangeRead {
    /// Whether `a` comes before `b` in the direction of this read.
    fn precedes(&self, a: &Bytes, b: &Bytes) -> bool {
        if self.reverse { a > b } else { a < b }
    }
}

#[cfg(test)]
mod tests;
