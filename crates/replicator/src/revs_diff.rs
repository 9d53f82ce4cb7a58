//! Which of a batch's revisions the target does not have: `_revs_diff`.

use std::fmt;
use std::marker::PhantomData;
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
    let Members(all) = serde_json::from_slice(revs).ok()?;
    let missing = |(id, revs)| Missing { id, revs, possible_ancestors: Arc::default() };
    Some(all.into_iter().map(missing).collect())
}

/// A response of `_revs_diff`, in its order.
#[derive(Debug, Deserialize)]
#[serde(from = "Members<Entry>")]
struct MissingList(Vec<Missing>);

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    missing: Vec<String>,
    #[serde(default)]
    possible_ancestors: Vec<String>,
}

impl From<Members<Entry>> for MissingList {
    fn from(Members(entries): Members<Entry>) -> Self {
        let missing = |(id, Entry { missing: revs, possible_ancestors })| Missing {
            id,
            revs,
            possible_ancestors: possible_ancestors.into(),
        };
        MissingList(entries.into_iter().map(missing).filter(|missing| !missing.revs.is_empty()).collect())
    }
}

/// The members of a JSON object, in its order.
struct Members<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
            type Value = Members<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of document ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<T>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Each(PhantomData))
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
