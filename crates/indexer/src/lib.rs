//! Indexes of CouchDB databases: views, search and nouveau indexes of design documents.
//!
//! - [`Database`]: the few requests that this needs.
//! - [`build`](mod@build): builds all indexes of a design document, and waits for them.
//! - [`deploy`](mod@deploy): replaces a design document after its indexes are built, so that no reader waits for them.

pub mod build;
mod database;
pub mod deploy;

pub use build::{Building, build};
pub use database::{Database, Error};
pub use deploy::{Deployed, Progress, Step, clean, deploy, rollback};
