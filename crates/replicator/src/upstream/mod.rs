//! Upstream mode: follows a CouchDB's `_replicator` databases, runs their replications here, and writes the states back.
//!
//! ```text
//!   the upstream CouchDB                                       turnwise
//!   _all_dbs, _db_updates ──▶ which databases there are ──▶ a mirror of each: `upstream/_replicator`, …
//!   _changes, include_docs ─────────────────────────────▶ its documents, by the doc processor, as clients' own
//!                                                               │ a job ends: the mirror's document has a state
//!   _all_docs, _bulk_docs  ◀──────── only if the revision is the one that was run ── owed
//! ```
//!
//! What must hold:
//!
//! 1. All state is rows, each written in one transaction with what it describes. The position in the changes is written
//!    with the documents before it. An *owed* state, which must still be written back, is written with the end of the
//!    job. After a crash, at most one request is repeated, and repeating it changes nothing.
//! 2. The upstream decides. A state is written only to the revision whose run it describes. A document that was
//!    changed, deleted or marked meanwhile comes with the changes, and the owed state of the old revision is dropped.
//! 3. The node that owns a database's name follows it. If two nodes do so for a moment, the later one continues, and
//!    the earlier one learns of it by its next write ([`Mirror::follower`]).
//! 4. A database with the same name but another creation time is another database: the mirror and all its jobs are removed first.
//! 5. A database is deleted only after a direct check: if it is missing in `_all_dbs`, it is requested by name.

mod address;
mod apply;
mod follow;
mod rows;
mod server;
mod service;
mod write_back;

pub use address::Address;
pub use rows::{Mirror, Owed};
pub use service::{Condition, Upstream};
