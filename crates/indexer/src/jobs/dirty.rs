//! The databases that have changed, and when they are looked at.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

/// The most databases that are remembered. Beyond them, all databases are compared once these are done.
const MAX_DATABASES: usize = 100_000;

/// Changed databases, by the time at which they are due.
#[derive(Default)]
pub(super) struct Dirty {
    dues: BTreeSet<(Instant, Box<str>)>,
    changes: HashMap<Box<str>, Change>,
    /// Whether databases were dropped.
    overflown: bool,
}

/// The changes of a database since it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    due: Instant,
    since: Since,
}

/// When the oldest change of a database that its indexes lack was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Since {
    /// Before it was watched.
    Unknown,
    /// At about this time.
    At(Instant),
}

impl Dirty {
    /// A database has changed at `since`, and is due at `due`. Earlier times that are known already stay.
    pub fn mark(&mut self, database: &str, since: Since, due: Instant) {
        let mut change = Change { due, since };
        if let Some(known) = self.changes.get(database).copied() {
            change = Change { due: known.due.min(due), since: known.since.min(since) };
            if change.due != known.due {
                self.dues.remove(&(known.due, database.into()));
            }
        } else if self.changes.len() >= MAX_DATABASES {
            self.overflown = true;
            return;
        }
        self.dues.insert((change.due, database.into()));
        self.changes.insert(database.into(), change);
    }

    /// Removes up to `most` databases that are due.
    pub fn take(&mut self, now: Instant, most: usize) -> Vec<(Box<str>, Since)> {
        let mut taken = Vec::new();
        while taken.len() < most && self.next().is_some_and(|due| due <= now) {
            let Some((_, database)) = self.dues.pop_first() else { break };
            if let Some(change) = self.changes.remove(&database) {
                taken.push((database, change.since));
            }
        }
        taken
    }

    /// When the next database is due.
    pub fn next(&self) -> Option<Instant> {
        self.dues.first().map(|(due, _)| *due)
    }

    /// Whether a database is marked.
    pub fn contains(&self, database: &str) -> bool {
        self.changes.contains_key(database)
    }

    /// Whether databases were dropped since the last call.
    pub fn overflown(&mut self) -> bool {
        std::mem::take(&mut self.overflown)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_database_is_due_as_early_as_any_change_demands_and_keeps_the_oldest_change() {
        let now = Instant::now();
        let at = |s: u64| now + Duration::from_secs(s);
        let mut dirty = Dirty::default();
        dirty.mark("a", Since::At(at(1)), at(5));
        dirty.mark("a", Since::At(at(2)), at(9));
        dirty.mark("b", Since::At(at(1)), at(4));
        dirty.mark("b", Since::Unknown, at(3));
        assert_eq!(dirty.next(), Some(at(3)));
        assert!(dirty.take(at(2), 10).is_empty());
        assert_eq!(dirty.take(at(9), 1), [("b".into(), Since::Unknown)]);
        assert_eq!(dirty.take(at(9), 10), [("a".into(), Since::At(at(1)))]);
        assert_eq!((dirty.next(), dirty.overflown()), (None, false));
    }
}
