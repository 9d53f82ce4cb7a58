//! The service that answers requests: the APIs and the pages, behind what they share.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use turnwise_metrics::{Metrics, measured};
use turnwise_web::{Web, layered};
use turnwise_worker::Passage;

/// The states of all parts.
pub(crate) struct Http {
    pub web: Web,
    pub api: turnwise_api::App,
    pub couch: turnwise_couch::App,
    pub metrics: Arc<Metrics>,
    /// Moves the clock of a server for tests.
    pub passage: Option<Passage>,
}

impl Http {
    /// Everything that clients may request.
    pub fn router(&self) -> Router {
        let (api, couch) = (self.api.clone(), self.couch.clone());
        let pages = turnwise_pages::App { api: api.clone(), couch: couch.clone() };
        let clock = self.passage.clone().map(|passage| turnwise_api::testing::router(api.clone(), passage));
        let routes = turnwise_api::router(api)
            .merge(turnwise_pages::router(pages))
            .merge(turnwise_couch::router(couch))
            .merge(clock.unwrap_or_default());
        layered(routes, &self.web).layer(from_fn_with_state(self.metrics.clone(), measured))
    }
}
