//! The integration tests of this crate, as one program: it links once.
#![allow(clippy::unwrap_used)]

mod fairness;
mod locks;
mod planned;
mod queueing;
mod scenarios;
