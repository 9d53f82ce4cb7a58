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
    serde_json::from_slice(value).map_err(|error| corrupt(what, error))
}
