//! Databases: information, creation, deletion.

use axum::http::{StatusCode, header};
use axum::response::Response;
use serde_json::json;
use turnwise_replicator::doc_processor;
use turnwise_replicator::documents::{Error, databases, names};
use turnwise_web::answer;
use turnwise_web::answer::{ok, with_header};
use turnwise_web::error::{ApiError, internal};

use super::app::App;
use super::call::Call;

pub async fn info(app: &App, db: &str) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    let (database, counters) = find(databases::info(&tx, &app.keys, db).await)?;
    Ok(ok(&json!({
        "instance_start_time": instance_start_time(&database),
        "db_name": db,
        "purge_seq": "0",
        "update_seq": counters.sequence.to_string(),
        "sizes": { "file": 0, "external": 0, "active": 0 },
        "props": {},
        "doc_del_count": counters.deleted,
        "doc_count": counters.documents,
        "disk_format_version": 8,
        "compact_running": false,
        "cluster": { "q": 1, "n": 1, "w": 1, "r": 1 },
    })))
}

/// The creation time, by which replicators detect that a new database has the same name.
fn instance_start_time(database: &databases::Database) -> String {
    (database.created_us / 1_000_000).to_string()
}

/// For reads, an invalid name is a database that does not exist.
fn find<T>(found: Result<T, Error>) -> Result<T, ApiError> {
    found.map_err(|error| match error {
        Error::IllegalName(_) => Error::NoDatabase.into(),
        error => error.into(),
    })
}

pub async fn create(app: &App, call: &Call, db: &str) -> Result<Response, ApiError> {
    make(app, db).await?;
    let response = answer::json(StatusCode::CREATED, &json!({ "ok": true }));
    Ok(with_header(response, header::LOCATION, &call.location(db, None)))
}

/// Creates a database.
pub async fn make(app: &App, db: &str) -> Result<(), ApiError> {
    if names::is_mirror(db) {
        let reason = "names that begin with `upstream/` are reserved for mirrors, which turnwise creates if `[upstream] url` is set: \
                      create the database on that server, or choose another name";
        return Err(ApiError::forbidden(reason));
    }
    let (keys, now_us) = (&app.keys, app.now_us());
    let created =
        app.store.transact(|tx| async move { databases::create(&tx, keys, db, now_us).await }).await;
    created.map_err(|error| match error {
        Error::NotReplicator(_) => ApiError::forbidden(error.to_string()),
        error => error.into(),
    })
}

pub async fn delete(app: &App, db: &str) -> Result<Response, ApiError> {
    let (app, db) = (app.clone(), db.to_owned());
    // Runs in its own task: if the client disconnects, its request is dropped, and the database would stay partially deleted.
    let deletion =
        tokio::spawn(async move { doc_processor::delete_database(&app.store, &app.keys, &db).await });
    find(deletion.await.map_err(|error| internal(&error))?)?;
    Ok(ok(&json!({ "ok": true })))
}

/// Every acknowledged write is durable, so there is nothing to do.
pub async fn ensure_full_commit(app: &App, db: &str) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    let database = find(databases::check(&tx, &app.keys, db).await)?;
    let body = json!({ "ok": true, "instance_start_time": instance_start_time(&database) });
    Ok(answer::json(StatusCode::CREATED, &body))
}

pub async fn security(app: &App, db: &str) -> Result<Response, ApiError> {
    let tx = app.store.begin().await?;
    find(databases::check(&tx, &app.keys, db).await)?;
    Ok(ok(&json!({ "members": { "roles": ["_admin"] }, "admins": { "roles": ["_admin"] } })))
}
