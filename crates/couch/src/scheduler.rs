//! `_scheduler` and `_active_tasks`: running and waiting jobs, and their states.

use axum::response::Response;
use serde_json::{Map, Value, json};
use turnwise_queue::{Active, Job, State, jobs, timestamp};
use turnwise_replicator::doc_processor::{self, Nodes, STATES, Status, Summary};
use turnwise_replicator::documents::{Error, databases};
use turnwise_replicator::{JOB_TYPE, Stats};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;
use turnwise_web::answer::{Batch, Pieces, in_pieces, ok};
use turnwise_web::error::{ApiError, internal};

use super::app::App;
use super::call::{Call, check_database};

/// Default number of jobs in a response of `_scheduler/jobs`, as in CouchDB.
const DEFAULT_JOBS: usize = 100;
/// Number of rows that one transaction reads.
const PAGE: usize = 500;
/// Maximum number of running jobs in a response of `_active_tasks`. `max_jobs` cannot exceed it.
const MAX_TASKS: usize = 100_000;

pub async fn jobs(app: &App, call: &Call) -> Result<Response, ApiError> {
    let range = |name: &str, default: usize| match call.params.get(name) {
        None => Ok(default),
        Some(text) => match text.parse::<i64>() {
            Err(_) => Err(ApiError::query(format!("{name} must be an integer"))),
            Ok(number) => {
                let wrong = |_| ApiError::query(format!("{name} not in range of [0,infinity]"));
                usize::try_from(number).map_err(wrong)
            }
        },
    };
    let (limit, skip) = (range("limit", DEFAULT_JOBS)?, range("skip", 0)?);
    let total = count_jobs(app, &call.caller).await?;
    let (app, caller) = (app.clone(), call.caller.clone());
    Ok(in_pieces(async move |mut pieces| {
        write_jobs(&app, &caller, total, (limit, skip), &mut pieces).await?;
        Ok(pieces)
    }))
}

/// Jobs that have ended, or are stopping because they were cancelled, no longer belong to the scheduler. Their records
/// are kept for clients that wait for their end.
pub fn is_scheduled(caller: &Caller, job: &Job) -> bool {
    !job.state().is_final() && !job.cancel_requested() && caller.reads(&job.tenant)
}

async fn count_jobs(app: &App, caller: &Caller) -> Result<usize, ApiError> {
    let (mut after, mut total): (Option<String>, usize) = (None, 0);
    loop {
        let tx = app.store.begin().await?;
        let page = jobs::list(&tx, &app.keys, JOB_TYPE, after.as_deref(), PAGE).await?;
        total += page.iter().filter(|job| is_scheduled(caller, job)).count();
        match page.into_iter().nth(PAGE - 1) {
            Some(last) => after = Some(last.into_fields().id),
            None => return Ok(total),
        }
    }
}

async fn write_jobs(
    app: &App,
    caller: &Caller,
    total: usize,
    (mut limit, mut skip): (usize, usize),
    pieces: &mut Pieces,
) -> Result<(), ApiError> {
    pieces.text(&format!("{{\"total_rows\":{total},\"offset\":{},\"jobs\":[", skip.min(total))).await?;
    let mut after: Option<String> = None;
    while limit > 0 {
        let tx = app.store.begin().await?;
        let page = jobs::list(&tx, &app.keys, JOB_TYPE, after.as_deref(), PAGE).await?;
        let more = page.len() == PAGE;
        let mut jobs = page.into_iter();
        let (mut batch, mut nodes) = (Batch::default(), Nodes::default());
        while limit > 0 && !batch.is_full() {
            let Some(job) = jobs.next() else { break };
            if is_scheduled(caller, &job) && skip > 0 {
                skip -= 1;
            } else if is_scheduled(caller, &job) {
                limit -= 1;
                batch.push(&shown_job(app, &tx, &mut nodes, &job).await?)?;
            }
            after = Some(job.into_fields().id);
        }
        drop(tx);
        for job in batch.rows() {
            pieces.element(job).await?;
        }
        if jobs.as_slice().is_empty() && !more {
            break;
        }
    }
    Ok(pieces.text("]}\n").await?)
}

pub async fn job(app: &App, call: &Call, id: &str) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    match jobs::get(&tx, &app.keys, JOB_TYPE, id).await? {
        Some(job) if is_scheduled(&call.caller, &job) => {
            let mut shown = shown_job(app, &tx, &mut Nodes::default(), &job).await?;
            // An extra, without which the response is whole.
            let rules = app.rules();
            match turnwise_explain::waits(&app.reader(&tx, &rules), &call.caller, &job).await {
                Ok(Some((reason, sentence))) => {
                    shown["why"] = json!({ "reason": reason, "sentence": sentence });
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(?error, "a job is shown without the reason why it waits"),
            }
            Ok(ok(&shown))
        }
        _ => Err(ApiError::not_found("missing")),
    }
}

fn summary(job: &Job) -> Result<Summary, ApiError> {
    Summary::of(job).ok_or_else(|| internal(&Unreadable))
}

/// A job's summary does not have the form that the doc processor writes.
#[derive(Debug, thiserror::Error)]
#[error("a job's summary cannot be read")]
struct Unreadable;

/// The worker and the claim's number of a running job, where CouchDB shows an Erlang process.
fn pid(worker: &str, claim: u64) -> String {
    format!("<{worker}.{claim}>")
}

async fn shown_job(app: &App, tx: &Transaction, nodes: &mut Nodes, job: &Job) -> Result<Value, ApiError> {
    let summary = summary(job)?;
    let info = match job.state() {
        State::Running | State::Waiting => {
            jobs::active_report(tx, &app.keys, job).await?.and_then(|active| active.info)
        }
        _ => job.info.clone(),
    };
    let history: Vec<Value> = job
        .history
        .iter()
        .map(|event| {
            let mut row = json!({ "timestamp": timestamp(event.at_us), "type": event.kind.name() });
            if let Some(reason) = event.kind.reason() {
                row["reason"] = json!(reason);
            }
            row
        })
        .collect();
    Ok(json!({
        "database": summary.database,
        "id": job.id,
        "pid": job.claim().map(|claim| pid(&claim.worker, claim.number)),
        "source": summary.source,
        "target": summary.target,
        "user": job.user,
        "doc_id": summary.doc_id,
        "info": info,
        "history": history,
        "node": nodes.of_job(tx, &app.keys, job).await?,
        "start_time": timestamp(summary.start_time_us),
    }))
}

/// The running jobs, replications first, because clients of CouchDB look for those.
pub async fn active_tasks(app: &App, call: &Call) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    // The response includes all replications, however many jobs of other types run.
    let replications = jobs::active(&tx, &app.keys, JOB_TYPE, MAX_TASKS).await?;
    let others = jobs::all_active(&tx, &app.keys, MAX_TASKS).await?;
    let others = others.into_iter().filter(|(job_type, ..)| job_type != JOB_TYPE);
    let active: Vec<_> = replications
        .into_iter()
        .map(|(worker, id, active)| (JOB_TYPE.to_owned(), worker, id, active))
        .chain(others)
        .filter(|(.., active)| !active.cancel_requested && call.caller.reads(&active.tenant))
        .take(MAX_TASKS)
        .collect();
    let (mut tasks, mut nodes) = (Vec::with_capacity(active.len()), Nodes::default());
    for (job_type, worker, id, active) in active {
        let mut task = json!({
            "node": nodes.of_worker(&tx, &app.keys, &job_type, &worker).await?,
            "pid": pid(&worker, active.claim),
            "process_status": "waiting",
            "type": job_type,
            "user": active.user,
            "started_on": active.started_us / 1_000_000,
            "updated_on": active.updated_us() / 1_000_000,
        });
        let fields = match job_type == JOB_TYPE {
            true => replication(&id, &active)?,
            false => {
                let info = active.info.as_ref().map_or("null", |info| info.get());
                let info: Value = serde_json::from_str(info).map_err(|error| internal(&error))?;
                json!({ "job_id": id, "tenant": active.tenant, "info": info })
            }
        };
        if let (Value::Object(task), Value::Object(fields)) = (&mut task, fields) {
            task.extend(fields);
        }
        tasks.push(task);
    }
    Ok(ok(&tasks))
}

/// The fields of a replication's task, in addition to those of every task.
fn replication(id: &str, active: &Active) -> Result<Value, ApiError> {
    let summary = Summary::parse(&active.summary).ok_or_else(|| internal(&Unreadable))?;
    let mut fields = json!({
        "replication_id": id,
        "database": summary.database,
        "doc_id": summary.doc_id,
        "source": summary.source,
        "target": summary.target,
        "continuous": summary.continuous,
        "checkpoint_interval": summary.checkpoint_interval,
    });
    let info = active.info.as_ref().map_or("null", |info| info.get());
    let stats: Option<Map<String, Value>> = serde_json::from_str(info).map_err(|error| internal(&error))?;
    // A task without a report has not done anything yet.
    let stats = match stats {
        Some(stats) => Value::Object(stats),
        None => serde_json::to_value(Stats::default()).map_err(|error| internal(&error))?,
    };
    if let (Value::Object(fields), Value::Object(stats)) = (&mut fields, stats) {
        fields.extend(stats);
        // As in CouchDB: clients read sequences before they look whether there are any.
        for name in ["checkpointed_source_seq", "source_seq"] {
            if fields.get(name).is_some_and(Value::is_null) {
                fields.insert(name.to_owned(), json!("0"));
            }
        }
        if fields.get("through_seq").is_some_and(Value::is_null) {
            fields.remove("through_seq");
        }
    }
    Ok(fields)
}

/// The states that a request selects. An empty list means all.
fn states(call: &Call) -> Result<Vec<String>, ApiError> {
    let wanted: Vec<String> = match call.params.get("states") {
        None => Vec::new(),
        Some(text) => {
            text.split(',').filter(|state| !state.is_empty()).map(str::to_ascii_lowercase).collect()
        }
    };
    let unknown: Vec<&str> =
        wanted.iter().map(String::as_str).filter(|state| !STATES.contains(state)).collect();
    if unknown.is_empty() {
        return Ok(wanted);
    }
    let (unknown, known) = (unknown.join(","), STATES.join(","));
    Err(ApiError::query(format!("Unknown states [{unknown}]. Choose from: [{known}]")))
}

/// The documents of one database, or of all databases, including `prefix/_replicator`.
pub async fn docs(app: &App, call: &Call, db: Option<String>) -> Result<Response, ApiError> {
    let query = DocsQuery {
        states: states(call)?,
        limit: call.params.number("limit")?.unwrap_or(usize::MAX),
        skip: call.params.number("skip")?.unwrap_or(0),
    };
    let one = db.is_some();
    let mut dbs = match db {
        Some(db) => {
            check_database(call, &db)?;
            vec![db]
        }
        None => all_databases(app).await?,
    };
    dbs.retain(|db| call.caller.reads(db));
    let mut total = 0;
    for db in &dbs {
        let tx = app.store.begin().await?;
        total += match databases::info(&tx, &app.keys, db).await {
            Ok((_, counters)) => counters.documents,
            Err(Error::NoDatabase) if !one => 0,
            Err(error) => return Err(error.into()),
        };
    }
    let app = app.clone();
    Ok(in_pieces(async move |mut pieces| {
        query.write(&app, &dbs, total, &mut pieces).await?;
        Ok(pieces)
    }))
}

/// The names of all replicator databases.
pub async fn all_databases(app: &App) -> Result<Vec<String>, ApiError> {
    let mut dbs: Vec<String> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let tx = app.store.begin().await?;
        let page = databases::list(&tx, &app.keys, after.as_deref(), PAGE).await?;
        after = page.get(PAGE - 1).map(|(name, _)| name.clone());
        dbs.extend(page.into_iter().filter(|(_, database)| !database.deleting).map(|(name, _)| name));
        if after.is_none() {
            return Ok(dbs);
        }
    }
}

struct DocsQuery {
    states: Vec<String>,
    limit: usize,
    skip: usize,
}

impl DocsQuery {
    fn admits(&self, status: &Status) -> bool {
        self.states.is_empty() || self.states.iter().any(|state| state == status.state)
    }

    async fn write(
        &self,
        app: &App,
        dbs: &[String],
        total: u64,
        pieces: &mut Pieces,
    ) -> Result<(), ApiError> {
        let offset = usize::try_from(total).unwrap_or(usize::MAX).min(self.skip);
        pieces.text(&format!("{{\"total_rows\":{total},\"offset\":{offset},\"docs\":[\n")).await?;
        let (mut skip, mut limit) = (self.skip, self.limit);
        'databases: for db in dbs {
            let mut next = None;
            loop {
                let tx = app.store.begin().await?;
                let mut nodes = Nodes::default();
                let page = doc_processor::statuses(
                    &tx,
                    &app.keys,
                    &mut nodes,
                    db,
                    next,
                    PAGE,
                    app.store.runtime().now_us(),
                )
                .await;
                let (page, rest) = match page {
                    Ok(page) => page,
                    // The database was deleted meanwhile.
                    Err(Error::NoDatabase) => break,
                    Err(error) => return Err(error.into()),
                };
                drop(tx);
                for status in page.iter().filter(|status| self.admits(status)) {
                    if skip > 0 {
                        skip -= 1;
                    } else if limit > 0 {
                        limit -= 1;
                        pieces.row(status).await?;
                    }
                }
                if limit == 0 {
                    break 'databases;
                }
                next = rest;
                if next.is_none() {
                    break;
                }
            }
        }
        Ok(pieces.text("\n]}\n").await?)
    }
}

pub async fn doc(app: &App, db: &str, id: &str) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    match doc_processor::status(&tx, &app.keys, &mut Nodes::default(), db, id, app.store.runtime().now_us())
        .await?
    {
        Some(status) => Ok(ok(&status)),
        None => Err(ApiError::not_found("missing")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// As a real CouchDB 3.5.0 answers while its source has not answered yet.
    #[test]
    fn a_task_before_its_first_report_has_couchdbs_sequences() {
        let summary = json!({"database": null, "doc_id": null, "source": "http://a/", "target": "http://b/",
            "continuous": true, "checkpoint_interval": 30_000, "start_time_us": 0});
        let active = json!({"claim": 1, "tenant": "default", "started_us": 0, "summary": summary});
        let active: Active = serde_json::from_str(&active.to_string()).unwrap();
        let task = replication("id", &active).unwrap();
        assert_eq!((&task["source_seq"], &task["checkpointed_source_seq"]), (&json!("0"), &json!("0")));
        assert!(task.get("through_seq").is_none() && task["changes_pending"].is_null(), "{task}");
        assert_eq!((&task["docs_read"], &task["bulk_get_attempts"]), (&json!(0), &json!(0)));
    }
}
