//! The integration tests of this crate, as one program: it links once.
#![allow(clippy::unwrap_used)]

mod demand;
mod integers;
mod queueing;
mod recorded;
mod rotating;
