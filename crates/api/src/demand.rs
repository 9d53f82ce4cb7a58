//! `GET /v1/types/{type}/demand`: how many slots a job type needs. Autoscalers read this.

use serde::Deserialize;
use turnwise_explain::demand::{DEFAULT_TARGET_MS, demand};
use turnwise_explain::{Of, Snapshot};
use turnwise_protocol::Demand;
use utoipa::IntoParams;

use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown, TypePath};
use super::responses::Common;

/// The bounds of a target, in ms.
const TARGETS_MS: std::ops::RangeInclusive<u64> = 1_000..=86_400_000;

/// The parameters of a request for the demand.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DemandParams {
    /// The time within which what could run now shall have started, in ms.
    #[param(minimum = 1000, maximum = 86_400_000, default = 60_000)]
    drain_target_ms: Option<u64>,
}

/// Show the demand for slots
///
/// How many jobs of the type could run now, and how many slots that takes. Jobs that wait for a time, for locks, for other jobs, for a filter
/// or for a concurrency limit cannot run. All numbers are there also for a type without jobs. `wanted_slots` is what an autoscaler should provide: it
/// rises with the jobs at once, and falls `drain_target_ms` after them. It depends on what this server was asked before: ask one server, several
/// times per target.
#[utoipa::path(
    get, path = "/types/{type}/demand", tag = "jobs", operation_id = "get_demand",
    params(TypePath, DemandParams),
    responses((status = 200, body = Demand, description = "The demand."), Common),
)]
pub(super) async fn get_demand(
    Call { app, path: TypePath { job_type }, .. }: Call<TypePath>,
    Params(params): Params<DemandParams>,
) -> Result<Shown<Demand>> {
    let target_ms = params.drain_target_ms.unwrap_or(DEFAULT_TARGET_MS);
    if !TARGETS_MS.contains(&target_ms) {
        let (least, most) = TARGETS_MS.into_inner();
        return Err(V1Error::bad(
            format!("`drain_target_ms` must be from {least} to {most}"),
            "Correct the parameter, or leave it out.",
        ));
    }
    let (tx, rules) = (app.store.begin().await?, app.rules());
    let reader = app.reader(&tx, &rules);
    let snapshot = Snapshot::read(&reader, &job_type, Of::First).await?;
    Ok(Shown(demand(&reader, &app.demand, &snapshot, target_ms).await?))
}
