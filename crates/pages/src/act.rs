//! Actions on jobs: on one, or on those that were selected in a list.

use axum::response::Response;
use futures::{StreamExt as _, stream};
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_api::JobPath;
use turnwise_api::list::Cursor;
use turnwise_protocol::{BulkAction, Job, State, names};
use turnwise_queue::Holder;

use super::bulk::{self, Texts, texts};
use super::format::count_of;
use super::parts::Column::Text;
use super::parts::{Question, head, hidden, table};
use super::problem::{Problem, Result, sentence};
use super::redirect::redirect;
use super::visit::{Visit, back, job_link};
use super::{job_new, layout};

/// Maximum number of jobs of one action.
const MAX_JOBS: usize = 200;
/// Number of concurrent transactions.
const AT_ONCE: usize = 8;

/// What was done, if the query says so: `cancel.3`.
pub(super) fn done(did: Option<&str>) -> Markup {
    let (action, count) = did.and_then(|did| did.split_once('.')).unwrap_or_default();
    let actions = [BulkAction::Retry, BulkAction::Cancel, BulkAction::Remove, BulkAction::Priority];
    let action = actions.into_iter().find(|of| of.as_str() == action);
    html! {
        @if let (Some(action), Ok(count)) = (action, count.parse::<usize>()) {
            p.condition.good role="status" { (texts(action).done) ": " (count_of(count, "job")) "." }
        }
    }
}

/// The buttons below a list with boxes.
pub(super) fn for_selected() -> Markup {
    html! {
        div.actions role="group" aria-label="The selected jobs" {
            span.quiet { "The selected:" }
            (bulk::buttons(""))
        }
    }
}

/// The buttons for one job.
pub(super) fn for_one(job: &Job, here: &str, has_dependents: bool) -> Markup {
    let at = Cursor { job_type: job.job_type.clone(), id: job.id.clone() }.text();
    let retry = match job.state {
        State::Delayed | State::Crashing => Some("Run now"),
        State::Blocked => Some("Run now, without its dependencies"),
        State::Failed | State::Cancelled => Some("Run again"),
        _ => None,
    };
    let waits = !job.state.is_final() && !matches!(job.state, State::Running | State::Waiting);
    let is_editable = waits && v1::add::is_for_clients(&job.job_type);
    let is_held = job.paused_by.as_deref().and_then(Holder::named).is_some();
    html! {
        form.actions method="post" action="/ui/jobs/act" {
            (hidden("job", &at))
            (hidden("back", here))
            @if let Some(retry) = retry { button.main name="action" value="retry" { (retry) } }
            @if job.state.is_final() && v1::add::is_for_clients(&job.job_type) {
                a.button href=(job_new::again_link(&job.job_type, &job.id)) { "Run again with changes…" }
            }
            @if is_editable { a.button href=(job_new::edit_link(&job.job_type, &job.id)) { "Edit…" } }
            @if !job.state.is_final() { button name="action" value="cancel" { "Cancel…" } }
            button.danger name="action" value="remove" { "Remove…" }
            @if !job.state.is_final() {
                label { span.quiet { "Priority " } input type="number" name="priority" min="-20" max="19" value=(job.priority); }
                button name="action" value="priority" { "Set priority" }
            }
        }
        @if has_dependents && matches!(job.state, State::Failed | State::Cancelled) {
            form.actions method="post" action="/ui/jobs/hold" {
                (hidden("job", &at))
                (hidden("back", here))
                button name="do" value="retry_from" { "Retry from here" }
                span.quiet { "The jobs that were cancelled because of it wait for it again." }
            }
        }
        @if is_editable {
            form.actions method="post" action="/ui/jobs/hold" {
                (hidden("job", &at))
                (hidden("back", here))
                @if is_held { button name="do" value="release" { "Release" } } @else { button name="do" value="hold" { "Hold" } }
                span.quiet { @if is_held { "It waits until it is released." } @else { "A held job waits until it is released." } }
            }
        }
    }
}

/// Holds or releases a job, or retries it with those after it.
pub(super) async fn hold(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let job = parse(form.get("job").unwrap_or_default())?;
    let back = back(form.get("back")).unwrap_or("/ui/jobs");
    let (app, caller) = (&visit.app, visit.caller());
    let did = match form.get("do") {
        Some("hold") => v1::edit::hold(app, caller, &job).await.map(|_| "held")?,
        Some("retry_from") => v1::jobs::retry_from(app, caller, &job).await.map(|_| "retried_from")?,
        Some("release") => v1::edit::release(app, caller, &job).await.map(|_| "released")?,
        _ => return Err(Problem::unknown_action()),
    };
    let mark = if back.contains('?') { '&' } else { '?' };
    Ok(redirect(&format!("{back}{mark}did={did}")))
}

/// Does what a form asks for, or asks for a confirmation first.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let (action, priority) = bulk::action(form)?;
    let jobs = form.all("job").take(MAX_JOBS + 1).map(parse).collect::<Result<Vec<_>>>()?;
    match jobs.len() {
        0 => return Err(Problem::bad("no job is selected", "select some in the list")),
        1..=MAX_JOBS => {}
        _ => return Err(Problem::bad(format!("more than {MAX_JOBS} jobs are selected"), "select fewer")),
    }
    let back = back(form.get("back")).unwrap_or("/ui/jobs");
    if bulk::destroys(action) && form.get("confirmed").is_none() {
        return Ok(confirm(&visit, action, &jobs, back));
    }
    let results: Vec<_> = jobs.iter().map(|job| one(&visit, action, priority, job)).collect();
    let results: Vec<Result<Option<String>>> = stream::iter(results).buffered(AT_ONCE).collect().await;
    let failed = results.iter().filter(|result| !matches!(result, Ok(None))).count();
    if failed == 0 {
        // The page of a removed job is gone.
        let is_gone = action == BulkAction::Remove && back.starts_with("/ui/job?");
        let back = if is_gone { "/ui/jobs" } else { back };
        let mark = if back.contains('?') { '&' } else { '?' };
        return Ok(redirect(&format!("{back}{mark}did={}.{}", action.as_str(), jobs.len())));
    }
    Ok(not_done(&visit, action, jobs.iter().zip(&results), failed, back))
}

fn parse(text: &str) -> Result<JobPath> {
    let Cursor { job_type, id } = Cursor::parse(text)?;
    names::check_id(&id)?;
    Ok(JobPath { job_type, id })
}

/// Changes one job. Returns why it did not change, if its state did not allow that.
async fn one(
    visit: &Visit,
    action: BulkAction,
    priority: Option<i32>,
    job: &JobPath,
) -> Result<Option<String>> {
    let (app, caller) = (&visit.app, visit.caller());
    let unchanged = match action {
        BulkAction::Retry => {
            let retried = v1::jobs::retry(app, caller, job).await?;
            (!retried.retried).then_some(retried.state)
        }
        BulkAction::Cancel => {
            let cancelled = v1::jobs::cancel(app, caller, job).await?;
            Some(cancelled.state).filter(|state| matches!(state, State::Completed | State::Failed))
        }
        BulkAction::Remove => {
            v1::jobs::remove(app, caller, job).await?;
            None
        }
        BulkAction::Priority => {
            let set = v1::jobs::prioritize(app, caller, job, priority.unwrap_or_default()).await?;
            (!set.changed && set.state.is_final()).then_some(set.state)
        }
        BulkAction::RunNow | BulkAction::Hold | BulkAction::Release => return Err(Problem::unknown_action()),
    };
    Ok(unchanged.map(|state| format!("it is {}, and so it is unchanged", state.as_str())))
}

fn confirm(visit: &Visit, action: BulkAction, jobs: &[JobPath], back: &str) -> Response {
    let Texts { name, effect, .. } = texts(action);
    let button = format!("{name} {}", count_of(jobs.len(), "job"));
    let fields = html! {
        ul.plain { @for job in jobs { li { bdi { (job.job_type) } " " a href=(job_link(&job.job_type, &job.id)) { bdi { (job.id) } } } } }
        (hidden("action", action.as_str()))
        (hidden("back", back))
        @for JobPath { job_type, id } in jobs {
            (hidden("job", &Cursor { job_type: job_type.clone(), id: id.clone() }.text()))
        }
    };
    let question = Question {
        title: &format!("{button}?"),
        subject: html! {},
        effect,
        button: &button,
        action: "/ui/jobs/act",
        fields,
        back,
    };
    question.page(&visit.shell)
}

fn not_done<'a>(
    visit: &Visit,
    action: BulkAction,
    results: impl Iterator<Item = (&'a JobPath, &'a Result<Option<String>>)>,
    failed: usize,
    back: &str,
) -> Response {
    let title = format!("Not done for {}", count_of(failed, "job"));
    let rows = html! {
        @for (job, result) in results {
            tr {
                th.id scope="row" { a href=(job_link(&job.job_type, &job.id)) { bdi { (job.id) } } }
                td { bdi { (job.job_type) } }
                td {
                    @match result {
                        Ok(None) => { (texts(action).done) "." }
                        Ok(Some(why)) => { "Not done: " (why) "." }
                        Err(problem) => { "Not done. " (sentence(&problem.reason)) " " (sentence(&problem.hint)) }
                    }
                }
            }
        }
    };
    let main = html! {
        h1 { (title) }
        (table("Results", head(&[Text("Job"), Text("Type"), Text("Result")]), rows))
        p { a.button href=(back) { "Back" } }
    };
    layout::page(&visit.shell, &title, main)
}
