//! All zones of the database, from 2000 to 2040, against what the definition says: an instant is looked at by the time that
//! the local clock shows then, and by nothing else.

use std::collections::HashSet;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, civil};
use turnwise_calendar::{Calendar, Moved, When};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// 2000-01-01 and 2040-01-01, in seconds since the epoch.
const START: i64 = 946_684_800;
const END: i64 = 2_208_988_800;

/// What the local clock shows at an instant, as seconds since the epoch of a day without zones.
fn shown(zone: &TimeZone, at: i64) -> i64 {
    at + i64::from(zone.to_offset(Timestamp::from_second(at).unwrap()).seconds())
}

/// When the clocks of a zone change.
fn changes(zone: &TimeZone) -> Vec<i64> {
    let start = Timestamp::from_second(START).unwrap();
    zone.following(start).map(|change| change.timestamp().as_second()).take_while(|at| *at < END).collect()
}

/// The zones, without those that show the same as another one all the time.
fn zones() -> Vec<(String, TimeZone)> {
    let mut seen = HashSet::new();
    let zones =
        jiff::tz::db().available().map(|name| (name.to_string(), TimeZone::get(name.as_str()).unwrap()));
    zones
        .filter(|(_, zone)| {
            let offsets = changes(zone).into_iter().map(|at| (at, shown(zone, at))).collect::<Vec<_>>();
            !zone.is_unknown() && seen.insert((shown(zone, START), offsets))
        })
        .collect()
}

fn cron(expression: &str, zone: &str) -> Calendar {
    let when = When::Cron { expression: expression.to_owned(), zone: zone.to_owned() };
    Calendar { when, from_us: None, until_us: None }
}

#[test]
fn daily_at_half_past_two_fires_once_for_each_day() {
    fires_once_for_each_day("30 2 * * *", &[150]);
}

#[test]
fn each_half_hour_after_two_fires_once_for_each_day() {
    fires_once_for_each_day("*/30 2 * * *", &[120, 150]);
}

/// Compares an expression with the local times of a day that it names, in minutes.
fn fires_once_for_each_day(expression: &str, times: &[i64]) {
    let zones = zones();
    assert!(zones.len() > 200, "{}", zones.len());
    let (mut skipped, mut twice) = (0, 0);
    for (name, zone) in zones {
        let calendar = cron(expression, &name);
        let mut last = 0;
        let mut fires = calendar.fires((START + DAY) * 1_000_000).unwrap();
        let first = shown(&zone, START + DAY).div_euclid(DAY) - 1;
        let days = first..END / DAY - 2;
        for (day, minute) in days.flat_map(|day| times.iter().map(move |minute| (day, minute))) {
            // The first instant at which the clock shows this time of this day, or later.
            let due = day * DAY + minute * 60;
            let guess = due - i64::from(zone.to_offset(Timestamp::from_second(due).unwrap()).seconds());
            let plain = shown(&zone, guess - 2 * DAY) + 4 * DAY == shown(&zone, guess + 2 * DAY);
            let at = if plain && shown(&zone, guess) == due {
                guess
            } else {
                (guess - 2 * DAY..).step_by(60).find(|at| shown(&zone, *at) >= due).unwrap()
            };
            // Several in one gap are one fire.
            if at <= START + DAY || at == last {
                continue;
            }
            last = at;
            let fire = fires.next().unwrap();
            assert_eq!(fire.at_us, at * 1_000_000, "{name}: {}", civil::date(1970, 1, 1) + day.days());
            // Shown again later, it comes twice; never shown, it is skipped.
            let again = !plain && (at + 60..at + 2 * DAY).step_by(60).any(|later| shown(&zone, later) == due);
            let expected = match (shown(&zone, at) == due, again) {
                (false, _) => Some(Moved::Skipped),
                (true, true) => Some(Moved::Twice),
                (true, false) => None,
            };
            assert_eq!(fire.moved, expected, "{name}: {}", fire.local);
            skipped += i64::from(expected == Some(Moved::Skipped));
            twice += i64::from(expected == Some(Moved::Twice));
        }
    }
    assert!(skipped > 100 && twice > 100, "{skipped} skipped, {twice} twice");
}

#[test]
fn hourly_fires_whenever_the_clock_shows_a_full_hour() {
    for (name, zone) in zones() {
        let calendar = cron("0 * * * *", &name);
        // Around each change minute by minute, and in a window of each year.
        let years = (0..40).map(|year| START + year * 365 * DAY);
        for middle in changes(&zone).into_iter().chain(years) {
            let middle = middle - middle % 60;
            let (from, to) = (middle - 6 * HOUR, middle + 6 * HOUR);
            let shown_full = (from + 60..=to).step_by(60).filter(|at| shown(&zone, *at) % HOUR == 0);
            let fires =
                calendar.fires(from * 1_000_000).unwrap().take_while(|fire| fire.at_us <= to * 1_000_000);
            let fires: Vec<_> = fires.map(|fire| fire.at_us / 1_000_000).collect();
            assert_eq!(fires, shown_full.collect::<Vec<_>>(), "{name} around {middle}");
        }
    }
}
