//! The integration tests of this crate, as one program: it links once.
#![allow(clippy::unwrap_used)]

mod compare;
mod couchdb;
mod peer;
mod proxy;
