//! `GET /v1/jobs/{type}/{id}/why` and `/v1/documents/{db}/{id}/why`: the reason for a job's state.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use turnwise_protocol::{Awaited, DocumentWhy, Expected, Limited, MAX_COUNTED, Position, Reason, Why, names};
use turnwise_queue::{Job, State as QueueState, dependencies, jobs, rate_limits, workers};
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_replicator::doc_processor::{self, Nodes, Status};
use turnwise_replicator::documents::Error as DocumentError;
use turnwise_store::Transaction;
use utoipa::IntoParams;

use super::error::{Result, V1Error};
use super::extract::{JobPath, Named, Names};
use super::standing::{Of, Snapshot, could_run_since};
use super::{Common, NoJob, decision, locked, position, reason, view};
use crate::access::Caller;
use crate::http::{App, answer};

/// Explain why a job waits
///
/// Or why it runs, or how it ended. The response has a reason for programs and a sentence for people. It also has the
/// job's place in the queue, its tenant's standing, and its expected start if that can be estimated. All values are
/// from one snapshot of the store: the last seconds of a worker's charges may be missing.
#[utoipa::path(
    get, path = "/jobs/{type}/{id}/why", tag = "tenants", operation_id = "why_job", params(JobPath),
    responses((status = 200, body = Why, description = "The state of the job and the reason for it."), NoJob, Common),
)]
pub(super) async fn why_job(
    State(app): State<App>,
    caller: Caller,
    Named(path): Named<JobPath>,
) -> Result<Response> {
    let tx = app.store.begin().await?;
    match caller.sees(jobs::get(&tx, &app.keys, &path.job_type, &path.id).await?) {
        Some(job) => Ok(answer::ok(&why(&app, &caller, &tx, job).await?)),
        None => Err(V1Error::no_job(&path.job_type, &path.id)),
    }
}

/// A job with the reason for its state, from one snapshot.
pub(in crate::http) async fn explained(
    app: &App,
    caller: &Caller,
    JobPath { job_type, id }: &JobPath,
) -> Result<(turnwise_protocol::Job, Why)> {
    let tx = app.store.begin().await?;
    let job = caller.sees(jobs::get(&tx, &app.keys, job_type, id).await?);
    let job = job.ok_or_else(|| V1Error::no_job(job_type, id))?;
    let why = why(app, caller, &tx, job.clone()).await?;
    Ok((view::job(app, &tx, job).await?, why))
}

/// Why a job waits, as a code and as a sentence; `None` if it runs.
pub(in crate::http) async fn waits(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    job: &Job,
) -> Result<Option<(Reason, String)>> {
    if job.state() == QueueState::Running {
        return Ok(None);
    }
    let Cause { reason, sentence, .. } = explain(app, caller, tx, job).await?;
    Ok(Some((reason, sentence)))
}

/// The reason for a job's state, and what it was found from.
struct Cause {
    snapshot: Snapshot,
    reason: Reason,
    sentence: String,
    predecessors: Option<position::Predecessors>,
    node: Option<String>,
    after: Vec<Awaited>,
    limited: Option<Limited>,
    locked: Option<locked::Locked>,
}

async fn explain(app: &App, caller: &Caller, tx: &Transaction, job: &Job) -> Result<Cause> {
    let snapshot = Snapshot::read(app, tx, &job.job_type, Of::Tenant(&job.tenant)).await?;
    let (mut predecessors, mut explanation, mut node) = (None, None, None);
    let reason = match job.state() {
        QueueState::Pending => {
            let found = position::find(app, tx, &snapshot, job).await?;
            let Position { in_tenant, overall, .. } = found.position;
            explanation = decision::of(app, tx, &snapshot, job).await?;
            let reason = reason::of_pending(&snapshot, explanation.as_ref(), &job.tenant, in_tenant, overall);
            predecessors = Some(found);
            reason
        }
        QueueState::Delayed | QueueState::Crashing => reason::of_delayed(&snapshot, job),
        QueueState::Running | QueueState::Waiting => {
            if let Some(claim) = job.claim() {
                let worker = workers::get(tx, &app.keys, &job.job_type, &claim.worker).await?;
                node = worker.map(|worker| worker.node);
            }
            reason::of_running(job.cancel_requested(), job.then())
        }
        QueueState::Completed => Reason::Completed,
        QueueState::Failed => Reason::Failed,
        QueueState::Cancelled => Reason::Cancelled,
    };
    let locked = locked::look(app, tx, job).await?;
    // Without a worker, or if the job must stop, locks are not the cause.
    let is_about_locks =
        !matches!(reason, Reason::NoWorker | Reason::WorkersQuiet) && !job.cancel_requested();
    let by_locks = locked.as_ref().filter(|_| is_about_locks).and_then(|locked| locked.reason(job));
    let reason = by_locks.unwrap_or(reason);
    let mut after = Vec::new();
    for awaited in dependencies::unmet(tx, &app.keys, job).await? {
        let other = jobs::get(tx, &app.keys, &awaited.job_type, &awaited.id).await?;
        // An operator may have made the job wait for one of another tenant.
        if other.as_ref().is_none_or(|other| caller.reads(&other.tenant)) {
            after.push(view::awaits(awaited, other.as_ref()));
        }
    }
    let mut limited = None;
    if let Some(limit) = job.limited().cloned() {
        let running = rate_limits::count(tx, &app.keys, &limit.bucket).await?;
        // The running jobs of all tenants are counted.
        let running = caller.operates().then_some(running);
        limited = Some(Limited { running, ..view::limited(&limit) });
    }
    let before = locked
        .as_ref()
        .zip(explanation.as_ref())
        .and_then(|(locked, explanation)| locked.before(&explanation.reason));
    let sentence = match (&locked, by_locks, before) {
        (_, None, Some(sentence)) if is_about_locks => sentence,
        (Some(locked), Some(_), _) => locked.sentence(caller, job, &reason::runs(job, node.as_deref())),
        _ if reason == Reason::RateLimited => reason::of_limit(limited.as_ref()),
        _ => reason::sentence(&snapshot, job, reason, predecessors.as_ref(), node.as_deref(), &after),
    };
    let sentence = match caller.operates() {
        true => sentence,
        false => reason::without_others(job, reason, predecessors.as_ref()).unwrap_or(sentence),
    };
    Ok(Cause { snapshot, reason, sentence, predecessors, node, after, limited, locked })
}

async fn why(app: &App, caller: &Caller, tx: &Transaction, job: Job) -> Result<Why> {
    let Cause { snapshot, reason, sentence, mut predecessors, node, after, limited, locked } =
        explain(app, caller, tx, &job).await?;
    let failed = matches!(job.state(), QueueState::Crashing | QueueState::Failed | QueueState::Pending)
        || job.state() == QueueState::Cancelled;
    let locks = match locked {
        Some(locked) => Some(locked.why(app, caller, tx, &snapshot, &job).await?),
        None => None,
    };
    let expected = reason::expected(&snapshot, &job, reason, predecessors.as_ref());
    let tenant = snapshot.tenant(app, tx, &job.tenant, MAX_COUNTED).await?;
    let (before, before_more) = match &mut predecessors {
        Some(predecessors) => {
            let named = predecessors.before.len();
            (std::mem::take(&mut predecessors.before), predecessors.others > named)
        }
        None => (Vec::new(), false),
    };
    let why = Why {
        state: view::state(&job),
        reason,
        sentence,
        since_us: could_run_since(&job),
        not_before_us: view::waits_for_time(&job).then_some(job.order_us()),
        crashes: job.streak(snapshot.now_us),
        error: job.reason().filter(|_| failed).map(str::to_owned),
        worker: job.claim().map(|claim| claim.worker.clone()),
        node,
        after,
        priority: i32::from(job.class),
        tenant,
        place: predecessors.map(|predecessors| predecessors.position),
        before,
        before_more,
        capacity: (!job.state().is_final()).then_some(snapshot.capacity),
        expected,
        limited,
        locks,
        job_type: job.job_type,
        id: job.id,
    };
    Ok(if caller.operates() { why } else { without_others(why) })
}

/// Without what tells about other tenants, also by counts.
fn without_others(why: Why) -> Why {
    let place = why.place.map(|place| Position {
        overall: place.in_tenant,
        overall_more: place.in_tenant_more,
        ..place
    });
    let expected = why.expected.map(|expected| Expected {
        basis: match expected.earliest {
            true => expected.basis,
            false => "estimated from past runs".to_owned(),
        },
        ..expected
    });
    Why { place, expected, before: Vec::new(), before_more: false, capacity: None, ..why }
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
pub(super) async fn why_document(
    State(app): State<App>,
    caller: Caller,
    Named(DocumentPath { db, id }): Named<DocumentPath>,
) -> Result<Response> {
    Ok(answer::ok(&document(&app, &caller, &db, &id).await?))
}

/// Why a document's replication waits, if the caller may read it.
pub(in crate::http) async fn document(app: &App, caller: &Caller, db: &str, id: &str) -> Result<DocumentWhy> {
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
        Some(job) => Some(why(app, caller, &tx, job).await?),
        None => None,
    };
    let error = error_of(&status);
    let (reason, sentence) = match (&job, status.state) {
        (Some(job), _) => (job.reason, job.sentence.clone()),
        (None, "initializing") => {
            (Reason::FindsFilter, "Its filter's code is being read from the source.".to_owned())
        }
        (None, "error") => {
            let errors = status.error_count;
            let why = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let sentence = format!(
                "Its filter's code could not be read from the source, and the server retries this (errors: {errors}){why}"
            );
            (Reason::FilterFailed, sentence)
        }
        (None, "completed") => (Reason::Completed, format!("Has completed at {}.", status.last_updated)),
        (None, _) => {
            let why = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            (Reason::Failed, format!("Has failed at {}{why}", status.last_updated))
        }
    };
    Ok(DocumentWhy { database: db.to_owned(), doc_id: id.to_owned(), reason, sentence, error, job })
}

fn error_of(status: &Status) -> Option<String> {
    let info: Value = serde_json::from_str(status.info.as_ref()?.get()).ok()?;
    info.get("error")?.as_str().map(str::to_owned)
}

fn no_document(db: &str, id: &str) -> V1Error {
    V1Error::new(
        axum::http::StatusCode::NOT_FOUND,
        turnwise_protocol::codes::NOT_FOUND,
        format!("there is no replication document `{id}` in `{db}`"),
        "it was never written, or was deleted; design documents describe no replications",
    )
}
