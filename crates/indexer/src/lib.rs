//! Indexes of CouchDB databases: views, search and nouveau indexes of design documents.
//!
//! - [`Database`]: the few requests that this needs.
//! - [`build`]: builds all indexes of a design document, and waits for them.
//! - [`deploy`](mod@deploy): replaces a design document after its indexes are built, so that no reader waits for them.
//! - [`jobs`]: keeps the indexes of whole servers up to date, as jobs of type `indexing`.

pub mod build;
mod database;
pub mod deploy;
pub mod jobs;

use serde_json::{Map, Value};

pub use build::{Building, Kind};
pub use database::{Database, Error};
pub use deploy::{Deployed, Progress, Step, clean, deploy, rollback};

/// Whether the indexes of a design document are built without being asked for.
fn is_automatic(design: &Map<String, Value>) -> bool {
    design.get("autoupdate") != Some(&Value::Bool(false))
}
