//! What a run gets from its process.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turnwise_outbound::Client;

use crate::metrics::Metrics;
use crate::multiplex;
use crate::stats::Stats;

/// What a run needs from its process.
#[derive(Clone)]
pub struct Context {
    /// The connections, shared by all runs.
    pub client: Client,
    /// Counts what the run does.
    pub metrics: Arc<Metrics>,
    /// The uuid of this server, part of every replication id. With the uuid of a CouchDB, runs find that CouchDB's checkpoints.
    pub server_uuid: String,
    /// Stops the run gracefully: it finishes what is nearly done, writes a checkpoint, and returns a [`Report`](crate::Report) with `stopped`.
    pub stop: CancellationToken,
    /// Receives a snapshot whenever a batch is done or a checkpoint is written.
    pub progress: watch::Sender<Stats>,
    /// Receives whether a continuous run is idle: everything is copied, and the run waits for changes.
    pub idle: watch::Sender<bool>,
    /// The job's numbers before this run. The run continues from them, or from those of the last checkpoint where these
    /// are larger. `None`: the snapshots and the report hold the numbers of this run only.
    pub before: Option<Stats>,
    /// Where an idle continuous run parks, if it may.
    pub parking: Option<multiplex::Prospect>,
}

impl Context {
    /// A context without anything that stops or observes the run; set the fields to change that.
    pub fn new(client: Client, server_uuid: impl Into<String>) -> Self {
        Self {
            client,
            metrics: Arc::default(),
            server_uuid: server_uuid.into(),
            stop: CancellationToken::new(),
            progress: watch::Sender::new(Stats::default()),
            idle: watch::Sender::new(false),
            before: None,
            parking: None,
        }
    }
}
