//! The pages for people, under `/ui/`: HTML that this server renders.
//!
//! ```text
//!   request ──▶ serve: the row's right, the query, the form ──▶ a page: views over the functions of `/v1` ──▶ layout
//! ```
//!
//! A page is a file, and a row in [`ROUTES`] with its right. If it has an entry in the navigation, it is also a row in
//! [`layout::NAVIGATION`]. Pages read through the same functions as `/v1`, which ask the [`Caller`](turnwise_web::access::Caller) what it may see. A
//! page works without JavaScript; `static/app.js` makes it quicker, and refreshes it.
//! `docs/design/observability.md` explains the design.

mod act;
mod app;
mod assets;
mod attempts;
mod audit;
mod bulk;
mod chart;
mod filters;
mod format;
mod graph;
mod groups;
mod help;
mod history;
mod identities;
mod indexes;
mod job;
mod job_new;
mod jobs;
mod json;
mod layout;
mod life;
mod locks;
mod log;
mod login;
mod output;
mod overview;
mod parts;
mod problem;
mod redirect;
mod replication;
mod replication_new;
mod replications;
mod schedules;
mod settings;
mod tenants;
mod visit;
mod webhooks;
mod what_if;
mod workers;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use futures::FutureExt as _;
use turnwise_web::access::rights::Right;
use turnwise_web::answer;
use turnwise_web::v1_error::V1Error;

use self::layout::Shell;
use self::problem::{Problem, Result};
use self::redirect::{HOME, redirect};
use self::visit::Visit;

pub use self::app::App;

/// What browsers may load and send on behalf of a page: nothing from elsewhere, and no code or style within the HTML.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

type Answer = Pin<Box<dyn Future<Output = Result<Response>> + Send>>;

/// A page, or an action of a page.
struct Route {
    method: MethodFilter,
    path: &'static str,
    right: Right,
    handle: fn(Visit) -> Answer,
}

const fn get(path: &'static str, right: Right, handle: fn(Visit) -> Answer) -> Route {
    Route { method: MethodFilter::GET, path, right, handle }
}

const fn post(path: &'static str, right: Right, handle: fn(Visit) -> Answer) -> Route {
    Route { method: MethodFilter::POST, path, right, handle }
}

/// Every page and action, with its right.
const ROUTES: &[Route] = &[
    get("/_utils", Right::Anyone, |_| Box::pin(async { Ok(redirect(HOME)) })),
    get("/_utils/", Right::Anyone, |_| Box::pin(async { Ok(redirect(HOME)) })),
    get("/ui", Right::Anyone, |_| Box::pin(async { Ok(redirect(HOME)) })),
    get("/ui/static/{file}", Right::Anyone, |visit| Box::pin(async move { assets::file(&visit) })),
    get("/ui/login", Right::Anyone, |visit| Box::pin(login::page(visit))),
    post("/ui/login", Right::Anyone, |visit| Box::pin(login::log_in(visit))),
    post("/ui/logout", Right::Anyone, |visit| Box::pin(login::log_out(visit))),
    get("/ui/help", Right::Anyone, |visit| Box::pin(help::page(visit))),
    get("/ui/jobs", Right::Read, |visit| Box::pin(jobs::page(visit))),
    get("/ui/jobs/new", Right::Write, |visit| Box::pin(job_new::page(visit))),
    post("/ui/jobs/new", Right::Write, |visit| Box::pin(job_new::add(visit))),
    post("/ui/jobs/act", Right::Write, |visit| Box::pin(act::act(visit))),
    post("/ui/jobs/hold", Right::Write, |visit| Box::pin(act::hold(visit))),
    get("/ui/bulk", Right::Read, |visit| Box::pin(bulk::page(visit))),
    get("/ui/bulk/ask", Right::Write, |visit| Box::pin(bulk::ask(visit))),
    post("/ui/bulk", Right::Write, |visit| Box::pin(bulk::act(visit))),
    get("/ui/job", Right::Read, |visit| Box::pin(job::page(visit))),
    get("/ui/tenants", Right::Read, |visit| Box::pin(tenants::page(visit))),
    get("/ui/tenants/shares", Right::Operate, |visit| Box::pin(what_if::page(visit))),
    post("/ui/tenants/shares/save", Right::Operate, |visit| Box::pin(what_if::save_all(visit))),
    post("/ui/tenants/shares", Right::Operate, |visit| Box::pin(tenants::set_shares(visit))),
    get("/ui/history", Right::Read, |visit| Box::pin(history::page(visit))),
    get("/ui/replications", Right::Read, |visit| Box::pin(replications::page(visit))),
    get("/ui/replications/new", Right::Write, |visit| Box::pin(replication_new::page(visit))),
    post("/ui/replications/new", Right::Write, |visit| Box::pin(replication_new::add(visit))),
    get("/ui/replication", Right::Read, |visit| Box::pin(replication::page(visit))),
    post("/ui/replication", Right::Write, |visit| Box::pin(replication::act(visit))),
    get("/ui/schedules", Right::Read, |visit| Box::pin(schedules::page(visit))),
    post("/ui/schedules", Right::Write, |visit| Box::pin(schedules::act(visit))),
    get("/ui/schedule", Right::Read, |visit| Box::pin(schedules::one(visit))),
    get("/ui/groups", Right::Read, |visit| Box::pin(groups::page(visit))),
    post("/ui/groups", Right::Write, |visit| Box::pin(groups::act(visit))),
    get("/ui/group", Right::Read, |visit| Box::pin(groups::one(visit))),
    get("/ui/indexes", Right::Read, |visit| Box::pin(indexes::page(visit))),
    get("/ui/locks", Right::Read, |visit| Box::pin(locks::page(visit))),
    get("/ui/workers", Right::Operate, |visit| Box::pin(workers::page(visit))),
    post("/ui/workers", Right::Operate, |visit| Box::pin(workers::act(visit))),
    get("/ui/settings", Right::Operate, |visit| Box::pin(settings::page(visit))),
    post("/ui/settings", Right::Operate, |visit| Box::pin(settings::act(visit))),
    get("/ui/filters", Right::Operate, |visit| Box::pin(filters::page(visit))),
    post("/ui/filters", Right::Operate, |visit| Box::pin(filters::act(visit))),
    get("/ui/webhooks", Right::Write, |visit| Box::pin(webhooks::page(visit))),
    post("/ui/webhooks", Right::Write, |visit| Box::pin(webhooks::act(visit))),
    get("/ui/identities", Right::Administer, |visit| Box::pin(identities::page(visit))),
    post("/ui/identities/users", Right::Administer, |visit| Box::pin(identities::user(visit))),
    post("/ui/identities/tokens", Right::Administer, |visit| Box::pin(identities::token(visit))),
    post("/ui/identities/act", Right::Administer, |visit| Box::pin(identities::act(visit))),
    get("/ui/audit", Right::Administer, |visit| Box::pin(audit::page(visit))),
    get(HOME, Right::Read, |visit| Box::pin(overview::page(visit))),
];

/// Everything under `/ui`, and CouchDB's path of its own pages.
pub fn router(app: App) -> Router {
    routes().with_state(app)
}

fn routes() -> Router<App> {
    let mut router = Router::new();
    for route in ROUTES {
        let handler = move |State(app): State<App>, request: Request| async move {
            answer(app, Some(route), request).await
        };
        router = router.route(route.path, on(route.method, handler));
    }
    let other = |State(app): State<App>, request: Request| async move { answer(app, None, request).await };
    router.method_not_allowed_fallback(other).route("/ui/{*rest}", axum::routing::any(other))
}

/// The page for a request that is refused before a handler reads it.
pub fn refused(request: &Request, error: V1Error) -> Response {
    let shell = Shell::of_stranger(request.headers());
    secured(Problem::from(error).page(&shell))
}

async fn answer(app: App, route: Option<&'static Route>, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = secured(serve(app, route, request).await);
    // The log contains no query and no form: they may hold secrets.
    tracing::debug!(%method, path, status = response.status().as_u16(), "request");
    answer::with_header(response, header::SERVER, concat!("turnwise/", env!("CARGO_PKG_VERSION")))
}

async fn serve(app: App, route: Option<&'static Route>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut visit = match Visit::new(app, &parts) {
        Ok(visit) => visit,
        Err(problem) => return problem.page(&Shell::of_stranger(&parts.headers)),
    };
    let Some(route) = route else {
        return Problem::nothing_here(&visit).page(&visit.shell);
    };
    if let Err(refusal) = route.right.check(&visit.shell.caller) {
        let reads = matches!(parts.method, Method::GET | Method::HEAD);
        return match refusal.status {
            StatusCode::UNAUTHORIZED if reads => redirect(&login::path(&visit.here)),
            _ => Problem::from(refusal).page(&visit.shell),
        };
    }
    if let Err(problem) = visit.read_form(&parts, body).await {
        return problem.page(&visit.shell);
    }
    let shell = visit.shell.clone();
    // A panic is a bug, and the person still gets a page. The panic hook has already logged the cause.
    match AssertUnwindSafe((route.handle)(visit)).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => problem.page(&shell),
        Err(_) => Problem::panicked().page(&shell),
    }
}

/// Adds the headers that every response has.
fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Not `no-referrer`: a browser would then send the origin `null` with forms.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
    // The HTML depends on the session, and may hold data of one tenant.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_navigation_has_the_rights_of_its_pages() {
        for (_, path, _, right) in layout::NAVIGATION {
            let route = ROUTES.iter().find(|route| route.path == *path);
            assert_eq!(route.map(|route| route.right), Some(*right), "{path}");
        }
    }
}
