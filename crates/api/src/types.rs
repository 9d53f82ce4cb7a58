//! `/v1/types/{type}`: what holds for all jobs of a type that do not state it themselves.

use turnwise_protocol::{MAX_ATTEMPTS, MAX_TIMEOUT_MS, RemovedTerms, StatedType, StatedTypes, TypeTerms};
use turnwise_queue::Retry;
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::types as rows;
use turnwise_web::access::shown_owner;

use super::body::Json;
use super::error::{Result, V1Error};
use super::extract::{Call, Shown, TypePath};
use super::responses::{BadBody, Common};
use super::view;

/// List the types of which something is stated
#[utoipa::path(
    get, path = "/type_terms", tag = "jobs", operation_id = "list_type_terms",
    responses((status = 200, body = StatedTypes, description = "The types, sorted."), Common),
)]
pub(super) async fn list_type_terms(Call { app, .. }: Call) -> Result<Shown<StatedTypes>> {
    let tx = app.store.begin().await?;
    let types = rows::stated_types(&tx, &app.keys).await?;
    Ok(Shown(StatedTypes {
        types: types.into_iter().map(|(job_type, terms)| shown(job_type, terms)).collect(),
    }))
}

/// Show what is stated of a type
#[utoipa::path(
    get, path = "/types/{type}", tag = "jobs", operation_id = "get_type_terms", params(TypePath),
    responses((status = 200, body = StatedType, description = "What is stated. `terms` is empty if nothing is."), Common),
)]
pub(super) async fn get_type_terms(Call { app, path, .. }: Call<TypePath>) -> Result<Shown<StatedType>> {
    let tx = app.store.begin().await?;
    let terms = rows::stated(&tx, &app.keys, &path.job_type).await?;
    Ok(Shown(shown(path.job_type, terms.unwrap_or_default())))
}

/// State what holds for the jobs of a type
///
/// It replaces what was stated before, and holds from each job's next start on, unless the job states it itself.
#[utoipa::path(
    put, path = "/types/{type}", tag = "jobs", operation_id = "put_type_terms", params(TypePath),
    request_body = TypeTerms,
    responses((status = 200, body = StatedType, description = "What is stated now."), BadBody, Common),
)]
pub(super) async fn put_type_terms(
    Call { app, caller, path }: Call<TypePath>,
    Json(terms): Json<TypeTerms>,
) -> Result<Shown<StatedType>> {
    let TypeTerms {
        max_attempts,
        backoff,
        jitter,
        on_lost,
        max_snoozes,
        timeout_ms,
        heartbeat_timeout_ms,
        final_errors,
        secrets,
    } = terms;
    for (name, most) in [("max_attempts", max_attempts), ("max_snoozes", max_snoozes)] {
        if most.is_some_and(|most| most > MAX_ATTEMPTS) {
            return Err(V1Error::out_of_bounds(format!("{name}: must be from 0 to {MAX_ATTEMPTS}")));
        }
    }
    let terms = &rows::TypeTerms {
        max_attempts,
        timeouts: timeouts(timeout_ms, heartbeat_timeout_ms)?,
        retry: Retry {
            backoff: backoff.as_ref().map(view::waits),
            jitter,
            on_lost: on_lost.map(view::on_lost),
            max_snoozes,
        },
        final_errors,
        secrets,
        by: caller.owner(),
        changed_us: app.now_us(),
    };
    let (keys, job_type) = (&app.keys, &path.job_type);
    app.store.transact(|tx| async move { rows::put_terms(&tx, keys, job_type, terms).await }).await?;
    Ok(Shown(shown(path.job_type, terms.clone())))
}

/// State nothing of a type any more
#[utoipa::path(
    delete, path = "/types/{type}", tag = "jobs", operation_id = "remove_type_terms", params(TypePath),
    responses((status = 200, body = RemovedTerms, description = "Nothing is stated now."), Common),
)]
pub(super) async fn remove_type_terms(Call { app, path, .. }: Call<TypePath>) -> Result<Shown<RemovedTerms>> {
    let (keys, job_type) = (&app.keys, &path.job_type);
    let removed =
        app.store.transact(|tx| async move { rows::remove_terms(&tx, keys, job_type).await }).await?;
    Ok(Shown(RemovedTerms { removed }))
}

/// The timeouts of a request.
pub(super) fn timeouts(timeout_ms: Option<u64>, heartbeat_timeout_ms: Option<u64>) -> Result<Timeouts> {
    let us = |name: &str, ms: Option<u64>| match ms.map(|ms| (ms, i64::try_from(ms))) {
        None => Ok(None),
        Some((ms, Ok(timeout))) if (1..=MAX_TIMEOUT_MS).contains(&ms) => Ok(Some(timeout * 1_000)),
        Some(_) => {
            Err(V1Error::out_of_bounds(format!("{name}: must be from 1 to {MAX_TIMEOUT_MS} (a year)")))
        }
    };
    Ok(Timeouts {
        run_us: us("timeout_ms", timeout_ms)?,
        heartbeat_us: us("heartbeat_timeout_ms", heartbeat_timeout_ms)?,
    })
}

fn shown(job_type: String, terms: rows::TypeTerms) -> StatedType {
    let rows::TypeTerms { max_attempts, timeouts, retry, final_errors, secrets, by, changed_us } = terms;
    let Retry { backoff, jitter, on_lost, max_snoozes } = retry;
    let terms = TypeTerms {
        max_attempts,
        backoff: backoff.as_ref().map(view::shown_waits),
        jitter,
        on_lost: on_lost.map(view::shown_on_lost),
        max_snoozes,
        timeout_ms: view::ms(timeouts.run_us),
        heartbeat_timeout_ms: view::ms(timeouts.heartbeat_us),
        final_errors,
        secrets,
    };
    StatedType { job_type, terms, by: by.as_deref().map(shown_owner), changed_us }
}
