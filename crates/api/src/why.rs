//! `GET /v1/jobs/{type}/{id}/why` and `/v1/documents/{db}/{id}/why`: the reason for a job's state.

use serde::Deserialize;
use serde_json::Value;
use turnwise_explain::graph::{self, Graph};
use turnwise_explain::why;
use turnwise_protocol::{DocumentWhy, Reason, Why, names};
use turnwise_queue::jobs;
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_replicator::doc_processor::{self, Nodes, Status};
use turnwise_replicator::documents::Error as DocumentError;
use turnwise_web::access::Caller;
use utoipa::IntoParams;

use super::app::App;
use super::error::{Result, V1Error};
use super::extract::{Call, JobPath, Names, Shown};
use super::jobs::visible;
use super::responses::{Common, NoJob};
use super::view;

/// Explain why a job waits
///
/// Or why it runs, or how it ended. The response has a reason for programs and a sentence for people. It also has the
/// job's place in the queue, its tenant's standing, and its expected start if that can be estimated. All values are
/// from one snapshot of the store: the last seconds of a worker's charges may be missing.
#[utoipa::path(
    get, path = "/jobs/{type}/{id}/why", tag = "tenants", operation_id = "why_job", params(JobPath),
    responses((status = 200, body = Why, description = "The state of the job and the reason for it."), NoJob, Common),
)]
pub(super) async fn why_job(Call { app, caller, path }: Call<JobPath>) -> Result<Shown<Why>> {
    let (tx, rules) = (app.store.begin().await?, app.rules());
    let job = visible(&app, &caller, &tx, &path).await?;
    Ok(Shown(why(&app.reader(&tx, &rules), &caller, job).await?))
}

/// A job with the reason for its state and the jobs around it, from one snapshot.
pub async fn explained(
    app: &App,
    caller: &Caller,
    path: &JobPath,
) -> Result<(turnwise_protocol::Job, Why, Graph)> {
    let (tx, rules) = (app.store.begin().await?, app.rules());
    let reader = app.reader(&tx, &rules);
    let job = visible(app, caller, &tx, path).await?;
    let around = graph::around(&reader, caller, &job).await?;
    let why = why(&reader, caller, job.clone()).await?;
    Ok((view::whole(app, caller, &tx, job).await?, why, around))
}

/// `/{db}/{id}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct DocumentPath {
    /// The `_replicator` database, percent-encoded: `prefix/_replicator` holds a slash.
    #[param(value_type = names::Name)]
    db: String,
    /// The document's id, percent-encoded.
    #[param(value_type = names::Name)]
    id: String,
}

impl Names for DocumentPath {
    fn check(&self) -> Result<()> {
        names::check_name("db", &self.db)?;
        Ok(names::check_name("id", &self.id)?)
    }
}

/// Explain why a document's replication waits
///
/// The same for the replication of a document. It may have no job: before the server has read its filter's code, and
/// after its end.
#[utoipa::path(
    get, path = "/documents/{db}/{id}/why", tag = "tenants", operation_id = "why_document", params(DocumentPath),
    responses(
        (status = 200, body = DocumentWhy, description = "The state of the job and the reason for it."),
        (status = 404, body = turnwise_protocol::Error,
            description = "`not_found`: the document does not exist, or is not a replication."),
        Common,
    ),
)]
pub(super) async fn why_document(call: Call<DocumentPath>) -> Result<Shown<DocumentWhy>> {
    document(&call.app, &call.caller, &call.path.db, &call.path.id).await.map(Shown)
}

/// Why a document's replication waits, if the caller may read it.
pub async fn document(app: &App, caller: &Caller, db: &str, id: &str) -> Result<DocumentWhy> {
    if !caller.reads(db) {
        return Err(no_document(db, id));
    }
    let tx = app.store.begin().await?;
    let status =
        doc_processor::status(&tx, &app.keys, &mut Nodes::default(), db, id, app.store.runtime().now_us())
            .await;
    let status = match status {
        Ok(Some(status)) => status,
        Err(DocumentError::Queue(error)) => return Err(error.into()),
        // The database does not exist, or its name is invalid.
        Ok(None) | Err(_) => return Err(no_document(db, id)),
    };
    let job = match &status.id {
        Some(job) => caller.sees(jobs::get(&tx, &app.keys, REPLICATION, job).await?),
        None => None,
    };
    let job = match job {
        Some(job) => Some(why(&app.reader(&tx, &app.rules()), caller, job).await?),
        None => None,
    };
    let error = error_of(&status);
    let because = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let (reason, sentence) = match (&job, status.state) {
        (Some(job), _) => (job.reason, job.sentence.clone()),
        (None, "initializing") => {
            (Reason::FindsFilter, "Its filter's code is being read from the source.".to_owned())
        }
        (None, "error") => {
            let errors = status.error_count;
            let sentence = format!(
                "Its filter's code could not be read from the source, and the server retries this (errors: {errors}){because}"
            );
            (Reason::FilterFailed, sentence)
        }
        (None, "completed") => (Reason::Completed, format!("Has completed at {}.", status.last_updated)),
        (None, _) => (Reason::Failed, format!("Has failed at {}{because}", status.last_updated)),
    };
    Ok(DocumentWhy { database: db.to_owned(), doc_id: id.to_owned(), reason, sentence, error, job })
}

fn error_of(status: &Status) -> Option<String> {
    let info: Value = serde_json::from_str(status.info.as_ref()?.get()).ok()?;
    info.get("error")?.as_str().map(str::to_owned)
}

fn no_document(db: &str, id: &str) -> V1Error {
    V1Error::not_found(
        format!("there is no replication document `{id}` in `{db}`"),
        "it was never written, or was deleted; design documents describe no replications",
    )
}
