//! The server itself: the requests that clients send first.

use axum::response::Response;
use serde_json::json;
use turnwise_web::answer::ok;
use turnwise_web::error::ApiError;

use super::app::App;
use super::call::Call;
use super::scheduler::all_databases;

/// The CouchDB release whose API this is. Clients choose the features that they use by it.
const API_VERSION: &str = "3.5.0";
/// Maximum number of UUIDs in one request, as in CouchDB.
const MAX_UUIDS: usize = 1_000;

pub fn welcome(app: &App) -> Result<Response, ApiError> {
    Ok(ok(&json!({
        "couchdb": "Welcome",
        "version": API_VERSION,
        "uuid": app.settings.get().server_uuid,
        "features": ["scheduler"],
        "vendor": { "name": "turnwise", "version": env!("CARGO_PKG_VERSION"), "open": app.identities.is_open() },
    })))
}

pub fn uuids(app: &App, call: &Call) -> Result<Response, ApiError> {
    let count = call.params.number("count")?.unwrap_or(1);
    if count > MAX_UUIDS {
        return Err(ApiError::bad_request("count parameter too large"));
    }
    let uuids: Vec<String> = (0..count).map(|_| app.new_uuid()).collect();
    Ok(ok(&json!({ "uuids": uuids })))
}

pub async fn all_dbs(app: &App, call: &Call) -> Result<Response, ApiError> {
    let skip = call.params.number("skip")?.unwrap_or(0);
    let limit = call.params.number("limit")?.unwrap_or(usize::MAX);
    let dbs = all_databases(app).await?.into_iter().filter(|db| call.caller.reads(db));
    Ok(ok(&dbs.skip(skip).take(limit).collect::<Vec<_>>()))
}
