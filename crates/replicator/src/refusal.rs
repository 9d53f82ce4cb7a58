//! Which documents a target rejects permanently. The replication skips them, counts them in `doc_write_failures`, and logs them.
//!
//! The rule is CouchDB's, for each way in which a document travels. `tests/couchdb_refusals.rs` compares the two:
//!
//! | the target's response | document in `_bulk_docs` | `PUT` of a document |
//! | --- | --- | --- |
//! | an `error` in the document's row | skipped | |
//! | 413 | halved down to one document, which is skipped | skipped |
//! | 401 `unauthorized`, 403 `forbidden` | error | skipped |
//! | 400 `bad_request`, `Attachment name …` | as a `PUT`, if it has attachments | skipped |
//! | 415 | as a `PUT`, if it has attachments | skipped |
//! | anything else | error | error |
//!
//! CouchDB sends every document with attachments in a separate `PUT`. Here small attachments travel inside
//! `_bulk_docs`, so errors about attachments must have the same result there. An error ends the run, because skipping
//! silently would lose data.

use crate::error::{Error, Fault};

/// The start of CouchDB's reasons when a target rejects the name of an attachment.
const ATTACHMENT_NAME: &str = "Attachment name ";

/// Whether this error of a document's `PUT` is a permanent rejection.
pub(crate) fn passes_over_put(error: &Error) -> bool {
    match status(error) {
        Some((401, "unauthorized", _)) | Some((403, "forbidden", _)) | Some((413, ..)) => true,
        _ => is_about_attachments(error),
    }
}

/// Whether this error of a `_bulk_docs` with a single document is a permanent rejection.
pub(crate) fn passes_over_single(error: &Error, has_attachments: bool) -> bool {
    error.status() == Some(413) || has_attachments && is_about_attachments(error)
}

/// Whether only some of the documents may be the reason why a target rejects a batch.
pub(crate) fn may_be_one_of_many(error: &Error) -> bool {
    matches!(error.status(), Some(400 | 413 | 415))
}

fn is_about_attachments(error: &Error) -> bool {
    match status(error) {
        Some((415, ..)) => true,
        Some((400, "bad_request", reason)) => reason.starts_with(ATTACHMENT_NAME),
        _ => false,
    }
}

fn status(error: &Error) -> Option<(u16, &str, &str)> {
    match error {
        Error::Peer(error) => match &error.fault {
            Fault::Status { status, error, reason, .. } => Some((*status, error, reason)),
            _ => None,
        },
        _ => None,
    }
}
