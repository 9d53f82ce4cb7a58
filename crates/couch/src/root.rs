//! The server itself: the requests that clients send first.

use axum::response::Response;
use serde_json::json;
use turnwise_replicator::documents::databases::{self, Database};
use turnwise_web::answer::{in_pieces, ok};
use turnwise_web::error::ApiError;

use super::app::App;
use super::call::Call;

/// The CouchDB release whose API this is. Clients choose the features that they use by it.
const API_VERSION: &str = "3.5.0";
/// Maximum number of UUIDs in one request, as in CouchDB.
const MAX_UUIDS: usize = 1_000;
/// Number of databases that one transaction reads.
const PAGE: usize = 1_000;

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
    let mut skip = call.params.number("skip")?.unwrap_or(0);
    let mut limit = call.params.number("limit")?.unwrap_or(usize::MAX);
    let (app, caller) = (app.clone(), call.caller.clone());
    // Read before the response begins, so that an error can still change the status.
    let first = page(&app, None).await?;
    Ok(in_pieces(async move |mut pieces| {
        pieces.text("[").await?;
        let mut page = first;
        loop {
            let there = page.iter().filter(|(name, database)| !database.deleting && caller.reads(name));
            for (name, _) in there {
                if skip > 0 {
                    skip -= 1;
                } else if limit > 0 {
                    limit -= 1;
                    pieces.element(name).await?;
                }
            }
            match page.into_iter().next_back() {
                Some((last, _)) if limit > 0 => page = self::page(&app, Some(&last)).await?,
                _ => break,
            }
        }
        pieces.text("]\n").await?;
        Ok(pieces)
    }))
}

async fn page(app: &App, after: Option<&str>) -> Result<Vec<(String, Database)>, ApiError> {
    let tx = app.store.begin().await?;
    Ok(databases::list(&tx, &app.keys, after, PAGE).await?)
}
