//! The row [`Keyspace::format`](crate::Keyspace::format): what the store holds, and who may use it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::keyspace::FORMAT_VERSION;

/// What a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// The keyspace in this version.
    Version(u32),
    /// A partial copy of another store: no server may use it before the copy is complete and verified.
    Copying(Copying),
    /// A format that this release does not know, as text for display.
    Unknown(String),
}

/// A copy in progress: the row's value is `{"copying": …}` until the copy is complete and verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// The UUID of the server whose store is copied.
    pub of: String,
    /// Where it is copied from, as it may be shown.
    pub from: String,
    /// The run that writes the copy; another run takes over by writing its own id here.
    pub run: String,
}

#[derive(Serialize, Deserialize)]
struct Marker {
    copying: Copying,
}

/// Longest part of an unknown value that is displayed, in bytes.
const MAX_SHOWN_BYTES: usize = 100;

impl Format {
    /// Reads the row's value.
    pub fn read(value: &[u8]) -> Format {
        if let Ok(version) = serde_json::from_slice(value) {
            return Format::Version(version);
        }
        if let Ok(Marker { copying }) = serde_json::from_slice(value) {
            return Format::Copying(copying);
        }
        let mut shown = String::from_utf8_lossy(value).replace(char::is_control, " ");
        shown.truncate(shown.floor_char_boundary(MAX_SHOWN_BYTES));
        Format::Unknown(shown)
    }

    /// The value for a store that this release writes.
    pub fn current() -> Bytes {
        Bytes::from(FORMAT_VERSION.to_string())
    }
}

impl Copying {
    /// The row's value.
    pub fn to_value(&self) -> Bytes {
        let marker = Marker { copying: self.clone() };
        Bytes::from(serde_json::to_vec(&marker).expect("three strings are JSON"))
    }
}

#[cfg(test)]
mod tests {
    //! Values are read as they were written, and no other value is read as a version.

    use super::*;

    #[test]
    fn a_format_is_read_as_it_is_written() {
        assert_eq!(Format::read(&Format::current()), Format::Version(FORMAT_VERSION));
        let copying = Copying { of: "u".into(), from: "embedded:a".into(), run: "1".into() };
        assert_eq!(Format::read(&copying.to_value()), Format::Copying(copying));
        assert_eq!(Format::read(b"\"2\""), Format::Unknown("\"2\"".into()));
        assert_eq!(Format::read(b""), Format::Unknown(String::new()));
    }
}
