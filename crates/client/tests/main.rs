//! The integration tests of this crate, in one binary that links once.
#![allow(clippy::unwrap_used)]

mod common;
mod requests;
mod tasks;
mod worker;
