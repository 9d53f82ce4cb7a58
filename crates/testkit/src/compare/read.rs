//! Reads what a comparison needs.

use std::collections::{BTreeMap, HashMap};

use futures::StreamExt;
use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

use super::Leaves;
use crate::{Database, encode_segment};

/// A leaf revision, split into its parts.
pub struct Revision {
    /// `_revisions`: `{"start": generation, "ids": [hash, …]}`.
    pub history: Value,
    /// Whether it is a deletion.
    pub deleted: bool,
    /// All fields except those of the protocol.
    pub body: Map<String, Value>,
    /// The attachments' stubs, by name.
    pub attachments: BTreeMap<String, Value>,
}

/// All leaf revisions of a database, including deleted ones. `None` if the database cannot be read.
///
/// # Panics
/// If the response is no `_changes` feed.
pub async fn leaves(database: &Database) -> Option<Leaves> {
    let answer =
        database.client().get(format!("{}/_changes?style=all_docs", database.url())).send().await.ok()?;
    let changes: Value = answer.error_for_status().ok()?.json().await.ok()?;
    let rows = changes["results"].as_array().expect("_changes answers with results");
    let rev = |change: &Value| change["rev"].as_str().expect("a change has a rev").to_owned();
    let leaves = rows.iter().map(|row| {
        let id = row["id"].as_str().expect("a row of _changes has an id").to_owned();
        let changes = row["changes"].as_array().expect("a row of _changes has changes");
        (id, changes.iter().map(rev).collect())
    });
    Some(leaves.collect())
}

/// The revisions of a batch that can be read, by id and rev.
///
/// # Panics
/// If the database cannot be read.
pub async fn revisions(
    database: &Database,
    batch: &[(String, String)],
) -> HashMap<(String, String), Revision> {
    let docs: Vec<Value> = batch.iter().map(|(id, rev)| json!({ "id": id, "rev": rev })).collect();
    let mut answer = database.post("/_bulk_get?revs=true", &json!({ "docs": docs })).await;
    // Servers differ in the order of the results, and in the result for a missing revision. Only revisions that exist count.
    let results = answer["results"].as_array_mut().expect("_bulk_get answers with results");
    let docs = results.iter_mut().filter_map(|result| result["docs"].as_array_mut()).flatten();
    docs.filter_map(|doc| match doc["ok"].take() {
        Value::Object(fields) => Some(take_apart(fields)),
        _ => None,
    })
    .collect()
}

fn take_apart(mut fields: Map<String, Value>) -> ((String, String), Revision) {
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => text,
        other => panic!("a document with {name} {other:?}"),
    };
    let leaf = (text("_id"), text("_rev"));
    let attachments = match fields.remove("_attachments") {
        Some(Value::Object(stubs)) => stubs.into_iter().collect(),
        _ => BTreeMap::new(),
    };
    let revision = Revision {
        history: fields.remove("_revisions").unwrap_or_default(),
        deleted: fields.remove("_deleted") == Some(json!(true)),
        attachments,
        body: fields,
    };
    (leaf, revision)
}

/// The MD5 of an attachment's bytes, or `None` if the server does not return them.
pub(super) async fn attachment_hash(
    database: &Database,
    id: &str,
    rev: &str,
    name: &str,
) -> Option<[u8; 16]> {
    let url = format!("{}/{}/{}?rev={rev}", database.url(), encode_segment(id), encode_segment(name));
    let answer = database.client().get(&url).send().await;
    let answer = answer.unwrap_or_else(|error| panic!("GET {url}: {error:?}"));
    if !answer.status().is_success() {
        return None;
    }
    let mut hash = Md5::new();
    let mut pieces = answer.bytes_stream();
    while let Some(piece) = pieces.next().await {
        hash.update(piece.unwrap_or_else(|error| panic!("GET {url}: {error:?}")));
    }
    Some(hash.finalize().into())
}

/// The server software that holds the database: CouchDB, PouchDB Server, or another one that names itself in its greeting.
pub(super) async fn server_kind(database: &Database) -> Option<String> {
    let greeting = database.server_greeting().await;
    let fields = greeting.as_object().expect("a server greets with an object");
    fields
        .iter()
        .find(|(_, value)| matches!(value.as_str(), Some("Welcome" | "Welcome!")))
        .map(|(name, _)| name.clone())
}
