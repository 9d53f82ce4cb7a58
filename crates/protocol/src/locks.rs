//! The locks that a job declares.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::locking::BIG_LOCK;

/// The locks that a job declares, by the name of the level. The job locks nothing at a level that is left out; `{}` locks nothing. At most 8 kB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({ "instance": { "exclusive": ["web1"] }, "node": { "shared": "unknown" } }))]
pub struct Locks {
    /// The lock that excludes every other job that locks anything.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub big_lock: bool,
    /// The locks at each level.
    #[serde(flatten)]
    pub levels: BTreeMap<String, LocksAtLevel>,
}

/// The locks of a job at one level. A name cannot be in both modes: exclusive is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LocksAtLevel {
    /// Resources that other jobs may lock shared at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<LockNames>,
    /// Resources that no other job may lock at the same time. Names have no units here: an exclusive lock takes all units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<LockNames>,
}

/// The resources of a level that a job locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum LockNames {
    /// All resources of the level, or resources that are unknown before the job runs.
    Word(LockWord),
    /// These resources, with one unit of each: at least one name, of at most 128 bytes each, without control characters.
    Names(Vec<String>),
    /// These resources, with a number of units of each: 1 to 1,000,000, and at most the resource's capacity.
    Units(BTreeMap<String, u32>),
}

/// A word instead of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LockWord {
    /// All resources of the level, including future ones.
    All,
    /// At least one resource. The job finds out which when it runs, and requests the lock then.
    Unknown,
}

// Deserialized by hand, so that an error names the exact member. serde reads `flatten` and `untagged` from a buffer in which positions are lost.

impl<'de> Deserialize<'de> for Locks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Locks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with what is locked at each level")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Locks, A::Error> {
                let mut locks = Locks::default();
                let mut big_lock = None;
                while let Some(level) = map.next_key::<String>()? {
                    if level == BIG_LOCK {
                        if big_lock.replace(map.next_value()?).is_some() {
                            return Err(A::Error::duplicate_field(BIG_LOCK));
                        }
                        continue;
                    }
                    let crate::Object(at) = map.next_value()?;
                    if locks.levels.insert(level, at).is_some() {
                        return Err(A::Error::custom("a level is there twice: make one object of both"));
                    }
                }
                locks.big_lock = big_lock.unwrap_or_default();
                Ok(locks)
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

impl<'de> Deserialize<'de> for LockNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = LockNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"all\", \"unknown\", a list of names, or an object of names and units (of shared locks)",
                )
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<LockNames, E> {
                match word {
                    "all" => Ok(LockNames::Word(LockWord::All)),
                    "unknown" => Ok(LockNames::Word(LockWord::Unknown)),
                    _ => Err(E::custom(
                        "must be \"all\" or \"unknown\", or a list, if it is a name: [\"web1\"]",
                    )),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<LockNames, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(LockNames::Names)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LockNames, A::Error> {
                let mut units = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    let crate::number::Whole(number) = map.next_value()?;
                    if units.insert(name, number).is_some() {
                        return Err(A::Error::custom("a name is there twice: write it once"));
                    }
                }
                Ok(LockNames::Units(units))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_and_written_alike() {
        for json in [
            r#"{}"#,
            r#"{"big_lock":true}"#,
            r#"{"instance":{"exclusive":["a","b"]},"node":{"shared":"unknown","exclusive":"all"}}"#,
            r#"{"node":{"shared":{"a":2,"b":1}}}"#,
        ] {
            let locks: Locks = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&locks).unwrap(), json);
        }
    }

    #[test]
    fn what_they_cannot_be_is_refused() {
        for (json, said) in [
            ("[]", "expected an object with what is locked"),
            (r#"{"node":[]}"#, "expected an object"),
            (r#"{"node":{"shered":"all"}}"#, "unknown field `shered`, expected `shared` or `exclusive`"),
            (r#"{"node":{"shared":"n1"}}"#, "or a list, if it is a name"),
            (r#"{"node":{"shared":3}}"#, "expected \"all\", \"unknown\", a list of names"),
            (r#"{"node":{"shared":[3]}}"#, "expected a string"),
            (r#"{"node":{"shared":{"a":-1}}}"#, "whole number within its bounds"),
            (r#"{"node":{"shared":{"a":1.5}}}"#, "whole number within its bounds"),
            (r#"{"node":{"shared":{"a":1,"a":2}}}"#, "twice"),
            (r#"{"node":{},"node":{}}"#, "twice"),
            (r#"{"big_lock":1}"#, "expected a boolean"),
            (r#"{"big_lock":true,"big_lock":true}"#, "duplicate field"),
        ] {
            let error = serde_json::from_str::<Locks>(json).unwrap_err().to_string();
            assert!(error.contains(said), "{json}: {error}");
        }
    }
}
