//! The rows that a snapshot sees: the memtables over the base, as of one version.

use std::sync::Arc;

use bytes::Bytes;

use super::base::BaseView;
use super::cursor::{Cursor, Head, Row};
use super::gaps::Gaps;
use super::memtable::Memtable;
use crate::key::successor;
use crate::{KeyValue, RangeRead, Result, Step, Visit};

/// Rows that a scan crosses before it releases the lock for the committer.
const STEPS_PER_LOCK: usize = 512;
/// The number of consecutive dead rows after which a scan searches for a gap, and which justify a new gap.
const DEAD_PER_GAP: usize = 64;
/// The number of dead rows next to a gap that justify extending it.
const DEAD_TO_GROW: usize = 8;
/// The number of dead rows after which a walk searches for a gap at the place that it went to.
const DEAD_AFTER_SEEK: usize = 16;

/// The tables that hold the rows. An earlier table hides the rows of later ones.
#[derive(Clone)]
pub(super) struct Tables {
    /// Receives the writes.
    pub(super) active: Arc<Memtable>,
    /// Counts the active memtables.
    pub(super) generation: u64,
    /// Being written to the base.
    pub(super) frozen: Option<Arc<Memtable>>,
    pub(super) base: Arc<BaseView>,
}

impl Tables {
    pub(super) fn get(&self, key: &[u8], version: u64) -> Result<Option<Bytes>> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.get(key, version));
        match self.active.get(key, version).or_else(frozen) {
            Some(known) => Ok(known),
            None => self.base.get(key),
        }
    }

    /// The rows of a range as of `version`.
    pub(super) fn range(&self, read: &RangeRead, version: u64, gaps: &Gaps) -> Result<Vec<KeyValue>> {
        let mut rows = Vec::new();
        self.scan(read, version, gaps, |row, _| {
            rows.push(row.to_owned());
            Ok(if rows.len() == read.limit { Step::End } else { Step::Next })
        })?;
        Ok(rows)
    }

    /// Shows `visit` rows of a range as of `version`. Returns how many they were.
    pub(super) fn walk(
        &self,
        range: &RangeRead,
        version: u64,
        gaps: &Gaps,
        visit: &mut Visit<'_>,
    ) -> Result<usize> {
        let mut visited = 0;
        self.scan(range, version, gaps, |row, to| {
            visited += 1;
            visit(row.key(), row.value(), to)
        })?;
        Ok(visited)
    }

    fn scan(
        &self,
        range: &RangeRead,
        version: u64,
        gaps: &Gaps,
        mut visit: impl FnMut(Row<'_>, &mut Vec<u8>) -> Result<Step>,
    ) -> Result<()> {
        let (rest, run) = (range.clone(), Run::default());
        let mut scan = Scan { tables: self, gaps, version, rest, run, found: Vec::new() };
        let mut has_ended = false;
        while !has_ended && !scan.rest.is_empty() {
            scan.jump();
            has_ended = scan.advance(&mut visit)?;
            scan.note_found();
        }
        Ok(())
    }
}

struct Scan<'a> {
    tables: &'a Tables,
    gaps: &'a Gaps,
    version: u64,
    rest: RangeRead,
    run: Run,
    /// Runs to record as gaps, once the memtables are no longer locked: [`Gaps::note`] locks them while it holds the lock of the
    /// gaps.
    found: Vec<(Bytes, Bytes)>,
}

/// The dead rows that were crossed since the last live row, the last gap, or the place that a walk went to.
#[derive(Default)]
struct Run {
    /// Where it begins, if there are any.
    from: Vec<u8>,
    dead: usize,
    next_to_gap: bool,
    after_seek: bool,
}

impl Run {
    fn restart(&mut self) {
        (self.dead, self.next_to_gap, self.after_seek) = (0, false, false);
    }

    /// Adds a dead row, which is the first one at or behind `place`.
    fn cross(&mut self, place: &[u8]) {
        if self.dead == 0 {
            self.from.clear();
            self.from.extend_from_slice(place);
        }
        self.dead += 1;
    }

    /// Whether there may be a gap ahead.
    fn wants_gap(&self) -> bool {
        self.dead > 0 && self.dead.is_multiple_of(DEAD_PER_GAP)
            || self.after_seek && self.dead == DEAD_AFTER_SEEK
    }

    /// Whether it is long enough to be kept.
    fn is_worth(&self) -> bool {
        self.dead >= if self.next_to_gap { DEAD_TO_GROW } else { DEAD_PER_GAP }
    }

    /// The range of the run, if it ends at `to`.
    fn up_to(&self, to: Bytes, reverse: bool) -> (Bytes, Bytes) {
        let from = Bytes::copy_from_slice(&self.from);
        if reverse { (to, from) } else { (from, to) }
    }
}

impl Scan<'_> {
    /// Skips the gaps at the scan's position.
    fn jump(&mut self) {
        let reverse = self.rest.reverse;
        while !self.rest.is_empty() {
            let place = self.rest.front();
            let Some((begin, end)) = self.gaps.around(place, reverse, self.version) else { return };
            if self.run.dead > 0 {
                self.found.push(self.run.up_to(place.clone(), reverse));
                self.note_found();
            }
            match reverse {
                true => self.rest.end = begin,
                false => self.rest.begin = end,
            }
            self.run.restart();
            self.run.next_to_gap = true;
        }
    }

    /// Shows the next rows, until the walk ends, or until the committer should get the lock. Returns whether it has ended.
    fn advance(&mut self, visit: &mut impl FnMut(Row<'_>, &mut Vec<u8>) -> Result<Step>) -> Result<bool> {
        if self.rest.is_empty() {
            return Ok(true);
        }
        let Tables { active, frozen, base, .. } = self.tables;
        let (active, frozen) = (active.read(), frozen.as_ref().map(|frozen| frozen.read()));
        let range = self.rest.clone();
        let mut cursor = Cursor::new(&active, frozen.as_deref(), base, &range)?;
        // All rows before this place are crossed.
        let mut place = range.front().to_vec();
        let mut to = Vec::new();
        for _ in 0..STEPS_PER_LOCK {
            let Some(Head { key, row, tables }) = cursor.head(self.version) else {
                self.end_run(|| range.back().clone());
                return Ok(true);
            };
            let step = match row {
                Some(row) => {
                    self.end_run(|| if range.reverse { successor(key) } else { Bytes::copy_from_slice(key) });
                    self.run.restart();
                    visit(row, &mut to)?
                }
                None => {
                    self.run.cross(&place);
                    Step::Next
                }
            };
            match step {
                Step::End => return Ok(true),
                Step::Seek if range.precedes(key, &to) => {
                    place.clone_from(&to);
                    cursor.seek(&to)?;
                    self.run.after_seek = true;
                }
                Step::Seek | Step::Next => {
                    place.clear();
                    place.extend_from_slice(key);
                    if !range.reverse {
                        place.push(0);
                    }
                    cursor.pass(tables)?;
                }
            }
            if self.run.wants_gap() {
                break;
            }
        }
        self.rest.seek(&place);
        Ok(false)
    }

    /// Ends a run of dead rows, and keeps it if it was long.
    fn end_run(&mut self, to: impl FnOnce() -> Bytes) {
        if self.run.is_worth() {
            self.found.push(self.run.up_to(to(), self.rest.reverse));
        }
    }

    fn note_found(&mut self) {
        let Tables { active, generation, .. } = self.tables;
        for (begin, end) in self.found.drain(..) {
            self.gaps.note(begin, end, self.version, *generation, active);
        }
    }
}
