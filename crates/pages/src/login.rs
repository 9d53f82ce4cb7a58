//! Login and logout. A session is that of `_session`: the same cookie.

use axum::http::header;
use axum::response::Response;
use maud::html;
use turnwise_identity::Secret;
use turnwise_web::access::{LoggedIn, Who, expired_cookie, login};

use super::layout;
use super::problem::{Problem, Result, sentence, with_status};
use super::redirect::{HOME, redirect};
use super::visit::{Visit, back, link};

/// The path of the form, which returns to a page after the login.
pub(super) fn path(then: &str) -> String {
    link("/ui/login", &[("then", back(Some(then)).filter(|then| *then != HOME))])
}

/// The form. A person who is logged in, or needs no login, does not see it.
pub(super) async fn page(visit: Visit) -> Result<Response> {
    match visit.caller().who() {
        Who::Nobody => Ok(form(&visit, visit.query.get("then"), None, None)),
        _ => Ok(redirect(back(visit.query.get("then")).unwrap_or(HOME))),
    }
}

/// Starts a session.
pub(super) async fn log_in(visit: Visit) -> Result<Response> {
    let (form_fields, then) = (&visit.form, visit.form.get("then"));
    if *visit.caller().who() == Who::Everyone {
        return Ok(redirect(HOME));
    }
    let (name, password) = (form_fields.get("name"), form_fields.get("password"));
    // A token needs no name.
    let name = name.or_else(|| password.and_then(Secret::parse).map(|_| ""));
    let (Some(name), Some(password)) = (name, password) else {
        let needed = "a name and a password are needed, or a token as the password";
        return Ok(form(&visit, then, form_fields.get("name"), Some(needed)));
    };
    match login(&visit.app, &visit.peer, name, password).await {
        Ok((caller, cookie)) => {
            let mut response = redirect(back(then).unwrap_or(HOME));
            response.headers_mut().insert(header::SET_COOKIE, cookie);
            response.extensions_mut().insert(LoggedIn(caller.name()));
            Ok(response)
        }
        Err(refusal) => {
            let problem = Problem::from(refusal).correctable()?;
            Ok(with_status(form(&visit, then, Some(name), Some(&problem.reason)), Some(&problem)))
        }
    }
}

/// Ends the session in the browser.
pub(super) async fn log_out(visit: Visit) -> Result<Response> {
    let mut response = redirect("/ui/login");
    response.headers_mut().insert(header::SET_COOKIE, expired_cookie(&visit.peer));
    Ok(response)
}

fn form(visit: &Visit, then: Option<&str>, name: Option<&str>, problem: Option<&str>) -> Response {
    // A token in the wrong field is not shown.
    let name = name.filter(|name| Secret::parse(name).is_none());
    let main = html! {
        div.login {
            h1 { "Log in" }
            @if let Some(problem) = problem { p.problem role="alert" { (sentence(problem)) } }
            form method="post" action="/ui/login" data-full {
                @if let Some(then) = back(then) { input type="hidden" name="then" value=(then); }
                label { "Name" input name="name" value=[name] autocomplete="username" autofocus; }
                label { "Password or token" input type="password" name="password" autocomplete="current-password" required; }
                button.main type="submit" { "Log in" }
            }
            p.quiet { "A user has a name and a password: " code { "turnwise users add" } " makes one. A token needs no name." }
        }
    };
    layout::page(&visit.shell, "Log in", main)
}
