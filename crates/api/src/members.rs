//! `GET /v1/workers`: the registered workers and their running jobs.

use serde::Deserialize;
use turnwise_protocol::{RunningJob, SlotBounds, Worker, Workers, names};
use turnwise_queue::{Bounds, NODE_TYPE, jobs, types, workers as rows};
use turnwise_store::Transaction;
use turnwise_web::access::shown_owner;
use utoipa::IntoParams;

use super::app::App;
use super::error::Result;
use super::extract::{Call, Params, Shown, check_stated};
use super::list::{Cursor, check_limit, default_limit};
use super::modes;
use super::responses::Common;

/// Maximum number of running jobs that are shown of a worker.
const MAX_RUNNING: usize = 100;
/// A page ends early when this many running jobs were read for it.
const PAGE_RUNNING: usize = 1_000;
/// Number of workers that one transaction reads.
const BATCH: usize = 20;

/// The parameters of a listing of workers.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WorkersParams {
    /// Only workers of this type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    pub job_type: Option<String>,
    /// Maximum number of workers in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: usize,
    /// The `next` of the previous page.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_.-]{1,64}/[^\u0000-\u001f\u007f-\u009f]{0,512}$")]
    pub after: Option<String>,
}

/// List workers
///
/// Sorted by type and id, including the server's own workers. A page may be short. Only the last page has no `next`.
#[utoipa::path(
    get, path = "/workers", tag = "workers", operation_id = "list_workers", params(WorkersParams),
    responses((status = 200, body = Workers, description = "A page of workers."), Common),
)]
pub(super) async fn list_workers(call: Call, Params(query): Params<WorkersParams>) -> Result<Shown<Workers>> {
    workers(&call.app, query).await.map(Shown)
}

/// A page of workers.
pub async fn workers(app: &App, params: WorkersParams) -> Result<Workers> {
    check_limit(params.limit)?;
    let mut cursor = params.after.as_deref().map(Cursor::parse).transpose()?;
    check_stated(&params.job_type, names::check_type)?;
    let (mut page, mut running) = (Vec::new(), 0);
    let mut job_type = match (params.job_type.clone(), &cursor) {
        (Some(job_type), _) => Some(job_type),
        (None, Some(cursor)) => Some(cursor.job_type.clone()),
        (None, None) => type_after(app, None).await?,
    };
    while let Some(of_type) = job_type {
        let mut after = match cursor.take() {
            // No worker of that type follows.
            Some(cursor) if cursor.job_type > of_type => break,
            Some(cursor) if cursor.job_type == of_type => Some(cursor.id),
            _ => None,
        };
        loop {
            let tx = app.store.begin().await?;
            let batch = rows::healths(&tx, &app.keys, &of_type, after.as_deref(), BATCH).await?;
            let exhausted = batch.len() < BATCH;
            for (id, _) in batch {
                if page.len() >= params.limit || running >= PAGE_RUNNING {
                    let next = Cursor { job_type: of_type, id: after.unwrap_or_default() }.text();
                    return Ok(Workers { workers: page, next: Some(next) });
                }
                // A worker without a row is being removed.
                if let Some(row) = rows::get(&tx, &app.keys, &of_type, &id).await? {
                    let worker = worker(app, &tx, &of_type, row).await?;
                    running += worker.running.len();
                    page.push(worker);
                }
                after = Some(id);
            }
            if exhausted {
                break;
            }
        }
        job_type = match params.job_type {
            Some(_) => None,
            None => type_after(app, Some(&of_type)).await?,
        };
    }
    Ok(Workers { workers: page, next: None })
}

/// The next type that has workers. Nodes are left out: `/v1/nodes` lists them.
async fn type_after(app: &App, after: Option<&str>) -> Result<Option<String>> {
    let tx = app.store.begin().await?;
    let types = rows::types_after(&tx, &app.keys, after, 2).await?;
    Ok(types.into_iter().find(|job_type| job_type != NODE_TYPE))
}

/// One worker, with its running jobs.
pub(super) async fn worker(app: &App, tx: &Transaction, job_type: &str, row: rows::Worker) -> Result<Worker> {
    let mut running = jobs::active_of(tx, &app.keys, job_type, &row.id, MAX_RUNNING + 1).await?;
    let more_running = running.len() > MAX_RUNNING;
    running.truncate(MAX_RUNNING);
    let running = running.into_iter().map(|(id, active)| RunningJob {
        id,
        task: active.task,
        claim: active.claim,
        started_us: active.started_us,
    });
    let other_terms = match row.task_terms.is_empty() {
        true => Vec::new(),
        false => {
            let stated = types::stated(tx, &app.keys, job_type).await?.unwrap_or_default();
            types::contradicted(&stated, &row.task_terms)
        }
    };
    Ok(Worker {
        tasks: row.tasks,
        other_terms,
        job_type: job_type.to_owned(),
        id: row.id,
        name: row.name,
        node: row.node,
        external: row.external,
        slots: row.slots,
        slot_bounds: row.bounds.map(|Bounds { least, most }| SlotBounds { least, most }),
        started_us: row.started_us,
        registered_by: row.registered_by.as_deref().map(shown_owner),
        mode: modes::shown(row.mode),
        running: running.collect(),
        more_running,
    })
}
