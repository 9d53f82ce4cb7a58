//! Answers that lead to another page.

use axum::http::{StatusCode, header};
use axum::response::Response;
use turnwise_web::answer;

/// The first page.
pub(super) const HOME: &str = "/ui/";
/// Continues at another page.
pub(super) fn redirect(path: &str) -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SEE_OTHER;
    answer::with_header(response, header::LOCATION, path)
}
