//! Pages of jobs by time, and `GET /v1/failures`: failed jobs by their task and the class of their reason.

use std::collections::BTreeSet;
use std::time::Instant;

use serde::Deserialize;
use turnwise_policy::eligibility::condition::Indexed;
use turnwise_protocol::{Failure, Failures, Jobs, names};
use turnwise_queue::bulk::Gate as _;
use turnwise_queue::counts::{self, Counted};
use turnwise_queue::listing::{Cursor, Listing, Order, Wanted};
use turnwise_queue::selection::Selection;
use turnwise_queue::{Keyspace, failures, jobs as rows, reason_class};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;
use utoipa::IntoParams;

use super::app::App;
use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown, check_stated};
use super::list::{ListParams, Page, SEARCH_TIME};
use super::responses::Common;
use super::{CallerGate, position_text, view};

/// Types and tenants per read of counts.
pub(super) const BATCH: usize = 1_000;
/// The most tenants of a caller that are looked up one by one.
const MAX_TENANTS: usize = 100;
/// The most counts that are read to find them.
const MAX_COUNTS: usize = 20_000;
/// The most jobs that are tested against a condition for one page, in one transaction.
const MAX_SEARCHED: usize = 2_000;
/// The most types whose failures are counted.
const MAX_TYPES: usize = 100;
/// The most classes of failures in a response.
const MAX_FAILURES: usize = 100;

/// A page by time, from a position on.
pub(super) async fn jobs(
    app: &App,
    caller: &Caller,
    params: &ListParams,
    selection: Option<&Selection>,
    text: Option<&str>,
    (order, after): (Order, Option<String>),
) -> Result<Jobs> {
    let from = after.as_deref().map(|text| parse(order, text)).transpose()?.unwrap_or_default();
    let tx = app.store.begin().await?;
    let Some(wanted) = wanted(app, caller, &tx, params, selection, order).await? else {
        return Ok(Jobs { jobs: Vec::new(), looked_at: Some(0), next: None });
    };
    let gate = CallerGate(caller.clone());
    let sees = |tenant: &str| caller.reads(tenant);
    let mut listing = Listing::open(&tx, &app.keys, &wanted, &sees, &from).await?;
    let mut page = Page::default();
    let mut full = None;
    // What a condition costs is bounded for each request.
    let begun = Instant::now();
    let mut looks = selection.map_or(usize::MAX, |selection| selection.most_looks(MAX_SEARCHED));
    'page: loop {
        let found = listing.next(params.limit - page.jobs.len()).await?;
        if found.is_empty() {
            break;
        }
        for (cursor, job) in found {
            if !params.selects(&job) || !text.is_none_or(|text| job.id.contains(text)) {
                continue;
            }
            looks -= 1;
            let is_wanted = match selection {
                Some(selection) => selection.holds(&tx, &app.keys, &job, gate.tests_options(&job)).await?,
                None => true,
            };
            if is_wanted {
                page.push(view::listed(app, &tx, job).await?);
            }
            let is_late = selection.is_some() && begun.elapsed() >= SEARCH_TIME;
            if page.is_full(params.limit) || looks == 0 || is_late {
                full = Some(cursor);
                break 'page;
            }
        }
    }
    let next = full.or_else(|| listing.position()).map(|cursor| text_of(order, &cursor));
    let next = position_text::shown(app, caller, next).await?;
    Ok(Jobs { jobs: page.jobs, looked_at: Some(listing.looked_at()), next })
}

/// What narrows a list. `None` if nothing can be in it.
async fn wanted(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    params: &ListParams,
    selection: Option<&Selection>,
    order: Order,
) -> Result<Option<Wanted>> {
    let values = |field| selection.and_then(|selection| selection.values(field));
    // Of a parameter and a condition, the narrower one decides; the other one is tested for each job.
    let one =
        |given: &Option<String>, field| given.clone().map(|given| vec![given]).or_else(|| values(field));
    let types = one(&params.job_type, Indexed::Type);
    let tenants = match one(&params.tenant, Indexed::Tenant) {
        Some(tenants) => Some(tenants.into_iter().filter(|tenant| caller.reads(tenant)).collect()),
        None => own_tenants(app, caller, tx, types.as_deref()).await?,
    };
    if tenants.as_ref().is_some_and(|tenants: &Vec<String>| tenants.is_empty()) {
        return Ok(None);
    }
    let states = match params.state {
        Some(state) => Some(BTreeSet::from([state.as_str().to_owned()])),
        None => values(Indexed::State).map(|states| states.into_iter().collect()),
    };
    let tags = one(&params.tag, Indexed::Tag);
    let class = one(&params.reason_class, Indexed::ReasonClass);
    let class = match class.as_deref() {
        Some([class]) => Some(reason_class::number(class)),
        _ => None,
    };
    Ok(Some(Wanted { order, types, states, tenants, tags, class, ids: values(Indexed::Id) }))
}

/// The tenants with jobs that the caller may read, unless it may read all, or they are too many.
async fn own_tenants(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    types: Option<&[String]>,
) -> Result<Option<Vec<String>>> {
    if caller.operates() {
        return Ok(None);
    }
    let mut tenants: BTreeSet<String> = BTreeSet::new();
    let mut after: Option<(String, String)> = None;
    let only = types.filter(|types| types.len() == 1).and_then(|types| types.first());
    for _ in 0..MAX_COUNTS / BATCH {
        let from = after.as_ref().map(|(job_type, tenant)| (job_type.as_str(), tenant.as_str()));
        let rows = counted(tx, &app.keys, only.map(String::as_str), from).await?;
        let is_last = rows.len() < BATCH;
        after = rows.last().map(|last| (last.job_type.clone(), last.tenant.clone()));
        tenants.extend(rows.into_iter().map(|row| row.tenant).filter(|tenant| caller.reads(tenant)));
        if tenants.len() > MAX_TENANTS {
            return Ok(None);
        }
        if is_last {
            return Ok(Some(tenants.into_iter().collect()));
        }
    }
    Ok(None)
}

fn name(order: Order) -> &'static str {
    match order {
        Order::Newest => "/newest/",
        Order::Oldest => "/oldest/",
    }
}

/// A position as a text that is opaque to clients. No position among rows that are sorted by type and id begins with a slash.
fn text_of(order: Order, cursor: &Cursor) -> String {
    let json = serde_json::to_string(cursor).expect("a position is plain data");
    format!("{}{json}", name(order))
}

fn parse(order: Order, text: &str) -> Result<Cursor> {
    let json = text.strip_prefix(name(order));
    json.and_then(|json| serde_json::from_str(json).ok()).ok_or_else(|| {
        V1Error::bad(
            "after: must be the `next` of a page in the same order",
            "leave it out to begin with the first page",
        )
    })
}

/// The next [`BATCH`] counts, of all types or of one.
pub(super) async fn counted(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: Option<&str>,
    after: Option<(&str, &str)>,
) -> turnwise_queue::Result<Vec<Counted>> {
    match job_type {
        Some(one) => counts::list_of_type(tx, keys, one, after.map(|(_, tenant)| tenant), BATCH).await,
        None => counts::list(tx, keys, after, BATCH).await,
    }
}

/// The parameters of a request for failures.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct FailuresParams {
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    job_type: Option<String>,
    /// Only jobs of this tenant.
    #[param(value_type = Option<names::Name>, nullable = false)]
    tenant: Option<String>,
    /// Only jobs of this task.
    #[param(value_type = Option<names::TaskName>, nullable = false)]
    task: Option<String>,
}

/// Count failures by reason
///
/// Failed jobs by their task and the class of their reason, the most frequent first. `reason_class` of a list selects the jobs of a class, and its
/// condition (`where`) those of a task. Of more than 100 types,
/// those that come first by name are counted.
#[utoipa::path(
    get, path = "/failures", tag = "jobs", operation_id = "count_failures", params(FailuresParams),
    responses((status = 200, body = Failures, description = "The failures."), Common),
)]
pub(super) async fn count_failures(
    Call { app, caller, .. }: Call,
    Params(FailuresParams { job_type, tenant, task }): Params<FailuresParams>,
) -> Result<Shown<Failures>> {
    check_stated(&tenant, |tenant| names::check_name("tenant", tenant))?;
    check_stated(&job_type, names::check_type)?;
    check_stated(&task, names::check_task)?;
    let of = (job_type.as_deref(), tenant.as_deref(), task.as_deref());
    Ok(Shown(most_frequent(&app, &caller, of, MAX_FAILURES).await?))
}

/// The most frequent failures that the caller may see, of a type, a tenant and a task if they are given.
pub async fn most_frequent(
    app: &App,
    caller: &Caller,
    (job_type, tenant, task): (Option<&str>, Option<&str>, Option<&str>),
    most: usize,
) -> Result<Failures> {
    let tx = app.store.begin().await?;
    let types = match job_type {
        Some(job_type) => vec![job_type.to_owned()],
        None => rows::types_after(&tx, &app.keys, None, MAX_TYPES).await?,
    };
    let tenants = match tenant {
        Some(tenant) => Some(vec![tenant.to_owned()]),
        None => own_tenants(app, caller, &tx, Some(&types)).await?,
    };
    let sees = |tenant: &str| caller.reads(tenant);
    let found = failures::most_frequent(&tx, &app.keys, &types, tenants.as_deref(), task, &sees, most);
    let found = found.await?;
    let of = |failure: failures::Failure| Failure {
        reason_class: failure.class,
        jobs: failure.jobs,
        latest_us: failure.latest_us,
        reason: failure.example.reason().map(str::to_owned),
        task: failure.example.task.clone(),
        job_type: failure.example.job_type.clone(),
        id: failure.example.id.clone(),
    };
    let complete = found.complete;
    Ok(Failures {
        failures: found.failures.into_iter().map(of).collect(),
        looked_at: found.looked_at,
        complete,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn positions_round_trip_and_belong_to_their_order() {
        let cursor: Cursor =
            serde_json::from_str(r#"{"after":{"at":-5,"type":"a/b","id":"x\"…/"},"deferred":3}"#).unwrap();
        let text = text_of(Order::Newest, &cursor);
        assert_eq!(parse(Order::Newest, &text).unwrap(), cursor);
        assert!(parse(Order::Oldest, &text).is_err());
        assert!(super::super::list::Cursor::parse(&text).is_err());
        for wrong in ["", "/newest/", "/newest/{", "mail/a", "/newest/{\"deferred\":999}"] {
            assert!(parse(Order::Newest, wrong).is_err(), "{wrong}");
        }
    }
}
