//! The form that adds one job, runs one again with changes, or edits one. It sends what `POST /v1/jobs/{type}` or `PATCH` gets, to the same function.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::value::RawValue;
use turnwise_api as v1;
use turnwise_api::edit::Match;
use turnwise_api::{JobPath, V1Error};
use turnwise_protocol::json::check_options;
use turnwise_protocol::{
    AddJob, Added, EditJob, IfExists, Job, MAX_DELAY_MS, MAX_SHOWN_OPTIONS_BYTES, NewJob, names,
};
use turnwise_queue::trace::Traceparent;

use super::json::{compact, pretty};
use super::parts::{field, hidden};
use super::problem::{Problem, Result, sentence, with_status};
use super::redirect::redirect;
use super::visit::{Fields, Visit, job_link, link};
use super::{jobs, layout};

const PATH: &str = "/ui/jobs/new";
/// The fields with a place for what is wrong with them.
const FIELDS: [&str; 9] =
    ["type", "task", "id", "tenant", "tags", "options", "priority", "delay_s", "max_attempts"];

/// The form of a job that runs again with changes.
pub(super) fn again_link(job_type: &str, id: &str) -> String {
    link(PATH, &[("again", Some("1")), ("type", Some(job_type)), ("id", Some(id))])
}

/// The form of a job that is edited.
pub(super) fn edit_link(job_type: &str, id: &str) -> String {
    link(PATH, &[("edit", Some("1")), ("type", Some(job_type)), ("id", Some(id))])
}

/// A job that runs again or is edited, and its options if all of them may be shown.
struct Again {
    job: Job,
    is_edit: bool,
    options: Option<Box<RawValue>>,
}

impl Again {
    /// The job that the fields name, if they ask for one to run again, or to be edited.
    async fn of(visit: &Visit, fields: &Fields) -> Result<Option<Again>> {
        let is_edit = fields.get("edit").is_some();
        if !is_edit && fields.get("again").is_none() {
            return Ok(None);
        }
        let (job_type, id) = (fields.get("type").unwrap_or_default(), fields.get("id").unwrap_or_default());
        names::check_type(job_type)?;
        names::check_id(id)?;
        let (app, caller) = (&visit.app, visit.caller());
        let job = v1::jobs::find(app, caller, job_type, id).await?;
        let job = job.ok_or_else(|| V1Error::no_job(job_type, id))?;
        if !caller.writes(&job.tenant) {
            return Err(V1Error::read_only(&job.tenant).into());
        }
        let path = JobPath { job_type: job_type.to_owned(), id: id.to_owned() };
        let options = v1::output::whole_options(app, caller, &path).await?;
        let options = options.filter(|options| options.get().len() <= MAX_SHOWN_OPTIONS_BYTES);
        Ok(Some(Again { job, is_edit, options }))
    }

    /// Whether these are other options than those that the form had: what was not changed is kept, with the locks that the job has.
    fn changes(&self, options: &RawValue) -> bool {
        self.options.as_ref().is_none_or(|old| compact(old.get()) != options.get())
    }

    /// The job's values as the fields of the form. What the form leaves out stays as it is, and so the limit of attempts is
    /// not filled in: it may be that of the type.
    fn fields(&self) -> Fields {
        let job = &self.job;
        let options = self.options.as_ref().map(|options| pretty(options.get()));
        Fields::of([
            ("type", Some(job.job_type.clone())),
            ("id", Some(job.id.clone())),
            ("task", job.task.clone()),
            ("tenant", Some(job.tenant.clone())),
            ("tags", Some(job.tags.join(" "))),
            ("priority", Some(job.priority.to_string())),
            ("options", options.and_then(|(text, is_all)| is_all.then_some(text))),
        ])
    }
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    match Again::of(&visit, &visit.query).await? {
        Some(Again { job, is_edit: true, .. }) if job.state.is_final() => {
            Err(Problem::bad("the job has ended", "run it again with changes"))
        }
        Some(again) if !again.is_edit && !again.job.state.is_final() => {
            Err(Problem::bad("the job has not ended", "wait for its end, or cancel it first"))
        }
        Some(again) => form(&visit, &again.fields(), Some(&again), None).await,
        None => form(&visit, &visit.query, None, None).await,
    }
}

/// Adds the job, or shows the form again with what is wrong.
pub(super) async fn add(visit: Visit) -> Result<Response> {
    let fields = &visit.form;
    let again = Again::of(&visit, fields).await?;
    let sent = match &again {
        Some(again) if again.is_edit => edit(&visit, again).await,
        _ => send(&visit, again.as_ref()).await,
    };
    match sent {
        Ok(there) => Ok(redirect(&there)),
        Err(problem) => {
            let problem = problem.correctable()?;
            form(&visit, fields, again.as_ref(), Some(&problem)).await
        }
    }
}

/// Returns the page of the job.
async fn send(visit: &Visit, again: Option<&Again>) -> Result<String> {
    let mut job = request(&visit.form)?;
    // A form that is sent twice adds one job: its page has chosen the id.
    let chosen = job.id.is_none().then(|| visit.form.get("made").map(str::to_owned)).flatten();
    let is_chosen = chosen.is_some();
    job.id = job.id.or(chosen);
    if let Some(again) = again {
        job.if_exists = IfExists::Again;
        job.options = job.options.filter(|options| again.changes(options));
    }
    let added = v1::add::one(&visit.app, visit.caller(), job, Traceparent::Unknown).await?;
    let did = if again.is_some() { "rerun" } else { "added" };
    match added.added {
        Added::Exists if !is_chosen => Err(Problem::bad(
            "id: a job of this type and id exists, and nothing was added",
            "choose another id, or leave it out",
        )),
        Added::Found => Err(Problem::bad(
            "unique: another job has the unique key of this one, and nothing was added",
            "wait until that job has given the key up, or cancel it",
        )),
        _ => Ok(format!("{}&did={did}", job_link(&added.job_type, &added.id))),
    }
}

/// Edits a job in the version that the form shows. Returns its page.
async fn edit(visit: &Visit, of: &Again) -> Result<String> {
    let (fields, Again { job, .. }) = (&visit.form, of);
    let priority = fields.number("priority")?.filter(|priority| *priority != job.priority);
    let options = fields.get("options").filter(|text| !text.trim().is_empty()).map(options).transpose()?;
    let request = EditJob {
        options: options.filter(|options| of.changes(options)).map(Some),
        priority: priority.map(Some),
        delay_ms: delay_ms(fields)?.map(Some),
        max_attempts: fields.number("max_attempts")?.map(Some),
        ..EditJob::default()
    };
    let versions = Match::OneOf(fields.get("version").map(str::to_owned).into_iter().collect());
    let path = JobPath { job_type: job.job_type.clone(), id: job.id.clone() };
    v1::edit::change(&visit.app, visit.caller(), &path, request, versions).await?;
    Ok(format!("{}&did=edited", job_link(&job.job_type, &job.id)))
}

/// The request that the form describes.
fn request(fields: &Fields) -> Result<NewJob> {
    let stated =
        |name: &str| fields.get(name).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    let job_type =
        stated("type").ok_or_else(|| Problem::bad("type: is missing", "name the type of the job"))?;
    let options = stated("options").map(|text| options(&text)).transpose()?;
    // The id of a job that exists may begin with a space.
    let id = match fields.get("again") {
        Some(_) => fields.get("id").map(str::to_owned),
        None => stated("id"),
    };
    let job: AddJob = AddJob {
        id,
        task: stated("task"),
        tenant: stated("tenant"),
        tags: stated("tags")
            .map(|tags| tags.split([' ', ',']).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()),
        options,
        priority: fields.number("priority")?,
        delay_ms: delay_ms(fields)?,
        max_attempts: fields.number("max_attempts")?,
        ..AddJob::default()
    };
    Ok(NewJob::new(job_type, job))
}

/// The delay, which people state in seconds.
fn delay_ms(fields: &Fields) -> Result<Option<u64>> {
    const MAX_S: u64 = MAX_DELAY_MS / 1_000;
    match fields.number::<u64>("delay_s")? {
        Some(s) if s > MAX_S => {
            Err(Problem::bad(format!("delay_s: must be from 0 to {MAX_S} (ten years)"), "correct the field"))
        }
        s => Ok(s.map(|s| s * 1_000)),
    }
}

/// Options as they are typed. An error names the line and the column.
pub(super) fn options(text: &str) -> Result<Box<RawValue>> {
    // Browsers send both.
    let text = text.replace("\r\n", "\n");
    if let Err(error) = check_options(&text) {
        let (line, column) = (error.line(), error.column());
        let (mistake, place) = (error.to_string(), format!(" at line {line} column {column}"));
        let mistake = mistake.strip_suffix(&place).unwrap_or(&mistake);
        let reason = format!("options: not JSON in line {line}, column {column}: {mistake}");
        return Err(Problem::bad(reason, "what was typed is still there"));
    }
    RawValue::from_string(compact(&text)).map_err(|error| Problem::internal(&error))
}

async fn form(
    visit: &Visit,
    fields: &Fields,
    again: Option<&Again>,
    problem: Option<&Problem>,
) -> Result<Response> {
    let types = jobs::types(visit).await?;
    let is_edit = again.is_some_and(|again| again.is_edit);
    let (title, button) = match again {
        Some(_) if is_edit => ("Edit a job", "Save"),
        Some(_) => ("Run again with changes", "Run again"),
        None => ("Add a job", "Add the job"),
    };
    let made = fields.get("made").map_or_else(|| visit.app.new_uuid(), str::to_owned);
    // The form is then that of the job as it is now.
    let is_stale = problem.is_some_and(|problem| problem.status == StatusCode::PRECONDITION_FAILED);
    let is_beside = problem.is_some_and(|problem| FIELDS.iter().any(|name| problem.is_about(name)));
    let back = match again {
        Some(Again { job, .. }) => job_link(&job.job_type, &job.id),
        None => link("/ui/jobs", &[("type", fields.get("type"))]),
    };
    let main = html! {
        p.crumbs { a href="/ui/jobs" { "Jobs" } }
        h1 { (title) }
        @if let Some(Again { job, .. }) = again {
            p.lead { bdi { (job.job_type) } " " a href=(back) { bdi { (job.id) } } }
            p.quiet { "The job keeps what is left empty here, and all that this form does not have." @if !is_edit { " Its attempts count from the start." } }
        }
        @match problem {
            Some(_) if is_beside => p.problem role="alert" { (if is_edit { "Nothing was changed." } else { "Nothing was added." }) " Correct the field that is marked below." },
            Some(problem) => (problem.alert()),
            None => {}
        }
        form.fields method="post" action=(PATH) {
            @match again {
                Some(Again { job, .. }) => {
                    (hidden(if is_edit { "edit" } else { "again" }, "1")) (hidden("type", &job.job_type)) (hidden("id", &job.id))
                    @if is_edit { (hidden("version", fields.get("version").filter(|_| !is_stale).or(job.version.as_deref()).unwrap_or_default())) }
                }
                None => (hidden("made", &made)),
            }
            (what(fields, again, &types, problem))
            (when(fields, again, problem))
            div.actions { button.main type="submit" { (button) } a.button href=(back) { "Back" } }
        }
    };
    Ok(with_status(layout::page(&visit.shell, title, main), problem))
}

/// What is wrong with one of these fields, without its name: it is shown beside it.
fn about(problem: Option<&Problem>, names: &[&str]) -> Option<String> {
    let problem = problem.filter(|problem| names.iter().any(|name| problem.is_about(name)))?;
    let text = problem.text();
    Some(text.split_once(": ").map_or_else(|| text.clone(), |(_, rest)| sentence(rest)))
}

/// The fields that tell what the job is.
fn what(fields: &Fields, again: Option<&Again>, types: &[String], problem: Option<&Problem>) -> Markup {
    let value = |name: &str| fields.get(name);
    let is_hidden = again.is_some_and(|again| again.options.is_none());
    let is_edit = again.is_some_and(|again| again.is_edit);
    html! {
        fieldset {
            legend { "What it is" }
            @if again.is_none() {
                (field("type", "Type", html! {
                    input id="type" name="type" value=[value("type")] list="types" required maxlength="64" autocomplete="off";
                    datalist id="types" { @for of in types { option value=(of) {} } }
                }, html! { "Its workers are those that are registered for this type." }, about(problem, &["type"]).as_deref()))
            }
            @if !is_edit { (field("task", "Task", html! { input id="task" name="task" value=[value("task")] maxlength="64" autocomplete="off"; },
                html! { "What it does within its type. Only workers get it that know the task, or that state no tasks." }, about(problem, &["task"]).as_deref())) }
            @if again.is_none() {
                (field("id", "Id", html! { input id="id" name="id" value=[value("id")] maxlength="512" autocomplete="off"; },
                    html! { "A name for it, unique within its type. Without one, the server chooses a random id." }, about(problem, &["id"]).as_deref()))
            }
            @if !is_edit { (field("tenant", "Tenant", html! { input id="tenant" name="tenant" value=[value("tenant")] maxlength="256" autocomplete="off"; },
                html! { "Who is charged for it." @if again.is_none() { " Without one, it is yours if you have one tenant, and otherwise " code { "default" } "." } }, about(problem, &["tenant"]).as_deref())) }
            @if !is_edit { (field("tags", "Tags", html! { input id="tags" name="tags" value=[value("tags")] maxlength="1100" autocomplete="off"; },
                html! { "Words by which it is found, with spaces between them: at most 16." }, about(problem, &["tags"]).as_deref())) }
            (field("options", "Options", html! {
                textarea id="options" name="options" rows="10" spellcheck="false" placeholder="{\"to\": \"jan@example.org\"}" { (value("options").unwrap_or_default()) }
            }, html! {
                "The input of its handler, in JSON."
                @if is_hidden { " Its present options are not shown: some are hidden, or they are large. The job keeps them, unless you enter all of them here." }
            }, about(problem, &["options"]).as_deref()))
        }
    }
}

/// The fields that tell when it runs, and how often.
fn when(fields: &Fields, again: Option<&Again>, problem: Option<&Problem>) -> Markup {
    let value = |name: &str| fields.get(name);
    let most = again.and_then(|again| again.job.max_attempts);
    html! {
        fieldset {
            legend { "When it runs" }
            div.pair {
                (field("priority", "Priority", html! { input id="priority" type="number" name="priority" min="-20" max="19" value=[value("priority")] placeholder="0"; },
                    html! { "−20 to 19. Of a tenant's jobs, those with lower numbers start first." }, about(problem, &["priority"]).as_deref()))
                (field("delay_s", "Delay in seconds", html! { input id="delay_s" type="number" name="delay_s" min="0" max=(MAX_DELAY_MS / 1_000) value=[value("delay_s")] placeholder="0"; },
                    html! { "It does not start earlier." }, about(problem, &["delay_s"]).as_deref()))
            }
            (field("max_attempts", "Most attempts", html! { input id="max_attempts" type="number" name="max_attempts" min="0" max="1000000" value=[value("max_attempts")] placeholder=[most]; },
                html! { "A crash of the last one fails it permanently. 0 retries it without limit." @if again.is_none() { " Without a number, the limit of its type applies." } },
                about(problem, &["max_attempts"]).as_deref()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_keep_their_numbers_and_a_mistake_has_its_line_and_column() {
        assert_eq!(options("{\r\n \"b\": 1.50,\r\n \"a\": 1e2}").unwrap().get(), r#"{"b":1.50,"a":1e2}"#);
        for (text, place) in [
            ("{\r\n  \"a\": 1\r\n  \"b\": 2\r\n}", "line 3, column 3"),
            ("{\"a\": [1, 2}", "line 1, column 12"),
            ("hello", "line 1, column 1"),
            ("{} {}", "line 1, column 4"),
            ("1e999", "line 1, column 5"),
        ] {
            let problem = options(text).unwrap_err();
            assert!(problem.is_about("options") && problem.text().contains(place), "{}", problem.text());
        }
    }
}
