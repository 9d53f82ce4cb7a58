//! Users and tokens: who may use the server, and what each may do.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use turnwise_api::identities;
use turnwise_api::identities::PageParams;
use turnwise_protocol::{DEFAULT_LIMIT, MadeToken, NewToken, NewUser, Token, Tokens, User, Users};
use turnwise_web::access::Who;

use super::format::{ago, or_dash, time};
use super::parts::field;
use super::problem::{Problem, Result, sentence};
use super::redirect::redirect;
use super::visit::{Fields, Visit, link};
use super::{layout, parts};

const PATH: &str = "/ui/identities";
/// Seconds of a day.
const DAY_S: u64 = 24 * 3_600;

/// The scopes, for the forms.
const SCOPES: [(&str, &str); 6] = [
    ("admin", "everything, also users and tokens"),
    ("operator", "everything but users and tokens"),
    ("client:TENANTS", "reads, adds and changes jobs of these tenants, as client:acme or client:test-*"),
    ("read:TENANTS", "reads the jobs of these tenants"),
    ("worker:TYPES", "runs jobs of these types"),
    ("command", "may add jobs that run programs, beside client:TENANTS"),
];

/// The form that was refused, and why.
struct Refused<'a> {
    form: &'static str,
    fields: &'a Fields,
    problem: Problem,
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let did = parts::done(visit.query().get("did"));
    show(&visit, did, None).await
}

async fn show(visit: &Visit, did: Markup, refused: Option<&Refused<'_>>) -> Result<Response> {
    let (query, app, now_us) = (visit.query(), &visit.app, visit.app.now_us());
    let after = |name: &str| PageParams { limit: DEFAULT_LIMIT, after: query.get(name).map(str::to_owned) };
    let Users { users, next: next_user } = identities::users(app, after("user")).await?;
    let Tokens { tokens, next: next_token } = identities::tokens(app, after("token")).await?;
    let is_open = *visit.caller().who() == Who::Everyone;
    let main = html! {
        h1 { "Users and tokens" }
        (did)
        @if is_open {
            p.condition.warn {
                "There are none, so that everyone who reaches this server may do everything. The first one needs the scope "
                code { "admin" } ", and ends this on all nodes."
            }
        }
        section {
            h2 { "Users" }
            @if users.is_empty() { p.empty { "There are no users." } } @else { (users_table(&users)) }
            (next("user", next_user.as_deref()))
            (add_user(refused.filter(|refused| refused.form == "user")))
        }
        section {
            h2 { "Tokens" }
            p.quiet { "A token is for a program, which sends it with each request." }
            @if tokens.is_empty() { p.empty { "There are no tokens." } } @else { (tokens_table(&tokens, now_us)) }
            (next("token", next_token.as_deref()))
            (add_token(refused.filter(|refused| refused.form == "token")))
        }
    };
    let mut response = layout::page(&visit.shell, "Users and tokens", main);
    *response.status_mut() = refused.map_or(StatusCode::OK, |refused| refused.problem.status);
    Ok(response)
}

fn next(list: &str, next: Option<&str>) -> Markup {
    html! {
        @if let Some(next) = next { nav.pages aria-label="Pages of the list" { a.button href=(link(PATH, &[(list, Some(next))])) { "Next" } } }
    }
}

fn scopes(scopes: &[String]) -> Markup {
    html! { @for (n, scope) in scopes.iter().enumerate() { @if n > 0 { ", " } code { bdi { (scope) } } } }
}

fn users_table(users: &[User]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Users" {
            table {
                thead { tr { th scope="col" { "User" } th scope="col" { "Scopes" } th scope="col" { "Added" } th scope="col" { span.unseen { "Actions" } } } }
                tbody {
                    @for user in users {
                        tr {
                            th.id scope="row" { bdi { (user.name) } }
                            td { (scopes(&user.scopes)) }
                            td.when { (time(user.created_us)) }
                            td {
                                form.actions method="post" action="/ui/identities/act" {
                                    input type="hidden" name="user" value=(user.name);
                                    input type="hidden" name="scopes" value=(user.scopes.join(" "));
                                    button name="do" value="scopes" { "Scopes…" }
                                    button name="do" value="password" { "New password…" }
                                    button.danger name="do" value="remove" { "Remove…" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn tokens_table(tokens: &[Token], now_us: i64) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Tokens" {
            table {
                thead { tr {
                    th scope="col" { "Token" } th scope="col" { "For" } th scope="col" { "Scopes" } th scope="col" { "Added" }
                    th scope="col" { "Last used" } th scope="col" { "Expires" } th scope="col" { span.unseen { "Actions" } }
                } }
                tbody {
                    @for token in tokens {
                        tr {
                            th scope="row" { code { (token.id) } }
                            td { bdi { (token.note) } }
                            td { (scopes(&token.scopes)) }
                            td.when { (time(token.created_us)) div.quiet { @if let Some(by) = &token.created_by { "by " bdi { (by) } } } }
                            td.when { @match token.last_used_us { Some(used) => (ago(used, now_us)), None => (or_dash(None)) } }
                            td.when {
                                @match token.expires_us {
                                    Some(at) if at <= now_us => span.bad { "expired " (ago(at, now_us)) },
                                    Some(at) => (ago(at, now_us)),
                                    None => "never",
                                }
                            }
                            td {
                                form.actions method="post" action="/ui/identities/act" {
                                    input type="hidden" name="token" value=(token.id);
                                    button name="do" value="rotate" { "Rotate…" }
                                    button.danger name="do" value="revoke" { "Revoke…" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn scopes_field(name: &str, value: Option<&str>) -> Markup {
    field(
        name,
        "Scopes",
        html! { input id=(name) name="scopes" value=[value] required maxlength="4000" placeholder="read:acme worker:mail" autocomplete="off"; },
        html! {
            "Separated by spaces. TENANTS and TYPES are lists with commas, in which " code { "*" } " stands for any text."
            details { summary { "All scopes" } table.plain { tbody { @for (scope, meaning) in SCOPES { tr { th scope="row" { code { (scope) } } td { (meaning) } } } } } }
        },
        None,
    )
}

fn add_user(refused: Option<&Refused<'_>>) -> Markup {
    let value = |name: &str| refused.and_then(|refused| refused.fields.get(name));
    html! {
        details open[refused.is_some()] {
            summary { "Add a user" }
            (problem_of(refused))
            form.fields method="post" action="/ui/identities/users" {
                (field("name", "Name", html! { input id="name" name="name" value=[value("name")] required maxlength="128" autocomplete="off"; }, html! { "Without colons." }, None))
                (field("password", "Password", html! { input id="password" type="password" name="password" required minlength="8" maxlength="1000" autocomplete="new-password"; }, html! { "At least 8 characters. The server keeps only a hash of it." }, None))
                (scopes_field("user-scopes", value("scopes")))
                div.actions { button.main type="submit" { "Add the user" } }
            }
        }
    }
}

fn add_token(refused: Option<&Refused<'_>>) -> Markup {
    let value = |name: &str| refused.and_then(|refused| refused.fields.get(name));
    html! {
        details open[refused.is_some()] {
            summary { "Add a token" }
            (problem_of(refused))
            form.fields method="post" action="/ui/identities/tokens" {
                (field("note", "What it is for", html! { input id="note" name="note" value=[value("note")] maxlength="200" autocomplete="off"; }, html! { "Shown in the list of tokens." }, None))
                (scopes_field("token-scopes", value("scopes")))
                (field("days", "Expires after days", html! { input id="days" type="number" name="days" min="1" max="3650" value=[value("days")]; }, html! { "Without a number it does not expire." }, None))
                div.actions { button.main type="submit" { "Add the token" } }
            }
        }
    }
}

fn problem_of(refused: Option<&Refused<'_>>) -> Markup {
    html! {
        @if let Some(Refused { problem, .. }) = refused { p.problem role="alert" { (sentence(&problem.reason)) " " (sentence(&problem.hint)) } }
    }
}

fn scopes_of(fields: &Fields) -> Vec<String> {
    fields.get("scopes").unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Adds a user.
pub(super) async fn user(visit: Visit) -> Result<Response> {
    let fields = visit.form();
    let text = |name: &str| fields.get(name).unwrap_or_default().to_owned();
    let new = NewUser { name: text("name"), password: text("password"), scopes: scopes_of(fields) };
    match identities::make_user(&visit.app, visit.caller(), new).await {
        Ok(_) => Ok(redirect(&format!("{PATH}?did=added"))),
        Err(error) => refuse(&visit, "user", error.into()).await,
    }
}

/// Adds a token, and shows its text: no other page does.
pub(super) async fn token(visit: Visit) -> Result<Response> {
    let fields = visit.form();
    let added = async {
        let days = fields.get("days").map(|days| {
            let wrong = || {
                Problem::bad(
                    "expires: must be a whole number of days",
                    "leave it out for a token that does not expire",
                )
            };
            days.trim().parse::<u64>().map_err(|_| wrong())
        });
        let expires_in_s = days.transpose()?.map(|days| days.saturating_mul(DAY_S));
        let note = fields.get("note").unwrap_or_default().to_owned();
        let new = NewToken { scopes: scopes_of(fields), note, expires_in_s };
        Ok(identities::make_token(&visit.app, visit.caller(), &new).await?)
    };
    match added.await {
        Ok(made) => Ok(secret(&visit, "The new token", &made)),
        Err(problem) => refuse(&visit, "token", problem).await,
    }
}

async fn refuse(visit: &Visit, form: &'static str, problem: Problem) -> Result<Response> {
    if problem.status.is_server_error() {
        return Err(problem);
    }
    show(visit, html! {}, Some(&Refused { form, fields: visit.form(), problem })).await
}

fn secret(visit: &Visit, title: &str, made: &MadeToken) -> Response {
    let main = html! {
        h1 { (title) }
        p.condition.warn { "Copy its text now: it is shown only here and only once. The server keeps a hash of it." }
        pre.secret tabindex="0" { (made.text) }
        p { "A program sends it as " code { "Authorization: Bearer" } " with this text. Its id is " code { (made.about.id) } ", and its scopes are " (scopes(&made.about.scopes)) "." }
        p { a.button href=(PATH) { "Users and tokens" } }
    };
    layout::page(&visit.shell, title, main)
}

/// What is done with a user or a token, after a confirmation.
struct Act {
    title: &'static str,
    warning: &'static str,
    button: &'static str,
}

fn act_of(wanted: &str) -> Result<Act> {
    Ok(match wanted {
        "remove" => Act {
            title: "Remove this user?",
            warning: "The user is logged out everywhere, and cannot log in again.",
            button: "Remove the user",
        },
        "scopes" => Act {
            title: "Change the scopes",
            warning: "They hold at once, also for what the user has begun: sessions, webhooks and bulk operations.",
            button: "Change the scopes",
        },
        "password" => Act {
            title: "Change the password",
            warning: "All sessions of the user end.",
            button: "Change the password",
        },
        "rotate" => Act {
            title: "Rotate this token?",
            warning: "It gets a new text, and keeps its id and its scopes. The old text is refused from then on.",
            button: "Rotate the token",
        },
        "revoke" => Act {
            title: "Revoke this token?",
            warning: "It is refused from then on, on all nodes within a second. This cannot be undone.",
            button: "Revoke the token",
        },
        _ => return Err(Problem::bad("this action is unknown", "use a button of a page")),
    })
}

/// Changes a user or a token.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let (form, app, caller) = (visit.form(), &visit.app, visit.caller());
    let wanted = form.get("do").unwrap_or_default();
    let act = act_of(wanted)?;
    let name = match wanted {
        "remove" | "password" | "scopes" => form.get("user"),
        _ => form.get("token"),
    };
    let name = name.ok_or_else(|| Problem::bad("no user or token is named", "use a button of a page"))?;
    if form.get("confirmed").is_none() {
        return Ok(confirm(&visit, wanted, name, &act, None));
    }
    let changed = match wanted {
        "remove" => identities::drop_user(app, caller, name).await.map(drop),
        "scopes" => identities::change_scopes(app, caller, name, &scopes_of(form)).await.map(drop),
        "password" => {
            let password = form.get("password").unwrap_or_default().to_owned();
            identities::change_password(app, caller, name, password).await.map(drop)
        }
        "rotate" => {
            let made = identities::renew_token(app, caller, name).await?;
            return Ok(secret(&visit, "The token's new text", &made));
        }
        _ => identities::drop_token(app, caller, name).await.map(drop),
    };
    let has_input = matches!(wanted, "scopes" | "password");
    match changed.map_err(Problem::from) {
        Ok(()) => Ok(redirect(&format!("{PATH}?did={}", if has_input { "saved" } else { "removed" }))),
        Err(problem)
            if has_input && problem.status.is_client_error() && problem.status != StatusCode::NOT_FOUND =>
        {
            Ok(confirm(&visit, wanted, name, &act, Some(&problem)))
        }
        Err(problem) => Err(problem),
    }
}

fn confirm(visit: &Visit, wanted: &str, name: &str, act: &Act, problem: Option<&Problem>) -> Response {
    let kind = if matches!(wanted, "remove" | "password" | "scopes") { "user" } else { "token" };
    let main = html! {
        h1 { (act.title) }
        p.lead { bdi { (name) } }
        p.condition.warn { (act.warning) }
        form.fields method="post" action="/ui/identities/act" {
            input type="hidden" name=(kind) value=(name);
            input type="hidden" name="do" value=(wanted);
            input type="hidden" name="confirmed" value="1";
            @if wanted == "password" {
                (field("password", "New password", html! { input id="password" type="password" name="password" required minlength="8" maxlength="1000" autocomplete="new-password"; },
                    html! { "At least 8 characters." }, problem.map(|problem| problem.reason.as_str())))
            }
            @if wanted == "scopes" {
                @if let Some(problem) = problem { p.problem role="alert" { (sentence(&problem.reason)) " " (sentence(&problem.hint)) } }
                (scopes_field("scopes", visit.form().get("scopes")))
            }
            div.actions { button.danger type="submit" { (act.button) } a.button href=(PATH) { "Back" } }
        }
    };
    let mut response = layout::page(&visit.shell, act.title, main);
    *response.status_mut() = problem.map_or(StatusCode::OK, |problem| problem.status);
    response
}
