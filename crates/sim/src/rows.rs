//! The rows of the simulated store: every version that a snapshot may still read, and the check for conflicts.
//!
//! A commit at version `v` appends `(v, value or tombstone)` to the chain of each key that it writes. A snapshot of version
//! `s` reads the newest entry up to `s`. Its transaction conflicts if a key that it read has a newer entry. After each
//! commit, entries older than those that the oldest held snapshot reads are dropped.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use bytes::Bytes;
use turnwise_store::{Changes, KeyValue, RangeRead, Sum, Versionstamp};

/// A row that a commit has changed.
#[derive(Debug, Clone)]
pub struct RowChange {
    /// Its key.
    pub key: Bytes,
    /// Its value before, if it existed.
    pub old: Option<Bytes>,
    /// Its value now, if it exists.
    pub new: Option<Bytes>,
}

/// All rows in all versions that are still needed.
#[derive(Default)]
pub struct Rows {
    chains: BTreeMap<Bytes, Vec<(u64, Option<Bytes>)>>,
    version: u64,
    /// How many snapshots hold each version.
    held: BTreeMap<u64, usize>,
    /// The keys written at each version, for the cleanup.
    written: VecDeque<(u64, Bytes)>,
    /// Whether each commit that adds to a sum sets a row of its own.
    appends_sums: bool,
}

fn as_of(chain: &[(u64, Option<Bytes>)], version: u64) -> Option<&Bytes> {
    chain.iter().rev().find(|(written, _)| *written <= version)?.1.as_ref()
}

/// The ten bytes of the commit of `version`.
pub fn versionstamp(version: u64) -> Versionstamp {
    let mut stamp = [0; 10];
    stamp[..8].copy_from_slice(&version.to_be_bytes());
    Versionstamp(stamp)
}

impl Rows {
    /// No rows. `appends_sums` states how sums are stored.
    pub fn new(appends_sums: bool) -> Rows {
        Rows { appends_sums, ..Rows::default() }
    }

    /// Takes a snapshot. Returns its version, which the caller gives back to [`release`](Rows::release).
    pub fn hold(&mut self) -> u64 {
        *self.held.entry(self.version).or_default() += 1;
        self.version
    }

    /// Releases a snapshot.
    pub fn release(&mut self, version: u64) {
        if let Some(count) = self.held.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&version);
            }
        }
    }

    /// The newest value of a key.
    pub fn latest(&self, key: &[u8]) -> Option<&Bytes> {
        as_of(self.chains.get(key)?, self.version)
    }

    /// The value of a key in a held version.
    pub fn get(&self, version: u64, key: &[u8]) -> Option<Bytes> {
        as_of(self.chains.get(key)?, version).cloned()
    }

    /// Rows of a held version.
    pub fn range(&self, version: u64, read: &RangeRead) -> Vec<KeyValue> {
        if read.begin >= read.end {
            return Vec::new();
        }
        let rows = self.chains.range::<Bytes, _>(&read.begin..&read.end);
        let seen = |(key, chain): (&Bytes, &Vec<_>)| Some((key.clone(), as_of(chain, version)?.clone()));
        if read.reverse {
            rows.rev().filter_map(seen).take(read.limit).collect()
        } else {
            rows.filter_map(seen).take(read.limit).collect()
        }
    }

    /// All rows as they are now.
    pub fn all(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.chains.iter().filter_map(|(key, chain)| Some((key, as_of(chain, self.version)?)))
    }

    /// Whether a commit after `version` wrote anything that the transaction read.
    pub fn conflicts(&self, version: u64, changes: &Changes) -> bool {
        let newer = |chain: &Vec<(u64, Option<Bytes>)>| chain.last().is_some_and(|(last, _)| *last > version);
        changes.read_keys.iter().any(|key| self.chains.get(key).is_some_and(newer))
            || changes.read_ranges.iter().any(|(begin, end)| {
                let bounds = (Bound::Included(begin), Bound::Excluded(end));
                begin < end && self.chains.range::<Bytes, _>(bounds).any(|(_, chain)| newer(chain))
            })
            || changes.arrivals.iter().filter(|(begin, end)| begin < end).any(|(begin, end)| {
                // Removed rows do not count, as on an engine that keeps no trace of them.
                let is_there = |chain: &Vec<(u64, Option<Bytes>)>| matches!(chain.last(), Some((_, Some(_))));
                self.chains.range::<Bytes, _>(begin..end).any(|(_, chain)| newer(chain) && is_there(chain))
            })
    }

    /// The number of comparisons that a commit needs on an engine that compares each read: keys, ranges, and every row that
    /// was seen in them.
    pub fn parts_proved(&self, version: u64, changes: &Changes) -> usize {
        let seen = changes.read_ranges.iter().filter(|(begin, end)| begin < end).map(|(begin, end)| {
            let rows = self.chains.range::<Bytes, _>(begin..end);
            rows.filter(|(_, chain)| as_of(chain, version).is_some()).count()
        });
        let ranges = changes.read_ranges.len() + changes.arrivals.len();
        changes.read_keys.len() + ranges + seen.sum::<usize>()
    }

    /// Writes the changes as the next version. Returns the version, and each changed row before and after.
    pub fn apply(&mut self, changes: &Changes) -> (u64, Vec<RowChange>) {
        self.version += 1;
        let mut writes: BTreeMap<Bytes, Option<Bytes>> = BTreeMap::new();
        for (begin, end) in changes.clear_ranges.iter().filter(|(begin, end)| begin < end) {
            let inside = self.chains.range::<Bytes, _>(begin..end);
            let there = inside.filter(|(_, chain)| as_of(chain, self.version).is_some());
            writes.extend(there.map(|(key, _)| (key.clone(), None)));
        }
        writes.extend(changes.puts.iter().cloned());
        let stamp = Bytes::copy_from_slice(&versionstamp(self.version).0);
        writes.extend(changes.versionstamped.iter().map(|key| (key.clone(), Some(stamp.clone()))));
        for (key, lines) in &changes.appends {
            let value = [&stamp[..], &lines[..]].concat();
            writes.insert(key.clone(), Some(value.into()));
        }
        for (n, (key, added)) in (0_i64..).zip(&changes.adds) {
            let (key, mut sum) = match self.appends_sums {
                // A row per commit, as on etcd.
                true => {
                    let mut row = key.to_vec();
                    row.extend(turnwise_store::tuple::pack(&(self.version, n)));
                    (row.into(), Sum::default())
                }
                false => {
                    let before = self.latest(key);
                    (key.clone(), before.map_or(Sum::default(), |value| Sum::read(value).expect("a sum")))
                }
            };
            sum += *added;
            writes.insert(key, Some(sum.to_bytes()));
        }
        let mut changed = Vec::with_capacity(writes.len());
        for (key, new) in writes {
            let chain = self.chains.entry(key.clone()).or_default();
            let old = chain.last().and_then(|(_, value)| value.clone());
            chain.push((self.version, new.clone()));
            self.written.push_back((self.version, key.clone()));
            changed.push(RowChange { key, old, new });
        }
        self.clean();
        (self.version, changed)
    }

    fn clean(&mut self) {
        let oldest = self.held.keys().next().copied().unwrap_or(self.version);
        while let Some((version, key)) = self.written.front() {
            if *version > oldest {
                return;
            }
            if let Some(chain) = self.chains.get_mut(key) {
                let kept = chain.iter().rposition(|(written, _)| *written <= oldest).unwrap_or(0);
                chain.drain(..kept);
                if let [(written, None)] = chain.as_slice()
                    && *written <= oldest
                {
                    self.chains.remove(key);
                }
            }
            self.written.pop_front();
        }
    }
}
