//! What a peer is asked for although a replication does not need it, and which peers refuse it.
//!
//! Some requests, parameters and encodings only make a replication faster: there is another way, which every CouchDB offers. A
//! gateway may refuse them with any status, or with a page of HTML. So no status decides. If the other way succeeds where
//! the optional one has failed, the optional one is what was refused. The caller then calls [`Peer::refuses`](crate::Peer::refuses), and all
//! replications with the same database and login leave it out for [`REMEMBERED`]. A peer that is down or throttled fails
//! in both ways, and nothing is remembered.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::endpoint::Endpoint;

/// How long a refusal is remembered. A gateway may be repaired, and one more attempt costs one request.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// The most refusals that a process remembers. Beyond it, the oldest is forgotten, which costs its peer one request.
const MOST_REFUSALS: usize = 4_096;

/// Something that a replication can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Optional {
    /// `POST _bulk_get`; otherwise documents are read one by one.
    BulkGet,
    /// `_bulk_get` with attachments inside the documents; otherwise these documents are read one by one.
    InlineAttachments,
    /// Such attachments as `multipart/mixed`; otherwise as JSON.
    InlineMultipart,
    /// A document with its attachments as `multipart/mixed`; otherwise each attachment is read separately.
    Multipart,
    /// `include_docs` of `_changes`; otherwise documents are read separately.
    IncludeDocs,
    /// `seq_interval` of `_changes`; otherwise every row has its sequence.
    SeqInterval,
    /// `att_encoding_info` of a document; without it, a compressed attachment cannot be told before it is read.
    EncodingInfo,
    /// Bodies of requests that are compressed; otherwise they are sent as they are.
    CompressedBodies,
}

impl fmt::Display for Optional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BulkGet => "_bulk_get",
            Self::InlineAttachments => "_bulk_get with attachments",
            Self::InlineMultipart => "_bulk_get as multipart/mixed",
            Self::Multipart => "a document as multipart/mixed",
            Self::IncludeDocs => "include_docs of _changes",
            Self::SeqInterval => "seq_interval of _changes",
            Self::EncodingInfo => "att_encoding_info",
            Self::CompressedBodies => "compressed bodies of requests",
        })
    }
}

/// The refusals that a process remembers.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// When each was observed, by the hash of its peer.
    known: Mutex<HashMap<(u64, Optional), Instant>>,
    /// With a random key, so that no user can choose a URL with the hash of another one.
    hasher: RandomState,
}

impl Refusals {
    /// The key of a database with a login: another login may have other rights.
    pub fn key(&self, endpoint: &Endpoint) -> u64 {
        let login = endpoint.credentials().map(|login| (login.user.as_str(), login.password.reveal()));
        let headers = endpoint.headers().iter().map(|(name, value)| (name.as_str(), value.reveal()));
        let proxy = endpoint.proxy();
        self.hasher.hash_one((endpoint.url(), login, headers.collect::<Vec<_>>(), proxy))
    }

    /// Whether a peer has refused it recently.
    pub fn knows(&self, peer: u64, option: Optional, now: Instant) -> bool {
        let observed = self.known().get(&(peer, option)).copied();
        observed.is_some_and(|at| now.saturating_duration_since(at) < REMEMBERED)
    }

    /// Remembers a refusal. Returns whether this is news.
    pub fn add(&self, peer: u64, option: Optional, now: Instant) -> bool {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < REMEMBERED;
        let mut known = self.known();
        if known.len() >= MOST_REFUSALS && !known.contains_key(&(peer, option)) {
            known.retain(|_, at| is_fresh(*at));
            if known.len() >= MOST_REFUSALS
                && let Some(oldest) = known.iter().min_by_key(|(_, at)| **at).map(|(key, _)| *key)
            {
                known.remove(&oldest);
            }
        }
        !known.insert((peer, option), now).is_some_and(is_fresh)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<(u64, Optional), Instant>> {
        // No operation leaves the map in an inconsistent state.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn endpoint(value: Value) -> Endpoint {
        Endpoint::parse("source", &value, &["http".to_owned()]).unwrap()
    }

    #[test]
    fn a_refusal_is_one_logins_and_expires() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let key = |value: Value| refusals.key(&endpoint(value));
        let mine = key(json!("http://me:1@h/db"));
        assert!(refusals.add(mine, Optional::BulkGet, now), "it is news");
        assert!(!refusals.add(mine, Optional::BulkGet, now), "it is known");
        assert!(refusals.knows(key(json!("http://me:1@h/db/")), Optional::BulkGet, now));
        assert!(!refusals.knows(mine, Optional::IncludeDocs, now));
        for other in [
            json!("http://h/db"),
            json!("http://me:2@h/db"),
            json!("http://me:1@h/other"),
            json!({"url": "http://me:1@h/db", "headers": {"X-A": "1"}}),
        ] {
            assert!(!refusals.knows(key(other.clone()), Optional::BulkGet, now), "{other}");
        }
        assert!(!refusals.knows(mine, Optional::BulkGet, now + REMEMBERED));
        assert!(refusals.add(mine, Optional::BulkGet, now + REMEMBERED), "it is news again");
    }

    #[test]
    fn refusals_are_bounded_and_the_oldest_is_forgotten() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let at = |nth: usize| start + Duration::from_millis(nth as u64);
        for nth in 0..MOST_REFUSALS + 10 {
            refusals.add(nth as u64, Optional::BulkGet, at(nth));
        }
        let now = at(MOST_REFUSALS + 10);
        assert_eq!(refusals.known().len(), MOST_REFUSALS);
        assert!(!refusals.knows(9, Optional::BulkGet, now) && refusals.knows(10, Optional::BulkGet, now));
    }
}
