//! Values of options, as people write and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;

/// Parses one of these words of the API. On the command line they have dashes instead of underscores.
pub(crate) fn words<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    possible: impl IntoIterator<Item = impl Into<PossibleValue>>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(possible).try_map(|word| serde_json::from_value(word.replace('-', "_").into()))
}

/// Parses `90`, `90s`, `1.5m`, `2h`, `3d` or `500ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a duration, for example 500ms, 90s, 15m, 2h or 3d".to_owned();
    turnwise_fleet::parse_duration(text).ok_or_else(wrong)
}

/// The current time, in µs since the Unix epoch.
pub(crate) fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

/// How long ago a time was, as `12s`, `3m`, `5h`, `2d`; with `in` before it for a time in the future.
pub(crate) fn ago(at_us: i64) -> String {
    let passed_us = now_us().saturating_sub(at_us);
    // Less than a second in the future is due to clocks that differ.
    match passed_us < -1_000_000 {
        true => format!("in {}", rough(passed_us.unsigned_abs())),
        false => rough(passed_us.max(0).unsigned_abs()),
    }
}

fn rough(us: u64) -> String {
    match us / 1_000_000 {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_with_their_units() {
        for (text, ms) in [
            ("500ms", 500),
            ("2", 2_000),
            ("2s", 2_000),
            ("1.5m", 90_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1w", "1 s", "1..2s", "tomorrow", "1e300d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_of_time_are_shown_roughly() {
        let shown: Vec<String> =
            [0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(|s| rough(s * 1_000_000)).into();
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
        assert!(ago(i64::MAX).starts_with("in "));
    }
}
