//! The state of this API.

use std::ops::Deref;
use std::sync::Arc;

use axum::http::HeaderMap;
use tokio::sync::OwnedSemaphorePermit;
use turnwise_config::Shared;
use turnwise_metrics::Metrics;
use turnwise_outbound::Client;
use turnwise_replicator::doc_processor::{self, Settings};
use turnwise_replicator::upstream::Condition;
use turnwise_web::pool::{Semaphores, take};
use turnwise_web::{Web, traced};
use turnwise_worker::{Live, Spans};

/// The state of this API. Each request clones it, so it is one pointer.
pub type App = Arc<AppState>;

/// See [`App`].
pub struct AppState {
    /// What all requests share.
    pub web: Web,
    /// The settings of replications.
    pub settings: Live<Settings>,
    /// Reads the code of filters from sources.
    pub client: Client,
    /// The settings that nodes share.
    pub shared: Shared,
    /// The condition of the upstream, if there is one.
    pub upstream: Option<Live<Condition>>,
    /// What this node has done.
    pub metrics: Arc<Metrics>,
    /// Where the spans of traced jobs go.
    pub spans: Spans,
    /// See [`AppState::turn`].
    pub turns: Semaphores<String>,
}

impl Deref for AppState {
    type Target = Web;

    fn deref(&self) -> &Web {
        &self.web
    }
}

impl AppState {
    /// Waits for a turn to write documents of a database. All writes of a database take the next sequence number, so
    /// only one of several concurrent writes can commit. Serial writes avoid conflicts and their pauses. Correctness
    /// does not depend on it: other processes and ending jobs write without a turn.
    pub async fn turn(&self, db: &str) -> OwnedSemaphorePermit {
        take(self.turns.of(db.to_owned(), 1), 1).await
    }

    /// Runs transactions that may add replication jobs: these continue the trace of the request, or begin one.
    pub async fn traced<T, E>(
        &self,
        headers: &HeaderMap,
        write: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        doc_processor::traced(&self.spans, traced::parent(headers), self.store.runtime(), write).await
    }
}
