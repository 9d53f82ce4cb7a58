//! Test databases, generated from a seed.
//!
//! [`Dataset`] states how many documents of which kinds there are. [`document`] generates the n-th document, always the
//! same for the same seed. [`load`] writes the documents.

mod attachment;
mod document;
mod load;

pub use attachment::Attachment;
pub use document::{Document, Leaf};

/// The content of a data set. Start from [`Dataset::plain`] or [`Dataset::standard`], and change what matters to the test.
///
/// `documents` is the total. It includes the special documents below, which are spread evenly over the order in which
/// documents are loaded.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The seed of all content.
    pub seed: u64,
    /// The total number of documents.
    pub documents: usize,
    /// The approximate size of a document's JSON in bytes, without its history.
    pub body_bytes: usize,
    /// Documents with two to four leaf revisions of different generations and a common start of their histories.
    pub conflicts: usize,
    /// Documents with a deleted leaf. Every other one also has a live branch, and so is not deleted.
    pub deletions: usize,
    /// Documents with a history of 1 to 20 generations.
    pub histories: usize,
    /// Attachments, two per document, alternately binary and text. Every fourth document with attachments has them on two
    /// conflicting leaves.
    pub attachments: usize,
    /// The size of the largest attachment in bytes. Each further one has half the size, down to an empty one, and then the
    /// sizes repeat.
    pub attachment_max_bytes: usize,
    /// Whether the documents include ids that are easily corrupted in transit: see [`UNUSUAL_IDS`].
    pub unusual_ids: bool,
}

/// Ids that are corrupted if code assembles or parses a URL carelessly.
pub const UNUSUAL_IDS: [&str; 16] = [
    "ünï ☃ 😀",
    "日本語",
    "a/b/c",
    "ends-with/",
    "_design/example",
    "_design/with/slash",
    "with space",
    "plus+sign",
    "-leading",
    "percent%2Fsign",
    "question?mark",
    "hash#tag",
    "amp&er=sand;semi,comma",
    "quote\"d 'twice' \\ <angle>",
    "(~!*)$@:[]",
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
     0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
];

impl Dataset {
    /// `documents` documents with random ids, each with one revision and about 500 bytes.
    pub fn plain(documents: usize) -> Self {
        Self {
            seed: 1,
            documents,
            body_bytes: 500,
            conflicts: 0,
            deletions: 0,
            histories: 0,
            attachments: 0,
            attachment_max_bytes: 8 << 20,
            unusual_ids: false,
        }
    }

    /// The data that a replication must be able to copy. These are 10,000 documents with conflicts, deletions, revision
    /// histories, unusual ids, and 50 attachments of up to 8 MiB.
    pub fn standard() -> Self {
        Self {
            conflicts: 500,
            deletions: 500,
            histories: 1_000,
            attachments: 50,
            unusual_ids: true,
            ..Self::plain(10_000)
        }
    }

    /// Like [`Dataset::standard`], but loaded and compared in a second: 300 documents, with attachments of up to 256 KiB.
    pub fn small() -> Self {
        Self {
            conflicts: 30,
            deletions: 30,
            histories: 30,
            attachments: 12,
            attachment_max_bytes: 256 << 10,
            unusual_ids: true,
            ..Self::plain(300)
        }
    }

    /// The same with another seed: no random id is the same.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// All documents, in the order in which they are loaded.
    pub fn iter(&self) -> impl Iterator<Item = Document> + '_ {
        (0..self.documents).map(|position| self.document(position))
    }
}

/// The content of a loaded database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Documents, including deleted ones.
    pub documents: usize,
    /// Documents whose winner is not deleted: the database's `doc_count`.
    pub live_documents: usize,
    /// Leaf revisions.
    pub leaves: usize,
    /// Attachments on all leaves.
    pub attachments: usize,
    /// The total size of the attachments, in bytes.
    pub attachment_bytes: u64,
}
