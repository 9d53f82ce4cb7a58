//! The form that adds a replication: a document in a `_replicator` database.

use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use turnwise_couch::{make_database, write_document};
use turnwise_replicator::documents::Draft;
use turnwise_web::request::Params;

use super::layout;
use super::parts::field;
use super::problem::{Problem, Result, sentence};
use super::redirect::redirect;
use super::replication::{call, check};
use super::replications::{PATH, document_link};
use super::visit::{Fields, Visit};

/// The database that CouchDB's users expect.
const DEFAULT_DATABASE: &str = "_replicator";
/// Maximum number of databases that are offered to choose from.
const MAX_OFFERED: usize = 100;
/// Maximum number of document ids in the form.
const MAX_IDS: usize = 10_000;

/// Which documents are copied.
const SELECTIONS: [(&str, &str); 4] = [
    ("all", "all documents"),
    ("ids", "the documents with these ids"),
    ("selector", "the documents that match a selector"),
    ("filter", "what a filter function of the source accepts"),
];

/// What is wrong with the form: with a field, if its name is known.
struct Wrong {
    field: Option<&'static str>,
    text: String,
    status: StatusCode,
}

impl Wrong {
    fn new(field: &'static str, text: impl Into<String>) -> Wrong {
        Wrong { field: Some(field), text: text.into(), status: StatusCode::BAD_REQUEST }
    }

    /// The error of a write, beside the field that it names.
    fn of(problem: Problem) -> Wrong {
        const FIELDS: &str = "source target doc_ids selector filter query_params create_target continuous";
        let named = problem.reason.split([':', '.', ' ']).next().unwrap_or_default();
        let field = FIELDS.split(' ').find(|name| *name == named);
        let (field, text) = match problem.status {
            StatusCode::CONFLICT => {
                (field.or(Some("id")), "a document with this id exists: choose another id".to_owned())
            }
            _ => (field, problem.reason),
        };
        Wrong { field, text, status: problem.status }
    }
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let offered = offered(&visit).await?;
    Ok(form(&visit, &visit.query, &offered, None))
}

/// Adds the replication, or shows the form again with what is wrong.
pub(super) async fn add(visit: Visit) -> Result<Response> {
    let fields = &visit.form;
    let db = fields.get("db").unwrap_or(DEFAULT_DATABASE).trim();
    let id = fields.get("id").map_or_else(|| visit.app.new_uuid(), |id| id.trim().to_owned());
    let added = match body(fields) {
        Ok(body) => write(&visit, db, &id, body).await,
        Err(wrong) => Err(wrong),
    };
    match added {
        Ok(()) => Ok(redirect(&format!("{}&did=added", document_link(db, &id)))),
        Err(wrong) => {
            let offered = offered(&visit).await?;
            let mut response = form(&visit, fields, &offered, Some(&wrong));
            *response.status_mut() = wrong.status;
            Ok(response)
        }
    }
}

/// The databases to choose from, of those that the caller may change.
async fn offered(visit: &Visit) -> Result<Vec<String>> {
    let mut all = super::replications::databases(visit).await?;
    all.retain(|db| visit.caller().writes(db) && !turnwise_replicator::documents::names::is_mirror(db));
    all.truncate(MAX_OFFERED);
    Ok(all)
}

async fn write(visit: &Visit, db: &str, id: &str, body: Map<String, Value>) -> Result<(), Wrong> {
    let in_db = |problem: Problem| Wrong { field: Some("db"), ..Wrong::of(problem) };
    if visit.form.get("create_database").is_some() {
        call(visit, Method::PUT, Params::default()).check(db, None).map_err(|error| in_db(error.into()))?;
        match make_database(&visit.app.couch, db).await {
            Err(error) if error.status != StatusCode::PRECONDITION_FAILED => return Err(in_db(error.into())),
            _ => {}
        }
    }
    check(visit, Method::PUT, db, id).map_err(in_db)?;
    let draft = Draft::parse(Some(id), body, "").map_err(|error| Wrong::new("id", error.to_string()))?;
    match write_document(&visit.app.couch, &HeaderMap::new(), db, &draft).await {
        Ok(_) => Ok(()),
        Err(error) if error.status == StatusCode::NOT_FOUND => Err(in_db(error.into())),
        Err(error) => Err(Wrong::of(error.into())),
    }
}

/// The document that the form describes.
fn body(fields: &Fields) -> Result<Map<String, Value>, Wrong> {
    let mut body = Map::new();
    body.insert("source".into(), endpoint(fields, "source", "source_user", "source_password"));
    body.insert("target".into(), endpoint(fields, "target", "target_user", "target_password"));
    for name in ["continuous", "create_target"] {
        if fields.get(name).is_some() {
            body.insert(name.into(), json!(true));
        }
    }
    let object = |name: &'static str| match serde_json::from_str(fields.get(name).unwrap_or("{}")) {
        Ok(Value::Object(object)) => Ok(Value::Object(object)),
        Ok(_) => Err(Wrong::new(name, "must be a JSON object, as {\"type\": \"invoice\"}")),
        Err(error) => Err(Wrong::new(name, format!("is not JSON: {error}"))),
    };
    match fields.get("selection").unwrap_or("all") {
        "ids" => {
            let ids = fields.get("doc_ids").unwrap_or_default().lines().map(str::trim);
            let ids: Vec<&str> = ids.filter(|id| !id.is_empty()).take(MAX_IDS + 1).collect();
            match ids.len() {
                0 => return Err(Wrong::new("doc_ids", "name at least one document, or copy all documents")),
                1..=MAX_IDS => {}
                _ => {
                    let text = format!("at most {MAX_IDS} ids fit here: use a selector, or the API");
                    return Err(Wrong::new("doc_ids", text));
                }
            }
            // A `%` or a `+` in the document's array would be decoded.
            let ids = ids.into_iter().map(|id| id.replace('%', "%25").replace('+', "%2B"));
            body.insert("doc_ids".into(), ids.collect());
        }
        "selector" => {
            body.insert("selector".into(), object("selector")?);
        }
        "filter" => {
            let Some(filter) = fields.get("filter") else {
                return Err(Wrong::new("filter", "name the function, as DESIGN/FUNCTION"));
            };
            body.insert("filter".into(), json!(filter.trim()));
            if fields.get("query_params").is_some() {
                body.insert("query_params".into(), object("query_params")?);
            }
        }
        _ => {}
    }
    Ok(body)
}

/// A URL alone, or with a name and a password.
fn endpoint(fields: &Fields, url: &str, user: &str, password: &str) -> Value {
    let url = fields.get(url).unwrap_or_default().trim();
    match (fields.get(user), fields.get(password)) {
        (None, None) => json!(url),
        (user, password) => json!({
            "url": url,
            "auth": { "basic": { "username": user.unwrap_or_default(), "password": password.unwrap_or_default() } },
        }),
    }
}

/// The URL of a field without a password: no page repeats one.
fn without_password(url: &str) -> String {
    match url::Url::parse(url.trim()) {
        Ok(mut parsed) if parsed.password().is_some() => {
            // A URL that has a password can lose it.
            let _ = parsed.set_password(None);
            parsed.to_string()
        }
        // The part before `:` can be a user, where the scheme is missing.
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") => url.to_owned(),
        // What cannot be read may hold one anywhere.
        _ if url.contains('@') => String::new(),
        _ => url.to_owned(),
    }
}

fn form(visit: &Visit, fields: &Fields, offered: &[String], wrong: Option<&Wrong>) -> Response {
    let about = |name: &str| wrong.filter(|wrong| wrong.field == Some(name)).map(|wrong| wrong.text.as_str());
    let value = |name: &str| fields.get(name);
    let selection = value("selection").unwrap_or("all");
    let default = offered.iter().find(|db| *db == DEFAULT_DATABASE).or(offered.first());
    let db = value("db")
        .or(default.map(String::as_str))
        .or(visit.caller().only_tenant())
        .unwrap_or(DEFAULT_DATABASE);
    let check = |name: &str, title: &str, help: &str| {
        html! {
            div.field {
                label.check { input type="checkbox" name=(name) value="1" checked[value(name).is_some()]; (title) }
                p.quiet { (help) }
                @if let Some(wrong) = about(name) { p.problem role="alert" { (sentence(wrong)) } }
            }
        }
    };
    let side = |name: &str, title: &str, user: &str, password: &str, help: Markup| {
        let url = value(name).map(without_password);
        html! {
            fieldset {
                legend { (title) }
                (field(name, "URL of the database", html! {
                    input id=(name) name=(name) value=[url] required maxlength="4000" placeholder="https://couch.example/orders" autocomplete="off";
                }, help, about(name)))
                div.pair {
                    (field(user, "User", html! { input id=(user) name=(user) value=[value(user)] maxlength="200" autocomplete="off"; }, html! { "Leave it empty if the server needs no login." }, None))
                    (field(password, "Password", html! { input id=(password) type="password" name=(password) maxlength="1000" autocomplete="new-password"; },
                        html! { "Stored with the document, and shown to nobody." @if wrong.is_some() { " Type it again: the form does not keep it." } }, None))
                }
            }
        }
    };
    let main = html! {
        p.quiet { a href=(PATH) { "Replications" } }
        h1 { "Add a replication" }
        @if let Some(wrong) = wrong {
            p.problem role="alert" {
                @match wrong.field { None => (sentence(&wrong.text)), Some(_) => "Nothing was added. Correct the field that is marked below." }
            }
        }
        form.fields method="post" action="/ui/replications/new" {
            (side("source", "Source", "source_user", "source_password", html! { "The database from which documents are copied: a CouchDB URL with the database's name." }))
            (side("target", "Target", "target_user", "target_password", html! { "The database to which they are copied." }))
            fieldset {
                legend { "How" }
                (check("continuous", "Continuous", "It follows the changes of the source without end. Without this it ends when all documents are copied."))
                (check("create_target", "Create the target", "The target's database is created if it is missing. This needs an administrator's login there."))
            }
            fieldset {
                legend { "Which documents" }
                (field("selection", "Copy", html! {
                    select id="selection" name="selection" {
                        @for (name, title) in SELECTIONS { option value=(name) selected[selection == name] { (title) } }
                    }
                }, html! { "Only the fields of this choice are used." }, None))
                (field("doc_ids", "Ids", html! { textarea id="doc_ids" name="doc_ids" rows="3" { (value("doc_ids").unwrap_or_default()) } },
                    html! { "For a list of ids: one document id in each line." }, about("doc_ids")))
                (field("selector", "Selector", html! { textarea id="selector" name="selector" rows="3" placeholder="{\"type\": \"invoice\"}" { (value("selector").unwrap_or_default()) } },
                    html! { "For a selector: a Mango selector in JSON. The source evaluates it." }, about("selector")))
                (field("filter", "Filter function", html! { input id="filter" name="filter" value=[value("filter")] placeholder="design/function" maxlength="1000"; },
                    html! { "For a filter: the name of the design document in the source and of its function, with a slash." }, about("filter")))
                (field("query_params", "Parameters of the function", html! { textarea id="query_params" name="query_params" rows="2" placeholder="{\"key\": \"value\"}" { (value("query_params").unwrap_or_default()) } },
                    html! { "An object in JSON, which the function gets as its query." }, about("query_params")))
            }
            fieldset {
                legend { "The document" }
                (field("db", "Database", html! {
                    input id="db" name="db" value=(db) list="databases" required maxlength="256";
                    datalist id="databases" { @for db in offered { option value=(db) {} } }
                }, html! { "The replicator database of this server that keeps the document: " code { "_replicator" } ", or a name that ends in " code { "/_replicator" } ". It is also the tenant that the replication belongs to." }, about("db")))
                (check("create_database", "Create this database if it is missing", "Only the replicator database here, not the target."))
                (field("id", "Document id", html! { input id="id" name="id" value=[value("id")] maxlength="256" autocomplete="off"; },
                    html! { "A name for it. Without one, the server chooses a random id." }, about("id")))
            }
            div.actions { button.main type="submit" { "Add the replication" } a.button href=(PATH) { "Back" } }
        }
    };
    layout::page(&visit.shell, "Add a replication", main)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_password_returns_to_the_form() {
        assert_eq!(without_password("https://u:hunter2@couch.example/a"), "https://u@couch.example/a");
        assert_eq!(without_password("couch.example/a"), "couch.example/a");
        assert_eq!(without_password("u:hunter2@couch.example/a"), "");
        assert_eq!(without_password("https://couch.example/a"), "https://couch.example/a");
    }
}
