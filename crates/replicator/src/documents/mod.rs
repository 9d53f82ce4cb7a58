//! `_replicator` databases: JSON documents with revisions, in the store.
//!
//! Far less than a CouchDB database, and on purpose: a replication document has one writer, so a document is its
//! latest revision and nothing else. There are no branches (a write that does not name the current revision is a
//! conflict), no attachments, no views. What clients do with replicator databases works as in CouchDB: documents with
//! `_id`, `_rev` and tombstones ([`mod@write`]), `_all_docs` ([`mod@read`]), `_changes` ([`changes`]).
//!
//! ```text
//!  ("databases", db)             Database       whether it is there
//!  ("sequence", db)              Counters       one writer at a time: each write takes the next number
//!  ("documents", db, id)         Head           revision, its ancestors, the change it is
//!  ("bodies", db, id, n)         JSON bytes     the body without `_id` and `_rev`, in pieces
//!  ("changes", db, sequence)     document id    one row per document, moved by each write
//!  ("local", db, id)             Local          notes of replicators ([`local`])
//! ```
//!
//! Bodies are stored as they came, secrets included; whoever shows one passes it through [`redaction`]. Every function
//! takes the transaction first; what a document means (its job) is the [doc processor](crate::doc_processor)'s.

pub mod changes;
pub mod databases;
mod error;
pub mod local;
pub mod names;
pub mod read;
pub mod redaction;
mod revision;
pub(crate) mod rows;
pub mod write;

pub(crate) use error::corrupt;
pub use error::{Error, Result};
pub use read::{Document, Head};
pub use revision::Revision;
pub use rows::Counters;
pub use write::{Draft, Written};

/// Largest body of a document, in bytes of JSON.
pub const MAX_BODY_BYTES: usize = 1 << 20;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
pub(crate) mod tests;
