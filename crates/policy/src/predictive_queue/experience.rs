//! What past runs locked, where jobs declare unknown locks.
//!
//! Each value of an option (`instance = web1`) has one [`Experience`]. For each level and mode that was unknown to
//! jobs with that value, it holds the sets that their latest sixteen runs locked. The likely set is the one that was
//! locked most often. Its *confidence* is the lower end of Wilson's interval for the share of runs that locked exactly
//! this set:
//!
//! ```text
//! share = runs that locked it / runs     n = runs     z = 1.645 (19 of 20 such intervals are right)
//! confidence = (share + z²/2n − z·√(share·(1−share)/n + z²/4n²)) / (1 + z²/n)
//! ```
//!
//! So a single run proves little (0.27), three equal runs suffice for a guess (0.53), and sixteen are nearly sure
//! (0.86). A likely set needs a confidence of one half: twelve of sixteen runs. Without one, an unknown request stays
//! unknown.
//!
//! Forces:
//!
//! - *The world changes.* Only sixteen runs count. After five different runs, an old set is no longer likely; after
//!   twelve equal ones, the new set is. Runs are counted, not weighted, because a count is easy to report: "in 15 of
//!   its last 16 runs".
//! - *Whole sets are counted, not names.* Otherwise, nodes that are locked together or not at all would be mixed into
//!   a set that no run had.
//! - *Only weights use it.* The locks that a job takes never depend on it, so a wrong guess costs a little time and
//!   nothing else.
//! - *It is small*: levels and modes, sets, names and bytes have limits. A run that locked more counts, but its set
//!   is not kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::locks::{AtLevel, Mode, Request, Requests};

/// The runs that count for one level and mode: the latest ones.
pub const MAX_RUNS: usize = 16;
/// The most levels and modes of one value.
pub const MAX_PLACES: usize = 8;
/// The most sets of one level and mode. At most one of them can be likely.
pub const MAX_SETS: usize = 4;
/// The most names in a set.
pub const MAX_NAMES: usize = 64;
/// The most bytes of names, in all sets and levels together.
pub const MAX_BYTES: usize = 4 << 10;
/// The least confidence of a likely set.
pub const THRESHOLD: f64 = 0.5;
/// `z` of Wilson's interval: one-sided, 95%.
const Z: f64 = 1.645;
/// The bytes of a name beside its letters, as JSON.
const NAME_BYTES: usize = 3;

/// What a job has in common with other jobs, whose experience counts for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traits {
    /// Its type and its operations: `cluster instance-migrate`.
    pub kind: String,
    /// Options and their values, in the order of the catalogue.
    pub values: Vec<(String, String)>,
}

impl Traits {
    /// Whether it has nothing in common with other jobs.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// What runs with one value of an option locked. Plain data: equal runs give equal data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Experience {
    /// By mode and level, such as `exclusive node`.
    places: BTreeMap<String, Sets>,
}

/// The sets that runs locked at one level, where one mode was unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sets {
    sets: Vec<AtLevel>,
    /// The latest runs, the last one last: the index of the set that each locked, or `None` if it is not kept.
    runs: Vec<Option<usize>>,
}

/// What a job will probably lock at a level where its locks are unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct Likely {
    /// The level.
    pub level: String,
    /// The mode that is unknown.
    pub mode: Mode,
    /// The likely locks: names, all of the level, or nothing. A job with unknown exclusive locks may also take shared
    /// ones.
    pub set: AtLevel,
    /// Its confidence, from [`THRESHOLD`] to 1: see the module.
    pub confidence: f64,
    /// The number of runs that locked exactly this.
    pub alike: usize,
    /// The number of runs that count, at most [`MAX_RUNS`].
    pub runs: usize,
    /// The option, and its value, whose runs these are.
    pub option: (String, String),
}

impl Experience {
    /// Whether no run was recorded.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Records a run that ended well: what it declared, and what it locked. Only what it declared as unknown is
    /// remembered.
    pub fn record(&mut self, declared: &Requests, locked: &Requests) {
        for (level, mode) in declared.unknown() {
            let set = locked_unknown(level, mode, declared, locked);
            let place = place(level, mode);
            if self.places.contains_key(&place) || self.places.len() < MAX_PLACES {
                self.places.entry(place).or_default().add(set);
            }
        }
        while self.bytes() > MAX_BYTES && self.forget_rarest() {}
    }

    /// The set that most runs locked there, if its confidence suffices. Returns the set, its confidence, the number
    /// of runs that locked it, and the number of all runs.
    fn likely(&self, level: &str, mode: Mode) -> Option<(&AtLevel, f64, usize, usize)> {
        let sets = self.places.get(&place(level, mode))?;
        let runs = sets.runs.len();
        let counted = sets.sets.iter().enumerate().map(|(set, at)| (sets.count(set), at));
        let (alike, at) = counted.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
        let confidence = wilson(alike, runs);
        (confidence >= THRESHOLD).then_some((at, confidence, alike, runs))
    }

    fn bytes(&self) -> usize {
        let of_sets = |sets: &Sets| sets.sets.iter().map(bytes).sum::<usize>();
        self.places.iter().map(|(place, sets)| place.len() + NAME_BYTES + of_sets(sets)).sum()
    }

    /// Forgets a set that the fewest runs have locked. Returns whether there was one.
    fn forget_rarest(&mut self) -> bool {
        let sets = self.places.values().enumerate().flat_map(|(place, sets)| {
            (0..sets.sets.len()).map(move |set| (sets.count(set), std::cmp::Reverse(place), set))
        });
        let Some((_, std::cmp::Reverse(place), set)) = sets.min() else { return false };
        if let Some(sets) = self.places.values_mut().nth(place) {
            sets.forget(set);
        }
        true
    }
}

impl Sets {
    fn count(&self, set: usize) -> usize {
        self.runs.iter().filter(|run| **run == Some(set)).count()
    }

    fn add(&mut self, at: AtLevel) {
        if self.runs.len() >= MAX_RUNS {
            self.runs.drain(..=self.runs.len() - MAX_RUNS);
        }
        // Sets that none of the remaining runs has locked.
        while let Some(set) = (0..self.sets.len()).find(|set| self.count(*set) == 0) {
            self.forget(set);
        }
        let known = self.sets.iter().position(|set| *set == at);
        let run = known.or_else(|| {
            if size(&at) > MAX_NAMES {
                return None;
            }
            if self.sets.len() >= MAX_SETS {
                // Of several, the oldest one.
                let rarest = (0..self.sets.len()).min_by_key(|set| self.count(*set))?;
                self.forget(rarest);
            }
            self.sets.push(at);
            Some(self.sets.len() - 1)
        });
        self.runs.push(run);
    }

    /// Removes a set. The runs that locked it then point to no set.
    fn forget(&mut self, gone: usize) {
        self.sets.remove(gone);
        for run in &mut self.runs {
            *run = match *run {
                Some(set) if set == gone => None,
                Some(set) if set > gone => Some(set - 1),
                other => other,
            };
        }
    }
}

/// The requests from which a job's weight is computed: its declaration, with the likely set for each unknown request
/// that has one. Also returns these likely sets. If several values have one, that of the highest confidence counts.
pub fn guess<'a>(
    declared: &Requests,
    traits: &Traits,
    known: impl Fn(&str, &str) -> Option<&'a Experience>,
) -> (Requests, Vec<Likely>) {
    let mut guessed = declared.clone();
    let mut all = Vec::new();
    let experiences: Vec<(&(String, String), &Experience)> =
        traits.values.iter().filter_map(|option| Some((option, known(&option.0, &option.1)?))).collect();
    for (level, mode) in declared.unknown() {
        let found = experiences.iter().filter_map(|(option, experience)| {
            let (set, confidence, alike, runs) = experience.likely(level, mode)?;
            let (level, set, option) = (level.to_owned(), set.clone(), (*option).clone());
            Some(Likely { level, mode, set, confidence, alike, runs, option })
        });
        let surest =
            found.reduce(|best, other| if other.confidence > best.confidence { other } else { best });
        let Some(likely) = surest else { continue };
        let Some(at) = guessed.levels.remove(level) else { continue };
        let [shared, exclusive] = at.requests();
        let known = if mode == Mode::Shared { exclusive } else { shared };
        // One of the two requests of a valid declaration is valid alone.
        let known = AtLevel::new([known.clone()]).unwrap_or_default();
        guessed.levels.insert(level.to_owned(), known.merge(likely.set.clone()));
        all.push(likely);
    }
    (guessed, all)
}

/// The lower end of Wilson's interval.
#[allow(clippy::cast_precision_loss, reason = "these are a few runs")]
fn wilson(alike: usize, runs: usize) -> f64 {
    if runs == 0 {
        return 0.0;
    }
    let n = runs as f64;
    let share = (alike as f64 / n).min(1.0);
    let z2 = Z * Z;
    let spread = Z * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    (share + z2 / (2.0 * n) - spread) / (1.0 + z2 / n)
}

fn place(level: &str, mode: Mode) -> String {
    match mode {
        Mode::Shared => format!("shared {level}"),
        Mode::Exclusive => format!("exclusive {level}"),
    }
}

fn size(at: &AtLevel) -> usize {
    let count = |request: &Request| match request {
        Request::Shared(names) => names.len(),
        Request::Exclusive(names) => names.len(),
        _ => 0,
    };
    at.requests().into_iter().map(count).sum()
}

fn bytes(at: &AtLevel) -> usize {
    let of = |request: &Request| match request {
        Request::Shared(names) => names.keys().map(|name| name.len() + NAME_BYTES).sum(),
        Request::Exclusive(names) => names.iter().map(|name| name.len() + NAME_BYTES).sum(),
        _ => NAME_BYTES,
    };
    at.requests().into_iter().map(of).sum()
}

/// What a run locked at a level because this mode was unknown. A job with unknown exclusive locks may take shared
/// ones as well. These count here, unless shared locks were declared, or are unknown and counted there.
fn locked_unknown(level: &str, mode: Mode, declared: &Requests, locked: &Requests) -> AtLevel {
    let declared_shared = declared.levels.get(level).map(|at| at.requests()[0]);
    let Some(locked) = locked.levels.get(level) else { return AtLevel::default() };
    let [shared, exclusive] = locked.requests().map(Clone::clone);
    let set = match (mode, shared, declared_shared) {
        (Mode::Shared, shared, _) => [shared, Request::None],
        (Mode::Exclusive, shared, None | Some(Request::None)) => [shared, exclusive],
        (Mode::Exclusive, Request::Shared(mut names), Some(Request::Shared(declared))) => {
            names.retain(|name, _| !declared.contains_key(name));
            [if names.is_empty() { Request::None } else { Request::Shared(names) }, exclusive]
        }
        (Mode::Exclusive, ..) => [Request::None, exclusive],
    };
    // A part of a valid set of locks is valid.
    AtLevel::new(set).unwrap_or_default()
}

#[cfg(test)]
mod tests;
