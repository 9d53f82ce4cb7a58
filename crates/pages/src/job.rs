//! One job: why it is in its state, what it was given, its attempts, its log, its result, and what it depends on.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_api::JobPath;
use turnwise_explain::graph::Graph;
use turnwise_protocol::bulk::quoted;
use turnwise_protocol::{Group, Input, Job, LimitedBy, LockHow, Locker, MAX_COUNTED, Reason, Why, names};
use turnwise_queue::Holder;

use super::format::{ago, count, duration, number, state, text, time, word};
use super::groups::{group_link, progress};
use super::problem::{Problem, Result};
use super::visit::{Visit, api_link, job_link, link, tenant_link};
use super::{act, graph, layout, life, log, output, parts};

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let (Some(job_type), Some(id)) = (query.get("type"), query.get("id")) else {
        return Err(Problem::bad("type, id: both are needed", "choose a job from the list"));
    };
    names::check_type(job_type)?;
    names::check_id(id)?;
    let path = JobPath { job_type: job_type.to_owned(), id: id.to_owned() };
    let (job, why, around) = v1::why::explained(&visit.app, visit.caller(), &path).await?;
    let lines = log::read(&visit.app, &path).await?;
    let group = match &job.group {
        Some(group) => v1::groups::of_job(&visit.app, &job.tenant, &group.name).await?,
        None => None,
    };
    let now_us = visit.app.now_us();
    let whole = api_link(&job.job_type, &job.id, "");
    let whole = whole.trim_end_matches('/');
    // The sentence and the history may have it already.
    let unsaid = job.reason.as_ref().filter(|reason| !why.sentence.contains(reason.as_str()));
    let main = html! {
        p.crumbs {
            a href=(link("/ui/jobs", &[("type", Some(&job.job_type))])) { bdi { (job.job_type) } }
            @if let Some(task) = &job.task { " / " a href=(task_link(&job.job_type, task)) { bdi { (task) } } }
        }
        h1 { bdi { (job.id) } }
        (act::done(query.get("did")))
        (parts::done(query.get("did")))
        section.why aria-label="Why" {
            p { (state(job.state)) @if job.cancel_requested { " " span.quiet { "a stop is requested" } } " " span.quiet { "for " (duration((now_us - why.since_us).max(0).unsigned_abs())) } }
            p.lead { (sentence(&why.sentence)) }
            (blockers(&job, &why, now_us))
        }
        (output::errors(&job, unsaid.map(String::as_str), now_us))
        @if visit.caller().writes(&job.tenant) { (act::for_one(&job, &visit.here, around.nodes.iter().any(|node| node.step > 0))) }
        div.columns {
            section { h2 { "Job" } (facts(&visit, &job, &why, &around, now_us)) }
            section { h2 { @if why.place.is_some() { "Place in the queue" } @else { "Its tenant" } } (place(&visit, &why, now_us)) }
        }
        (output::options(&visit, &job))
        @if let Some(group) = &group { (of_group(group, now_us)) }
        section { h2 { "Attempts" } (life::shown(&job, &why, now_us)) }
        (log::shown(&job, &lines))
        (output::result(&job))
        @if let Some(info) = &job.info { (output::json("Last report of its worker", info, whole)) }
        (output::json("Summary", &job.summary, whole))
        (graph::drawn(&around, now_us))
    };
    Ok(layout::live(&visit.shell, &job.id, main))
}

/// The jobs of a type with a task.
fn task_link(job_type: &str, task: &str) -> String {
    let condition = quoted(task).map(|task| format!("task = {task}"));
    link("/ui/jobs", &[("type", Some(job_type)), ("where", condition.as_deref())])
}

/// How far the job's group is.
fn of_group(group: &Group, now_us: i64) -> Markup {
    let counts = &group.counts;
    html! {
        section {
            h2 { "Group" }
            p { a href=(group_link(&group.tenant, &group.name)) { bdi { (group.name) } } " " span.quiet { (group.state.as_str()) }
                @if let Some(at) = group.ended_us { " " span.quiet { (ago(at, now_us)) } } }
            (progress(counts))
            dl {
                dt { "Ended" } dd { (number(counts.total - counts.open)) " of " (number(counts.total)) }
                dt { "Completed" } dd { (number(counts.completed)) }
                dt { "Failed" } dd { (number(counts.failed)) }
                dt { "Cancelled or removed" } dd { (number(counts.cancelled + counts.removed)) }
                @for called in &group.called { dt { (word(called.on)) } dd {
                    @match &called.reason {
                        Some(reason) => { "not added: " (reason) }
                        None => { a href=(job_link(&called.job_type, &called.id)) { bdi { (called.id) } } }
                    }
                } }
            }
        }
    }
}

/// A sentence in which names are between backticks.
fn sentence(sentence: &str) -> Markup {
    html! {
        @for (n, part) in sentence.split('`').enumerate() {
            @if n % 2 == 1 { bdi.name { (part) } } @else { (part) }
        }
    }
}

/// What the job waits for, each linked to where it is explained.
fn blockers(job: &Job, why: &Why, now_us: i64) -> Markup {
    html! {
        @if !why.after.is_empty() {
            p { "It waits for:" }
            ul.plain {
                @for awaited in &why.after {
                    li {
                        a href=(job_link(&awaited.job_type, &awaited.id)) { bdi { (awaited.job_type) } " " bdi { (awaited.id) } }
                        " " @match awaited.state { Some(of) => (state(of)), None => span.quiet { "just removed" } }
                    }
                }
            }
        }
        @if let Some(locks) = &why.locks {
            @if !locks.by.is_empty() {
                p { "Locks that it wants:" }
                ul.plain { @for by in &locks.by { li { (locker(by, now_us)) } } @if locks.by_more { li.quiet { "and others" } } }
            }
        }
        @if let Some(limited) = why.limited.as_ref().filter(|limited| limited.by != LimitedBy::Task) {
            @if limited.by == LimitedBy::Rate {
                p { "Rate " bdi.name { (limited.name) } @if let Some(key) = &limited.key { " for " bdi.name { (key) } }
                    ": at most " (number(u64::from(limited.limit))) " start"
                    @if let Some(per_ms) = limited.per_ms { " in any " (number(per_ms)) " ms" }
                    @if let Some(next_us) = limited.next_us.filter(|next_us| *next_us > now_us) { ", the next one at " (time(next_us)) } "." }
            } @else {
                p { "Concurrency limit " bdi.name { (limited.name) } ": at most " (number(u64::from(limited.limit)))
                    @if let Some(running) = limited.running { ", " (number(running as u64)) " run" } "." }
            }
        }
        @if let Some(filter) = &job.paused_by {
            @match Holder::named(filter) {
                Some(Holder::Client) => p { "A client of its tenant holds it." },
                Some(Holder::Operator) => p { "An operator holds it." },
                None => p { "The filter " bdi.name { (filter) } " pauses it." },
            }
        }
        @if let (Some(error), None) = (&why.error, &job.reason) { p { "Its last run: " (text(error)) } }
        @if let Some(worker) = &why.worker {
            p.quiet { "Worker " bdi { (worker) } @if let Some(node) = &why.node { ", node " bdi { (node) } } }
        }
        @if why.place.is_some() {
            p { a href=(link("/ui/tenants", &[("type", Some(&why.job_type))])) { "Shares of its tenant beside others" } " · "
                a href=(link("/ui/jobs", &[("view", Some("queue")), ("type", Some(&why.job_type))])) { "The queue of its type" } }
        }
        @if !matches!(why.reason, Reason::NoWorker | Reason::WorkersQuiet) {
            @match why.capacity {
                Some(capacity) if capacity.workers == 0 && capacity.quiet > 0 => p.condition.warn { "All workers for jobs of this type are quiet." },
                Some(capacity) if capacity.workers == 0 => p.condition.warn { "No worker is registered for jobs of this type." },
                _ => {}
            }
        }
    }
}

fn locker(by: &Locker, now_us: i64) -> Markup {
    let how = match by.how {
        LockHow::Holds => "is held by",
        LockHow::Waits => "is awaited by",
        LockHow::Reserved => "is reserved by",
    };
    html! {
        bdi.name { (by.lock.level) @if let Some(name) = &by.lock.name { "/" (name) } } " " (how) " "
        @match (&by.job_type, &by.id) {
            (Some(job_type), Some(id)) => a href=(job_link(job_type, id)) { bdi { (job_type) } " " bdi { (id) } },
            _ => "a job of another tenant",
        }
        span.quiet { " since " (ago(by.since_us, now_us)) }
    }
}

fn facts(visit: &Visit, job: &Job, why: &Why, around: &Graph, now_us: i64) -> Markup {
    let traces = visit.app.config.get().otel.trace_url.clone();
    html! {
        dl {
            dt { "Type" } dd { bdi { (job.job_type) } }
            @if let Some(task) = &job.task { dt { "Task" } dd { a href=(task_link(&job.job_type, task)) { bdi { (task) } } } }
            dt { "Tenant" } dd { a href=(tenant_link(&job.job_type, &job.tenant)) { bdi { (job.tenant) } } }
            @if !job.tags.is_empty() {
                dt { "Tags" }
                dd { @for tag in &job.tags { a href=(link("/ui/jobs", &[("type", Some(&job.job_type)), ("tag", Some(tag))])) { bdi { (tag) } } " " } }
            }
            @if let Some(user) = &job.user { dt { "User (stated)" } dd { bdi { (user) } } }
            dt { "Priority" } dd { (job.priority) }
            @if let Some(from) = &job.schedule { dt { "Schedule" } dd { a href=(super::schedules::schedule_link(&from.name)) { bdi { (from.name) } } " for " (time(from.scheduled_at_us)) } }
            @if let Some(group) = &job.group { dt { "Group" } dd { a href=(group_link(&job.tenant, &group.name)) { bdi { (group.name) } } @if let Some(index) = group.index { ", " (number(u64::from(index))) } } }
            @if let Some(by) = &job.callback { dt { "Added by group" } dd { a href=(group_link(&job.tenant, &by.group)) { bdi { (by.group) } } } }
            dt { "Added" } dd { (time(job.added_us)) " (" (ago(job.added_us, now_us)) ")" }
            @if let Some(started) = job.started_us { dt { "Last started" } dd { (time(started)) } }
            @if let Some(at) = job.not_before_us { dt { "Not before" } dd { (time(at)) " (" (ago(at, now_us)) ")" } }
            @if let Some(at) = job.expires_us { dt { "Fails unless it starts by" } dd { (time(at)) " (" (ago(at, now_us)) ")" } }
            @if let Some(at) = job.removed_us { dt { "Is removed" } dd { (time(at)) " (" (ago(at, now_us)) ")" } }
            @if let Some(unique) = &job.unique {
                dt { "Unique" }
                dd { (unique.mode.as_str().replace('_', " "))
                    @if let Some(key) = &unique.key { ", key " bdi { (key) } }
                    @for pointer in &unique.of { " " code { (pointer) } }
                    @if job.unique_held == Some(true) { ", holds its key" }
                    @if let Some(at) = job.unique_until_us { ", until " (time(at)) } }
            }
            @if !job.inputs.is_empty() {
                dt { "Inputs" }
                dd { ul.plain { @for (name, input) in &job.inputs { li { bdi.name { (name) } ": " (input_link(input)) } } } }
            }
            dt { "Attempts" }
            dd { (number(u64::from(job.attempts))) @if let Some(most) = job.max_attempts { " of " (number(u64::from(most))) }
                @if why.crashes > 0 { ", " (number(u64::from(why.crashes))) " crashes in a row" }
                @if job.snoozes > 0 { ", put off " (number(u64::from(job.snoozes))) " times" } }
            @if let Some(ms) = job.timeout_ms { dt { "Longest run" } dd { (duration(ms.saturating_mul(1_000))) } }
            @if let Some(ms) = job.heartbeat_timeout_ms { dt { "Longest silence" } dd { (duration(ms.saturating_mul(1_000))) } }
            @if let Some(trace) = &around.trace_id {
                dt { "Trace" }
                dd {
                    @match &traces {
                        Some(url) => a href=(url.replace("{trace_id}", trace)) rel="noreferrer" { code { (trace) } },
                        None => code { (trace) },
                    }
                }
            }
            @if !job.reasons.is_empty() { dt { "Reasons" } dd { ul.plain { @for reason in &job.reasons { li { (text(reason)) } } } } }
        }
    }
}

/// The job whose result is an input.
fn input_link(input: &Input) -> Markup {
    let (job_type, id) = input.job.as_deref().and_then(|job| job.split_once('/')).unwrap_or_default();
    html! { a href=(job_link(job_type, id)) { bdi { (job_type) } " " bdi { (id) } } }
}

fn place(visit: &Visit, why: &Why, now_us: i64) -> Markup {
    let jobs = |jobs: usize, more: bool| match jobs {
        0 => "none".to_owned(),
        jobs => count(jobs, more),
    };
    html! {
        dl {
            @if let Some(place) = &why.place {
                dt { "Before it" } dd { (jobs(place.in_tenant, place.in_tenant_more)) " of its tenant"
                    @if visit.caller().operates() { ", " (jobs(place.overall, place.overall_more)) " overall" } }
            }
            @if let Some(expected) = &why.expected {
                dt { @if expected.earliest { "Starts at the earliest" } @else { "Expected to start" } }
                dd { (time(expected.at_us)) " (" (ago(expected.at_us, now_us)) ")" br; span.quiet { (expected.basis) } }
            }
            @if let Some(capacity) = &why.capacity {
                dt { "Slots" } dd { (number(capacity.running as u64)) " of " (number(capacity.slots as u64)) @if let Some(most) = capacity.most_slots { " (at most " (number(most as u64)) ")" } " taken, on " (super::format::count_of(capacity.workers, "worker"))
                    @if capacity.quiet > 0 { " (and " (number(capacity.quiet as u64)) " quiet)" } }
            }
            dt { "Tenant" }
            dd { (number(u64::from(why.tenant.shares))) " shares, " (number(why.tenant.pending)) " waiting, " (number(why.tenant.running as u64)) " running" }
            @if let Some(deficit) = why.tenant.deficit_us {
                dt { @if deficit < 0 { "Surplus" } @else { "Deficit" } } dd { (duration(deficit.unsigned_abs())) }
            }
        }
        @if !why.before.is_empty() {
            p { "Tenants whose jobs go before it:" }
            ul.plain {
                @for before in &why.before {
                    li { a href=(tenant_link(&why.job_type, &before.tenant)) { bdi { (before.tenant) } } " " span.quiet { (count(before.jobs.min(MAX_COUNTED), before.jobs_more)) " jobs" } }
                }
                @if why.before_more { li.quiet { "and others" } }
            }
        }
    }
}
