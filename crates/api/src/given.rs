//! Results that are handed on: what a worker gets with a job, and fetches.

use std::collections::BTreeMap;

use axum::response::Response;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use turnwise_protocol::{EndState, GivenInput, MAX_CLAIM, MAX_INLINE_INPUT_BYTES};
use turnwise_queue::output::{self, JobResult};
use turnwise_queue::{Claim, Job, claims, followers};
use turnwise_store::Transaction;
use utoipa::IntoParams;

use super::app::App;
use super::error::{Result, V1Error};
use super::extract::{Call, InputPath, Params, RunPath};
use super::inputs::path;
use super::output::response;
use super::responses::{Common, LostClaim, Membership};
use super::view;
use super::workers::{check_range, refused};

/// What need not be encoded in a part of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// What the worker of a run gets: the smallest results themselves, up to [`MAX_INLINE_INPUT_BYTES`], and where the others are.
pub(super) async fn of_run(app: &App, tx: &Transaction, job: &Job) -> Result<BTreeMap<String, GivenInput>> {
    let mut all = Vec::new();
    for (name, input, other) in followers::inputs(tx, &app.keys, job).await? {
        let bytes = other.as_ref().and_then(size);
        all.push((bytes, name, input, other));
    }
    all.sort_by_key(|(bytes, ..)| *bytes);
    let (mut given, mut room) = (BTreeMap::new(), MAX_INLINE_INPUT_BYTES);
    for (bytes, name, input, other) in all {
        let mut one = GivenInput {
            job: path(&input),
            state: other.as_ref().map_or(EndState::Removed, |other| view::state(other).into()),
            result: None,
            bytes: None,
            media_type: None,
            url: None,
        };
        if let (Some(other), Some(bytes)) = (&other, bytes) {
            let is_json = other.stored_result.as_ref().is_none_or(|stored| stored.media_type.is_none());
            let fits = is_json && bytes <= room;
            let result = if fits { output::result(tx, &app.keys, other).await? } else { None };
            match result {
                Some(JobResult::Json(json)) => {
                    room -= bytes;
                    one.result = Some(json);
                }
                _ => {
                    one.bytes = Some(bytes as u64);
                    let media_type =
                        other.stored_result.as_ref().and_then(|stored| stored.media_type.clone());
                    one.media_type = Some(media_type.unwrap_or_else(|| "application/json".to_owned()));
                    one.url = url(job, &name);
                }
            }
        }
        given.insert(name, one);
    }
    Ok(given)
}

/// The size of a job's result, if it has one.
fn size(job: &Job) -> Option<usize> {
    let inline = || job.result.as_ref().map(|json| json.get().len());
    job.stored_result.as_ref().map(|stored| stored.bytes).or_else(inline)
}

/// Where the worker of a run gets one of its inputs.
fn url(job: &Job, name: &str) -> Option<String> {
    let Claim { worker, number } = job.claim()?;
    let id = utf8_percent_encode(&job.id, PLAIN);
    Some(format!("/v1/workers/{}/{worker}/jobs/{id}/inputs/{name}?claim={number}", job.job_type))
}

/// Under which claim an input is read.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimParams {
    /// The number of the claim.
    #[param(maximum = 9_007_199_254_740_991_u64)]
    claim: u64,
}

/// Get an input
///
/// The result of a job that the claimed job names among its inputs, with its own media type. The worker needs no other right: it may read this while it
/// holds the claim.
#[utoipa::path(
    get, path = "/workers/{type}/{worker}/jobs/{id}/inputs/{input}", tag = "workers", operation_id = "get_input",
    params(InputPath, ClaimParams),
    responses(
        (status = 200, description = "The result.", content(
            (serde_json::Value = "application/json"), (Vec<u8> = "application/octet-stream"),
        )),
        (status = 404, body = turnwise_protocol::Error,
            description = "`not_found`: the job has no such input, or there is no result; `unknown_worker`."),
        LostClaim, Membership, Common,
    ),
)]
pub(super) async fn get_input(
    Call { app, path, .. }: Call<InputPath>,
    Params(ClaimParams { claim }): Params<ClaimParams>,
) -> Result<Response> {
    check_range("claim", claim, 0, MAX_CLAIM)?;
    let InputPath { job_type, worker, id, input } = path;
    let path = RunPath { job_type, worker, id };
    let claim = Claim { worker: path.worker.clone(), number: claim };
    let tx = app.store.begin().await?;
    let job = match claims::held(&tx, &app.keys, &path.job_type, &path.id, &claim).await {
        Ok(job) => job,
        Err(error) => return Err(refused(&app, &path, error).await),
    };
    let given = followers::inputs(&tx, &app.keys, &job).await?;
    let other = given.into_iter().find(|(name, ..)| *name == input).and_then(|(.., other)| other);
    let result = match &other {
        Some(other) => output::result(&tx, &app.keys, other).await?,
        None => None,
    };
    let no_result = || {
        V1Error::not_found(
            format!("this job has no input `{input}` with a result"),
            "its `state` in the response with the job states why; a job that runs again has none meanwhile",
        )
    };
    result.map(response).ok_or_else(no_result)
}
