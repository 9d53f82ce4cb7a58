//! `/v1/fleets`: supervisors of workers report what they do, and are listed like nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use turnwise_protocol::fleets::{
    MAX_FLEET_EXPIRY_MS, MAX_FLEET_NAME_BYTES, MAX_FLEET_TEXT_BYTES, MAX_FLEET_TYPES,
};
use turnwise_protocol::{Fleet, FleetType, Fleets, PutFleet, RemovedFleet, names};
use turnwise_queue::fleets::{self as rows, Report};

use super::app::App;
use super::body::Json;
use super::error::{Result, V1Error};
use super::event_log::us;
use super::extract::{Call, Shown, check_short, path_with_name};
use super::responses::{BadBody, Common};
use super::workers::check_range;

path_with_name! {
    /// `/{name}`
    FleetPath(|name: &str| check_short("name: it", name, MAX_FLEET_NAME_BYTES)):
    /// The fleet's name, percent-encoded: at most 64 bytes.
    #[param(min_length = 1, max_length = 64, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    name
}

/// Largest count of a report: the largest number that the format of the description has.
const MAX_COUNT: u64 = i64::MAX as u64;

/// The part of a report that the row keeps as it is.
#[derive(Serialize, Deserialize)]
struct Kept {
    host: String,
    version: String,
    started_us: i64,
    types: Vec<FleetType>,
}

/// List fleets
///
/// The supervisors of workers (`turnwise fleet`) that have reported lately, with the workers that they keep.
#[utoipa::path(
    get, path = "/fleets", tag = "nodes", operation_id = "list_fleets",
    responses((status = 200, body = Fleets, description = "The fleets, at most 200."), Common),
)]
pub(super) async fn list_fleets(Call { app, .. }: Call) -> Result<Shown<Fleets>> {
    Ok(Shown(Fleets { fleets: fleets(&app).await? }))
}

/// The fleets that have reported lately, by name.
pub async fn fleets(app: &App) -> Result<Vec<Fleet>> {
    let tx = app.store.begin().await?;
    let reports = rows::list(&tx, &app.keys, app.now_us()).await?;
    // The report of a later release may have another form.
    Ok(reports.into_iter().filter_map(|(name, report)| shown(name, report)).collect())
}

fn shown(name: String, report: Report) -> Option<Fleet> {
    let Kept { host, version, started_us, types } = serde_json::from_value(report.state).ok()?;
    Some(Fleet { name, host, version, started_us, seen_us: report.seen_us, types })
}

/// Report a fleet
///
/// A fleet reports what it does, in place of its last report. It is listed until the report expires.
#[utoipa::path(
    put, path = "/fleets/{name}", tag = "nodes", operation_id = "put_fleet", params(FleetPath),
    request_body = PutFleet,
    responses((status = 200, body = Fleet, description = "The fleet as it is listed now."), BadBody, Common),
)]
pub(super) async fn put_fleet(
    Call { app, path, .. }: Call<FleetPath>,
    Json(put): Json<PutFleet>,
) -> Result<Shown<Fleet>> {
    let PutFleet { host, version, started_us, expires_ms, types } = put;
    check_range("expires_ms", expires_ms, 1, MAX_FLEET_EXPIRY_MS)?;
    check_range("types", types.len(), 0, MAX_FLEET_TYPES)?;
    check_text("host", &host)?;
    check_text("version", &version)?;
    for of_type in &types {
        names::check_type(&of_type.job_type)?;
        check_text("why", &of_type.why)?;
        let FleetType { slots, min, max, target, running, stopping, failures, .. } = of_type;
        for number in [slots, min, max, target, running, stopping, failures] {
            check_range("types", *number, 0, MAX_COUNT)?;
        }
    }
    let seen_us = app.now_us();
    let valid_us = us(Duration::from_millis(expires_ms));
    let kept = Kept { host, version, started_us, types };
    let state = serde_json::to_value(&kept).map_err(|error| V1Error::internal(&error))?;
    let report = &Report { seen_us, expires_us: seen_us.saturating_add(valid_us), state };
    let (keys, name) = (&app.keys, &path.name);
    app.store.transact(|tx| async move { rows::put(&tx, keys, name, report).await }).await?;
    let Kept { host, version, started_us, types } = kept;
    Ok(Shown(Fleet { name: path.name, host, version, started_us, seen_us, types }))
}

fn check_text(field: &str, text: &str) -> Result<()> {
    if text.len() <= MAX_FLEET_TEXT_BYTES && !text.contains(char::is_control) {
        return Ok(());
    }
    let problem = format!("{field}: at most {MAX_FLEET_TEXT_BYTES} bytes, without control characters");
    Err(V1Error::bad(problem, "shorten the text"))
}

/// Remove a fleet
///
/// Removes the report of a fleet that stops. Its workers are registered by themselves, and are not removed.
#[utoipa::path(
    delete, path = "/fleets/{name}", tag = "nodes", operation_id = "remove_fleet", params(FleetPath),
    responses((status = 200, body = RemovedFleet, description = "There is no such report now."), Common),
)]
pub(super) async fn remove_fleet(Call { app, path, .. }: Call<FleetPath>) -> Result<Shown<RemovedFleet>> {
    let (keys, name) = (&app.keys, &path.name);
    let removed = app.store.transact(|tx| async move { rows::remove(&tx, keys, name).await }).await?;
    Ok(Shown(RemovedFleet { removed }))
}
