//! `/v1/filters`: rules that decide which waiting jobs may start.

use turnwise_policy::eligibility::filters::{Action, Filters as Ordered, Rule};
use turnwise_policy::eligibility::rate::{Algorithm, Rate};
use turnwise_protocol::{
    Action as ApiAction, Filter, Filters, MAX_FILTER_NAME_BYTES, MAX_TIME_US, PauseRate, PausedRate,
    PutFilter, Rate as ApiRate, RateAlgorithm, RemovedFilter, names,
};
use turnwise_queue::{filters as rows, rates};

use super::app::App;
use super::body::Json;
use super::error::{Result, V1Error};
use super::extract::{Call, Shown, check_short, path_with_name};
use super::responses::{BadBody, Common};
use super::view::same;
use super::workers::check_range;

path_with_name! {
    /// `/{filter}`
    FilterPath(check_name):
    /// The filter's name, percent-encoded.
    #[param(value_type = names::Name)]
    filter
}

/// Checks the name of a filter.
pub fn check_name(filter: &str) -> Result<()> {
    check_short("filter: its name", filter, MAX_FILTER_NAME_BYTES)
}

fn no_filter(id: &str) -> V1Error {
    V1Error::not_found(format!("there is no filter `{id}`"), "GET /v1/filters lists all filters")
}

fn shown(rule: &Rule) -> Filter {
    Filter {
        id: rule.id.clone(),
        action: same!(rule.action, Action => ApiAction: Accept Pause Reject Continue Concurrency Rate),
        limit: rule.limit,
        rate: rule.rate.as_ref().map(shown_rate),
        when: rule.when.clone(),
        priority: rule.priority,
        watermark_us: rule.watermark_us,
        note: rule.note.clone(),
    }
}

fn shown_rate(rate: &Rate) -> ApiRate {
    ApiRate {
        at_most: rate.at_most,
        per_ms: rate.per_ms,
        key: rate.key.clone(),
        weight: rate.weight,
        algorithm: same!(rate.algorithm, Algorithm => RateAlgorithm: Window Bucket),
    }
}

fn stated_rate(rate: ApiRate) -> Rate {
    Rate {
        at_most: rate.at_most,
        per_ms: rate.per_ms,
        key: rate.key,
        weight: rate.weight,
        algorithm: same!(rate.algorithm, RateAlgorithm => Algorithm: Window Bucket),
    }
}

/// List filters
///
/// In the order in which the server evaluates them. The first filter whose condition holds for a job decides, unless
/// its action is `continue`. A job that no filter decides about may run.
#[utoipa::path(
    get, path = "/filters", tag = "filters", operation_id = "list_filters",
    responses((status = 200, body = Filters, description = "All filters."), Common),
)]
pub(super) async fn list_filters(Call { app, .. }: Call) -> Result<Shown<Filters>> {
    filters(&app).await.map(Shown)
}

/// All filters, in the order in which the server evaluates them.
pub async fn filters(app: &App) -> Result<Filters> {
    let tx = app.store.begin().await?;
    let mut rules = rows::list(&tx, &app.keys).await?;
    // A filter that a newer release wrote cannot be ordered, but is listed nevertheless.
    if let Ok(ordered) = Ordered::new(rules.clone()) {
        rules = ordered.rules().cloned().collect();
    }
    Ok(Filters { filters: rules.iter().map(shown).collect() })
}

/// Get a filter
#[utoipa::path(
    get, path = "/filters/{filter}", tag = "filters", operation_id = "get_filter", params(FilterPath),
    responses(
        (status = 200, body = Filter, description = "The filter."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such filter."),
        Common,
    ),
)]
pub(super) async fn get_filter(Call { app, path, .. }: Call<FilterPath>) -> Result<Shown<Filter>> {
    let tx = app.store.begin().await?;
    let rules = rows::list(&tx, &app.keys).await?;
    match rules.iter().find(|rule| rule.id == path.filter) {
        Some(rule) => Ok(Shown(shown(rule))),
        None => Err(no_filter(&path.filter)),
    }
}

/// Write a filter
///
/// Creates a filter, or replaces the one with this name. It applies to every job that starts from now on. Jobs that
/// other filters have paused or limited are checked again. Jobs that started before a limit existed do not count
/// against it.
#[utoipa::path(
    put, path = "/filters/{filter}", tag = "filters", operation_id = "put_filter", params(FilterPath),
    request_body = PutFilter,
    responses((status = 200, body = Filter, description = "The filter as it is now."), BadBody, Common),
)]
pub(super) async fn put_filter(
    Call { app, path, .. }: Call<FilterPath>,
    Json(put): Json<PutFilter>,
) -> Result<Shown<Filter>> {
    write(&app, &rule(path.filter, put)?).await.map(Shown)
}

/// Writes a filter, new or in place of the one with its name.
pub async fn write(app: &App, rule: &Rule) -> Result<Filter> {
    let keys = &app.keys;
    app.store.transact(|tx| async move { rows::put(&tx, keys, rule).await }).await?;
    Ok(shown(rule))
}

/// The filter of a request.
pub fn rule(id: String, put: PutFilter) -> Result<Rule> {
    if !(0..=MAX_TIME_US).contains(&put.watermark_us) {
        let reason = format!("watermark_us: must be from 0 to {MAX_TIME_US} (the year 9999)");
        return Err(V1Error::bad(reason, "0 applies the filter to all jobs"));
    }
    Ok(Rule {
        id,
        priority: put.priority,
        watermark_us: put.watermark_us,
        when: put.when,
        action: same!(put.action, ApiAction => Action: Accept Pause Reject Continue Concurrency Rate),
        limit: put.limit,
        rate: put.rate.map(stated_rate),
        note: put.note,
    })
}

/// Pause a rate
///
/// Lets no job of the filter's rate start for a time, for example because the service that it protects has refused requests. Running jobs
/// continue.
#[utoipa::path(
    post, path = "/filters/{filter}/pause", tag = "filters", operation_id = "pause_rate", params(FilterPath),
    request_body = PauseRate,
    responses(
        (status = 200, body = PausedRate, description = "The rate is closed."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such filter."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`conflict`: the filter has no rate, or it has one without a key, or `key` is missing."),
        BadBody, Common,
    ),
)]
pub(super) async fn pause_rate(
    Call { app, path, .. }: Call<FilterPath>,
    Json(PauseRate { for_ms, key }): Json<PauseRate>,
) -> Result<Shown<PausedRate>> {
    check_range("for_ms", for_ms, 0, rates::MAX_PAUSE_MS)?;
    let (keys, id, key) = (&app.keys, &path.filter, key.as_deref());
    let now_us = app.store.runtime().now_us();
    let until_us = now_us.saturating_add_unsigned(for_ms * 1_000);
    let found = app.store.transact(|tx| async move {
        rows::stamp(&tx, keys).await?;
        let rules = rows::list(&tx, keys).await?;
        let Some(rule) = rules.iter().find(|rule| rule.id == *id) else { return Ok(false) };
        rates::pause(&tx, keys, rule, key, until_us).await?;
        Ok::<_, turnwise_queue::Error>(true)
    });
    match found.await {
        Ok(true) => Ok(Shown(PausedRate { until_us })),
        Ok(false) => Err(no_filter(id)),
        Err(turnwise_queue::Error::Invalid { field, problem }) => Err(V1Error::conflict(
            turnwise_protocol::codes::CONFLICT,
            format!("{field}: {problem}"),
            "GET /v1/filters shows the filter",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Remove a filter
///
/// Jobs that the filter has paused or limited return to their old places in the queue.
#[utoipa::path(
    delete, path = "/filters/{filter}", tag = "filters", operation_id = "remove_filter", params(FilterPath),
    responses(
        (status = 200, body = RemovedFilter, description = "The filter is removed."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such filter."),
        Common,
    ),
)]
pub(super) async fn remove_filter(Call { app, path, .. }: Call<FilterPath>) -> Result<Shown<RemovedFilter>> {
    remove(&app, &path.filter).await?;
    Ok(Shown(RemovedFilter { removed: true }))
}

/// Removes a filter.
pub async fn remove(app: &App, id: &str) -> Result<()> {
    let keys = &app.keys;
    let removed = app.store.transact(|tx| async move { rows::remove(&tx, keys, id).await });
    match removed.await? {
        true => Ok(()),
        false => Err(no_filter(id)),
    }
}
