//! What jobs lock, in worlds with locks: what they declare, and what they request while they run.
//!
//! Resources have few names, so that jobs compete. Most requests are right. Some come in the wrong order, were not
//! declared, wait only for a while, or give a lock back early.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use turnwise_policy::predictive_queue::aging::{Aging, Rules};
use turnwise_policy::predictive_queue::locks::{AtLevel, Level, Levels, Mode, Request, Requests};
use turnwise_queue::locks::{Held, LockAt, Spot};
use turnwise_worker::QueueRules;

use crate::inputs::Given;
use crate::rng::SeededRng;

/// The levels, in their order.
const LEVELS: [&str; 3] = ["group", "node", "slot"];
/// The level whose resources have units.
const COUNTED: &str = "slot";
/// The resources of each level.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The highest number of further locks that a run requests.
const MOST_ASKED: u64 = 3;
/// The longest time that a run waits for a lock that it can do without, in ms.
const PATIENCE_MS: u64 = 5_000;

/// How jobs lock in a world.
#[derive(Debug, Clone)]
pub struct LockPlan {
    /// The number of resources of each level: the first names of `NAMES`.
    names: usize,
    /// Jobs that lock nothing, in permille.
    free: u64,
    /// Jobs that take the big lock, in permille.
    big: u64,
    /// Levels of which a job wants something, in permille.
    often: u64,
    /// How jobs that lock are ordered.
    pub rules: QueueRules,
}

impl LockPlan {
    /// A random plan.
    pub fn new(rng: &SeededRng) -> Self {
        let capacity = *rng.choose(&[1, 2, 3]);
        let level = |name: &str| Level {
            name: name.to_owned(),
            capacity: (name == COUNTED).then_some(capacity),
            capacities: BTreeMap::new(),
        };
        let levels: Vec<Level> = LEVELS.into_iter().map(level).collect();
        let aging = Aging {
            tick_us: *rng.choose(&[100_000, 1_000_000, 30_000_000]),
            ticks: *rng.choose(&[0, 5, 30]),
        };
        LockPlan {
            names: *rng.choose(&[1, 2, NAMES.len()]),
            free: *rng.choose(&[100, 300, 800]),
            big: *rng.choose(&[0, 20, 100]),
            often: *rng.choose(&[200, 400, 700]),
            rules: QueueRules {
                levels: Levels::try_from(levels).expect("three levels of different names"),
                window: *rng.choose(&[1, 4, 64]),
                rules: Rules { aging, ..Rules::default() },
                waiting_uses_slot: rng.chance(300),
            },
        }
    }

    fn name(&self, rng: &SeededRng) -> String {
        (*rng.choose(&NAMES[..self.names])).to_owned()
    }

    fn units(&self, rng: &SeededRng, level: &str) -> u32 {
        let levels = &self.rules.levels;
        let most = levels.position(level).and_then(|level| levels.most_units(level)).unwrap_or(1);
        u32::try_from(rng.between(1, most.into())).expect("it is not more than there is")
    }

    /// What a job declares to lock.
    pub fn declare(&self, rng: &SeededRng) -> Requests {
        let mut requests = Requests::default();
        if rng.chance(self.free) {
            return requests;
        }
        requests.big_lock = rng.chance(self.big);
        for level in LEVELS.into_iter().filter(|_| rng.chance(self.often)) {
            let shared = match rng.below(10) {
                0..3 => Request::Shared((0..2).map(|_| (self.name(rng), self.units(rng, level))).collect()),
                3..6 => Request::UnknownShared,
                6 => Request::AllShared,
                _ => Request::None,
            };
            let exclusive = match rng.below(10) {
                0..3 => Request::Exclusive((0..rng.between(1, 2)).map(|_| self.name(rng)).collect()),
                3..6 => Request::UnknownExclusive,
                6 => Request::AllExclusive,
                _ => Request::None,
            };
            // Only one of them where both together are invalid.
            let at = AtLevel::new([shared.clone(), exclusive]).or_else(|_| AtLevel::new([shared]));
            requests.levels.insert(level.to_owned(), at.expect("one request alone is fine"));
        }
        requests.levels.retain(|_, at| !at.is_none());
        requests
    }

    /// The requests of the runs of a job that has declared `requests`.
    pub fn asks(&self, rng: &SeededRng, requests: &Requests) -> Vec<Ask> {
        let mut asks: BTreeSet<Ask> = BTreeSet::new();
        for _ in 0..rng.below(MOST_ASKED + 1) {
            // Most requests are for declared levels, and some for undeclared ones.
            let declared: Vec<(&str, Mode)> = requests.levels.iter().flat_map(requested_modes).collect();
            let (level, mode) = match declared.is_empty() || rng.chance(100) {
                true => (*rng.choose(&LEVELS), *rng.choose(&[Mode::Shared, Mode::Exclusive])),
                false => *rng.choose(&declared),
            };
            let lock = match rng.below(10) {
                0 => LockAt::new(Spot::whole(level), mode),
                _ => {
                    let units = if mode == Mode::Shared { self.units(rng, level) } else { 1 };
                    LockAt { spot: Spot::resource(level, &self.name(rng)), mode, units }
                }
            };
            let patience_ms = rng.chance(200).then(|| rng.below(PATIENCE_MS));
            asks.insert(Ask::Take { lock, patience_ms });
        }
        let mut asks: Vec<Ask> = asks.into_iter().collect();
        asks.sort_by_key(|ask| LEVELS.iter().position(|level| ask.spot().level.as_deref() == Some(*level)));
        if rng.chance(150) {
            asks.reverse();
        }
        // Early, of locks taken with the claim or requested.
        let known = Held::known(requests).into_iter().flat_map(|held| held.locks());
        let mut spots: Vec<Spot> = known.map(|lock| lock.spot).filter(|spot| spot.level.is_some()).collect();
        spots.extend(asks.iter().map(|ask| ask.spot().clone()));
        if !spots.is_empty() && rng.chance(400) {
            asks.push(Ask::GiveBack(rng.choose(&spots).clone()));
        }
        asks
    }
}

/// The modes in which a run may request more than its job declared at a level.
fn requested_modes<'a>((level, at): (&'a String, &'a AtLevel)) -> impl Iterator<Item = (&'a str, Mode)> {
    at.requests().into_iter().filter_map(move |request| {
        let mode = match request {
            Request::None => return None,
            Request::Shared(_) | Request::UnknownShared | Request::AllShared => Mode::Shared,
            Request::Exclusive(_) | Request::UnknownExclusive | Request::AllExclusive => Mode::Exclusive,
        };
        Some((level.as_str(), mode))
    })
}

/// A request of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// A lock. If the run waits for longer than its patience, it continues without the lock.
    Take {
        /// The lock.
        lock: LockAt,
        /// The patience in ms, if there is a limit.
        patience_ms: Option<u64>,
    },
    /// To give a lock back.
    GiveBack(Spot),
}

impl Ask {
    fn spot(&self) -> &Spot {
        match self {
            Ask::Take { lock, .. } => &lock.spot,
            Ask::GiveBack(spot) => spot,
        }
    }

    /// Parses the text form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('/');
        let (how, level, name, patience) = (words.next()?, words.next()?, words.next()?, words.next());
        let spot = match name {
            "" => Spot::whole(level),
            name => Spot::resource(level, name),
        };
        let (mode, units) = match how.split_at_checked(1)? {
            ("u", _) => return Some(Ask::GiveBack(spot)),
            ("x", _) => (Mode::Exclusive, 1),
            (_, units) => (Mode::Shared, units.parse().ok()?),
        };
        let patience_ms = patience.and_then(|ms| ms.parse().ok());
        Some(Ask::Take { lock: LockAt { spot, mode, units }, patience_ms })
    }
}

/// `s2/slot/a`, `x/node/` for all of a level, `x/node/b/500` with patience, `u/node/b`.
impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spot { level, name } = self.spot();
        let place =
            format!("{}/{}", level.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        match self {
            Ask::GiveBack(_) => write!(f, "u/{place}"),
            Ask::Take { lock, patience_ms } => {
                match lock.mode {
                    Mode::Exclusive => write!(f, "x/{place}")?,
                    Mode::Shared => write!(f, "s{}/{place}", lock.units)?,
                }
                patience_ms.map_or(Ok(()), |ms| write!(f, "/{ms}"))
            }
        }
    }
}

/// The response to a run's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It has the lock, or has given it back.
    Done,
    /// The run waited for as long as its patience.
    Late,
    /// The run holds a lock that comes later in the order.
    OutOfOrder,
    /// The run may not have it.
    Refused,
    /// The run is asked to stop.
    Stopped,
    /// The claim is gone.
    Lost,
    /// Another error.
    Failed,
}

/// The process at which a run requests locks.
#[async_trait]
pub trait Asks: Send + Sync {
    /// Requests a lock.
    async fn lock(&self, lock: &LockAt, patience: Option<Duration>) -> Reply;
    /// Gives a lock back.
    async fn give_back(&self, spot: &Spot) -> Reply;
    /// Reads the inputs of the run, if the process reaches them.
    async fn inputs(&self) -> Option<Given>;
}
