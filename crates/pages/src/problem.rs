//! Problems as pages: what was not possible, and what to do.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use turnwise_api::V1Error;
use turnwise_web::error::ApiError;
use turnwise_web::v1_error::with_headers;

use super::layout::{self, Shell};
use super::visit::Visit;

/// The result of a page.
pub(super) type Result<T, E = Problem> = std::result::Result<T, E>;

/// Why a page cannot be shown, or why an action failed.
#[derive(Debug)]
pub(super) struct Problem {
    pub status: StatusCode,
    /// What happened, as a part of a sentence.
    pub reason: String,
    /// What the person can do; may be empty.
    pub hint: String,
    retry_after_s: Option<u64>,
}

impl Problem {
    fn new(status: StatusCode, reason: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem { status, reason: reason.into(), hint: hint.into(), retry_after_s: None }
    }

    /// A field of a query or a form is invalid.
    pub fn bad(reason: impl Into<String>, hint: &'static str) -> Problem {
        Self::new(StatusCode::BAD_REQUEST, reason, hint)
    }

    /// A form asks for something that no button asks for.
    pub fn unknown_action() -> Problem {
        Self::bad("this action is unknown", "use a button of a page")
    }

    /// The problem, if the person can correct the form that it is about. Otherwise the problem is the answer.
    pub fn correctable(self) -> Result<Problem> {
        if self.status.is_server_error() { Err(self) } else { Ok(self) }
    }

    /// Whether the reason begins with the name of this field.
    pub fn is_about(&self, field: &str) -> bool {
        self.reason.split(':').next() == Some(field)
    }

    /// The reason and the hint as sentences.
    pub fn text(&self) -> String {
        let hint = if self.hint.is_empty() { String::new() } else { format!(" {}", sentence(&self.hint)) };
        format!("{}{hint}", sentence(&self.reason))
    }

    /// The problem above a form.
    pub fn alert(&self) -> Markup {
        html! { p.problem role="alert" { (self.text()) } }
    }

    pub fn nothing_here(visit: &Visit) -> Problem {
        let path = visit.here.split('?').next().unwrap_or_default();
        Self::new(StatusCode::NOT_FOUND, format!("there is no page {path}"), "the navigation lists all pages")
    }

    /// An error that only a bug can cause.
    pub fn internal(error: &dyn std::error::Error) -> Problem {
        V1Error::internal(error).into()
    }

    pub fn panicked() -> Problem {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server failed to make this page",
            "the server's log has the reason; the request is not the cause",
        )
    }

    /// The page that says so.
    pub fn page(self, shell: &Shell) -> Response {
        let title = match self.status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::UNAUTHORIZED => "Not logged in",
            StatusCode::TOO_MANY_REQUESTS => "Too many requests",
            StatusCode::SERVICE_UNAVAILABLE => "Not available now",
            status if status.is_server_error() => "The server failed",
            _ => "Not possible",
        };
        let page = layout::page(
            shell,
            title,
            html! {
                h1 { (title) }
                p.lead { (sentence(&self.reason)) }
                @if !self.hint.is_empty() { p { (sentence(&self.hint)) } }
                p {
                    @if self.status == StatusCode::UNAUTHORIZED { a.button href="/ui/login" { "Log in" } }
                    a.button href=(super::redirect::HOME) { "Overview" }
                }
            },
        );
        let (mut parts, body) = page.into_parts();
        parts.status = self.status;
        with_headers(Response::from_parts(parts, body), self.status, self.retry_after_s)
    }
}

/// A page with the form that has this problem, if there is one.
pub(super) fn with_status(mut page: Response, problem: Option<&Problem>) -> Response {
    *page.status_mut() = problem.map_or(StatusCode::OK, |problem| problem.status);
    page
}

/// The text of an error as a sentence.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

impl From<V1Error> for Problem {
    fn from(error: V1Error) -> Self {
        error.log();
        let V1Error { status, reason, hint, retry_after_s, .. } = error;
        Problem { retry_after_s, ..Self::new(status, reason, hint) }
    }
}

impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        error.log();
        Self::new(error.status, error.reason, "")
    }
}

/// What these errors are in the API, they are on a page.
macro_rules! as_in_the_api {
    ($($error:ty),*) => {
        $(impl From<$error> for Problem {
            fn from(error: $error) -> Self {
                V1Error::from(error).into()
            }
        })*
    };
}

as_in_the_api!(turnwise_store::Error, turnwise_queue::Error, turnwise_protocol::Problem);
