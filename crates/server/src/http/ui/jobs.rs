//! Lists of jobs: all of them by type and id, or the queue in the order in which they start.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_protocol::{DEFAULT_LIMIT, Job, Jobs, QueuedJob, State, names};
use turnwise_queue::jobs as rows;

use super::format::{ago, clipped, number, since, state};
use super::problem::Result;
use super::visit::{Visit, job_link, link, tenant_link};
use super::{act, bulk, layout};
use crate::access::rights::Right;
use crate::http::v1::{self, list::Cursor, list::ListParams, tenants::QueueParams};

/// Maximum number of types that are offered to choose from, and in which an id is looked up.
const MAX_TYPES: usize = 100;

/// The states in the order of a job's life.
const STATES: [State; 11] = [
    State::Pending,
    State::Running,
    State::Waiting,
    State::Delayed,
    State::Blocked,
    State::Paused,
    State::Limited,
    State::Crashing,
    State::Completed,
    State::Failed,
    State::Cancelled,
];

/// What the query selects.
struct Filter<'a> {
    job_type: Option<&'a str>,
    state: Option<State>,
    tenant: Option<&'a str>,
    text: Option<&'a str>,
}

impl Filter<'_> {
    /// The jobs with this filter, for an action on all of them.
    fn condition(&self) -> Option<String> {
        bulk::condition(self.job_type, self.state, self.tenant, self.text)
    }

    /// The list with this filter, in a view, from a position on.
    fn link(&self, view: Option<&str>, after: Option<&str>) -> String {
        let state = self.state.map(State::as_str);
        let fields = [
            ("view", view),
            ("type", self.job_type),
            ("state", state),
            ("tenant", self.tenant),
            ("q", self.text),
            ("after", after),
        ];
        link("/ui/jobs", &fields)
    }
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = visit.query();
    let filter = Filter {
        job_type: query.get("type"),
        state: query.word("state")?,
        tenant: query.get("tenant"),
        text: query.get("q"),
    };
    if let Some(job_type) = filter.job_type {
        names::check_type(job_type)?;
    }
    let is_queue = query.get("view") == Some("queue");
    let types = match visit.caller().operates() {
        true => {
            let tx = visit.app.store.begin().await?;
            rows::types_after(&tx, &visit.app.keys, None, MAX_TYPES).await?
        }
        false => Vec::new(),
    };
    let list = match is_queue {
        true => queue(&visit, &filter).await?,
        false => all(&visit, &filter, &types).await?,
    };
    let main = html! {
        h1 { "Jobs" }
        (act::done(query.get("did")))
        (views(&filter, is_queue))
        (filters(&filter, &types, is_queue))
        (list)
    };
    Ok(layout::live(&visit.shell, "Jobs", main))
}

fn views(filter: &Filter<'_>, is_queue: bool) -> Markup {
    let current = |is: bool| is.then_some("page");
    html! {
        nav.views aria-label="Views" {
            a href=(filter.link(None, None)) aria-current=[current(!is_queue)] { "By type and id" }
            a href=(filter.link(Some("queue"), None)) aria-current=[current(is_queue)] { "In order of start, with reasons" }
        }
    }
}

fn filters(filter: &Filter<'_>, types: &[String], is_queue: bool) -> Markup {
    html! {
        form.filters action="/ui/jobs" {
            @if is_queue { input type="hidden" name="view" value="queue"; }
            label { "Type" input name="type" value=[filter.job_type] list="types" maxlength="64" size="14"; }
            datalist id="types" { @for of in types { option value=(of) {} } }
            label {
                "State"
                select name="state" data-submit {
                    option value="" { "any" }
                    @for of in STATES { option value=(of.as_str()) selected[filter.state == Some(of)] { (of.as_str()) } }
                }
            }
            label { "Tenant" input name="tenant" value=[filter.tenant] maxlength="256" size="16"; }
            label { "Id contains" input name="q" value=[filter.text] maxlength="200" size="18"; }
            button type="submit" { "Filter" }
            a href=(if is_queue { "/ui/jobs?view=queue" } else { "/ui/jobs" }) { "Reset" }
        }
    }
}

/// The jobs by type and id.
async fn all(visit: &Visit, filter: &Filter<'_>, types: &[String]) -> Result<Markup> {
    let (app, caller, now_us) = (&visit.app, visit.caller(), visit.app.now_us());
    let after = visit.query().get("after");
    let params = ListParams {
        job_type: filter.job_type.map(str::to_owned),
        state: filter.state,
        tenant: filter.tenant.map(str::to_owned),
        limit: DEFAULT_LIMIT,
        condition: None,
        after: after.map(str::to_owned),
    };
    let Jobs { jobs, next, .. } = v1::list::jobs(app, caller, params, filter.text).await?;
    let exact = match (filter.text, after) {
        (Some(text), None) => exact(visit, filter, text, types).await?,
        _ => Vec::new(),
    };
    let further =
        jobs.iter().filter(|job| !exact.iter().any(|of| (&of.job_type, &of.id) == (&job.job_type, &job.id)));
    let jobs: Vec<&Job> = exact.iter().chain(further).collect();
    let changes = Right::Write.check(caller).is_ok();
    Ok(html! {
        @if jobs.is_empty() {
            p.empty {
                @if next.is_some() { "None of the jobs that were looked at matches. There are more." }
                @else if after.is_some() { "No more jobs." }
                @else if filter.link(None, None) == "/ui/jobs" { "There are no jobs yet. " code { "turnwise jobs add" } " or the API adds some." }
                @else { "No job matches." }
            }
        } @else {
            form method="post" action="/ui/jobs/act" {
                input type="hidden" name="back" value=(visit.here);
                div.scroll tabindex="0" role="region" aria-label="Jobs" {
                    table {
                        thead { tr {
                            @if changes { th.box scope="col" { span.unseen { "Selected" } input type="checkbox" data-all hidden aria-label="Select all"; } }
                            th scope="col" { "Job" } th scope="col" { "Type" } th scope="col" { "State" }
                            th scope="col" { "Tenant" } th.n scope="col" { "Priority" } th.n scope="col" { "Attempts" }
                            th scope="col" { "Added" } th scope="col" { "Changed" } th scope="col" { "Reason" }
                        } }
                        tbody { @for job in &jobs { (row(job, now_us, changes)) } }
                    }
                }
                @if changes { (act::for_selected()) }
            }
            @if let Some(condition) = changes.then(|| filter.condition()).flatten() { (bulk::for_all(&condition, &visit.here)) }
        }
        (pages(filter, after.is_some(), next.as_deref()))
    })
}

/// The jobs with exactly this id: they may be far behind what one page looks at.
async fn exact(visit: &Visit, filter: &Filter<'_>, id: &str, types: &[String]) -> Result<Vec<Job>> {
    if names::check_id(id).is_err() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let named = filter.job_type.map(str::to_owned);
    let types = named.as_slice().iter().chain(types.iter().filter(|_| filter.job_type.is_none()));
    for job_type in types {
        let wanted = |job: &Job| {
            filter.state.is_none_or(|state| state == job.state)
                && filter.tenant.is_none_or(|tenant| tenant == job.tenant)
        };
        found.extend(v1::jobs::find(&visit.app, visit.caller(), job_type, id).await?.filter(wanted));
    }
    Ok(found)
}

fn row(job: &Job, now_us: i64, changes: bool) -> Markup {
    let at = Cursor { job_type: job.job_type.clone(), id: job.id.clone() }.text();
    html! {
        tr data-k=(at) {
            @if changes { td.box { input type="checkbox" name="job" value=(at) aria-label={ "Select " (job.id) }; } }
            th.id scope="row" { a href=(job_link(&job.job_type, &job.id)) { bdi title=(job.id) { (job.id) } } }
            td { bdi { (job.job_type) } }
            td { (state(job.state)) @if job.cancel_requested { " " span.quiet { "stopping" } } }
            td.id { a href=(tenant_link(&job.job_type, &job.tenant)) { bdi title=(job.tenant) { (job.tenant) } } }
            td.n { (job.priority) }
            td.n { (number(u64::from(job.attempts))) @if let Some(most) = job.max_attempts { span.quiet { " of " (number(u64::from(most))) } } }
            td.when { (ago(job.added_us, now_us)) }
            td.when { (ago(job.changed_us, now_us)) }
            td.reason { @if let Some(reason) = &job.reason { (clipped(reason)) } }
        }
    }
}

/// The jobs that have not ended, in the order in which they start.
async fn queue(visit: &Visit, filter: &Filter<'_>) -> Result<Markup> {
    let (app, caller, now_us) = (&visit.app, visit.caller(), visit.app.now_us());
    let after = visit.query().get("after");
    let params = QueueParams {
        job_type: filter.job_type.map(str::to_owned),
        limit: DEFAULT_LIMIT,
        after: after.map(str::to_owned),
    };
    let queue = v1::tenants::next_jobs(app, caller, params).await?;
    let wanted = |job: &&QueuedJob| {
        filter.state.is_none_or(|state| state == job.state)
            && filter.tenant.is_none_or(|tenant| tenant == job.tenant)
            && filter.text.is_none_or(|text| job.id.contains(text))
    };
    let jobs: Vec<&QueuedJob> = queue.jobs.iter().filter(wanted).collect();
    Ok(html! {
        p.quiet { "The first " (DEFAULT_LIMIT) " jobs of each type that have not ended: running ones, then those that start next, then those that wait for something." }
        @if jobs.is_empty() {
            p.empty { "No job that waits or runs matches." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Queue" {
                table {
                    thead { tr {
                        th scope="col" { "Job" } th scope="col" { "Type" } th scope="col" { "State" } th scope="col" { "Why" }
                        th scope="col" { "Tenant" } th.n scope="col" { "For" } th scope="col" { "Not before" }
                    } }
                    tbody {
                        @for job in jobs {
                            tr data-k={ (job.job_type) "/" (job.id) } {
                                th.id scope="row" { a href=(job_link(&job.job_type, &job.id)) { bdi title=(job.id) { (job.id) } } }
                                td { bdi { (job.job_type) } }
                                td { (state(job.state)) }
                                td.when { a href=(job_link(&job.job_type, &job.id)) { (job.reason.as_str().replace('_', " ")) } }
                                td.id { a href=(tenant_link(&job.job_type, &job.tenant)) { bdi title=(job.tenant) { (job.tenant) } } }
                                td.n { (since(job.since_us, now_us)) }
                                td.when { @if let Some(at) = job.not_before_us { (ago(at, now_us)) } }
                            }
                        }
                    }
                }
            }
        }
        @if let Some(next) = &queue.next {
            div.pages { a.button href=(filter.link(Some("queue"), Some(next))) { "Further types" } }
        }
    })
}

fn pages(filter: &Filter<'_>, is_later: bool, next: Option<&str>) -> Markup {
    html! {
        @if is_later || next.is_some() {
            div.pages {
                @if is_later { a.button href=(filter.link(None, None)) { "First page" } }
                @if let Some(next) = next { a.button rel="next" href=(filter.link(None, Some(next))) { "Next page" } }
            }
        }
    }
}
