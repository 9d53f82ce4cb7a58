//! A replication as a job: what the queue keeps, and the part of it that may be shown.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use turnwise_queue::{Error as QueueError, Job, Keyspace, NewJob, jobs};
use turnwise_store::Transaction;

use crate::documents::{Error, Result};
use crate::handler::JOB_TYPE;
use crate::{Endpoint, Replication};

/// Longest URL of an endpoint as it is shown, in bytes: two of them fit a job's summary.
const MAX_URL_BYTES: usize = 4_096;
/// The same for a proxy's URL, which is a host and a user.
const MAX_PROXY_BYTES: usize = 1_024;
/// Who transient jobs of nobody in particular are charged to.
const NOBODY: &str = "_replicate";

/// Where a replication comes from.
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

/// What may be shown of a replication job: no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The source's URL without credentials, as CouchDB shows it.
    pub source: String,
    /// The target's URL without credentials.
    pub target: String,
    /// The proxy by which the source is reached, without its password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_proxy: Option<String>,
    /// The same for the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_proxy: Option<String>,
    /// The replicator database, if the job belongs to a document.
    pub database: Option<String>,
    /// The document.
    pub doc_id: Option<String>,
    /// On whose behalf.
    pub user: Option<String>,
    /// It follows the changes for ever.
    pub continuous: bool,
    /// Between two checkpoints, in ms.
    pub checkpoint_interval: u64,
    /// When it was asked for, in µs since the epoch.
    pub start_time_us: i64,
}

impl Summary {
    /// What a replication job's record holds.
    pub fn of(job: &Job) -> Option<Summary> {
        Self::parse(&job.summary)
    }

    /// What an active row holds.
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
            source: shown(&replication.source),
            target: shown(&replication.target),
            source_proxy: replication.source.proxy().map(ToString::to_string),
            target_proxy: replication.target.proxy().map(ToString::to_string),
            database,
            doc_id,
            user: replication.user_ctx.name.clone(),
            continuous: replication.continuous,
            checkpoint_interval: u64::try_from(replication.checkpoint_interval.as_millis())
                .unwrap_or(u64::MAX),
            start_time_us: now_us,
        }
    }
}

/// An endpoint's URL without credentials, as `_scheduler/jobs` shows it.
pub(super) fn shown(endpoint: &Endpoint) -> String {
    endpoint.url().to_string()
}

/// The job that runs a replication under its id. `body` is its document or request.
///
/// # Errors
/// `Invalid` with the field's name if the queue could not take it: a URL is too long to be shown, or a name.
pub fn new_job(
    replication: &Replication,
    id: &str,
    origin: Origin<'_>,
    body: &Map<String, Value>,
    now_us: i64,
) -> Result<NewJob> {
    for (field, endpoint) in [("source", &replication.source), ("target", &replication.target)] {
        let bytes = shown(endpoint).len();
        if bytes > MAX_URL_BYTES {
            let problem = format!("has a URL of {bytes} bytes; at most {MAX_URL_BYTES} are allowed");
            return Err(Error::field(crate::SpecError::new(field, problem)));
        }
    }
    let summary = Summary::new(replication, origin, now_us);
    for (field, proxy) in [("source_proxy", &summary.source_proxy), ("target_proxy", &summary.target_proxy)] {
        let bytes = proxy.as_ref().map_or(0, String::len);
        if bytes > MAX_PROXY_BYTES {
            let problem = format!("has a URL of {bytes} bytes; at most {MAX_PROXY_BYTES} are allowed");
            return Err(Error::field(crate::SpecError::new(field, problem)));
        }
    }
    let user = summary.user.clone().filter(|user| !user.is_empty());
    let tenant = match origin {
        Origin::Document { db, .. } => db.to_owned(),
        Origin::Request => user.clone().unwrap_or_else(|| NOBODY.to_owned()),
    };
    let to_json = |error| Error::Invalid(format!("cannot be stored: {error}"));
    let new = NewJob {
        tenant,
        user,
        summary: to_raw_value(&summary).map_err(to_json)?,
        continuous: replication.continuous,
        after: Vec::new(),
        reasons: Vec::new(),
        // A document has them, and so has whoever asked.
        forgets_options: true,
        // Whoever asked for one run is answered with its first end, and asks again: nobody is left to stop it later.
        max_attempts: match origin {
            Origin::Request if !replication.continuous => Some(1),
            _ => None,
        },
        ..NewJob::new(JOB_TYPE, id, to_raw_value(&options(body)).map_err(to_json)?)
    };
    new.check().map_err(|error| match error {
        QueueError::Invalid { field: "user", problem } => Error::Invalid(format!("user_ctx.name: {problem}")),
        QueueError::Invalid { field, problem } => Error::Invalid(format!("{field}: {problem}")),
        error => error.into(),
    })?;
    Ok(new)
}

/// The members of a document that the replication depends on.
fn options(body: &Map<String, Value>) -> Map<String, Value> {
    let mut options = body.clone();
    options.retain(|name, _| !name.starts_with('_'));
    options
}

/// Whether a job has been added for what `new` asks for.
pub async fn same_options(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    new: &NewJob,
) -> turnwise_queue::Result<bool> {
    let old = jobs::options(tx, keys, job).await?;
    let value = |options: &RawValue| serde_json::from_str::<Value>(options.get()).ok();
    Ok(value(&old) == value(&new.options))
}

/// A time as CouchDB writes it: `2026-11-21T09:10:58Z`.
pub fn timestamp(at_us: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(at_us.div_euclid(1_000_000))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}
