//! What a job locks.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// What the lock before all levels is called.
const BIG_LOCK: &str = "big_lock";

/// What a job locks while it runs: for each level, by its name, what it locks there. A level that is left out is not locked; `{}`
/// locks nothing. At most 8 kB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({ "instance": { "exclusive": ["web1"] }, "node": { "shared": "unknown" } }))]
pub struct Locks {
    /// The one lock that goes with no other: whoever holds it is alone among the jobs that lock anything.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub big_lock: bool,
    /// What is locked at each level.
    #[serde(flatten)]
    pub levels: BTreeMap<String, LocksAtLevel>,
}

/// What a job locks at one level. The same name cannot be in both: exclusive is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LocksAtLevel {
    /// What others may lock shared at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<LockNames>,
    /// What nobody else may lock at the same time. Here names have no units: all of them are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<LockNames>,
}

/// Which resources of a level are locked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum LockNames {
    /// All that there are, or nobody knows which before the job runs.
    Word(LockWord),
    /// These, one unit of each: names of at most 128 bytes without control characters, at least one.
    Names(Vec<String>),
    /// These, and how many units of each: 1 to 1,000,000, and no more than the resource has.
    Units(BTreeMap<String, u32>),
}

/// A word in place of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LockWord {
    /// All resources that there are and will be.
    All,
    /// At least one; which of them the job finds out when it runs, and locks then.
    Unknown,
}

// Read by hand, so that the place of a mistake is known to its last member: what serde makes of `flatten` and `untagged` is read
// twice, and the second time without places.

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

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LockNames, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(LockNames::Names(names))
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
