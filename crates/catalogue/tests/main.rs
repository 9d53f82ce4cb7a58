//! The integration tests of this crate, as one program, so that it links once.
#![allow(clippy::unwrap_used)]

mod derive;
mod docs;
mod example;
mod wrong;
