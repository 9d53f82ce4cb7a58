//! Actions on all jobs that a list shows and does not show: the question with their number, and the operation with its progress.
//!
//! An action of the list leads to a question, which counts the jobs that meet the list's filter. The question names the id of the
//! operation, so sending the answer twice begins one operation.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api::bulk as v1;
use turnwise_protocol::bulk::quoted;
use turnwise_protocol::{
    Bulk, BulkAction, BulkState, Bulks, DEFAULT_LIMIT, ExampleJob, MatchingJobs, PutBulk, RefusedJobs, State,
};

use super::format::{ago, duration, jobs_of, number, state};
use super::layout;
use super::parts::Column::{Number, Text};
use super::parts::{head, hidden, pages, table};
use super::problem::{Problem, Result};
use super::redirect::redirect;
use super::visit::{Fields, Visit, back, job_link, link};

const PATH: &str = "/ui/bulk";
/// Where an action is asked about.
const ASK: &str = "/ui/bulk/ask";
/// What all jobs meet.
const ALL: &str = "age >= 0s";
/// Longest condition in a form, in bytes: that of the API.
const MAX_CONDITION_BYTES: usize = 4_000;

/// What pages say of an action.
pub(super) struct Texts {
    /// Its name, on buttons.
    pub name: &'static str,
    /// What its question says.
    pub effect: &'static str,
    /// What was done.
    pub done: &'static str,
}

pub(super) fn texts(action: BulkAction) -> Texts {
    match action {
        BulkAction::Retry => Texts {
            name: "Run now or again",
            effect: "Delayed, crashing and blocked jobs become pending now, without their dependencies, and failed and cancelled jobs run again.",
            done: "Made pending",
        },
        BulkAction::Cancel => Texts {
            name: "Cancel",
            effect: "Waiting jobs end now. Running ones are stopped by their workers; what they have done so far is not undone.",
            done: "Cancelled, or being stopped",
        },
        BulkAction::Remove => Texts {
            name: "Remove",
            effect: "Their records go, with results and history. Running ones are stopped first. This cannot be undone.",
            done: "Removed, or being stopped first",
        },
        BulkAction::Priority => Texts {
            name: "Set priority",
            effect: "Within a tenant, jobs with lower numbers start first.",
            done: "Changed the priority",
        },
        BulkAction::RunNow => Texts {
            name: "Run now",
            effect: "Delayed and crashing jobs are pending now. Others stay as they are.",
            done: "Made pending",
        },
        BulkAction::Hold => Texts {
            name: "Hold",
            effect: "Jobs that wait do not start until they are released. Those that run go on. Jobs that are added later are not held; a filter pauses them, too.",
            done: "Held",
        },
        BulkAction::Release => Texts {
            name: "Release",
            effect: "Held jobs return to their places in the queue, or wait for their times.",
            done: "Released",
        },
    }
}

/// Whether an action ends jobs.
pub(super) fn destroys(action: BulkAction) -> bool {
    matches!(action, BulkAction::Cancel | BulkAction::Remove)
}

/// A pattern that matches exactly this text.
fn literal(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        match c {
            '\\' => pattern.push_str("\\x5C"),
            c if c.is_ascii_punctuation() && !matches!(c, '"' | '\'') => pattern.extend(['\\', c]),
            c => pattern.push(c),
        }
    }
    pattern
}

/// The filter of a list as a condition. `None` if a condition cannot express it.
pub(super) fn condition(
    job_type: Option<&str>,
    state: Option<State>,
    tenant: Option<&str>,
    tag: Option<&str>,
    text: Option<&str>,
) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(job_type) = job_type {
        parts.push(format!("type = {}", quoted(job_type)?));
    }
    if let Some(state) = state {
        parts.push(format!("state = {}", state.as_str()));
    }
    if let Some(tenant) = tenant {
        parts.push(format!("tenant = {}", quoted(tenant)?));
    }
    if let Some(tag) = tag {
        parts.push(format!("tag = {}", quoted(tag)?));
    }
    if let Some(text) = text {
        parts.push(format!("id ~ {}", quoted(&literal(text))?));
    }
    let condition = if parts.is_empty() { ALL.to_owned() } else { parts.join(" and ") };
    (condition.len() <= MAX_CONDITION_BYTES).then_some(condition)
}

/// The buttons below a list for all jobs that meet its condition.
pub(super) fn for_all(condition: &str, here: &str) -> Markup {
    html! {
        details.all {
            summary { "For all that match, also on other pages" }
            form.actions action=(ASK) {
                (hidden("where", condition))
                (hidden("back", here))
                (buttons("…"))
                button name="action" value="hold" { "Hold…" }
                button name="action" value="release" { "Release…" }
                a.quiet href=(PATH) { "Earlier operations" }
            }
        }
    }
}

/// The buttons for all actions. The names of those that always ask first have dots.
pub(super) fn buttons(dots: &str) -> Markup {
    html! {
        button name="action" value="retry" { "Run now or again" (dots) }
        button name="action" value="cancel" { "Cancel…" }
        button.danger name="action" value="remove" { "Remove…" }
        label { span.unseen { "Priority" } input type="number" name="priority" min="-20" max="19" placeholder="0" size="3"; }
        button name="action" value="priority" { "Set priority" (dots) }
    }
}

/// The action that fields name, with its priority.
pub(super) fn action(fields: &Fields) -> Result<(BulkAction, Option<i32>)> {
    let action: BulkAction = fields.action("action")?;
    let priority = match action {
        BulkAction::Priority => Some(fields.number("priority")?.unwrap_or(0)),
        _ => None,
    };
    Ok((action, priority))
}

fn condition_of(fields: &Fields) -> Result<&str> {
    match fields.get("where") {
        Some(condition) if !condition.trim().is_empty() => Ok(condition),
        _ => Err(Problem::bad("no jobs are selected", "use a button of a list of jobs")),
    }
}

/// Asks whether an operation should begin, with the number of its jobs.
pub(super) async fn ask(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let condition = condition_of(query)?;
    let (action, priority) = action(query)?;
    let back = back(query.get("back")).unwrap_or("/ui/jobs");
    let counted = v1::matching(&visit.app, visit.caller().clone(), condition, Some(action), priority).await?;
    let changes = counted.changes.unwrap_or(0);
    let Texts { name, effect, .. } = texts(action);
    let jobs = at_least(&counted, changes);
    let title = match priority {
        Some(priority) => format!("{name} {priority} of {jobs}?"),
        None => format!("{name}: {jobs}?"),
    };
    let id = format!("ui-{}", visit.app.new_uuid());
    let main = html! {
        h1 { (title) }
        p.lead { "All jobs with " code { (condition) } }
        @if changes == 0 && counted.complete { p.condition.warn { "None of them would change." } }
        @else { p.condition.warn { (effect) } }
        dl {
            dt { "Match" } dd { (at_least(&counted, counted.matched)) }
            dt { "Would change" } dd { (jobs) }
            @for RefusedJobs { reason, jobs } in &counted.refused {
                dt { "Stay as they are" } dd { (jobs_of(*jobs)) ": " (reason) }
            }
        }
        @if !counted.complete {
            p.quiet { "Counting stopped after 5 s, when it had looked at " (number(counted.looked_at)) " jobs. The operation reaches all." }
        }
        (examples(&counted))
        form.actions method="post" action=(PATH) {
            (hidden("where", condition))
            (hidden("action", action.as_str()))
            @if let Some(priority) = priority { (hidden("priority", &priority.to_string())) }
            (hidden("id", &id))
            @if counted.complete { (hidden("of", &counted.matched.to_string())) }
            (hidden("back", back))
            @if changes > 0 || !counted.complete { button.danger[destroys(action)] type="submit" { (name) " " (jobs) } }
            a.button href=(back) { "Back" }
        }
    };
    Ok(layout::page(&visit.shell, &title, main))
}

/// A number of jobs that is exact if the count has reached all.
fn at_least(counted: &MatchingJobs, jobs: u64) -> String {
    if counted.complete { jobs_of(jobs) } else { format!("at least {}", jobs_of(jobs)) }
}

fn examples(counted: &MatchingJobs) -> Markup {
    let rows = html! {
        @for ExampleJob { job_type, id, tenant, state: of } in &counted.examples {
            tr {
                th.id scope="row" { a href=(job_link(job_type, id)) { bdi title=(id) { (id) } } }
                td { bdi { (job_type) } }
                td { (state(*of)) }
                td.id { bdi title=(tenant) { (tenant) } }
            }
        }
    };
    html! {
        @if !counted.examples.is_empty() {
            section {
                h2 { "Some of them" }
                (table("Some of them", head(&[Text("Job"), Text("Type"), Text("State"), Text("Tenant")]), rows))
            }
        }
    }
}

/// Begins an operation, or stops one.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let id = form.get("id").ok_or_else(|| Problem::bad("no operation is named", "use a button of a page"))?;
    turnwise_protocol::names::check_id(id)?;
    if form.get("action") == Some("stop") {
        v1::stop(&visit.app, visit.caller(), id).await?;
        return Ok(redirect(&link(PATH, &[("id", Some(id)), ("back", back(form.get("back")))])));
    }
    let (action, priority) = action(form)?;
    let put = PutBulk { action, priority, condition: condition_of(form)?.to_owned() };
    v1::begin(&visit.app, visit.caller(), id.to_owned(), put).await?;
    let fields = [("id", Some(id)), ("of", form.get("of")), ("back", back(form.get("back")))];
    Ok(redirect(&link(PATH, &fields)))
}

/// One operation with its progress, or all that the person may see.
pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let Some(id) = query.get("id") else { return list(&visit).await };
    let bulk = v1::one(&visit.app, visit.caller(), id).await?;
    let now_us = visit.app.now_us();
    let back = back(query.get("back"));
    let of = query.get("of").and_then(|of| of.parse::<u64>().ok()).filter(|of| *of > 0);
    let title = format!("{}: {}", texts(bulk.action).name, standing(&bulk));
    let is_over = bulk.state != BulkState::Running;
    let main = html! {
        p.crumbs { a href=(PATH) { "Operations on many jobs" } }
        h1 { (title) }
        p.lead { "All jobs with " code { (bulk.condition) } }
        @if let Some(reason) = &bulk.reason { p.condition.bad role="status" { (super::problem::sentence(reason)) } }
        @else if bulk.state == BulkState::Done { p.condition.good role="status" { "Changed " (jobs_of(bulk.changed)) "." } }
        @if let (Some(of), false) = (of, is_over) {
            progress.whole max=(of.max(bulk.matched)) value=(bulk.matched) aria-label="Progress" {}
        }
        dl {
            dt { "Looked at" } dd { (jobs_of(bulk.looked_at)) @if let (Some(about), false) = (bulk.about, is_over) { span.quiet { " of about " (number(about.max(bulk.looked_at))) } } }
            dt { "Matched" } dd { (jobs_of(bulk.matched)) @if let (Some(of), false) = (of, is_over) { span.quiet { " of " (number(of)) " at the time of the question" } } }
            dt { "Changed" } dd { (jobs_of(bulk.changed)) }
            @for RefusedJobs { reason, jobs: refused } in &bulk.refused { dt { "Left as they are" } dd { (jobs_of(*refused)) ": " (reason) } }
            @if let Some(priority) = bulk.priority { dt { "Priority" } dd { (priority) } }
            dt { "Began" } dd { (ago(bulk.begun_us, now_us)) @if let Some(by) = &bulk.by { " by " bdi { (by) } } }
            @if let Some(ended) = bulk.ended_us { dt { "Took" } dd { (duration((ended - bulk.begun_us).max(0).unsigned_abs())) } }
        }
        form.actions method="post" action=(PATH) {
            @if !is_over {
                (hidden("id", id))
                @if let Some(back) = back { (hidden("back", back)) }
                button.danger name="action" value="stop" { "Stop" }
            }
            @if let Some(back) = back { a.button href=(back) { "Back to the jobs" } }
        }
    };
    Ok(match is_over {
        true => layout::page(&visit.shell, &title, main),
        false => layout::live(&visit.shell, &title, main),
    })
}

fn standing(bulk: &Bulk) -> &'static str {
    match bulk.state {
        BulkState::Running => "under way",
        BulkState::Done => "done",
        BulkState::Stopped => "stopped",
        BulkState::Failed => "failed",
    }
}

async fn list(visit: &Visit) -> Result<Response> {
    let now_us = visit.app.now_us();
    let after = visit.query.get("after");
    let Bulks { bulk: page, next } = v1::list(&visit.app, visit.caller(), DEFAULT_LIMIT, after).await?;
    let rows = html! {
        @for bulk in &page {
            tr data-k=(bulk.id) {
                th scope="row" { a href=(link(PATH, &[("id", Some(&bulk.id))])) { (texts(bulk.action).name) @if let Some(priority) = bulk.priority { " " (priority) } } }
                td { code.text { (bulk.condition) } }
                td { (standing(bulk)) }
                td.n { (number(bulk.matched)) }
                td.n { (number(bulk.changed)) }
                td.when { (ago(bulk.begun_us, now_us)) }
                td { @if let Some(by) = &bulk.by { bdi { (by) } } }
            }
        }
    };
    let main = html! {
        p.crumbs { a href="/ui/jobs" { "Jobs" } }
        h1 { "Operations on many jobs" }
        p.quiet { "Ended ones are kept for a week." }
        @if page.is_empty() {
            p.empty { "There is none. A list of jobs has actions for all jobs that match its filter." }
        } @else {
            (table("Operations", head(&[
                Text("Action"), Text("Jobs with"), Text("State"), Number("Matched"), Number("Changed"), Text("Began"), Text("By"),
            ]), rows))
        }
        (pages(|after| link(PATH, &[("after", after)]), after, next.as_deref()))
    };
    Ok(layout::live(&visit.shell, "Operations on many jobs", main))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use turnwise_queue::selection::Selection;

    use super::*;

    #[test]
    fn a_filter_is_a_condition_whatever_it_contains() {
        assert_eq!(condition(None, None, None, None, None).unwrap(), ALL);
        let all =
            condition(Some("mail"), Some(State::Failed), Some("acme"), Some("eu"), Some("a.b")).unwrap();
        assert_eq!(
            all,
            r#"type = "mail" and state = failed and tenant = "acme" and tag = "eu" and id ~ "a\.b""#
        );
        for text in ["a\"b", "'", "\\\"", "a b", "ü", "\\", "x\\y", "(", "[a]{2}", "a and id = b", "$^"] {
            let made = condition(None, None, None, None, Some(text)).unwrap();
            assert!(Selection::parse(&made, 0).is_ok(), "{made}");
            if !text.ends_with('\\') {
                let made = condition(None, None, Some(text), None, None).unwrap();
                assert!(Selection::parse(&made, 0).is_ok(), "{made}");
            }
        }
        assert_eq!(condition(None, None, Some("\\"), None, None), None);
        assert_eq!(literal("a\\.ü"), r"a\x5C\.ü");
    }
}
