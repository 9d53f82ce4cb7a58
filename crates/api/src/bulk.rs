//! `/v1/bulk`: one change to all jobs that meet a condition; and `/v1/matching`, which changes none.
//!
//! These routes only write the row of an operation. The server makes its steps.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::Deserialize;
use turnwise_command::JOB_TYPE as COMMAND;
use turnwise_protocol::{
    Bulk, BulkAction, BulkState, Bulks, ExampleJob, MAX_BULK_ID_BYTES, MAX_EXAMPLES, MatchingJobs, PutBulk,
    RefusedJobs, codes, names,
};
use turnwise_queue::bulk::{self, Action, Created, Gate, NewOperation, Operation, Standing};
use turnwise_queue::selection::{Position, Selection};
use turnwise_queue::{Holder, Job, JobFields, State as QueueState};
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_web::access::{Caller, Who, shown_owner};
use utoipa::IntoParams;

use super::add::priority_of;
use super::app::App;
use super::body::Json;
use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown, check_short, path_with_name};
use super::list::{SEARCH_TIME, check_limit, default_limit};
use super::responses::{BadBody, Common};
use super::{builtin_types, view};

/// How long a count looks at jobs.
const COUNT_TIME: Duration = Duration::from_secs(5);
/// Number of jobs that one transaction of a count reads.
const COUNT_BATCH: usize = 500;

/// What a caller may see and do in a bulk operation: what it may do to each job.
pub struct CallerGate(pub Caller);

impl Gate for CallerGate {
    fn sees(&self, job: &Job) -> bool {
        self.0.reads(&job.tenant)
    }

    /// A condition tells what the options are, so a caller tests those that it is shown.
    fn tests_options(&self, job: &Job) -> bool {
        builtin_types::shows_options(&self.0, &job.job_type, &job.tenant)
    }

    fn permits(&self, job: &Job, action: Action) -> Result<(), &'static str> {
        if !self.0.writes(&job.tenant) {
            return Err("this identity may not change its tenant's jobs");
        }
        let runs_again = matches!(job.state(), QueueState::Failed | QueueState::Cancelled);
        match action {
            Action::Cancel | Action::Remove => {
                builtin_types::check_stoppable(job).map_err(|_| "its document must be deleted instead")
            }
            Action::Retry if runs_again => match job.job_type.as_str() {
                COMMAND if !self.0.commands() => Err("this identity may not run programs again"),
                REPLICATION => Err("it is a replication that has ended"),
                _ => Ok(()),
            },
            Action::Hold => builtin_types::check_editable(&self.0, &job.job_type)
                .map_err(|_| "this identity may not hold jobs of its type"),
            Action::Retry | Action::Priority(_) | Action::RunNow | Action::Release => Ok(()),
        }
    }

    fn holder(&self) -> Holder {
        builtin_types::holder(&self.0)
    }

    fn name(&self) -> Option<String> {
        self.0.name()
    }
}

path_with_name! {
    /// `/{bulk}`
    BulkPath(|id: &str| check_short("bulk: the id", id, MAX_BULK_ID_BYTES)):
    /// The operation's id, percent-encoded: at most 128 bytes.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    bulk
}

fn no_bulk(id: &str) -> V1Error {
    V1Error::not_found(
        format!("there is no bulk operation `{id}`"),
        "GET /v1/bulk lists the operations of this identity; ended ones are removed after a week",
    )
}

/// Parses a condition.
pub(super) fn selection(text: &str, now_us: i64) -> Result<Selection> {
    Selection::parse(text, now_us).map_err(|mistake| {
        V1Error::bad(
            format!("where: {mistake}"),
            "a condition is like `type = mail and state = failed and age > 2d`; docs/operations.md describes it",
        )
    })
}

fn action(action: BulkAction, priority: Option<i32>) -> Result<Action> {
    let priority = match (action, priority) {
        (BulkAction::Priority, None) => {
            return Err(V1Error::bad("priority: is missing", "state the new priority, -20 to 19"));
        }
        (BulkAction::Priority, Some(priority)) => {
            priority_of(priority).map_err(|problem| V1Error::bad(problem, "the default is 0"))?
        }
        (_, Some(_)) => {
            return Err(V1Error::bad("priority: belongs to the action `priority`", "leave it out"));
        }
        (_, None) => 0,
    };
    Ok(match action {
        BulkAction::Retry => Action::Retry,
        BulkAction::Cancel => Action::Cancel,
        BulkAction::Remove => Action::Remove,
        BulkAction::Priority => Action::Priority(priority),
        BulkAction::RunNow => Action::RunNow,
        BulkAction::Hold => Action::Hold,
        BulkAction::Release => Action::Release,
    })
}

fn shown(operation: Operation) -> Bulk {
    let (action, priority) = match operation.action {
        Action::Retry => (BulkAction::Retry, None),
        Action::Cancel => (BulkAction::Cancel, None),
        Action::Remove => (BulkAction::Remove, None),
        Action::Priority(priority) => (BulkAction::Priority, Some(i32::from(priority))),
        Action::RunNow => (BulkAction::RunNow, None),
        Action::Hold => (BulkAction::Hold, None),
        Action::Release => (BulkAction::Release, None),
    };
    let (state, reason) = match operation.standing {
        Standing::Running => (BulkState::Running, None),
        Standing::Done => (BulkState::Done, None),
        Standing::Stopped => (BulkState::Stopped, None),
        Standing::Failed(reason) => (BulkState::Failed, Some(reason)),
    };
    Bulk {
        id: operation.id,
        action,
        priority,
        condition: operation.condition,
        by: operation.by.as_deref().map(shown_owner),
        state,
        reason,
        begun_us: operation.begun_us,
        ended_us: operation.ended_us,
        looked_at: operation.looked_at,
        about: operation.about,
        matched: operation.matched,
        changed: operation.changed,
        refused: refused(operation.refused),
    }
}

fn refused(jobs: BTreeMap<String, u64>) -> Vec<RefusedJobs> {
    jobs.into_iter().map(|(reason, jobs)| RefusedJobs { reason, jobs }).collect()
}

/// Whether the caller may see and stop an operation: its own, and an operator all.
fn owns(caller: &Caller, operation: &Operation) -> bool {
    caller.operates() || (*caller.who() != Who::Nobody && operation.by == caller.owner())
}

/// Change all jobs that meet a condition
///
/// Creates a bulk operation, which the server carries out in many small transactions, also after a restart or on another
/// node. It changes only jobs that the caller may change; jobs that the caller may not see do not count. A job that meets
/// the condition from the start until it is reached is changed once. A job that is added, added again or retried after the
/// start is left alone. Follow the operation with `GET`, and stop it with `DELETE`.
///
/// Repeating the request has no effect: an id stands for one operation.
#[utoipa::path(
    put, path = "/bulk/{bulk}", tag = "bulk", operation_id = "put_bulk", params(BulkPath), request_body = PutBulk,
    responses(
        (status = 200, body = Bulk, description = "The operation existed."),
        (status = 201, body = Bulk, description = "The operation has begun."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: another operation has this id."),
        BadBody, Common,
    ),
)]
pub(super) async fn put_bulk(
    Call { app, caller, path }: Call<BulkPath>,
    Json(put): Json<PutBulk>,
) -> Result<(StatusCode, Shown<Bulk>)> {
    let (is_new, operation) = begin(&app, &caller, path.bulk, put).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Shown(operation)))
}

/// Begins a bulk operation. Returns whether it is new.
pub async fn begin(app: &App, caller: &Caller, id: String, put: PutBulk) -> Result<(bool, Bulk)> {
    let action = action(put.action, put.priority)?;
    if put.condition.trim().is_empty() {
        return Err(V1Error::bad(
            "where: must not be empty",
            "to select all jobs, write a condition that all of them meet, such as `age >= 0s`",
        ));
    }
    let now_us = app.now_us();
    let selection = selection(&put.condition, now_us)?;
    let sees = |tenant: &str| caller.reads(tenant);
    let tx = app.store.begin().await?;
    let selection = selection.narrowed(&tx, &app.keys, &sees).await?;
    let about = selection.about(&tx, &app.keys, &sees).await?;
    drop(tx);
    let new = NewOperation {
        id,
        action,
        condition: put.condition,
        by: caller.owner(),
        scopes: caller.scopes().texts(),
        node: app.node.to_string(),
        by_operator: caller.operates(),
    };
    let (keys, new) = (&app.keys, &new);
    let created = app.store.transact(|tx| async move {
        Ok::<_, turnwise_queue::Error>(match (bulk::create(&tx, keys, new, now_us).await?, about) {
            (Created::Now(operation), Some(about)) => {
                Created::Now(bulk::expect(&tx, keys, operation, about)?)
            }
            (created, _) => created,
        })
    });
    let created = created.await?;
    match created {
        Created::Now(operation) => {
            let by = operation.by.as_deref().map_or("everyone".to_owned(), shown_owner);
            tracing::info!(bulk = %operation.id, by, action = put.action.as_str(), "a bulk operation begins");
            Ok((true, shown(operation)))
        }
        Created::Before(operation) => Ok((false, shown(operation))),
        Created::Taken => Err(V1Error::conflict(
            codes::CONFLICT,
            format!("another bulk operation has the id `{}`", new.id),
            "choose another id for each operation",
        )),
        Created::Used => Err(V1Error::conflict(
            codes::CONFLICT,
            format!("the bulk operation `{}` has been, and its record was removed to make room", new.id),
            "it is not begun again; choose another id for a new operation",
        )),
        Created::TooMany(running) => Err(V1Error::too_many(
            format!("{running} bulk operations run already"),
            "wait until one has ended, or stop one",
        )),
    }
}

/// Get a bulk operation
#[utoipa::path(
    get, path = "/bulk/{bulk}", tag = "bulk", operation_id = "get_bulk", params(BulkPath),
    responses(
        (status = 200, body = Bulk, description = "The operation, and how far it is."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such operation."),
        Common,
    ),
)]
pub(super) async fn get_bulk(Call { app, caller, path }: Call<BulkPath>) -> Result<Shown<Bulk>> {
    one(&app, &caller, &path.bulk).await.map(Shown)
}

/// One bulk operation.
pub async fn one(app: &App, caller: &Caller, id: &str) -> Result<Bulk> {
    let tx = app.store.begin().await?;
    match bulk::get(&tx, &app.keys, id).await? {
        Some(operation) if owns(caller, &operation) => Ok(shown(operation)),
        _ => Err(no_bulk(id)),
    }
}

/// Stop a bulk operation
///
/// Jobs that it has changed stay changed. An operation that has ended is unchanged.
#[utoipa::path(
    delete, path = "/bulk/{bulk}", tag = "bulk", operation_id = "stop_bulk", params(BulkPath),
    responses(
        (status = 200, body = Bulk, description = "The operation as it is now."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such operation."),
        Common,
    ),
)]
pub(super) async fn stop_bulk(Call { app, caller, path }: Call<BulkPath>) -> Result<Shown<Bulk>> {
    stop(&app, &caller, &path.bulk).await.map(Shown)
}

/// Stops a bulk operation.
pub async fn stop(app: &App, caller: &Caller, id: &str) -> Result<Bulk> {
    let now_us = app.now_us();
    let stopped = app.store.transact(|tx| async move {
        match bulk::get(&tx, &app.keys, id).await? {
            Some(operation) if owns(caller, &operation) => {}
            _ => return Err(no_bulk(id)),
        }
        let stopped = bulk::end(&tx, &app.keys, id, Standing::Stopped, now_us).await?;
        stopped.ok_or_else(|| no_bulk(id))
    });
    Ok(shown(stopped.await?))
}

/// The parameters of a listing of bulk operations.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct BulksParams {
    /// Maximum number of operations in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next` of the previous page.
    #[param(value_type = Option<names::Name>, nullable = false)]
    after: Option<String>,
}

/// List bulk operations
///
/// Those of the caller, sorted by id; an operator sees all. Ended operations are removed after a week.
#[utoipa::path(
    get, path = "/bulk", tag = "bulk", operation_id = "list_bulks", params(BulksParams),
    responses((status = 200, body = Bulks, description = "A page of operations."), Common),
)]
pub(super) async fn list_bulks(call: Call, Params(query): Params<BulksParams>) -> Result<Shown<Bulks>> {
    list(&call.app, &call.caller, query.limit, query.after.as_deref()).await.map(Shown)
}

/// A page of bulk operations.
pub async fn list(app: &App, caller: &Caller, limit: usize, after: Option<&str>) -> Result<Bulks> {
    check_limit(limit)?;
    if let Some(after) = after {
        names::check_name("after", after)?;
    }
    let tx = app.store.begin().await?;
    let all = bulk::list(&tx, &app.keys, after, bulk::MAX_KEPT).await?;
    let mut own: Vec<Operation> = all.into_iter().filter(|operation| owns(caller, operation)).collect();
    let more = own.len() > limit;
    own.truncate(limit);
    let next = own.last().filter(|_| more).map(|operation| operation.id.clone());
    Ok(Bulks { bulk: own.into_iter().map(shown).collect(), next })
}

/// The parameters of a count.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct CountParams {
    /// The condition, as in a bulk operation. Left out or empty, all jobs meet it.
    #[serde(default, rename = "where")]
    #[param(max_length = 4000)]
    condition: String,
    /// Count how many of these jobs this action would change now.
    #[param(inline, nullable = false)]
    action: Option<BulkAction>,
    /// With the action `priority`: the new priority.
    #[param(nullable = false, minimum = -20, maximum = 19)]
    priority: Option<i32>,
}

/// Count jobs that meet a condition
///
/// Looks at jobs for at most 5 s, and says whether it has reached all of them. Changes nothing: with `action`, this is the
/// dry run of a bulk operation.
#[utoipa::path(
    get, path = "/matching", tag = "bulk", operation_id = "match_jobs", params(CountParams),
    responses((status = 200, body = MatchingJobs, description = "The numbers, and some of the jobs."), Common),
)]
pub(super) async fn match_jobs(
    call: Call,
    Params(query): Params<CountParams>,
) -> Result<Shown<MatchingJobs>> {
    matching(&call.app, call.caller, &query.condition, query.action, query.priority).await.map(Shown)
}

/// Counts jobs that meet a condition.
pub async fn matching(
    app: &App,
    caller: Caller,
    condition: &str,
    wanted: Option<BulkAction>,
    priority: Option<i32>,
) -> Result<MatchingJobs> {
    let selection = selection(condition, app.now_us())?;
    let action = match wanted {
        Some(wanted) => Some(action(wanted, priority)?),
        None if priority.is_some() => {
            return Err(V1Error::bad("priority: belongs to the action `priority`", "leave it out"));
        }
        None => None,
    };
    let _permit = app.counts.take(&caller, 1).await;
    let begun = Instant::now();
    let sees = |tenant: &str| caller.reads(tenant);
    let selection = selection.narrowed(&app.store.begin().await?, &app.keys, &sees).await?;
    let gate = CallerGate(caller);
    let mut counted = MatchingJobs {
        complete: true,
        looked_at: 0,
        matched: 0,
        changes: action.map(|_| 0),
        refused: Vec::new(),
        examples: Vec::new(),
    };
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    let mut at = Position::default();
    loop {
        let tx = app.store.begin().await?;
        let page = selection.page(&tx, &app.keys, &at, selection.most_looks(COUNT_BATCH)).await?;
        let (mut next, mut reached, batch_begun) = (page.next, None, Instant::now());
        for (position, job) in page.jobs {
            // The next transaction goes on here, so that none becomes too old.
            if reached.is_some() && batch_begun.elapsed() >= SEARCH_TIME {
                next = reached;
                break;
            }
            reached = Some(position);
            if !gate.sees(&job) {
                continue;
            }
            counted.looked_at += 1;
            if !selection.holds(&tx, &app.keys, &job, gate.tests_options(&job)).await? {
                continue;
            }
            counted.matched += 1;
            if let Some(action) = action {
                let check = || bulk::check(&job, action, gate.holder());
                if let Err(reason) = gate.permits(&job, action).and_then(|()| check()) {
                    *reasons.entry(reason.to_owned()).or_default() += 1;
                    continue;
                }
                counted.changes = counted.changes.map(|changes| changes + 1);
            }
            if counted.examples.len() < MAX_EXAMPLES {
                let state = view::state(&job);
                let JobFields { job_type, id, spec, .. } = job.into_fields();
                counted.examples.push(ExampleJob { job_type, id, tenant: spec.tenant, state });
            }
        }
        match next {
            Some(next) => at = next,
            None => break,
        }
        if begun.elapsed() >= COUNT_TIME || app.stop.is_cancelled() {
            counted.complete = false;
            break;
        }
    }
    counted.refused = refused(reasons);
    Ok(counted)
}
