//! Revisions that the source names and does not deliver.
//!
//! One such revision must not stop the others. A run writes what it can read, counts and lists the rest here, and ends with
//! [`Incomplete`](crate::Error::Incomplete). Its checkpoint stays before the batch of the first one, so that each later run asks for it again.
//! CouchDB's run ends with an error as well, and its checkpoint does not pass such a revision either; but it ends at once.
//!
//! No status decides whether a revision or the source is the reason. If the source describes its database at the same
//! moment, the revision is: the other requests work.

use std::sync::{Mutex, MutexGuard, PoisonError};

use turnwise_outbound::{Error, Peer};

use crate::database;
use crate::error::Incomplete;

/// The documents that are listed. All are logged.
const LISTED: usize = 20;
/// The most bytes of an id in the list.
const ID_BYTES: usize = 120;
/// Beyond this many revisions, a run waits for none of them a second time: it would take hours.
const AWAITED: u64 = 100;

/// The revisions that one run could not read.
#[derive(Debug, Default)]
pub(crate) struct Unread(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    revisions: u64,
    /// The first [`LISTED`] documents, with the reasons.
    docs: Vec<(String, String)>,
}

impl Unread {
    /// Counts `revisions` of a document that could not be read, unless the whole source is the reason for `error`.
    ///
    /// # Errors
    /// The error that ends the run: `error`, or that of the source's database.
    pub async fn judge(&self, source: &Peer, id: &str, revisions: u64, error: Error) -> Result<(), Error> {
        if error.side() != Some(turnwise_outbound::Side::Source) || !error.may_concern_request() {
            return Err(error);
        }
        match database::info_once(source).await {
            Ok(_) => {
                self.add(source, id, revisions, &error);
                Ok(())
            }
            // The database is gone, and not only the document.
            Err(gone) if gone.status() == Some(404) => Err(gone),
            Err(_) => Err(error),
        }
    }

    /// Counts `revisions` of a document that the source names and does not deliver.
    pub fn add(&self, source: &Peer, id: &str, revisions: u64, error: &Error) {
        let reason = match error {
            Error::Peer(error) => error.fault.to_string(),
            other => other.to_string(),
        };
        tracing::warn!(doc_id = id, revisions, %error, "the source does not deliver a document that it names");
        let mut state = self.state();
        state.revisions += revisions;
        if state.docs.len() < LISTED {
            let mut id = source.clean(id);
            if id.len() > ID_BYTES {
                id.truncate(id.floor_char_boundary(ID_BYTES));
                id.push(turnwise_outbound::CUT);
            }
            state.docs.push((id, reason));
        }
    }

    /// How many revisions could not be read.
    pub fn revisions(&self) -> u64 {
        self.state().revisions
    }

    /// The ids of the first documents.
    pub fn docs(&self) -> Vec<String> {
        self.state().docs.iter().map(|(id, _)| id.clone()).collect()
    }

    /// Whether a revision that did not come is worth waiting for.
    pub fn has_patience(&self) -> bool {
        self.revisions() < AWAITED
    }

    /// The error of a run that could not read everything.
    pub fn error(&self) -> Option<Incomplete> {
        let state = self.state();
        (state.revisions > 0).then(|| Incomplete { revisions: state.revisions, docs: state.docs.clone() })
    }

    /// Forgets all, for a run that starts over.
    pub fn clear(&self) {
        *self.state() = State::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No operation leaves the state inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
