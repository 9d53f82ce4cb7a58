//! The rows of a response to `_bulk_docs`: which documents the target has not stored, and what to do with each.

use std::collections::HashMap;

use serde::Deserialize;
use turnwise_outbound::{Peer, PeerText};

use crate::refusal;
use crate::write::Head;

/// A row. CouchDB lists only documents with an error, and those that too few of its nodes have stored.
#[derive(Deserialize)]
pub(crate) struct Row {
    #[serde(default)]
    id: PeerText,
    #[serde(default)]
    rev: PeerText,
    error: Option<PeerText>,
    #[serde(default)]
    reason: PeerText,
}

impl Row {
    pub fn is_error(&self) -> bool {
        self.error.is_some()
    }

    /// Whether an anonymous user would get it.
    pub fn is_about_rights(&self) -> bool {
        self.error.as_ref().is_some_and(|error| refusal::is_about_rights(&error.0))
    }
}

/// The documents of a request that were not stored. Documents are named by their positions.
#[derive(Debug, Default)]
pub(crate) struct Sorted {
    /// How many are rejected permanently.
    pub refused: usize,
    /// To be written once more after a new login.
    pub logged_out: Vec<usize>,
    /// To be written again, because of an error that is not about them.
    pub not_written: Vec<usize>,
    /// The first such error.
    pub error: Option<String>,
}

/// Sorts the documents `sent` by their rows. `may_log_in`: the request may have been anonymous.
///
/// A row with an error about the target that names no document of the request concerns all of them.
pub(crate) fn sort(target: &Peer, rows: &[Row], sent: &[(usize, Head)], may_log_in: bool) -> Sorted {
    let mut by_id: HashMap<&str, Vec<(usize, &Head)>> = HashMap::new();
    for (doc, head) in sent {
        by_id.entry(&head.id).or_default().push((*doc, head));
    }
    let mut sorted = Sorted::default();
    for row in rows {
        let Some(error) = &row.error else { continue };
        let named = by_id.get(&*row.id.0).map_or(&[][..], Vec::as_slice);
        // Several revisions of one document may be in a request.
        let of_rev = || named.iter().filter(|(_, head)| head.rev == row.rev.0).map(|(doc, _)| *doc);
        let docs: Vec<usize> = match of_rev().next() {
            Some(_) => of_rev().collect(),
            None => named.iter().map(|(doc, _)| *doc).collect(),
        };
        let passes_over = refusal::passes_over_row(&row.id.0, &error.0);
        let shown = || (target.clean(&error.0), target.clean(&row.reason.0));
        if passes_over && !(may_log_in && row.is_about_rights() && !docs.is_empty()) {
            let (error, reason) = shown();
            tracing::warn!(doc_id = row.id.0, error, reason, "the target refuses a document");
            sorted.refused += 1;
        } else if passes_over {
            sorted.logged_out.extend(docs);
        } else {
            let (error, reason) = shown();
            sorted
                .error
                .get_or_insert_with(|| format!("{error}: {reason}: document {:?} was not written", row.id.0));
            match docs.is_empty() {
                true => sorted.not_written.extend(sent.iter().map(|(doc, _)| *doc)),
                false => sorted.not_written.extend(docs),
            }
        }
    }
    for docs in [&mut sorted.logged_out, &mut sorted.not_written] {
        docs.sort_unstable();
        docs.dedup();
    }
    // A document with rows of both kinds is written again for the more serious reason.
    let Sorted { logged_out, not_written, .. } = &mut sorted;
    logged_out.retain(|doc| not_written.binary_search(doc).is_err());
    sorted
}
