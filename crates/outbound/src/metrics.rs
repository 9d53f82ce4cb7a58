//! What the requests of a process have done, for metrics.

use turnwise_store::metrics::Counter;

/// The metrics of all requests that share a [`Client`](crate::Client).
#[derive(Debug, Default)]
pub struct Metrics {
    /// Requests sent.
    pub requests: Counter,
    /// Requests that succeeded, except feeds.
    pub responses: Counter,
    /// Requests that failed, except feeds: with an error status, or without a response.
    pub response_failures: Counter,
    /// Feeds of changes that were opened.
    pub feeds: Counter,
    /// Feeds of changes that could not be opened.
    pub feed_failures: Counter,
    /// Connections opened.
    pub connections_opened: Counter,
    /// Connections closed.
    pub connections_closed: Counter,
}
