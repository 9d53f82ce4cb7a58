//! `POST /v1/test/advance`: moves the clock of a server for tests. Other servers do not have this route, and the description does not show it.

use std::time::Duration;

use axum::Router;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use turnwise_protocol::MAX_DELAY_MS;
use turnwise_worker::Passage;

use super::app::App;
use super::body::Json;
use super::error::{Result, V1Error};
use super::extract::Shown;

/// Moves the clock forward, and does what is due then.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    /// By how much, in ms; at most ten years.
    by_ms: u64,
    /// Whether running jobs grow older by the same time, and may exceed their timeouts.
    #[serde(default)]
    timeouts: bool,
}

/// The clock after it was moved.
#[derive(Serialize)]
struct Advanced {
    /// The time, in µs since the Unix epoch.
    now_us: i64,
}

/// The route.
pub fn router(app: App, passage: Passage) -> Router {
    let advance = move |Json(body): Json<Advance>| advance(passage, body);
    Router::new().route("/v1/test/advance", post(advance)).with_state(app)
}

async fn advance(passage: Passage, Advance { by_ms, timeouts }: Advance) -> Result<Shown<Advanced>> {
    if by_ms > MAX_DELAY_MS {
        return Err(V1Error::out_of_bounds(format!("by_ms: must be from 0 to {MAX_DELAY_MS} (ten years)")));
    }
    let now_us = passage.advance(Duration::from_millis(by_ms), timeouts).await?;
    Ok(Shown(Advanced { now_us }))
}
