//! The keys that recent groups wrote, for as long as a transaction may need them.
//!
//! A transaction with a snapshot of version `s` conflicts if a group with a version above `s` wrote a key that it read. Groups
//! are kept as runs of sorted keys. Only those above `s` are searched, newest first: for most transactions one or two. While a
//! snapshot is held for long, runs accumulate above it. Runs that no held snapshot distinguishes are merged, small ones first. So
//! there are O(held versions · log keys) runs, and each key is merged O(log keys) times.

use std::collections::VecDeque;

use bytes::Bytes;

/// Most keys to remember, to limit memory (about 100 bytes each). Snapshots that would need more are too old.
const MAX_KEYS: usize = 2_000_000;
/// Fewer runs are not worth merging. Tests merge all the time.
const FEW_RUNS: usize = if cfg!(test) { 2 } else { 64 };

/// The keys of the last groups.
pub(super) struct Window {
    /// Oldest first.
    runs: VecDeque<Run>,
    /// The version before the oldest run: snapshots below it can no longer be checked.
    start: u64,
    keys: usize,
    /// The number of runs at which the next merge happens.
    merge_at: usize,
}

/// The keys that one or several groups wrote.
struct Run {
    /// The version of the last group.
    version: u64,
    /// Sorted.
    keys: Vec<Bytes>,
}

impl Window {
    pub(super) fn new(version: u64) -> Self {
        Window { runs: VecDeque::new(), start: version, keys: 0, merge_at: FEW_RUNS }
    }

    /// Whether a snapshot of `version` can still be checked.
    pub(super) fn covers(&self, version: u64) -> bool {
        version >= self.start
    }

    /// Whether a key was written after `version`. The answer is exact only for held versions; for others, an earlier write may
    /// count too.
    pub(super) fn wrote_key(&self, version: u64, key: &Bytes) -> bool {
        self.after(version).any(|run| run.keys.binary_search(key).is_ok())
    }

    /// Whether any key of `[begin, end)` was written after `version`; see [`wrote_key`](Self::wrote_key).
    pub(super) fn wrote_within(&self, version: u64, begin: &Bytes, end: &Bytes) -> bool {
        self.after(version).any(|run| {
            let first = run.keys.partition_point(|key| key < begin);
            run.keys.get(first).is_some_and(|key| key < end)
        })
    }

    fn after(&self, version: u64) -> impl Iterator<Item = &Run> {
        self.runs.iter().rev().take_while(move |run| run.version > version)
    }

    /// Records the keys that the group of `version` wrote. `keys` must be sorted.
    pub(super) fn push(&mut self, version: u64, keys: Vec<Bytes>) {
        self.keys += keys.len();
        self.runs.push_back(Run { version, keys });
        while self.keys > MAX_KEYS {
            self.pop();
        }
    }

    /// Drops runs that no snapshot of `version` or later needs.
    pub(super) fn forget_until(&mut self, version: u64) {
        while self.runs.front().is_some_and(|run| run.version <= version) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(run) = self.runs.pop_front() {
            self.start = run.version;
            self.keys -= run.keys.len();
        }
    }

    /// Whether enough runs have accumulated for a [merge](Self::merge).
    pub(super) fn wants_merging(&self) -> bool {
        self.runs.len() >= self.merge_at
    }

    /// Merges runs that no snapshot distinguishes. `held` contains the versions of all snapshots, sorted.
    pub(super) fn merge(&mut self, held: &[u64]) {
        let mut merged: VecDeque<Run> = VecDeque::new();
        for mut run in self.runs.drain(..) {
            while let Some(older) = merged.back() {
                let next_held = held.partition_point(|version| *version < older.version);
                let is_distinguished = held.get(next_held).is_some_and(|version| *version < run.version);
                // A large run is not copied for a small one. Small runs merge with each other first.
                if is_distinguished || older.keys.len() > 2 * run.keys.len() {
                    break;
                }
                let older = merged.pop_back().expect("it was just looked at");
                self.keys -= older.keys.len() + run.keys.len();
                run.keys.extend(older.keys);
                run.keys.sort();
                run.keys.dedup();
                self.keys += run.keys.len();
            }
            merged.push_back(run);
        }
        self.runs = merged;
        self.merge_at = (2 * self.runs.len()).max(FEW_RUNS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &'static str) -> Bytes {
        Bytes::from_static(name.as_bytes())
    }

    #[test]
    fn only_later_groups_conflict() {
        let mut window = Window::new(7);
        window.push(8, vec![key("b"), key("d")]);
        window.push(9, vec![key("f")]);
        assert!(window.wrote_key(7, &key("b")));
        assert!(!window.wrote_key(8, &key("b")));
        assert!(window.wrote_key(8, &key("f")));
        assert!(!window.wrote_key(7, &key("c")));
    }

    #[test]
    fn a_range_excludes_its_end() {
        let mut window = Window::new(0);
        window.push(1, vec![key("b"), key("d")]);
        assert!(window.wrote_within(0, &key("a"), &key("c")));
        assert!(window.wrote_within(0, &key("b"), &key("c")));
        assert!(!window.wrote_within(0, &key("a"), &key("b")));
        assert!(!window.wrote_within(0, &key("c"), &key("d")));
        assert!(!window.wrote_within(1, &key("a"), &key("z")));
    }

    #[test]
    fn merging_changes_nothing_for_held_snapshots() {
        let key = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes());
        let mut window = Window::new(0);
        let mut plain = Window::new(0);
        let held = [3, 500, 501, 990];
        for version in 1..=1_000 {
            let mut keys: Vec<_> = (0..3).map(|n| key((version * 7 + n * 131) % 400)).collect();
            keys.sort();
            plain.push(version, keys.clone());
            window.push(version, keys);
            let so_far: Vec<_> = held.into_iter().filter(|held| *held < version).collect();
            if window.wants_merging() {
                window.merge(&so_far);
            }
        }
        assert!(window.runs.len() < 100, "{} runs", window.runs.len());
        assert_eq!(window.keys, window.runs.iter().map(|run| run.keys.len()).sum::<usize>());
        for version in held {
            for n in 0..400 {
                assert_eq!(window.wrote_key(version, &key(n)), plain.wrote_key(version, &key(n)));
                let within = |window: &Window| window.wrote_within(version, &key(n), &key(n + 2));
                assert_eq!(within(&window), within(&plain));
            }
        }
    }

    #[test]
    fn dropped_versions_are_no_longer_covered() {
        let mut window = Window::new(0);
        window.push(1, vec![key("a")]);
        window.push(2, vec![key("b")]);
        window.forget_until(1);
        assert!(!window.covers(0));
        assert!(window.covers(1));
        assert!(window.wrote_key(1, &key("b")));
    }

    #[test]
    fn too_many_keys_shorten_the_window() {
        let mut window = Window::new(0);
        let many: Vec<Bytes> = (0..MAX_KEYS as u32).map(|n| Bytes::from(n.to_be_bytes().to_vec())).collect();
        window.push(1, vec![key("a")]);
        window.push(2, many);
        assert!(!window.covers(0));
        assert!(window.covers(1));
    }
}
