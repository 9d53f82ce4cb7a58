//! `/v1/types/{type}`: what holds for all jobs of a type that do not state it themselves.

use std::collections::BTreeMap;

use turnwise_protocol::{
    Declared, MAX_ATTEMPTS, MAX_DELAY_MS, MAX_TIMEOUT_MS, RemovedTerms, StatedType, StatedTypes, TaskTerms,
    TypeTerms,
};
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::types as rows;
use turnwise_queue::{Lifetime, Retry, StatedTerms};
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
    let (tasks, secrets) = (terms.tasks.clone(), terms.secrets.clone());
    let changed_us = app.now_us();
    let of_task = |(task, terms)| {
        let terms = stated(terms).map_err(|error| error.at(&format!("tasks.{task}.")))?;
        Ok((task, rows::TaskTerms { terms, declared: None, changed_us }))
    };
    let terms = &rows::TypeTerms {
        terms: stated(terms.terms())?,
        tasks: tasks.into_iter().map(of_task).collect::<Result<_>>()?,
        secrets,
        by: caller.owner(),
        changed_us,
    };
    let (keys, job_type) = (&app.keys, &path.job_type);
    let put = app.store.transact(|tx| async move {
        // What workers have declared stays theirs, if it is stated again.
        let mut terms = terms.clone();
        let before = rows::stated(&tx, keys, job_type).await?.unwrap_or_default();
        for (task, of_task) in &mut terms.tasks {
            if let Some(same) = before.tasks.get(task).filter(|before| before.terms == of_task.terms) {
                *of_task = same.clone();
            }
        }
        rows::put_terms(&tx, keys, job_type, &terms).await?;
        Ok::<_, turnwise_queue::Error>(terms)
    });
    Ok(Shown(shown(path.job_type.clone(), put.await?)))
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

/// The terms of a request.
pub(super) fn stated(terms: TaskTerms) -> Result<StatedTerms> {
    for (name, most) in [("max_attempts", terms.max_attempts), ("max_snoozes", terms.max_snoozes)] {
        if most.is_some_and(|most| most > MAX_ATTEMPTS) {
            return Err(V1Error::out_of_bounds(format!("{name}: must be from 0 to {MAX_ATTEMPTS}")));
        }
    }
    let times = |name, ms, least, most| time(name, ms, least, most);
    Ok(StatedTerms {
        max_attempts: terms.max_attempts,
        timeouts: Timeouts {
            run_us: times("timeout_ms", terms.timeout_ms, 1, MAX_TIMEOUT_MS)?,
            heartbeat_us: times("heartbeat_timeout_ms", terms.heartbeat_timeout_ms, 1, MAX_TIMEOUT_MS)?,
        },
        retry: Retry {
            backoff: terms.backoff.as_ref().map(view::waits),
            jitter: terms.jitter,
            on_lost: terms.on_lost.map(view::on_lost),
            max_snoozes: terms.max_snoozes,
        },
        lifetime: Lifetime {
            start_within_us: times("start_within_ms", terms.start_within_ms, 1, MAX_DELAY_MS)?,
            keep_us: times("keep_ms", terms.keep_ms, 0, MAX_DELAY_MS)?,
        },
        final_errors: terms.final_errors,
    })
}

/// A time of a request, in µs.
fn time(name: &str, ms: Option<u64>, least: u64, most: u64) -> Result<Option<i64>> {
    let Some(ms) = ms else { return Ok(None) };
    match i64::try_from(ms) {
        Ok(time) if (least..=most).contains(&ms) => Ok(Some(time * 1_000)),
        _ => {
            let years = if most == MAX_TIMEOUT_MS { "a year" } else { "ten years" };
            Err(V1Error::out_of_bounds(format!("{name}: must be from {least} to {most} ({years})")))
        }
    }
}

fn shown_terms(terms: StatedTerms) -> TaskTerms {
    let StatedTerms { max_attempts, timeouts, retry, lifetime, final_errors } = terms;
    let Retry { backoff, jitter, on_lost, max_snoozes } = retry;
    TaskTerms {
        max_attempts,
        backoff: backoff.as_ref().map(view::shown_waits),
        jitter,
        on_lost: on_lost.map(view::shown_on_lost),
        max_snoozes,
        timeout_ms: view::ms(timeouts.run_us),
        heartbeat_timeout_ms: view::ms(timeouts.heartbeat_us),
        start_within_ms: view::ms(lifetime.start_within_us),
        keep_ms: view::ms(lifetime.keep_us),
        final_errors,
    }
}

fn shown(job_type: String, stated: rows::TypeTerms) -> StatedType {
    let rows::TypeTerms { terms, tasks, secrets, by, changed_us } = stated;
    let mut declared = BTreeMap::new();
    let mut of_tasks = BTreeMap::new();
    for (task, rows::TaskTerms { terms, declared: by, changed_us }) in tasks {
        if let Some(rows::DeclaredBy { worker, by }) = by {
            let by = by.as_deref().map(shown_owner);
            declared.insert(task.clone(), Declared { worker, by, at_us: changed_us });
        }
        of_tasks.insert(task, shown_terms(terms));
    }
    let terms = TypeTerms { tasks: of_tasks, secrets, ..TypeTerms::of(shown_terms(terms)) };
    StatedType { job_type, terms, declared, by: by.as_deref().map(shown_owner), changed_us }
}
