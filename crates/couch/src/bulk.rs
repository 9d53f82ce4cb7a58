//! Requests for many documents.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use turnwise_replicator::doc_processor;
use turnwise_replicator::documents::{Draft, Error, Head, MAX_BODY_BYTES, Revision, databases, read};
use turnwise_store::{MaybeStoreError, Transaction};
use turnwise_web::answer::{Batch, in_pieces};
use turnwise_web::error::{ApiError, internal};
use turnwise_web::request::{REQUEST_BYTES, Sent};
use turnwise_web::room::Cost;
use turnwise_web::rows::{NoArray, Rows};
use turnwise_web::{answer, request};

use super::app::App;
use super::call::Call;
use super::docs;

/// Number of documents that one transaction writes.
const WRITE_BATCH: usize = 100;
/// Total size of the bodies that one transaction writes, in bytes. A document is written twice: as a row, and into its job.
const WRITE_BYTES: usize = 2 * MAX_BODY_BYTES;
/// Number of documents that one transaction reads.
const READ_BATCH: usize = 100;

/// Writes documents independently, as in CouchDB: some may conflict while others are written. But if one document is
/// invalid, none is written.
pub async fn bulk_docs(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let (body, _room) =
        request::json_rows(&app.body_room, body, call.sender(), ("docs", REQUEST_BYTES), Cost::DOCUMENTS)
            .await?;
    if body.members.get("new_edits") == Some(&json!(false)) {
        return Err(docs::no_branches());
    }
    let docs = match body.rows {
        None => return Err(ApiError::bad_request("POST body must include `docs` parameter.")),
        Some(Err(NoArray)) => return Err(ApiError::bad_request("`docs` parameter must be an array.")),
        Some(Ok(docs)) => docs,
    };
    let tx = app.store.begin().await?;
    databases::check(&tx, &app.keys, db).await?;
    drop(tx);
    // The documents are parsed twice, so that memory never holds more of them than one transaction writes.
    let (own, bytes) = (app.clone(), docs.bytes());
    let docs = request::beside(bytes, move || check_all(&own, &docs).map(|()| docs)).await??;
    let (mut rows, mut done) = (b"[".to_vec(), 0);
    while done < docs.len() {
        let batch = next_batch(app, &docs, done)?;
        let written = write_batch(app, call, db, &batch).await?;
        for row in &written {
            if done > 0 {
                rows.push(b',');
            }
            serde_json::to_writer(&mut rows, row).map_err(|error| internal(&error))?;
            done += 1;
        }
    }
    rows.extend_from_slice(b"]\n");
    Ok(answer::respond(StatusCode::CREATED, rows.into()))
}

/// Checks each document without reading the store.
fn check_all(app: &App, docs: &Rows) -> Result<(), ApiError> {
    let settings = app.settings.get();
    docs.iter().try_for_each(|text| {
        let draft = draft(app, text)?;
        doc_processor::check(&settings, &draft).map_err(|error| {
            let mut error = ApiError::from(error);
            error.reason = format!("{} (in document `{}`)", error.reason, draft.id);
            error
        })
    })
}

fn draft(app: &App, text: &[u8]) -> Result<Draft, ApiError> {
    let object = request::object(text, "Document must be a JSON object")?;
    Ok(Draft::parse(None, object, &app.new_uuid())?)
}

/// The documents of the next transaction, from the `nth` on: at least one.
fn next_batch(app: &App, docs: &Rows, nth: usize) -> Result<Vec<Draft>, ApiError> {
    let mut drafts = Vec::new();
    let mut bytes = 0;
    for nth in (nth..docs.len()).take(WRITE_BATCH) {
        bytes += docs.get(nth).len();
        if bytes > WRITE_BYTES && !drafts.is_empty() {
            break;
        }
        drafts.push(draft(app, docs.get(nth))?);
    }
    Ok(drafts)
}

/// Why a document of a batch ended its transaction.
enum BatchError {
    /// The document with this number cannot be written. The others can be written without it.
    One(usize, Error),
    Store(turnwise_store::Error),
}

impl From<turnwise_store::Error> for BatchError {
    fn from(error: turnwise_store::Error) -> Self {
        BatchError::Store(error)
    }
}

impl MaybeStoreError for BatchError {
    fn store_error(&self) -> Option<&turnwise_store::Error> {
        match self {
            BatchError::Store(error) => Some(error),
            BatchError::One(_, error) => error.store_error(),
        }
    }
}

/// Writes a batch in one transaction: at least its first document, and as many as the store allows. If a document
/// fails, the transaction is repeated without it, so that no document is written partially. Returns the result of each
/// document, in order.
async fn write_batch(app: &App, call: &Call, db: &str, batch: &[Draft]) -> Result<Vec<Value>, ApiError> {
    let (keys, settings) = (&app.keys, &app.settings.get());
    let mut failed: Vec<Option<Error>> = vec![None; batch.len()];
    let mut most = batch.len();
    let _turn = app.turn(db).await;
    loop {
        let (skipped, now_us, batch) = (&failed, app.now_us(), &batch[..most]);
        let written = app.store.transact(|tx| async move {
            let mut rows = Vec::with_capacity(batch.len());
            for (n, draft) in batch.iter().enumerate() {
                if n > 0 && !tx.has_room() {
                    break;
                }
                if let Some(error) = &skipped[n] {
                    rows.push(row_of_error(draft, error.clone()));
                    continue;
                }
                match doc_processor::write(&tx, keys, settings, db, draft, now_us).await {
                    Ok(written) => rows.push(json!({ "ok": true, "id": written.id, "rev": written.rev })),
                    // The conflict was detected before anything was written for the document.
                    Err(error @ Error::Conflict) => rows.push(row_of_error(draft, error)),
                    Err(error) => return Err(BatchError::One(n, error)),
                }
            }
            Ok(rows)
        });
        let error = match app.traced(&call.headers, written).await {
            Ok(rows) => return Ok(rows),
            Err(error) => error,
        };
        let too_much = error.store_error().is_some_and(turnwise_store::Error::is_too_much);
        match error {
            BatchError::One(n, _) if too_much && n > 0 => most = n,
            BatchError::Store(_) if too_much && most > 1 => most /= 2,
            BatchError::One(n, error) if too_much => failed[n] = Some(error),
            BatchError::Store(error) => return Err(error.into()),
            BatchError::One(_, error @ (Error::Queue(_) | Error::NoDatabase)) => return Err(error.into()),
            BatchError::One(n, error) => failed[n] = Some(error),
        }
    }
}

fn row_of_error(draft: &Draft, error: Error) -> Value {
    let error = ApiError::from(error);
    json!({ "id": draft.id, "error": error.error, "reason": error.reason })
}

pub async fn bulk_get(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let revs = call.params.flag("revs")?;
    let (body, room) =
        request::json_rows(&app.body_room, body, call.sender(), ("docs", REQUEST_BYTES), Cost::ROWS).await?;
    let Some(Ok(wanted)) = body.rows else {
        return Err(ApiError::bad_request("Missing JSON list of 'docs'."));
    };
    let bytes = wanted.bytes();
    let check = move || {
        wanted.iter().try_for_each(|row| Wanted::parse(row).map(drop))?;
        Ok::<_, ApiError>(wanted)
    };
    let wanted = request::beside(bytes, check).await??;
    let tx = app.store.begin().await?;
    databases::check(&tx, &app.keys, db).await?;
    let (app, db) = (app.clone(), db.to_owned());
    Ok(in_pieces(async move |mut pieces| {
        let _room = room;
        pieces.text("{\"results\":[\n").await?;
        let mut rows = wanted.iter().peekable();
        while rows.peek().is_some() {
            let tx = app.store.begin().await?;
            let mut batch = Batch::default();
            for row in rows.by_ref().take(READ_BATCH) {
                let Wanted { id, rev } = Wanted::parse(row)?;
                let doc = found(&app, &tx, &db, &id, rev.as_deref(), revs).await?;
                batch.push(&json!({ "id": id, "docs": [doc] }))?;
                if batch.is_full() {
                    break;
                }
            }
            drop(tx);
            pieces.batch(&batch).await?;
        }
        pieces.text("\n]}\n").await?;
        Ok(pieces)
    }))
}

/// A document that `_bulk_get` requests.
struct Wanted {
    id: String,
    rev: Option<String>,
}

impl Wanted {
    fn parse(row: &[u8]) -> Result<Wanted, ApiError> {
        #[derive(Deserialize)]
        struct Row<'a> {
            #[serde(borrow)]
            id: Option<&'a RawValue>,
            #[serde(borrow)]
            rev: Option<&'a RawValue>,
        }
        let text = |value: Option<&RawValue>| serde_json::from_str::<String>(value?.get()).ok();
        let row = serde_json::from_slice::<Row<'_>>(row).ok();
        let (id, rev) = row.map_or((None, None), |row| (text(row.id), text(row.rev)));
        Ok(Wanted { id: id.ok_or_else(|| ApiError::bad_request("document id missed"))?, rev })
    }
}

/// The result of `_bulk_get` for one document.
async fn found(
    app: &App,
    tx: &Transaction,
    db: &str,
    id: &str,
    rev: Option<&str>,
    revs: bool,
) -> Result<Value, ApiError> {
    let found = match rev.map(str::parse::<Revision>).transpose() {
        Ok(parsed) => read::get(tx, &app.keys, db, id, parsed.as_ref()).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(document) => Ok(json!({ "ok": docs::shown(document, revs) })),
        // The store failed, so nothing is known about the document: the response is truncated.
        Err(Error::Queue(error)) => Err(error.into()),
        Err(error) => {
            let error = ApiError::from(error);
            let rev = rev.unwrap_or("undefined");
            let (code, reason) = (error.error, error.reason);
            Ok(json!({ "error": { "id": id, "rev": rev, "error": code, "reason": reason } }))
        }
    }
}

/// Returns those of the given revisions that do not exist here.
pub async fn revs_diff(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let Sent { text, room: _room } =
        request::bytes(&app.body_room, body, call.sender(), REQUEST_BYTES, Cost::REVISIONS).await?;
    let rows = request::beside(text.len(), move || Rows::of_object(text)).await?;
    let rows = rows.map_err(|error| request::wrong_json(&error, "Request body must be a JSON object"))?;
    let mut answer = b"{".to_vec();
    for first in (0..rows.len()).step_by(2 * READ_BATCH) {
        let tx = app.store.begin().await?;
        databases::check(&tx, &app.keys, db).await?;
        for nth in (first..rows.len().min(first + 2 * READ_BATCH)).step_by(2) {
            let id: String = serde_json::from_slice(rows.get(nth))
                .map_err(|_| ApiError::bad_request("Invalid document id"))?;
            let head = read::by_key(&tx, &app.keys, db, &id).await?;
            let revs = Bytes::copy_from_slice(rows.get(nth + 1));
            let revs = request::beside(revs.len(), move || Rows::of_array(revs)).await?;
            let Ok(Ok(revs)) = revs else { return Err(ApiError::bad_request("revisions must be an array")) };
            write_missing(&mut answer, rows.get(nth), &revs, head.as_ref())?;
        }
    }
    if rows.is_empty() {
        databases::check(&app.store.begin().await?, &app.keys, db).await?;
    }
    answer.extend_from_slice(b"}\n");
    Ok(answer::respond(StatusCode::OK, answer.into()))
}

/// Adds the missing revisions of a document.
fn write_missing(answer: &mut Vec<u8>, id: &[u8], revs: &Rows, head: Option<&Head>) -> Result<(), ApiError> {
    let before = answer.len();
    for rev in revs.iter() {
        let text: String =
            serde_json::from_slice(rev).map_err(|_| ApiError::bad_request("Invalid rev format"))?;
        let parsed: Revision = text.parse()?;
        if head.is_some_and(|head| head.has(&parsed)) {
            continue;
        }
        if answer.len() == before {
            if answer.len() > 1 {
                answer.push(b',');
            }
            answer.extend_from_slice(id);
            answer.extend_from_slice(b":{\"missing\":[");
        } else {
            answer.push(b',');
        }
        answer.extend_from_slice(rev);
    }
    if answer.len() > before {
        answer.extend_from_slice(b"]}");
    }
    Ok(())
}
