//! Single documents.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde_json::{Map, Value, json};
use turnwise_replicator::doc_processor;
use turnwise_replicator::documents::{
    Document, Draft, Error, Head, Revision, Written, local, names, read, redaction,
};
use turnwise_web::answer::{ok, with_header};
use turnwise_web::error::ApiError;
use turnwise_web::request::{DOCUMENT_BYTES, Params, Sent};
use turnwise_web::room::{Cost, MemoryPermit};
use turnwise_web::{answer, request};

use super::app::App;
use super::call::Call;

/// A document in a response: with its id and revision, and without its secrets.
pub fn shown(document: Document, revs: bool) -> Map<String, Value> {
    let Document { head, mut body } = document;
    if !names::is_design(&head.id) {
        redaction::hide(&mut body);
    }
    let mut shown = Map::new();
    shown.insert("_id".into(), json!(head.id));
    shown.insert("_rev".into(), json!(head.rev));
    if head.deleted {
        shown.insert("_deleted".into(), json!(true));
    }
    shown.extend(body);
    if revs {
        let ids: Vec<&str> = history(&head).collect();
        shown.insert("_revisions".into(), json!({ "start": head.rev.generation, "ids": ids }));
    }
    shown
}

/// The hashes of a document's revisions, latest first.
fn history(head: &Head) -> impl Iterator<Item = &str> {
    std::iter::once(head.rev.hash.as_str()).chain(head.ancestors.iter().map(String::as_str))
}

/// The value of `_revs_info`: only the latest revision is available.
fn revs_info(head: &Head) -> Value {
    let row = |(n, hash): (usize, &str)| {
        let rev = format!("{}-{hash}", head.rev.generation.saturating_sub(n as u64));
        json!({ "rev": rev, "status": if n == 0 && !head.deleted { "available" } else if n == 0 { "deleted" } else { "missing" } })
    };
    history(head).enumerate().map(row).collect()
}

fn etag(rev: &dyn std::fmt::Display) -> String {
    format!("\"{rev}\"")
}

/// The revision that a request names in its query or its `If-Match` header.
fn known_rev(call: &Call) -> Result<Option<Revision>, ApiError> {
    match rev_text(call)? {
        Some(rev) => Ok(Some(rev.parse::<Revision>()?)),
        None => Ok(None),
    }
}

/// The same as it was sent. As in CouchDB, both may be given, but must not differ.
fn rev_text(call: &Call) -> Result<Option<&str>, ApiError> {
    let if_match = call.headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok());
    let etag = if_match.map(|value| value.trim_matches('"'));
    match (call.params.get("rev"), etag) {
        (Some(rev), Some(etag)) if rev != etag => Err(other_etag()),
        (rev, etag) => Ok(rev.or(etag)),
    }
}

fn other_etag() -> ApiError {
    ApiError::bad_request("Document rev and etag have different values")
}

/// Whether `If-None-Match` contains this tag. It is a list, in which a proxy that compresses makes a tag weak (`W/"…"`). As in
/// CouchDB, `*` is no tag of a document.
fn has_tag(headers: &HeaderMap, etag: &str) -> bool {
    let lists = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    // Tags of documents contain no comma.
    lists.flat_map(|list| list.split(',')).any(|tag| {
        let tag = tag.trim();
        tag.strip_prefix("W/").unwrap_or(tag) == etag
    })
}

pub async fn get(app: &App, call: &Call, db: &str, id: &str) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    let params = &call.params;
    if let Some(wanted) = params.get("open_revs") {
        return open_revs(app, params, db, id, wanted).await;
    }
    let rev = params.get("rev").map(str::parse::<Revision>).transpose()?;
    let document = read::get(&tx, &app.keys, db, id, rev.as_ref()).await?;
    let etag = etag(&document.head.rev);
    if has_tag(&call.headers, &etag) {
        return Ok(with_header(answer::respond(StatusCode::NOT_MODIFIED, "".into()), header::ETAG, &etag));
    }
    let meta = params.flag("meta")?;
    let info = (meta || params.flag("revs_info")?).then(|| revs_info(&document.head));
    let mut shown = shown(document, params.flag("revs")?);
    if let Some(info) = info {
        shown.insert("_revs_info".into(), info);
    }
    // Conflicting writes are rejected, so there are no conflicts to list.
    Ok(with_header(ok(&shown), header::ETAG, &etag))
}

/// All leaf revisions, of which there is one; or the requested revisions.
async fn open_revs(
    app: &App,
    params: &Params,
    db: &str,
    id: &str,
    wanted: &str,
) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    let wanted: Vec<String> = match wanted {
        "all" => {
            let head = read::by_key(&tx, &app.keys, db, id).await?.ok_or(Error::Missing)?;
            vec![head.rev.to_string()]
        }
        list => serde_json::from_str(list)
            .map_err(|_| ApiError::query("`open_revs` must be all or an array of revisions"))?,
    };
    let revs = params.flag("revs")?;
    let mut found = Vec::with_capacity(wanted.len());
    for rev in wanted {
        let document = read::get(&tx, &app.keys, db, id, Some(&rev.parse()?)).await;
        found.push(match document {
            Ok(document) => json!({ "ok": shown(document, revs) }),
            Err(Error::Missing) => json!({ "missing": rev }),
            Err(error) => return Err(error.into()),
        });
    }
    Ok(ok(&found))
}

pub async fn put(app: &App, call: &Call, body: Body, db: &str, id: &str) -> Result<Response, ApiError> {
    let known = known_rev(call)?;
    let location = call.location(db, Some(id));
    if call.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"multipart/")) {
        return Err(ApiError::bad_request("replication documents have no attachments"));
    }
    // Branches are not stored: a document consists of its latest revision.
    if call.params.get("new_edits") == Some("false") {
        return Err(no_branches());
    }
    let (object, _room) = object(app, call, body).await?;
    let mut draft = Draft::parse(Some(id), object, "")?;
    match (&draft.rev, known) {
        (Some(own), Some(known)) if *own != known => {
            if call.params.get("rev").is_none() {
                return Err(other_etag());
            }
            let reason = "Document rev from request body and query string have different values";
            return Err(ApiError::bad_request(reason));
        }
        (None, Some(known)) => draft.rev = Some(known),
        _ => {}
    }
    let written = write(app, &call.headers, db, &draft).await?;
    Ok(created(&written, &location, StatusCode::CREATED))
}

/// The document in a body, and the memory for it.
async fn object(app: &App, call: &Call, body: Body) -> Result<(Map<String, Value>, MemoryPermit), ApiError> {
    let Sent { text, room } =
        request::bytes(&app.body_room, body, call.sender(), DOCUMENT_BYTES, Cost::TREE).await?;
    Ok((request::object(&text, "Document must be a JSON object")?, room))
}

pub fn no_branches() -> ApiError {
    let reason =
        "`new_edits=false` would need branches, and replication documents have none: write them without it";
    ApiError::not_implemented(reason)
}

pub async fn post(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let (object, _room) = object(app, call, body).await?;
    let draft = Draft::parse(None, object, &app.new_uuid())?;
    let written = write(app, &call.headers, db, &draft).await?;
    let location = call.location(db, Some(&written.id));
    Ok(created(&written, &location, StatusCode::CREATED))
}

/// Writes a document. The headers may continue a trace.
pub async fn write(app: &App, headers: &HeaderMap, db: &str, draft: &Draft) -> Result<Written, ApiError> {
    let (keys, settings, now_us) = (&app.keys, &app.settings.get(), app.now_us());
    let _turn = app.turn(db).await;
    let written = app
        .store
        .transact(|tx| async move { doc_processor::write(&tx, keys, settings, db, draft, now_us).await });
    Ok(app.traced(headers, written).await?)
}

fn created(written: &Written, location: &str, status: StatusCode) -> Response {
    let body = json!({ "ok": true, "id": written.id, "rev": written.rev });
    let response = with_header(answer::json(status, &body), header::ETAG, &etag(&written.rev));
    if status == StatusCode::CREATED { with_header(response, header::LOCATION, location) } else { response }
}

/// Removes a document.
pub async fn delete(app: &App, call: &Call, db: &str, id: &str) -> Result<Response, ApiError> {
    let (keys, known) = (&app.keys, &known_rev(call)?);
    let _turn = app.turn(db).await;
    let written = app
        .store
        .transact(|tx| async move { doc_processor::delete(&tx, keys, db, id, known.as_ref()).await })
        .await?;
    Ok(created(&written, "", StatusCode::OK))
}

pub async fn get_local(app: &App, db: &str, id: &str) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    let found = local::get(&tx, &app.keys, db, id).await?;
    let mut shown = Map::new();
    shown.insert("_id".into(), json!(format!("_local/{id}")));
    shown.insert("_rev".into(), json!(format!("0-{}", found.rev)));
    shown.extend(found.body);
    Ok(ok(&shown))
}

pub async fn put_local(app: &App, call: &Call, body: Body, db: &str, id: &str) -> Result<Response, ApiError> {
    let known = rev_text(call)?.map(str::to_owned);
    let (mut body, _room) = object(app, call, body).await?;
    body.shift_remove("_id");
    let own = body.shift_remove("_rev").and_then(|rev| rev.as_str().map(str::to_owned));
    if matches!((&own, &known), (Some(own), Some(known)) if own != known) {
        return Err(other_etag());
    }
    let (keys, body, rev) = (&app.keys, &body, &own.or(known));
    let rev = app
        .store
        .transact(|tx| async move { local::put(&tx, keys, db, id, rev.as_deref(), body).await })
        .await?;
    Ok(answer::json(StatusCode::CREATED, &json!({ "ok": true, "id": format!("_local/{id}"), "rev": rev })))
}

pub async fn delete_local(app: &App, call: &Call, db: &str, id: &str) -> Result<Response, ApiError> {
    let (keys, rev) = (&app.keys, rev_text(call)?);
    app.store.transact(|tx| async move { local::delete(&tx, keys, db, id, rev).await }).await?;
    Ok(ok(&json!({ "ok": true, "id": format!("_local/{id}"), "rev": "0-0" })))
}
