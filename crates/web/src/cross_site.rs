//! Rejects requests that a page of another site can make a browser send, before a handler reads them.
//!
//! **Model.** A browser that has a session, or reaches the port of a store without identities, may use turnwise. The browser
//! also runs pages of other sites. Such a page can send requests without permission in three ways. It can use its
//! own name, whose DNS record it points at this server (rebinding, which also lets it read the responses). It can send
//! a form (`POST` with one of three content types, or with none). And its script can send requests, with the page's
//! origin in the header `Origin`.
//!
//! **Rules.** `Host` must be a name of this listener. A `POST` must have the content type JSON, which no form can send.
//! The login also takes forms, as CouchDB's does.
//! The pages (`/ui`) take forms alone, with proof that a page of this server has sent them: its origin, in a header that no page can set.
//! A method that changes data must not come from another origin, by `Origin` or by `Sec-Fetch-Site`, unless the origin is configured
//! ([`super::cors`]). Programs other than browsers do not send what these rules reject, with one exception: they may use a name that the server does not
//! know. `[listener] names` adds such names.

use async_recursion::async_recursion as boxed;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::Web;
use super::cors::Sites;
use super::names::{is_login, is_page, is_v1};
use super::request;
use super::v1_error::V1Error;

/// Rejects requests that a page of another site may have sent, and answers preflights: they carry no credentials, so nothing behind this may see them.
#[boxed]
pub async fn check(State(web): State<Web>, request: Request, next: Next) -> Response {
    let config = web.config.get();
    let cors = &Sites(&config.cors);
    let host = match web.names.check_host(&request) {
        Ok(host) => host,
        Err(error) => return web.refuse(&request, error),
    };
    if let Some(permitted) = cors.preflight(&request) {
        return permitted;
    }
    let origin = cors.origin(request.headers()).cloned();
    // `/v1` checks the content type in its routes, so that an unknown path or method gets its own error, whatever the type.
    let checked = web.names.check_origin(&request, host.as_ref(), cors);
    let checked = checked.and_then(|()| match is_v1(&request) || is_page(&request) {
        true => Ok(()),
        false => json(&request),
    });
    let response = match checked {
        Ok(()) => next.run(request).await,
        Err(error) => web.refuse(&request, error),
    };
    cors.permit(origin.as_ref(), response)
}

/// Rejects a body with a content type that a page of another site can send without permission.
#[boxed]
pub async fn check_json(State(web): State<Web>, request: Request, next: Next) -> Response {
    match json(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => web.refuse(&request, error),
    }
}

fn json(request: &Request) -> Result<(), V1Error> {
    // A login with a form is guarded by the origin alone: what a stranger's page could do is to log a browser in.
    match *request.method() == Method::POST && !is_login(request) {
        true => request::check_json(request.headers()),
        false => Ok(()),
    }
}
