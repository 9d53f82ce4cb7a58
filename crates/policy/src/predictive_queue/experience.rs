//! What past runs locked, where nobody could tell before.
//!
//! For a value of an option (`instance = web1`) there is one [`Experience`]: for each level and mode that was unknown to jobs with that value,
//! which sets their latest sixteen runs really locked. The likely set is the one that was locked most often. Its *confidence* is the
//! lower end of Wilson's interval for the share of runs that locked exactly this set:
//!
//! ```text
//! share = runs that locked it / runs     n = runs     z = 1.645 (19 of 20 such intervals are right)
//! confidence = (share + z²/2n − z·√(share·(1−share)/n + z²/4n²)) / (1 + z²/n)
//! ```
//!
//! so that a single run proves little (0.27), three alike are enough for a guess (0.53), and sixteen are nearly sure (0.86). A likely
//! set needs a confidence of one half: of sixteen runs twelve. Without one, what is unknown stays so.
//!
//! Forces:
//!
//! - *The world changes.* Only sixteen runs count: after five others an old habit is no longer relied upon, after twelve
//!   alike there is a new one. Counting them, not weighing them, is what a person can be told: "in 15 of its last 16 runs".
//! - *Whole sets are counted, not names*: nodes that are locked together or not at all would otherwise be mixed into a set that no run had.
//! - *It is for weights alone.* What is locked never depends on it, so that a wrong guess costs a little time and nothing else.
//! - *It is small*: so many levels and modes, sets, names, and bytes. A run that locked more is counted, and its set is not kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::locks::{AtLevel, Mode, Request, Requests};

/// Runs that count, of one level and mode: the latest ones.
pub const MAX_RUNS: usize = 16;
/// Levels and modes of one value.
pub const MAX_PLACES: usize = 8;
/// Sets of one level and mode. More than two cannot be likely.
pub const MAX_SETS: usize = 4;
/// Names in a set.
pub const MAX_NAMES: usize = 64;
/// Names of all sets and levels together, in bytes.
pub const MAX_BYTES: usize = 4 << 10;
/// Least confidence of a likely set.
pub const THRESHOLD: f64 = 0.5;
/// Of Wilson's interval: one-sided, 95%.
const Z: f64 = 1.645;
/// What a name takes beside its letters, as JSON.
const NAME_BYTES: usize = 3;

/// What a job has in common with others, whose experience counts for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traits {
    /// Its type, and its operations: `cluster instance-migrate`.
    pub kind: String,
    /// Options and their values, in the order of the catalogue.
    pub values: Vec<(String, String)>,
}

impl Traits {
    /// It has nothing in common with others.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// What runs locked that had one value of an option. Plain data: the same for the same runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Experience {
    /// By mode and level: `exclusive node`.
    places: BTreeMap<String, Sets>,
}

/// What was locked at one level, where one mode was unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sets {
    sets: Vec<AtLevel>,
    /// The latest runs, the last one last: which of the sets each locked; `None` for another one.
    runs: Vec<Option<usize>>,
}

/// What a job will probably lock at a level where it does not know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Likely {
    /// The level.
    pub level: String,
    /// The mode that is unknown.
    pub mode: Mode,
    /// What: names or all of the level, or nothing. Who does not know what he locks exclusively may lock something shared, too.
    pub set: AtLevel,
    /// How sure that is, from [`THRESHOLD`] to 1: see the module.
    pub confidence: f64,
    /// So many runs locked exactly this.
    pub alike: usize,
    /// So many were looked at: at most [`MAX_RUNS`].
    pub runs: usize,
    /// The option, and its value, that told.
    pub option: (String, String),
}

impl Experience {
    /// Nothing is known.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A run has ended well that had declared this, and has locked that; what of it was declared as unknown is remembered.
    pub fn record(&mut self, declared: &Requests, locked: &Requests) {
        for (level, mode) in declared.unknown() {
            let set = really(level, mode, declared, locked);
            let place = place(level, mode);
            if self.places.contains_key(&place) || self.places.len() < MAX_PLACES {
                self.places.entry(place).or_default().add(set);
            }
        }
        while self.bytes() > MAX_BYTES && self.forget_rarest() {}
    }

    /// What was locked most often there, if that is sure enough: the set, its confidence, how many runs locked it, and how many there are.
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

    /// Forgets a set that fewest runs have locked; whether there was one.
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
        // What no run of these has locked any more.
        while let Some(set) = (0..self.sets.len()).find(|set| self.count(*set) == 0) {
            self.forget(set);
        }
        let known = self.sets.iter().position(|set| *set == at);
        let run = known.or_else(|| {
            if size(&at) > MAX_NAMES {
                return None;
            }
            if self.sets.len() >= MAX_SETS {
                // Of several the one that came first.
                let rarest = (0..self.sets.len()).min_by_key(|set| self.count(*set))?;
                self.forget(rarest);
            }
            self.sets.push(at);
            Some(self.sets.len() - 1)
        });
        self.runs.push(run);
    }

    /// Its runs have locked something that is not known any more.
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

/// What a job's weight is computed from: what it declared, with a likely set for each unknown that has one; and these. Of several
/// values the one counts that is surest.
pub fn guess<'a>(
    declared: &Requests,
    traits: &Traits,
    known: impl Fn(&str, &str) -> Option<&'a Experience>,
) -> (Requests, Vec<Likely>) {
    let mut guessed = declared.clone();
    let mut all = Vec::new();
    let told: Vec<(&(String, String), &Experience)> =
        traits.values.iter().filter_map(|told| Some((told, known(&told.0, &told.1)?))).collect();
    for (level, mode) in declared.unknown() {
        let found = told.iter().filter_map(|(option, experience)| {
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
        // A single request that was one of two is as good as it was.
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

/// What a run locked at a level because it did not know it before, in this mode. Whoever may lock exclusively what he finds out may lock it
/// shared, too; unless that was declared, or is unknown as well and counted there.
fn really(level: &str, mode: Mode, declared: &Requests, locked: &Requests) -> AtLevel {
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
    // A part of what was locked contradicts itself no more than the whole.
    AtLevel::new(set).unwrap_or_default()
}

#[cfg(test)]
mod tests;
