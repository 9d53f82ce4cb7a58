//! Lists of jobs: by time or by type and id, with failures by reason, or the queue in the order in which they start.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_api::list::{Cursor, ListParams};
use turnwise_api::tenants::QueueParams;
use turnwise_protocol::{DEFAULT_LIMIT, Failures, Job, Jobs, ListOrder, QueuedJob, State, names};
use turnwise_queue::counts::{self, Counts, Kind};
use turnwise_queue::jobs as rows;
use turnwise_web::access::rights::Right;

use super::format::{STATES, ago, clipped, job_kind, number, since, state, state_of};
use super::parts::Column::{Number, Text};
use super::parts::{ANY, choice, head, pages, table};
use super::problem::Result;
use super::visit::{Visit, job_link, link, tenant_link};
use super::{act, bulk, layout, parts};

/// Maximum number of types that are offered to choose from, and in which an id is looked up.
const MAX_TYPES: usize = 100;

/// The most classes of failures in the page.
const MAX_FAILURES: usize = 10;
/// The most types and tenants whose counts are read.
const MAX_COUNTS: usize = 50_000;
/// How many pages of the list are read for one page in which few jobs match.
const MAX_READS: usize = 5;

/// The orders of a list, the default first.
const ORDERS: [(ListOrder, &str); 3] = [
    (ListOrder::Newest, "newest first"),
    (ListOrder::Oldest, "oldest first"),
    (ListOrder::Id, "by type and id"),
];

/// What the query selects.
#[derive(Clone, Copy)]
struct Filter<'a> {
    job_type: Option<&'a str>,
    state: Option<State>,
    tenant: Option<&'a str>,
    tag: Option<&'a str>,
    class: Option<&'a str>,
    condition: Option<&'a str>,
    text: Option<&'a str>,
    order: Option<ListOrder>,
}

impl Filter<'_> {
    /// The jobs with this filter, for an action on all of them.
    fn condition(&self) -> Option<String> {
        bulk::condition(self.job_type, self.state, self.tenant, self.tag, self.text)
    }

    /// The order of the list. A part of an id is searched by id, unless an index by time finds the jobs that may have it.
    fn order(&self) -> ListOrder {
        let is_indexed =
            self.state.is_some() || [self.tenant, self.tag, self.class].iter().any(Option::is_some);
        let usual = if self.text.is_some() && !is_indexed { ListOrder::Id } else { ListOrder::Newest };
        self.order.unwrap_or(usual)
    }

    /// The list with this filter, in a view, from a position on.
    fn link(&self, view: Option<&str>, after: Option<&str>) -> String {
        let state = self.state.map(State::as_str);
        let fields = [
            ("view", view),
            ("type", self.job_type),
            ("state", state),
            ("tenant", self.tenant),
            ("tag", self.tag),
            ("class", self.class),
            ("where", self.condition),
            ("q", self.text),
            ("order", self.order.map(ListOrder::as_str)),
            ("after", after),
        ];
        link("/ui/jobs", &fields)
    }
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let filter = Filter {
        job_type: query.get("type"),
        state: query.word("state")?,
        tenant: query.get("tenant"),
        tag: query.get("tag"),
        class: query.get("class"),
        condition: query.get("where"),
        text: query.get("q"),
        order: query.word("order")?,
    };
    if let Some(job_type) = filter.job_type {
        names::check_type(job_type)?;
    }
    let is_queue = query.get("view") == Some("queue");
    let types = types(&visit).await?;
    let list = match is_queue {
        true => queue(&visit, &filter).await?,
        false => all(&visit, &filter, &types).await?,
    };
    let main = html! {
        div.title {
            h1 { "Jobs" }
            @if Right::Write.check(visit.caller()).is_ok() {
                a.button href=(link("/ui/jobs/new", &[("type", filter.job_type), ("tenant", filter.tenant)])) { "Add a job…" }
            }
        }
        (act::done(query.get("did")))
        (views(&filter, is_queue))
        (filters(&filter, &types, is_queue))
        (list)
    };
    Ok(layout::live(&visit.shell, "Jobs", main))
}

/// The types to choose from. Operators alone may know those of all tenants.
pub(super) async fn types(visit: &Visit) -> Result<Vec<String>> {
    if !visit.caller().operates() {
        return Ok(Vec::new());
    }
    let tx = visit.app.store.begin().await?;
    Ok(rows::types_after(&tx, &visit.app.keys, None, MAX_TYPES).await?)
}

fn views(filter: &Filter<'_>, is_queue: bool) -> Markup {
    let current = |is: bool| is.then_some("page");
    html! {
        nav.views aria-label="Views" {
            a href=(filter.link(None, None)) aria-current=[current(!is_queue)] { "All jobs" }
            a href=(filter.link(Some("queue"), None)) aria-current=[current(is_queue)] { "In order of start, with reasons" }
        }
    }
}

fn filters(filter: &Filter<'_>, types: &[String], is_queue: bool) -> Markup {
    let states = ANY.into_iter().chain(STATES.map(|(of, _)| (of.as_str(), of.as_str())));
    let orders = ORDERS.map(|(of, title)| (of.as_str(), title));
    let fields = html! {
        @if is_queue { input type="hidden" name="view" value="queue"; }
        label { "Type" input name="type" value=[filter.job_type] list="types" maxlength="64" size="14"; }
        datalist id="types" { @for of in types { option value=(of) {} } }
        (choice("State", "state", states, filter.state.map(State::as_str)))
        label { "Tenant" input name="tenant" value=[filter.tenant] maxlength="256" size="16"; }
        label { "Id contains" input name="q" value=[filter.text] maxlength="200" size="14"; }
        @if !is_queue {
            label { "Tag" input name="tag" value=[filter.tag] maxlength="64" size="12"; }
            label { "Reason class" input name="class" value=[filter.class] maxlength="1000" size="18"; }
            label { "Condition" input name="where" value=[filter.condition] maxlength="4000" size="28" placeholder="task = send and age < 2h"; }
            (choice("Order", "order", orders, Some(filter.order().as_str())))
        }
    };
    parts::filters(if is_queue { "/ui/jobs?view=queue" } else { "/ui/jobs" }, fields)
}

/// The jobs in the order of the filter.
async fn all(visit: &Visit, filter: &Filter<'_>, types: &[String]) -> Result<Markup> {
    let (app, caller, now_us) = (&visit.app, visit.caller(), visit.app.now_us());
    let after = visit.query.get("after");
    let Jobs { jobs, next, looked_at } = list(visit, filter, after).await?;
    let looked_at = looked_at.unwrap_or(0);
    let failures = match (filter.condition, filter.text.or(filter.class).or(filter.tag), filter.state) {
        (None, None, None | Some(State::Failed)) if after.is_none() => {
            let of = (filter.job_type, filter.tenant, None);
            Some(v1::sorted::most_frequent(app, caller, of, MAX_FAILURES).await?)
        }
        _ => None,
    };
    let exact = match (filter.text, after) {
        (Some(text), None) => exact(visit, filter, text, types).await?,
        _ => Vec::new(),
    };
    let further =
        jobs.iter().filter(|job| !exact.iter().any(|of| (&of.job_type, &of.id) == (&job.job_type, &job.id)));
    let jobs: Vec<&Job> = exact.iter().chain(further).collect();
    let changes = Right::Write.check(caller).is_ok();
    let counts = match after {
        None => Some(counted(visit, filter).await?),
        Some(_) => None,
    };
    let columns = html! {
        @if changes { th.box scope="col" { span.unseen { "Selected" } input type="checkbox" data-all hidden aria-label="Select all"; } }
        (head(&[
            Text("Job"), Text("Type and task"), Text("State"), Text("Tenant"), Number("Priority"), Number("Attempts"), Text("Added"),
            Text("Changed"), Text("Reason"),
        ]))
    };
    let rows = html! { @for job in &jobs { (row(job, now_us, changes)) } };
    Ok(html! {
        @if let Some((counts, is_all)) = &counts { (states(filter, counts, *is_all)) }
        @if let Some(failures) = &failures { (reasons(filter, failures, now_us)) }
        @if jobs.is_empty() {
            p.empty {
                @if next.is_some() { "None of the " (number(looked_at)) " jobs that were looked at matches. There are more." }
                @else if after.is_some() { "No more jobs." }
                @else if (Filter { order: None, ..*filter }).link(None, None) == "/ui/jobs" { "There are no jobs yet. " code { "turnwise jobs add" } " or the API adds some." }
                @else { "No job matches." }
            }
        } @else {
            form method="post" action="/ui/jobs/act" {
                input type="hidden" name="back" value=(visit.here);
                (table("Jobs", columns, rows))
                @if changes { (act::for_selected()) }
            }
            @if let Some(condition) = changes.then(|| filter.condition()).flatten() { (bulk::for_all(&condition, &visit.here)) }
        }
        @if next.is_some() && jobs.len() < DEFAULT_LIMIT && !jobs.is_empty() {
            p.quiet { (number(looked_at)) " jobs were looked at. There are more." }
        }
        (pages(|after| filter.link(None, after), after, next.as_deref()))
    })
}

/// The numbers of jobs of the filter's type and tenant, and whether these are all.
async fn counted(visit: &Visit, filter: &Filter<'_>) -> Result<(Counts, bool)> {
    let (caller, keys, tx) = (visit.caller(), &visit.app.keys, visit.app.store.begin().await?);
    let mut all = Counts::default();
    if let (Some(job_type), Some(tenant)) = (filter.job_type, filter.tenant) {
        if caller.reads(tenant) {
            all += counts::of_tenant(&tx, keys, job_type, tenant).await?;
        }
        return Ok((all, true));
    }
    let rows = match filter.job_type {
        Some(job_type) => counts::list_of_type(&tx, keys, job_type, None, MAX_COUNTS).await?,
        None => counts::list(&tx, keys, None, MAX_COUNTS).await?,
    };
    let is_wanted = |tenant: &str| filter.tenant.is_none_or(|of| of == tenant) && caller.reads(tenant);
    rows.iter().filter(|row| is_wanted(&row.tenant)).for_each(|row| all += row.counts);
    Ok((all, rows.len() < MAX_COUNTS))
}

/// The numbers of jobs by state, with links to their lists.
fn states(filter: &Filter<'_>, counts: &Counts, is_all: bool) -> Markup {
    let link = |state: State| Filter { state: Some(state), class: None, ..*filter }.link(None, None);
    let jobs_in = |state: State| -> u64 {
        Kind::ALL.into_iter().filter(|kind| state_of(*kind) == state.as_str()).map(|kind| counts[kind]).sum()
    };
    html! {
        p.counts {
            @for (of, jobs) in STATES.map(|(of, _)| (of, jobs_in(of))).into_iter().filter(|(_, jobs)| *jobs > 0) {
                a href=(link(of)) { (state(of)) " " (number(jobs)) @if !is_all { "+" } } " "
            }
        }
    }
}

/// A page of the jobs, with how many were looked at for it. Reads on while few match, up to a bound.
async fn list(visit: &Visit, filter: &Filter<'_>, after: Option<&str>) -> Result<Jobs> {
    let mut found = Jobs { jobs: Vec::new(), looked_at: None, next: after.map(str::to_owned) };
    for _ in 0..MAX_READS {
        let params = ListParams {
            job_type: filter.job_type.map(str::to_owned),
            state: filter.state,
            tenant: filter.tenant.map(str::to_owned),
            tag: filter.tag.map(str::to_owned),
            reason_class: filter.class.map(str::to_owned),
            order: Some(filter.order()),
            limit: DEFAULT_LIMIT - found.jobs.len(),
            condition: filter.condition.map(str::to_owned),
            after: found.next.take(),
        };
        let page = v1::list::jobs(&visit.app, visit.caller(), params, filter.text).await?;
        found.jobs.extend(page.jobs);
        found.looked_at = Some(found.looked_at.unwrap_or(0) + page.looked_at.unwrap_or(0));
        found.next = page.next;
        if found.next.is_none() || found.jobs.len() >= DEFAULT_LIMIT {
            break;
        }
    }
    Ok(found)
}

/// The failed jobs by their task and the class of their reason, with links to their lists.
fn reasons(filter: &Filter<'_>, failures: &Failures, now_us: i64) -> Markup {
    let link = |class: &str| {
        let (state, class) = (Some(State::Failed), Some(class));
        Filter { state, class, ..*filter }.link(None, None)
    };
    let of_task = |task: &str| {
        let condition = format!("task = {}", serde_json::Value::from(task));
        Filter { state: Some(State::Failed), condition: Some(&condition), ..*filter }.link(None, None)
    };
    let rows = html! {
        @for failure in &failures.failures {
            tr data-k={ (failure.task.as_deref().unwrap_or_default()) "/" (failure.reason_class) } {
                th.reason scope="row" { a href=(link(&failure.reason_class)) { (clipped(&failure.reason_class)) } }
                td { @if let Some(task) = &failure.task { a href=(of_task(task)) { bdi { (task) } } } }
                td.n { (number(failure.jobs)) }
                td.when { a href=(job_link(&failure.job_type, &failure.id)) { (ago(failure.latest_us, now_us)) } }
            }
        }
    };
    html! {
        @if !failures.failures.is_empty() {
            details.reasons open[filter.state == Some(State::Failed)] {
                summary {
                    "Failures by reason"
                    @if !failures.complete { span.quiet { " of the latest " (number(failures.looked_at)) } }
                    @else { span.quiet { ": " (number(failures.looked_at)) } }
                }
                (table("Failures by reason", head(&[Text("Reason"), Text("Task"), Number("Jobs"), Text("Latest")]), rows))
            }
        }
    }
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
                && filter.tag.is_none_or(|tag| job.tags.iter().any(|of| of == tag))
                && filter.class.is_none()
                && filter.condition.is_none()
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
            td { (job_kind(&job.job_type, job.task.as_deref())) }
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
    let after = visit.query.get("after");
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
    let rows = html! {
        @for job in &jobs {
            tr data-k={ (job.job_type) "/" (job.id) } {
                th.id scope="row" { a href=(job_link(&job.job_type, &job.id)) { bdi title=(job.id) { (job.id) } } }
                td { (job_kind(&job.job_type, job.task.as_deref())) }
                td { (state(job.state)) }
                td.when { a href=(job_link(&job.job_type, &job.id)) { (job.reason.as_str().replace('_', " ")) } }
                td.id { a href=(tenant_link(&job.job_type, &job.tenant)) { bdi title=(job.tenant) { (job.tenant) } } }
                td.n { (since(job.since_us, now_us)) }
                td.when { @if let Some(at) = job.not_before_us { (ago(at, now_us)) } }
            }
        }
    };
    Ok(html! {
        p.quiet { "The first " (DEFAULT_LIMIT) " jobs of each type that have not ended: running ones, then those that start next, then those that wait for something." }
        @if jobs.is_empty() {
            p.empty { "No job that waits or runs matches." }
        } @else {
            (table("Queue", head(&[Text("Job"), Text("Type and task"), Text("State"), Text("Why"), Text("Tenant"), Number("For"), Text("Not before")]), rows))
        }
        @if let Some(next) = &queue.next {
            div.pages { a.button href=(filter.link(Some("queue"), Some(next))) { "Further types" } }
        }
    })
}
