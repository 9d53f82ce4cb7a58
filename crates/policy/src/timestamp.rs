//! Times as text, in the form of RFC 3339: those of the API, of conditions, and of CouchDB's documents.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A time, given in µs since the epoch, in CouchDB's format: `2026-11-21T09:10:58Z`.
pub fn timestamp(at_us: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(at_us.div_euclid(1_000_000))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}

/// The time that a text states, in µs since the epoch. `None` if it states no time.
pub fn parse_timestamp(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos() / 1_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_states_its_time_in_whole_seconds() {
        assert_eq!(timestamp(1_795_252_258_999_999), "2026-11-21T09:10:58Z");
        assert_eq!(timestamp(-1), "1969-12-31T23:59:59Z");
        assert_eq!(timestamp(i64::MAX), "1970-01-01T00:00:00Z", "no year of four digits");
        assert_eq!(parse_timestamp("2026-11-21T09:10:58Z"), Some(1_795_252_258_000_000));
        assert_eq!(parse_timestamp("2026-11-21T10:10:58.5+01:00"), Some(1_795_252_258_500_000));
        assert_eq!(parse_timestamp("2026-11-21"), None);
    }
}
