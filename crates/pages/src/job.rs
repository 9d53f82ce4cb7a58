//! One job: why it is in its state, its life, and what it depends on.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use serde_json::value::RawValue;
use turnwise_api as v1;
use turnwise_api::JobPath;
use turnwise_explain::graph::Graph;
use turnwise_protocol::{Job, LockHow, Locker, MAX_COUNTED, Reason, Why, names};

use super::format::{ago, count, duration, number, state, text, time};
use super::problem::{Problem, Result};
use super::visit::{Visit, job_link, link, tenant_link};
use super::{act, graph, layout, life};

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let (Some(job_type), Some(id)) = (query.get("type"), query.get("id")) else {
        return Err(Problem::bad("type, id: both are needed", "choose a job from the list"));
    };
    names::check_type(job_type)?;
    names::check_id(id)?;
    let path = JobPath { job_type: job_type.to_owned(), id: id.to_owned() };
    let (job, why, around) = v1::why::explained(&visit.app, visit.caller(), &path).await?;
    let now_us = visit.app.now_us();
    // The sentence and the history may have it already.
    let unsaid = job.reason.as_ref().filter(|reason| !why.sentence.contains(reason.as_str()));
    let main = html! {
        p.crumbs { a href=(link("/ui/jobs", &[("type", Some(&job.job_type))])) { bdi { (job.job_type) } } }
        h1 { bdi { (job.id) } }
        (act::done(query.get("did")))
        section.why aria-label="Why" {
            p { (state(job.state)) @if job.cancel_requested { " " span.quiet { "a stop is requested" } } " " span.quiet { "for " (duration((now_us - why.since_us).max(0).unsigned_abs())) } }
            p.lead { (sentence(&why.sentence)) }
            (blockers(&job, &why, now_us))
        }
        @if visit.caller().writes(&job.tenant) { (act::for_one(&job, &visit.here)) }
        div.columns {
            section { h2 { "Job" } (facts(&visit, &job, &why, &around, now_us)) }
            section { h2 { @if why.place.is_some() { "Place in the queue" } @else { "Its tenant" } } (place(&visit, &why, now_us)) }
        }
        section { h2 { "Life" } (life::shown(&job, &why, now_us)) }
        (graph::drawn(&around))
        @if let Some(reason) = unsaid { section { h2 { "Error" } (text(reason)) } }
        (json("Result", job.result.as_deref()))
        (json("Last report of its worker", job.info.as_deref()))
        (json("Summary", Some(&job.summary)))
        p.quiet.last { "Its options are shown to its worker alone: they may hold secrets." }
    };
    Ok(layout::live(&visit.shell, &job.id, main))
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
        @if let Some(limited) = &why.limited {
            p { "Concurrency limit " bdi.name { (limited.name) } ": at most " (number(u64::from(limited.limit)))
                @if let Some(running) = limited.running { ", " (number(running as u64)) " run" } "." }
        }
        @if let Some(filter) = &job.paused_by {
            p { "The filter " bdi.name { (filter) } " pauses it." }
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
            dt { "Tenant" } dd { a href=(tenant_link(&job.job_type, &job.tenant)) { bdi { (job.tenant) } } }
            @if let Some(user) = &job.user { dt { "User (stated)" } dd { bdi { (user) } } }
            dt { "Priority" } dd { (job.priority) }
            dt { "Added" } dd { (time(job.added_us)) " (" (ago(job.added_us, now_us)) ")" }
            @if let Some(started) = job.started_us { dt { "Last started" } dd { (time(started)) } }
            @if let Some(at) = job.not_before_us { dt { "Not before" } dd { (time(at)) " (" (ago(at, now_us)) ")" } }
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

/// JSON with a line for each value. Texts with lines of their own, such as the output of a command, are shown as they are.
fn json(title: &str, raw: Option<&RawValue>) -> Markup {
    let Some(raw) = raw.filter(|raw| !matches!(raw.get(), "{}" | "null")) else { return html! {} };
    let Ok(mut value) = serde_json::from_str::<Value>(raw.get()) else { return html! {} };
    let mut texts = Vec::new();
    if let Value::Object(members) = &mut value {
        members.retain(|name, member| match member {
            Value::String(text) if text.contains('\n') => {
                texts.push((name.clone(), std::mem::take(text)));
                false
            }
            _ => true,
        });
    }
    let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
    html! {
        section {
            h2 { (title) }
            @for (name, text) in texts { p.quiet { bdi { (name) } } pre tabindex="0" { bdi { (text) } } }
            @if !is_empty { pre tabindex="0" { bdi { (serde_json::to_string_pretty(&value).unwrap_or_default()) } } }
        }
    }
}
