//! Times, durations, numbers and texts of jobs as HTML.

use maud::{Markup, html};
use serde::Serialize;
use turnwise_protocol::State;
use turnwise_queue::counts::Kind;
use turnwise_queue::timestamp;

/// Longest text in a page that is shown without unfolding it, in characters.
const SHOWN_CHARS: usize = 400;

/// The states in the order of a job's life, with what they mean.
pub(super) const STATES: [(State, &str); 11] = [
    (State::Pending, "in the queue of its tenant, ready to start"),
    (State::Running, "a worker runs it"),
    (State::Waiting, "a worker runs it, and it waits for a lock"),
    (State::Delayed, "added for later, or parked until its source changes"),
    (State::Blocked, "waits until its dependencies have ended"),
    (State::Paused, "waits until the filter that pauses it is removed"),
    (State::Limited, "waits until its concurrency limit has room"),
    (State::Crashing, "crashed, and waits until its backoff is over"),
    (State::Completed, "completed"),
    (State::Failed, "failed permanently: its attempts are used up, or its worker gave up"),
    (State::Cancelled, "cancelled by a person, by a filter, or because of a dependency"),
];

/// A time: UTC in the HTML, local time by the script.
pub(super) fn time(at_us: i64) -> Markup {
    moment(&timestamp(at_us))
}

/// The same for a time in ISO 8601.
pub(super) fn moment(utc: &str) -> Markup {
    html! { time datetime=(utc) { (plain(utc)) } }
}

fn plain(utc: &str) -> String {
    utc.replace('T', " ").replace('Z', " UTC")
}

/// A time, shown by its distance.
fn distance(at_us: i64, text: &str) -> Markup {
    let utc = timestamp(at_us);
    html! { time datetime=(utc) data-ago title=(plain(&utc)) { (text) } }
}

/// How long ago a time was, or how far ahead it is.
pub(super) fn ago(at_us: i64, now_us: i64) -> Markup {
    let text = match now_us.saturating_sub(at_us) {
        past if past >= 0 => format!("{} ago", duration(past.unsigned_abs())),
        ahead => format!("in {}", duration(ahead.unsigned_abs())),
    };
    distance(at_us, &text)
}

/// How long something has lasted since a time.
pub(super) fn since(at_us: i64, now_us: i64) -> Markup {
    distance(at_us, &duration(now_us.saturating_sub(at_us).max(0).unsigned_abs()))
}

/// A duration with two units at most: `840 ms`, `12 s`, `3 min 5 s`, `2 h`, `4 d 3 h`.
pub(super) fn duration(us: u64) -> String {
    let ms = us / 1_000;
    let s = ms / 1_000;
    let two = |large: u64, of: &str, small: u64, unit: &str| match small {
        0 => format!("{large} {of}"),
        _ => format!("{large} {of} {small} {unit}"),
    };
    match s {
        0 => format!("{ms} ms"),
        1..10 => format!("{}.{} s", s, ms % 1_000 / 100),
        10..60 => format!("{s} s"),
        60..3_600 => two(s / 60, "min", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s % 3_600 / 60, "min"),
        _ => two(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

/// A whole number with separated thousands.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count that may be only a lower bound.
pub(super) fn count(count: usize, more: bool) -> String {
    format!("{}{}", number(count as u64), if more { "+" } else { "" })
}

/// A number of things: `1 job`, `3 jobs`.
pub(super) fn count_of(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", number(count as u64))
}

/// A number of jobs: `1 job`, `3 jobs`.
pub(super) fn jobs_of(count: u64) -> String {
    count_of(usize::try_from(count).unwrap_or(usize::MAX), "job")
}

/// A cell that may have no value.
pub(super) fn or_dash(text: Option<String>) -> Markup {
    html! { @match text { Some(text) => (text), None => span.quiet { "–" } } }
}

/// A text that someone else has chosen: its direction does not leave it, and the rest of a long one is unfolded.
pub(super) fn text(text: &str) -> Markup {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => html! { bdi.text { (text) } },
        Some((end, _)) => html! {
            details.long {
                summary { bdi.text { (text[..end]) "…" } }
                bdi.text { (text) }
            }
        },
    }
}

/// The same in one line of a table. The page of the job shows all of it.
pub(super) fn clipped(text: &str) -> Markup {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => html! { bdi.line title=(text) { (text) } },
        Some((end, _)) => html! { bdi.line title={ (text[..end]) "…" } { (text[..end]) "…" } },
    }
}

/// A word of the API.
pub(super) fn word(word: impl Serialize) -> String {
    serde_json::to_value(word).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The state of jobs that are counted like this. A parked job is delayed, and a job that waits for a lock is counted as running.
pub(super) fn state_of(kind: Kind) -> &'static str {
    if kind == Kind::Parked { Kind::Delayed.name() } else { kind.name() }
}

/// The type of a job, with its task.
pub(super) fn job_kind(job_type: &str, task: Option<&str>) -> Markup {
    html! { bdi { (job_type) } @if let Some(task) = task { span.task { " / " bdi { (task) } } } }
}

/// A size: `840 bytes`, `12.3 kB`, `4.0 MB`.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{} bytes", number(bytes)),
        10_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// A job's state.
pub(super) fn state(state: State) -> Markup {
    let name = state.as_str();
    html! { span class={ "state " (name) } { (name) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        for (us, text) in [
            (0, "0 ms"),
            (840_000, "840 ms"),
            (1_250_000, "1.2 s"),
            (59_900_000, "59 s"),
            (60_000_000, "1 min"),
            (185_000_000, "3 min 5 s"),
            (7_200_000_000, "2 h"),
            (97_200_000_000, "1 d 3 h"),
        ] {
            assert_eq!(duration(us), text);
        }
    }

    #[test]
    fn thousands_are_separated() {
        for (of, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(number(of), text);
        }
        assert_eq!(count(10_000, true), "10,000+");
    }

    #[test]
    fn sizes_have_the_unit_that_is_read_best() {
        for (bytes, text) in [(9_999, "9,999 bytes"), (12_345, "12.3 kB"), (4_000_000, "4.0 MB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn texts_are_escaped_isolated_and_folded() {
        assert_eq!(
            text("<script>alert(1)</script>").into_string(),
            "<bdi class=\"text\">&lt;script&gt;alert(1)&lt;/script&gt;</bdi>"
        );
        let long = text(&"x".repeat(10_000)).into_string();
        assert!(long.starts_with("<details") && long.contains(&"x".repeat(10_000)), "{long}");
    }
}
