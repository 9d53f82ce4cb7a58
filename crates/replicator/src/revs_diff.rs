//! Which of a batch's revisions the target does not have: `_revs_diff`.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use turnwise_outbound::{Error, Peer, Request};

/// More than any response to a batch of changes, because batches are limited to half a megabyte.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// A document of which the target lacks revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub id: String,
    pub revs: Vec<String>,
    /// Revisions on the target that may be ancestors of the missing ones. Attachments of these need not be sent again.
    ///
    /// Shared: a document with a thousand conflicts may have as many ancestors for each of its revisions.
    pub possible_ancestors: Arc<[String]>,
}

/// Asks the target about `revs`, the body `{"id":["1-a"],…}`.
pub(crate) async fn missing(target: &Peer, revs: impl Into<Bytes>) -> Result<Vec<Missing>, Error> {
    let request = Request::post("_revs_diff", revs);
    let MissingList(missing) = target.json(&request, ANSWER_BYTES).await?;
    Ok(missing)
}

/// All of `revs`, a body as for [`missing`]: what an empty target lacks. `None` if the body cannot be parsed.
pub(crate) fn all(revs: &[u8]) -> Option<Vec<Missing>> {
    let AllOf(all) = serde_json::from_slice(revs).ok()?;
    Some(all)
}

/// A response of `_revs_diff`, in its order.
#[derive(Debug)]
struct MissingList(Vec<Missing>);

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    missing: Vec<String>,
    #[serde(default)]
    possible_ancestors: Vec<String>,
}

impl<'de> Deserialize<'de> for MissingList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = MissingList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of document ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MissingList, A::Error> {
                let mut list = Vec::new();
                while let Some((id, entry)) = map.next_entry::<String, Entry>()? {
                    if !entry.missing.is_empty() {
                        list.push(Missing {
                            id,
                            revs: entry.missing,
                            possible_ancestors: entry.possible_ancestors.into(),
                        });
                    }
                }
                Ok(MissingList(list))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// A request of `_revs_diff`, in its order.
struct AllOf(Vec<Missing>);

impl<'de> Deserialize<'de> for AllOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = AllOf;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of document ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AllOf, A::Error> {
                let mut list = Vec::new();
                while let Some((id, revs)) = map.next_entry()? {
                    list.push(Missing { id, revs, possible_ancestors: Default::default() });
                }
                Ok(AllOf(list))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_answer_is_read_in_its_order() {
        let answer = r#"{"b":{"missing":["2-x"],"possible_ancestors":["1-x"]},"a":{"missing":[]},"c":{"missing":["1-c","1-d"]}}"#;
        let MissingList(list) = serde_json::from_str(answer).unwrap();
        assert_eq!(list.iter().map(|missing| missing.id.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(*list[0].possible_ancestors, ["1-x"]);
        assert_eq!(list[1].revs, ["1-c", "1-d"]);
    }

    #[test]
    fn a_target_that_has_nothing_lacks_all() {
        let all = all(br#"{"b":["2-x","2-y"],"a":["1-a"]}"#).unwrap();
        assert_eq!(all.iter().map(|missing| missing.id.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(all[0].revs, ["2-x", "2-y"]);
        assert!(super::all(b"{\"a\":[1]}").is_none());
    }

    #[test]
    fn an_array_is_no_answer() {
        assert!(serde_json::from_str::<MissingList>("[]").is_err());
    }
}
