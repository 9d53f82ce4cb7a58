//! The rows that a snapshot sees: the memtables over the base, as of one version.

use std::sync::Arc;

use bytes::Bytes;

use super::base::BaseView;
use super::gaps::Gaps;
use super::memtable::{Cell, Memtable, span};
use crate::key::successor;
use crate::{KeyValue, RangeRead, Result};

/// Rows that a scan crosses before it releases the lock for the committer.
const STEPS_PER_LOCK: usize = 512;
/// The number of consecutive dead rows after which a scan searches for a gap, and which justify a new gap.
const DEAD_PER_GAP: usize = 64;
/// The number of dead rows next to a gap that justify extending it.
const DEAD_TO_GROW: usize = 8;

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
    /// The value of a key as of `version`.
    pub(super) fn get(&self, key: &[u8], version: u64) -> Result<Option<Bytes>> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.get(key, version));
        match self.active.get(key, version).or_else(frozen) {
            Some(known) => Ok(known),
            None => self.base.get(key),
        }
    }

    /// The rows of a range as of `version`.
    pub(super) fn range(&self, read: &RangeRead, version: u64, gaps: &Gaps) -> Result<Vec<KeyValue>> {
        let mut scan = Scan {
            tables: self,
            gaps,
            version,
            reverse: read.reverse,
            begin: read.begin.clone(),
            end: read.end.clone(),
            run: Run::starting_at(if read.reverse { &read.end } else { &read.begin }),
            found: Vec::new(),
        };
        let mut rows = Vec::new();
        while rows.len() < read.limit && scan.begin < scan.end {
            scan.jump();
            scan.advance(read.limit, &mut rows)?;
            scan.note_found();
        }
        Ok(rows)
    }
}

/// A scan in progress. The rest of the range is `[begin, end)`.
struct Scan<'a> {
    tables: &'a Tables,
    gaps: &'a Gaps,
    version: u64,
    reverse: bool,
    begin: Bytes,
    end: Bytes,
    run: Run,
    /// Runs to record as gaps, once the memtables are no longer locked: [`Gaps::note`] locks them while it holds the lock of the
    /// gaps.
    found: Vec<(Bytes, Bytes)>,
}

/// The dead rows that were crossed since the last live row, or since the last gap.
struct Run {
    from: Bytes,
    /// Whether the run begins behind the row `from`, and not at it. Most runs are short: their bounds are never needed.
    behind: bool,
    dead: usize,
    next_to_gap: bool,
}

impl Run {
    fn starting_at(from: &Bytes) -> Self {
        Run { from: from.clone(), behind: false, dead: 0, next_to_gap: false }
    }

    /// A run that begins behind a live row.
    fn behind(row: Bytes, reverse: bool) -> Self {
        Run { behind: !reverse, ..Run::starting_at(&row) }
    }

    /// The range of the run, if it ends at `to`.
    fn up_to(&self, to: Bytes, reverse: bool) -> (Bytes, Bytes) {
        let from = if self.behind { successor(&self.from) } else { self.from.clone() };
        if reverse { (to, from) } else { (from, to) }
    }
}

impl Scan<'_> {
    /// Skips the gaps at the scan's position.
    fn jump(&mut self) {
        while self.begin < self.end {
            let place = if self.reverse { &self.end } else { &self.begin };
            let Some((begin, end)) = self.gaps.around(place, self.reverse, self.version) else { return };
            if self.run.dead > 0 {
                let place = place.clone();
                self.found.push(self.run.up_to(place, self.reverse));
                self.note_found();
            }
            if self.reverse {
                self.end = begin;
                self.run = Run { next_to_gap: true, ..Run::starting_at(&self.end) };
            } else {
                self.begin = end;
                self.run = Run { next_to_gap: true, ..Run::starting_at(&self.begin) };
            }
        }
    }

    /// Reads on until there are enough rows, or until the committer should get the lock.
    fn advance(&mut self, limit: usize, rows: &mut Vec<KeyValue>) -> Result<()> {
        if self.begin >= self.end {
            return Ok(());
        }
        let Tables { active, frozen, base, .. } = self.tables;
        let active = active.read();
        let frozen = frozen.as_ref().map(|frozen| frozen.read());
        let (begin, end, reverse) = (self.begin.clone(), self.end.clone(), self.reverse);
        let mut in_active = span(&active, &begin, &end);
        let mut in_frozen = frozen.as_ref().map(|frozen| span(frozen, &begin, &end));
        let mut in_base = base.range(&begin, &end)?;
        let mut next_active = || if reverse { in_active.next_back() } else { in_active.next() };
        let mut next_frozen =
            || in_frozen.as_mut().and_then(|cells| if reverse { cells.next_back() } else { cells.next() });
        let mut head_active = next_active();
        let mut head_frozen = next_frozen();
        let mut head_base = in_base.next(reverse)?;
        let mut last = None;
        for _ in 0..STEPS_PER_LOCK {
            let heads = [
                head_active.map(|(key, _)| key),
                head_frozen.map(|(key, _)| key),
                head_base.as_ref().map(|(key, _)| key),
            ];
            let heads = heads.into_iter().flatten();
            let Some(key) = (if reverse { heads.max() } else { heads.min() }).cloned() else {
                // The range has ended.
                self.end_run(if reverse { &begin } else { &end });
                self.begin = self.end.clone();
                return Ok(());
            };
            // The first table that has the row decides, and all of them advance past it.
            let mut known: Option<Option<Bytes>> = None;
            let visible = |cell: &Cell| cell.at(self.version).cloned();
            if let Some((_, cell)) = head_active.filter(|(head, _)| **head == key) {
                known = visible(cell);
                head_active = next_active();
            }
            if let Some((_, cell)) = head_frozen.filter(|(head, _)| **head == key) {
                known = known.or_else(|| visible(cell));
                head_frozen = next_frozen();
            }
            if let Some((_, value)) = head_base.take_if(|(head, _)| *head == key) {
                known = known.or(Some(Some(value)));
                head_base = in_base.next(reverse)?;
            }
            match known.flatten() {
                Some(value) => {
                    self.end_run_before(&key);
                    self.run = Run::behind(key.clone(), reverse);
                    rows.push((key.clone(), value));
                    last = Some(key);
                    if rows.len() == limit {
                        break;
                    }
                }
                None => {
                    last = Some(key);
                    self.run.dead += 1;
                    if self.run.dead.is_multiple_of(DEAD_PER_GAP) {
                        break;
                    }
                }
            }
        }
        if let Some(last) = last {
            self.pass(&last);
        }
        Ok(())
    }

    /// Moves the rest of the range past `key`.
    fn pass(&mut self, key: &Bytes) {
        if self.reverse {
            self.end = key.clone();
        } else {
            self.begin = successor(key);
        }
    }

    /// Whether the run of dead rows is long enough to be kept.
    fn is_worth(&self) -> bool {
        self.run.dead >= if self.run.next_to_gap { DEAD_TO_GROW } else { DEAD_PER_GAP }
    }

    /// Ends a run of dead rows at `to`, and keeps it if it was long.
    fn end_run(&mut self, to: &Bytes) {
        if self.is_worth() {
            self.found.push(self.run.up_to(to.clone(), self.reverse));
        }
    }

    /// The same at a live row.
    fn end_run_before(&mut self, row: &Bytes) {
        if self.is_worth() {
            self.end_run(&if self.reverse { successor(row) } else { row.clone() });
        }
    }

    fn note_found(&mut self) {
        let Tables { active, generation, .. } = self.tables;
        for (begin, end) in self.found.drain(..) {
            self.gaps.note(begin, end, self.version, *generation, active);
        }
    }
}
