//! The rows of the latest groups, in memory, with the versions that snapshots may still read.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::Bound;
use std::sync::RwLockReadGuard;

use bytes::Bytes;

use crate::sync::RwLock;

/// The rows of a log segment, in key order. Only the committer writes, and only while the segment receives records.
#[derive(Default)]
pub(super) struct Memtable {
    cells: RwLock<BTreeMap<Bytes, Cell>>,
}

/// The versions of one row.
pub(super) struct Cell {
    newest: Version,
    /// Newest last.
    older: Vec<Version>,
}

struct Version {
    number: u64,
    /// `None` if the row was cleared.
    value: Option<Bytes>,
}

impl Cell {
    /// The row as of `version`; `None` if this memtable does not have it.
    pub(super) fn at(&self, version: u64) -> Option<&Option<Bytes>> {
        if self.newest.number <= version {
            return Some(&self.newest.value);
        }
        let seen = self.seen_by(version)?;
        Some(&self.older[seen].value)
    }

    /// The index of the older version that a snapshot of `version` sees.
    fn seen_by(&self, version: u64) -> Option<usize> {
        self.older.partition_point(|known| known.number <= version).checked_sub(1)
    }

    /// Whether a value was set after `version`.
    pub(super) fn lived_after(&self, version: u64) -> bool {
        std::iter::once(&self.newest)
            .chain(self.older.iter().rev())
            .take_while(|known| known.number > version)
            .any(|known| known.value.is_some())
    }

    /// Adds a version, and drops those that no snapshot of `oldest` or later can see.
    fn push(&mut self, next: Version, oldest: u64) {
        let previous = std::mem::replace(&mut self.newest, next);
        self.older.push(previous);
        if self.newest.number <= oldest {
            self.older.clear();
        } else if let Some(seen) = self.seen_by(oldest) {
            self.older.drain(..seen);
        }
    }
}

/// The cells of `[begin, end)`; none if `end` is before `begin`.
pub(super) fn span<'a>(
    cells: &'a BTreeMap<Bytes, Cell>,
    begin: &[u8],
    end: &[u8],
) -> btree_map::Range<'a, Bytes, Cell> {
    cells.range::<[u8], _>((Bound::Included(begin), Bound::Excluded(end.max(begin))))
}

impl Memtable {
    /// Locks the rows for reading. Keep the lock short, because the committer waits for it.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Bytes, Cell>> {
        self.cells.read()
    }

    /// The row of `key` as of `version`; `None` if this memtable does not have it.
    pub(super) fn get(&self, key: &[u8], version: u64) -> Option<Option<Bytes>> {
        self.read().get(key).and_then(|cell| cell.at(version)).cloned()
    }

    /// Writes the rows of a group. No snapshot older than `oldest` is held.
    pub(super) fn apply(
        &self,
        version: u64,
        rows: impl Iterator<Item = (Bytes, Option<Bytes>)>,
        oldest: u64,
    ) {
        let mut cells = self.cells.write();
        for (key, value) in rows {
            let next = Version { number: version, value };
            match cells.entry(key) {
                btree_map::Entry::Occupied(mut cell) => cell.get_mut().push(next, oldest),
                btree_map::Entry::Vacant(place) => {
                    place.insert(Cell { newest: next, older: Vec::new() });
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// Calls `each` for the newest version of every row, in key order.
    pub(super) fn try_for_each_newest<E>(
        &self,
        mut each: impl FnMut(&Bytes, Option<&Bytes>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read().iter().try_for_each(|(key, cell)| each(key, cell.newest.value.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(memtable: &Memtable, version: u64, oldest: u64, value: Option<&'static str>) {
        let row = (Bytes::from_static(b"k"), value.map(Bytes::from));
        memtable.apply(version, std::iter::once(row), oldest);
    }

    #[test]
    fn every_version_that_is_held_stays_readable() {
        let memtable = Memtable::default();
        write(&memtable, 2, 0, Some("two"));
        write(&memtable, 4, 0, None);
        write(&memtable, 6, 3, Some("six"));
        let at = |version| memtable.get(b"k", version);
        assert_eq!(at(1), None);
        assert_eq!(at(3), Some(Some("two".into())));
        assert_eq!(at(5), Some(None));
        assert_eq!(at(9), Some(Some("six".into())));
    }

    #[test]
    fn versions_that_no_snapshot_holds_are_dropped() {
        let memtable = Memtable::default();
        for version in 1..100 {
            write(&memtable, version, version - 1, Some("x"));
        }
        assert_eq!(memtable.read()[&Bytes::from_static(b"k")].older.len(), 1);
        for version in 100..110 {
            write(&memtable, version, 99, Some("x"));
        }
        assert_eq!(memtable.read()[&Bytes::from_static(b"k")].older.len(), 10);
        write(&memtable, 110, 105, Some("x"));
        assert_eq!(memtable.get(b"k", 105), Some(Some("x".into())));
        assert_eq!(memtable.read()[&Bytes::from_static(b"k")].older.len(), 5);
        write(&memtable, 111, 111, Some("x"));
        assert_eq!(memtable.read()[&Bytes::from_static(b"k")].older.len(), 0);
    }

    #[test]
    fn a_row_that_was_set_and_cleared_has_lived() {
        let memtable = Memtable::default();
        write(&memtable, 2, 0, None);
        write(&memtable, 4, 0, Some("four"));
        write(&memtable, 6, 0, None);
        let lived_after = |version| memtable.read()[&Bytes::from_static(b"k")].lived_after(version);
        assert!(lived_after(1) && lived_after(3));
        assert!(!lived_after(4) && !lived_after(6));
    }
}
