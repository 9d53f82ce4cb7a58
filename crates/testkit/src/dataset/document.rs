//! The documents of a data set, with their revision trees.

use serde_json::{Value, json};

use super::{Attachment, Dataset, UNUSUAL_IDS};
use crate::Random;

/// The step that shuffles the documents of a data set, so that special documents are not adjacent. It is prime, so that
/// each document occurs once.
const STRIDE: usize = 7_919;

/// JSON around a document's text, in bytes: `_id`, `_rev`, and the few other fields.
const FRAME_BYTES: usize = 180;

/// A document with all its leaf revisions.
#[derive(Clone, Debug)]
pub struct Document {
    /// The id, unencoded.
    pub id: String,
    /// The leaf revisions, at least one.
    pub leaves: Vec<Leaf>,
}

/// One leaf of a document's revision tree.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The hashes of the revisions from the leaf to the root, starting with the leaf's own. Their number is the leaf's
    /// generation.
    pub history: Vec<String>,
    /// Whether the leaf is a deletion.
    pub deleted: bool,
    /// The document's own fields, without fields that start with an underscore.
    pub body: Value,
    /// The attachments, if any.
    pub attachments: Vec<Attachment>,
}

impl Leaf {
    /// The leaf's revision.
    pub fn rev(&self) -> String {
        format!("{}-{}", self.history.len(), self.history[0])
    }

    /// The leaf in the form for `_bulk_docs` with `new_edits: false`, without attachments.
    pub fn to_json(&self, id: &str) -> Value {
        let mut doc = self.body.clone();
        doc["_id"] = json!(id);
        doc["_rev"] = json!(self.rev());
        doc["_revisions"] = json!({ "start": self.history.len(), "ids": self.history });
        if self.deleted {
            doc["_deleted"] = json!(true);
        }
        doc
    }

    /// Whether this leaf wins over `other`: a live leaf over a deleted one, then the higher generation, then the higher hash.
    fn beats(&self, other: &Self) -> bool {
        let rank = |leaf: &Self| (!leaf.deleted, leaf.history.len(), leaf.history[0].clone());
        rank(self) > rank(other)
    }
}

impl Document {
    /// The leaf that a plain `GET` returns.
    pub fn winner(&self) -> &Leaf {
        self.leaves
            .iter()
            .reduce(|best, leaf| if leaf.beats(best) { leaf } else { best })
            .expect("a document has a leaf")
    }
}

impl Dataset {
    /// The document at `position` (below `documents`) in the order in which documents are loaded.
    pub fn document(&self, position: usize) -> Document {
        let mut random = Random::new(Random::new(self.seed).bits() ^ (position as u64) << 20);
        let mut id = random.hex32();

        // `index` goes through the kinds of documents, one after the other.
        let stride = if self.documents.is_multiple_of(STRIDE) { 1 } else { STRIDE };
        let mut index = position * stride % self.documents;
        let mut is_next = |count: usize| {
            let is_it = index < count;
            index = if is_it { index } else { index - count };
            is_it.then_some(index)
        };

        let leaves = if is_next(self.conflicts).is_some() {
            let branches = 2 + random.below(3) as usize;
            self.branches(&mut random, &vec![false; branches])
        } else if let Some(index) = is_next(self.deletions) {
            let deleted: &[bool] = if index % 2 == 0 { &[true] } else { &[true, false] };
            self.branches(&mut random, deleted)
        } else if is_next(self.histories).is_some() {
            let generation = 1 + random.below(20) as usize;
            vec![self.leaf(&mut random, vec![], generation, false)]
        } else if let Some(index) = is_next(self.attachments.div_ceil(2)) {
            self.with_attachments(&mut random, index)
        } else if let Some(index) = is_next(if self.unusual_ids { UNUSUAL_IDS.len() } else { 0 }) {
            id = UNUSUAL_IDS[index].to_owned();
            vec![self.leaf(&mut random, vec![], 1 + index % 3, false)]
        } else {
            vec![self.leaf(&mut random, vec![], 1, false)]
        };
        Document { id, leaves }
    }

    /// One leaf for each entry of `deleted`, on branches of different lengths with a common trunk of 1 to 5 generations.
    fn branches(&self, random: &mut Random, deleted: &[bool]) -> Vec<Leaf> {
        let trunk: Vec<String> = (0..1 + random.below(5)).map(|_| random.hex32()).collect();
        let mut leaf = |&deleted: &bool| {
            let length = 1 + random.below(4) as usize;
            self.leaf(random, trunk.clone(), length, deleted)
        };
        deleted.iter().map(&mut leaf).collect()
    }

    /// A leaf that is `length` generations above the end of `trunk`, whose first entry is its newest revision.
    fn leaf(&self, random: &mut Random, trunk: Vec<String>, length: usize, deleted: bool) -> Leaf {
        let mut history: Vec<String> = (0..length).map(|_| random.hex32()).collect();
        history.extend(trunk);
        let body = match deleted {
            true => json!({}),
            false => json!({
                "number": random.below(1 << 50),
                "tags": [random.text(5), null, { "deep": [1, [2, -3]], "half": 0.5 }],
                "text": random.text(self.body_bytes.saturating_sub(FRAME_BYTES)),
            }),
        };
        Leaf { history, deleted, body, attachments: vec![] }
    }

    /// The leaves of the `index`-th document with attachments.
    fn with_attachments(&self, random: &mut Random, index: usize) -> Vec<Leaf> {
        let first = index * 2;
        let mut attachments = (first..self.attachments.min(first + 2))
            .map(|index| Attachment::make(index, self.attachment_max_bytes, random))
            .collect::<Vec<_>>();
        if index % 4 == 3 && attachments.len() == 2 {
            let mut leaves = self.branches(random, &[false, false]);
            leaves[1].attachments.extend(attachments.pop());
            leaves[0].attachments = attachments;
            return leaves;
        }
        let mut leaf = self.leaf(random, vec![], 1 + index % 3, false);
        leaf.attachments = attachments;
        vec![leaf]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_dataset_holds_what_it_promises() {
        let dataset = Dataset { attachment_max_bytes: 1 << 14, ..Dataset::standard() };
        let documents: Vec<Document> = dataset.iter().collect();
        let ids: HashSet<_> = documents.iter().map(|document| &document.id).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(UNUSUAL_IDS.iter().all(|id| ids.contains(&(*id).to_owned())));

        let leaves = || documents.iter().flat_map(|document| &document.leaves);
        assert_eq!(documents.iter().filter(|document| document.winner().deleted).count(), 250);
        assert_eq!(leaves().filter(|leaf| leaf.deleted).count(), 500);
        assert_eq!(leaves().map(|leaf| leaf.attachments.len()).sum::<usize>(), 50);
        assert!(documents.iter().filter(|document| document.leaves.len() > 1).count() >= 750);
        assert_eq!(leaves().map(|leaf| leaf.history.len()).max(), Some(20));
    }

    #[test]
    fn documents_follow_from_the_seed_and_are_about_as_long_as_asked() {
        let dataset = Dataset::plain(100);
        let json = |dataset: &Dataset| dataset.document(3).leaves[0].to_json("x").to_string();
        assert_eq!(json(&dataset), json(&dataset));
        assert_ne!(json(&dataset), json(&dataset.clone().seeded(2)));
        let document = dataset.document(3);
        let bytes = document.leaves[0].to_json(&document.id).to_string().len();
        assert!((450..650).contains(&bytes), "{bytes}");
    }
}
