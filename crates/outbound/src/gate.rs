//! Limits the concurrent requests of all jobs of a process to one server.
//!
//! Each job has its own `http_connections`. A thousand jobs that start at the same time, or all find work, would still
//! open twenty thousand connections to the server that they share. Each request therefore also takes one of a server's
//! places, first come, first served. It takes the place only when it may be sent. Requests to a throttled database wait
//! for the limiter, and must not block the server's other databases. The feeds of running jobs take no place: they stay
//! open forever, and each opens after requests that took one.
//!
//! Sources and targets have separate places. A request to a target may wait for one to the source, or the other way
//! round, but never both. A reader of a source may wait for the target, but a target's request reads from the source
//! only by uncounted requests. Circular waits are thus impossible.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use crate::error::Side;

/// Concurrent requests to one server, as a source and as a target. CouchDB accepts 2,048 connections by default. The
/// rest is for the feeds of all running jobs (`max_jobs` 500), and for other clients.
pub(crate) const REQUESTS_PER_SERVER: usize = 256;

/// The places of all servers in use.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<(String, bool), Weak<Semaphore>>>);

impl Gates {
    /// The places of a database's server.
    pub fn of(&self, url: &Url, side: Side) -> Arc<Semaphore> {
        let key = (url.origin().ascii_serialization(), side == Side::Source);
        let mut gates = self.0.lock().expect("no thread panics while it holds this lock");
        if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(Semaphore::new(REQUESTS_PER_SERVER));
        gates.insert(key, Arc::downgrade(&gate));
        gate
    }
}

/// A request's places: at its job and, once it is sent, at its server.
pub(crate) struct Permit {
    pub _connection: OwnedSemaphorePermit,
    /// Returned after the response has been read, or when the request is repeated.
    pub place: Option<OwnedSemaphorePermit>,
}
