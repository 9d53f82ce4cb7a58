//! A replication as a job: the data in the queue, and the part of it for display.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use turnwise_outbound::FieldError;
use turnwise_queue::{Error as QueueError, Job, JobSpec, Keyspace, NewJob, Result as QueueResult, jobs};
use turnwise_store::Transaction;

use crate::Replication;
use crate::documents::{Error, Result};
use crate::spec::JOB_TYPE;

/// The longest displayed URL of an endpoint, in bytes: two of them fit into a job's summary.
const MAX_URL_BYTES: usize = 4_096;
/// The same for a proxy's URL, which is a host and a user.
const MAX_PROXY_BYTES: usize = 1_024;
/// The tenant of transient jobs without a user.
const NOBODY: &str = "_replicate";

/// The origin of a replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    /// A document of a replicator database.
    Document {
        /// The database.
        db: &'a str,
        /// The document.
        id: &'a str,
    },
    /// A request to `_replicate`.
    Request,
}

/// The part of a replication job for display, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The source's URL without credentials, as CouchDB shows it.
    pub source: String,
    /// The target's URL without credentials.
    pub target: String,
    /// The proxy of the source, without its password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_proxy: Option<String>,
    /// The proxy of the target, without its password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_proxy: Option<String>,
    /// The replicator database, if the job belongs to a document.
    pub database: Option<String>,
    /// The document.
    pub doc_id: Option<String>,
    /// The user on whose behalf the job runs.
    pub user: Option<String>,
    /// Whether it follows the changes without end.
    pub continuous: bool,
    /// The time between two checkpoints, in ms.
    pub checkpoint_interval: u64,
    /// When it was requested, in µs since the epoch.
    pub start_time_us: i64,
}

impl Summary {
    /// The summary in a replication job's record.
    pub fn of(job: &Job) -> Option<Summary> {
        Self::parse(&job.summary)
    }

    /// The summary in an active row.
    pub fn parse(summary: &RawValue) -> Option<Summary> {
        serde_json::from_str(summary.get()).ok()
    }

    /// The document that the job belongs to.
    pub fn document(&self) -> Option<(&str, &str)> {
        Some((self.database.as_deref()?, self.doc_id.as_deref()?))
    }

    fn new(replication: &Replication, origin: Origin<'_>, now_us: i64) -> Self {
        let (database, doc_id) = match origin {
            Origin::Document { db, id } => (Some(db.to_owned()), Some(id.to_owned())),
            Origin::Request => (None, None),
        };
        Summary {
            source: replication.source.url().to_string(),
            target: replication.target.url().to_string(),
            source_proxy: replication.source.proxy().map(ToString::to_string),
            target_proxy: replication.target.proxy().map(ToString::to_string),
            database,
            doc_id,
            user: replication.user.clone(),
            continuous: replication.continuous,
            checkpoint_interval: u64::try_from(replication.settings.checkpoint_interval.as_millis())
                .unwrap_or(u64::MAX),
            start_time_us: now_us,
        }
    }
}

/// The tenant of a request without a document: the user that it names.
pub fn request_tenant(replication: &Replication) -> String {
    let user = replication.user.clone().filter(|user| !user.is_empty());
    user.unwrap_or_else(|| NOBODY.to_owned())
}

/// The job that runs a replication under its id. `body` is its document or request.
///
/// # Errors
/// `Invalid` with the field's name if the queue could not store it, because a URL or a name is too long.
pub fn new_job(
    replication: &Replication,
    id: &str,
    origin: Origin<'_>,
    body: &Map<String, Value>,
    now_us: i64,
) -> Result<NewJob> {
    let summary = Summary::new(replication, origin, now_us);
    let bytes = |proxy: &Option<String>| proxy.as_ref().map_or(0, String::len);
    for (field, bytes, most) in [
        ("source", summary.source.len(), MAX_URL_BYTES),
        ("target", summary.target.len(), MAX_URL_BYTES),
        ("source_proxy", bytes(&summary.source_proxy), MAX_PROXY_BYTES),
        ("target_proxy", bytes(&summary.target_proxy), MAX_PROXY_BYTES),
    ] {
        if bytes > most {
            let problem = format!("has a URL of {bytes} bytes; at most {most} are allowed");
            return Err(Error::field(FieldError::new(field, problem)));
        }
    }
    let user = summary.user.clone().filter(|user| !user.is_empty());
    let tenant = match origin {
        Origin::Document { db, .. } => db.to_owned(),
        Origin::Request => request_tenant(replication),
    };
    let to_json = |error| Error::Invalid(format!("cannot be stored: {error}"));
    let spec = JobSpec {
        tenant,
        user,
        summary: to_raw_value(&summary).map_err(to_json)?,
        continuous: replication.continuous,
        // The document has the options, and so has the client that sent the request.
        forgets_options: true,
        // The client of a one-shot request receives the first end, and can send the request again. No client would
        // remain to stop later attempts.
        max_attempts: match origin {
            Origin::Request if !replication.continuous => Some(1),
            _ => None,
        },
        ..JobSpec::default()
    };
    // The members that affect the replication.
    let mut options = body.clone();
    options.retain(|name, _| !name.starts_with('_'));
    let options = to_raw_value(&options).map_err(to_json)?;
    let new = NewJob { spec, ..NewJob::new(JOB_TYPE, id, options) };
    new.check().map_err(|error| match error {
        QueueError::Invalid { field: "user", problem } => Error::Invalid(format!("user_ctx.name: {problem}")),
        QueueError::Invalid { field, problem } => Error::Invalid(format!("{field}: {problem}")),
        error => error.into(),
    })?;
    Ok(new)
}

/// Whether a job has the same options as `new`.
pub async fn same_options(tx: &Transaction, keys: &Keyspace, job: &Job, new: &NewJob) -> QueueResult<bool> {
    let old = jobs::options(tx, keys, job).await?;
    let value = |options: &RawValue| serde_json::from_str::<Value>(options.get()).ok();
    Ok(value(&old) == value(&new.options))
}
