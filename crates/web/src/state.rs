//! What all requests share.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use tokio_util::sync::CancellationToken;
use turnwise_catalogue::Catalogue;
use turnwise_config::Config;
use turnwise_explain::demand::Trackers;
use turnwise_queue::Keyspace;
use turnwise_store::Store;
use turnwise_worker::{External, Live};

use super::access::{Audit, Identities, Jwt, Pace};
use super::names::{Names, is_page, is_v1};
use super::room::Room;
use super::v1_error::V1Error;

/// What all requests share. Each layer of each request clones it, so it is one pointer.
pub type Web = Arc<Shared>;

/// See [`Web`].
pub struct Shared {
    /// The store, which does not wait long while it is unavailable.
    pub store: Store,
    /// The keys of its rows.
    pub keys: Keyspace,
    /// The node's name in responses.
    pub node: Arc<str>,
    /// Cancelled when the server stops: requests that wait then respond immediately.
    pub stop: CancellationToken,
    /// The current configuration.
    pub config: Live<Arc<Config>>,
    /// Acts for external workers: it has the rules of the queue that apply now.
    pub external: External,
    /// Derives the locks of jobs that declare none.
    pub catalogue: Arc<Catalogue>,
    /// The demand for slots, as far as this node was asked.
    pub demand: Trackers,
    /// Who may use the server.
    pub identities: Identities,
    /// The keys of JSON Web Tokens, if they are accepted.
    pub jwt: Option<Arc<Jwt>>,
    /// The audit log, if there is one.
    pub audit: Option<Arc<Audit>>,
    /// How many requests each identity has sent.
    pub pace: Pace,
    /// The names under which clients reach this server.
    pub names: Names,
    /// Memory for request bodies.
    pub body_room: Room,
    /// The page for a request for a page that is refused.
    pub refused_page: fn(&Request, V1Error) -> Response,
}

impl Shared {
    /// The time by the store's clock, in µs since 1970.
    pub fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }

    /// 32 random hexadecimal digits.
    pub fn new_uuid(&self) -> String {
        let runtime = self.store.runtime();
        format!("{:016x}{:016x}", runtime.random(), runtime.random())
    }

    /// The response to a request that is refused.
    pub fn refuse(&self, request: &Request, error: V1Error) -> Response {
        // The log leaves names out, because a stranger has chosen them.
        tracing::debug!(method = %request.method(), path = request.uri().path(), reason = error.reason, "a request was refused");
        match is_page(request) {
            true => (self.refused_page)(request, error),
            false => error.respond(is_v1(request)),
        }
    }
}
