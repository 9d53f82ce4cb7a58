//! The next row of the memtables and of the base, for a [scan](super::view).

use std::collections::{BTreeMap, btree_map};

use bytes::Bytes;

use super::base::{BaseRow, BaseRows, BaseView};
use super::memtable::{Cell, span};
use crate::{KeyValue, RangeRead, Result};

/// Rows that are crossed one by one before a table is searched for the place to go to.
const STEPS_PER_SEEK: usize = 2;

/// A row where it is stored.
pub(super) enum Row<'a> {
    Memory(&'a Bytes, &'a Bytes),
    Base(&'a BaseRow),
}

impl Row<'_> {
    pub(super) fn key(&self) -> &[u8] {
        match self {
            Row::Memory(key, _) => key,
            Row::Base((key, _)) => key.value(),
        }
    }

    pub(super) fn value(&self) -> &[u8] {
        match self {
            Row::Memory(_, value) => value,
            Row::Base((_, value)) => value.value(),
        }
    }

    /// A copy, which shares the bytes that are in memory.
    pub(super) fn to_owned(&self) -> KeyValue {
        match *self {
            Row::Memory(key, value) => (key.clone(), value.clone()),
            Row::Base((key, value)) => {
                (Bytes::copy_from_slice(key.value()), Bytes::copy_from_slice(value.value()))
            }
        }
    }
}

/// Goes through a range of all tables. An earlier table hides the rows of later ones.
pub(super) struct Cursor<'a> {
    active: InMemory<'a>,
    frozen: Option<InMemory<'a>>,
    base: InBase<'a>,
    reverse: bool,
}

/// The next key in any of the tables.
pub(super) struct Head<'a> {
    pub(super) key: &'a [u8],
    /// `None` if the row is cleared.
    pub(super) row: Option<Row<'a>>,
    /// Which tables have the key: see [`Cursor::pass`].
    pub(super) tables: [bool; 3],
}

impl<'a> Cursor<'a> {
    /// Begins at the front of a range that is not empty.
    pub(super) fn new(
        active: &'a BTreeMap<Bytes, Cell>,
        frozen: Option<&'a BTreeMap<Bytes, Cell>>,
        base: &'a BaseView,
        range: &'a RangeRead,
    ) -> Result<Self> {
        Ok(Cursor {
            active: InMemory::new(active, range),
            frozen: frozen.map(|frozen| InMemory::new(frozen, range)),
            base: InBase::new(base, range)?,
            reverse: range.reverse,
        })
    }

    /// The next row as of `version`.
    pub(super) fn head(&self, version: u64) -> Option<Head<'_>> {
        let heads = [self.active.key(), self.frozen.as_ref().and_then(InMemory::key), self.base.key()];
        let keys = heads.into_iter().flatten();
        let key = if self.reverse { keys.max() } else { keys.min() }?;
        let tables = heads.map(|head| head == Some(key));
        // The first table that has the row decides.
        let of_active = self.active.at(version).filter(|_| tables[0]);
        let of_frozen = || self.frozen.as_ref()?.at(version).filter(|_| tables[1]);
        let row = match of_active.or_else(of_frozen) {
            Some((key, value)) => value.as_ref().map(|value| Row::Memory(key, value)),
            None => self.base.head.as_ref().filter(|_| tables[2]).map(Row::Base),
        };
        Some(Head { key, row, tables })
    }

    /// Goes on behind a head, in the tables that have its key.
    pub(super) fn pass(&mut self, [in_active, in_frozen, in_base]: [bool; 3]) -> Result<()> {
        if in_active {
            self.active.next();
        }
        if let Some(frozen) = self.frozen.as_mut().filter(|_| in_frozen) {
            frozen.next();
        }
        if in_base { self.base.next() } else { Ok(()) }
    }

    /// Goes to the first row at or behind `to`; backwards to the last one before it.
    pub(super) fn seek(&mut self, to: &[u8]) -> Result<()> {
        self.active.seek(to);
        if let Some(frozen) = &mut self.frozen {
            frozen.seek(to);
        }
        self.base.seek(to)
    }
}

/// Whether a row is before the place where a scan goes on.
fn is_passed(key: Option<&[u8]>, to: &[u8], reverse: bool) -> bool {
    key.is_some_and(|key| if reverse { key >= to } else { key < to })
}

/// The part of a range that is at `to` or behind it.
fn rest<'r>(range: &'r RangeRead, to: &'r [u8]) -> (&'r [u8], &'r [u8]) {
    if range.reverse { (&range.begin[..], to) } else { (to, &range.end[..]) }
}

struct InMemory<'a> {
    cells: &'a BTreeMap<Bytes, Cell>,
    range: &'a RangeRead,
    rows: btree_map::Range<'a, Bytes, Cell>,
    head: Option<(&'a Bytes, &'a Cell)>,
}

impl<'a> InMemory<'a> {
    fn new(cells: &'a BTreeMap<Bytes, Cell>, range: &'a RangeRead) -> Self {
        let mut table = InMemory { cells, range, rows: span(cells, &range.begin, &range.end), head: None };
        table.next();
        table
    }

    fn key(&self) -> Option<&'a [u8]> {
        self.head.map(|(key, _)| &key[..])
    }

    /// Its head as of `version`; `None` if this memtable does not have it.
    fn at(&self, version: u64) -> Option<(&'a Bytes, &'a Option<Bytes>)> {
        let (key, cell) = self.head?;
        Some((key, cell.at(version)?))
    }

    fn next(&mut self) {
        self.head = if self.range.reverse { self.rows.next_back() } else { self.rows.next() };
    }

    fn seek(&mut self, to: &[u8]) {
        for _ in 0..STEPS_PER_SEEK {
            if !is_passed(self.key(), to, self.range.reverse) {
                return;
            }
            self.next();
        }
        if is_passed(self.key(), to, self.range.reverse) {
            let (begin, end) = rest(self.range, to);
            self.rows = span(self.cells, begin, end);
            self.next();
        }
    }
}

struct InBase<'a> {
    view: &'a BaseView,
    range: &'a RangeRead,
    rows: BaseRows,
    head: Option<BaseRow>,
}

impl<'a> InBase<'a> {
    fn new(view: &'a BaseView, range: &'a RangeRead) -> Result<Self> {
        let mut base = InBase { view, range, rows: view.range(&range.begin, &range.end)?, head: None };
        base.next()?;
        Ok(base)
    }

    fn key(&self) -> Option<&[u8]> {
        self.head.as_ref().map(|(key, _)| key.value())
    }

    fn next(&mut self) -> Result<()> {
        self.head = self.rows.next(self.range.reverse)?;
        Ok(())
    }

    /// As [`InMemory::seek`].
    fn seek(&mut self, to: &[u8]) -> Result<()> {
        for _ in 0..STEPS_PER_SEEK {
            if !is_passed(self.key(), to, self.range.reverse) {
                return Ok(());
            }
            self.next()?;
        }
        if is_passed(self.key(), to, self.range.reverse) {
            let (begin, end) = rest(self.range, to);
            if begin >= end {
                self.head = None;
                return Ok(());
            }
            self.rows = self.view.range(begin, end)?;
            self.next()?;
        }
        Ok(())
    }
}
