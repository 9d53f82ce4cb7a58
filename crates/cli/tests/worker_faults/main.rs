//! The built binary while workers and servers are killed. Separate from the other end-to-end tests, because these need the
//! whole machine: test binaries run one after the other.
#![allow(clippy::unwrap_used)]

mod acknowledged;
mod locks;
mod python_worker;
#[path = "../end_to_end/server.rs"]
#[allow(dead_code, reason = "these tests need only a part of it")]
mod server;
mod twenty_thousand;
