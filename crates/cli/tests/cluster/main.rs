//! The built binary on a store that several nodes share, while nodes and store fail. Separate from the other end-to-end
//! tests, because these need the whole machine: test binaries run one after the other.
#![allow(clippy::unwrap_used)]

mod node;
mod output;
mod replications;
#[path = "../end_to_end/server.rs"]
#[allow(dead_code, reason = "these tests need only a part of it")]
mod server;
mod shared_store;
mod start;
mod three_nodes;
mod traces;
mod trouble;
mod workers;
