//! Gaps: ranges without live rows, which a scan may skip.
//!
//! Rows are cleared at the head of a queue. Until the next checkpoint each leaves a tombstone in memory, and the row that it
//! hides in the base. Every scan from the head would cross all of them again. So a scan that has crossed many records the range
//! as a gap, and the next scan skips it.
//!
//! Invariant: in every snapshot of a gap's `since` or later, the gap has no live row. The committer splits a gap at every key
//! that it sets, after the key is in the memtable and before its version is published. A scan that records a gap checks, under
//! the same lock, whether a key was set in it meanwhile.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::memtable::{Memtable, span};
use crate::key::successor;
use crate::sync::Mutex;

/// Most gaps to keep. Beyond that, all are dropped.
const MAX_GAPS: usize = 4_096;

#[derive(Default)]
pub(super) struct Gaps {
    state: Mutex<State>,
    /// The number of gaps, so that scans of a store without gaps cost nothing extra.
    count: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// By their first key, without overlaps.
    gaps: BTreeMap<Bytes, Gap>,
    /// Increases when another memtable becomes active.
    generation: u64,
}

struct Gap {
    end: Bytes,
    since: u64,
}

impl Gaps {
    /// The gap around `key`, or before it if `reverse`, that a snapshot of `version` may skip.
    pub(super) fn around(&self, key: &Bytes, reverse: bool, version: u64) -> Option<(Bytes, Bytes)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let state = self.state.lock();
        let bound = if reverse { Bound::Excluded(key) } else { Bound::Included(key) };
        let (begin, gap) = state.gaps.range::<Bytes, _>((Bound::Unbounded, bound)).next_back()?;
        let reaches = if reverse { gap.end >= *key } else { gap.end > *key };
        (reaches && gap.since <= version).then(|| (begin.clone(), gap.end.clone()))
    }

    /// Records that a snapshot of `version` found no row in `[begin, end)`, unless a row was set there since. `active` was the
    /// active memtable of `generation` when the snapshot was taken.
    pub(super) fn note(
        &self,
        begin: Bytes,
        mut end: Bytes,
        version: u64,
        generation: u64,
        active: &Memtable,
    ) {
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        if let Some((set, _)) = span(&active.read(), &begin, &end).find(|(_, cell)| cell.lived_after(version))
        {
            end = set.clone();
        }
        if begin < end {
            state.insert(begin, end, version);
        }
        self.count.store(state.gaps.len(), Ordering::Release);
    }

    /// Splits the gaps at keys that were set, which are sorted.
    pub(super) fn cut<'a>(&self, keys: impl Iterator<Item = &'a Bytes>) {
        let mut state = self.state.lock();
        if state.gaps.is_empty() {
            return;
        }
        // The begin of the next gap behind a key that is in none: so are all keys before it.
        let mut next: Option<Option<Bytes>> = None;
        for key in keys {
            if next.as_ref().is_some_and(|next| next.as_ref().is_none_or(|next| key < next)) {
                continue;
            }
            let around = state.gaps.range_mut::<Bytes, _>(..=key).next_back();
            let Some((begin, gap)) = around.filter(|(_, gap)| gap.end > *key) else {
                let behind = (Bound::Excluded(key), Bound::Unbounded);
                next = Some(state.gaps.range::<Bytes, _>(behind).next().map(|(begin, _)| begin.clone()));
                continue;
            };
            let (begin, since) = (begin.clone(), gap.since);
            let end = std::mem::replace(&mut gap.end, key.clone());
            if begin == *key {
                state.gaps.remove(&begin);
            }
            let after = successor(key);
            if after < end {
                state.gaps.insert(after, Gap { end, since });
            }
        }
        self.count.store(state.gaps.len(), Ordering::Release);
    }

    /// Records that another memtable becomes active.
    pub(super) fn rotate(&self, generation: u64) {
        self.state.lock().generation = generation;
    }
}

impl State {
    /// Adds a gap, and merges it with the gaps that it touches.
    fn insert(&mut self, mut begin: Bytes, mut end: Bytes, mut since: u64) {
        if self.gaps.len() >= MAX_GAPS {
            self.gaps.clear();
        }
        while let Some((other, gap)) = self.gaps.range::<Bytes, _>(..=&end).next_back() {
            if gap.end < begin {
                break;
            }
            let other = other.clone();
            let gap = self.gaps.remove(&other).expect("it was just found");
            begin = begin.min(other);
            end = end.max(gap.end);
            since = since.max(gap.since);
        }
        self.gaps.insert(begin, Gap { end, since });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &'static str) -> Bytes {
        Bytes::from_static(name.as_bytes())
    }

    fn note(gaps: &Gaps, begin: &'static str, end: &'static str, version: u64) {
        gaps.note(key(begin), key(end), version, 0, &Memtable::default());
    }

    fn around(gaps: &Gaps, name: &'static str, version: u64) -> Option<(Bytes, Bytes)> {
        gaps.around(&key(name), false, version)
    }

    #[test]
    fn a_gap_is_found_from_inside_and_by_later_snapshots() {
        let gaps = Gaps::default();
        note(&gaps, "b", "d", 5);
        let gap = Some((key("b"), key("d")));
        assert_eq!(around(&gaps, "b", 5), gap);
        assert_eq!(around(&gaps, "c", 6), gap);
        assert_eq!(around(&gaps, "c", 4), None);
        assert_eq!(around(&gaps, "d", 5), None);
        assert_eq!(around(&gaps, "a", 5), None);
        assert_eq!(gaps.around(&key("d"), true, 5), gap);
        assert_eq!(gaps.around(&key("c"), true, 5), gap);
        assert_eq!(gaps.around(&key("b"), true, 5), None);
        assert_eq!(gaps.around(&key("d\0"), true, 5), None);
    }

    #[test]
    fn gaps_that_touch_become_one() {
        let gaps = Gaps::default();
        note(&gaps, "b", "d", 5);
        note(&gaps, "f", "h", 7);
        note(&gaps, "d", "f", 6);
        assert_eq!(around(&gaps, "b", 7), Some((key("b"), key("h"))));
        assert_eq!(around(&gaps, "b", 6), None);
        assert_eq!(gaps.state.lock().gaps.len(), 1);
    }

    #[test]
    fn a_key_that_is_set_is_cut_out() {
        let gaps = Gaps::default();
        note(&gaps, "b", "d", 5);
        gaps.cut([key("a"), key("c"), key("d")].iter());
        assert_eq!(around(&gaps, "b", 5), Some((key("b"), key("c"))));
        assert_eq!(around(&gaps, "c", 5), None);
        assert_eq!(around(&gaps, "c\0", 5), Some((key("c\0"), key("d"))));
        gaps.cut([key("b")].iter());
        assert_eq!(around(&gaps, "b", 5), None);
        assert_eq!(around(&gaps, "b\0", 5), Some((key("b\0"), key("c"))));
    }

    #[test]
    fn a_key_that_was_set_meanwhile_ends_the_gap() {
        let (gaps, memtable) = (Gaps::default(), Memtable::default());
        memtable.apply(6, [(key("c"), Some(key("1")))].into_iter(), 0);
        memtable.apply(7, [(key("c"), None)].into_iter(), 0);
        gaps.note(key("b"), key("d"), 5, 0, &memtable);
        assert_eq!(around(&gaps, "b", 5), Some((key("b"), key("c"))));
        assert_eq!(around(&gaps, "c", 5), None);
        gaps.note(key("b"), key("d"), 7, 0, &memtable);
        assert_eq!(around(&gaps, "c", 7), Some((key("b"), key("d"))));
    }

    #[test]
    fn another_generation_notes_nothing() {
        let gaps = Gaps::default();
        gaps.rotate(1);
        note(&gaps, "b", "d", 5);
        assert_eq!(around(&gaps, "b", 5), None);
    }
}
