//! Filters and limits: what each holds back now, and a form with a preview of what a new one would match.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use turnwise_api as v1;
use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_policy::eligibility::condition::Condition;
use turnwise_policy::eligibility::rate::{self, Rate};
use turnwise_protocol::{Action, Filter, PutFilter, Rate as ApiRate};
use turnwise_queue::{concurrency, filters as rows, jobs};

use super::format::{count, number, time};
use super::parts::Column::{Actions, Number, Text};
use super::parts::{Question, field, head, hidden};
use super::problem::{Problem, Result, with_status};
use super::redirect::redirect;
use super::visit::{Fields, Visit, job_link, link};
use super::{layout, parts};

const PATH: &str = "/ui/filters";
/// Maximum number of paused jobs, and of limited jobs of each filter, that are counted.
const MAX_COUNTED: usize = 10_000;
/// Maximum number of jobs that a preview looks at.
const MAX_LOOKED_AT: usize = 2_000;
/// Number of jobs that one transaction of a preview reads.
const BATCH: usize = 100;
/// Maximum number of types that a preview looks at.
const MAX_TYPES: usize = 100;
/// Number of matching jobs that a preview shows.
const SHOWN: usize = 10;

/// The actions, with what they do.
const ACTIONS: [(Action, &str); 6] = [
    (Action::Pause, "Pause: they do not start while this filter exists"),
    (Action::Concurrency, "Limit: at most a number of them run at the same time"),
    (Action::Rate, "Rate: at most a number of them start per period"),
    (Action::Reject, "Reject: they are cancelled"),
    (Action::Accept, "Accept: they may run, whatever later filters say"),
    (Action::Continue, "Continue: nothing, the next filters decide"),
];

pub(super) async fn page(visit: Visit) -> Result<Response> {
    show(&visit, &visit.query, None, None).await
}

/// What a filter holds back now.
struct Held {
    paused: BTreeMap<String, usize>,
    more_paused: bool,
    /// Of each filter with a limit: how many of its jobs run, and how many wait.
    limited: BTreeMap<String, (usize, usize)>,
}

async fn held(visit: &Visit, filters: &[Filter]) -> Result<Held> {
    let (app, mut limited) = (&visit.app, BTreeMap::new());
    let tx = app.store.begin().await?;
    let (paused, more_paused) = rows::held(&tx, &app.keys, MAX_COUNTED).await?;
    for filter in filters.iter().filter(|filter| filter.action == Action::Concurrency) {
        let bucket = Bucket::Filter(filter.id.clone());
        let running = concurrency::count(&tx, &app.keys, &bucket).await?;
        let waiting = concurrency::waiting(&tx, &app.keys, &bucket, MAX_COUNTED).await?;
        limited.insert(filter.id.clone(), (running, waiting));
    }
    Ok(Held { paused, more_paused, limited })
}

async fn show(
    visit: &Visit,
    fields: &Fields,
    problem: Option<&Problem>,
    preview: Option<&Preview>,
) -> Result<Response> {
    let filters = v1::filters::filters(&visit.app).await?.filters;
    let held = held(visit, &filters).await?;
    let edited = fields.get("edit").and_then(|id| filters.iter().find(|filter| filter.id == id));
    let main = html! {
        h1 { "Filters and limits" }
        (parts::done(visit.query.get("did")))
        p.quiet { "Filters decide which waiting jobs may start. They are evaluated in this order, and the first one whose condition holds decides. A job that no filter decides about may run." }
        @if filters.is_empty() { p.empty { "There are no filters: every job may start." } } @else { (table(&filters, &held)) }
        (form(fields, edited, problem, preview))
    };
    Ok(with_status(layout::page(&visit.shell, "Filters and limits", main), problem))
}

fn table(filters: &[Filter], held: &Held) -> Markup {
    let rows = html! {
        @for filter in filters {
            tr data-k=(filter.id) {
                th.id scope="row" { a href=(link(PATH, &[("edit", Some(&filter.id))])) { bdi { (filter.id) } } }
                td.n { (filter.priority) }
                td { (filter.action.as_str()) @if let Some(limit) = filter.limit { " to " (number(u64::from(limit))) }
                    @if let Some(rate) = &filter.rate { " " (written(rate)) @if let Some(key) = &rate.key { " for each " code { bdi { (key) } } } } }
                td {
                    @if filter.when.is_empty() { span.quiet { "all jobs" } } @else { code { bdi { (filter.when) } } }
                    @if filter.watermark_us > 0 { div.quiet { "added since " (time(filter.watermark_us)) } }
                }
                td { (holds(filter, held)) }
                td { bdi { (filter.note.as_deref().unwrap_or_default()) } }
                td {
                    form.inline method="post" action=(PATH) {
                        (hidden("id", &filter.id))
                        button.danger name="do" value="remove" { "Remove…" }
                    }
                }
            }
        }
    };
    html! {
        (parts::table("Filters", head(&[
            Text("Filter"), Number("Priority"), Text("Action"), Text("Condition"), Text("Holds back now"), Text("Note"), Actions,
        ]), rows))
    }
}

fn holds(filter: &Filter, held: &Held) -> Markup {
    html! {
        @match (filter.action, held.limited.get(&filter.id)) {
            (Action::Pause, _) => {
                @let paused = held.paused.get(&filter.id).copied().unwrap_or_default();
                (count(paused, held.more_paused)) " paused"
            }
            (_, Some((running, waiting))) => { (count(*waiting, *waiting >= MAX_COUNTED)) " wait, " (number(*running as u64)) " run" }
            _ => span.quiet { "–" },
        }
    }
}

fn form(
    fields: &Fields,
    edited: Option<&Filter>,
    problem: Option<&Problem>,
    preview: Option<&Preview>,
) -> Markup {
    let value = |name: &str, of: fn(&Filter) -> Option<String>| {
        fields.get(name).map(str::to_owned).or_else(|| edited.and_then(of))
    };
    let action = fields.get("action").or(edited.map(|filter| filter.action.as_str()));
    let about = |name: &str| problem.filter(|problem| problem.is_about(name)).map(Problem::text);
    let shown_beside = ["id", "filter", "when", "limit", "rate", "priority", "note"]
        .into_iter()
        .any(|name| about(name).is_some());
    html! {
        section id="form" {
            h2 { @match edited { Some(filter) => { "Change " bdi { (filter.id) } }, None => "Add a filter" } }
            @if let Some(problem) = problem.filter(|_| !shown_beside) { (problem.alert()) }
            form.fields method="post" action=(PATH) {
                (field("id", "Name", html! { input id="id" name="id" value=[value("id", |filter| Some(filter.id.clone()))] required maxlength="128"; },
                    html! { "A filter with this name is replaced." }, about("id").or(about("filter")).as_deref()))
                (field("action", "What it does with the jobs", html! {
                    select id="action" name="action" { @for (of, title) in ACTIONS { option value=(of.as_str()) selected[action == Some(of.as_str())] { (title) } } }
                }, html! { "Running jobs continue in any case." }, None))
                (field("when", "Condition", html! { input id="when" name="when" value=[value("when", |filter| Some(filter.when.clone()))] maxlength="4000" placeholder="type = mail and tenant ~ \"^test-\""; },
                    html! { "Compares " code { "id" } ", " code { "type" } ", " code { "task" } ", " code { "tenant" } ", " code { "user" } ", " code { "reason" } " and " code { "options.NAME" } " with "
                        code { "= != < <= > >= ~ !~" } ", combined with " code { "and" } ", " code { "or" } ", " code { "not" } " and parentheses. Empty: all jobs." }, about("when").as_deref()))
                div.pair {
                    (field("limit", "Limit", html! { input id="limit" type="number" name="limit" min="1" max="1000" value=[value("limit", |filter| filter.limit.map(|limit| limit.to_string()))]; },
                        html! { "For the actions Limit and Rate: how many run at the same time." }, about("limit").as_deref()))
                    (field("priority", "Priority", html! { input id="priority" type="number" name="priority" min="-1000" max="1000" value=[value("priority", |filter| Some(filter.priority.to_string()))] placeholder="0"; },
                        html! { "Filters with lower numbers are evaluated first." }, about("priority").as_deref()))
                }
                div.pair {
                    (field("rate", "Rate", html! { input id="rate" name="rate" placeholder="100/60s" value=[value("rate", |filter| filter.rate.as_ref().map(written))]; },
                        html! { "For the action Rate: how many start per period (" code { "ms" } ", " code { "s" } ", " code { "min" } ", " code { "h" } " or " code { "d" } ")." }, about("rate").as_deref()))
                    (field("key", "Rate per", html! { input id="key" name="key" maxlength="200" placeholder="options.customer" value=[value("key", |filter| filter.rate.as_ref()?.key.clone())]; },
                        html! { "An option, each of whose values has a rate of its own. Empty: one rate for all." }, None))
                }
                @if let Some(weight) = value("weight", |filter| Some(filter.rate.as_ref()?.weight.to_string())) { (hidden("weight", &weight)) }
                @if let Some(algorithm) = value("algorithm", |filter| Some(filter.rate.as_ref()?.algorithm.as_str().to_owned())) { (hidden("algorithm", &algorithm)) }
                (field("note", "Note", html! { input id="note" name="note" value=[value("note", |filter| filter.note.clone())] maxlength="500"; },
                    html! { "Why it exists, for people." }, about("note").as_deref()))
                @if let Some(filter) = edited { input type="hidden" name="watermark_us" value=(filter.watermark_us); }
                @else if let Some(watermark) = fields.get("watermark_us") { input type="hidden" name="watermark_us" value=(watermark); }
                @if let Some(preview) = preview { (preview.shown()) }
                div.actions {
                    button.main[preview.is_none()] name="do" value="preview" { "Preview" }
                    button.main[preview.is_some()] name="do" value="save" { "Save" }
                    a.button href=(PATH) { "Reset" }
                }
            }
        }
    }
}

/// What a condition matches now.
#[derive(Default)]
struct Preview {
    looked_at: usize,
    more: bool,
    waiting: usize,
    running: usize,
    first: Vec<(String, String)>,
}

impl Preview {
    fn shown(&self) -> Markup {
        html! {
            div.condition.warn role="status" {
                p {
                    strong { (count(self.waiting, self.more)) " waiting and " (count(self.running, self.more)) " running" }
                    " of " (count(self.looked_at, self.more)) " jobs match. "
                    @if self.more { "Only these were looked at; there are more. " }
                    "Other filters may decide earlier."
                }
                @if !self.first.is_empty() {
                    p { "Among them: "
                        @for (n, (job_type, id)) in self.first.iter().enumerate() {
                            @if n > 0 { ", " }
                            a href=(job_link(job_type, id)) { bdi { (id) } }
                        }
                    }
                }
            }
        }
    }
}

/// What the filter of the form matches.
async fn preview(visit: &Visit) -> Result<Preview> {
    let (app, PutFilter { when, watermark_us, .. }) = (&visit.app, put(&visit.form)?);
    let condition = Condition::parse(&when)
        .map_err(|mistake| Problem::bad(format!("when: {mistake}"), "correct the condition"))?;
    let mut found = Preview::default();
    let tx = app.store.begin().await?;
    let types = jobs::types_after(&tx, &app.keys, None, MAX_TYPES).await?;
    drop(tx);
    for job_type in types {
        let mut after: Option<String> = None;
        loop {
            if found.looked_at >= MAX_LOOKED_AT {
                found.more = true;
                return Ok(found);
            }
            let tx = app.store.begin().await?;
            let page = jobs::list(&tx, &app.keys, &job_type, after.as_deref(), BATCH).await?;
            let last = page.len() < BATCH;
            after = page.last().map(|job| job.id.clone());
            found.looked_at += page.len();
            for job in page.iter().filter(|job| !job.state().is_final() && job.added_us >= watermark_us) {
                if !turnwise_worker::filter_holds(&tx, &app.keys, &condition, job).await? {
                    continue;
                }
                match job.state().is_claimed() {
                    true => found.running += 1,
                    false => found.waiting += 1,
                }
                if found.first.len() < SHOWN {
                    found.first.push((job.job_type.clone(), job.id.clone()));
                }
            }
            if last {
                break;
            }
        }
    }
    Ok(found)
}

/// A rate as a form has it.
fn written(rate: &ApiRate) -> String {
    Rate { weight: rate.weight, ..Rate::new(rate.at_most, rate.per_ms) }.to_string()
}

/// The rate that a form describes. What a form has no field for stays as it is.
fn rate(fields: &Fields) -> Result<Option<ApiRate>> {
    let Some(stated) = fields.get("rate").filter(|stated| !stated.is_empty()) else { return Ok(None) };
    let rate =
        rate::parse(stated).map_err(|problem| Problem::bad(format!("rate: {problem}"), "write 100/60s"))?;
    let key = fields.get("key").filter(|key| !key.is_empty()).map(str::to_owned);
    let (weight, algorithm) =
        (fields.number("weight")?.unwrap_or(1), fields.word("algorithm")?.unwrap_or_default());
    Ok(Some(ApiRate { at_most: rate.at_most, per_ms: rate.per_ms, key, weight, algorithm }))
}

/// The filter that a form describes.
fn put(fields: &Fields) -> Result<PutFilter> {
    Ok(PutFilter {
        action: fields.word("action")?.unwrap_or(Action::Pause),
        limit: fields.number("limit")?,
        rate: rate(fields)?,
        when: fields.get("when").unwrap_or_default().to_owned(),
        priority: fields.number("priority")?.unwrap_or_default(),
        watermark_us: fields.number("watermark_us")?.unwrap_or_default(),
        note: fields.get("note").map(str::to_owned),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Do {
    Preview,
    Save,
    Remove,
}

/// Previews, saves or removes a filter.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let id = form.get("id").unwrap_or_default().to_owned();
    let done = match form.action::<Do>("do")? {
        Do::Remove if form.get("confirmed").is_some() => {
            v1::filters::remove(&visit.app, &id).await?;
            return Ok(redirect(&format!("{PATH}?did=removed")));
        }
        Do::Remove => {
            let question = Question {
                title: "Remove this filter?",
                subject: html! { bdi { (id) } },
                effect: "Jobs that it has paused or limited return to their old places in the queue, and may start at once.",
                button: "Remove the filter",
                action: PATH,
                fields: html! { (hidden("id", &id)) (hidden("do", "remove")) },
                back: PATH,
            };
            return Ok(question.page(&visit.shell));
        }
        Do::Save => match save(&visit, &id).await {
            Ok(()) => return Ok(redirect(&format!("{PATH}?did=saved"))),
            Err(problem) => Err(problem),
        },
        Do::Preview => preview(&visit).await,
    };
    match done {
        Ok(preview) => show(&visit, form, None, Some(&preview)).await,
        Err(problem) => show(&visit, form, Some(&problem.correctable()?), None).await,
    }
}

async fn save(visit: &Visit, id: &str) -> Result<()> {
    v1::filters::check_name(id)?;
    let rule = v1::filters::rule(id.to_owned(), put(&visit.form)?)?;
    v1::filters::write(&visit.app, &rule).await?;
    Ok(())
}
