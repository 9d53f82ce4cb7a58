//! `GET /v1/openapi.json`: the API's description, generated from the code.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use turnwise_web::answer;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// The parts of the description other than paths and schemas.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "turnwise",
        description = "The HTTP API of the turnwise job server: clients add jobs and follow them, and workers in any language \
            run them. `docs/concepts.md` defines the terms.\n\nRequests are JSON objects; the server rejects members that are not \
            described here, and integers with a fraction (`2.0`). A body may be compressed, with `Content-Encoding: gzip`; the limits hold for \
            what it decompresses to. Responses may get new members. Units are in the names: `_us` is microseconds since the Unix epoch, \
            `_ms` a duration in milliseconds. Names in paths are percent-encoded, and their limits are in bytes of UTF-8. Every \
            error with a body has the same shape: a stable code, a reason, and a hint.\n\nThe server also has CouchDB's paths for \
            replications (`/_replicate`, `/_replicator`, `/_scheduler`, `/_active_tasks`).",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "jobs", description = "For clients: add, list, get, wait, follow, cancel, retry, remove."),
        (name = "schedules", description = "For clients: jobs that the server adds again and again."),
        (name = "events", description = "For clients: what happens to all jobs, as it happens, as a stream or sent to a URL."),
        (name = "bulk", description = "For clients: one change to all jobs that meet a condition."),
        (name = "workers", description = "For workers: register, ping, accept, update, lock, finish, fail, snooze, release, end, leave."),
        (name = "tenants", description = "For users and operators: the shares and run time of each tenant, the queue, and why a job waits."),
        (name = "locks", description = "For users and operators: the jobs that hold locks or wait for them."),
        (name = "indexes", description = "For users and operators: the indexes of CouchDBs that turnwise keeps up to date."),
        (name = "filters", description = "For operators: the rules that decide which waiting jobs may start."),
        (name = "identities", description = "For administrators: users, tokens, and what each may do."),
        (name = "nodes", description = "For operators: the servers that share the store, and the state of the store."),
    ),
    components(schemas(
        turnwise_protocol::JobEvent, turnwise_protocol::Progress, turnwise_protocol::Removed, turnwise_protocol::Job,
        turnwise_protocol::stream::Opened, turnwise_protocol::stream::StreamEvent, turnwise_protocol::Delivery,
    )),
    modifiers(&Credentials),
    security(("token" = []), ("password" = []), ("session" = [])),
)]
pub(super) struct Description;

/// The credentials of requests. A server whose store has no identities ignores them.
struct Credentials;

impl Modify for Credentials {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let components = description.components.get_or_insert_default();
        let http = |scheme, about: &str| {
            SecurityScheme::Http(HttpBuilder::new().scheme(scheme).description(Some(about)).build())
        };
        let token =
            "A token, or a JSON Web Token. A server whose store has no identities needs no credentials.";
        components.add_security_scheme("token", http(HttpAuthScheme::Bearer, token));
        components.add_security_scheme("password", http(HttpAuthScheme::Basic, "A name and a password."));
        let cookie =
            ApiKeyValue::with_description("AuthSession", "A session, which `POST /_session` starts.");
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    }
}

/// The description as text.
pub(super) fn text(description: &utoipa::openapi::OpenApi) -> Bytes {
    let mut text = serde_json::to_string_pretty(description).expect("it is plain data with string keys");
    text.push('\n');
    text.into()
}

/// The response with the description.
pub(super) fn answer(text: Bytes) -> Response {
    let mut response = answer::respond(axum::http::StatusCode::OK, text.into());
    let public = HeaderValue::from_static("public, max-age=60");
    response.headers_mut().insert(header::CACHE_CONTROL, public);
    response
}
