//! Beside a CouchDB: its `_replicator` databases are followed, their replications run here, and the states are written back.
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
//! 1. Everything that is known is rows, each written in one transaction with what it is about: how far the changes were
//!    read with the documents that they named, a state that is owed with the end of the job. A crash at any point repeats a
//!    request at most, and a repeated one changes nothing.
//! 2. The upstream's word counts. A state is written only into the revision that it is the end of; a document that was
//!    changed, deleted or marked meanwhile comes with the changes, and what was owed to the old revision is forgotten.
//! 3. One node follows a database, the one that owns its name; when two do for a moment, the later one goes on and the
//!    earlier one finds that out with its next write ([`Mirror::follower`]).
//! 4. A database of the same name that was created at another time is another one: its mirror, and all its jobs, go first.
//! 5. Nothing is deleted on hearsay: a database that is missing in `_all_dbs` is asked for by its name.

mod address;
mod apply;
mod follow;
mod rows;
mod server;
mod service;
mod write_back;

pub use address::Address;
pub(crate) use rows::owe;
pub use rows::{Mirror, Owed};
pub use service::{Condition, Upstream};
