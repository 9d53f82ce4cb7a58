//! Workers and nodes: their slots, what they run, and when they were last heard of.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_protocol::{DEFAULT_LIMIT, Nodes, Worker, Workers, names};
use turnwise_queue::workers;

use super::format::{ago, number, since, time};
use super::problem::{Problem, Result};
use super::visit::{Visit, job_link, link};
use super::{layout, parts, redirect};
use crate::http::v1::members::WorkersParams;
use crate::http::v1::{self, nodes};

const PATH: &str = "/ui/workers";
/// Number of running jobs that are shown of each worker.
const SHOWN_JOBS: usize = 5;

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let (app, now_us, query) = (&visit.app, visit.app.now_us(), visit.query());
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
    let at = |after: Option<&str>| link(PATH, &[("type", job_type), ("after", after)]);
    let main = html! {
        h1 { "Workers and nodes" }
        (parts::done(query.get("did")))
        form.filters action=(PATH) {
            label { "Job type" input name="type" value=[job_type] maxlength="64" size="16"; }
            button type="submit" { "Filter" }
            a href=(PATH) { "Reset" }
        }
        section {
            h2 { "Workers" }
            @if rows.is_empty() {
                p.empty {
                    @if after.is_some() { "No more workers." }
                    @else if job_type.is_some() { "No worker of this type is registered: its jobs wait." }
                    @else { "No worker is registered, so that no job runs. A server with its own workers registers them when it starts." }
                }
            } @else { (table(&rows, now_us)) }
            @if after.is_some() || next.is_some() {
                nav.pages aria-label="Pages of the list" {
                    @if after.is_some() { a.button href=(at(None)) { "First" } }
                    @if let Some(next) = &next { a.button href=(at(Some(next))) { "Next" } }
                }
            }
        }
        (nodes_table(&nodes, now_us))
    };
    Ok(layout::live(&visit.shell, "Workers", main))
}

fn table(rows: &[(Worker, Option<workers::Health>)], now_us: i64) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Workers" {
            table {
                thead { tr {
                    th scope="col" { "Worker" } th scope="col" { "Type" } th.n scope="col" { "Slots used" }
                    th scope="col" { "Node" } th scope="col" { "Last heartbeat" } th scope="col" { "Registered" }
                    th scope="col" { "Runs" } th scope="col" { span.unseen { "Actions" } }
                } }
                tbody {
                    @for (worker, health) in rows {
                        tr data-k={ (worker.job_type) "/" (worker.id) } {
                            th.id scope="row" {
                                @match &worker.name {
                                    Some(name) => { bdi { (name) } div.quiet { code { (worker.id) } } },
                                    None => code { (worker.id) },
                                }
                            }
                            td { a href=(link("/ui/jobs", &[("type", Some(&worker.job_type)), ("state", Some("running"))])) { bdi { (worker.job_type) } } }
                            td.n { (number(worker.running.len() as u64)) @if worker.more_running { "+" } " of " (number(worker.slots as u64)) }
                            td { bdi { (worker.node) } @if worker.external { div.quiet { "external" } } }
                            td.when { (heartbeat(health.as_ref(), now_us)) }
                            td.when {
                                (ago(worker.started_us, now_us))
                                @if let Some(by) = &worker.registered_by { div.quiet { "by " bdi { (by) } } }
                            }
                            td { (runs(worker, now_us)) }
                            td {
                                @if worker.external {
                                    form.inline method="post" action=(PATH) {
                                        input type="hidden" name="type" value=(worker.job_type);
                                        input type="hidden" name="worker" value=(worker.id);
                                        button.danger name="action" value="remove" { "Remove…" }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The last heartbeat by the clock of the process that recorded it.
fn heartbeat(health: Option<&workers::Health>, now_us: i64) -> Markup {
    html! {
        @match health {
            None => span.bad { "is being removed" },
            Some(health) => {
                @match health.seen_us {
                    None => span.quiet { "unknown" },
                    Some(seen) if now_us.saturating_sub(seen) > health.timeout_us => span.bad { (ago(seen, now_us)) ", too long" },
                    Some(seen) => (ago(seen, now_us)),
                }
            }
        }
    }
}

fn runs(worker: &Worker, now_us: i64) -> Markup {
    html! {
        @if worker.running.is_empty() { span.quiet { "nothing" } }
        @for job in worker.running.iter().take(SHOWN_JOBS) {
            div { a href=(job_link(&worker.job_type, &job.id)) { bdi { (job.id) } } span.quiet { " for " (since(job.started_us, now_us)) } }
        }
        @if worker.running.len() > SHOWN_JOBS {
            div.quiet { "and " (number((worker.running.len() - SHOWN_JOBS) as u64)) @if worker.more_running { "+" } " more" }
        }
    }
}

/// The nodes of the store.
pub(super) fn nodes_table(nodes: &Nodes, now_us: i64) -> Markup {
    html! {
        section {
            h2 { "Nodes" }
            div.scroll tabindex="0" role="region" aria-label="Nodes" {
                table {
                    thead { tr { th scope="col" { "Node" } th scope="col" { "URL" } th scope="col" { "Release" } th scope="col" { "Started" } } }
                    tbody {
                        @for node in &nodes.nodes {
                            tr data-k=(node.id) {
                                th scope="row" { bdi { (node.name) } @if node.name == nodes.node { span.quiet { " (this one)" } } }
                                td { bdi { (node.url) } }
                                td { (node.version) }
                                td { (ago(node.started_us, now_us)) ", " (time(node.started_us)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Removes an external worker, after a confirmation.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = visit.form();
    let (Some(job_type), Some(worker)) = (form.get("type"), form.get("worker")) else {
        return Err(Problem::bad("no worker is named", "use a button of the list of workers"));
    };
    names::check_type(job_type)?;
    if !names::is_worker_id(worker) {
        return Err(Problem::bad("no worker can have this id", "use a button of the list of workers"));
    }
    if form.get("confirmed").is_some() {
        v1::workers::remove(&visit.app, job_type, worker).await?;
        return Ok(redirect(&format!("{PATH}?did=removed")));
    }
    let main = html! {
        h1 { "Remove this worker?" }
        p.lead { bdi { (job_type) } " " code { (worker) } }
        p.condition.warn {
            "Its jobs become pending at once, and other workers get them. If the worker still lives, the response to its next heartbeat tells it to stop them, and it registers again."
        }
        form.actions method="post" action=(PATH) {
            input type="hidden" name="type" value=(job_type);
            input type="hidden" name="worker" value=(worker);
            input type="hidden" name="confirmed" value="1";
            button.danger type="submit" { "Remove the worker" }
            a.button href=(PATH) { "Back" }
        }
    };
    Ok(layout::page(&visit.shell, "Remove this worker?", main))
}
