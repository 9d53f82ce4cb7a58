//! The requests to the upstream, except the reading of changes.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use turnwise_outbound::{Error, Fault, Peer, Request};

use crate::database::Info;
use crate::documents::names;
use crate::json_stream::{Shape, Splitter};
use crate::query::{Query, encode, heartbeat_ms};
use crate::remote::Remote;

/// The most databases of an upstream that are listed.
const MAX_DATABASES: usize = 1_000_000;
/// The largest response to a write-back.
const WRITTEN_BYTES: usize = 64 << 20;
/// The largest response with a few values.
const INFO_BYTES: usize = 1 << 20;
/// The largest document, in bytes. CouchDB's own default is 8 MB.
pub(super) const DOCUMENT_BYTES: usize = 16 << 20;
/// The most bytes of documents that are held for one write-back; the rest waits for the next one.
const DOCUMENTS_BYTES: usize = 32 << 20;

/// The upstream's description of itself.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Welcome {
    pub uuid: Option<String>,
    pub version: Option<String>,
}

async fn get<T: serde::de::DeserializeOwned>(server: &Peer, path: &str) -> Result<T, Error> {
    server.send(&Request::get(path).uncounted()).await?.json(INFO_BYTES).await
}

pub(super) async fn welcome(server: &Peer) -> Result<Welcome, Error> {
    get(server, "").await
}

/// Whether the login is an administrator's. For other users, CouchDB removes the passwords from documents.
pub(super) async fn is_admin(server: &Peer) -> Result<bool, Error> {
    let session: Value = get(server, "_session").await?;
    let roles = session["userCtx"]["roles"].as_array();
    Ok(roles.is_some_and(|roles| roles.iter().any(|role| role == "_admin")))
}

/// The names of all replicator databases.
pub(super) async fn replicator_databases(server: &Peer) -> Result<BTreeSet<String>, Error> {
    let remote = Remote(server.clone());
    let (mut found, mut seen, mut from) = (BTreeSet::new(), 0, None);
    loop {
        let (names, next) = remote.databases(from).await?;
        seen += names.len();
        found.extend(names.into_iter().filter(|name| names::is_replicator(name)));
        if next.is_none() || seen > MAX_DATABASES {
            return Ok(found);
        }
        from = next;
    }
}

/// Distinguishes a database from another one of its name by the time of its creation, in seconds. CouchDB 3.3 and later
/// report it equally on every node of a cluster. `None`: the database does not exist. [`UNKNOWN`]: the server does not
/// report it. Older servers return 0, or when they last opened the database, in another unit, and each node of a
/// cluster may have another uuid.
pub(super) async fn incarnation(server: &Peer, name: &str) -> Result<Option<String>, Error> {
    let info: Info = match get(server, &encode(name)).await {
        Err(error) if error.status() == Some(404) => return Ok(None),
        info => info?,
    };
    Ok(Some(info.created().map_or_else(|| UNKNOWN.to_owned(), |created| format!("at {created}"))))
}

/// The incarnation of a database whose server does not report one.
pub(super) const UNKNOWN: &str = "unknown";

/// Whether two incarnations may be the same. An unknown incarnation is no reason to remove jobs.
pub(super) fn may_be_same(one: &str, other: &str) -> bool {
    one == other || !one.starts_with("at ") || !other.starts_with("at ")
}

/// The current documents with these ids, without deleted ones. Reads as many of the first ones as memory allows, and
/// returns how many it has read.
pub(super) async fn documents(
    server: &Peer,
    name: &str,
    ids: &[String],
) -> Result<(usize, Vec<Map<String, Value>>), Error> {
    #[derive(Deserialize)]
    struct Row {
        doc: Option<Map<String, Value>>,
    }
    let path = format!("{}/_all_docs?include_docs=true", encode(name));
    let body = json!({ "keys": ids }).to_string();
    let mut answer = server.send(&Request::post(path, body)).await?;
    let mut splitter = Splitter::new(Shape::Array, DOCUMENT_BYTES);
    let (mut rows, mut bytes, mut documents) = (0, 0, Vec::new());
    while let Some(piece) = answer.chunk().await? {
        let parsed = splitter.push(&piece, |text| -> Result<(), String> {
            rows += 1;
            bytes += text.len();
            // The message of serde is left out, because the document may hold a password.
            let row: Row = serde_json::from_slice(text).map_err(|_| "an invalid row".to_owned())?;
            documents.extend(row.doc.filter(|doc| doc.get("_deleted") != Some(&Value::Bool(true))));
            Ok(())
        });
        parsed.map_err(|cause| answer.malformed(cause))?;
        if bytes > DOCUMENTS_BYTES {
            return Ok((rows, documents));
        }
    }
    splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
    Ok((rows, documents))
}

/// The result of writing one document: a row of the response to `_bulk_docs`.
#[derive(Debug, Deserialize)]
pub(super) struct BulkDocsRow {
    #[serde(default)]
    pub id: String,
    pub rev: Option<String>,
    pub error: Option<String>,
    pub reason: Option<Value>,
}

/// Writes documents, each with the revision that it replaces.
pub(super) async fn write(
    server: &Peer,
    name: &str,
    docs: &[Map<String, Value>],
) -> Result<Vec<BulkDocsRow>, Error> {
    let path = format!("{}/_bulk_docs", encode(name));
    let answer = server.send(&Request::post(path, json!({ "docs": docs }).to_string())).await?;
    answer.json(WRITTEN_BYTES).await
}

/// A request for a database's endless changes from `since` on.
pub(super) fn changes(server: &Peer, name: &str, since: &str) -> Request {
    let heartbeat = heartbeat_ms(server.timeout());
    let query = Query::of([
        ("feed", "continuous"),
        ("include_docs", "true"),
        ("heartbeat", &heartbeat),
        ("since", since),
    ]);
    Request::get(query.on(&format!("{}/_changes", encode(name)))).uncounted().feed()
}
