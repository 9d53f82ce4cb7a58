//! Databases worth copying, made from a seed.
//!
//! [`Dataset`] says how much of what; [`document`] makes the n-th document, always the same for the same seed; [`load`] writes them.

mod attachment;
mod document;
mod load;

pub use attachment::Attachment;
pub use document::{Document, Leaf};

/// What a data set holds. Start from [`Dataset::plain`] or [`Dataset::standard`] and change what matters to the test.
///
/// `documents` is the total; the special ones below are among them, spread evenly over the order of loading.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Everything follows from it.
    pub seed: u64,
    /// All documents together.
    pub documents: usize,
    /// About how many bytes of JSON a document has, its history not counted.
    pub body_bytes: usize,
    /// Documents with two to four leaf revisions, of different generations, that share the start of their history.
    pub conflicts: usize,
    /// Deleted documents; every other one has a live branch beside the deleted one, and so is not deleted after all.
    pub deletions: usize,
    /// Documents with a history of 1 to 20 generations.
    pub histories: usize,
    /// Attachments, two to a document, binary and text in turns; every fourth document has them on two conflicting leaves.
    pub attachments: usize,
    /// The size of the largest attachment in bytes. Each further one is half as large, down to an empty one, then it starts over.
    pub attachment_max_bytes: usize,
    /// Whether ids that are easily mangled on the way are among the documents: see [`UNUSUAL_IDS`].
    pub unusual_ids: bool,
}

/// Ids that get mangled when a URL is put together or taken apart carelessly.
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
    /// `documents` documents of one revision and about 500 bytes, with random ids.
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

    /// What a replication must be able to copy: 10,000 documents with conflicts, deletions, revision histories, unusual ids,
    /// and 50 attachments of up to 8 MiB.
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

    /// As [`Dataset::standard`], but loaded and compared in a second: 300 documents, attachments of up to 256 KiB.
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

    /// The same with another seed: none of the random ids are the same.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// All documents, in the order of loading.
    pub fn iter(&self) -> impl Iterator<Item = Document> + '_ {
        (0..self.documents).map(|position| self.document(position))
    }
}

/// What a loaded database holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Documents, deleted ones included.
    pub documents: usize,
    /// Documents whose winner is not deleted: the database's `doc_count`.
    pub live_documents: usize,
    /// Leaf revisions.
    pub leaves: usize,
    /// Attachments on all leaves.
    pub attachments: usize,
    /// Their bytes.
    pub attachment_bytes: u64,
}
