//! The integration tests of this crate, as one program: it links once.
#![allow(clippy::unwrap_used)]

mod deploy;
