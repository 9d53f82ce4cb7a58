//! How large a request's body may be for one database: its server, or a gateway before it, rejects larger ones.
//!
//! **Forces.** A body that is rejected has been sent in vain. nginx accepts 1 MB unless it is configured otherwise, CouchDB 4 GB.
//! A peer that rejects a body before it has read it often closes the connection, so that the 413 is lost, and the rejection looks
//! like a broken connection. A connection may also break for another reason.
//!
//! **Model.** A limit begins below 1 MB, and doubles with each body that is accepted and had at least half of it, up to the largest
//! write. After a 413 it is half of the rejected body, or the largest body that was accepted. It stays so for [`REFUSED_FOR`]. A body of
//! many documents whose connection broke counts as one that was too large, for [`SUSPECTED_FOR`]. Then the limit may double again.
//!
//! The limit of a database outlives the runs that found it ([`BodyLimits`]). It is one for all requests with the same URL, login, headers
//! and proxy: other requests may pass another gateway.
//!
//! CouchDB also limits the number of documents in one request (`max_bulk_docs_count`), and states the limit when it rejects more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

/// The first limit. Slightly less than 1 MB, so that nginx's default is never exceeded to find it.
const FIRST_BYTES: usize = 960_000;
/// Larger bodies gain nothing at CouchDB.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// The smallest limit: even a small document is sent in a body of its own then.
const LEAST_BYTES: usize = 16 * 1024;
/// A body of this size or less is accepted everywhere, so its connection broke for another reason.
const SUSPECT_BYTES: usize = 64 * 1024;
/// How long a limit is not exceeded after a 413. A later attempt costs one body.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// The same after a connection that broke.
const SUSPECTED_FOR: Duration = Duration::from_secs(60);

/// The most limits that are kept. A run beyond finds its own.
const MOST_LIMITS: usize = 4_096;

/// The limits of a process, by the keys of [`super::optional`].
#[derive(Debug, Default)]
pub(crate) struct BodyLimits(Mutex<HashMap<u64, Arc<BodyLimit>>>);

impl BodyLimits {
    /// The limit that all requests with this key share.
    pub fn of(&self, peer: u64) -> Arc<BodyLimit> {
        let mut limits = self.0.lock().expect("no thread panics while it holds this lock");
        if let Some(limit) = limits.get(&peer) {
            return Arc::clone(limit);
        }
        if limits.len() >= MOST_LIMITS {
            // No run uses these. A later one finds its limit again, which costs it some bodies.
            limits.retain(|_, limit| Arc::strong_count(limit) > 1);
        }
        let limit = Arc::<BodyLimit>::default();
        if limits.len() < MOST_LIMITS {
            limits.insert(peer, Arc::clone(&limit));
        }
        limit
    }
}

/// The limit of one database.
#[derive(Debug)]
pub struct BodyLimit(Mutex<State>);

#[derive(Debug)]
struct State {
    bytes: usize,
    /// The largest body that was accepted and is smaller than all that were rejected since.
    accepted: usize,
    /// When the limit may double.
    grows_at: Option<Instant>,
    /// The most documents in one body, and until when.
    docs: Option<(usize, Instant)>,
}

impl Default for BodyLimit {
    fn default() -> Self {
        Self(Mutex::new(State { bytes: FIRST_BYTES, accepted: 0, grows_at: None, docs: None }))
    }
}

impl BodyLimit {
    /// The largest body to send, if it holds more than one document.
    pub fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// The most documents in one body, if the peer has a limit.
    pub fn docs(&self, now: Instant) -> usize {
        self.state().docs.filter(|(_, until)| now < *until).map_or(usize::MAX, |(docs, _)| docs)
    }

    /// The peer has rejected a body because of its number of documents.
    pub fn refused_docs(&self, docs: usize, now: Instant) {
        let most = self.docs(now).min(docs.max(1));
        self.state().docs = Some((most, now + REFUSED_FOR));
    }

    /// The peer has accepted a body of this size.
    pub fn accepted(&self, bytes: usize, now: Instant) {
        let mut state = self.state();
        state.accepted = state.accepted.max(bytes);
        if bytes >= state.bytes / 2 && state.grows_at.is_none_or(|at| now >= at) {
            state.bytes = (state.bytes * 2).min(MOST_BYTES);
        }
    }

    /// The peer has rejected a body of this size as too large.
    pub fn refused(&self, bytes: usize, now: Instant) {
        self.state().shrink(bytes, now + REFUSED_FOR);
    }

    /// The connection broke while a body of this size was sent, or before the response came. Returns whether a smaller one may help.
    pub fn broke_off(&self, bytes: usize, now: Instant) -> bool {
        if bytes <= SUSPECT_BYTES {
            return false;
        }
        self.state().shrink(bytes, now + SUSPECTED_FOR);
        true
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds this lock")
    }
}

impl State {
    fn shrink(&mut self, refused: usize, grows_at: Instant) {
        if self.accepted >= refused {
            self.accepted = 0;
        }
        let smaller = (refused / 2).max(self.accepted).max(LEAST_BYTES);
        self.bytes = self.bytes.min(smaller);
        self.grows_at = Some(self.grows_at.map_or(grows_at, |before| before.max(grows_at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_doubles_while_bodies_are_accepted_and_stays_where_one_is_refused() {
        let (limit, start) = (BodyLimit::default(), Instant::now());
        assert_eq!(limit.bytes(), FIRST_BYTES);
        limit.accepted(FIRST_BYTES / 2 - 1, start);
        assert_eq!(limit.bytes(), FIRST_BYTES, "a small body shows nothing");
        limit.accepted(900_000, start);
        assert_eq!(limit.bytes(), 2 * FIRST_BYTES);
        // Several that were sent at the same time count once.
        for bytes in [1_700_000, 1_900_000, 1_800_000] {
            limit.refused(bytes, start);
        }
        assert_eq!(limit.bytes(), 900_000);
        limit.accepted(900_000, start + REFUSED_FOR / 2);
        assert_eq!(limit.bytes(), 900_000);
        limit.accepted(900_000, start + REFUSED_FOR);
        assert_eq!(limit.bytes(), 1_800_000);
        for _ in 0..5 {
            limit.accepted(MOST_BYTES, start + REFUSED_FOR);
        }
        assert_eq!(limit.bytes(), MOST_BYTES);
    }

    #[test]
    fn a_limit_that_became_smaller_is_found_again() {
        let (limit, start) = (BodyLimit::default(), Instant::now());
        limit.accepted(900_000, start);
        for bytes in [900_000, 450_000, 225_000, 112_500, 56_250, 28_125, 20_000] {
            limit.refused(bytes, start);
        }
        assert_eq!(limit.bytes(), LEAST_BYTES);
    }

    #[test]
    fn limits_outlive_their_runs_and_are_bounded() {
        let limits = BodyLimits::default();
        limits.of(1).refused(500_000, Instant::now());
        assert_eq!(limits.of(1).bytes(), 250_000);
        let held: Vec<_> = (0..2 * MOST_LIMITS as u64).map(|peer| limits.of(peer)).collect();
        assert_eq!(limits.0.lock().map(|limits| limits.len()).ok(), Some(MOST_LIMITS));
        assert!(Arc::ptr_eq(&held[1], &limits.of(1)));
    }

    #[test]
    fn a_limit_of_documents_is_remembered_for_a_while() {
        let (limit, start) = (BodyLimit::default(), Instant::now());
        assert_eq!(limit.docs(start), usize::MAX);
        limit.refused_docs(100, start);
        limit.refused_docs(500, start);
        assert_eq!((limit.docs(start), limit.bytes()), (100, FIRST_BYTES));
        assert_eq!(limit.docs(start + REFUSED_FOR), usize::MAX);
    }

    #[test]
    fn a_connection_that_breaks_counts_for_a_shorter_time_and_only_with_a_large_body() {
        let (limit, start) = (BodyLimit::default(), Instant::now());
        assert!(!limit.broke_off(SUSPECT_BYTES, start));
        assert_eq!(limit.bytes(), FIRST_BYTES);
        assert!(limit.broke_off(800_000, start));
        assert_eq!(limit.bytes(), 400_000);
        limit.accepted(400_000, start);
        assert_eq!(limit.bytes(), 400_000);
        limit.accepted(400_000, start + SUSPECTED_FOR);
        assert_eq!(limit.bytes(), 800_000);
        // A certain limit is not forgotten because a connection breaks as well.
        limit.refused(800_000, start);
        limit.broke_off(400_000, start);
        limit.accepted(200_000, start + SUSPECTED_FOR);
        assert_eq!(limit.bytes(), 200_000);
    }
}
