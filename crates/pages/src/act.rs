//! Actions on jobs: on one, or on those that were selected in a list.

use axum::response::Response;
use futures::{StreamExt as _, stream};
use maud::{Markup, html};
use serde::Deserialize;
use turnwise_api as v1;
use turnwise_api::JobPath;
use turnwise_api::list::Cursor;
use turnwise_protocol::{Job, State, names};

use super::format::count_of;
use super::layout;
use super::problem::{Problem, Result, sentence};
use super::redirect::redirect;
use super::visit::{Visit, back, job_link};

/// Maximum number of jobs of one action.
const MAX_JOBS: usize = 200;
/// Number of concurrent transactions.
const AT_ONCE: usize = 8;

/// What happens to jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    /// They become pending now, or run again.
    Retry,
    Cancel,
    Remove,
    Priority,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Action::Retry => "retry",
            Action::Cancel => "cancel",
            Action::Remove => "remove",
            Action::Priority => "priority",
        }
    }

    /// What the confirmation says, if the action needs one.
    fn warning(self) -> Option<&'static str> {
        match self {
            Action::Retry | Action::Priority => None,
            Action::Cancel => Some(
                "Waiting jobs end now. Running ones are stopped by their workers; what they have done so far is not undone.",
            ),
            Action::Remove => Some(
                "Their records go, with results and history. Running ones are stopped first. This cannot be undone.",
            ),
        }
    }

    fn done(self) -> &'static str {
        match self {
            Action::Retry => "Made pending",
            Action::Cancel => "Cancelled, or being stopped",
            Action::Remove => "Removed, or being stopped first",
            Action::Priority => "Changed the priority",
        }
    }
}

/// What was done, if the query says so: `cancel.3`.
pub(super) fn done(did: Option<&str>) -> Markup {
    let (action, count) = did.and_then(|did| did.split_once('.')).unwrap_or_default();
    let actions = [Action::Retry, Action::Cancel, Action::Remove, Action::Priority];
    let action = actions.into_iter().find(|of| of.name() == action);
    html! {
        @if let (Some(action), Ok(count)) = (action, count.parse::<usize>()) {
            p.condition.good role="status" { (action.done()) ": " (count_of(count, "job")) "." }
        }
    }
}

/// The buttons below a list with boxes.
pub(super) fn for_selected() -> Markup {
    html! {
        div.actions role="group" aria-label="The selected jobs" {
            span.quiet { "The selected:" }
            button name="action" value="retry" { "Run now or again" }
            button name="action" value="cancel" { "Cancel…" }
            button.danger name="action" value="remove" { "Remove…" }
            label { span.unseen { "Priority" } input type="number" name="priority" min="-20" max="19" placeholder="0" size="3"; }
            button name="action" value="priority" { "Set priority" }
        }
    }
}

/// The buttons for one job.
pub(super) fn for_one(job: &Job, here: &str) -> Markup {
    let at = Cursor { job_type: job.job_type.clone(), id: job.id.clone() }.text();
    let retry = match job.state {
        State::Delayed | State::Crashing => Some("Run now"),
        State::Blocked => Some("Run now, without its dependencies"),
        State::Failed | State::Cancelled => Some("Run again"),
        _ => None,
    };
    html! {
        form.actions method="post" action="/ui/jobs/act" {
            input type="hidden" name="job" value=(at);
            input type="hidden" name="back" value=(here);
            @if let Some(retry) = retry { button.main name="action" value="retry" { (retry) } }
            @if !job.state.is_final() { button name="action" value="cancel" { "Cancel…" } }
            button.danger name="action" value="remove" { "Remove…" }
            @if !job.state.is_final() {
                label { span.quiet { "Priority " } input type="number" name="priority" min="-20" max="19" value=(job.priority); }
                button name="action" value="priority" { "Set priority" }
            }
        }
    }
}

/// Does what a form asks for, or asks for a confirmation first.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = visit.form();
    let action: Action =
        form.word("action")?.ok_or_else(|| Problem::bad("no action is chosen", "use a button of a page"))?;
    let jobs = form.all("job").take(MAX_JOBS + 1).map(parse).collect::<Result<Vec<_>>>()?;
    match jobs.len() {
        0 => return Err(Problem::bad("no job is selected", "select some in the list")),
        1..=MAX_JOBS => {}
        _ => return Err(Problem::bad(format!("more than {MAX_JOBS} jobs are selected"), "select fewer")),
    }
    let priority = match action {
        Action::Priority => Some(priority(form.get("priority"))?),
        _ => None,
    };
    let back = back(form.get("back")).unwrap_or("/ui/jobs").to_owned();
    if let (Some(warning), None) = (action.warning(), form.get("confirmed")) {
        return Ok(confirm(&visit, action, warning, &jobs, &back));
    }
    let results: Vec<_> = jobs.iter().map(|job| one(&visit, action, priority, job)).collect();
    let results: Vec<Result<Option<String>>> = stream::iter(results).buffered(AT_ONCE).collect().await;
    let failed = results.iter().filter(|result| !matches!(result, Ok(None))).count();
    if failed == 0 {
        // The page of a removed job is gone.
        let back = if action == Action::Remove && back.starts_with("/ui/job?") { "/ui/jobs" } else { &back };
        let mark = if back.contains('?') { '&' } else { '?' };
        return Ok(redirect(&format!("{back}{mark}did={}.{}", action.name(), jobs.len())));
    }
    Ok(not_done(&visit, action, jobs.iter().zip(&results), failed, &back))
}

fn parse(text: &str) -> Result<JobPath> {
    let Cursor { job_type, id } = Cursor::parse(text)?;
    names::check_id(&id)?;
    Ok(JobPath { job_type, id })
}

pub(super) fn priority(text: Option<&str>) -> Result<i32> {
    let number = text.unwrap_or("0").trim().parse();
    number.map_err(|_| Problem::bad("priority: must be a whole number from -20 to 19", "the default is 0"))
}

/// Changes one job. Returns why it did not change, if its state did not allow that.
async fn one(visit: &Visit, action: Action, priority: Option<i32>, job: &JobPath) -> Result<Option<String>> {
    let (app, caller) = (&visit.app, visit.caller());
    let unchanged = |state: State| Some(format!("it is {}, and so it is unchanged", state.as_str()));
    Ok(match action {
        Action::Retry => {
            let retried = v1::jobs::retry(app, caller, job).await?;
            (!retried.retried).then(|| unchanged(retried.state)).flatten()
        }
        Action::Cancel => {
            let cancelled = v1::jobs::cancel(app, caller, job).await?;
            matches!(cancelled.state, State::Completed | State::Failed)
                .then(|| unchanged(cancelled.state))
                .flatten()
        }
        Action::Remove => {
            v1::jobs::remove(app, caller, job).await?;
            None
        }
        Action::Priority => {
            let set = v1::jobs::prioritize(app, caller, job, priority.unwrap_or_default()).await?;
            (!set.changed && set.state.is_final()).then(|| unchanged(set.state)).flatten()
        }
    })
}

fn confirm(visit: &Visit, action: Action, warning: &str, jobs: &[JobPath], back: &str) -> Response {
    let what = match action {
        Action::Remove => "Remove",
        _ => "Cancel",
    };
    let title = format!("{what} {}?", count_of(jobs.len(), "job"));
    let main = html! {
        h1 { (title) }
        p.condition.warn { (warning) }
        ul.plain { @for job in jobs { li { bdi { (job.job_type) } " " a href=(job_link(&job.job_type, &job.id)) { bdi { (job.id) } } } } }
        form.actions method="post" action="/ui/jobs/act" {
            input type="hidden" name="action" value=(action.name());
            input type="hidden" name="back" value=(back);
            input type="hidden" name="confirmed" value="1";
            @for JobPath { job_type, id } in jobs {
                input type="hidden" name="job" value=(Cursor { job_type: job_type.clone(), id: id.clone() }.text());
            }
            button.danger type="submit" { (what) " " (count_of(jobs.len(), "job")) }
            a.button href=(back) { "Back" }
        }
    };
    layout::page(&visit.shell, &title, main)
}

fn not_done<'a>(
    visit: &Visit,
    action: Action,
    results: impl Iterator<Item = (&'a JobPath, &'a Result<Option<String>>)>,
    failed: usize,
    back: &str,
) -> Response {
    let title = format!("Not done for {}", count_of(failed, "job"));
    let main = html! {
        h1 { (title) }
        div.scroll tabindex="0" role="region" aria-label="Results" {
            table {
                thead { tr { th scope="col" { "Job" } th scope="col" { "Type" } th scope="col" { "Result" } } }
                tbody {
                    @for (job, result) in results {
                        tr {
                            th.id scope="row" { a href=(job_link(&job.job_type, &job.id)) { bdi { (job.id) } } }
                            td { bdi { (job.job_type) } }
                            td {
                                @match result {
                                    Ok(None) => { (action.done()) "." }
                                    Ok(Some(why)) => { "Not done: " (why) "." }
                                    Err(problem) => { "Not done. " (sentence(&problem.reason)) " " (sentence(&problem.hint)) }
                                }
                            }
                        }
                    }
                }
            }
        }
        p { a.button href=(back) { "Back" } }
    };
    layout::page(&visit.shell, &title, main)
}
