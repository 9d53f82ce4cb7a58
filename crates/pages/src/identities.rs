//! Users and tokens: who may use the server, and what each may do.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use turnwise_api::identities;
use turnwise_api::identities::PageParams;
use turnwise_protocol::{DEFAULT_LIMIT, MadeToken, NewToken, NewUser, Token, Tokens, User, Users};
use turnwise_web::access::Who;

use super::format::{ago, or_dash, time};
use super::parts::Column::{Actions, Text};
use super::parts::{Question, field, head, hidden, table};
use super::problem::{Problem, Result, with_status};
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
    show(&visit, None).await
}

async fn show(visit: &Visit, refused: Option<&Refused<'_>>) -> Result<Response> {
    let (query, app, now_us) = (&visit.query, &visit.app, visit.app.now_us());
    let after = |name: &str| PageParams { limit: DEFAULT_LIMIT, after: query.get(name).map(str::to_owned) };
    let Users { users, next: next_user } = identities::users(app, after("user")).await?;
    let Tokens { tokens, next: next_token } = identities::tokens(app, after("token")).await?;
    let is_open = *visit.caller().who() == Who::Everyone;
    let main = html! {
        h1 { "Users and tokens" }
        (parts::done(query.get("did")))
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
    let page = layout::page(&visit.shell, "Users and tokens", main);
    Ok(with_status(page, refused.map(|refused| &refused.problem)))
}

fn next(list: &str, next: Option<&str>) -> Markup {
    parts::pages(|after| link(PATH, &[(list, after)]), None, next)
}

fn scopes(scopes: &[String]) -> Markup {
    html! { @for (n, scope) in scopes.iter().enumerate() { @if n > 0 { ", " } code { bdi { (scope) } } } }
}

fn users_table(users: &[User]) -> Markup {
    let rows = html! {
        @for user in users {
            tr {
                th.id scope="row" { bdi { (user.name) } }
                td { (scopes(&user.scopes)) }
                td.when { (time(user.created_us)) }
                td {
                    form.actions method="post" action="/ui/identities/act" {
                        (hidden("user", &user.name))
                        (hidden("scopes", &user.scopes.join(" ")))
                        button name="do" value="scopes" { "Scopes…" }
                        button name="do" value="password" { "New password…" }
                        button.danger name="do" value="remove" { "Remove…" }
                    }
                }
            }
        }
    };
    table("Users", head(&[Text("User"), Text("Scopes"), Text("Added"), Actions]), rows)
}

fn tokens_table(tokens: &[Token], now_us: i64) -> Markup {
    let rows = html! {
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
                        (hidden("token", &token.id))
                        button name="do" value="rotate" { "Rotate…" }
                        button.danger name="do" value="revoke" { "Revoke…" }
                    }
                }
            }
        }
    };
    html! {
        (table("Tokens", head(&[Text("Token"), Text("For"), Text("Scopes"), Text("Added"), Text("Last used"), Text("Expires"), Actions]), rows))
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

fn password_field(title: &str, help: &str, wrong: Option<&str>) -> Markup {
    let input = html! { input id="password" type="password" name="password" required minlength="8" maxlength="1000" autocomplete="new-password"; };
    field("password", title, input, html! { "At least 8 characters. " (help) }, wrong)
}

/// The form that adds a user or a token. It is open if it was refused.
fn adding(what: &str, refused: Option<&Refused<'_>>, fields: Markup) -> Markup {
    html! {
        details open[refused.is_some()] {
            summary { "Add a " (what) }
            @if let Some(Refused { problem, .. }) = refused { (problem.alert()) }
            form.fields method="post" action={ (PATH) "/" (what) "s" } {
                (fields)
                div.actions { button.main type="submit" { "Add the " (what) } }
            }
        }
    }
}

fn add_user(refused: Option<&Refused<'_>>) -> Markup {
    let value = |name: &str| refused.and_then(|refused| refused.fields.get(name));
    let fields = html! {
        (field("name", "Name", html! { input id="name" name="name" value=[value("name")] required maxlength="128" autocomplete="off"; }, html! { "Without colons." }, None))
        (password_field("Password", "The server keeps only a hash of it.", None))
        (scopes_field("user-scopes", value("scopes")))
    };
    adding("user", refused, fields)
}

fn add_token(refused: Option<&Refused<'_>>) -> Markup {
    let value = |name: &str| refused.and_then(|refused| refused.fields.get(name));
    let fields = html! {
        (field("note", "What it is for", html! { input id="note" name="note" value=[value("note")] maxlength="200" autocomplete="off"; }, html! { "Shown in the list of tokens." }, None))
        (scopes_field("token-scopes", value("scopes")))
        (field("days", "Expires after days", html! { input id="days" type="number" name="days" min="1" max="3650" value=[value("days")]; }, html! { "Without a number it does not expire." }, None))
    };
    adding("token", refused, fields)
}

fn scopes_of(fields: &Fields) -> Vec<String> {
    fields.get("scopes").unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Adds a user.
pub(super) async fn user(visit: Visit) -> Result<Response> {
    let fields = &visit.form;
    let text = |name: &str| fields.get(name).unwrap_or_default().to_owned();
    let new = NewUser { name: text("name"), password: text("password"), scopes: scopes_of(fields) };
    match identities::make_user(&visit.app, visit.caller(), new).await {
        Ok(_) => Ok(redirect(&format!("{PATH}?did=added"))),
        Err(error) => refuse(&visit, "user", error.into()).await,
    }
}

/// Adds a token, and shows its text: no other page does.
pub(super) async fn token(visit: Visit) -> Result<Response> {
    let fields = &visit.form;
    let added = async {
        let expires_in_s = fields.number::<u64>("days")?.map(|days| days.saturating_mul(DAY_S));
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
    let problem = problem.correctable()?;
    show(visit, Some(&Refused { form, fields: &visit.form, problem })).await
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
        _ => return Err(Problem::unknown_action()),
    })
}

/// The field that names whom an action changes.
fn named_by(wanted: &str) -> &'static str {
    if matches!(wanted, "remove" | "password" | "scopes") { "user" } else { "token" }
}

/// Changes a user or a token.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let (form, app, caller) = (&visit.form, &visit.app, visit.caller());
    let wanted = form.get("do").unwrap_or_default();
    let act = act_of(wanted)?;
    let name = form.get(named_by(wanted));
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
    let fields = html! {
        (hidden(named_by(wanted), name))
        (hidden("do", wanted))
        @if wanted == "password" {
            (password_field("New password", "", problem.map(|problem| problem.reason.as_str())))
        }
        @if wanted == "scopes" {
            @if let Some(problem) = problem { (problem.alert()) }
            (scopes_field("scopes", visit.form.get("scopes")))
        }
    };
    let question = Question {
        title: act.title,
        subject: html! { bdi { (name) } },
        effect: act.warning,
        button: act.button,
        action: "/ui/identities/act",
        fields,
        back: PATH,
    };
    with_status(question.page(&visit.shell), problem)
}
