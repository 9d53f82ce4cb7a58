//! What a user relies on, by example.

use turnwise_calendar::{Calendar, HORIZON_US, Moved, When, instant, zone_data};

const SECOND: i64 = 1_000_000;

fn us(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_microsecond()
}

fn cron(expression: &str, zone: &str) -> Calendar {
    let when = When::Cron { expression: expression.to_owned(), zone: zone.to_owned() };
    Calendar { when, from_us: None, until_us: None }
}

/// The first fires after an instant: local times, and what moved them.
fn fires(calendar: &Calendar, after: &str, count: usize) -> Vec<(String, Option<Moved>)> {
    calendar.fires(us(after)).unwrap().take(count).map(|fire| (fire.local, fire.moved)).collect()
}

fn plain(times: &[&str]) -> Vec<(String, Option<Moved>)> {
    times.iter().map(|time| ((*time).to_owned(), None)).collect()
}

#[test]
fn a_skipped_time_fires_once_at_the_first_valid_instant() {
    let nightly = fires(&cron("30 2 * * *", "Europe/Berlin"), "2026-03-28T12:00:00Z", 2);
    let at = [("2026-03-29T03:00:00+02:00", Some(Moved::Skipped)), ("2026-03-30T02:30:00+02:00", None)];
    assert_eq!(nightly, at.map(|(time, moved)| (time.to_owned(), moved)));
    // Two in one gap, and one at its end, are one fire.
    let twice = fires(&cron("0,30 2,3 * * *", "Europe/Berlin"), "2026-03-28T12:00:00Z", 2);
    let at = [("2026-03-29T03:00:00+02:00", Some(Moved::Skipped)), ("2026-03-29T03:30:00+02:00", None)];
    assert_eq!(twice, at.map(|(time, moved)| (time.to_owned(), moved)));
    // A whole day that does not exist.
    let samoa = fires(&cron("30 2 * * *", "Pacific/Apia"), "2011-12-29T13:00:00Z", 2);
    let at = [("2011-12-31T00:00:00+14:00", Some(Moved::Skipped)), ("2011-12-31T02:30:00+14:00", None)];
    assert_eq!(samoa, at.map(|(time, moved)| (time.to_owned(), moved)));
}

#[test]
fn a_time_that_comes_twice_fires_at_the_first() {
    let calendar = cron("30 2 * * *", "Europe/Berlin");
    let at = [("2026-10-25T02:30:00+02:00", Some(Moved::Twice)), ("2026-10-26T02:30:00+01:00", None)];
    assert_eq!(fires(&calendar, "2026-10-24T12:00:00Z", 2), at.map(|(time, moved)| (time.to_owned(), moved)));
    // Searched from within the hour that comes again.
    assert_eq!(fires(&calendar, "2026-10-25T01:10:00Z", 1), plain(&["2026-10-26T02:30:00+01:00"]));
}

#[test]
fn a_fixed_hour_is_a_fixed_time_whatever_its_minutes_repeat() {
    let calendar = cron("*/30 2 * * *", "Europe/Berlin");
    let at = [
        ("2026-03-28T02:30:00+01:00", None),
        ("2026-03-29T03:00:00+02:00", Some(Moved::Skipped)),
        ("2026-03-30T02:00:00+02:00", None),
    ];
    assert_eq!(fires(&calendar, "2026-03-28T01:00:00Z", 3), at.map(|(time, moved)| (time.to_owned(), moved)));
    let at = [
        ("2026-10-25T02:00:00+02:00", Some(Moved::Twice)),
        ("2026-10-25T02:30:00+02:00", Some(Moved::Twice)),
        ("2026-10-26T02:00:00+01:00", None),
    ];
    assert_eq!(fires(&calendar, "2026-10-24T12:00:00Z", 3), at.map(|(time, moved)| (time.to_owned(), moved)));
    // All hours are no fixed time, however they are named.
    for expression in ["0 * * * *", "0 0-23 * * *", "0 */1 * * *"] {
        let autumn = ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"];
        assert_eq!(fires(&cron(expression, "Europe/Berlin"), "2026-10-24T23:30:00Z", 2), plain(&autumn));
    }
}

#[test]
fn an_interval_runs_through_both_changes() {
    let hourly = cron("0 * * * *", "Europe/Berlin");
    let spring = ["2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"];
    assert_eq!(fires(&hourly, "2026-03-28T23:30:00Z", 3), plain(&spring));
    let autumn = ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"];
    assert_eq!(fires(&hourly, "2026-10-24T23:30:00Z", 3), plain(&autumn));
}

#[test]
fn an_interval_is_anchored_to_the_epoch() {
    let mut calendar = Calendar {
        when: When::Every { every_us: 900 * SECOND, offset_us: 60 * SECOND },
        from_us: None,
        until_us: None,
    };
    let at = ["2026-11-29T10:01:00+00:00", "2026-11-29T10:16:00+00:00"];
    assert_eq!(fires(&calendar, "2026-11-29T09:46:00Z", 2), plain(&at));
    calendar.from_us = Some(us("2026-11-29T10:16:00Z"));
    calendar.until_us = Some(us("2026-11-29T10:31:00Z"));
    let at = ["2026-11-29T10:16:00+00:00", "2026-11-29T10:31:00+00:00"];
    assert_eq!(fires(&calendar, "2026-11-29T09:46:00Z", 9), plain(&at), "both bounds belong to it");
}

#[test]
fn dates_fire_in_order_and_once() {
    let dates = ["2026-12-24T18:00:00Z", "2026-12-01T00:00:00.5Z", "2026-12-24T18:00:00Z"].map(us).to_vec();
    let calendar = Calendar { when: When::Dates(dates), from_us: None, until_us: None };
    let at = ["2026-12-01T00:00:00.5+00:00", "2026-12-24T18:00:00+00:00"];
    assert_eq!(fires(&calendar, "2026-11-29T00:00:00Z", 9), plain(&at));
    assert_eq!(instant(us("2026-12-01T00:00:00.5Z")), "2026-12-01T00:00:00.5Z");
    assert_eq!(instant(us("2026-12-24T18:00:00Z")), "2026-12-24T18:00:00Z");
}

#[test]
fn the_last_fire_of_a_time_is_found_without_those_before_it() {
    let (from, to) = (us("2026-01-01T00:00:00Z"), us("2026-12-24T18:00:01.5Z"));
    for calendar in
        [cron("* * * * * *", "UTC"), cron("30 2 * * *", "Europe/Berlin"), cron("0 0 29 2 *", "UTC")]
    {
        let last = calendar.last(from, to);
        assert_eq!(last.as_ref().and_then(|last| calendar.last(from, last.at_us)), last);
        match last {
            Some(last) => {
                assert!(last.at_us <= to && calendar.next(last.at_us).is_none_or(|next| next.at_us > to));
                assert_eq!(calendar.next(last.at_us - 1), Some(last));
            }
            None => assert!(calendar.next(from).is_none_or(|next| next.at_us > to)),
        }
    }
    let calendar = cron("* * * * * *", "UTC");
    assert_eq!(calendar.last(from, to).map(|last| last.at_us), Some(us("2026-12-24T18:00:01Z")));
    assert_eq!(calendar.last(from, from), None);
    assert_eq!(calendar.last(from, from + SECOND).map(|last| last.at_us), Some(from + SECOND));
}

#[test]
fn what_cannot_fire_is_refused_with_its_field() {
    let now = us("2026-11-29T00:00:00Z");
    let field = |calendar: &Calendar| calendar.check(now).unwrap_err().field;
    assert_eq!(field(&cron("30 2 * *", "UTC")), "expression");
    assert_eq!(field(&cron("30 25 * * *", "UTC")), "expression");
    assert_eq!(field(&cron(&format!("{}0 2 * * *", "0,".repeat(200)), "UTC")), "expression");
    assert_eq!(field(&cron("30 2 * * *", "Europe/Atlantis")), "zone");
    assert_eq!(field(&cron("30 2 * * *", "../../etc/passwd")), "zone");
    assert_eq!(field(&cron("0 0 30 2 *", "UTC")), "when", "the 30th of February");
    assert_eq!(field(&cron("0 0 0 1 1 * 2040", "UTC")), "when", "in more than ten years");
    let every = |every_us, offset_us| Calendar {
        when: When::Every { every_us, offset_us },
        from_us: None,
        until_us: None,
    };
    assert_eq!(field(&every(SECOND - 1, 0)), "every_us");
    assert_eq!(field(&every(HORIZON_US + 1, 0)), "every_us");
    assert_eq!(field(&every(SECOND, SECOND)), "offset_us");
    let dates = |dates| Calendar { when: When::Dates(dates), from_us: None, until_us: None };
    assert_eq!(field(&dates(Vec::new())), "dates");
    assert_eq!(field(&dates(vec![now + 1; 1_001])), "dates");
    assert_eq!(field(&dates(vec![now])), "when", "it has passed");
    let bounded = |from_us, until_us| Calendar { from_us, until_us, ..cron("@daily", "UTC") };
    assert_eq!(field(&bounded(Some(now), Some(now - 1))), "until_us");
    assert_eq!(field(&bounded(None, Some(now))), "when");
    assert_eq!(field(&bounded(Some(-1), None)), "from_us");
    assert_eq!(bounded(Some(now), None).check(now), Ok(()));
    assert_eq!(cron("0 0 29 2 *", "Asia/Kolkata").check(now), Ok(()));
}

#[test]
fn a_calendar_is_stored_as_json() {
    let calendar = Calendar { from_us: Some(1), ..cron("@daily", "UTC") };
    let text = serde_json::to_string(&calendar).unwrap();
    assert_eq!(text, r#"{"when":{"cron":{"expression":"@daily","zone":"UTC"}},"from_us":1}"#);
    assert_eq!(serde_json::from_str::<Calendar>(&text).unwrap(), calendar);
    assert!(!zone_data().is_empty());
}
