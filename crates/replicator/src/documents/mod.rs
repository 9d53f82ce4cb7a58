//! `_replicator` databases: JSON documents with revisions, in the store.
//!
//! Intentionally far less than a CouchDB database. A replication document has one writer, so only its latest revision
//! is stored. There are no branches (a write without the current revision is a conflict), no attachments, and no views.
//! What clients do with replicator databases works as in CouchDB: documents with `_id`, `_rev` and tombstones
//! ([`mod@write`]), `_all_docs` ([`mod@read`]), `_changes` ([`changes`]).
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
//! Bodies are stored as received, including secrets. Code that displays a body must pass it through [`redaction`].
//! Every function takes the transaction first. The [doc processor](crate::doc_processor) handles the meaning of a
//! document, its job.

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
pub(crate) use rows::DocTx;
pub use write::{Draft, Written};

/// The largest body of a document, in bytes of JSON.
pub const MAX_BODY_BYTES: usize = 1 << 20;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
pub(crate) mod tests;
