//! How many requests one server gets at once, from all jobs of a process.
//!
//! A job has `http_connections` of its own. A thousand jobs that start in the same moment, or that all find something to do, would
//! still open twenty thousand connections to the one server that they share. So each request also takes one of a server's
//! places, in the order in which they come; only when it may be sent, so that requests to a throttled database, which wait for the limiter,
//! keep no place from those to the server's other databases. The feeds of running jobs take none: they stay open for ever, and are opened after
//! requests that did.
//!
//! Sources and targets have places of their own, because a request to a target may wait for one to the source or the other way
//! round, but never both: whoever reads from a source may wait for the target, and a target's request reads from the source
//! only by requests that are not counted. So nobody waits for somebody who waits for him.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use crate::error::Side;

/// Requests that one server gets at once, as a source and as a target. CouchDB takes 2,048 connections unless told
/// otherwise: this leaves room for the feeds of as many jobs as run (`max_jobs` 500), and for other clients.
pub(super) const REQUESTS_PER_SERVER: usize = 256;

/// The places of all servers that somebody uses.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<(String, bool), Weak<Semaphore>>>);

impl Gates {
    /// The places of a database's server.
    pub fn of(&self, url: &Url, side: Side) -> Arc<Semaphore> {
        let key = (url.origin().ascii_serialization(), side == Side::Source);
        let mut gates = self.0.lock().expect("nobody panics with it");
        if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(Semaphore::new(REQUESTS_PER_SERVER));
        gates.insert(key, Arc::downgrade(&gate));
        gate
    }
}

/// A request's places: among its job's, and, once it is sent, among its server's.
pub(super) struct Permit {
    pub _connection: OwnedSemaphorePermit,
    /// Given back when the answer has been read, or when the request is made again.
    pub place: Option<OwnedSemaphorePermit>,
}
