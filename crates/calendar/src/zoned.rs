//! Cron expressions in a time zone, where the clocks change.
//!
//! `croner` reads the expression, and finds the local times that it matches; it is asked for no zone. A zone turns local
//! times into instants, by two rules:
//!
//! - A *fixed time* (its hour is a number, a list or a range, as in `30 2 * * *` and `*/30 2 * * *`) is a local time of a day.
//!   One that a change of clocks skips fires at the first valid instant after it. One that comes twice fires at the first.
//! - An *interval* (its hour is `*`, has a step, or names all hours, as in `*/5 * * * *` and `0 */2 * * *`) fires whenever the local clock shows a time that it matches. So it goes on in
//!   real time: what is skipped does not fire, and what comes twice fires twice.
//!
//! Several fixed times in one gap are one fire, as all of them have the same first valid instant. A whole day that a zone
//! skips (Samoa, 2011-12-30) is a gap like any other.

use croner::Cron;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use crate::{Fire, Moved, Problem, local};

/// How many local times of a fixed time may lie behind the instant that is searched from. A clock that is set back repeats
/// at most a day, in which an expression may list each second.
const MAX_BEHIND: usize = 100_000;
/// How many changes of clocks may lie before the next fire of an interval. No zone has more than four in a year.
const MAX_CHANGES: usize = 400;

/// A cron expression, and its zone.
pub(crate) struct Zoned {
    cron: Cron,
    zone: TimeZone,
    fixed: bool,
}

impl Zoned {
    pub(crate) fn parse(expression: &str, zone: &str) -> Result<Self, Problem> {
        let found = jiff::tz::db().get(zone).or_else(|_| TimeZoneDatabase::bundled().get(zone));
        let Some(zone) = found.ok().filter(|zone| !zone.is_unknown()) else {
            return Err(Problem::new("zone", "must be the name of a time zone, as Europe/Berlin or UTC"));
        };
        let cron: Cron = expression
            .parse()
            .map_err(|e: croner::errors::CronError| Problem::new("expression", e.to_string()))?;
        let hours = &cron.pattern.hours;
        let fixed = !hours.from_wildcard && hours.step == 1 && hours.values().len() < 24;
        Ok(Self { cron, zone, fixed })
    }

    /// The first fire strictly after an instant.
    pub(crate) fn next(&self, after_us: i64) -> Option<Fire> {
        // An expression matches whole seconds.
        let after = Timestamp::from_second(after_us.div_euclid(1_000_000)).ok()?;
        if self.fixed { self.next_fixed(after) } else { self.next_of_interval(after) }
    }

    fn next_fixed(&self, after: Timestamp) -> Option<Fire> {
        let mut at = self.zone.to_datetime(after);
        for _ in 0..MAX_BEHIND {
            at = self.cron.find_next_occurrence(&at, false).ok()?;
            let (instant, moved) = self.instant_of(at)?;
            if instant > after {
                return Some(self.fire(instant, moved));
            }
        }
        None
    }

    /// When a local time happens first, or the end of the gap that skips it.
    fn instant_of(&self, at: DateTime) -> Option<(Timestamp, Option<Moved>)> {
        match self.zone.to_ambiguous_timestamp(at).offset() {
            AmbiguousOffset::Unambiguous { offset } => Some((offset.to_timestamp(at).ok()?, None)),
            AmbiguousOffset::Fold { before, .. } => Some((before.to_timestamp(at).ok()?, Some(Moved::Twice))),
            // With the offset of after the change, a skipped time is an instant before the change.
            AmbiguousOffset::Gap { after, .. } => {
                let change = self.zone.following(after.to_timestamp(at).ok()?).next()?;
                Some((change.timestamp(), Some(Moved::Skipped)))
            }
        }
    }

    fn next_of_interval(&self, after: Timestamp) -> Option<Fire> {
        let (mut from, mut inclusive) = (after, false);
        for _ in 0..MAX_CHANGES {
            let offset = self.zone.to_offset(from);
            let at = self.cron.find_next_occurrence(&offset.to_datetime(from), inclusive).ok()?;
            let instant = offset.to_timestamp(at).ok()?;
            match self.zone.following(from).next() {
                // The clock shows another time from there on.
                Some(change) if change.timestamp() <= instant => {
                    (from, inclusive) = (change.timestamp(), true)
                }
                _ => return Some(self.fire(instant, None)),
            }
        }
        None
    }

    fn fire(&self, at: Timestamp, moved: Option<Moved>) -> Fire {
        Fire { at_us: at.as_microsecond(), local: local(at, self.zone.to_offset(at)), moved }
    }
}
