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
mod context;
mod copy;
mod database;
pub mod doc_processor;
pub mod documents;
mod error;
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
mod parked_jobs;
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
mod waits;
mod write;

pub use context::Context;
pub use database::{filter_code, replication_id};
pub use error::{Error, Incomplete};
pub use handler::Handler;
pub use metrics::Metrics;
pub use parked_jobs::ParkedJobs;
pub use pipeline::replicate;
pub use query::encode;
pub use remote::{MAX_SEQS, Remote, Update, Updates};
pub use replication_id::ReplicationId;
pub use report::{REPLICATION_ID_VERSION, Report, Session};
pub use seq::Seq;
pub use spec::{Defaults, Filter, JOB_TYPE, Replication};
pub use stats::Stats;
