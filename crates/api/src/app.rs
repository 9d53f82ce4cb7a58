//! The state of this API.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use turnwise_indexer::jobs::Indexing;
use turnwise_store::StoreUrl;
use turnwise_web::Web;
use turnwise_web::pool::Pool;
use turnwise_worker::Spans;

use super::accepting::Accepting;
use super::event_log::Events;
use super::quota::WaitingJobs;
use super::workers_of::RegisteredBy;

/// The state of this API. Each request clones it, so it is one pointer.
pub type App = Arc<AppState>;

/// See [`App`].
pub struct AppState {
    /// What all requests share.
    pub web: Web,
    /// The store's URL.
    pub store_url: StoreUrl,
    /// Their current requests for jobs.
    pub accepting: Accepting,
    /// Who has registered external workers.
    pub workers: RegisteredBy,
    /// Runs jobs of type `command`. `None` if this node runs none.
    pub commands: Option<Arc<turnwise_command::Handler>>,
    /// The servers whose indexes this node builds.
    pub indexing: Indexing,
    /// The numbers of waiting jobs, for the limit of each identity.
    pub waiting_jobs: WaitingJobs,
    /// Counts of jobs by condition, of which each takes long.
    pub counts: Pool,
    /// The events of all jobs.
    pub events: Events,
    /// Where the spans of traced jobs go.
    pub spans: Spans,
}

impl Deref for AppState {
    type Target = Web;

    fn deref(&self) -> &Web {
        &self.web
    }
}

impl AppState {
    /// The longest time that a request waits.
    pub fn max_wait(&self) -> Duration {
        self.config.get().jobs.max_wait
    }
}
