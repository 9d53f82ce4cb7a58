//! When a schedule fires: cron expressions in a time zone, intervals, and dates.
//!
//! No I/O but the zone data, no clock: [`Calendar::next`] computes the first fire after a given instant. `zoned.rs` states
//! what happens where the clocks of a zone change.

mod zone_data;
mod zoned;

use std::fmt;

use jiff::Timestamp;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};

pub use zone_data::zone_data;
use zoned::Zoned;

/// The longest cron expression, and the longest name of a zone, in bytes.
pub const MAX_TEXT: usize = 256;
/// How many dates a calendar may list.
pub const MAX_DATES: usize = 1_000;
/// The shortest interval.
pub const MIN_EVERY_US: i64 = 1_000_000;
/// The longest interval, and how far ahead the first fire of a new calendar may be: ten years.
pub const HORIZON_US: i64 = 3_653 * 86_400 * 1_000_000;
/// The last instant that a calendar may name: the end of the year 9999.
const LAST_US: i64 = 253_402_300_799_000_000;

/// When a schedule fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At the local times of a zone that a cron expression matches.
    Cron {
        /// Five fields, or six with seconds in front, or seven with years at the end: `30 2 * * *`, `@daily`.
        expression: String,
        /// A name of the IANA database: `Europe/Berlin`, `UTC`.
        zone: String,
    },
    /// At the multiples of an interval since the epoch, plus an offset.
    Every {
        /// The interval, in µs.
        every_us: i64,
        /// At least 0, and below the interval, in µs.
        #[serde(default)]
        offset_us: i64,
    },
    /// At given instants, in µs since the epoch.
    Dates(Vec<i64>),
}

impl When {
    /// At the local times of a zone that a cron expression matches.
    pub fn cron(expression: impl Into<String>, zone: impl Into<String>) -> When {
        When::Cron { expression: expression.into(), zone: zone.into() }
    }
}

/// When a schedule fires, and within which bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calendar {
    /// The instants.
    pub when: When,
    /// The first instant that may fire, in µs since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_us: Option<i64>,
    /// The last instant that may fire, in µs since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<i64>,
}

/// An instant at which a calendar fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fire {
    /// The instant, in µs since the epoch.
    pub at_us: i64,
    /// The same with the offset of the calendar's zone, as RFC 3339 writes it: `2026-03-29T03:00:00+02:00`.
    pub local: String,
    /// What a change of clocks did to this fire.
    pub moved: Option<Moved>,
}

/// What a change of clocks did to a fire of a fixed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moved {
    /// Its local time does not exist on that day. It fires at the first valid instant after it.
    Skipped,
    /// Its local time comes twice on that day. It fires at the first only.
    Twice,
}

/// What is wrong with a calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field: `expression`, `zone`, `every_us`, `offset_us`, `dates`, `from_us`, `until_us`, or `when`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl Problem {
    fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for Problem {}

impl Calendar {
    /// Whether a calendar may be stored.
    ///
    /// # Errors
    /// The field that is wrong: an unknown zone, an expression that cannot be read, a value out of its bounds, or no fire
    /// within ten years after `now_us`.
    pub fn check(&self, now_us: i64) -> Result<(), Problem> {
        for (field, at) in [("from_us", self.from_us), ("until_us", self.until_us)] {
            if at.is_some_and(|at| !(0..=LAST_US).contains(&at)) {
                return Err(Problem::new(field, "must be in the years 1970 to 9999"));
            }
        }
        if let (Some(from), Some(until)) = (self.from_us, self.until_us)
            && from > until
        {
            return Err(Problem::new("until_us", "must not be before from_us"));
        }
        match &self.when {
            When::Cron { expression, zone } => {
                for (field, text) in [("expression", expression), ("zone", zone)] {
                    if text.len() > MAX_TEXT {
                        return Err(Problem::new(field, format!("must have at most {MAX_TEXT} bytes")));
                    }
                }
            }
            When::Every { every_us, offset_us } => {
                if !(MIN_EVERY_US..=HORIZON_US).contains(every_us) {
                    return Err(Problem::new("every_us", "must be between one second and ten years"));
                }
                if !(0..*every_us).contains(offset_us) {
                    return Err(Problem::new("offset_us", "must be at least 0 and below every_us"));
                }
            }
            When::Dates(dates) => {
                if dates.is_empty() || dates.len() > MAX_DATES {
                    return Err(Problem::new("dates", format!("must list 1 to {MAX_DATES} instants")));
                }
                if dates.iter().any(|at| !(0..=LAST_US).contains(at)) {
                    return Err(Problem::new("dates", "must be in the years 1970 to 9999"));
                }
            }
        }
        match self.fires(now_us)?.next() {
            Some(fire) if fire.at_us - now_us <= HORIZON_US => Ok(()),
            _ => Err(Problem::new("when", "has no fire within ten years from now")),
        }
    }

    /// The first fire strictly after an instant. `None` if there is none, or if the zone is unknown here.
    pub fn next(&self, after_us: i64) -> Option<Fire> {
        self.fires(after_us).ok()?.next()
    }

    /// The last fire after an instant, and not after another one. Takes about 60 searches, however many fires are between.
    pub fn last(&self, after_us: i64, until_us: i64) -> Option<Fire> {
        // The latest instant behind which there is still a fire: from it on, the first one is the last one.
        let is_followed = |from_us| self.next(from_us).filter(|fire| fire.at_us <= until_us);
        let mut last = is_followed(after_us)?;
        let (mut low, mut high) = (last.at_us, until_us);
        while low < high {
            let middle = low + (high - low) / 2;
            match is_followed(middle) {
                Some(fire) => (low, last) = (fire.at_us, fire),
                None => high = middle,
            }
        }
        Some(last)
    }

    /// The fires strictly after an instant, in order.
    ///
    /// # Errors
    /// The zone is unknown here, or the expression cannot be read.
    pub fn fires(&self, after_us: i64) -> Result<Fires<'_>, Problem> {
        let source = match &self.when {
            When::Cron { expression, zone } => Source::Zoned(Box::new(Zoned::parse(expression, zone)?)),
            When::Every { every_us, offset_us } => {
                Source::Every { every_us: (*every_us).max(1), offset_us: *offset_us }
            }
            When::Dates(dates) => Source::Dates(dates),
        };
        let after_us = self.from_us.map_or(after_us, |from| after_us.max(from.saturating_sub(1)));
        Ok(Fires { source, after_us, until_us: self.until_us })
    }
}

/// The fires of a calendar, in order.
pub struct Fires<'a> {
    source: Source<'a>,
    after_us: i64,
    until_us: Option<i64>,
}

enum Source<'a> {
    Zoned(Box<Zoned>),
    Every { every_us: i64, offset_us: i64 },
    Dates(&'a [i64]),
}

impl Iterator for Fires<'_> {
    type Item = Fire;

    fn next(&mut self) -> Option<Fire> {
        let after = self.after_us;
        let fire = match &self.source {
            Source::Zoned(zoned) => zoned.next(after)?,
            Source::Every { every_us, offset_us } => {
                let passed = after.checked_sub(*offset_us)?.div_euclid(*every_us);
                in_utc(passed.checked_add(1)?.checked_mul(*every_us)?.checked_add(*offset_us)?)?
            }
            Source::Dates(dates) => in_utc(dates.iter().copied().filter(|at| *at > after).min()?)?,
        };
        if self.until_us.is_some_and(|until| fire.at_us > until) {
            return None;
        }
        self.after_us = fire.at_us;
        Some(fire)
    }
}

/// An instant as RFC 3339 writes it in UTC: `2026-11-29T02:30:00Z`, with a fraction only where there is one.
pub fn instant(at_us: i64) -> String {
    Timestamp::from_microsecond(at_us).map(|at| at.to_string()).unwrap_or_default()
}

/// The id of the job that a schedule adds at an instant.
pub fn job_id(schedule: &str, at_us: i64) -> String {
    format!("{schedule}@{}", instant(at_us))
}

fn in_utc(at_us: i64) -> Option<Fire> {
    let at = Timestamp::from_microsecond(at_us).ok()?;
    Some(Fire { at_us, local: local(at, Offset::UTC), moved: None })
}

fn local(at: Timestamp, offset: Offset) -> String {
    at.display_with_offset(offset).to_string()
}
