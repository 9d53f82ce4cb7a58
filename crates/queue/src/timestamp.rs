//! Times as text.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A time in CouchDB's format: `2026-11-21T09:10:58Z`.
pub fn timestamp(at_us: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(at_us.div_euclid(1_000_000))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}
