//! Documents that come with the changes feed, so that no further request is needed for them.
//!
//! `include_docs=true` costs CouchDB far less than the same documents in `_bulk_get` (100,000 of 500 bytes: 8 CPU
//! seconds with the feed, 11 for both). But it returns no revision history, and it reads documents before it is known
//! whether the target lacks them. A document is therefore used only if it needs no history and is not deleted. It needs
//! none if its single leaf is of the first generation, so that `_rev` is the complete history. [`Demand`] requests
//! documents only while nearly all of them are used. All others take the ordinary way.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde::Deserialize;
use serde_json::value::RawValue;
use turnwise_outbound::WaitingBytes;

use crate::attachments::Head;
use crate::revs_diff::Missing;

/// A batch is full with this many bytes of documents. A batch in flight holds them twice for a moment.
const FULL_BYTES: usize = 2 * 1024 * 1024;
/// Batches with fewer revisions are too small to predict later ones.
const TELLING: u64 = 100;
/// The feed includes documents once at least this many of a thousand would have been used.
const COME_FROM: u32 = 900;
/// The feed omits documents again once fewer than this many of a thousand are used. Reading the others then costs the
/// source more than it saves.
const COME_UNTIL: u32 = 500;

/// The documents of a batch of changes.
#[derive(Debug)]
pub(crate) struct FeedDocs {
    text: Vec<u8>,
    docs: Vec<FeedDoc>,
    /// Counts their bytes.
    waiting: WaitingBytes,
}

#[derive(Debug)]
struct FeedDoc {
    id: String,
    rev: String,
    text: Range<usize>,
    has_stubs: bool,
}

/// The body of a document in the batch.
pub(crate) struct DocBody<'a> {
    pub doc: &'a [u8],
    /// The document has attachments, which must still be read.
    pub stubs: Option<Head<'a>>,
}

#[derive(Deserialize)]
struct Names<'a> {
    #[serde(borrow)]
    _id: Cow<'a, str>,
    #[serde(borrow)]
    _rev: Cow<'a, str>,
    #[serde(borrow)]
    _attachments: Option<&'a RawValue>,
    #[serde(default)]
    _deleted: bool,
}

impl FeedDocs {
    pub fn new(waiting: WaitingBytes) -> Self {
        Self { text: Vec::new(), docs: Vec::new(), waiting }
    }

    /// Keeps `doc`, whose row has the single leaf `leaf`, if the document needs no history.
    pub fn keep(&mut self, leaf: &RawValue, doc: &RawValue) {
        let Ok(leaf) = serde_json::from_str::<Cow<'_, str>>(leaf.get()) else { return };
        if !leaf.starts_with("1-") {
            return;
        }
        // `null`, if the document has been deleted meanwhile.
        let Ok(names) = serde_json::from_str::<Names<'_>>(doc.get()) else { return };
        if names._rev != leaf || names._deleted {
            return;
        }
        let start = self.text.len();
        self.text.extend_from_slice(doc.get().as_bytes());
        self.waiting.set(self.text.len());
        self.docs.push(FeedDoc {
            id: names._id.into_owned(),
            rev: leaf.into_owned(),
            text: start..self.text.len(),
            has_stubs: names._attachments.is_some_and(|attachments| attachments.get().contains(':')),
        });
    }

    /// Without documents, for the next batch.
    pub fn next(&self) -> Self {
        Self::new(self.waiting.another())
    }

    /// Whether the batch is full. The limit shrinks while the process holds many documents.
    pub fn is_full(&self) -> bool {
        self.text.len() >= self.waiting.batch_bytes(FULL_BYTES)
    }

    pub fn is_empty(&self) -> bool {
        self.docs.is_empty()
    }

    /// An index of the documents by id.
    pub fn index(&self) -> Index<'_> {
        let by_id = self.docs.iter().map(|doc| (doc.id.as_str(), doc)).collect();
        Index { text: &self.text, by_id }
    }
}

pub(crate) struct Index<'a> {
    text: &'a [u8],
    by_id: HashMap<&'a str, &'a FeedDoc>,
}

impl<'a> Index<'a> {
    /// The document, if it came and is the only revision that `missing` names.
    pub fn find(&self, missing: &Missing) -> Option<DocBody<'a>> {
        let doc = *self.by_id.get(missing.id.as_str())?;
        if missing.revs.len() != 1 || missing.revs[0] != doc.rev {
            return None;
        }
        let text = &self.text[doc.text.clone()];
        let stubs = if doc.has_stubs { Some(serde_json::from_slice(text).ok()?) } else { None };
        Some(DocBody { doc: text, stubs })
    }
}

/// Whether the feed should include documents.
#[derive(Debug)]
pub(crate) struct Demand {
    wanted: AtomicBool,
    /// The number of used or usable revisions of a recent thousand.
    share: AtomicU32,
}

impl Demand {
    /// At the start, the only evidence is whether the target is empty.
    pub fn new(target_is_empty: bool) -> Self {
        let share = if target_is_empty { 1000 } else { 0 };
        Self { wanted: AtomicBool::new(target_is_empty), share: AtomicU32::new(share) }
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// A document is too large to come with the feed.
    pub fn refuse(&self) {
        self.wanted.store(false, Ordering::Relaxed);
        self.share.store(0, Ordering::Relaxed);
    }

    /// Of the `revisions` of a batch, `used` came with the feed and were written, or could have been.
    pub fn learn(&self, revisions: u64, used: u64) {
        if revisions < TELLING {
            return;
        }
        let share = u32::try_from(used.min(revisions) * 1000 / revisions).expect("at most 1000");
        let share = self.share.load(Ordering::Relaxed).midpoint(share);
        self.share.store(share, Ordering::Relaxed);
        let limit = if self.is_wanted() { COME_UNTIL } else { COME_FROM };
        self.wanted.store(share >= limit, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).unwrap()
    }

    fn missing(id: &str, revs: &[&str]) -> Missing {
        let revs = revs.iter().map(|&rev| rev.to_owned()).collect();
        Missing { id: id.to_owned(), revs, possible_ancestors: Default::default() }
    }

    #[test]
    fn only_documents_that_need_no_history_are_kept() {
        let mut docs = FeedDocs::new(WaitingBytes::default());
        let mut keep = |leaf: &str, doc: Value| docs.keep(&raw(&json!(leaf)), &raw(&doc));
        keep("1-a", json!({ "_id": "plain", "_rev": "1-a", "x": { "_deleted": true } }));
        keep("1-a", json!({ "_id": "att\"s", "_rev": "1-a", "_attachments": { "f": { "stub": true } } }));
        keep("2-a", json!({ "_id": "second", "_rev": "2-a" }));
        keep("1-a", json!({ "_id": "gone", "_rev": "1-a", "_deleted": true }));
        keep("1-a", json!({ "_id": "changed", "_rev": "1-b" }));
        keep("1-a", Value::Null);
        let index = docs.index();
        let found = |id: &str, revs: &[&str]| index.find(&missing(id, revs));
        assert_eq!(
            found("plain", &["1-a"]).unwrap().doc,
            br#"{"_id":"plain","_rev":"1-a","x":{"_deleted":true}}"#
        );
        assert!(found("plain", &["1-a"]).unwrap().stubs.is_none());
        assert!(found("att\"s", &["1-a"]).unwrap().stubs.unwrap().attachments.is_some());
        assert!(found("plain", &["1-b"]).is_none());
        assert!(found("plain", &["1-a", "1-b"]).is_none());
        for id in ["second", "gone", "changed"] {
            assert!(found(id, &["1-a"]).is_none(), "{id}");
        }
    }

    #[test]
    fn documents_come_only_while_they_are_used() {
        let demand = Demand::new(false);
        let learn = |used| {
            demand.learn(1000, used);
            demand.is_wanted()
        };
        assert_eq!([1000, 1000, 1000, 1000].map(learn), [false, false, false, true]);
        assert_eq!([600, 600, 300, 300].map(learn), [true, true, false, false]);
        assert_eq!([950, 950, 950, 950].map(learn), [false, false, false, true]);
        demand.learn(99, 0);
        assert!(demand.is_wanted());
        assert!(Demand::new(true).is_wanted());
    }
}
