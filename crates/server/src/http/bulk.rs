//! Many documents at once.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use turnwise_replicator::doc_processor;
use turnwise_replicator::documents::{Draft, Error, MAX_BODY_BYTES, Revision, databases, read};
use turnwise_store::{MaybeStoreError, Transaction};

use super::answer::{self, Batch, in_pieces, ok};
use super::error::ApiError;
use super::request::{self, REQUEST_BYTES};
use super::{App, Call, docs};

/// Documents that one transaction writes.
const WRITE_BATCH: usize = 100;
/// Bytes of bodies that one transaction writes: a document is written to its place and into its job.
const WRITE_BYTES: usize = 2 * MAX_BODY_BYTES;
/// Documents that one transaction reads.
const READ_BATCH: usize = 100;

/// Writes documents one by one, as in CouchDB: some may be in conflict while others are written. A document that
/// cannot be right is another matter: then nothing is written at all.
pub(super) async fn bulk_docs(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let body = request::json_object(body, &call.headers, REQUEST_BYTES).await?;
    if body.get("new_edits") == Some(&json!(false)) {
        return Err(docs::no_branches());
    }
    let Some(Value::Array(docs)) = body.get("docs") else {
        let reason = match body.get("docs") {
            None => "POST body must include `docs` parameter.",
            Some(_) => "`docs` parameter must be an array.",
        };
        return Err(ApiError::bad_request(reason));
    };
    let tx = app.store.begin().await?;
    databases::check(&tx, &app.keys, db).await?;
    let settings = app.settings.get();
    let mut drafts = Vec::with_capacity(docs.len());
    for doc in docs {
        let object =
            doc.as_object().ok_or_else(|| ApiError::bad_request("Document must be a JSON object"))?;
        let draft = Draft::parse(None, object.clone(), &app.new_uuid())?;
        doc_processor::check(&settings, &draft).map_err(|error| {
            let mut error = ApiError::from(error);
            error.reason = format!("{} (in document `{}`)", error.reason, draft.id);
            error
        })?;
        drafts.push(draft);
    }
    let mut rows = Vec::with_capacity(drafts.len());
    let mut rest = &drafts[..];
    while !rest.is_empty() {
        let batch = &rest[..batch_length(rest)];
        let written = write_batch(app, db, batch).await?;
        rest = &rest[written.len()..];
        rows.extend(written);
    }
    Ok(answer::json(StatusCode::CREATED, &rows))
}

/// How many documents go into the next transaction: at least one.
fn batch_length(drafts: &[Draft]) -> usize {
    let mut bytes = 0;
    let fitting = drafts.iter().take(WRITE_BATCH).take_while(|draft| {
        bytes += serde_json::to_vec(&draft.body).map_or(0, |body| body.len());
        bytes <= WRITE_BYTES
    });
    fitting.count().max(1)
}

/// Why one document of a batch stops its transaction.
enum BatchError {
    /// The document with this number cannot be written: the others can, without it.
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

/// Writes a batch in one transaction: at least its first document, and as many as the store takes at once. A document
/// that fails is left out, and the others are written again without it: half a document is never written. Returns what
/// became of each, in order.
async fn write_batch(app: &App, db: &str, batch: &[Draft]) -> Result<Vec<Value>, ApiError> {
    let (keys, settings) = (&app.keys, &app.settings.get());
    let mut failed: Vec<Option<Error>> = vec![None; batch.len()];
    let mut most = batch.len();
    let _turn = app.turn(db).await;
    loop {
        let (skipped, now_us, batch) = (&failed, app.now_us(), &batch[..most]);
        let written = app
            .store
            .transact(|tx| async move {
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
                        // Found out before anything was written for the document.
                        Err(error @ Error::Conflict) => rows.push(row_of_error(draft, error)),
                        Err(error) => return Err(BatchError::One(n, error)),
                    }
                }
                Ok(rows)
            })
            .await;
        let error = match written {
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

pub(super) async fn bulk_get(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let revs = call.params.flag("revs")?;
    let body = request::json_object(body, &call.headers, REQUEST_BYTES).await?;
    let Some(Value::Array(wanted)) = body.get("docs") else {
        return Err(ApiError::bad_request("Missing JSON list of 'docs'."));
    };
    let wanted: Vec<(String, Option<String>)> = wanted
        .iter()
        .map(|row| {
            let id = row["id"].as_str().ok_or_else(|| ApiError::bad_request("document id missed"))?;
            Ok((id.to_owned(), row["rev"].as_str().map(str::to_owned)))
        })
        .collect::<Result<_, ApiError>>()?;
    let tx = app.store.begin().await?;
    databases::check(&tx, &app.keys, db).await?;
    let (app, db) = (app.clone(), db.to_owned());
    Ok(in_pieces(async move |mut pieces| {
        let written = async {
            pieces.text("{\"results\":[\n").await?;
            let mut wanted = wanted.iter().peekable();
            while wanted.peek().is_some() {
                let tx = app.store.begin().await?;
                let mut batch = Batch::default();
                for (id, rev) in wanted.by_ref().take(READ_BATCH) {
                    let doc = found(&app, &tx, &db, id, rev.as_deref(), revs).await?;
                    batch.push(&json!({ "id": id, "docs": [doc] }))?;
                    if batch.is_full() {
                        break;
                    }
                }
                drop(tx);
                pieces.batch(&batch).await?;
            }
            Ok(pieces.text("\n]}\n").await?)
        };
        let written = written.await;
        (pieces, written)
    }))
}

/// What `_bulk_get` says of one document.
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
        // Nothing is known of the document: the answer breaks off.
        Err(Error::Queue(error)) => Err(error.into()),
        Err(error) => {
            let error = ApiError::from(error);
            let rev = rev.unwrap_or("undefined");
            let (code, reason) = (error.error, error.reason);
            Ok(json!({ "error": { "id": id, "rev": rev, "error": code, "reason": reason } }))
        }
    }
}

/// Which of the given revisions are not known here.
pub(super) async fn revs_diff(app: &App, call: &Call, body: Body, db: &str) -> Result<Response, ApiError> {
    let body = request::json_object(body, &call.headers, REQUEST_BYTES).await?;
    let mut missing = Map::new();
    let wanted: Vec<(&String, &Value)> = body.iter().collect();
    for batch in wanted.chunks(READ_BATCH) {
        let tx = app.store.begin().await?;
        databases::check(&tx, &app.keys, db).await?;
        for (id, revs) in batch {
            let head = read::by_key(&tx, &app.keys, db, id).await?;
            let revs = revs.as_array().ok_or_else(|| ApiError::bad_request("revisions must be an array"))?;
            let mut unknown = Vec::new();
            for rev in revs {
                let text = rev.as_str().ok_or_else(|| ApiError::bad_request("Invalid rev format"))?;
                let parsed: Revision = text.parse()?;
                if !head.as_ref().is_some_and(|head| head.has(&parsed)) {
                    unknown.push(rev.clone());
                }
            }
            if !unknown.is_empty() {
                missing.insert((*id).clone(), json!({ "missing": unknown }));
            }
        }
    }
    Ok(ok(&missing))
}
