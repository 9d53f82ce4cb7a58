//! `PUT /v1/workers/{type}/{worker}` and `PUT /v1/nodes/{node}`: whether workers get new jobs.

use axum::http::StatusCode;
use serde::Deserialize;
use turnwise_protocol::{ChangedNode, Error, Mode, SetMode, Worker, codes, names};
use turnwise_queue::{Mode as RowMode, modes as rows, nodes, workers};

use super::app::App;
use super::body::Json;
use super::error::{Result, V1Error};
use super::extract::{Call, Names, Shown, WorkerPath, path_with_name};
use super::members;
use super::responses::{BadBody, Common};
use super::view::same;

/// Number of job types that one read returns.
const TYPES_BATCH: usize = 100;
/// Longest name of a node, in bytes.
const MAX_NODE_BYTES: usize = 512;

/// A [`WorkerPath`] also of workers inside servers, which the sender need not be.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct AnyWorkerPath(WorkerPath);

path_with_name! {
    /// `/{node}`
    NodePath(check_node):
    /// The node's name, percent-encoded.
    #[param(min_length = 1, max_length = 512)]
    node
}

impl Names for AnyWorkerPath {
    fn check(&self) -> Result<()> {
        names::check_type(&self.0.job_type)?;
        if names::is_worker_id(&self.0.worker) { Ok(()) } else { Err(unknown_worker()) }
    }
}

fn check_node(node: &str) -> Result<()> {
    if (1..=MAX_NODE_BYTES).contains(&node.len()) { Ok(()) } else { Err(unknown_node()) }
}

fn unknown_worker() -> V1Error {
    V1Error::new(
        StatusCode::NOT_FOUND,
        codes::UNKNOWN_WORKER,
        "no worker of this type has this id",
        "GET /v1/workers lists the registered workers",
    )
}

fn unknown_node() -> V1Error {
    V1Error::not_found("no node has this name", "GET /v1/nodes lists the nodes")
}

/// A mode in the form of the API.
pub(super) fn shown(mode: RowMode) -> Mode {
    same!(mode, RowMode => Mode: Active Quiet Drain)
}

fn read(mode: Mode) -> RowMode {
    same!(mode, Mode => RowMode: Active Quiet Drain)
}

/// Quiet, drain or resume a worker
///
/// Once this has a response, a worker with the mode `quiet` or `drain` claims no job. The request may be repeated.
#[utoipa::path(
    put, path = "/workers/{type}/{worker}", tag = "workers", operation_id = "set_worker_mode", params(WorkerPath),
    request_body = SetMode,
    responses(
        (status = 200, body = Worker, description = "The worker has this mode."),
        (status = 404, body = Error, description = "`unknown_worker`: no such worker is registered."),
        BadBody, Common,
    ),
)]
pub(super) async fn set_worker_mode(
    Call { app, path: AnyWorkerPath(path), .. }: Call<AnyWorkerPath>,
    Json(SetMode { mode }): Json<SetMode>,
) -> Result<Shown<Worker>> {
    set(&app, &path.job_type, &path.worker, mode).await.map(Shown)
}

/// Changes a worker's mode.
pub async fn set(app: &App, job_type: &str, worker: &str, mode: Mode) -> Result<Worker> {
    let mode = read(mode);
    let changed = app
        .store
        .transact(|tx| async move { rows::set(&tx, &app.keys, job_type, worker, mode).await })
        .await?;
    let (row, is_changed) = changed.ok_or_else(unknown_worker)?;
    if is_changed {
        tracing::info!(job_type, worker, ?mode, "the mode of a worker has changed");
    }
    members::worker(app, &app.store.begin().await?, job_type, row).await
}

/// Quiet, drain or resume a node
///
/// Changes the mode of all workers inside this server, and of those that it starts later, also after a restart. External
/// workers are not a part of a node. The request may be repeated.
#[utoipa::path(
    put, path = "/nodes/{node}", tag = "nodes", operation_id = "set_node_mode", params(NodePath),
    request_body = SetMode,
    responses(
        (status = 200, body = ChangedNode, description = "The node has this mode, and so have its workers."),
        (status = 404, body = Error, description = "`not_found`: no node has this name, and none of this name has a mode."),
        BadBody, Common,
    ),
)]
pub(super) async fn set_node_mode(
    Call { app, path, .. }: Call<NodePath>,
    Json(SetMode { mode }): Json<SetMode>,
) -> Result<Shown<ChangedNode>> {
    set_node(&app, &path.node, mode).await.map(Shown)
}

/// Changes the mode of a node, and of its workers.
pub async fn set_node(app: &App, node: &str, mode: Mode) -> Result<ChangedNode> {
    let (keys, wanted) = (&app.keys, read(mode));
    let is_known = app
        .store
        .transact(|tx| async move {
            // A node that is down keeps its mode, and may be resumed.
            let is_known = rows::of_node(&tx, keys, node).await?.is_quiet()
                || nodes::list(&tx, keys).await?.iter().any(|known| known.node == node);
            if is_known {
                rows::set_node(&tx, keys, node, wanted).await?;
            }
            Ok::<_, turnwise_queue::Error>(is_known)
        })
        .await?;
    if !is_known {
        return Err(unknown_node());
    }
    // A worker that registers from now on has read the row. So those that are registered are all others.
    let (mut workers, mut after): (usize, Option<String>) = (0, None);
    loop {
        let tx = app.store.begin().await?;
        let types = workers::types_after(&tx, keys, after.as_deref(), TYPES_BATCH).await?;
        for job_type in &types {
            let followed =
                app.store.transact(|tx| async move { rows::follow_node(&tx, keys, job_type, node).await });
            workers += followed.await?;
        }
        if types.len() < TYPES_BATCH {
            break;
        }
        after = types.last().cloned();
    }
    tracing::info!(node, ?mode, workers, "the mode of a node has changed");
    Ok(ChangedNode { node: node.to_owned(), mode, workers })
}
