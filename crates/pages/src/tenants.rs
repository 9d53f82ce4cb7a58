//! Tenants: what each is entitled to, what it receives, and its shares.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_api::tenants::TenantsParams;
use turnwise_config::Refused;
use turnwise_couch::setting_error;
use turnwise_protocol::{MAX_LIMIT, Tenant, TenantOrder, Tenants, names};
use turnwise_replicator::JOB_TYPE as REPLICATION;

use super::format::{duration, number, or_dash, since};
use super::parts::Column::{Number, Text};
use super::parts::{bars, choice, head};
use super::problem::{Problem, Result};
use super::redirect::redirect;
use super::visit::{Visit, back, link, tenant_link};
use super::{layout, parts};

/// Number of tenants that a page shows in an order other than by name.
const SHOWN: usize = 200;
/// Number of types whose shares can be tried from the page of all types.
const MAX_LINKS: usize = 20;

/// The orders, with the columns that they sort by.
const ORDERS: [(TenantOrder, &str, &str); 5] = [
    (TenantOrder::Deficit, "deficit", "Largest deficit"),
    (TenantOrder::Usage, "usage", "Most recent run time"),
    (TenantOrder::Running, "running", "Most running jobs"),
    (TenantOrder::Service, "service", "Most run time ever"),
    (TenantOrder::Name, "name", "Type and name"),
];

/// The sums over all tenants of a type.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    tenants: usize,
    /// Shares of the tenants with waiting or running jobs.
    shares: u64,
    usage_us: u64,
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let (app, query) = (&visit.app, &visit.query);
    let job_type = query.get("type");
    if let Some(job_type) = job_type {
        names::check_type(job_type)?;
    }
    let order: TenantOrder = query.word("order")?.unwrap_or(TenantOrder::Deficit);
    let params = TenantsParams {
        job_type: job_type.map(str::to_owned),
        order: Some(order),
        limit: MAX_LIMIT,
        after: query.get("after").map(str::to_owned),
    };
    let Tenants { types, tenants, next, partial } = v1::tenants::tenants(app, visit.caller(), params).await?;
    // Parts of a whole are shown where the whole is known.
    let mut sums = sums(&tenants);
    sums.retain(|name, sums| types.iter().any(|of| of.job_type == *name && of.tenants == sums.tenants));
    let hidden = tenants.len().saturating_sub(SHOWN);
    let operates = visit.caller().operates();
    let now_us = app.now_us();
    let rows = html! {
        @for tenant in tenants.iter().take(SHOWN) { (row(&visit, tenant, sums.get(&*tenant.job_type), operates, now_us)) }
    };
    let at = |after: Option<&str>| {
        link("/ui/tenants", &[("type", job_type), ("order", Some("name")), ("after", after)])
    };
    let main = html! {
        h1 { "Tenants" }
        (parts::done(query.get("did")))
        (filters(job_type, order))
        @if operates && !tenants.is_empty() { (what_if(&tenants)) }
        @if tenants.is_empty() {
            p.empty { "No tenant has waiting or running jobs, or recent run time." }
        } @else {
            (parts::table("Tenants", head(&[
                Text("Tenant"), Text("Type"), Number("Shares"), Text("Entitled, and received recently"), Number("Deficit"), Number("Waiting"),
                Number("Oldest waits for"), Number("Running"), Number("A run takes"),
            ]), rows))
            p.key-line {
                span.key.entitled { "entitled: its shares, of those of all tenants with jobs" }
                span.key.received { "received: its recent run time, of that of all tenants" }
            }
        }
        @if hidden > 0 { p.quiet { (number(hidden as u64)) " more in this order are not shown. A type, or the order by name, shows others." } }
        @if partial { p.quiet { "There are more tenants than this order can sort." } }
        (parts::pages(at, query.get("after"), next.as_deref()))
    };
    Ok(layout::live(&visit.shell, "Tenants", main))
}

/// Links to the simulation of other shares, for each type with several tenants.
fn what_if(tenants: &[Tenant]) -> Markup {
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for tenant in tenants.iter().filter(|tenant| is_active(tenant)) {
        *types.entry(&tenant.job_type).or_default() += 1;
    }
    types.retain(|_, tenants| *tenants > 1);
    html! {
        @if !types.is_empty() {
            p { "Try other shares: "
                @for (n, job_type) in types.keys().take(MAX_LINKS).enumerate() {
                    @if n > 0 { ", " }
                    a href=(link("/ui/tenants/shares", &[("type", Some(job_type))])) { bdi { (job_type) } }
                }
            }
        }
    }
}

fn sums(tenants: &[Tenant]) -> BTreeMap<String, Sums> {
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    for tenant in tenants {
        let of = sums.entry(tenant.job_type.clone()).or_default();
        of.tenants += 1;
        of.usage_us += tenant.usage_us;
        of.shares += if is_active(tenant) { u64::from(tenant.shares) } else { 0 };
    }
    sums
}

fn is_active(tenant: &Tenant) -> bool {
    tenant.running > 0 || tenant.pending > 0
}

fn filters(job_type: Option<&str>, order: TenantOrder) -> Markup {
    let chosen = ORDERS.iter().find(|(of, ..)| *of == order).map(|(_, name, _)| *name);
    let fields = html! {
        label { "Type" input name="type" value=[job_type] maxlength="64" size="14"; }
        (choice("Order", "order", ORDERS.map(|(_, name, title)| (name, title)), chosen))
    };
    parts::filters("/ui/tenants", fields)
}

fn row(visit: &Visit, tenant: &Tenant, sums: Option<&Sums>, operates: bool, now_us: i64) -> Markup {
    let part = |of: u64, whole: u64| (whole > 0).then(|| of as f64 / whole as f64 * 100.0);
    let entitled =
        sums.filter(|_| is_active(tenant)).and_then(|sums| part(u64::from(tenant.shares), sums.shares));
    let received = sums.and_then(|sums| part(tenant.usage_us, sums.usage_us));
    html! {
        tr data-k={ (tenant.job_type) "/" (tenant.tenant) } {
            th.id scope="row" { a href=(tenant_link(&tenant.job_type, &tenant.tenant)) { bdi title=(tenant.tenant) { (tenant.tenant) } } }
            td { bdi { (tenant.job_type) } }
            td.n { @if operates { (shares(visit, tenant)) } @else { (number(u64::from(tenant.shares))) } }
            td { @if entitled.or(received).is_some() { (bars(&[("entitled", entitled), ("received", received)])) } @else { (or_dash(None)) } }
            td.n { (deficit(tenant.deficit_us)) }
            td.n { (number(tenant.pending)) }
            td.n { @if let Some(oldest) = tenant.oldest_claimable_us { (since(oldest, now_us)) } }
            td.n { (number(tenant.running as u64)) }
            td.n { (or_dash(tenant.expected_run_us.map(duration))) }
        }
    }
}

fn deficit(deficit_us: Option<i64>) -> Markup {
    html! {
        @match deficit_us {
            None => (or_dash(None)),
            Some(0) => "0",
            Some(us) if us > 0 => (duration(us.unsigned_abs())),
            Some(surplus) => span.quiet { "surplus " (duration(surplus.unsigned_abs())) },
        }
    }
}

/// The shares, with the form that changes them.
fn shares(visit: &Visit, tenant: &Tenant) -> Markup {
    html! {
        details.edit {
            summary { (number(u64::from(tenant.shares))) span.unseen { " shares of " (tenant.tenant) ", change" } }
            form method="post" action="/ui/tenants/shares" {
                input type="hidden" name="type" value=(tenant.job_type);
                input type="hidden" name="tenant" value=(tenant.tenant);
                input type="hidden" name="back" value=(visit.here);
                input type="number" name="shares" min="1" max="1000" value=(tenant.shares) required aria-label={ "Shares of " (tenant.tenant) };
                button name="to" value="shares" { "Set" }
                button name="to" value="default" formnovalidate { "Default" }
                @if tenant.job_type != REPLICATION { p.quiet { "For all types but replications" } }
            }
        }
    }
}

/// Sets the shares of a tenant on all nodes, or returns them to the default.
pub(super) async fn set_shares(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let (Some(job_type), Some(tenant)) = (form.get("type"), form.get("tenant")) else {
        return Err(Problem::bad("type, tenant: both are needed", "use the form of the page"));
    };
    let shares = match form.get("to") {
        Some("default") => None,
        _ => Some(form.get("shares").unwrap_or_default()),
    };
    save(&visit, job_type, tenant, shares).await?;
    Ok(redirect(back(form.get("back")).unwrap_or("/ui/tenants")))
}

/// Sets the shares of a tenant; `None` returns them to the default.
pub(super) async fn save(visit: &Visit, job_type: &str, tenant: &str, shares: Option<&str>) -> Result<()> {
    names::check_name("tenant", tenant)?;
    let section = if job_type == REPLICATION { "replicator.shares" } else { "shares" };
    let changed = match shares {
        None => match visit.app.couch.shared.unset(section, tenant).await {
            // It has the default already.
            Err(Refused::NotSet) => Ok(None),
            unset => unset,
        },
        Some(shares) => visit.app.couch.shared.set(section, tenant, shares.trim()).await,
    };
    changed.map(drop).map_err(|refused| setting_error(refused, section, tenant).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tenants_with_jobs_divide_what_there_is() {
        let tenant = |name: &str, shares, pending, usage_us| Tenant {
            job_type: "mail".to_owned(),
            tenant: name.to_owned(),
            shares,
            service_us: usage_us,
            usage_us,
            deficit_us: None,
            expected_run_us: None,
            running: 0,
            pending,
            oldest_claimable_us: None,
        };
        let sums = sums(&[tenant("a", 100, 3, 10), tenant("b", 300, 1, 20), tenant("c", 900, 0, 30)]);
        assert_eq!(sums["mail"], Sums { tenants: 3, shares: 400, usage_us: 60 });
    }
}
