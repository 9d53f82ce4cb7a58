//! The replication job type: copies CouchDB-protocol databases.
//!
//! [`Replication::parse`] turns a replication document into a request, [`replicate`] runs it:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use turnwise_outbound::Client;
//! use turnwise_replicator::{Context, Defaults, Replication, replicate};
//!
//! let body = serde_json::json!({"source": "http://a:5984/db", "target": "http://b:5984/db", "create_target": true});
//! let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default())?;
//! let context = Context::new(Client::new()?, "the-uuid-of-this-server");
//! let report = replicate(&replication, &context).await?;
//! println!("{}", serde_json::to_string(&report)?);
//! # Ok(())
//! # }
//! ```
//!
//! Several batches of documents are in flight concurrently. The stages are: changes (`changes`) → missing revisions
//! (`revs_diff`) → bodies (`fetch`, `attachments`) → target (`write`) → checkpoints (`checkpoint`). `pipeline` connects
//! them. The bytes in flight bound the memory: bodies pass through as JSON text, attachments as streams.

mod attachments;
mod bulk_rows;
mod changes;
pub mod check;
mod checkpoint;
mod copy;
mod database;
pub mod doc_processor;
pub mod documents;
mod error;
pub mod events;
mod external_term;
mod feed_docs;
mod fetch;
mod handler;
mod json_stream;
mod metrics;
mod multipart;
pub mod multiplex;
pub mod ownership;
mod pace;
mod pipeline;
mod progress;
mod query;
mod refusal;
mod remote;
pub mod replication_id;
mod report;
mod request_spans;
mod revs_diff;
mod selector;
mod seq;
mod spec;
mod stats;
mod unread;
pub mod upstream;
mod write;

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turnwise_outbound::Client;

pub use database::{filter_code, replication_id};
pub use error::{Error, Incomplete};
pub use handler::{Handler, JOB_TYPE};
pub use metrics::Metrics;
pub use pipeline::replicate;
pub use remote::{MAX_SEQS, Remote, Update, Updates};
pub use replication_id::ReplicationId;
pub use report::{REPLICATION_ID_VERSION, Report, Session};
pub use seq::Seq;
pub use spec::{Defaults, Filter, Replication, UserCtx};
pub use stats::Stats;

/// What a run needs from its process.
#[derive(Clone, Debug)]
pub struct Context {
    /// The connections, shared by all runs.
    pub client: Client,
    /// Counts what the run does.
    pub metrics: Arc<Metrics>,
    /// The uuid of this server, part of every replication id. With the uuid of a CouchDB, runs find that CouchDB's checkpoints.
    pub server_uuid: String,
    /// Stops the run gracefully: it finishes what is nearly done, writes a checkpoint, and returns a [`Report`] with `stopped`.
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
