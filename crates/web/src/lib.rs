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
pub mod counted;
pub mod cross_site;
pub mod encoding;
pub mod error;
mod explained;
mod heads;
mod linger;
pub mod listener;
pub mod names;
pub mod pool;
pub mod request;
pub mod room;
pub mod rows;
mod state;
pub mod tls;
pub mod traced;
pub mod v1_error;

use axum::Router;
use axum::middleware::{from_fn_with_state, map_request};

use self::access::authenticate;

pub use self::state::{Shared, Web};

/// These routes, for requests whose sender is known and may send them.
pub fn layered(routes: Router, web: &Web) -> Router {
    routes
        .layer(from_fn_with_state(web.clone(), encoding::decode))
        .layer(from_fn_with_state(web.clone(), authenticate))
        .layer(from_fn_with_state(web.clone(), cross_site::check))
        .layer(map_request(|request| async { linger::lingering(request) }))
}
