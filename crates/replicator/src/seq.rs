//! An update sequence: opaque, compared for equality only.
//!
//! CouchDB returns strings (`"42-g1AAA…"`), PouchDB and CouchDB 1.x numbers, BigCouch arrays. A client may only store a
//! sequence and send it back, so a [`Seq`] is the JSON text as received.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// A source's update sequence.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Seq(Arc<str>);

impl Seq {
    /// The beginning of every database.
    pub fn zero() -> Self {
        Self(Arc::from("0"))
    }

    /// CouchDB's placeholder for a checkpoint that does not exist yet.
    pub(crate) fn none() -> Self {
        Self(Arc::from("\"0\""))
    }

    /// From JSON text that is known to be valid.
    pub(crate) fn from_raw(raw: &RawValue) -> Self {
        Self(Arc::from(raw.get()))
    }

    /// The value for the `since` parameter of `_changes`: a string without its quotes, anything else as JSON.
    pub fn to_query(&self) -> String {
        match serde_json::from_str::<Value>(&self.0) {
            Ok(Value::String(text)) => text,
            _ => self.0.to_string(),
        }
    }

    /// The number of updates in the sequence, if it states one: the number itself, or the digits before the `-`.
    pub fn number(&self) -> Option<u64> {
        let text = self.0.trim_start_matches(['"', '[']);
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    }

    /// The number, if the sequence is a plain number, as on a server that is not a cluster.
    pub fn plain(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// Whether it is another position in the feed. CouchDB writes the same position in different ways, so only the
    /// numbers are compared, where both have one.
    pub fn is_other_than(&self, other: &Self) -> bool {
        match (self.number(), other.number()) {
            (Some(one), Some(two)) => one != two,
            _ => self != other,
        }
    }

    /// Whether it is the beginning of the database.
    pub fn is_zero(&self) -> bool {
        &*self.0 == "0" || &*self.0 == "\"0\""
    }
}

impl Default for Seq {
    fn default() -> Self {
        Self::zero()
    }
}

impl From<&Value> for Seq {
    fn from(value: &Value) -> Self {
        Self(Arc::from(value.to_string()))
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The JSON text.
impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Seq {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Seq {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Parses a value and not a `RawValue`, so that documents that were parsed into a `Value` can be read, too.
        Value::deserialize(deserializer).map(|value| Self::from(&value))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_sequence_round_trips() {
        for json in ["5", "\"12-g1AAAA\"", "[3,\"abc\"]"] {
            let seq: Seq = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&seq).unwrap(), json);
        }
    }

    #[test]
    fn a_string_goes_into_a_query_without_quotes() {
        let query = |json: &str| serde_json::from_str::<Seq>(json).unwrap().to_query();
        assert_eq!(query("\"12-g1\""), "12-g1");
        assert_eq!(query("12"), "12");
        assert_eq!(query("[3,\"x\"]"), "[3,\"x\"]");
    }

    #[test]
    fn its_number_is_what_stands_first() {
        let number = |json: &str| serde_json::from_str::<Seq>(json).unwrap().number();
        assert_eq!(number("\"12-g1\""), Some(12));
        assert_eq!(number("7"), Some(7));
        assert_eq!(number("[9,\"x\"]"), Some(9));
        assert_eq!(number("\"now\""), None);
    }
}
