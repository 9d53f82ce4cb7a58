//! All replications: those of documents, and those that were requested at `_replicate`.

use std::cmp::Reverse;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_couch::{all_databases, is_scheduled};
use turnwise_queue::{Job, Keyspace, jobs, timestamp};
use turnwise_replicator::doc_processor::{self, Nodes, STATES, Status, Summary};
use turnwise_replicator::documents::Error as DocumentError;
use turnwise_replicator::{JOB_TYPE, Stats};
use turnwise_store::Transaction;
use turnwise_web::access::rights::Right;
use turnwise_web::error::ApiError;

use super::format::{ago, clipped, count_of, moment, number, or_dash};
use super::parts::{ANY, choice};
use super::problem::Result;
use super::visit::{Visit, link};
use super::{layout, parts};

pub(super) const PATH: &str = "/ui/replications";
/// Maximum number of documents, and of jobs, that one page reads. More are found by their database.
const MAX_READ: usize = 1_000;
/// Number of rows that one transaction reads.
const BATCH: usize = 200;
/// Number of rows in a page.
const SHOWN: usize = 100;
/// Maximum number of databases in which a document is looked up by its id.
const MAX_LOOKED_UP: usize = 20;

/// A replication in a list.
pub(super) struct Row {
    /// The database, if it has a document.
    pub database: Option<String>,
    /// The document's id, or the job's.
    pub id: String,
    /// The job's id, if there is a job.
    pub job: Option<String>,
    pub state: &'static str,
    pub source: String,
    pub target: String,
    pub node: Option<String>,
    pub stats: Option<Stats>,
    pub error: Option<String>,
    /// Consecutive errors.
    pub errors: u32,
    /// When the state last changed, in ISO 8601.
    pub updated: String,
}

impl Row {
    pub fn of_document(status: Status) -> Row {
        let (stats, error) = numbers(status.info.as_ref().map(|info| info.get()));
        Row {
            database: Some(status.database),
            id: status.doc_id,
            job: status.id,
            state: status.state,
            source: status.source.unwrap_or_default(),
            target: status.target.unwrap_or_default(),
            node: status.node.flatten(),
            stats,
            error,
            errors: status.error_count,
            updated: status.last_updated,
        }
    }

    /// A job without a document. `None` if it has one.
    pub async fn of_request(
        tx: &Transaction,
        keys: &Keyspace,
        nodes: &mut Nodes,
        job: Job,
        now_us: i64,
    ) -> Result<Option<Row>> {
        let summary = Summary::of(&job).filter(|summary| summary.document().is_none());
        let Some(summary) = summary else { return Ok(None) };
        let active = jobs::active_report(tx, keys, &job).await?.and_then(|active| active.info);
        let (stats, error) = numbers(active.as_ref().or(job.info.as_ref()).map(|info| info.get()));
        let node = nodes.of_job(tx, keys, &job).await?;
        Ok(Some(Row {
            database: None,
            state: doc_processor::state_name(&job),
            error: job.reason().map(str::to_owned).or(error),
            errors: job.streak(now_us),
            updated: timestamp(job.changed_us),
            job: Some(job.id.clone()),
            id: job.id.clone(),
            source: summary.source,
            target: summary.target,
            node,
            stats,
        }))
    }

    /// The page of this replication.
    pub fn link(&self) -> String {
        match &self.database {
            Some(db) => document_link(db, &self.id),
            None => link("/ui/replication", &[("job", Some(&self.id))]),
        }
    }

    fn contains(&self, text: &str) -> bool {
        let error = self.error.as_deref().unwrap_or_default();
        let database = self.database.as_deref().unwrap_or_default();
        [&self.id, database, &self.source, &self.target, error]
            .into_iter()
            .any(|field| field.to_lowercase().contains(text))
    }

    /// Its place in the order of what needs a person most.
    fn trouble(&self) -> usize {
        const ORDER: [&str; 7] =
            ["failed", "error", "crashing", "running", "pending", "initializing", "completed"];
        ORDER.iter().position(|state| *state == self.state).unwrap_or(ORDER.len())
    }
}

/// The numbers or the error in a replication's `info`.
fn numbers(info: Option<&str>) -> (Option<Stats>, Option<String>) {
    let info: Option<serde_json::Value> = info.and_then(|info| serde_json::from_str(info).ok());
    let Some(info) = info.filter(serde_json::Value::is_object) else { return (None, None) };
    match info.get("error") {
        Some(serde_json::Value::String(error)) => (None, Some(error.clone())),
        Some(error) if !error.is_null() => (None, Some(error.to_string())),
        _ => (serde_json::from_value(info).ok(), None),
    }
}

/// The page of a document's replication.
pub(super) fn document_link(db: &str, id: &str) -> String {
    link("/ui/replication", &[("db", Some(db)), ("doc", Some(id))])
}

/// A state in the words of `_scheduler/docs`.
pub(super) fn state(state: &'static str) -> Markup {
    let look = match state {
        "error" => "crashing",
        "initializing" => "delayed",
        other => other,
    };
    html! { span class={ "state " (look) } { (state) } }
}

/// What a column holds.
enum Cell {
    State,
    Id,
    Url(fn(&Row) -> &String),
    Number(fn(&Row) -> Option<u64>),
    Updated,
}

/// The columns: the name of their order in the URL, and their title. By default, the list is in the order of the first.
static COLUMNS: [(&str, &str, Cell); 9] = [
    ("trouble", "State", Cell::State),
    ("id", "Replication", Cell::Id),
    ("source", "Source", Cell::Url(|row| &row.source)),
    ("target", "Target", Cell::Url(|row| &row.target)),
    ("read", "Read", Cell::Number(|row| Some(row.stats.as_ref()?.docs_read))),
    ("written", "Written", Cell::Number(|row| Some(row.stats.as_ref()?.docs_written))),
    ("failures", "Refused", Cell::Number(|row| Some(row.stats.as_ref()?.doc_write_failures))),
    ("pending", "To copy", Cell::Number(|row| row.stats.as_ref()?.changes_pending)),
    ("updated", "Changed", Cell::Updated),
];

/// Sorts by a column: texts from their begin, and the largest number and the latest time first.
fn sort(rows: &mut [Row], by: &Cell) {
    rows.sort_by(|one, other| (&one.database, &one.id).cmp(&(&other.database, &other.id)));
    match by {
        Cell::State => {
            rows.sort_by(|one, other| (one.trouble(), &other.updated).cmp(&(other.trouble(), &one.updated)))
        }
        Cell::Id => {}
        Cell::Url(of) => rows.sort_by(|one, other| of(one).cmp(of(other))),
        Cell::Number(of) => rows.sort_by_key(|row| Reverse(of(row))),
        Cell::Updated => rows.sort_by(|one, other| other.updated.cmp(&one.updated)),
    }
}

/// What the query selects.
struct Filter<'a> {
    db: Option<&'a str>,
    state: Option<&'static str>,
    text: Option<&'a str>,
    sort: Option<&'a str>,
}

impl Filter<'_> {
    fn link(&self, sort: Option<&str>, page: usize) -> String {
        let page = (page > 0).then(|| page.to_string());
        let fields = [
            ("db", self.db),
            ("state", self.state),
            ("q", self.text),
            ("sort", sort.filter(|sort| *sort != "trouble")),
            ("page", page.as_deref()),
        ];
        link(PATH, &fields)
    }
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let filter = Filter {
        db: query.get("db"),
        state: STATES.into_iter().find(|state| query.get("state") == Some(state)),
        text: query.get("q"),
        sort: query.get("sort"),
    };
    let by = COLUMNS.iter().find(|(name, ..)| filter.sort == Some(*name)).unwrap_or(&COLUMNS[0]);
    let databases = databases(&visit).await?;
    let (mut rows, more) = read(&visit, &filter, &databases).await?;
    if let Some(state) = filter.state {
        rows.retain(|row| row.state == state);
    }
    if let Some(text) = filter.text {
        let text = text.to_lowercase();
        rows.retain(|row| row.contains(&text));
    }
    sort(&mut rows, &by.2);
    let (total, page) = (rows.len(), query.get("page").and_then(|page| page.parse().ok()).unwrap_or(0_usize));
    let rows: Vec<Row> = rows.into_iter().skip(page.saturating_mul(SHOWN)).take(SHOWN).collect();
    let mut next_tries = Vec::with_capacity(rows.len());
    for row in &rows {
        next_tries.push(next_try(&visit, row).await?);
    }
    // The requests to servers that have answered 429: of all tenants, so they are for operators.
    let throttled = if visit.caller().operates() { visit.app.couch.client.throttled() } else { 0 };
    let now_us = visit.app.now_us();
    let main = html! {
        div.title {
            h1 { "Replications" }
            @if Right::Write.check(visit.caller()).is_ok() { a.button href="/ui/replications/new" { "Add a replication…" } }
        }
        (parts::done(query.get("did")))
        @if throttled > 0 {
            p.condition.warn {
                (count_of(throttled, "kind")) " of request to peers " (if throttled == 1 { "is" } else { "are" })
                " throttled on this node: their servers answered 429, and turnwise sends no faster than they accept."
            }
        }
        (filters(&filter, &databases))
        @if more {
            p.condition.warn { "Only the first " (number(MAX_READ as u64)) " documents and jobs are read here. Choose a database to see others." }
        }
        @if rows.is_empty() {
            p.empty {
                @if filter.link(None, 0) == PATH && page == 0 {
                    "There are no replications yet."
                    @if Right::Write.check(visit.caller()).is_ok() { " " a href="/ui/replications/new" { "Add the first one" } "." }
                } @else { "No replication matches." }
            }
        } @else { (table(&filter, by.0, &rows, &next_tries, now_us)) }
        @if total > SHOWN {
            nav.pages aria-label="Pages of the list" {
                @if page > 0 { a.button href=(filter.link(filter.sort, page - 1)) { "Previous" } }
                span.quiet { (number((page * SHOWN + 1) as u64)) " to " (number((page * SHOWN + rows.len()) as u64)) " of " (number(total as u64)) @if more { "+" } }
                @if (page + 1) * SHOWN < total { a.button href=(filter.link(filter.sort, page + 1)) { "Next" } }
            }
        }
    };
    Ok(layout::live(&visit.shell, "Replications", main))
}

/// The databases that the caller may read.
pub(super) async fn databases(visit: &Visit) -> Result<Vec<String>> {
    let mut all = all_databases(&visit.app.couch).await?;
    all.retain(|db| visit.caller().reads(db));
    Ok(all)
}

/// The rows, and whether there are more than these.
async fn read(visit: &Visit, filter: &Filter<'_>, databases: &[String]) -> Result<(Vec<Row>, bool)> {
    let chosen: Vec<&String> =
        databases.iter().filter(|db| filter.db.is_none_or(|wanted| wanted == *db)).collect();
    let (mut rows, mut more) = documents(visit, &chosen).await?;
    if let (Some(text), true) = (filter.text, more) {
        exact(visit, &chosen, text, &mut rows).await?;
    }
    if filter.db.is_none() {
        let (requests, more_requests) = requests(visit).await?;
        rows.extend(requests);
        more |= more_requests;
    }
    Ok((rows, more))
}

async fn documents(visit: &Visit, databases: &[&String]) -> Result<(Vec<Row>, bool)> {
    let (app, now_us, mut rows) = (&visit.app, visit.app.now_us(), Vec::new());
    for db in databases {
        let mut next = None;
        loop {
            if rows.len() >= MAX_READ {
                return Ok((rows, true));
            }
            let tx = app.store.begin().await?;
            let mut nodes = Nodes::default();
            let page = doc_processor::statuses(&tx, &app.keys, &mut nodes, db, next, BATCH, now_us).await;
            let (page, rest) = match page {
                Ok(page) => page,
                // The database was deleted meanwhile.
                Err(DocumentError::NoDatabase) => break,
                Err(error) => return Err(ApiError::from(error).into()),
            };
            rows.extend(page.into_iter().map(Row::of_document));
            next = rest;
            if next.is_none() {
                break;
            }
        }
    }
    Ok((rows, false))
}

/// Adds the documents with exactly this id: they may be behind what was read.
async fn exact(visit: &Visit, databases: &[&String], id: &str, rows: &mut Vec<Row>) -> Result<()> {
    let (app, now_us) = (&visit.app, visit.app.now_us());
    for db in databases.iter().take(MAX_LOOKED_UP) {
        if rows.iter().any(|row| row.database.as_ref() == Some(*db) && row.id == id) {
            continue;
        }
        let tx = app.store.begin().await?;
        let mut nodes = Nodes::default();
        if let Ok(Some(status)) = doc_processor::status(&tx, &app.keys, &mut nodes, db, id, now_us).await {
            rows.push(Row::of_document(status));
        }
    }
    Ok(())
}

/// The jobs without a document.
async fn requests(visit: &Visit) -> Result<(Vec<Row>, bool)> {
    let (app, caller, now_us) = (&visit.app, visit.caller(), visit.app.now_us());
    let (mut rows, mut after): (Vec<Row>, Option<String>) = (Vec::new(), None);
    for _ in 0..MAX_READ / BATCH {
        let tx = app.store.begin().await?;
        let page = jobs::list(&tx, &app.keys, JOB_TYPE, after.as_deref(), BATCH).await?;
        let (last, mut nodes) = (page.len() < BATCH, Nodes::default());
        after = page.last().map(|job| job.id.clone());
        for job in page.into_iter().filter(|job| is_scheduled(caller, job)) {
            rows.extend(Row::of_request(&tx, &app.keys, &mut nodes, job, now_us).await?);
        }
        if last {
            return Ok((rows, false));
        }
    }
    Ok((rows, true))
}

/// When a crashing replication runs again.
async fn next_try(visit: &Visit, row: &Row) -> Result<Option<i64>> {
    let Some(job) = row.job.as_deref().filter(|_| row.state == "crashing") else { return Ok(None) };
    let job = v1::jobs::find(&visit.app, visit.caller(), JOB_TYPE, job).await?;
    Ok(job.and_then(|job| job.not_before_us))
}

fn filters(filter: &Filter<'_>, databases: &[String]) -> Markup {
    let states = ANY.into_iter().chain(STATES.map(|of| (of, of)));
    let fields = html! {
        @if let Some(sort) = filter.sort { input type="hidden" name="sort" value=(sort); }
        label { "Database" input name="db" value=[filter.db] list="databases" maxlength="256" size="18"; }
        datalist id="databases" { @for db in databases.iter().take(MAX_READ) { option value=(db) {} } }
        (choice("State", "state", states, filter.state))
        label { "Contains" input type="search" name="q" value=[filter.text] maxlength="200" size="22" placeholder="id, server, error"; }
    };
    parts::filters(PATH, fields)
}

fn table(filter: &Filter<'_>, by: &str, rows: &[Row], next_tries: &[Option<i64>], now_us: i64) -> Markup {
    let columns = html! {
        @for (name, title, cell) in &COLUMNS {
            @let order = if matches!(cell, Cell::Number(_) | Cell::Updated) { "descending" } else { "ascending" };
            th.n[matches!(cell, Cell::Number(_))] scope="col" aria-sort=[(by == *name).then_some(order)] {
                a href=(filter.link(Some(*name), 0)) { (title) }
            }
        }
    };
    let rows = html! {
        @for (row, next_try) in rows.iter().zip(next_tries) {
            tr data-k={ (row.database.as_deref().unwrap_or_default()) "/" (row.id) } {
                @for (_, _, cell) in &COLUMNS {
                    @match cell {
                        Cell::State => td { (state(row.state)) },
                        Cell::Id => th.id scope="row" {
                            a href=(row.link()) { bdi { (row.id) } }
                            div.quiet { bdi { (row.database.as_deref().unwrap_or("requested at _replicate")) } }
                        },
                        Cell::Url(of) => td.url { bdi { (of(row)) } },
                        Cell::Number(of) => td.n { (or_dash(of(row).map(number))) },
                        Cell::Updated => td.when { (moment(&row.updated)) },
                    }
                }
            }
            @if let Some(error) = &row.error {
                tr.detail data-k={ (row.database.as_deref().unwrap_or_default()) "/" (row.id) " error" } {
                    td {}
                    td colspan="8" {
                        span.bad { (clipped(error)) }
                        span.quiet {
                            @if row.errors > 1 { " " (number(u64::from(row.errors))) " times in a row." }
                            @if let Some(next) = next_try { " Next try " (ago(*next, now_us)) "." }
                        }
                    }
                }
            }
        }
    };
    parts::table("Replications", columns, rows)
}
