//! Texts of peers, as errors show them.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::secret::CUT;

/// The most bytes of a peer's text that an error holds.
pub const MAX_REASON_BYTES: usize = 500;

/// The first [`MAX_REASON_BYTES`] of `text`, on one line, without characters that control a terminal. The caller must
/// have removed all secrets: a cut secret cannot be recognized.
pub fn shorten(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.contains(is_control) {
        line = line
            .chars()
            .map(|char| if is_control(char) { char::REPLACEMENT_CHARACTER } else { char })
            .collect();
    }
    if line.len() > MAX_REASON_BYTES {
        line.truncate(line.floor_char_boundary(MAX_REASON_BYTES));
        line.push(CUT);
    }
    line
}

/// Whether a character controls a terminal line and is not displayed in it: control characters, and those that change
/// the text direction.
fn is_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A peer's text: a string as it is, and any other value as its JSON, because functions of a design document may throw any value as
/// their reason. Empty for `null`. It is neither short nor free of secrets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PeerText(pub String);

impl<'de> Deserialize<'de> for PeerText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| match value {
            Value::Null => Self::default(),
            Value::String(text) => Self(text),
            other => Self(other.to_string()),
        })
    }
}

/// The beginning of a body, for the end of an error's text. It is much longer than the final text, so that secrets are found before
/// the text is cut to its final length. No quotes follow, so that a part of a secret at the end is recognized.
pub fn beginning(body: &[u8]) -> String {
    const MAX_EXCERPT_BYTES: usize = 4 << 10;
    let mut text = String::from_utf8_lossy(&body[..body.len().min(MAX_EXCERPT_BYTES)]).into_owned();
    if body.len() > MAX_EXCERPT_BYTES {
        // Removes a character that was cut in half.
        text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        text.push(CUT);
    }
    text
}
