//! A walk over the rows that a snapshot sees: like a scan ([`super::view`]), but it copies no rows, and goes from one place to another
//! without a new scan.

use std::collections::btree_map;
use std::ops::Bound;

use bytes::Bytes;

use super::base::{BaseRow, BaseRows, BaseView};
use super::gaps::Gaps;
use super::memtable::{Cell, Cells};
use super::view::Tables;
use crate::walk::Rest;
use crate::{Result, Step, Visit};

/// Rows that a walk crosses before it releases the lock for the committer.
const STEPS_PER_LOCK: usize = 512;
/// Rows that are crossed one by one before a table is searched for the place to go to.
const STEPS_PER_SEEK: usize = 2;
/// The number of consecutive dead rows after which a scan goes on: it skips the gaps.
const DEAD: usize = 16;

/// Why a part of a walk has ended.
enum Part {
    /// So has the walk.
    End,
    /// The committer shall get the lock.
    Lock,
    /// There are many dead rows.
    Dead,
}

/// Shows `visit` rows of a range as of `version`. Returns how many they were.
pub(super) fn walk(
    tables: &Tables,
    mut rest: Rest,
    version: u64,
    gaps: &Gaps,
    visit: &mut Visit<'_>,
) -> Result<usize> {
    let mut visited = 0;
    while !rest.is_empty() {
        match part(tables, &mut rest, version, visit, &mut visited)? {
            Part::End => break,
            Part::Lock => {}
            Part::Dead => {
                let rows = tables.range(&rest.read(1), version, gaps)?;
                visited += rows.len();
                if !rest.visit(rows, 1, visit)? {
                    break;
                }
            }
        }
    }
    Ok(visited)
}

/// A part of a walk, under one lock.
fn part(
    tables: &Tables,
    rest: &mut Rest,
    version: u64,
    visit: &mut Visit<'_>,
    visited: &mut usize,
) -> Result<Part> {
    let (active, frozen) = (tables.active.read(), tables.frozen.as_ref().map(|frozen| frozen.read()));
    let Rest { begin, end, reverse } = &*rest;
    let (begin, end, reverse) = (begin.clone(), end.clone(), *reverse);
    let mut active = InMemory::new(&active, &begin, &end, reverse);
    let mut frozen = frozen.as_ref().map(|frozen| InMemory::new(frozen, &begin, &end, reverse));
    let mut base = InBase::new(&tables.base, &begin, &end, reverse)?;
    let (mut to, mut dead) = (Vec::new(), 0);
    for _ in 0..STEPS_PER_LOCK {
        let heads = [active.key(), frozen.as_ref().and_then(InMemory::key), base.key()].into_iter().flatten();
        let Some(key) = (if reverse { heads.max() } else { heads.min() }) else { return Ok(Part::End) };
        let [in_active, in_frozen, in_base] =
            [active.key(), frozen.as_ref().and_then(InMemory::key), base.key()].map(|head| head == Some(key));
        // The first table that has the row decides, and all of them advance past it.
        let of_active = active.head.filter(|_| in_active).and_then(|(_, cell)| cell.at(version));
        let of_frozen = || frozen.as_ref()?.head.filter(|_| in_frozen).and_then(|(_, cell)| cell.at(version));
        let value = match of_active.or_else(of_frozen) {
            Some(known) => known.as_deref(),
            None => base.head.as_ref().filter(|_| in_base).map(|(_, value)| value.value()),
        };
        let step = match value {
            Some(value) => {
                (*visited, dead) = (*visited + 1, 0);
                visit(key, value, &mut to)?
            }
            None => {
                dead += 1;
                Step::Next
            }
        };
        let is_ahead = if reverse { &to[..] <= key } else { &to[..] > key };
        let step = if step == Step::Seek && !is_ahead { Step::Next } else { step };
        match step {
            Step::End => return Ok(Part::End),
            Step::Next => {
                to.clear();
                to.extend_from_slice(key);
                if !reverse {
                    to.push(0);
                }
            }
            Step::Seek => {}
        }
        active.seek(&to);
        if let Some(frozen) = &mut frozen {
            frozen.seek(&to);
        }
        base.seek(&to)?;
        if dead == DEAD {
            rest.seek(&to);
            return Ok(Part::Dead);
        }
    }
    rest.seek(&to);
    Ok(Part::Lock)
}

/// Whether a row is before the place where a walk goes on.
fn is_passed(key: &[u8], to: &[u8], reverse: bool) -> bool {
    if reverse { key >= to } else { key < to }
}

/// A memtable in a walk.
struct InMemory<'a> {
    cells: &'a Cells<'a>,
    rows: btree_map::Range<'a, Bytes, Cell>,
    head: Option<(&'a Bytes, &'a Cell)>,
    begin: &'a [u8],
    end: &'a [u8],
    reverse: bool,
}

impl<'a> InMemory<'a> {
    fn new(cells: &'a Cells<'a>, begin: &'a [u8], end: &'a [u8], reverse: bool) -> Self {
        let mut table = InMemory { cells, rows: between(cells, begin, end), head: None, begin, end, reverse };
        table.next();
        table
    }

    fn key(&self) -> Option<&'a [u8]> {
        self.head.map(|(key, _)| &key[..])
    }

    fn next(&mut self) {
        self.head = if self.reverse { self.rows.next_back() } else { self.rows.next() };
    }

    /// Goes to the first row at or behind `to`; backwards to the last one before it.
    fn seek(&mut self, to: &[u8]) {
        for _ in 0..STEPS_PER_SEEK {
            if !self.key().is_some_and(|key| is_passed(key, to, self.reverse)) {
                return;
            }
            self.next();
        }
        if self.key().is_some_and(|key| is_passed(key, to, self.reverse)) {
            let (begin, end) = if self.reverse { (self.begin, to) } else { (to, self.end) };
            self.rows = between(self.cells, begin, end);
            self.next();
        }
    }
}

/// The cells of `[begin, end)`, which may be empty or reversed.
fn between<'a>(cells: &'a Cells<'a>, begin: &[u8], end: &[u8]) -> btree_map::Range<'a, Bytes, Cell> {
    cells.range::<[u8], _>((Bound::Included(begin), Bound::Excluded(end.max(begin))))
}

/// The base in a walk.
struct InBase<'a> {
    view: &'a BaseView,
    rows: BaseRows,
    head: Option<BaseRow>,
    begin: &'a [u8],
    end: &'a [u8],
    reverse: bool,
}

impl<'a> InBase<'a> {
    fn new(view: &'a BaseView, begin: &'a [u8], end: &'a [u8], reverse: bool) -> Result<Self> {
        let mut base = InBase { view, rows: view.range(begin, end)?, head: None, begin, end, reverse };
        base.next()?;
        Ok(base)
    }

    fn key(&self) -> Option<&[u8]> {
        self.head.as_ref().map(|(key, _)| key.value())
    }

    fn next(&mut self) -> Result<()> {
        self.head = self.rows.next_guard(self.reverse)?;
        Ok(())
    }

    fn is_behind(&self, to: &[u8]) -> bool {
        self.key().is_some_and(|key| is_passed(key, to, self.reverse))
    }

    /// As [`InMemory::seek`].
    fn seek(&mut self, to: &[u8]) -> Result<()> {
        for _ in 0..STEPS_PER_SEEK {
            if !self.is_behind(to) {
                return Ok(());
            }
            self.next()?;
        }
        if self.is_behind(to) {
            let (begin, end) = if self.reverse { (self.begin, to) } else { (to, self.end) };
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
