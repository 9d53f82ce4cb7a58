//! The result of a handler, and the errors of requests that reach none.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use turnwise_protocol::codes;

pub use turnwise_web::v1_error::V1Error;

/// The result of a handler.
pub type Result<T, E = V1Error> = std::result::Result<T, E>;

/// The response for unknown paths.
pub(super) async fn no_such_path() -> V1Error {
    let hint = "GET /v1/openapi.json lists all paths; ids in paths are percent-encoded";
    V1Error::not_found("there is nothing under this path", hint)
}

/// The response for methods that a path does not support. The router adds the header `Allow`.
pub(super) async fn no_such_method(request: Request) -> V1Error {
    let method = request.method();
    // Clients may invent methods, and these may be long.
    let known = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];
    let method = if known.contains(method) { method.as_str() } else { "this method" };
    V1Error::new(
        StatusCode::METHOD_NOT_ALLOWED,
        codes::METHOD_NOT_ALLOWED,
        format!("{method} is not allowed here"),
        "the header Allow has the methods that are",
    )
}
