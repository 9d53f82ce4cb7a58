//! What pages read from.

use std::ops::Deref;

/// The state of the pages.
#[derive(Clone)]
pub struct App {
    /// The API whose functions most pages use.
    pub api: turnwise_api::App,
    /// CouchDB's API, for replications and settings.
    pub couch: turnwise_couch::App,
}

impl Deref for App {
    type Target = turnwise_api::App;

    fn deref(&self) -> &turnwise_api::App {
        &self.api
    }
}
