//! What a target refuses for good, and a replication passes over: counted in `doc_write_failures`, and told in the log.
//!
//! The rule is CouchDB's, for each way in which a document travels; `tests/couchdb_refusals.rs` holds both beside each other:
//!
//! | the target answers | document in `_bulk_docs` | `PUT` of a document |
//! | --- | --- | --- |
//! | an `error` in the document's row | passed over | |
//! | 413 | halved until one is left, which is passed over | passed over |
//! | 401 `unauthorized`, 403 `forbidden` | error | passed over |
//! | 400 `bad_request`, `Attachment name …` | as a `PUT`, if it has attachments | passed over |
//! | 415 | as a `PUT`, if it has attachments | passed over |
//! | anything else | error | error |
//!
//! CouchDB sends every document with attachments by a `PUT` of its own. Here small attachments travel inside `_bulk_docs`: what
//! concerns attachments must have the same end there. An error ends the run: silence would be data loss.

use crate::error::{Error, Fault};

/// How CouchDB's reasons begin where a target does not take the name of an attachment.
const ATTACHMENT_NAME: &str = "Attachment name ";

/// Whether a target that answers so to the `PUT` of a document is obeyed.
pub(crate) fn passes_over_put(error: &Error) -> bool {
    match status(error) {
        Some((401, "unauthorized", _)) | Some((403, "forbidden", _)) | Some((413, ..)) => true,
        _ => is_about_attachments(error),
    }
}

/// Whether a target that answers so to `_bulk_docs` with a single document is obeyed.
pub(crate) fn passes_over_single(error: &Error, has_attachments: bool) -> bool {
    error.status() == Some(413) || has_attachments && is_about_attachments(error)
}

/// Whether only some of the documents may be the reason for which a target refuses all of a batch.
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
