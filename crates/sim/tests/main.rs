//! The integration tests of this crate, as one program: it links once.
#![allow(clippy::unwrap_used)]

mod conformance;
mod mutants;
mod replay;
mod seeds;
