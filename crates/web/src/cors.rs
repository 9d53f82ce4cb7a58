//! Cross-origin resource sharing: which other sites' pages may use this server (`[chttpd] enable_cors` and `[cors]`, as in CouchDB).
//!
//! **Model.** A browser shows a response to a page of another origin only if the response names this origin. Before a request that a form could not
//! send, it asks for permission with a *preflight*: `OPTIONS` with the method and the headers of the request, and without credentials.
//!
//! **Rules.** Only configured origins get these headers, and only their pages may change something ([`super::cross_site`]). `*` is every origin. It never
//! comes with credentials: every page on the web could use the logins of its visitors. Methods and headers are what a preflight permits. They restrict
//! browsers only, so they protect nothing that the checks of identities do not.
//!
//! A preflight that is not permitted gets the answer of any other `OPTIONS`, without these headers. Source: CouchDB's `chttpd_cors`, and the Fetch standard.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, SERVER, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use turnwise_config::cors::{ANY, Cors};

use super::answer;

/// The headers of responses that scripts may read, beside those that browsers always show: CouchDB's list.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "content-type, cache-control, accept-ranges, etag, server, x-couch-request-id, x-couch-update-newrev, x-couchdb-body-time",
);

/// The sites that are configured.
pub struct Sites<'a>(pub &'a Cors);

impl Sites<'_> {
    /// The request's origin, if its pages may use this server.
    pub fn origin<'h>(&self, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        let mut given = headers.get_all(ORIGIN).iter();
        let (Some(origin), None, true) = (given.next(), given.next(), self.0.enabled) else { return None };
        (self.lists(origin) || self.0.origins.iter().any(|listed| listed == ANY)).then_some(origin)
    }

    /// Whether browsers send cookies with requests from this origin.
    pub fn has_credentials(&self, origin: &HeaderValue) -> bool {
        self.0.credentials && self.lists(origin)
    }

    /// Whether the origin is configured by its name. The match is exact, as the standard demands.
    fn lists(&self, origin: &HeaderValue) -> bool {
        self.0.origins.iter().any(|listed| listed != ANY && listed.as_bytes() == origin.as_bytes())
    }

    /// The response to a preflight that is permitted.
    pub fn preflight(&self, request: &Request) -> Option<Response> {
        if *request.method() != Method::OPTIONS {
            return None;
        }
        let headers = request.headers();
        let origin = self.origin(headers)?;
        let method = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
        if !self.0.methods.iter().any(|permitted| permitted.as_bytes() == method.as_bytes()) {
            return None;
        }
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
        let names = wanted.map_or(Ok(""), HeaderValue::to_str).ok()?;
        let mut names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        if !names.all(|name| self.0.headers.iter().any(|permitted| permitted.eq_ignore_ascii_case(name))) {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        self.name_origin(origin, &mut response);
        let wanted = wanted.cloned().unwrap_or_else(|| HeaderValue::from_static(""));
        let response = with(response, ACCESS_CONTROL_ALLOW_HEADERS, wanted);
        let response = with(response, ACCESS_CONTROL_MAX_AGE, self.0.max_age_s.into());
        let response =
            answer::with_header(response, ACCESS_CONTROL_ALLOW_METHODS, &self.0.methods.join(", "));
        Some(answer::with_header(response, SERVER, concat!("turnwise/", env!("CARGO_PKG_VERSION"))))
    }

    /// Lets pages of a permitted origin read the response.
    pub fn permit(&self, origin: Option<&HeaderValue>, mut response: Response) -> Response {
        if let Some(origin) = origin {
            self.name_origin(origin, &mut response);
            return with(response, ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        if self.0.enabled {
            vary(&mut response);
        }
        response
    }

    fn name_origin(&self, origin: &HeaderValue, response: &mut Response) {
        vary(response);
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if self.has_credentials(origin) {
            response.headers_mut().insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }
}

/// Also for requests without an origin: a cache must not give their response to a page.
fn vary(response: &mut Response) {
    response.headers_mut().append(VARY, HeaderValue::from_static("Origin"));
}

fn with(mut response: Response, name: HeaderName, value: HeaderValue) -> Response {
    response.headers_mut().insert(name, value);
    response
}
