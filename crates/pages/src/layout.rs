//! What surrounds every page: the navigation, the search, and who is logged in.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use maud::{DOCTYPE, Markup, html};
use turnwise_web::access::rights::Right;
use turnwise_web::access::{Caller, Who};

use super::assets;
use super::redirect::HOME;

/// The cookie with the theme that a person has chosen. The script sets it.
const THEME_COOKIE: &str = "turnwise_theme";
/// How often pages with live data are refreshed, in s.
const REFRESH_S: u32 = 5;

/// The navigation: the key after `g`, the path, the name, the right of the page. An entry is shown to those who may see its page.
pub(super) const NAVIGATION: &[(&str, &str, &str, Right)] = &[
    ("o", HOME, "Overview", Right::Read),
    ("j", "/ui/jobs", "Jobs", Right::Read),
    ("t", "/ui/tenants", "Tenants", Right::Read),
    ("h", "/ui/history", "History", Right::Read),
    ("r", "/ui/replications", "Replications", Right::Read),
    ("c", "/ui/schedules", "Schedules", Right::Read),
    ("u", "/ui/groups", "Groups", Right::Read),
    ("x", "/ui/indexes", "Indexes", Right::Read),
    ("l", "/ui/locks", "Locks", Right::Read),
    ("w", "/ui/workers", "Workers", Right::Operate),
    ("f", "/ui/filters", "Filters", Right::Operate),
    ("b", "/ui/webhooks", "Webhooks", Right::Write),
    ("s", "/ui/settings", "Settings", Right::Operate),
    ("i", "/ui/identities", "Users and tokens", Right::Administer),
    ("a", "/ui/audit", "Audit log", Right::Administer),
];

/// Who sees a page, and how.
#[derive(Clone)]
pub(super) struct Shell {
    pub caller: Caller,
    path: String,
    theme: Option<&'static str>,
}

impl Shell {
    pub fn new(caller: Caller, path: &str, headers: &HeaderMap) -> Shell {
        Shell { caller, path: path.to_owned(), theme: theme(headers) }
    }

    /// For a request whose sender is not known.
    pub fn of_stranger(headers: &HeaderMap) -> Shell {
        Shell::new(Caller::nobody(), "", headers)
    }

    fn sees(&self, right: Right) -> bool {
        right.check(&self.caller).is_ok()
    }

    /// The path of the navigation's entry for this page, or for the list that it belongs to: `/ui/jobs` for `/ui/job`.
    fn current(&self) -> Option<&'static str> {
        let own = match self.path.as_str() {
            "/ui/bulk" | "/ui/bulk/ask" | "/ui/jobs/new" => "/ui/jobs",
            "/ui/tenants/shares" => "/ui/tenants",
            own => own,
        };
        let mut paths = NAVIGATION.iter().map(|(_, path, ..)| *path);
        paths.find(|path| own == *path || path.strip_suffix('s') == Some(own))
    }
}

fn theme(headers: &HeaderMap) -> Option<&'static str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut cookies =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|one| one.trim().split_once('='));
    let (_, theme) = cookies.find(|(name, _)| *name == THEME_COOKIE)?;
    ["light", "dark"].into_iter().find(|known| *known == theme)
}

/// A page that stays as it is until the person does something.
pub(super) fn page(shell: &Shell, title: &str, main: Markup) -> Response {
    whole(shell, title, None, &main)
}

/// A page that the script refreshes.
pub(super) fn live(shell: &Shell, title: &str, main: Markup) -> Response {
    whole(shell, title, Some(REFRESH_S), &main)
}

fn whole(shell: &Shell, title: &str, refresh_s: Option<u32>, main: &Markup) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" data-theme=[shell.theme] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · turnwise" }
                link rel="icon" href=(assets::path("icon.svg"));
                link rel="stylesheet" href=(assets::path("app.css"));
                script src=(assets::path("app.js")) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                (side(shell))
                main id="main" tabindex="-1" data-refresh=[refresh_s] { (main) }
                div id="news" role="status" aria-live="polite" {}
                dialog id="help" aria-label="Help" {}
            }
        }
    };
    let mut response = Response::new(Body::from(page.into_string()));
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, html);
    response
}

fn side(shell: &Shell) -> Markup {
    let current = shell.current();
    html! {
        header.side {
            a.brand href=(HOME) { img src=(assets::path("icon.svg")) alt="" width="22" height="22"; "turnwise" }
            @if shell.sees(Right::Read) {
                form.search role="search" action="/ui/jobs" {
                    label.unseen for="search" { "Search jobs by id" }
                    input id="search" type="search" name="q" placeholder="Search job ids" autocomplete="off"
                        maxlength="200" aria-keyshortcuts="/";
                }
            }
            nav aria-label="Pages" {
                @for (key, path, name, right) in NAVIGATION {
                    @if shell.sees(*right) {
                        a href=(path) data-key=(key) aria-current=[(current == Some(path)).then_some("page")] { (name) }
                    }
                }
            }
            div.controls {
                button id="pause" type="button" hidden aria-keyshortcuts="p" { "Pause" }
                button id="theme" type="button" hidden { "Theme" }
                a href="/ui/help" aria-keyshortcuts="?" { "Help" }
            }
            (identity(shell))
        }
    }
}

fn identity(shell: &Shell) -> Markup {
    let name = match shell.caller.who() {
        Who::Everyone => {
            return html! { p.identity title="No users or tokens exist, so that everyone may do everything" { "Open store, no login" } };
        }
        Who::Nobody => return html! {},
        Who::User(name) | Who::Jwt(name) => name.clone(),
        Who::Token(id) => format!("token {id}"),
    };
    html! {
        form.identity method="post" action="/ui/logout" data-full {
            span { bdi { (name) } }
            button type="submit" { "Log out" }
        }
    }
}
