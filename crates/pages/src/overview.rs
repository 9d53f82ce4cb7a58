//! Whether all is well, how many jobs there are, and what needs a person.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_api::list::ListParams;
use turnwise_api::locks::LocksParams;
use turnwise_api::tenants::TenantsParams;
use turnwise_couch::store_problem;
use turnwise_protocol::{
    Action, Filter, Job, LockHow, Locker, MAX_LIMIT, State, TenantOrder, Tenants, TypeSummary,
};
use turnwise_queue::counts::{self, Counts, Kind};
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_web::access::Caller;

use super::app::App;
use super::format::{clipped, count_of, duration, jobs_of, number, or_dash, since, state_of, text};
use super::parts::Column::{Number, Text};
use super::parts::{head, table};
use super::problem::Result;
use super::visit::{Visit, job_link, link};
use super::{layout, workers};

/// Maximum number of counts that are read: one of each type and tenant.
const MAX_COUNTS: usize = 20_000;
/// Number of jobs that are named as examples.
const NAMED: usize = 3;
/// Maximum number of locks that are read to find those that are reserved for long.
const MAX_LOCKS: usize = 500;
/// A lock that is reserved for longer than this may need a person, in µs.
const LONG_RESERVED_US: i64 = 10 * 60 * 1_000_000;

/// What is known about the jobs of a type.
#[derive(Default)]
struct Type {
    counts: Counts,
    /// When the oldest job that could run began to wait.
    oldest_us: Option<i64>,
    /// For operators: all tenants together.
    summary: Option<TypeSummary>,
}

/// The jobs that the caller may read, by type.
struct Jobs {
    types: BTreeMap<String, Type>,
    /// There are more types or tenants than were read.
    partial: bool,
}

/// What may need a person: what each is, and where it is explained.
#[derive(Default)]
struct Needs {
    bad: Vec<Markup>,
    others: Vec<Markup>,
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let (app, caller) = (&visit.app, visit.caller());
    let now_us = app.now_us();
    let main = match store_problem(&app.couch).await {
        Some(problem) => html! { h1 { "Overview" } (store_fails(caller, &problem)) },
        None => {
            let jobs = jobs(app, caller).await?;
            let needs = needs(app, caller, &jobs, now_us).await?;
            let nodes = match caller.operates() {
                true => Some(v1::nodes::nodes(app).await?),
                false => None,
            };
            html! {
                h1 { "Overview" }
                (summary(&jobs, &needs))
                (types_table(&jobs, caller.operates(), now_us))
                @if let Some(nodes) = &nodes { (workers::nodes_table(nodes, false, now_us)) }
            }
        }
    };
    Ok(layout::live(&visit.shell, "Overview", main))
}

/// The store's error is for operators: it may name addresses.
fn store_fails(caller: &Caller, problem: &str) -> Markup {
    html! {
        div.condition.bad role="alert" {
            p { strong { "The store does not work." } " No job starts or ends until it does." }
            @if caller.operates() { p { (text(problem)) } }
        }
    }
}

async fn jobs(app: &App, caller: &Caller) -> Result<Jobs> {
    let mut types: BTreeMap<String, Type> = BTreeMap::new();
    let tx = app.store.begin().await?;
    let counted = counts::list(&tx, &app.keys, None, MAX_COUNTS).await?;
    let mut partial = counted.len() == MAX_COUNTS;
    for of in counted.into_iter().filter(|of| caller.reads(&of.tenant)) {
        types.entry(of.job_type).or_default().counts += of.counts;
    }
    drop(tx);
    let order = Some(TenantOrder::Deficit);
    let params = TenantsParams { job_type: None, order, limit: MAX_LIMIT, after: None };
    let tenants = v1::tenants::tenants(app, caller, params).await?;
    let Tenants { types: summaries, tenants, partial: more, .. } = tenants;
    partial |= more;
    for summary in summaries {
        let of = types.entry(summary.job_type.clone()).or_default();
        of.summary = Some(summary);
    }
    for tenant in tenants {
        let of = types.entry(tenant.job_type).or_default();
        of.oldest_us = [of.oldest_us, tenant.oldest_claimable_us].into_iter().flatten().min();
    }
    Ok(Jobs { types, partial })
}

impl Jobs {
    fn total(&self, kind: Kind) -> u64 {
        self.types.values().map(|of| of.counts[kind]).sum()
    }

    fn link(job_type: &str, kind: Kind) -> String {
        link("/ui/jobs", &[("type", Some(job_type)), ("state", Some(state_of(kind)))])
    }
}

async fn needs(app: &App, caller: &Caller, jobs: &Jobs, now_us: i64) -> Result<Needs> {
    let mut needs = Needs::default();
    for (job_type, of) in &jobs.types {
        let idle = of.summary.as_ref().is_some_and(|all| all.capacity.workers == 0);
        let quiet = of.summary.as_ref().is_some_and(|all| all.capacity.quiet > 0);
        if idle && of.counts[Kind::Pending] > 0 {
            needs.bad.push(html! {
                @if quiet { a href=(link("/ui/workers", &[("type", Some(job_type))])) { "All workers are quiet" } " for " } @else { "No worker for " }
                bdi.name { (job_type) } ": "
                a href=(Jobs::link(job_type, Kind::Pending)) { (jobs_of(of.counts[Kind::Pending])) " wait" }
                @if let Some(oldest) = of.oldest_us { ", the oldest for " (since(oldest, now_us)) }
            });
        }
        for (kind, state, list, told) in [
            (Kind::Failed, State::Failed, &mut needs.bad, " failed"),
            (Kind::Crashing, State::Crashing, &mut needs.others, " crashed, to be retried"),
        ] {
            if of.counts[kind] == 0 {
                continue;
            }
            let named = examples(app, caller, job_type, state).await?;
            list.push(html! {
                a href=(Jobs::link(job_type, kind)) { (jobs_of(of.counts[kind])) " of " bdi.name { (job_type) } (told) }
                @for job in &named {
                    div.example {
                        a href=(job_link(&job.job_type, &job.id)) { bdi { (job.id) } }
                        @if let Some(task) = &job.task { span.task { bdi { (task) } } }
                        @if let Some(reason) = &job.reason { " " (clipped(reason)) }
                    }
                }
            });
        }
    }
    if caller.operates() {
        needs.others.extend(filters(app).await?);
        let throttled = app.couch.client.throttled();
        if throttled > 0 {
            let replications = link("/ui/jobs", &[("view", Some("queue")), ("type", Some(REPLICATION))]);
            needs.others.push(html! {
                (count_of(throttled, "endpoint")) " of " a href=(replications) { "replications" }
                " answered 429 to this node, which sends to them more slowly"
            });
        }
    }
    needs.others.extend(reserved(app, caller, now_us).await?);
    Ok(needs)
}

async fn examples(app: &App, caller: &Caller, job_type: &str, state: State) -> Result<Vec<Job>> {
    let job_type = Some(job_type.to_owned());
    let params = ListParams {
        job_type,
        state: Some(state),
        tenant: None,
        tag: None,
        reason_class: None,
        order: None,
        condition: None,
        limit: NAMED,
        after: None,
    };
    Ok(v1::list::jobs(app, caller, params, None).await?.jobs)
}

/// Filters that hold jobs back or end them.
async fn filters(app: &App) -> Result<Vec<Markup>> {
    let filters = v1::filters::filters(app).await?.filters;
    let stops = filters.into_iter().filter(|of| matches!(of.action, Action::Pause | Action::Reject));
    let told = |filter: Filter| {
        html! {
            "The filter " bdi.name { (filter.id) }
            @match filter.action {
                Action::Reject => " cancels jobs",
                _ => { " " a href=(link("/ui/jobs", &[("state", Some(State::Paused.as_str()))])) { "pauses jobs" } }
            }
            @if !filter.when.is_empty() { ": " code { bdi { (filter.when) } } } @else { ": all of them" }
            @if let Some(note) = &filter.note { span.quiet { " (" bdi { (note) } ")" } }
        }
    };
    Ok(stops.map(told).collect())
}

/// Locks that a job has reserved for long: others wait behind it.
async fn reserved(app: &App, caller: &Caller, now_us: i64) -> Result<Vec<Markup>> {
    let params = LocksParams { level: None, name: None, limit: MAX_LOCKS, after: None };
    let lockers = v1::locks::lockers(app, caller, params).await?.locks;
    let is_long = |by: &Locker| by.how == LockHow::Reserved && now_us - by.since_us > LONG_RESERVED_US;
    let told = |by: Locker| {
        html! {
            "The lock " bdi.name { (by.lock.level) @if let Some(name) = &by.lock.name { "/" (name) } } " is reserved by "
            @if let (Some(job_type), Some(id)) = (&by.job_type, &by.id) { a href=(job_link(job_type, id)) { bdi { (id) } } }
            " for " (duration((now_us - by.since_us).max(0).unsigned_abs())) ": jobs that want it wait"
        }
    };
    Ok(lockers.into_iter().filter(is_long).take(NAMED).map(told).collect())
}

fn summary(jobs: &Jobs, Needs { bad, others }: &Needs) -> Markup {
    let figure = |name: &str, kinds: &[Kind], path: &str| {
        let total: u64 = kinds.iter().map(|kind| jobs.total(*kind)).sum();
        html! { a href=(path) { strong { (number(total)) } span { (name) } } }
    };
    html! {
        div.figures {
            (figure("waiting", &[Kind::Pending], "/ui/jobs?state=pending"))
            (figure("running", &[Kind::Running], "/ui/jobs?state=running"))
            (figure("held back", &HELD, "/ui/jobs?view=queue"))
            (figure("failed", &[Kind::Failed], "/ui/jobs?state=failed"))
            (figure("completed", &[Kind::Completed], "/ui/jobs?state=completed"))
        }
        section {
            h2 { "Needs a person" }
            @if bad.is_empty() && others.is_empty() {
                p.condition.good { "The store works, and nothing needs a person." }
            } @else {
                ul.needs { @for what in bad { li.bad { (what) } } @for what in others { li { (what) } } }
            }
        }
    }
}

/// The columns of the jobs that are held back.
const HELD: [Kind; 6] =
    [Kind::Delayed, Kind::Parked, Kind::Blocked, Kind::Paused, Kind::Limited, Kind::Crashing];

fn types_table(jobs: &Jobs, operates: bool, now_us: i64) -> Markup {
    let ended = [Kind::Failed, Kind::Completed];
    let cell = |job_type: &str, of: &Type, kind: Kind| {
        html! {
            td.n {
                @if of.counts[kind] > 0 { a href=(Jobs::link(job_type, kind)) { (number(of.counts[kind])) } }
                @else { span.quiet { "0" } }
            }
        }
    };
    // Columns without a job in any row are left out.
    let held: Vec<Kind> = HELD.into_iter().filter(|kind| jobs.total(*kind) > 0).collect();
    let columns = html! {
        (head(&[Text("Type"), Number("Waiting"), Number("Oldest waits for"), Number("Running")]))
        @if operates { (head(&[Number("Slots"), Number("Workers")])) }
        @for kind in held.iter().chain(&ended) { (head(&[Number(kind.name())])) }
    };
    let rows = html! {
        @for (job_type, of) in &jobs.types {
            @let capacity = of.summary.as_ref().map(|all| all.capacity);
            tr data-k=(job_type) {
                th scope="row" { a href=(link("/ui/jobs", &[("view", Some("queue")), ("type", Some(job_type))])) { bdi { (job_type) } } }
                (cell(job_type, of, Kind::Pending))
                td.n { @if let Some(oldest) = of.oldest_us { (since(oldest, now_us)) } }
                (cell(job_type, of, Kind::Running))
                @if operates {
                    td.n { (or_dash(capacity.map(|of| number(of.slots as u64)))) @if let Some(most) = capacity.and_then(|of| of.most_slots) { div.quiet { "at most " (number(most as u64)) } } }
                    td.n { (or_dash(capacity.map(|of| number(of.workers as u64)))) }
                }
                @for kind in held.iter().chain(&ended) { (cell(job_type, of, *kind)) }
            }
        }
    };
    html! {
        section {
            h2 { "Jobs by type" }
            @if jobs.types.is_empty() {
                p.empty { "There are no jobs yet. " code { "turnwise jobs add" } " or the API adds some." }
            } @else {
                (table("Jobs by type", columns, rows))
                @if jobs.partial { p.quiet { "There are more types or tenants than this page reads. Their jobs are not counted here." } }
            }
        }
    }
}
