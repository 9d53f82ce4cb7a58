//! Values of rows as JSON.

use std::cell::RefCell;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, corrupt};

thread_local! {
    /// Where values are encoded, so that each of them is allocated once and with its exact length.
    static ENCODED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The value of a row.
pub(crate) fn encode<T: Serialize>(row: &T) -> Bytes {
    ENCODED.with_borrow_mut(|bytes| {
        bytes.clear();
        serde_json::to_writer(&mut *bytes, row).expect("rows are plain data with string keys");
        Bytes::copy_from_slice(bytes)
    })
}

/// The content of a value; `what` names its row in an error.
pub(crate) fn decode<T: DeserializeOwned>(what: &str, value: &[u8]) -> Result<T> {
    // Checked at once, which is faster than text by text.
    let text = std::str::from_utf8(value).map_err(|error| corrupt(what, error))?;
    serde_json::from_str(text).map_err(|error| corrupt(what, error))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The reverse of [`hex`].
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn hexadecimal_digits_round_trip() {
        assert_eq!(unhex(&hex(b"\x00\xffa")).unwrap(), b"\x00\xffa");
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("+1"), None);
    }
}
