//! The built binary with many tenants: the slots that each of them gets, measured from outside. Separate from the other
//! end-to-end tests, because these need the whole machine: test binaries run one after the other.
#![allow(clippy::unwrap_used)]

mod backlog;
mod entitlement;
mod replications;
#[path = "../end_to_end/server.rs"]
#[allow(dead_code, reason = "these tests need only a part of it")]
mod server;
