//! What is still due of the revisions that `_bulk_get` was asked for.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::rows::parse;
use crate::revs_diff::Missing;

/// What the responses to one batch of `_bulk_get` have not contained so far.
///
/// Revisions are matched by name and not counted. After a response that broke off, the next one may begin with the same
/// revisions again. Sources also differ in the number of results per document: CouchDB returns one for each requested
/// revision, PouchDB a single one.
pub(super) struct Due<'a> {
    wanted: &'a [Missing],
    documents: HashMap<&'a str, DueDocument<'a>>,
}

pub(super) struct DueDocument<'a> {
    pub missing: &'a Missing,
    /// Number of requested revisions.
    asked: usize,
    /// Requested revisions that have not come.
    left: HashSet<&'a str>,
    /// The source has reported a revision as missing.
    pub absent: bool,
    /// Whether any of its revisions has come.
    has_come_any: bool,
}

impl<'a> Due<'a> {
    pub fn new(wanted: &'a [Missing]) -> Self {
        let mut documents = HashMap::with_capacity(wanted.len());
        for missing in wanted {
            // A document that changed while the feed was read may appear twice.
            let document = documents.entry(missing.id.as_str()).or_insert_with(|| DueDocument {
                missing,
                asked: 0,
                left: HashSet::new(),
                absent: false,
                has_come_any: false,
            });
            document.asked += missing.revs.len();
            document.left.extend(missing.revs.iter().map(String::as_str));
        }
        Self { wanted, documents }
    }

    /// The document with this id, if it was asked for.
    pub fn document(&mut self, id: &str) -> Option<&mut DueDocument<'a>> {
        self.documents.get_mut(id)
    }

    /// Whether any document has come.
    pub fn has_come_any(&self) -> bool {
        self.documents.values().any(|document| document.has_come_any)
    }

    /// The ids and revisions that `_bulk_get` must still be asked for.
    pub fn left(&self) -> Vec<(&'a str, &'a str)> {
        let document = |missing: &'a Missing| {
            let due = &self.documents[missing.id.as_str()];
            let revs = missing.revs.iter().map(String::as_str);
            revs.filter(|rev| !due.absent && due.left.contains(rev)).map(|rev| (missing.id.as_str(), rev))
        };
        self.wanted.iter().flat_map(document).collect()
    }

    /// The revisions of `missing` that must be read in another way: all of them, if any revision of the document was absent.
    pub fn unread(&self, missing: &'a Missing) -> Vec<&'a str> {
        let due = &self.documents[missing.id.as_str()];
        let revs = missing.revs.iter().map(String::as_str);
        revs.filter(|rev| due.absent || due.left.contains(rev)).collect()
    }
}

impl DueDocument<'_> {
    /// `doc` is a requested revision, or one that has replaced it since.
    pub fn has_come(&mut self, doc: &RawValue) -> Result<(), String> {
        self.has_come_any = true;
        // The common case; the document need not be parsed then.
        if self.asked == 1 {
            self.left.clear();
            return Ok(());
        }
        let lineage: Lineage = parse(doc.get().as_bytes())?;
        if !self.left.remove(&*lineage.rev) {
            for ancestor in lineage.revisions.names() {
                self.left.remove(&*ancestor);
            }
        }
        Ok(())
    }
}

/// A revision's name and its ancestors.
#[derive(Deserialize)]
struct Lineage {
    #[serde(rename = "_rev")]
    rev: String,
    #[serde(rename = "_revisions", default)]
    revisions: Revisions,
}

/// `{"start":3,"ids":["c","b","a"]}` is `3-c` and its ancestors `2-b` and `1-a`.
#[derive(Default, Deserialize)]
struct Revisions {
    start: u64,
    ids: Vec<String>,
}

impl Revisions {
    fn names(&self) -> impl Iterator<Item = String> {
        (1..=self.start).rev().zip(&self.ids).map(|(generation, id)| format!("{generation}-{id}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn missing(id: &str, revs: &[&str]) -> Missing {
        let revs = revs.iter().map(|&rev| rev.to_owned()).collect();
        Missing { id: id.to_owned(), revs, possible_ancestors: Default::default() }
    }

    fn come(due: &mut Due<'_>, id: &str, doc: &Value) {
        let doc = serde_json::value::to_raw_value(doc).unwrap();
        due.documents.get_mut(id).unwrap().has_come(&doc).unwrap();
    }

    #[test]
    fn a_revision_that_comes_twice_stands_for_no_other() {
        let wanted = [missing("c", &["1-a", "1-b"]), missing("d", &["1-d"])];
        let mut due = Due::new(&wanted);
        for _ in 0..2 {
            come(&mut due, "c", &json!({"_rev": "1-a"}));
            assert_eq!(due.left(), [("c", "1-b"), ("d", "1-d")]);
        }
        come(&mut due, "d", &json!({"_rev": "2-e"}));
        assert_eq!(due.left(), [("c", "1-b")]);
        assert_eq!(due.unread(&wanted[0]), ["1-b"]);
        assert!(due.unread(&wanted[1]).is_empty());
    }

    #[test]
    fn a_later_revision_stands_for_its_ancestor_only() {
        let wanted = [missing("c", &["2-a", "1-b", "1-c"])];
        let mut due = Due::new(&wanted);
        // Both results replace 2-a, so they count as one.
        for rev in ["x", "y"] {
            let doc = json!({"_rev": format!("3-{rev}"), "_revisions": {"start": 3, "ids": [rev, "a", "c"]}});
            come(&mut due, "c", &doc);
        }
        // 1-c is an ancestor as well, because the feed named the document twice.
        assert_eq!(due.left(), [("c", "1-b")]);
    }

    #[test]
    fn a_document_of_which_something_is_absent_is_read_in_another_way() {
        let wanted = [missing("c", &["1-a", "1-b"])];
        let mut due = Due::new(&wanted);
        come(&mut due, "c", &json!({"_rev": "1-a"}));
        due.documents.get_mut("c").unwrap().absent = true;
        assert!(due.left().is_empty());
        assert_eq!(due.unread(&wanted[0]), ["1-a", "1-b"]);
    }

    #[test]
    fn a_document_that_is_named_twice_is_due_with_the_revisions_of_both() {
        let wanted = [missing("c", &["1-a"]), missing("c", &["1-b"])];
        let mut due = Due::new(&wanted);
        come(&mut due, "c", &json!({"_rev": "1-b"}));
        assert_eq!(due.left(), [("c", "1-a")]);
    }
}
