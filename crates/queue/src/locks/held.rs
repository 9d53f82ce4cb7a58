//! Locks by name, and the locks that a claim holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use turnwise_policy::predictive_queue::locks::{
    BIG_LOCK, Levels, Lock, MAX_RESOURCES, Mode, Request, Requests, Scope, Units,
};
use turnwise_store::Limits;

/// Largest declaration, and largest list of held locks, as JSON in bytes.
pub const MAX_LOCKS_BYTES: usize = 8 << 10;

/// What can be locked, by the names in keys: the configuration of levels may change while jobs hold locks of the old ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Spot {
    /// The level; `None` is the big lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The resource; `None` is the whole level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Spot {
    /// The big lock, which comes before all levels.
    pub const BIG_LOCK: Spot = Spot { level: None, name: None };

    /// `None` for a resource without a level.
    pub fn new(level: Option<String>, name: Option<String>) -> Option<Spot> {
        (level.is_some() || name.is_none()).then_some(Spot { level, name })
    }

    /// A whole level.
    pub fn whole(level: &str) -> Spot {
        Spot { level: Some(level.to_owned()), name: None }
    }

    /// One resource.
    pub fn resource(level: &str, name: &str) -> Spot {
        Spot { level: Some(level.to_owned()), name: Some(name.to_owned()) }
    }

    /// The scope with this name in the configured levels; `None` if its level is not configured.
    pub fn scope(&self, levels: &Levels) -> Option<Scope> {
        let Some(level) = &self.level else { return Some(Scope::BigLock) };
        let level = levels.position(level)?;
        Some(match &self.name {
            None => Scope::WholeLevel(level),
            Some(name) => Scope::Resource { level, name: name.clone() },
        })
    }

    /// The name of a scope; `None` if its level is not configured.
    pub fn of(scope: &Scope, levels: &Levels) -> Option<Spot> {
        let Some(level) = scope.level() else { return Some(Spot::BIG_LOCK) };
        let level = levels.names().nth(level)?;
        Some(match scope {
            Scope::Resource { name, .. } => Spot::resource(level, name),
            _ => Spot::whole(level),
        })
    }
}

/// `node/a`, `all of node`, `big_lock`.
impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.level, &self.name) {
            (None, _) => f.write_str(BIG_LOCK),
            (Some(level), None) => write!(f, "all of {level}"),
            (Some(level), Some(name)) => write!(f, "{level}/{name}"),
        }
    }
}

/// One lock, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockAt {
    /// What is locked.
    #[serde(flatten)]
    pub spot: Spot,
    /// How it is locked.
    pub mode: Mode,
    /// Shared: the number of units. Exclusive: 1, without meaning.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub units: u32,
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_one(units: &u32) -> bool {
    *units == 1
}

impl LockAt {
    /// A lock of one unit.
    pub fn new(spot: Spot, mode: Mode) -> LockAt {
        LockAt { spot, mode, units: 1 }
    }

    /// The same lock with its scope in the levels; `None` if its level is not configured.
    pub fn lock(&self, levels: &Levels) -> Option<Lock> {
        Some(Lock { scope: self.spot.scope(levels)?, mode: self.mode, units: self.units })
    }

    /// The same lock by name; `None` if its level is not configured.
    pub fn of(lock: &Lock, levels: &Levels) -> Option<LockAt> {
        Some(LockAt { spot: Spot::of(&lock.scope, levels)?, mode: lock.mode, units: lock.units })
    }
}

impl fmt::Display for LockAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.mode, self.units) {
            (Mode::Exclusive, _) => write!(f, "{} (exclusive)", self.spot),
            (Mode::Shared, 1) => write!(f, "{} (shared)", self.spot),
            (Mode::Shared, units) => write!(f, "{} (shared, {units} units)", self.spot),
        }
    }
}

/// The locks that a claim holds. Each is a row. The job's record has this list of them, so that they are released with the
/// claim without a search. A claim with any locks, or whose job may want some, holds the big lock at least shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// How it holds the big lock.
    pub big_lock: Mode,
    /// The locks that it holds at each level.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub levels: BTreeMap<String, HeldAt>,
}

/// The locks that a claim holds at one level. No name is in both modes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAt {
    /// The mode in which it holds the whole level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Mode>,
    /// Resources held shared, each with its units.
    #[serde(default, skip_serializing_if = "Units::is_empty")]
    pub shared: Units,
    /// Resources held exclusively.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exclusive: BTreeSet<String>,
}

impl HeldAt {
    fn is_empty(&self) -> bool {
        self.all.is_none() && self.shared.is_empty() && self.exclusive.is_empty()
    }
}

impl Held {
    /// The known locks of a declaration, which a job takes with its claim. `None` if it declares nothing.
    pub fn known(requests: &Requests) -> Option<Held> {
        if requests.is_none() {
            return None;
        }
        let big_lock = if requests.big_lock { Mode::Exclusive } else { Mode::Shared };
        let mut held = Held { big_lock, levels: BTreeMap::new() };
        for (level, at) in &requests.levels {
            let mut known = HeldAt::default();
            for request in at.requests() {
                match request {
                    Request::Shared(names) => known.shared.clone_from(names),
                    Request::Exclusive(names) => known.exclusive.clone_from(names),
                    Request::AllShared if known.all.is_none() => known.all = Some(Mode::Shared),
                    Request::AllExclusive => known.all = Some(Mode::Exclusive),
                    _ => {}
                }
            }
            if !known.is_empty() {
                held.levels.insert(level.clone(), known);
            }
        }
        Some(held)
    }

    /// All locks, each once, in the order of their names.
    pub fn locks(&self) -> Vec<LockAt> {
        let mut locks = vec![LockAt::new(Spot::BIG_LOCK, self.big_lock)];
        for (level, at) in &self.levels {
            locks.extend(at.all.map(|mode| LockAt::new(Spot::whole(level), mode)));
            let shared = at.shared.iter().map(|(name, units)| LockAt {
                spot: Spot::resource(level, name),
                mode: Mode::Shared,
                units: *units,
            });
            locks.extend(shared);
            let exclusive = at.exclusive.iter();
            locks.extend(exclusive.map(|name| LockAt::new(Spot::resource(level, name), Mode::Exclusive)));
        }
        locks
    }

    /// How many locks it holds, with the big lock.
    pub fn count(&self) -> usize {
        let of_level = |at: &HeldAt| usize::from(at.all.is_some()) + at.shared.len() + at.exclusive.len();
        1 + self.levels.values().map(of_level).sum::<usize>()
    }

    /// The mode and units in which it holds exactly this, if it does.
    pub fn at(&self, spot: &Spot) -> Option<(Mode, u32)> {
        let Some(level) = &spot.level else { return Some((self.big_lock, 1)) };
        let at = self.levels.get(level)?;
        let Some(name) = &spot.name else { return at.all.map(|mode| (mode, 1)) };
        if at.exclusive.contains(name) {
            return Some((Mode::Exclusive, 1));
        }
        at.shared.get(name).map(|units| (Mode::Shared, *units))
    }

    /// Whether it holds something of this level.
    pub fn is_inside(&self, level: &str) -> bool {
        self.levels.contains_key(level)
    }

    /// Whether the held locks cover this lock, too. A whole level held shared does not cover units that are `counted`.
    pub fn covers(&self, lock: &LockAt, counted: bool) -> bool {
        let enough = |(mode, units): (Mode, u32)| {
            mode == Mode::Exclusive || lock.mode == Mode::Shared && units >= lock.units
        };
        if self.at(&lock.spot).is_some_and(enough) {
            return true;
        }
        let all = lock.spot.level.as_ref().and_then(|level| self.levels.get(level)?.all);
        match all {
            Some(Mode::Exclusive) => true,
            Some(Mode::Shared) => lock.mode == Mode::Shared && !counted,
            None => false,
        }
    }

    /// Adds a lock, which replaces a weaker one of the same name.
    pub(crate) fn add(&mut self, lock: &LockAt) {
        let Some(level) = &lock.spot.level else {
            self.big_lock = lock.mode;
            return;
        };
        let at = self.levels.entry(level.clone()).or_default();
        match (&lock.spot.name, lock.mode) {
            (None, mode) => at.all = Some(mode),
            (Some(name), Mode::Exclusive) => {
                at.shared.remove(name);
                at.exclusive.insert(name.clone());
            }
            (Some(name), Mode::Shared) => drop(at.shared.insert(name.clone(), lock.units)),
        }
    }

    /// Removes a lock; returns the mode in which it was held, if it was.
    pub(crate) fn remove(&mut self, spot: &Spot) -> Option<Mode> {
        let level = spot.level.as_ref()?;
        let (mode, _) = self.at(spot)?;
        let at = self.levels.get_mut(level)?;
        match &spot.name {
            None => at.all = None,
            Some(name) => {
                at.shared.remove(name);
                at.exclusive.remove(name);
            }
        }
        if at.is_empty() {
            self.levels.remove(level);
        }
        Some(mode)
    }
}

/// Whether a job's declaration permits it to request this lock while it runs: by name, as unknown, or as the whole level.
pub(crate) fn allows(requests: &Requests, lock: &LockAt) -> bool {
    let Some(level) = &lock.spot.level else {
        return lock.mode == Mode::Shared && !requests.is_none() || requests.big_lock;
    };
    let Some(at) = requests.levels.get(level) else { return false };
    at.requests().into_iter().any(|request| match (request, &lock.spot.name) {
        (Request::None, _) => false,
        (Request::UnknownExclusive | Request::AllExclusive, _) => true,
        (Request::UnknownShared | Request::AllShared, _) => lock.mode == Mode::Shared,
        (Request::Exclusive(names), Some(name)) => names.contains(name),
        (Request::Shared(names), Some(name)) => {
            lock.mode == Mode::Shared && names.get(name).is_some_and(|units| *units >= lock.units)
        }
        (Request::Exclusive(_) | Request::Shared(_), None) => false,
    })
}

/// Whether a job may declare this on a store with these limits of transactions; otherwise [`jobs::add`](crate::jobs::add)
/// rejects it.
pub fn has_room(requests: &Requests, limits: &Limits) -> bool {
    let named = Held::known(requests).map_or(0, |held| held.count() - 1);
    named <= most_locks(limits) && crate::rows::encode(requests).len() <= MAX_LOCKS_BYTES
}

/// The most locks of one claim on a store with these limits of transactions. They are written in one step of a batch. Each
/// lock has three ranges to prove (the holders in either mode, and the queue), and as many for its level.
pub(crate) fn most_locks(limits: &Limits) -> usize {
    (limits.transaction_writes / 8).min(limits.transaction_conflicts / 10).min(MAX_RESOURCES)
}
/// The lock that a running job waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The lock.
    #[serde(flatten)]
    pub lock: LockAt,
    /// Its number in the lock's queue: lower comes first.
    pub ticket: i64,
    /// Since when, in µs.
    pub since_us: i64,
}
