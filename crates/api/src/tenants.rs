//! `GET /v1/tenants` and `GET /v1/queue`: the standing of tenants, and the next jobs.

use std::cmp::Reverse;

use serde::Deserialize;
use turnwise_explain::{Of, Snapshot, all_of, queue, types_of};
use turnwise_protocol::{DEFAULT_LIMIT, Queue, Tenant, TenantOrder, Tenants, names};
use turnwise_web::access::Caller;
use utoipa::IntoParams;

use super::app::App;
use super::error::Result;
use super::extract::{Call, Params, Shown, check_stated};
use super::list::{Cursor, check_limit, default_limit};
use super::position_text;
use super::responses::Common;

/// Maximum number of queue rows that one page reads to find the oldest jobs, with at least 100 for each tenant.
const PAGE_COUNTED: usize = 100_000;
/// Maximum number of jobs of each type in a response.
const MAX_QUEUE: usize = 200;

/// The parameters of a listing of tenants.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TenantsParams {
    /// Only the tenants' jobs of this type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    pub job_type: Option<String>,
    /// The order of the tenants, by default `name`. Any other order has only one page.
    #[param(inline, nullable = false)]
    pub order: Option<TenantOrder>,
    /// Maximum number of tenants in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: usize,
    /// The `next` of the previous page, in the order `name`.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_.-]{1,64}/[^\u0000-\u001f\u007f-\u009f]{0,1024}$")]
    pub after: Option<String>,
}

/// List tenants
///
/// The shares, run time, deficit and queue of each tenant, per job type. The list contains tenants with waiting or
/// running jobs, or with recent run time. Without a type, the server reads the first 100 types. Orders other than by name sort at most 20,000 tenants of a
/// type: `partial` states that there are more.
#[utoipa::path(
    get, path = "/tenants", tag = "tenants", operation_id = "list_tenants", params(TenantsParams),
    responses((status = 200, body = Tenants, description = "A page of tenants."), Common),
)]
pub(super) async fn list_tenants(call: Call, Params(query): Params<TenantsParams>) -> Result<Shown<Tenants>> {
    tenants(&call.app, &call.caller, query).await.map(Shown)
}

/// A page of tenants, of those that the caller may read.
pub async fn tenants(app: &App, caller: &Caller, params: TenantsParams) -> Result<Tenants> {
    check_limit(params.limit)?;
    check_stated(&params.job_type, names::check_type)?;
    let is_first = params.after.is_none();
    let after = position_text::read(app, caller, params.after).await?;
    let after = after.as_deref().map(Cursor::parse).transpose()?;
    let order = params.order.unwrap_or_default();
    let tx = app.store.begin().await?;
    let mut snapshots = Vec::new();
    let after = after.filter(|_| order == TenantOrder::Name);
    let from = after.as_ref().map(|after| after.job_type.as_str());
    let rules = app.rules();
    let reader = app.reader(&tx, &rules);
    let (types, behind) = types_of(&reader, params.job_type.as_deref(), from).await?;
    // The position for the next page, if some types were not read.
    let mut partial = behind.is_some();
    let mut rest = behind.map(|job_type| Cursor { job_type, id: String::new() });
    for job_type in types {
        let of = match &after {
            Some(after) if after.job_type == job_type => Of::After(&after.id),
            _ => Of::First,
        };
        let mut snapshot = Snapshot::read(&reader, &job_type, of).await?;
        partial |= snapshot.unknown_from.is_some();
        let unknown_from = snapshot.unknown_from.take().filter(|_| order == TenantOrder::Name);
        if let Some(unknown_from) = &unknown_from {
            let _ = snapshot.tenants.split_off(unknown_from);
        }
        let last = snapshot.tenants.keys().next_back().cloned();
        snapshots.push(snapshot);
        if let Some(last) = unknown_from.and(last) {
            rest = Some(Cursor { job_type, id: last });
            break;
        }
    }
    // Types that have only ended jobs are left out, unless the request names the type.
    snapshots.retain(|snapshot| params.job_type.is_some() || !snapshot.is_empty());
    // The names of tenants, with the index of their snapshot.
    let mut all: Vec<(usize, &String)> = snapshots
        .iter()
        .enumerate()
        .flat_map(|(n, snapshot)| snapshot.tenants.keys().map(move |name| (n, name)))
        .filter(|(_, name)| caller.reads(name))
        .collect();
    if !is_first && order != TenantOrder::Name {
        // Other orders have only one page.
        all.clear();
    }
    if let Some(after) = &after {
        let position = (after.job_type.as_str(), after.id.as_str());
        all.retain(|(n, name)| (snapshots[*n].job_type.as_str(), name.as_str()) > position);
    }
    let standing = |(n, name): &(usize, &String)| &snapshots[*n].tenants[*name];
    match order {
        TenantOrder::Name => {}
        TenantOrder::Deficit => all.sort_by_cached_key(|tenant| {
            let deficit = snapshots[tenant.0].deficit_us(standing(tenant));
            // Tenants with a surplus come last, with the largest surplus at the end. Tenants without a record count as
            // having no deficit.
            (Reverse(deficit.unwrap_or(0)), Reverse(standing(tenant).waits))
        }),
        TenantOrder::Usage => {
            all.sort_by(|one, other| standing(other).usage_us.total_cmp(&standing(one).usage_us));
        }
        TenantOrder::Running => all.sort_by_key(|tenant| Reverse(standing(tenant).charges.running)),
        TenantOrder::Service => all.sort_by_key(|tenant| Reverse(standing(tenant).charges.service_us)),
    }
    let more = all.len() > params.limit;
    all.truncate(params.limit);
    let next = match all.last() {
        Some((n, name)) if more && order == TenantOrder::Name => {
            Some(Cursor { job_type: snapshots[*n].job_type.clone(), id: (*name).clone() }.text())
        }
        _ => rest.filter(|_| order == TenantOrder::Name).map(|rest| rest.text()),
    };
    let most = (PAGE_COUNTED / all.len().max(1)).clamp(100, turnwise_protocol::MAX_COUNTED);
    let tenants = all.iter().map(|(n, name)| snapshots[*n].tenant(&reader, name, most));
    let tenants: Vec<Tenant> = all_of(tenants.collect()).await?;
    // The totals of a type count all tenants.
    let types = snapshots.iter().filter(|_| caller.operates()).map(|snapshot| snapshot.summary(&reader));
    let types = all_of(types.collect()).await?;
    let partial = partial && order != TenantOrder::Name;
    let next = position_text::shown(app, caller, next).await?;
    Ok(Tenants { types, tenants, next, partial })
}

/// The parameters of a request for the queue.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct QueueParams {
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    pub job_type: Option<String>,
    /// Maximum number of jobs of each type. The server shows at most 200.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: usize,
    /// The `next` of the previous response, if no type is given.
    #[param(value_type = Option<names::JobType>, nullable = false)]
    pub after: Option<String>,
}

/// Show the queue
///
/// First the running jobs, longest run first. Then the pending jobs, in the order in which they will start if nothing changes. Then the jobs that
/// wait outside of a queue: for a later time, for dependencies, for a filter or for a concurrency limit. Each job has the reason for its state. Each of the
/// three groups gets a third of the limit, and what one group does not need goes to the others. Without a type, the server reads the first 100 types,
/// and `next` states where to continue.
#[utoipa::path(
    get, path = "/queue", tag = "tenants", operation_id = "get_queue", params(QueueParams),
    responses((status = 200, body = Queue, description = "The first jobs of the queue."), Common),
)]
pub(super) async fn get_queue(call: Call, Params(query): Params<QueueParams>) -> Result<Shown<Queue>> {
    next_jobs(&call.app, &call.caller, query).await.map(Shown)
}

/// The first jobs of the queue, of those that the caller may read.
pub async fn next_jobs(app: &App, caller: &Caller, params: QueueParams) -> Result<Queue> {
    check_limit(params.limit)?;
    let after = position_text::read(app, caller, params.after).await?;
    for job_type in params.job_type.iter().chain(&after) {
        names::check_type(job_type)?;
    }
    let limit = params.limit.min(MAX_QUEUE);
    let tx = app.store.begin().await?;
    let (mut summaries, mut rows) = (Vec::new(), Vec::new());
    let from = after.as_deref();
    let rules = app.rules();
    let reader = app.reader(&tx, &rules);
    let (types, next) = types_of(&reader, params.job_type.as_deref(), from).await?;
    for job_type in types {
        let snapshot = Snapshot::read(&reader, &job_type, Of::First).await?;
        if snapshot.is_empty() && params.job_type.is_none() {
            continue;
        }
        summaries.push(snapshot.summary(&reader).await?);
        // The first jobs may be others'.
        let most = if caller.operates() { limit } else { MAX_QUEUE };
        let mut read = queue(&reader, &snapshot, most).await?;
        read.retain(|row| caller.reads(&row.tenant));
        read.truncate(limit);
        rows.extend(read);
    }
    // The next type may be one of other tenants alone.
    let next = position_text::shown(app, caller, next).await?;
    if !caller.operates() {
        summaries.clear();
    }
    Ok(Queue { types: summaries, jobs: rows, next })
}

const _: () = assert!(MAX_QUEUE >= DEFAULT_LIMIT);
