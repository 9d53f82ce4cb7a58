//! One replication: its state with the reason, its numbers, its history, its document, and what can be done with it.

use axum::http::{HeaderMap, Method};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Map, Value};
use turnwise_api as v1;
use turnwise_api::{JobPath, V1Error};
use turnwise_couch::{Call, delete_document, is_scheduled, shown_document, write_document};
use turnwise_protocol::Job;
use turnwise_protocol::bulk::quoted;
use turnwise_queue::jobs;
use turnwise_replicator::doc_processor::{self, Nodes};
use turnwise_replicator::documents::{Document, Draft, read};
use turnwise_replicator::{JOB_TYPE, Stats};
use turnwise_web::error::ApiError;
use turnwise_web::request::Params;

use super::format::{ago, moment, number, text, time, word};
use super::parts::{Question, hidden};
use super::problem::{Problem, Result};
use super::redirect::redirect;
use super::replications::{PATH, Row, document_link, state};
use super::visit::{Fields, Visit, link};
use super::{layout, parts};

/// Longest document that a page shows, in bytes of JSON.
const MAX_SHOWN_BYTES: usize = 64 << 10;
/// Maximum number of documents that one action retries.
const MAX_RETRIED: usize = 2_000;

/// Which replication a query or a form names.
#[derive(Clone)]
enum Which {
    Document { db: String, id: String },
    Request { job: String },
}

impl Which {
    fn of(fields: &Fields) -> Result<Which> {
        match (fields.get("db"), fields.get("doc"), fields.get("job")) {
            (Some(db), Some(id), _) => Ok(Which::Document { db: db.to_owned(), id: id.to_owned() }),
            (_, _, Some(job)) => Ok(Which::Request { job: job.to_owned() }),
            _ => Err(Problem::bad("no replication is named", "choose one in the list of replications")),
        }
    }

    fn link(&self) -> String {
        match self {
            Which::Document { db, id } => document_link(db, id),
            Which::Request { job } => link("/ui/replication", &[("job", Some(job))]),
        }
    }

    fn hidden(&self) -> Markup {
        html! {
            @match self {
                Which::Document { db, id } => { (hidden("db", db)) (hidden("doc", id)) }
                Which::Request { job } => (hidden("job", job)),
            }
        }
    }
}

/// A request of CouchDB's API by the same sender.
pub(super) fn call(visit: &Visit, method: Method, params: Params) -> Call {
    Call {
        method,
        params,
        headers: HeaderMap::new(),
        caller: visit.caller().clone(),
        peer: visit.peer.clone(),
    }
}

/// Refuses a caller who may not do this with a document of the database, as CouchDB's API does.
pub(super) fn check(visit: &Visit, method: Method, db: &str, id: &str) -> Result<()> {
    Ok(call(visit, method, Params::default()).check(db, Some(id))?)
}

/// What a page shows.
struct Found {
    row: Row,
    job: Option<Job>,
    document: Option<Document>,
    /// Why it is in its state.
    sentence: Option<String>,
}

async fn find(visit: &Visit, which: &Which) -> Result<Found> {
    let (app, caller, now_us) = (&visit.app, visit.caller(), visit.app.now_us());
    match which {
        Which::Document { db, id } => {
            check(visit, Method::GET, db, id)?;
            let why = v1::why::document(app, caller, db, id).await?;
            let tx = app.store.begin().await?;
            let status = doc_processor::status(&tx, &app.keys, &mut Nodes::default(), db, id, now_us).await;
            let status = status.map_err(ApiError::from)?.ok_or_else(|| ApiError::not_found("missing"))?;
            let document = read::get(&tx, &app.keys, db, id, None).await.map_err(ApiError::from)?;
            let row = Row::of_document(status);
            let job = match &row.job {
                Some(job) => v1::jobs::find(app, caller, JOB_TYPE, job).await?,
                None => None,
            };
            Ok(Found { row, job, document: Some(document), sentence: Some(why.sentence) })
        }
        Which::Request { job: id } => {
            let missing = || V1Error::no_job(JOB_TYPE, id);
            let tx = app.store.begin().await?;
            let job = jobs::get(&tx, &app.keys, JOB_TYPE, id).await?;
            let job = job.filter(|job| is_scheduled(caller, job)).ok_or_else(missing)?;
            let rules = app.rules();
            let why = turnwise_explain::waits(&app.reader(&tx, &rules), caller, &job).await?;
            let row = Row::of_request(&tx, &app.keys, &mut Nodes::default(), job, now_us).await?;
            let job = v1::jobs::find(app, caller, JOB_TYPE, id).await?;
            Ok(Found {
                row: row.ok_or_else(missing)?,
                job,
                document: None,
                sentence: why.map(|(_, sentence)| sentence),
            })
        }
    }
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let which = Which::of(query)?;
    let Found { row, job, document, sentence } = find(&visit, &which).await?;
    let now_us = visit.app.now_us();
    let writes = match (&row.database, &job) {
        (Some(db), _) => visit.caller().writes(db),
        (None, Some(job)) => visit.caller().writes(&job.tenant),
        (None, None) => false,
    };
    let rev = document.as_ref().map(|document| document.head.rev.to_string());
    let main = html! {
        p.quiet { a href=(PATH) { "Replications" } @if let Some(db) = &row.database { " / " bdi { (db) } } }
        h1 { bdi { (row.id) } }
        (parts::done(query.get("did")))
        p.lead { (state(row.state)) @if let Some(sentence) = &sentence { " " (text(sentence)) } }
        @if let Some(error) = row.error.as_ref().filter(|error| sentence.as_ref().is_none_or(|sentence| !sentence.contains(*error))) {
            div.condition.bad {
                p { (text(error)) }
                @if row.errors > 1 { p { (number(u64::from(row.errors))) " errors in a row." } }
            }
        }
        @if writes { (actions(&visit, &which, &row, job.as_ref(), rev.as_deref())) }
        div.columns {
            section { h2 { "Facts" } (facts(&row, job.as_ref(), now_us)) }
            section { h2 { "Progress" } (progress(row.stats.as_ref())) }
        }
        @if let Some(job) = &job { (history(job)) }
        @if let Some(document) = document { (source_text(document)) }
    };
    Ok(layout::live(&visit.shell, &row.id, main))
}

fn facts(row: &Row, job: Option<&Job>, now_us: i64) -> Markup {
    html! {
        table.plain { tbody {
            tr { th scope="row" { "Source" } td { bdi.text { (row.source) } } }
            tr { th scope="row" { "Target" } td { bdi.text { (row.target) } } }
            @if let Some(db) = &row.database { tr { th scope="row" { "Database" } td { a href=(link(PATH, &[("db", Some(db))])) { bdi { (db) } } } } }
            tr { th scope="row" { "Changed" } td { (moment(&row.updated)) } }
            @if let Some(node) = &row.node { tr { th scope="row" { "Node" } td { bdi { (node) } } } }
            @if let Some(job) = job {
                tr { th scope="row" { "Job" } td { a href=(link("/ui/job", &[("type", Some(&job.job_type)), ("id", Some(&job.id))])) { bdi { (job.id) } } } }
                tr { th scope="row" { "Added" } td { (time(job.added_us)) } }
                @if let Some(next) = job.not_before_us { tr { th scope="row" { "Next try" } td { (ago(next, now_us)) } } }
                @if let Some(user) = &job.user { tr { th scope="row" { "User (stated)" } td { bdi { (user) } } } }
            }
        } }
    }
}

fn progress(stats: Option<&Stats>) -> Markup {
    let Some(stats) = stats else { return html! { p.empty { "It has reported no numbers yet." } } };
    let rows: [(&str, Option<u64>, &str); 6] = [
        ("Changes to copy", stats.changes_pending, "not copied yet, as the source reports them"),
        ("Revisions checked", Some(stats.revisions_checked), "in the source's changes"),
        ("Missing at the target", Some(stats.missing_revisions_found), "of those"),
        ("Documents read", Some(stats.docs_read), "from the source"),
        ("Documents written", Some(stats.docs_written), "to the target"),
        ("Documents refused", Some(stats.doc_write_failures), "by the target, and skipped"),
    ];
    html! {
        table.plain { tbody {
            @for (name, count, meaning) in rows {
                tr {
                    th scope="row" { (name) }
                    td.n { @match count { Some(count) => (number(count)), None => span.quiet { "unknown" } } }
                    td.quiet { (meaning) }
                }
            }
            @if stats.doc_read_failures > 0 {
                tr {
                    th scope="row" { "Documents unread" }
                    td.n { (number(stats.doc_read_failures)) }
                    td.quiet { "named by the source and not delivered: the copy is incomplete" }
                }
            }
            @if let Some(seq) = &stats.checkpointed_source_seq {
                tr { th scope="row" { "Checkpoint" } td colspan="2" { (text(&seq_text(seq))) } }
            }
            @if let Some(why) = &stats.source_rejects_checkpoints {
                tr { th scope="row" { "Only at the target" } td colspan="2" { (text(why)) } }
            }
        } }
    }
}

fn seq_text(seq: &impl serde::Serialize) -> String {
    match serde_json::to_value(seq) {
        Ok(Value::String(text)) => text,
        Ok(value) => value.to_string(),
        Err(_) => String::new(),
    }
}

fn history(job: &Job) -> Markup {
    html! {
        section {
            h2 { "History, newest first" }
            @if job.history.is_empty() { p.empty { "Nothing has happened yet." } } @else {
                table.plain { tbody {
                    @for event in &job.history {
                        tr {
                            td.when { (time(event.at_us)) }
                            th scope="row" { (word(event.kind)) }
                            td { @if let Some(reason) = &event.reason { (text(reason)) } }
                        }
                    }
                } }
            }
        }
    }
}

fn source_text(document: Document) -> Markup {
    let shown = serde_json::to_string_pretty(&shown_document(document, false)).unwrap_or_default();
    let end = shown.floor_char_boundary(MAX_SHOWN_BYTES);
    html! {
        section {
            h2 { "Document" }
            details { summary { "Show its JSON, without secrets" } pre tabindex="0" { (shown[..end]) @if end < shown.len() { "…" } } }
        }
    }
}

fn actions(visit: &Visit, which: &Which, row: &Row, job: Option<&Job>, rev: Option<&str>) -> Markup {
    let retry = row.state == "crashing";
    let again = matches!(row.state, "completed" | "failed") && rev.is_some();
    let condition = job.and_then(|job| Some(format!("id = {}", quoted(&job.id)?)));
    html! {
        form.actions method="post" action="/ui/replication" {
            (which.hidden())
            @if let Some(rev) = rev { input type="hidden" name="rev" value=(rev); }
            @if retry { button.main name="action" value="retry" { "Retry now" } }
            @if row.state == "error" && row.database.is_some() {
                button.main name="action" value="filters" title="Of all documents of this database that wait for their filter's code" { "Read the filters of this database again now" }
            }
            @if again { button.main name="action" value="again" { "Run again" } }
            @if let (Some(condition), true) = (condition, visit.caller().operates()) {
                a.button href=(link("/ui/filters", &[("action", Some("pause")), ("when", Some(&condition))])) { "Pause with a filter…" }
            }
            @match which {
                Which::Document { .. } => button.danger name="action" value="remove" { "Delete the document…" },
                Which::Request { .. } => button.danger name="action" value="remove" { "Cancel…" },
            }
        }
    }
}

/// Does what a form asks for, or asks for a confirmation first.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let which = Which::of(form)?;
    let did = |what: &str| redirect(&format!("{}&did={what}", which.link()));
    match form.get("action") {
        Some("retry") => {
            let job = job_of(&visit, &which).await?;
            let retried = v1::jobs::retry(&visit.app, visit.caller(), &job).await?;
            Ok(did(if retried.retried { "retried" } else { "unchanged" }))
        }
        Some("filters") => {
            let Which::Document { db, id } = &which else { return Err(Problem::unknown_action()) };
            check(&visit, Method::PUT, db, id)?;
            let (store, keys) = (&visit.app.store, &visit.app.keys);
            let retried = doc_processor::retry_errors(store, keys, |of| of == db, MAX_RETRIED).await?;
            Ok(did(if retried > 0 { "retried" } else { "unchanged" }))
        }
        Some("again") => {
            let Which::Document { db, id } = &which else { return Err(Problem::unknown_action()) };
            check(&visit, Method::PUT, db, id)?;
            run_again(&visit, db, id).await?;
            Ok(did("again"))
        }
        Some("remove") if form.get("confirmed").is_some() => {
            let removed = remove(&visit, &which, form.get("rev")).await?;
            Ok(redirect(&format!("{PATH}?did={removed}")))
        }
        Some("remove") => Ok(confirm(&visit, &which, form.get("rev"))),
        _ => Err(Problem::unknown_action()),
    }
}

async fn job_of(visit: &Visit, which: &Which) -> Result<JobPath> {
    let id = match which {
        Which::Request { job } => job.clone(),
        Which::Document { db, id } => {
            check(visit, Method::PUT, db, id)?;
            let found = find(visit, which).await?.row.job;
            found.ok_or_else(|| Problem::bad("the document has no job now", "look at its state"))?
        }
    };
    Ok(JobPath { job_type: JOB_TYPE.to_owned(), id })
}

/// Writes the document again without its final state, as a client does that wants to run it again. Secrets stay.
async fn run_again(visit: &Visit, db: &str, id: &str) -> Result<()> {
    let app = &visit.app;
    let tx = app.store.begin().await?;
    let document = read::get(&tx, &app.keys, db, id, None).await.map_err(ApiError::from)?;
    drop(tx);
    let mut body: Map<String, Value> = shown_document(document, false);
    body.retain(|name, _| !name.starts_with("_replication_"));
    let draft = Draft::parse(Some(id), body, "").map_err(ApiError::from)?;
    write_document(&app.couch, &HeaderMap::new(), db, &draft).await?;
    Ok(())
}

/// Deletes a document, or cancels a request. Returns the word for what was done.
async fn remove(visit: &Visit, which: &Which, rev: Option<&str>) -> Result<&'static str> {
    match which {
        Which::Document { db, id } => {
            check(visit, Method::DELETE, db, id)?;
            let rev = rev.map(|rev| link("", &[("rev", Some(rev))]));
            let params = Params::new(rev.as_deref().map(|rev| rev.trim_start_matches('?')));
            delete_document(&visit.app.couch, &call(visit, Method::DELETE, params), db, id).await?;
            Ok("removed")
        }
        Which::Request { job } => {
            let path = JobPath { job_type: JOB_TYPE.to_owned(), id: job.clone() };
            v1::jobs::cancel(&visit.app, visit.caller(), &path).await?;
            Ok("cancelled")
        }
    }
}

fn confirm(visit: &Visit, which: &Which, rev: Option<&str>) -> Response {
    let (title, name, button, warning) = match which {
        Which::Document { id, .. } => (
            "Delete this document?",
            id,
            "Delete the document",
            "Its replication stops, also while it runs. What it has copied stays at the target.",
        ),
        Which::Request { job } => (
            "Cancel this replication?",
            job,
            "Cancel the replication",
            "It stops, also while it runs. What it has copied stays at the target.",
        ),
    };
    let fields = html! {
        (which.hidden())
        @if let Some(rev) = rev { (hidden("rev", rev)) }
        (hidden("action", "remove"))
    };
    let (subject, back) = (html! { bdi { (name) } }, which.link());
    let question =
        Question { title, subject, effect: warning, button, action: "/ui/replication", fields, back: &back };
    question.page(&visit.shell)
}
