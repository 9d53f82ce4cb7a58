//! The locks of all running jobs, added up per level. A job's weight, and the lock that blocks it, then cost only as
//! much as the job's own resources.
//!
//! Of a level, the summary counts the locks of each of the seven kinds. Of a resource, it counts the jobs that share
//! it, their units, and the jobs that hold it exclusively. This is enough: the highest cell of a row of the table
//! over all running jobs is the highest one over the columns that occur. A name in common is found by looking up the
//! job's own names. Jobs are added when they start, and removed when they end, at the same cost.

use std::collections::{BTreeMap, BTreeSet};

use super::contention::{KINDS, Kind, NO_CONTENTION, Predicted, STUCK, Weight, apart, same};
use super::locks::{Levels, Lock, Mode, Request, Requests, Scope};

/// What one running job locks: the locks that it holds, and those that it has yet to find out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Running {
    locks: Vec<Lock>,
    pub(super) unknown: BTreeSet<(usize, Mode)>,
}

impl Running {
    /// A job that holds these locks (or waits in their queues) and has declared these requests. What it declared as
    /// unknown counts until it holds a lock of that level and mode. Locks of levels that do not exist are left out.
    pub fn new(locks: impl IntoIterator<Item = Lock>, requests: &Requests, levels: &Levels) -> Running {
        let is_there = |lock: &Lock| lock.scope.level().is_none_or(|level| level < levels.len());
        let locks: Vec<Lock> = locks.into_iter().filter(is_there).collect();
        let mut unknown = BTreeSet::new();
        for (level, name) in levels.names().enumerate() {
            for mode in requests.levels.get(name).into_iter().flat_map(|at| at.unknown()) {
                if !locks.iter().any(|lock| lock.scope.level() == Some(level) && lock.mode == mode) {
                    unknown.insert((level, mode));
                }
            }
        }
        Running { locks, unknown }
    }

    /// A job that starts now: it holds all locks that it knows.
    pub fn starting(requests: &Requests, levels: &Levels) -> Running {
        Running::new(requests.known(levels), requests, levels)
    }

    /// The locks that count for it.
    pub fn locks(&self) -> &[Lock] {
        &self.locks
    }
}

/// The holders of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Holders {
    /// The number of jobs that share it.
    pub shared: u32,
    /// The number of units that they hold.
    pub units: u64,
    /// The number of jobs that hold it exclusively: at most one, unless reservations count as well.
    pub exclusive: u32,
}

impl Holders {
    /// Whether another request for it is stuck. A request for more units than there are, because the capacity was
    /// lowered, needs all of them.
    pub fn is_stuck(&self, mode: Mode, units: u32, capacity: Option<u32>) -> bool {
        let here = |kind: Kind, count: u32| {
            count > 0
                && same(if mode == Mode::Shared { Kind::Shared } else { Kind::Exclusive }, kind) == STUCK
        };
        let too_many = mode == Mode::Shared
            && capacity.is_some_and(|most| self.units + u64::from(units.min(most)) > u64::from(most));
        here(Kind::Shared, self.shared) || here(Kind::Exclusive, self.exclusive) || too_many
    }
}

/// One level: the number of locks of each kind, and the holders of each resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct AtLevel {
    kinds: [u32; 7],
    resources: BTreeMap<String, Holders>,
}

/// The locks of all running jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    levels: Levels,
    at: Vec<AtLevel>,
    /// The number of jobs that share the big lock, and of those that hold it exclusively.
    big_lock: [u32; 2],
}

impl Summary {
    /// A summary without jobs.
    pub fn new(levels: &Levels) -> Summary {
        Summary { levels: levels.clone(), at: vec![AtLevel::default(); levels.len()], big_lock: [0; 2] }
    }

    /// The levels.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Adds a running job. To add a further lock of it, remove the job as it was, and add it as it is.
    pub fn add(&mut self, job: &Running) {
        self.count(job, |count| *count = count.saturating_add(1));
        for lock in &job.locks {
            let Scope::Resource { level, name } = &lock.scope else { continue };
            let Some(at) = self.at.get_mut(*level) else { continue };
            let holders = at.resources.entry(name.clone()).or_default();
            match lock.mode {
                Mode::Shared => {
                    holders.shared += 1;
                    holders.units += u64::from(lock.units);
                }
                Mode::Exclusive => holders.exclusive += 1,
            }
        }
    }

    /// Removes a job that has ended. It must equal a job that was added; a count of 0 stays 0.
    pub fn remove(&mut self, job: &Running) {
        self.count(job, |count| {
            debug_assert!(*count > 0, "a job is removed that was not added");
            *count = count.saturating_sub(1);
        });
        for lock in &job.locks {
            let Scope::Resource { level, name } = &lock.scope else { continue };
            let Some(at) = self.at.get_mut(*level) else { continue };
            let Some(holders) = at.resources.get_mut(name) else { continue };
            match lock.mode {
                Mode::Shared => {
                    holders.shared = holders.shared.saturating_sub(1);
                    holders.units = holders.units.saturating_sub(u64::from(lock.units));
                }
                Mode::Exclusive => holders.exclusive = holders.exclusive.saturating_sub(1),
            }
            if holders.shared == 0 && holders.exclusive == 0 {
                at.resources.remove(name);
            }
        }
    }

    fn count(&mut self, job: &Running, change: impl Fn(&mut u32)) {
        for lock in &job.locks {
            let (level, kind) = match (&lock.scope, lock.mode) {
                (Scope::BigLock, mode) => {
                    change(&mut self.big_lock[usize::from(mode == Mode::Exclusive)]);
                    if mode == Mode::Exclusive {
                        self.at.iter_mut().for_each(|at| change(&mut at.kinds[Kind::AllExclusive as usize]));
                    }
                    continue;
                }
                (Scope::WholeLevel(level), Mode::Shared) => (*level, Kind::AllShared),
                (Scope::WholeLevel(level), Mode::Exclusive) => (*level, Kind::AllExclusive),
                (Scope::Resource { level, .. }, Mode::Shared) => (*level, Kind::Shared),
                (Scope::Resource { level, .. }, Mode::Exclusive) => (*level, Kind::Exclusive),
            };
            self.at.get_mut(level).into_iter().for_each(|at| change(&mut at.kinds[kind as usize]));
        }
        for (level, mode) in &job.unknown {
            let kind = if *mode == Mode::Shared { Kind::UnknownShared } else { Kind::UnknownExclusive };
            self.at.get_mut(*level).into_iter().for_each(|at| change(&mut at.kinds[kind as usize]));
        }
    }

    /// The weight of a kind of request at a level, if no name is in common: the highest of the columns that occur.
    /// The column `None` always occurs.
    pub(crate) fn apart(&self, level: usize, kind: Kind) -> Weight {
        let Some(at) = self.at.get(level) else { return NO_CONTENTION };
        let occurs = |column: &Kind| *column == Kind::None || at.kinds[*column as usize] > 0;
        KINDS.into_iter().filter(occurs).map(|column| apart(kind, column)).max().unwrap_or_default()
    }

    /// The holders of a resource.
    pub(crate) fn holders(&self, level: usize, name: &str) -> Holders {
        self.at.get(level).and_then(|at| at.resources.get(name)).copied().unwrap_or_default()
    }

    /// The weight of a job with these requests, before it ages.
    pub fn weigh(&self, wanted: &Requests, base: Weight) -> Predicted {
        weigh(&[self], wanted, base)
    }

    /// The first of these locks, in their order, that is not free, and what blocks it; `None` if all are free.
    pub fn obstacle(&self, wanted: &[Lock]) -> Option<Obstacle> {
        obstacle(&[self], &[self], wanted)
    }

    fn big_lock_holders(&self, mode: Mode) -> u32 {
        self.big_lock[usize::from(mode == Mode::Exclusive)]
    }
}

/// As [`Summary::weigh`], for several summaries as if they were one.
fn weigh(all: &[&Summary], wanted: &Requests, base: Weight) -> Predicted {
    let levels = 0..all.first().map_or(0, |summary| summary.levels.len());
    Predicted::new(base, levels.map(|level| weigh_level(all, level, wanted)).collect())
}

/// The sum of the base and the weights of all levels, for several summaries as if they were one.
pub(crate) fn weigh_total(all: &[&Summary], wanted: &Requests, base: Weight) -> Weight {
    let levels = 0..all.first().map_or(0, |summary| summary.levels.len());
    levels.fold(base, |sum, level| sum.plus(weigh_level(all, level, wanted)))
}

/// The weight of what a job wants at one level, for several summaries as if they were one.
fn weigh_level(all: &[&Summary], level: usize, wanted: &Requests) -> Weight {
    if wanted.big_lock {
        return STUCK;
    }
    let Some((levels, name)) = all.first().and_then(|first| Some((&first.levels, first.levels.name(level)?)))
    else {
        return NO_CONTENTION;
    };
    let holders = |name: &String| {
        all.iter().map(|summary| summary.holders(level, name)).fold(Holders::default(), |sum, holders| {
            Holders {
                shared: sum.shared + holders.shared,
                units: sum.units + holders.units,
                exclusive: sum.exclusive + holders.exclusive,
            }
        })
    };
    let weight = |request: &Request| {
        let apart = all.iter().map(|summary| summary.apart(level, request.into())).max().unwrap_or_default();
        let name_in_common = match request {
            _ if apart == STUCK => return STUCK,
            Request::Shared(names) => names.iter().any(|(name, units)| {
                holders(name).is_stuck(Mode::Shared, *units, levels.capacity(level, name))
            }),
            Request::Exclusive(names) => {
                names.iter().any(|name| holders(name).is_stuck(Mode::Exclusive, 1, None))
            }
            _ => false,
        };
        if name_in_common { STUCK } else { apart }
    };
    let requests = wanted.levels.get(name).map(|at| at.requests());
    requests.into_iter().flatten().map(weight).max().unwrap_or_default()
}

/// Why a lock is not free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The lock that is wanted.
    pub wanted: Lock,
    /// What a conflicting lock locks: the wanted scope, all of its level, or one of the resources of the level.
    pub scope: Scope,
    /// How that is held.
    pub occupancy: Occupancy,
}

/// How a scope is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Occupancy {
    /// By one or several jobs that share it.
    Shared,
    /// By one job exclusively.
    Exclusive,
    /// By several jobs that share it, so that too few units are left.
    Units {
        /// The units that are left.
        free: u64,
    },
}

/// The first wanted lock that conflicts with a lock of a `binding` summary. Units are added up over all `counted`
/// summaries, if a binding one has some of them.
pub(crate) fn obstacle(binding: &[&Summary], counted: &[&Summary], wanted: &[Lock]) -> Option<Obstacle> {
    wanted.iter().find_map(|lock| {
        let (scope, occupancy) = binding.iter().find_map(|summary| conflict(summary, counted, lock))?;
        Some(Obstacle { wanted: lock.clone(), scope, occupancy })
    })
}

fn conflict(summary: &Summary, counted: &[&Summary], lock: &Lock) -> Option<(Scope, Occupancy)> {
    let alone = lock.mode == Mode::Exclusive;
    let by = |shared: bool, exclusive: bool| match (shared, exclusive) {
        (_, true) => Some(Occupancy::Exclusive),
        (true, false) if alone => Some(Occupancy::Shared),
        _ => None,
    };
    let here = |holders: &Holders| by(holders.shared > 0, holders.exclusive > 0);
    let whole = |level: usize| {
        let kinds = &summary.at.get(level)?.kinds;
        let shared = kinds[Kind::AllShared as usize] > 0;
        by(shared, kinds[Kind::AllExclusive as usize] > 0)
            .map(|occupancy| (Scope::WholeLevel(level), occupancy))
    };
    match &lock.scope {
        Scope::BigLock => {
            by(summary.big_lock_holders(Mode::Shared) > 0, summary.big_lock_holders(Mode::Exclusive) > 0)
                .map(|occupancy| (Scope::BigLock, occupancy))
        }
        Scope::WholeLevel(level) => whole(*level).or_else(|| {
            let at = summary.at.get(*level)?;
            if at.kinds[Kind::Exclusive as usize] == 0 && !alone {
                return None;
            }
            let resource = |name: &String| Scope::Resource { level: *level, name: name.clone() };
            at.resources.iter().find_map(|(name, holders)| Some((resource(name), here(holders)?)))
        }),
        Scope::Resource { level, name } => whole(*level).or_else(|| {
            let holders = summary.holders(*level, name);
            let too_few = || {
                let capacity = summary.levels.capacity(*level, name)?;
                let taken: u64 = counted.iter().map(|summary| summary.holders(*level, name).units).sum();
                let wanted = u64::from(lock.units.min(capacity));
                let stuck = !alone && holders.units > 0 && taken + wanted > u64::from(capacity);
                stuck.then(|| Occupancy::Units { free: u64::from(capacity).saturating_sub(taken) })
            };
            Some((lock.scope.clone(), here(&holders).or_else(too_few)?))
        }),
    }
}
