//! What the HTTP APIs of a server have in common, from the socket to a handler.
//!
//! ```text
//!   listener (heads, TLS) ──▶ cross_site, cors ──▶ authenticate ──▶ encoding ──▶ the routes of an API
//! ```
//!
//! [`layered`] puts these around the routes of `/v1`, of CouchDB's API and of the pages. Each of them has a state of its own, with [`Web`] in it.

pub mod access;
pub mod answer;
mod cors;
pub mod cross_site;
pub mod encoding;
pub mod error;
pub mod explained;
mod heads;
mod linger;
pub mod listener;
pub mod pool;
pub mod refusal;
pub mod request;
pub mod room;
pub mod rows;
pub mod tls;
pub mod traced;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn_with_state, map_request};
use axum::response::Response;
use tokio_util::sync::CancellationToken;
use turnwise_config::Config;
use turnwise_queue::Keyspace;
use turnwise_store::Store;
use turnwise_worker::Live;

use self::access::{Audit, Identities, Jwt, Pace, authenticate};
use self::cross_site::Names;
use self::explained::Explained;
use self::refusal::Refusal;
use self::room::Room;

/// What all requests share. Each layer of each request clones it, so it is one pointer.
#[derive(Clone)]
pub struct Web(Arc<Shared>);

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
    /// What explains jobs, tenants and types.
    pub explained: Explained,
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
    pub refused_page: fn(&Request, Refusal) -> Response,
}

impl Deref for Web {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Web {
    /// The state of a server that starts.
    pub fn new(shared: Shared) -> Web {
        Web(Arc::new(shared))
    }

    /// The time by the store's clock, in µs since 1970.
    pub fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }

    /// 32 random hexadecimal digits.
    pub fn new_uuid(&self) -> String {
        let runtime = self.store.runtime();
        format!("{:016x}{:016x}", runtime.random(), runtime.random())
    }
}

/// These routes, for requests whose sender is known and may send them.
pub fn layered(routes: Router, web: &Web) -> Router {
    routes
        .layer(from_fn_with_state(web.clone(), encoding::decode))
        .layer(from_fn_with_state(web.clone(), authenticate))
        .layer(from_fn_with_state(web.clone(), cross_site::check))
        .layer(map_request(|request| async { linger::lingering(request) }))
}

/// A request reached a handler without the layer that finds out who sends it.
#[derive(Debug, thiserror::Error)]
#[error("nobody has authenticated a request")]
pub struct NoCaller;
