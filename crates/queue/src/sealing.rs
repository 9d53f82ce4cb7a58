//! Which rows are encrypted at rest, where a server has keys for that ([`turnwise_store::Sealing`]).

use turnwise_store::{Seal, Sealing};

use crate::Keyspace;

/// The families of rows that may hold secrets: options and output of jobs, conditions on options, documents, and
/// identities.
pub const SEALED_FAMILIES: [&str; 16] = [
    "jobs",
    "options",
    "output",
    "active",
    "bulk",
    "bodies",
    "local",
    "users",
    "tokens",
    "session_key",
    "unique_secret",
    "events",
    "webhooks",
    "schedule_options",
    "schedule_ends",
    "group_callbacks",
];

/// Whether the row with this key is sealed.
fn seals(key: &[u8]) -> bool {
    let family = Keyspace::default().family(key);
    family.is_some_and(|family| {
        // Rows of a log are sealed behind their stamp, and exist for a moment.
        SEALED_FAMILIES.contains(&family.as_ref()) || matches!(family.as_ref(), "sealed" | "event_in")
    })
}

/// How a store is opened: with the keys in this text, or without any.
///
/// # Errors
/// The text has no key, or a line that is none. The error does not repeat the line.
pub fn seal(keys: Option<&str>) -> Result<Seal, String> {
    let sealing = keys.map(|text| Sealing::parse(text, seals)).transpose()?;
    Ok(Seal { sealing, mark: Keyspace::default().sealed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_secrets_are_sealed_and_indices_are_not() {
        let keys = Keyspace::default();
        for sealed in [
            keys.job("t", "a"),
            keys.options_piece("t", "a", 0),
            keys.output_row("t", "a", "log", 0),
            keys.active_entry("t", "w", "a"),
            keys.bulk("a"),
            keys.body_piece("db", "a", 0),
            keys.user("jan"),
            keys.token("a"),
            keys.session_key(),
            keys.unique_secret(),
            keys.events_until(7),
            keys.event_in(),
            keys.webhook("a"),
            keys.webhook_progress("a"),
            keys.schedule_options_piece("a", 0),
            keys.schedule_ends("a"),
            keys.group_callback("t", "a", "complete"),
            keys.sealed(),
        ] {
            assert!(seals(&sealed), "{sealed:?}");
        }
        for plain in [keys.format(), keys.delayed_entry("t", 1, "a"), keys.wake("t"), keys.health("t", "w")] {
            assert!(!seals(&plain), "{plain:?}");
        }
        assert!(!seals(b"") && !seals(b"\xff"));
    }
}
