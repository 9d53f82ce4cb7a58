//! How likely a job is to wait for locks if it starts now: its *weight*.
//!
//! At each level, what the pending job wants is compared with what each running job locks there, in a table of seven
//! kinds of request by seven ([`apart`], [`same`]). The highest cell over all running jobs counts, and the levels are added up:
//!
//! ```text
//! weight = base + Σ over levels ( max over running jobs ( compare(wanted, locked) ) )
//! weight = base + 3 · levels    for the big lock, which is the worst that there can be
//! ```
//!
//! Forces, and what follows from them:
//!
//! - *Weights differ on an idle system, too.* A running job that locks nothing at a level is the column `None`, which
//!   says how a job affects jobs that come after it. This column always counts, as if one more job ran that locks
//!   nothing. Without it, all jobs would weigh the same while nothing runs. If it counted only then, a weight could
//!   fall when a job is added. (It hides the three zeros in the row `Shared`. They would count only where every
//!   running job shares something at that level and none locks any of it exclusively.)
//! - *Both modes at once.* A job may want shared and exclusive locks at one level, and hold both: the highest of the
//!   pairs counts.
//! - *The holder of the big lock* locks everything: it counts as `AllExclusive` at every level.
//! - *Units.* Two shared requests for one resource add no weight, unless the resource has a capacity, and the held
//!   and the wanted units exceed it together. Then the job is stuck, as it would be behind an exclusive lock.
//! - *Unknown columns stay.* A running job that has yet to find out its locks counts as what it declared, until it
//!   holds a lock of that level and mode. Then it counts as what it holds ([`Running`](super::summary::Running)).
//!
//! A [`Summary`](super::summary::Summary) of all running jobs computes a weight at the cost of the job's own resources. The tests compare
//! it with the definition: a comparison with every running job.
//!
//! Source: the design document of Ganeti's predictive queue, cell by cell. Numbers are thousandths, so that sums are
//! exact, and the same on every node.

use std::fmt;

use super::locks::Request;

/// How likely a job is to wait for locks, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Weight(u32);

impl Weight {
    /// A weight of this many thousandths.
    pub const fn thousandths(thousandths: u32) -> Weight {
        Weight(thousandths)
    }

    /// A configured weight: 0.001 to 1,000, rounded to thousandths. `None` outside this range.
    pub fn new(weight: f64) -> Option<Weight> {
        let thousandths = (weight * 1_000.0).round();
        (1.0..=1_000_000.0).contains(&thousandths).then_some(Weight(thousandths as u32))
    }

    /// As a number, for display.
    pub fn to_f64(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }

    /// In thousandths.
    pub const fn in_thousandths(self) -> u32 {
        self.0
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Weight) -> Weight {
        Weight(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f64().fmt(f)
    }
}

/// No contention now, and no more of it for later jobs.
pub const NO_CONTENTION: Weight = Weight(0);
/// No contention now, but more of it for later jobs.
pub const LIKELIER_LATER: Weight = Weight(300);
/// No contention now, but much more of it for later jobs.
pub const MUCH_LIKELIER_LATER: Weight = Weight(500);
/// There may be contention: it depends on unknown locks.
pub const PERHAPS_STUCK: Weight = Weight(1_500);
/// The job will wait. (Ganeti's document says "very likely": the running job may end, or not take what it declared.)
pub const STUCK: Weight = Weight(3_000);
/// The default weight of a job before any comparison.
pub const DEFAULT_BASE: Weight = Weight(1_000);

/// The seven kinds of [`Request`], without names: rows and columns of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// No lock.
    None,
    /// Named resources, shared.
    Shared,
    /// Some resources, shared.
    UnknownShared,
    /// All resources, shared.
    AllShared,
    /// Named resources, exclusive.
    Exclusive,
    /// Some resources, exclusive.
    UnknownExclusive,
    /// All resources, exclusive.
    AllExclusive,
}

/// All kinds, in the order of the table.
pub const KINDS: [Kind; 7] = [
    Kind::None,
    Kind::Shared,
    Kind::UnknownShared,
    Kind::AllShared,
    Kind::Exclusive,
    Kind::UnknownExclusive,
    Kind::AllExclusive,
];

impl From<&Request> for Kind {
    fn from(request: &Request) -> Kind {
        match request {
            Request::None => Kind::None,
            Request::Shared(_) => Kind::Shared,
            Request::UnknownShared => Kind::UnknownShared,
            Request::AllShared => Kind::AllShared,
            Request::Exclusive(_) => Kind::Exclusive,
            Request::UnknownExclusive => Kind::UnknownExclusive,
            Request::AllExclusive => Kind::AllExclusive,
        }
    }
}

/// A cell: the weight, and the weight if both name the same resource.
#[derive(Clone, Copy)]
struct Cell {
    apart: Weight,
    same: Weight,
}

const fn always(weight: Weight) -> Cell {
    Cell { apart: weight, same: weight }
}

const fn stuck_if_same_else(apart: Weight) -> Cell {
    Cell { apart, same: STUCK }
}

/// What the pending job wants (rows) against what a running job locks (columns).
#[rustfmt::skip]
const TABLE: [[Cell; 7]; 7] = {
    const ZERO:   Cell = always(NO_CONTENTION);
    const P_3:    Cell = always(LIKELIER_LATER);
    const P_5:    Cell = always(MUCH_LIKELIER_LATER);
    const I_5:    Cell = always(PERHAPS_STUCK);
    const III:    Cell = always(STUCK);
    const S_P3:   Cell = stuck_if_same_else(LIKELIER_LATER);
    const S_P5:   Cell = stuck_if_same_else(MUCH_LIKELIER_LATER);
    [
        //                      None  Shared  Unknown  All     Exclusive  Unknown    All
        //                            (j)     Shared   Shared  (j)        Exclusive  Exclusive
        /* None             */ [ZERO, ZERO,   ZERO,    ZERO,   ZERO,      ZERO,      ZERO],
        /* Shared(i)        */ [P_3,  ZERO,   ZERO,    ZERO,   S_P3,      I_5,       III],
        /* UnknownShared    */ [P_3,  P_3,    P_3,     P_3,    I_5,       I_5,       III],
        /* AllShared        */ [P_3,  P_3,    P_3,     P_3,    III,       III,       III],
        /* Exclusive(i)     */ [P_5,  S_P5,   I_5,     III,    S_P5,      I_5,       III],
        /* UnknownExclusive */ [P_5,  I_5,    I_5,     III,    I_5,       I_5,       III],
        /* AllExclusive     */ [P_5,  III,    III,     III,    III,       III,       III],
    ]
};

/// A cell of the table, if no resource is named by both.
pub fn apart(wanted: Kind, locked: Kind) -> Weight {
    TABLE[wanted as usize][locked as usize].apart
}

/// A cell of the table, if a resource is named by both. Unless both kinds have names, the same as [`apart`].
pub fn same(wanted: Kind, locked: Kind) -> Weight {
    TABLE[wanted as usize][locked as usize].same
}

/// The weight of a job, before it ages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predicted {
    /// The base weight.
    pub base: Weight,
    /// The weight of each level, in their order.
    pub levels: Vec<Weight>,
    /// The sum of all.
    pub total: Weight,
}

impl Predicted {
    pub(crate) fn new(base: Weight, levels: Vec<Weight>) -> Predicted {
        let total = levels.iter().fold(base, |sum, level| sum.plus(*level));
        Predicted { base, levels, total }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::locks::{Levels, Requests, Units};
    use super::super::tests::{big_lock, compare, weigh_by_comparing};
    use super::*;

    fn request(kind: &str, names: &str) -> Request {
        let names = names.split(' ').filter(|name| !name.is_empty()).map(str::to_owned);
        match kind {
            "None" => Request::None,
            "Shared" => Request::Shared(names.map(|name| (name, 1)).collect::<Units>()),
            "UnknownShared" => Request::UnknownShared,
            "AllShared" => Request::AllShared,
            "Exclusive" => Request::Exclusive(names.collect()),
            "UnknownExclusive" => Request::UnknownExclusive,
            "AllExclusive" => Request::AllExclusive,
            _ => unreachable!(),
        }
    }

    /// The table of Ganeti's document, copied out of it (without the frame); `3|0.3` is "if j=i then 3 else 0.3".
    const DOCUMENT: &str = "
        .                None Shared UnknownShared AllShared Exclusive UnknownExclusive AllExclusive
        None             0    0      0             0         0         0                0
        Shared           0.3  0      0             0         3|0.3     1.5              3
        UnknownShared    0.3  0.3    0.3           0.3       1.5       1.5              3
        AllShared        0.3  0.3    0.3           0.3       3         3                3
        Exclusive        0.5  3|0.5  1.5           3         3|0.5     1.5              3
        UnknownExclusive 0.5  1.5    1.5           3         1.5       1.5              3
        AllExclusive     0.5  3      3             3         3         3                3";

    #[test]
    fn all_49_cells_equal_the_document_and_three_depend_on_names() {
        let mut lines = DOCUMENT.lines().filter(|line| !line.trim().is_empty()).map(str::split_whitespace);
        let columns: Vec<&str> = lines.next().unwrap().skip(1).collect();
        let (mut cells, mut of_two) = (0, 0);
        for mut line in lines {
            let row = line.next().unwrap();
            for (column, cell) in columns.iter().zip(line) {
                let (same, apart) = cell.split_once('|').unwrap_or((cell, cell));
                // Equal names, overlapping names, different names, and names of which one begins with the other.
                for (i, j, expected) in [
                    ("a", "a", same),
                    ("a b", "b c", same),
                    ("b", "a b c", same),
                    ("a b c", "c", same),
                    ("a", "b", apart),
                    ("a b", "c d", apart),
                    ("a", "aa", apart),
                ] {
                    let weight = compare(&request(row, i), &request(column, j));
                    assert_eq!(weight.to_string(), expected, "{row}({i}) against {column}({j})");
                }
                cells += 1;
                of_two += usize::from(cell.contains('|'));
            }
        }
        assert_eq!((cells, of_two), (49, 3));
    }

    #[test]
    fn the_big_lock_weighs_as_much_as_the_worst_at_every_level() {
        assert_eq!(big_lock(&Levels::default()).to_f64(), 15.0);
        let wanted = Requests { big_lock: true, levels: BTreeMap::new() };
        let weight = weigh_by_comparing(&wanted, &[], &Levels::default(), DEFAULT_BASE);
        assert_eq!(weight.total.to_f64(), 16.0);
    }

    #[test]
    fn a_configured_weight_is_kept_to_the_thousandth() {
        assert_eq!(Weight::new(1.0), Some(DEFAULT_BASE));
        assert_eq!(Weight::new(0.0015).map(Weight::in_thousandths), Some(2));
        for wrong in [0.0, 0.0001, -1.0, 1_001.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Weight::new(wrong), None, "{wrong}");
        }
    }
}
