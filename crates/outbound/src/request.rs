//! A request to a peer.

use std::time::Duration;

use bytes::Bytes;
use http::Method;

/// A request that can be repeated: its body is in memory, or it has none.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) method: Method,
    /// Relative to the database, percent-encoded, with the query.
    pub(crate) path: String,
    pub(crate) body: Option<Bytes>,
    pub(crate) accept: &'static str,
    /// Does not count against `http_connections`.
    pub(crate) uncounted: bool,
    /// The silence after which it fails, if it differs from the peer's.
    pub(crate) silence: Option<Duration>,
    /// Its response is a feed.
    pub(crate) feed: bool,
}

impl Request {
    /// A request without a body. `path` is relative to the peer, percent-encoded, with the query.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            body: None,
            accept: "application/json",
            uncounted: false,
            silence: None,
            feed: false,
        }
    }

    /// `GET`.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// `POST` with a JSON body.
    pub fn post(path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self::new(Method::POST, path).json(body)
    }

    /// With this JSON as its body.
    pub fn json(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// With this `Accept`.
    pub fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// For a request that stays open forever, or one that a counted request depends on.
    pub fn uncounted(mut self) -> Self {
        self.uncounted = true;
        self
    }

    /// Its response may be idle while there are no changes.
    pub fn feed(mut self) -> Self {
        self.feed = true;
        self
    }

    /// For a request whose response may need longer than others: this much silence is no failure.
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = Some(silence);
        self
    }
}
