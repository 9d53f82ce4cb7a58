//! Which documents a target rejects permanently. The replication skips them, counts them in `doc_write_failures`, and logs them.
//!
//! A document is skipped only for an error that is about the document, so that the same document would be rejected again. Any other
//! error is about the target, such as a full disk, or nodes that are missing, or about a program between the two. Then the document is
//! written again, and finally the run ends with an error: skipping it would lose data.
//!
//! | the target's response | document in `_bulk_docs` | `PUT` of a document |
//! | --- | --- | --- |
//! | an error of [`ROWS`] in the document's row | skipped | |
//! | another error in the document's row | written again | |
//! | 413 | divided down to one document, which is skipped | skipped |
//! | 401 `unauthorized`, 403 `forbidden`, in CouchDB's form | error | skipped, unless the user has no access to the database |
//! | 400 `bad_request`, `Attachment name …` | as a `PUT`, if it has attachments | skipped |
//! | 415 `bad_content_type` | as a `PUT`, if it has attachments | skipped |
//! | anything else | error | error |
//!
//! CouchDB's replicator skips more: a document with any error in its row. `tests/couchdb_refusals.rs` compares the two.
//!
//! CouchDB sends every document with attachments in a separate `PUT`. Here small attachments travel inside
//! `_bulk_docs`, so errors about attachments must have the same result there.

use turnwise_outbound::{Error, Fault};

/// The start of CouchDB's reasons when a target rejects the name of an attachment.
const ATTACHMENT_NAME: &str = "Attachment name ";

/// The errors in rows that are about the document.
const ROWS: [&str; 19] = [
    // A validation function rejects it, or its author has no rights for it, as for a design document.
    "forbidden",
    "unauthorized",
    // A validation function has thrown an error of its language.
    "Error",
    "EvalError",
    "InternalError",
    "RangeError",
    "ReferenceError",
    "SyntaxError",
    "TypeError",
    "URIError",
    // Its id, its revision, its members, its attachments.
    "bad_content_type",
    "bad_request",
    "conflict",
    "doc_validation",
    "illegal_docid",
    "invalid_design_doc",
    // Its size.
    "attachment_too_large",
    "document_too_large",
    "request_entity_too_large",
];

/// The error of a design document with a function that cannot be compiled. In the row of another document, it is about a
/// validation function of the target.
const COMPILATION: &str = "compilation_error";

/// CouchDB's reasons when a user may not use the whole database.
const NO_ACCESS: [&str; 2] =
    ["You are not allowed to access this db.", "You are not authorized to access this db."];

/// Whether this error in the row of a document is a permanent rejection.
pub(crate) fn passes_over_row(id: &str, error: &str) -> bool {
    ROWS.contains(&error) || error == COMPILATION && id.starts_with("_design/")
}

/// Whether this error in a row may be that of an anonymous user.
pub(crate) fn is_about_rights(error: &str) -> bool {
    matches!(error, "forbidden" | "unauthorized")
}

/// Whether this error of a document's `PUT` is a permanent rejection.
pub(crate) fn passes_over_put(error: &Error) -> bool {
    match status(error) {
        // A gateway's own page has the same status.
        Some((401, "unauthorized", reason)) | Some((403, "forbidden", reason)) => {
            is_of_couchdb(error) && !NO_ACCESS.contains(&reason)
        }
        Some((413, ..)) => true,
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

/// Why a batch is too large.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TooLarge {
    /// It has more bytes than one request may have.
    Bytes,
    /// It has more documents than this, which the target states.
    Documents(Option<usize>),
    /// One of its documents is too large, or this is not the error.
    No,
}

/// Why a target rejects a batch as too large.
pub(crate) fn too_large(error: &Error) -> TooLarge {
    match status(error) {
        Some((413, "document_too_large", _)) => TooLarge::No,
        Some((413, "max_bulk_docs_count_exceeded", reason)) => {
            TooLarge::Documents(reason.trim().parse().ok())
        }
        Some((413, ..)) => TooLarge::Bytes,
        _ => TooLarge::No,
    }
}

fn is_about_attachments(error: &Error) -> bool {
    match status(error) {
        Some((415, "bad_content_type", _)) => true,
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

fn is_of_couchdb(error: &Error) -> bool {
    matches!(error, Error::Peer(error) if matches!(error.fault, Fault::Status { of_couchdb: true, .. }))
}
