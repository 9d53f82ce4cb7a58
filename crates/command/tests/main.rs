//! The integration tests of this crate, as one program: it links once. `guard.rs` is a program of its own.
#![allow(clippy::unwrap_used)]

mod common;
mod handler;
mod process;
