//! The built binary with many tenants: what each of them gets of the room, measured from outside. Apart from the other
//! end-to-end tests, because these need the whole machine: test binaries run one after the other.
#![allow(clippy::unwrap_used)]

mod backlog;
mod entitlement;
mod replications;
#[path = "../end_to_end/server.rs"]
#[allow(dead_code, reason = "these tests need only a part of it")]
mod server;
