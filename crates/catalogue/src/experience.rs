//! What past runs locked, where nobody could tell before.
//!
//! For each value of an option that the catalogue lets be learnt from (`learn = ["instance"]`), and each level and mode that was
//! unknown there, the sets are counted that runs really locked. The likely set is the one that was locked most often. Its
//! *confidence* is the lower end of Wilson's interval for the share of runs that locked exactly this set:
//!
//! ```text
//! share = runs that locked it / runs     n = runs     z = 1.645 (19 of 20 such intervals are right)
//! confidence = (share + z²/2n − z·√(share·(1−share)/n + z²/4n²)) / (1 + z²/n)
//! ```
//!
//! so that a single run proves little (0.27), three alike are enough for a guess (0.51), and sixteen are nearly sure (0.86).
//! Each run weighs 15/16 of the next one: what was true eleven runs ago counts half as much as what is true now, and never more than sixteen
//! runs' worth is remembered. A likely set needs a confidence of one half.
//!
//! It is used for a job's *weight*: with a guess for what is unknown, jobs are ordered better. What is locked never depends on it,
//! so that a wrong guess costs a little time and nothing else.
//!
//! Memory is bounded: so many values, so many levels and modes of each, so many sets, so many names in a set. A value that was
//! seen once only makes room before those that were seen again, so that values that never come back (ids, times) cannot push out what is useful.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use turnwise_policy::predictive_queue::locks::{AtLevel, Levels, Lock, Mode, Place, Request, Requests};

use crate::Traits;

/// Values that are remembered.
pub const MAX_VALUES: usize = 10_000;
/// Levels and modes of one value: 16 levels, two modes.
pub const MAX_PLACES: usize = 32;
/// Sets of one level and mode.
pub const MAX_SETS: usize = 8;
/// Names in a set; a run that locked more is counted, and its set is not kept.
pub const MAX_NAMES: usize = 64;
/// What a run weighs beside the next one.
pub const DECAY: f64 = 15.0 / 16.0;
/// Least confidence of a likely set.
pub const THRESHOLD: f64 = 0.5;
/// Of Wilson's interval: one-sided, 95%.
const Z: f64 = 1.645;
/// One in so many values may have been seen once only.
const NEW_PART: usize = 4;

/// What past runs locked. Plain data: it reads no clock, and is the same for the same runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Row>", into = "Vec<Row>")]
pub struct Experience {
    values: BTreeMap<Value, Seen>,
    /// The values, first those that were not seen for longest: of those seen once, and of the others.
    order: [BTreeMap<u64, Value>; 2],
    /// Grows by one with each value that a run has.
    now: u64,
}

/// What jobs have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Value {
    kind: String,
    option: String,
    value: String,
}

/// What is known of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Seen {
    /// When it was seen last.
    last: u64,
    /// It was seen before that.
    again: bool,
    places: BTreeMap<String, Sets>,
}

/// What was locked at one level in one mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Sets {
    /// Runs, the last one with weight 1.
    runs: f64,
    /// Sets and their share of these runs. Each has one mode.
    sets: Vec<(AtLevel, f64)>,
}

/// One value, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    #[serde(flatten)]
    value: Value,
    #[serde(flatten)]
    seen: Seen,
}

/// What a job will probably lock at a level, in one mode.
#[derive(Debug, Clone, PartialEq)]
pub struct Likely {
    /// The level.
    pub level: String,
    /// The mode.
    pub mode: Mode,
    /// What: names, all of the level, or nothing.
    pub request: Request,
    /// How sure that is, from [`THRESHOLD`] to 1: see the module.
    pub confidence: f64,
    /// Runs that this was learnt from, each weighing 15/16 of the next one: at most 16.
    pub runs: f64,
    /// The option, and its value, that told.
    pub option: (String, String),
}

impl Experience {
    /// Values that are remembered: never more than [`MAX_VALUES`].
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Nothing is known.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// A run ended, and has held these locks; what of them was `declared` as unknown is remembered.
    pub fn record(&mut self, traits: &Traits, declared: &Requests, held: &[Lock], levels: &Levels) {
        let unknown: Vec<(String, AtLevel)> = unknown(declared)
            .filter_map(|(name, mode)| Some((place(name, mode), really(held, levels.position(name)?, mode)?)))
            .take(MAX_PLACES)
            .collect();
        if unknown.is_empty() {
            return;
        }
        for (option, value) in &traits.values {
            let value = Value { kind: traits.kind.clone(), option: option.clone(), value: value.clone() };
            let seen = self.touch(value);
            for (place, set) in &unknown {
                if seen.places.contains_key(place) || seen.places.len() < MAX_PLACES {
                    seen.places.entry(place.clone()).or_default().add(set);
                }
            }
            self.forget();
        }
    }

    /// What a job will probably lock there. Of several options the one counts that is surest.
    pub fn likely(&self, traits: &Traits, level: &str, mode: Mode) -> Option<Likely> {
        let place = place(level, mode);
        let likely = traits.values.iter().filter_map(|(option, value)| {
            let key = Value { kind: traits.kind.clone(), option: option.clone(), value: value.clone() };
            let sets = self.values.get(&key)?.places.get(&place)?;
            let (set, confidence) = sets.likely()?;
            let [shared, exclusive] = set.requests();
            let request = if mode == Mode::Shared { shared } else { exclusive };
            Some(Likely {
                level: level.to_owned(),
                mode,
                request: request.clone(),
                confidence,
                runs: sets.runs,
                option: (option.clone(), value.clone()),
            })
        });
        likely.reduce(|best, other| if other.confidence > best.confidence { other } else { best })
    }

    /// What a job's weight is computed from: what it declared, with a likely set for each unknown that has one; and these.
    pub fn guess(&self, traits: &Traits, declared: &Requests) -> (Requests, Vec<Likely>) {
        let mut guessed = declared.clone();
        let mut all = Vec::new();
        for (level, mode) in unknown(declared) {
            let Some(likely) = self.likely(traits, level, mode) else { continue };
            let Some(at) = guessed.levels.remove(level) else { continue };
            let [shared, exclusive] = at.requests().map(Clone::clone);
            let (known, guess) = match mode {
                Mode::Shared => (exclusive, likely.request.clone()),
                Mode::Exclusive => (shared, likely.request.clone()),
            };
            let single = |request| AtLevel::new([request]).unwrap_or_default();
            guessed.levels.insert(level.to_owned(), single(known).merge(single(guess)));
            all.push(likely);
        }
        (guessed, all)
    }

    /// The rows to store it as.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.values.iter().map(|(value, seen)| Row { value: value.clone(), seen: seen.clone() })
    }

    /// A value is seen now.
    fn touch(&mut self, value: Value) -> &mut Seen {
        self.now += 1;
        let now = self.now;
        let seen = self.values.entry(value.clone()).or_insert_with(|| Seen {
            last: 0,
            again: false,
            places: BTreeMap::new(),
        });
        if seen.last > 0 {
            self.order[usize::from(seen.again)].remove(&seen.last);
            seen.again = true;
        }
        seen.last = now;
        self.order[usize::from(seen.again)].insert(now, value);
        seen
    }

    /// Makes room, if there is too much.
    fn forget(&mut self) {
        while self.values.len() > MAX_VALUES {
            let [new, known] = &self.order;
            let from = usize::from(new.len() <= MAX_VALUES / NEW_PART && !known.is_empty());
            let Some((_, value)) = self.order[from].pop_first() else { return };
            self.values.remove(&value);
        }
    }
}

impl Sets {
    fn add(&mut self, set: &AtLevel) {
        self.runs = self.runs * DECAY + 1.0;
        for (_, weight) in &mut self.sets {
            *weight *= DECAY;
        }
        if size(set) > MAX_NAMES {
            return;
        }
        if let Some((_, weight)) = self.sets.iter_mut().find(|(known, _)| known == set) {
            *weight += 1.0;
            return;
        }
        if self.sets.len() >= MAX_SETS {
            let lightest = (0..self.sets.len()).min_by(|a, b| self.sets[*a].1.total_cmp(&self.sets[*b].1));
            if let Some(lightest) = lightest {
                self.sets.swap_remove(lightest);
            }
        }
        self.sets.push((set.clone(), 1.0));
    }

    /// The set that was locked most often, if that is sure enough.
    fn likely(&self) -> Option<(&AtLevel, f64)> {
        let (set, weight) = self.sets.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let confidence = wilson(*weight, self.runs);
        (confidence >= THRESHOLD).then_some((set, confidence))
    }
}

/// The lower end of Wilson's interval.
fn wilson(weight: f64, runs: f64) -> f64 {
    let share = (weight / runs).clamp(0.0, 1.0);
    let z2 = Z * Z;
    let spread = Z * (share * (1.0 - share) / runs + z2 / (4.0 * runs * runs)).sqrt();
    (share + z2 / (2.0 * runs) - spread) / (1.0 + z2 / runs)
}

/// Where something is unknown.
fn unknown(declared: &Requests) -> impl Iterator<Item = (&str, Mode)> {
    declared.levels.iter().flat_map(|(level, at)| {
        at.requests().into_iter().filter_map(move |request| match request {
            Request::UnknownShared => Some((level.as_str(), Mode::Shared)),
            Request::UnknownExclusive => Some((level.as_str(), Mode::Exclusive)),
            _ => None,
        })
    })
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

/// What was held at a level in one mode.
fn really(held: &[Lock], level: usize, mode: Mode) -> Option<AtLevel> {
    let mut names = BTreeMap::new();
    for lock in held.iter().filter(|lock| lock.mode == mode) {
        match &lock.place {
            Place::WholeLevel(at) if *at == level => {
                let all = if mode == Mode::Shared { Request::AllShared } else { Request::AllExclusive };
                return AtLevel::new([all]).ok();
            }
            Place::Resource { level: at, name } if *at == level => {
                names.insert(name.clone(), lock.units.max(1));
            }
            _ => {}
        }
    }
    let request = match mode {
        _ if names.is_empty() => Request::None,
        Mode::Shared => Request::Shared(names),
        Mode::Exclusive => Request::Exclusive(names.into_keys().collect::<BTreeSet<String>>()),
    };
    AtLevel::new([request]).ok()
}

impl From<Experience> for Vec<Row> {
    fn from(experience: Experience) -> Self {
        experience.rows().collect()
    }
}

impl From<Vec<Row>> for Experience {
    /// From the rows in any order. More than there may be, or larger ones, and the oldest are left out.
    fn from(rows: Vec<Row>) -> Self {
        let mut experience = Experience::default();
        for Row { value, mut seen } in rows {
            for sets in seen.places.values_mut() {
                sets.sets.truncate(MAX_SETS);
                // Whatever the rows say, a share is one.
                sets.runs =
                    if sets.runs.is_finite() { sets.runs.clamp(1.0, 1.0 / (1.0 - DECAY)) } else { 1.0 };
            }
            while seen.places.len() > MAX_PLACES {
                seen.places.pop_last();
            }
            // Two rows of one time cannot be told apart: the later one in the order of rows is the later one.
            while experience.order.iter().any(|order| order.contains_key(&seen.last)) {
                seen.last += 1;
            }
            experience.now = experience.now.max(seen.last);
            if let Some(before) = experience.values.get(&value) {
                experience.order[usize::from(before.again)].remove(&before.last);
            }
            experience.order[usize::from(seen.again)].insert(seen.last, value.clone());
            experience.values.insert(value, seen);
            experience.forget();
        }
        experience
    }
}

#[cfg(test)]
mod tests;
