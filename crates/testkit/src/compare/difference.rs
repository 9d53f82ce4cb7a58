//! The differences that a comparison finds.

use std::fmt;

/// One difference between a source and a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A leaf revision that the target lacks.
    MissingLeaf {
        /// The document.
        id: String,
        /// The revision.
        rev: String,
    },
    /// A leaf revision that only the target has, or that is no leaf in the source.
    ExtraLeaf {
        /// The document.
        id: String,
        /// The revision.
        rev: String,
    },
    /// A revision that is in the changes feed, but cannot be read on one side.
    Unreadable {
        /// The document.
        id: String,
        /// The revision.
        rev: String,
    },
    /// The same revision with another history.
    History {
        /// The document.
        id: String,
        /// The revision.
        rev: String,
        /// The source's `_revisions`.
        source: String,
        /// The target's.
        target: String,
    },
    /// A revision that is a deletion on only one side.
    Deleted {
        /// The document.
        id: String,
        /// The revision.
        rev: String,
        /// Whether it is a deletion in the source.
        source: bool,
    },
    /// The same revision with other fields.
    Body {
        /// The document.
        id: String,
        /// The revision.
        rev: String,
    },
    /// An attachment that is missing, or differs.
    Attachment {
        /// The document.
        id: String,
        /// The revision.
        rev: String,
        /// The attachment.
        name: String,
        /// What differs.
        what: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingLeaf { id, rev } => write!(f, "{id} {rev}: missing in the target"),
            Self::ExtraLeaf { id, rev } => write!(f, "{id} {rev}: a leaf only in the target"),
            Self::Unreadable { id, rev } => write!(f, "{id} {rev}: cannot be read on both sides"),
            Self::History { id, rev, source, target } => {
                write!(f, "{id} {rev}: history {source} became {target}")
            }
            Self::Deleted { id, rev, source } => write!(f, "{id} {rev}: deleted was {source} in the source"),
            Self::Body { id, rev } => write!(f, "{id} {rev}: other fields"),
            Self::Attachment { id, rev, name, what } => write!(f, "{id} {rev} attachment {name}: {what}"),
        }
    }
}

/// How much was compared and found equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Documents, deleted ones included.
    pub documents: usize,
    /// Leaf revisions.
    pub leaves: usize,
    /// How many of the leaf revisions are deletions.
    pub deleted_leaves: usize,
    /// Attachments whose bytes were read from both sides.
    pub attachments: usize,
    /// The size of these attachments on one side, in bytes.
    pub attachment_bytes: u64,
}

impl Summary {
    /// Adds the counts of a part of the comparison. Documents are counted for the whole comparison.
    pub fn add(&mut self, part: &Self) {
        self.leaves += part.leaves;
        self.deleted_leaves += part.deleted_leaves;
        self.attachments += part.attachments;
        self.attachment_bytes += part.attachment_bytes;
    }
}
