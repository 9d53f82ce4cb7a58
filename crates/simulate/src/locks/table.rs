//! The locks that jobs hold.
//!
//! Counters per scope and per level decide which locks are free, so a check costs as much as the job's own locks.
//! [`Table::assert_exclusion`] is independent of the counters. After each step of the world, it checks that no two
//! jobs hold locks that exclude each other.

use std::collections::HashMap;

use super::population::{BIG, JobId, LockScope, ScopeId, Want, whole};

/// The number of held locks: at a scope, or of all names of a level.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    shared: u32,
    exclusive: u32,
    /// The units of the shared ones.
    units: u64,
}

impl Count {
    fn change(&mut self, want: Want, add: bool) {
        let one = |count: &mut u32| *count = if add { *count + 1 } else { *count - 1 };
        if want.exclusive {
            one(&mut self.exclusive);
        } else {
            one(&mut self.shared);
            let units = u64::from(want.units);
            self.units = if add { self.units + units } else { self.units - units };
        }
    }

    fn without(self, own: Count) -> Count {
        Count {
            shared: self.shared - own.shared,
            exclusive: self.exclusive - own.exclusive,
            units: self.units - own.units,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Table<'a> {
    scopes: &'a [LockScope],
    at: Vec<Count>,
    /// For each level: the held locks of its resources.
    named: Vec<Count>,
    held: HashMap<JobId, Vec<Want>>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(scopes: &'a [LockScope], levels: usize) -> Self {
        Table {
            scopes,
            at: vec![Count::default(); scopes.len()],
            named: vec![Count::default(); levels],
            held: HashMap::new(),
        }
    }

    fn scope(&self, scope: ScopeId) -> &LockScope {
        &self.scopes[scope as usize]
    }

    /// The locks of a job, in the order in which it took them.
    pub(crate) fn held(&self, job: JobId) -> &[Want] {
        self.held.get(&job).map_or(&[], Vec::as_slice)
    }

    /// Whether a job holds a lock at a level.
    pub(crate) fn holds_at(&self, job: JobId, level: Option<u8>) -> bool {
        self.held(job).iter().any(|want| self.scope(want.scope).level == level)
    }

    /// Whether a job could take this lock now, besides those that it holds.
    pub(crate) fn is_free(&self, job: JobId, want: Want) -> bool {
        let own = |counts: &dyn Fn(&LockScope, ScopeId) -> bool| {
            let mut count = Count::default();
            let mine = self.held(job).iter().filter(|held| counts(self.scope(held.scope), held.scope));
            mine.for_each(|held| count.change(*held, true));
            count
        };
        let others_at = |at: ScopeId| self.at[at as usize].without(own(&|_, scope| scope == at));
        let others_named = |level: u8| {
            let mine = own(&|scope, _| scope.level == Some(level) && !scope.whole);
            self.named[usize::from(level)].without(mine)
        };
        let here = others_at(want.scope);
        let scope = self.scope(want.scope);
        let fits = match scope.capacity {
            Some(capacity) => here.units + u64::from(want.units) <= u64::from(capacity),
            None => true,
        };
        let free_here = match want.exclusive {
            true => here.exclusive == 0 && here.shared == 0,
            false => here.exclusive == 0 && fits,
        };
        let Some(level) = scope.level else { return free_here };
        let around = if scope.whole { others_named(level) } else { others_at(whole(level)) };
        free_here && around.exclusive == 0 && (!want.exclusive || around.shared == 0)
    }

    /// Whether a job could take all of these locks now.
    pub(crate) fn all_free(&self, job: JobId, wants: &[Want]) -> bool {
        wants.iter().all(|want| self.is_free(job, *want))
    }

    /// A job takes this lock, which must be free.
    pub(crate) fn take(&mut self, job: JobId, want: Want) {
        debug_assert!(self.is_free(job, want), "{want:?}");
        self.count(want, true);
        self.held.entry(job).or_default().push(want);
    }

    /// A job releases all its locks, and returns them. A second call returns none.
    pub(crate) fn release(&mut self, job: JobId) -> Vec<Want> {
        let held = self.held.remove(&job).unwrap_or_default();
        held.iter().for_each(|want| self.count(*want, false));
        held
    }

    fn count(&mut self, want: Want, add: bool) {
        self.at[want.scope as usize].change(want, add);
        let scope = &self.scopes[want.scope as usize];
        if let (Some(level), false) = (scope.level, scope.whole) {
            self.named[usize::from(level)].change(want, add);
        }
    }

    /// Whether no job holds a lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Checks all held locks, independently of the counters.
    ///
    /// # Panics
    /// Two jobs hold locks that exclude each other, or share more units than there are.
    pub(crate) fn assert_exclusion(&self) {
        // For each scope: its holders, one that is exclusive, and the units.
        let mut at: HashMap<ScopeId, (Vec<JobId>, Option<JobId>, u64)> = HashMap::new();
        for (job, wants) in &self.held {
            for want in wants {
                let (holders, exclusive, units) = at.entry(want.scope).or_default();
                holders.push(*job);
                match want.exclusive {
                    true => *exclusive = Some(*job),
                    false => *units += u64::from(want.units),
                }
            }
        }
        for (scope, (holders, exclusive, units)) in &at {
            let name = &self.scope(*scope).name;
            let alone = |job: JobId, holders: &[JobId]| holders.iter().all(|other| *other == job);
            assert!(exclusive.is_none_or(|job| alone(job, holders)), "{name} is held by {holders:?}");
            assert!(
                self.scope(*scope).capacity.is_none_or(|most| *units <= u64::from(most)),
                "{name}: {units} units"
            );
            let LockScope { level: Some(level), whole: false, .. } = self.scope(*scope) else { continue };
            if let Some((of_all, of_all_exclusive, _)) = at.get(&whole(*level)) {
                let together = |job: JobId| alone(job, holders) && alone(job, of_all);
                assert!(of_all_exclusive.or(*exclusive).is_none_or(together), "all, and {name}");
            }
        }
        let big = at.get(&BIG).and_then(|(_, exclusive, _)| *exclusive);
        assert!(
            big.is_none_or(|job| self.held.keys().all(|other| *other == job)),
            "the big lock is not alone"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The big lock, all of a level, `a`, and `b`, which has three units.
    fn scopes() -> Vec<LockScope> {
        let scope =
            |level, whole, capacity, name: &str| LockScope { level, whole, capacity, name: name.into() };
        vec![
            scope(None, false, None, "big"),
            scope(Some(0), true, None, "all"),
            scope(Some(0), false, None, "a"),
            scope(Some(0), false, Some(3), "b"),
        ]
    }

    fn shared(scope: ScopeId) -> Want {
        Want { scope, exclusive: false, units: 1 }
    }

    fn exclusive(scope: ScopeId) -> Want {
        Want { scope, exclusive: true, units: 1 }
    }

    #[test]
    fn which_locks_exclude_each_other() {
        let scopes = scopes();
        let all = [shared(1), exclusive(1), shared(2), exclusive(2), shared(3), exclusive(3)];
        // For each lock of one job: which of the six locks another job could take.
        for (held, free) in [
            (shared(1), [true, false, true, false, true, false]),
            (exclusive(1), [false; 6]),
            (shared(2), [true, false, true, false, true, true]),
            (exclusive(2), [false, false, false, false, true, true]),
            (Want { units: 3, ..shared(3) }, [true, false, true, true, false, false]),
            (exclusive(3), [false, false, true, true, false, false]),
        ] {
            let mut table = Table::new(&scopes, 1);
            table.take(7, held);
            assert_eq!(all.map(|want| table.is_free(8, want)), free, "beside {held:?}");
            // A job's own locks never block it.
            assert!(all.iter().all(|want| table.is_free(7, *want)), "{held:?}");
            table.assert_exclusion();
            assert_eq!(table.release(7), [held]);
            assert_eq!(table.release(7), []);
            assert!(table.is_empty() && all.iter().all(|want| table.is_free(8, *want)));
        }
    }

    #[test]
    fn exclusion_is_checked_independently_of_the_counters() {
        let scopes = scopes();
        for (one, other) in [
            (exclusive(2), shared(2)),
            (exclusive(1), shared(2)),
            (shared(1), exclusive(2)),
            (exclusive(0), shared(0)),
            (exclusive(0), exclusive(2)),
            (Want { units: 3, ..shared(3) }, shared(3)),
        ] {
            let mut table = Table::new(&scopes, 1);
            table.held.insert(1, vec![one]);
            table.assert_exclusion();
            table.held.insert(2, vec![other]);
            let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| table.assert_exclusion()));
            assert!(seen.is_err(), "{one:?} and {other:?}");
        }
    }
}
