//! Workers and nodes: their slots, what they run, when they were last heard of, and whether they take new jobs.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_api::members::WorkersParams;
use turnwise_api::{fleets, modes, nodes};
use turnwise_protocol::{DEFAULT_LIMIT, Fleet, Mode, Nodes, Worker, Workers, names};
use turnwise_queue::workers;

use super::app::App;
use super::format::{ago, number, since, time};
use super::parts::Column::{Actions, Number, Text};
use super::parts::{Question, head, hidden};
use super::problem::{Problem, Result};
use super::redirect::redirect;
use super::visit::{Fields, Visit, job_link, link};
use super::{layout, parts};

const PATH: &str = "/ui/workers";
/// Number of running jobs that are shown of each worker.
const SHOWN_JOBS: usize = 5;
/// Number of tasks of a worker that are shown without unfolding them.
const SHOWN_TASKS: usize = 6;
/// What a drain does.
const DRAINS: &str = "It takes no new jobs. Jobs that do not end by themselves, such as continuous replications, are given back at \
     once and start at other workers. Other jobs finish. An external worker ends after its last job; a worker inside a server can be \
     resumed.";
/// What a removal does.
const REMOVES: &str = "Its jobs become pending at once, and other workers get them. If the worker still lives, the response to its \
     next heartbeat tells it to stop them, and it registers again.";

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let (app, now_us, query) = (&visit.app, visit.app.now_us(), &visit.query);
    let (job_type, after) = (query.get("type"), query.get("after"));
    let params = WorkersParams {
        job_type: job_type.map(str::to_owned),
        limit: DEFAULT_LIMIT,
        after: after.map(str::to_owned),
    };
    let Workers { workers: page, next } = v1::members::workers(app, params).await?;
    let tx = app.store.begin().await?;
    let mut rows = Vec::with_capacity(page.len());
    for worker in page {
        let health = workers::health(&tx, &app.keys, &worker.job_type, &worker.id).await?;
        rows.push((worker, health));
    }
    drop(tx);
    let nodes = nodes::nodes(app).await?;
    let fleets = fleets::fleets(app).await?;
    let at = |after: Option<&str>| link(PATH, &[("type", job_type), ("after", after)]);
    let main = html! {
        h1 { "Workers and nodes" }
        (parts::done(query.get("did")))
        (parts::filters(PATH, html! { label { "Job type" input name="type" value=[job_type] maxlength="64" size="16"; } }))
        section {
            h2 { "Workers" }
            @if rows.is_empty() {
                p.empty {
                    @if after.is_some() { "No more workers." }
                    @else if job_type.is_some() { "No worker of this type is registered: its jobs wait." }
                    @else { "No worker is registered, so that no job runs. A server with its own workers registers them when it starts." }
                }
            } @else { (table(&rows, now_us)) }
            (parts::pages(at, after, next.as_deref()))
        }
        @if !fleets.is_empty() { (fleets_table(&fleets, now_us)) }
        (nodes_table(&nodes, true, now_us))
    };
    Ok(layout::live(&visit.shell, "Workers", main))
}

fn table(workers: &[(Worker, Option<workers::Health>)], now_us: i64) -> Markup {
    let rows = html! {
        @for (worker, health) in workers {
            @let fields = Target::Worker(&worker.job_type, &worker.id).fields();
            tr data-k={ (worker.job_type) "/" (worker.id) } {
                th.id scope="row" {
                    @match &worker.name {
                        Some(name) => { bdi { (name) } div.quiet { code { (worker.id) } } },
                        None => code { (worker.id) },
                    }
                    (mode(worker.mode, worker.running.is_empty()))
                }
                td {
                    a href=(link("/ui/jobs", &[("type", Some(&worker.job_type)), ("state", Some("running"))])) { bdi { (worker.job_type) } }
                    @if let Some(tasks) = &worker.tasks { (known(tasks)) }
                    @if !worker.other_terms.is_empty() { (other_terms(&worker.other_terms)) }
                    div.quiet { bdi { (worker.node) } @if worker.external { ", external" } }
                }
                td.n { (number(worker.running.len() as u64)) @if worker.more_running { "+" } " of " (number(worker.slots as u64))
                    @if let Some(bounds) = worker.slot_bounds { div.quiet { (number(bounds.least as u64)) " to " (number(bounds.most as u64)) ", by demand" } } }
                td.when {
                    (heartbeat(health.as_ref(), now_us))
                    div.quiet { "registered " (ago(worker.started_us, now_us)) }
                    @if let Some(by) = &worker.registered_by { div.quiet { "by " bdi { (by) } } }
                }
                td.runs-now { (runs(worker, now_us)) }
                td { form.inline.acts method="post" action=(PATH) {
                    (fields)
                    (mode_buttons(worker.mode))
                    @if worker.external { button.danger name="action" value="remove" { "Remove…" } }
                } }
            }
        }
    };
    html! {
        (parts::table("Workers", head(&[
            Text("Worker"), Text("Type and node"), Number("Slots used"), Text("Last heartbeat"), Text("Runs"), Actions,
        ]), rows))
    }
}

/// The tasks that a worker knows, with their limits: it gets jobs of no others. Many are folded.
fn known(tasks: &BTreeMap<String, u32>) -> Markup {
    let list = html! {
        @for (n, (task, most)) in tasks.iter().enumerate() {
            @if n > 0 { ", " }
            span.task { bdi { (task) } } @if *most > 0 { span.quiet { " (at most " (number(u64::from(*most))) ")" } }
        }
    };
    html! {
        @if tasks.len() <= SHOWN_TASKS { div.tasks { "Tasks: " (list) } }
        @else { details.tasks { summary { (number(tasks.len() as u64)) " tasks" } (list) } }
    }
}

/// The tasks for which a worker has stated other terms than those that hold.
fn other_terms(tasks: &[String]) -> Markup {
    html! {
        div.bad { "States other terms than those that hold for "
            @for (n, task) in tasks.iter().take(SHOWN_TASKS).enumerate() { @if n > 0 { ", " } bdi { (task) } }
            @if tasks.len() > SHOWN_TASKS { " and " (number((tasks.len() - SHOWN_TASKS) as u64)) " more" }
            ": another worker, or an operator, has stated them since." }
    }
}

/// Whether it takes new jobs, if it does not.
fn mode(mode: Mode, has_ended: bool) -> Markup {
    html! {
        @match mode {
            Mode::Active => {}
            Mode::Quiet => div.warned { "quiet: takes no new jobs" },
            Mode::Drain if has_ended => div.warned { "drained: runs nothing more" },
            Mode::Drain => div.warned { "draining" },
        }
    }
}

/// The buttons of a form that changes a mode: those that would change it.
fn mode_buttons(mode: Mode) -> Markup {
    html! {
        @if mode != Mode::Active { button name="action" value="active" { "Resume" } }
        @if mode != Mode::Quiet { button name="action" value="quiet" { "Quiet" } }
        @if mode != Mode::Drain { button name="action" value="drain" { "Drain…" } }
    }
}

/// The last heartbeat by the clock of the process that recorded it.
fn heartbeat(health: Option<&workers::Health>, now_us: i64) -> Markup {
    html! {
        @match health {
            None => span.bad { "is being removed" },
            Some(health) if now_us.saturating_sub(health.seen_us) > health.timeout_us => {
                span.bad { (ago(health.seen_us, now_us)) ", too long" }
            }
            Some(health) => (ago(health.seen_us, now_us)),
        }
    }
}

fn runs(worker: &Worker, now_us: i64) -> Markup {
    html! {
        @if worker.running.is_empty() { span.quiet { "nothing" } }
        @for job in worker.running.iter().take(SHOWN_JOBS) {
            div { a href=(job_link(&worker.job_type, &job.id)) { bdi { (job.id) } } @if let Some(task) = &job.task { span.task { " / " bdi { (task) } } } span.quiet { " for " (since(job.started_us, now_us)) } }
        }
        @if worker.running.len() > SHOWN_JOBS {
            div.quiet { "and " (number((worker.running.len() - SHOWN_JOBS) as u64)) @if worker.more_running { "+" } " more" }
        }
    }
}

/// The supervisors of workers, with a row for each of their types.
fn fleets_table(fleets: &[Fleet], now_us: i64) -> Markup {
    let rows = html! {
        @for (fleet, of_type) in fleets.iter().flat_map(|fleet| fleet.types.iter().map(move |of_type| (fleet, of_type))) {
            tr data-k={ (fleet.name) "/" (of_type.job_type) } {
                th scope="row" { bdi { (fleet.name) } div.quiet { "on " bdi { (fleet.host) } } }
                td { bdi { (of_type.job_type) } }
                td.n {
                    (number(of_type.running))
                    @if of_type.stopping > 0 { div.quiet { "and " (number(of_type.stopping)) " that stop" } }
                }
                td.n { (number(of_type.target)) }
                td.n { (number(of_type.min)) " to " (number(of_type.max)) }
                td { @if of_type.failures > 0 { span.bad { bdi { (of_type.why) } } } @else { bdi { (of_type.why) } } }
                td.when { (ago(fleet.seen_us, now_us)) }
            }
        }
    };
    html! {
        section {
            h2 { "Fleets" }
            (parts::table("Fleets", head(&[
                Text("Fleet"), Text("Type"), Number("Workers"), Number("Wanted"), Number("Limits"), Text("Why"), Text("Last report"),
            ]), rows))
        }
    }
}

/// The nodes of the store, with buttons if `acts`.
pub(super) fn nodes_table(nodes: &Nodes, acts: bool, now_us: i64) -> Markup {
    let columns = html! {
        (head(&[Text("Node"), Text("URL"), Text("Release"), Text("Started")]))
        @if acts { (head(&[Actions])) }
    };
    let rows = html! {
        @for node in &nodes.nodes {
            tr data-k=(node.id) {
                th scope="row" { bdi { (node.name) } @if node.name == nodes.node { span.quiet { " (this one)" } }
                    @if !node.mode.is_active() { div.warned { @if node.mode == Mode::Quiet { "quiet" } @else { "draining" } ": its workers take no new jobs" } } }
                td { bdi { (node.url) } }
                td { (node.version) }
                td { (ago(node.started_us, now_us)) ", " (time(node.started_us)) }
                @if acts {
                    td { form.inline.acts method="post" action=(PATH) { (Target::Node(&node.name).fields()) (mode_buttons(node.mode)) } }
                }
            }
        }
    };
    html! { section { h2 { "Nodes" } (parts::table("Nodes", columns, rows)) } }
}

/// What a form changes.
enum Target<'a> {
    Worker(&'a str, &'a str),
    Node(&'a str),
}

impl Target<'_> {
    fn of<'a>(form: &'a Fields) -> Result<Target<'a>> {
        let hint = "use a button of the list of workers";
        if let Some(node) = form.get("node") {
            return Ok(Target::Node(node));
        }
        let (Some(job_type), Some(worker)) = (form.get("type"), form.get("worker")) else {
            return Err(Problem::bad("no worker is named", hint));
        };
        names::check_type(job_type)?;
        match names::is_worker_id(worker) {
            true => Ok(Target::Worker(job_type, worker)),
            false => Err(Problem::bad("no worker can have this id", hint)),
        }
    }

    fn fields(&self) -> Markup {
        html! {
            @match self {
                Target::Worker(job_type, worker) => { (hidden("type", job_type)) (hidden("worker", worker)) }
                Target::Node(node) => (hidden("node", node)),
            }
        }
    }

    async fn set(&self, app: &App, mode: Mode) -> Result<Response> {
        match self {
            Target::Worker(job_type, worker) => drop(modes::set(app, job_type, worker, mode).await?),
            Target::Node(node) => drop(modes::set_node(app, node, mode).await?),
        }
        Ok(redirect(&format!("{PATH}?did={}", mode.as_str())))
    }
}

/// Quiets, drains or resumes a worker or a node, or removes an external worker. What stops jobs is confirmed first.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let target = Target::of(form)?;
    let is_confirmed = form.get("confirmed").is_some();
    match (form.get("action"), &target) {
        (Some("active"), _) => target.set(&visit.app, Mode::Active).await,
        (Some("quiet"), _) => target.set(&visit.app, Mode::Quiet).await,
        (Some("drain"), _) if is_confirmed => target.set(&visit.app, Mode::Drain).await,
        (Some("drain"), _) => Ok(confirm(&visit, &target, "drain", "Drain this?", DRAINS, "Drain")),
        (Some("remove"), Target::Worker(job_type, worker)) if is_confirmed => {
            v1::workers::remove(&visit.app, job_type, worker).await?;
            Ok(redirect(&format!("{PATH}?did=removed")))
        }
        (Some("remove"), Target::Worker(..)) => {
            Ok(confirm(&visit, &target, "remove", "Remove this worker?", REMOVES, "Remove the worker"))
        }
        _ => Err(Problem::unknown_action()),
    }
}

fn confirm(
    visit: &Visit,
    target: &Target<'_>,
    action: &str,
    title: &str,
    effect: &str,
    button: &str,
) -> Response {
    let subject = match target {
        Target::Worker(job_type, worker) => html! { bdi { (job_type) } " " code { (worker) } },
        Target::Node(node) => html! { "Node " bdi { (node) } },
    };
    let fields = html! { (target.fields()) (hidden("action", action)) };
    Question { title, subject, effect, button, action: PATH, fields, back: PATH }.page(&visit.shell)
}
