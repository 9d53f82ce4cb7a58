//! Which keys were written lately, for as long as a transaction may ask.
//!
//! A transaction with a snapshot of version `s` conflicts if a group with a version above `s` wrote a key
//! that it read. Only these groups are searched, newest first, and for most transactions they are one or
//! two: checking costs O(groups since the snapshot · log keys of a group), and writing costs nothing but to
//! keep the sorted keys of the group.

use std::collections::VecDeque;

use bytes::Bytes;

/// Most keys that are remembered, a matter of memory (about 100 bytes each). Snapshots that would need
/// more are too old.
const MAX_KEYS: usize = 2_000_000;

/// The keys of the last groups.
pub(super) struct Window {
    /// Oldest first.
    groups: VecDeque<Group>,
    /// The version before the oldest group: snapshots below it can no longer be checked.
    start: u64,
    keys: usize,
}

struct Group {
    version: u64,
    /// Sorted.
    keys: Vec<Bytes>,
}

impl Window {
    /// An empty window of a store that is at `version`.
    pub(super) fn new(version: u64) -> Self {
        Window { groups: VecDeque::new(), start: version, keys: 0 }
    }

    /// Whether a snapshot of `version` can still be checked.
    pub(super) fn covers(&self, version: u64) -> bool {
        version >= self.start
    }

    /// Whether a key was written after `version`.
    pub(super) fn wrote_key(&self, version: u64, key: &Bytes) -> bool {
        self.after(version).any(|group| group.keys.binary_search(key).is_ok())
    }

    /// Whether any key of `[begin, end)` was written after `version`.
    pub(super) fn wrote_within(&self, version: u64, begin: &Bytes, end: &Bytes) -> bool {
        self.after(version).any(|group| {
            let first = group.keys.partition_point(|key| key < begin);
            group.keys.get(first).is_some_and(|key| key < end)
        })
    }

    fn after(&self, version: u64) -> impl Iterator<Item = &Group> {
        self.groups.iter().rev().take_while(move |group| group.version > version)
    }

    /// Remembers what the group of `version` wrote; `keys` are sorted.
    pub(super) fn push(&mut self, version: u64, keys: Vec<Bytes>) {
        self.keys += keys.len();
        self.groups.push_back(Group { version, keys });
        while self.keys > MAX_KEYS {
            self.pop();
        }
    }

    /// Forgets what no snapshot of `version` or later can ask for.
    pub(super) fn forget_until(&mut self, version: u64) {
        while self.groups.front().is_some_and(|group| group.version <= version) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(group) = self.groups.pop_front() {
            self.start = group.version;
            self.keys -= group.keys.len();
        }
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
    fn what_was_forgotten_is_no_longer_covered() {
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
