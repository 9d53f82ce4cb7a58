//! `_all_docs`: lists documents by id.

use axum::body::Body;
use axum::http::Method;
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use turnwise_replicator::documents::read::{self, Stretch};
use turnwise_replicator::documents::{Head, databases};
use turnwise_store::Transaction;
use turnwise_web::answer::{Batch, Broken, Pieces, in_pieces};
use turnwise_web::error::ApiError;
use turnwise_web::request;
use turnwise_web::request::{Params, REQUEST_BYTES};
use turnwise_web::room::Cost;
use turnwise_web::rows::{NoArray, Rows};

use super::app::App;
use super::call::Call;
use super::docs;

/// Number of rows that one transaction reads.
const PAGE: usize = 200;

/// The parameters of a request.
struct Query {
    db: String,
    stretch: Stretch,
    /// The ids of the requested documents, in this order.
    keys: Option<Rows>,
    skip: usize,
    limit: usize,
    include_docs: bool,
}

impl Query {
    fn new(db: &str, params: &Params, keys: Option<Result<Rows, NoArray>>) -> Result<Query, ApiError> {
        let key = params.json_string(&["key"])?;
        let from = params.json_string(&["startkey", "start_key", "startkey_docid", "start_key_doc_id"])?;
        let to = params.json_string(&["endkey", "end_key", "endkey_docid", "end_key_doc_id"])?;
        let in_query = params.get("keys").map(|keys| Rows::of_array(Bytes::copy_from_slice(keys.as_bytes())));
        let in_query = in_query.transpose().map_err(|_| ApiError::bad_request("`keys` must be JSON"))?;
        let keys = match keys.or(in_query) {
            None => None,
            Some(Ok(keys)) => Some(keys),
            Some(Err(NoArray)) => return Err(ApiError::bad_request("`keys` body member must be an array.")),
        };
        if keys.is_some() && (key.is_some() || from.is_some() || to.is_some()) {
            return Err(ApiError::query("`keys` is incompatible with `key`, `start_key` and `end_key`"));
        }
        let inclusive_end = params.get("inclusive_end").is_none() || params.flag("inclusive_end")?;
        Ok(Query {
            db: db.to_owned(),
            stretch: Stretch {
                from: key.clone().or(from),
                to: key.or(to),
                exclusive_end: !inclusive_end,
                descending: params.flag("descending")?,
            },
            keys,
            skip: params.number("skip")?.unwrap_or(0),
            limit: params.number("limit")?.unwrap_or(usize::MAX),
            include_docs: params.flag("include_docs")?,
        })
    }
}

pub async fn all_docs(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let (given, room) = match call.method {
        Method::POST => {
            request::json_rows(&app.body_room, body, call.sender(), ("keys", REQUEST_BYTES), Cost::ROWS)
                .await?
        }
        _ => Default::default(),
    };
    let query = Query::new(db, &call.params.with(&given.members), given.rows)?;
    let tx = app.store.begin().await?;
    let (_, counters) = databases::info(&tx, &app.keys, db).await?;
    let app = app.clone();
    Ok(in_pieces(async move |mut pieces| {
        let _room = room;
        write(&app, &query, counters.documents, &mut pieces).await?;
        Ok(pieces)
    }))
}

async fn write(app: &App, query: &Query, total: u64, pieces: &mut Pieces) -> Result<(), ApiError> {
    let offset = match (&query.keys, &query.stretch.from) {
        (Some(_), _) => Value::Null,
        (None, None) => json!(query.skip.min(usize::try_from(total).unwrap_or(usize::MAX))),
        (None, Some(_)) => json!(count_before(app, query).await? + query.skip),
    };
    pieces.text(&format!("{{\"total_rows\":{total},\"offset\":{offset},\"rows\":[\n")).await?;
    match &query.keys {
        Some(keys) => write_keys(app, query, keys, pieces).await?,
        None => write_stretch(app, query, pieces).await?,
    }
    Ok(pieces.text("\n]}\n").await?)
}

async fn write_stretch(app: &App, query: &Query, pieces: &mut Pieces) -> Result<(), ApiError> {
    let (mut skip, mut limit) = (query.skip, query.limit);
    let mut stretch = query.stretch.clone();
    let mut next = None;
    while limit > 0 {
        let tx = app.store.begin().await?;
        let page = read::page(&tx, &app.keys, &query.db, &stretch, next, PAGE).await?;
        let skipped = skip.min(page.heads.len());
        skip -= skipped;
        let mut heads = page.heads.into_iter().skip(skipped);
        let mut batch = Batch::default();
        while limit > 0 && !batch.is_full() {
            let Some(head) = heads.next() else { break };
            limit -= 1;
            batch.push(&row(app, &tx, query, head).await?)?;
        }
        drop(tx);
        pieces.batch(&batch).await?;
        next = match heads.next() {
            // The batch was full before all rows of the page were in it.
            Some(head) => {
                stretch.from = Some(head.id);
                None
            }
            None if page.next.is_none() => break,
            None => page.next,
        };
    }
    Ok(())
}

async fn write_keys(app: &App, query: &Query, keys: &Rows, pieces: &mut Pieces) -> Result<(), ApiError> {
    let nth = |nth: usize| if query.stretch.descending { keys.len() - 1 - nth } else { nth };
    let ordered = (0..keys.len()).map(|at| keys.get(nth(at)));
    let mut wanted = ordered.skip(query.skip).take(query.limit).peekable();
    while wanted.peek().is_some() {
        let tx = app.store.begin().await?;
        let mut batch = Batch::default();
        for key in wanted.by_ref().take(PAGE) {
            let head = match serde_json::from_slice::<String>(key) {
                Ok(id) => read::by_key(&tx, &app.keys, &query.db, &id).await?,
                Err(_) => None,
            };
            match head {
                None => batch.push(&NotFound {
                    key: serde_json::from_slice(key).map_err(|_| Broken)?,
                    error: "not_found",
                })?,
                Some(head) => batch.push(&row(app, &tx, query, head).await?)?,
            }
            if batch.is_full() {
                break;
            }
        }
        drop(tx);
        pieces.batch(&batch).await?;
    }
    Ok(())
}

/// The row of a key without a document.
#[derive(Serialize)]
struct NotFound<'a> {
    key: &'a RawValue,
    error: &'static str,
}

async fn row(app: &App, tx: &Transaction, query: &Query, head: Head) -> Result<Value, ApiError> {
    let mut row = json!({ "id": head.id, "key": head.id, "value": { "rev": head.rev } });
    if head.deleted {
        row["value"]["deleted"] = json!(true);
        if query.include_docs {
            row["doc"] = Value::Null;
        }
    } else if query.include_docs {
        let document = read::with_body(tx, &app.keys, &query.db, head).await?;
        row["doc"] = Value::Object(docs::shown(document, false));
    }
    Ok(row)
}

/// The number of documents before the first one of a range.
async fn count_before(app: &App, query: &Query) -> Result<usize, ApiError> {
    let stretch = Stretch {
        from: None,
        to: query.stretch.from.clone(),
        exclusive_end: true,
        descending: query.stretch.descending,
    };
    let (mut count, mut next) = (0, None);
    loop {
        let tx = app.store.begin().await?;
        let page = read::page(&tx, &app.keys, &query.db, &stretch, next, PAGE).await?;
        count += page.heads.len();
        next = page.next;
        if next.is_none() {
            return Ok(count);
        }
    }
}
