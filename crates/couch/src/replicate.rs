//! `POST /_replicate`: a replication without a document.
//!
//! The replication is an ordinary job. It survives the server's end, and a continuous one is retried after a crash,
//! whereas CouchDB forgets it. A one-shot job has one attempt, as in CouchDB: its first crash is the response, and the
//! client may repeat the request.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use turnwise_queue::{Event, EventKind, Job, Keyspace, State, Then, jobs};
use turnwise_replicator::doc_processor::{
    self, FETCH_TIMEOUT, Origin, Summary, new_job, request_tenant, same_options,
};
use turnwise_replicator::documents::{Error, redaction};
use turnwise_replicator::{Filter, Incomplete, JOB_TYPE, Replication};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;
use turnwise_web::answer::{ok, respond};
use turnwise_web::error::{ApiError, internal};
use turnwise_web::v1_error::V1Error;
use turnwise_web::{answer, request};

use super::app::App;
use super::call::Call;

/// Largest body, in bytes: a list of document ids may be long. It is below the limit for a job's options.
const BODY_BYTES: usize = 4_000_000;

pub async fn post(app: &App, call: &Call, body: Body) -> Result<Response, ApiError> {
    let (mut body, room) = request::json_object(&app.body_room, body, call.sender(), BODY_BYTES).await?;
    redaction::restore(&mut body, None)?;
    let cancel = match body.get("cancel") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(_) => return Err(ApiError::bad_request("cancel: must be true or false")),
    };
    if cancel {
        let id = match named_id(&body)? {
            Some(id) => id,
            None => replication_id(app, &parse(app, &call.caller, &body)?).await?,
        };
        cancel_job(app, &call.caller, &id).await?;
        return Ok(ok(&json!({ "ok": true, "_local_id": id })));
    }
    let replication = parse(app, &call.caller, &body)?;
    let id = replication_id(app, &replication).await?;
    let before = start(app, call, &replication, &id, &body).await?;
    drop((body, room));
    if replication.continuous {
        return Ok(answer::json(StatusCode::ACCEPTED, &json!({ "ok": true, "_local_id": id })));
    }
    wait(app, &call.caller, &id, before.as_ref(), &replication).await
}

/// The replication of a request, as one of the sender's tenant.
fn parse(app: &App, caller: &Caller, body: &Map<String, Value>) -> Result<Replication, ApiError> {
    let parsed = Replication::parse(body, &app.settings.get().defaults);
    let replication = parsed.map_err(|error| wrong(Error::field(error)))?;
    let named = request_tenant(&replication);
    let tenant = tenant(caller, named)?;
    Ok(replication.of_tenant(&tenant))
}

/// For a document this error is `forbidden`; for a request it is `bad_request`.
fn wrong(error: Error) -> ApiError {
    match error {
        Error::Refused(reason) => ApiError::bad_request(reason),
        error => error.into(),
    }
}

/// The id in a request to cancel.
fn named_id(body: &Map<String, Value>) -> Result<Option<String>, ApiError> {
    let Some(name) = ["replication_id", "id", "_local_id"].into_iter().find(|name| body.contains_key(*name))
    else {
        return Ok(None);
    };
    match &body[name] {
        // A client may have decoded a `+` as a space, as in forms. Ids contain no spaces.
        Value::String(id) => Ok(Some(id.replace(' ', "+"))),
        _ => Err(ApiError::bad_request(format!("{name}: must be a string, the replication's id"))),
    }
}

/// The replication id, which may need the code of a filter function from the source. Every error on the way is a 404,
/// as in CouchDB.
async fn replication_id(app: &App, replication: &Replication) -> Result<String, ApiError> {
    let uuid = &app.settings.get().server_uuid;
    let late = app.store.runtime().sleep(FETCH_TIMEOUT);
    let id = tokio::select! {
        id = turnwise_replicator::replication_id(replication, &app.client, uuid) => id,
        () = late => {
            let reason =
                format!("the source did not send its filter's code within {} s", FETCH_TIMEOUT.as_secs());
            return Err(ApiError::not_found(reason));
        }
    };
    id.map(|id| id.to_string()).map_err(|error| ApiError::not_found(error.to_string()))
}

/// The document that a job belongs to, if it has one.
fn document_of(job: &Job) -> Result<Option<(String, String)>, ApiError> {
    let corrupt = || turnwise_store::Error::Corrupt("a job's summary cannot be read".to_owned());
    let summary = Summary::of(job).ok_or_else(corrupt)?;
    Ok(summary.document().map(|(db, id)| (db.to_owned(), id.to_owned())))
}

/// The job has ended, or is stopping and will not run again.
fn is_gone(job: &Job) -> bool {
    job.state().is_final() || job.then() == Then::Remove || job.cancel_requested() && job.then() == Then::Keep
}

/// Ensures that a job for the request exists, and joins a job that does the same. Returns the job's latest event at
/// that time: an earlier end is not the end of this request. Times cannot decide this, because the clock of another
/// node may have written them.
async fn start(
    app: &App,
    call: &Call,
    replication: &Replication,
    id: &str,
    body: &Map<String, Value>,
) -> Result<Option<Event>, ApiError> {
    let caller = &call.caller;
    let (keys, now_us) = (&app.keys, app.now_us());
    let mut new = new_job(replication, id, Origin::Request, body, now_us).map_err(wrong)?;
    new.spec.tenant = replication.settings.peers.tenant.clone().unwrap_or(new.spec.tenant);
    let new = &new;
    let started = app.store.transact(|tx| async move {
        let job = jobs::get(&tx, keys, JOB_TYPE, id).await?;
        let elsewhere = || {
            let reason = format!("Replication `{id}` already runs for another tenant");
            ApiError::new(StatusCode::CONFLICT, "conflict", reason)
        };
        let is_foreign = job.as_ref().is_some_and(|job| !caller.writes(&job.tenant));
        if let Some(other) = job.as_ref().filter(|_| is_foreign) {
            if other.state().is_final() {
                // Its history is not this tenant's.
                jobs::remove(&tx, keys, JOB_TYPE, id).await?;
            } else if is_gone(other) || !caller.reads(&other.tenant) {
                return Err(elsewhere());
            }
        }
        let Some(job) = job.filter(|job| !is_gone(job)) else {
            doc_processor::add_job(&tx, keys, new, now_us).await?;
            return latest(&tx, keys, id).await;
        };
        if let Some((db, doc)) = document_of(&job)? {
            let reason =
                format!("Replication `{id}` already started, triggered by document `{doc}` from db `{db}`");
            return Err(ApiError::new(StatusCode::CONFLICT, "conflict", reason));
        }
        let same = same_options(&tx, keys, &job, new).await?;
        match job.state() {
            State::Running | State::Waiting | State::Pending if same => {}
            // The job runs, but is parked until its source changes.
            State::Delayed if same && job.parked().is_some() => {}
            _ if is_foreign && same => {}
            _ if is_foreign => return Err(elsewhere()),
            State::Running | State::Waiting => {
                doc_processor::add_job(&tx, keys, new, now_us).await?;
                jobs::restart(&tx, keys, JOB_TYPE, id).await?;
            }
            _ => {
                // A new request should not wait for the backoff of an old one.
                jobs::remove(&tx, keys, JOB_TYPE, id).await?;
                doc_processor::add_job(&tx, keys, new, now_us).await?;
            }
        }
        latest(&tx, keys, id).await
    });
    app.traced(&call.headers, started).await
}

/// The tenant that a request's job is charged to: the user whom the request names, or no user, if the sender may add jobs
/// for that tenant.
fn tenant(caller: &Caller, named: String) -> Result<String, ApiError> {
    match caller.only_tenant() {
        _ if caller.writes(&named) => Ok(named),
        Some(only) => Ok(only.to_owned()),
        None => {
            let reason =
                "this identity may add jobs for several tenants: name one of them as `user_ctx.name`";
            Err(ApiError::forbidden(reason))
        }
    }
}

async fn latest(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<Option<Event>, ApiError> {
    let job = jobs::get(tx, keys, JOB_TYPE, id).await?;
    Ok(job.and_then(|job| job.into_fields().history.into_iter().next()))
}

async fn cancel_job(app: &App, caller: &Caller, id: &str) -> Result<(), ApiError> {
    let (keys, now_us) = (&app.keys, app.now_us());
    let cancelled = app.store.transact(|tx| async move {
        let job = jobs::get(&tx, keys, JOB_TYPE, id).await?.filter(|job| !is_gone(job));
        let job = caller.sees(job).ok_or_else(|| ApiError::not_found("missing"))?;
        if !caller.writes(&job.tenant) {
            return Err(ApiError::forbidden("this identity may not change the jobs of this tenant"));
        }
        if let Some((db, doc)) = document_of(&job)? {
            return Err(ApiError::forbidden(format!(
                "Replication `{id}` belongs to document `{doc}` of `{db}`: delete the document to stop it"
            )));
        }
        // The record stays for a while, because other clients may wait for the job's end.
        jobs::cancel(&tx, keys, JOB_TYPE, id, now_us).await?;
        Ok(())
    });
    cancelled.await
}

/// Waits for a job's first end after `before`, and returns the response.
async fn wait(
    app: &App,
    caller: &Caller,
    id: &str,
    before: Option<&Event>,
    replication: &Replication,
) -> Result<Response, ApiError> {
    let key = app.keys.job(JOB_TYPE, id);
    loop {
        let tx = app.store.begin().await?;
        let seen = tx.get(&key).await?;
        if let Some(end) = end_of(app, &tx, caller, id, before, replication).await? {
            return Ok(end);
        }
        let changed = app.store.watch(key.clone(), seen).await?;
        tokio::select! {
            () = changed => {}
            () = app.stop.cancelled() => return Err(V1Error::stopping().into()),
        }
    }
}

/// The response for the job that `tx` reads; `None` while the job has not ended.
async fn end_of(
    app: &App,
    tx: &Transaction,
    caller: &Caller,
    id: &str,
    before: Option<&Event>,
    replication: &Replication,
) -> Result<Option<Response>, ApiError> {
    let Some(job) = caller.sees(jobs::get(tx, &app.keys, JOB_TYPE, id).await?) else {
        return Err(failed("the replication was cancelled"));
    };
    if job.state() == State::Completed {
        let result = job.into_fields().result.ok_or_else(|| internal(&NoResult))?;
        return Ok(Some(report(replication, &result)));
    }
    let ends = job.history.iter().take_while(|event| Some(*event) != before);
    let crash = ends
        .filter(|event| matches!(event.kind, EventKind::Crashed { .. } | EventKind::Failed { .. }))
        .last();
    if let Some(reason) = crash.and_then(|event| event.kind.reason()) {
        return Err(failed(reason));
    }
    match job.state() {
        State::Cancelled => Err(failed("the replication was cancelled")),
        State::Failed => Err(failed(job.reason().unwrap_or("unknown"))),
        _ => Ok(None),
    }
}

/// The response of a completed replication: the run's report, and the members that CouchDB adds for some replications.
fn report(replication: &Replication, result: &RawValue) -> Response {
    let by_ids = matches!(replication.filter, Some(Filter::DocIds(_)));
    let more = by_ids || !replication.settings.use_checkpoints;
    let parsed = || serde_json::from_str::<Map<String, Value>>(result.get()).ok();
    let Some(mut report) = more.then(parsed).flatten() else {
        return respond(StatusCode::OK, Body::from(format!("{result}\n")));
    };
    if by_ids && let Some(Value::Object(session)) = report.get("history").map(|history| history[0].clone()) {
        // For compatibility with old releases, in which a replication of named documents had no history.
        let names = ["start_time", "end_time", "docs_read", "docs_written", "doc_write_failures"];
        report.extend(session.into_iter().filter(|(name, _)| names.contains(&name.as_str())));
    }
    if !replication.settings.use_checkpoints {
        report.insert("use_checkpoints".into(), json!(false));
    }
    ok(&report)
}

/// A completed job without a result.
#[derive(Debug, thiserror::Error)]
#[error("a completed replication has no result")]
struct NoResult;

/// The response of a replication that failed: 500 as in CouchDB, whatever the cause, except for missing permissions.
fn failed(reason: &str) -> ApiError {
    // The status of a document is none of the database.
    let is_of_document = reason.starts_with(Incomplete::BEGINNING);
    // An error begins with the status, if no other words come first.
    let said = |status: u16| {
        let status = format!("{status} ");
        !is_of_document && (reason.starts_with(&status) || reason.contains(&format!(": {status}")))
    };
    let (status, code) = match () {
        () if said(404) => (StatusCode::INTERNAL_SERVER_ERROR, "db_not_found"),
        () if said(401) => (StatusCode::UNAUTHORIZED, "unauthorized"),
        () if said(403) => (StatusCode::FORBIDDEN, "forbidden"),
        () => (StatusCode::INTERNAL_SERVER_ERROR, "error"),
    };
    ApiError::new(status, code, reason)
}
