//! Webhooks: where events are sent, how far each is, and a form to write one.

use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use turnwise_api::webhooks as v1;
use turnwise_protocol::webhooks::{MAX_WEBHOOK_SECRET_BYTES, MIN_WEBHOOK_SECRET_BYTES};
use turnwise_protocol::{PutWebhook, Webhook};
use turnwise_queue::webhooks::JOB_TYPE;

use super::format::{ago, number};
use super::parts::Column::{Actions, Number, Text};
use super::parts::{Question, field, head, hidden};
use super::problem::{Problem, Result, sentence, with_status};
use super::redirect::redirect;
use super::visit::{Fields, Visit, job_link, link};
use super::{layout, parts};

const PATH: &str = "/ui/webhooks";

pub(super) async fn page(visit: Visit) -> Result<Response> {
    show(&visit, &visit.query, None).await
}

async fn show(visit: &Visit, fields: &Fields, problem: Option<&Problem>) -> Result<Response> {
    let webhooks = v1::webhooks(&visit.app, visit.caller()).await?;
    let edited = fields.get("edit").and_then(|id| webhooks.iter().find(|webhook| webhook.id == id));
    let main = html! {
        h1 { "Webhooks" }
        (parts::done(visit.query.get("did")))
        p.quiet { "A webhook sends what happens to jobs to a URL: signed, in order, at least once, and again until it is accepted. Each has a job of type " code { (JOB_TYPE) } "." }
        @if webhooks.is_empty() { p.empty { "There are no webhooks that you may change." } } @else { (table(&webhooks, visit.app.now_us())) }
        (form(fields, edited, problem))
    };
    Ok(with_status(layout::page(&visit.shell, "Webhooks", main), problem))
}

fn table(webhooks: &[Webhook], now_us: i64) -> Markup {
    let rows = html! {
        @for webhook in webhooks {
            tr data-k=(webhook.id) {
                th.id scope="row" {
                    a href=(link(PATH, &[("edit", Some(&webhook.id))])) { bdi { (webhook.id) } }
                    @if let Some(by) = &webhook.by { div.quiet { "of " bdi { (by) } } }
                }
                td { code { bdi { (origin(&webhook.url)) } } }
                td { (wanted(webhook)) }
                td { (state(webhook, now_us)) }
                td.n { (number(webhook.delivered)) }
                td {
                    form.inline.acts method="post" action=(PATH) {
                        (hidden("id", &webhook.id))
                        @if webhook.enabled { button name="do" value="pause" { "Pause" } } @else { button name="do" value="resume" { "Resume" } }
                        button.danger name="do" value="remove" { "Remove…" }
                    }
                }
            }
        }
    };
    html! {
        (parts::table("Webhooks", head(&[
            Text("Webhook"), Text("Target"), Text("Events"), Text("State"), Number("Delivered"), Actions,
        ]), rows))
    }
}

/// A URL without its path and query, which may hold a secret.
fn origin(url: &str) -> String {
    match url.match_indices('/').nth(2) {
        Some((at, _)) if at + 1 < url.len() => format!("{}/…", &url[..at]),
        _ => url.to_owned(),
    }
}

fn wanted(webhook: &Webhook) -> Markup {
    let list = |values: &[String]| values.join(", ");
    html! {
        @if webhook.events.is_empty() { "all" } @else { bdi { (list(&webhook.events)) } }
        @if !webhook.types.is_empty() { div.quiet { "of type " bdi { (list(&webhook.types)) } } }
        @if let Some(tenant) = &webhook.tenant { div.quiet { "of tenant " bdi { (tenant) } } }
        @if !webhook.states.is_empty() { div.quiet { "in state " bdi { (list(&webhook.states)) } } }
    }
}

fn state(webhook: &Webhook, now_us: i64) -> Markup {
    html! {
        @match (&webhook.disabled_because, webhook.enabled) {
            (_, true) => a href=(job_link(JOB_TYPE, &webhook.id)) { "delivers" },
            (Some(reason), false) => { "disabled" div.quiet { bdi { (sentence(reason)) } } }
            (None, false) => "paused",
        }
        @if let Some(at_us) = webhook.last_success_us { div.quiet { "last success " (ago(at_us, now_us)) } }
        @if let Some(error) = webhook.last_error.as_ref().filter(|error| webhook.last_success_us.is_none_or(|success| success < error.at_us)) {
            div.problem { "Last error " (ago(error.at_us, now_us)) ": " bdi { (sentence(&error.reason)) } }
        }
        @if let Some(at_us) = webhook.last_gap_us { div.problem { "Events were gone before they were delivered: " (number(webhook.gaps)) " times, last " (ago(at_us, now_us)) } }
    }
}

fn form(fields: &Fields, edited: Option<&Webhook>, problem: Option<&Problem>) -> Markup {
    let value = |name: &str, of: fn(&Webhook) -> String| {
        let of_edited = || edited.map(of).filter(|value| !value.is_empty());
        fields.get(name).map(str::to_owned).or_else(of_edited)
    };
    let about = |name: &str| problem.filter(|problem| problem.is_about(name)).map(Problem::text);
    let is_beside = ["url", "secret", "types", "tenant"].into_iter().any(|name| about(name).is_some());
    let checked = |event: &str| match fields.get("do") {
        Some(_) => fields.all("event").any(|chosen| chosen == event),
        None => edited.is_some_and(|webhook| webhook.events.iter().any(|chosen| chosen == event)),
    };
    html! {
        section id="form" {
            h2 { @match edited { Some(webhook) => { "Change " bdi { (webhook.id) } }, None => "Add a webhook" } }
            @if let Some(problem) = problem.filter(|_| !is_beside) { (problem.alert()) }
            form.fields method="post" action=(PATH) {
                (field("id", "Name", html! { input id="id" name="id" value=[value("id", |webhook| webhook.id.clone())] required maxlength="64" pattern="[A-Za-z0-9_.\\-]+"; },
                    html! { "A webhook with this name is changed. It goes on where it is." }, None))
                (field("url", "URL", html! { input id="url" type="url" name="url" value=[value("url", |webhook| webhook.url.clone())] required maxlength="2000" placeholder="https://example.com/hooks/turnwise"; },
                    html! { "Receives a " code { "POST" } " with a batch of events. Any answer of 2xx accepts it, and 410 disables the webhook." }, about("url").as_deref()))
                (field("secret", "Secret", html! { input id="secret" type="password" name="secret" autocomplete="new-password" minlength=(MIN_WEBHOOK_SECRET_BYTES) maxlength=(MAX_WEBHOOK_SECRET_BYTES); },
                    html! { "Signs what is sent, and is never shown again. Empty: an existing webhook keeps its secret." }, about("secret").as_deref()))
                fieldset {
                    legend { "Events" }
                    @for event in turnwise_api::EVENTS { div { label.check { input type="checkbox" name="event" value=(event) checked[checked(event)]; (event) } } }
                    p.quiet { "None chosen: all of them." }
                }
                div.pair {
                    (field("types", "Job types", html! { input id="types" name="types" value=[value("types", |webhook| webhook.types.join(", "))] maxlength="4000"; },
                        html! { "Separated by commas. Empty: all." }, about("types").as_deref()))
                    (field("tenant", "Tenant", html! { input id="tenant" name="tenant" value=[value("tenant", |webhook| webhook.tenant.clone().unwrap_or_default())] maxlength="128"; },
                        html! { "Empty: all that you may read." }, about("tenant").as_deref()))
                }
                div.actions {
                    button.main name="do" value="save" { "Save" }
                    a.button href=(PATH) { "Reset" }
                }
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Do {
    Save,
    Pause,
    Resume,
    Remove,
}

/// Writes, pauses, resumes or removes a webhook.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let id = form.get("id").unwrap_or_default().to_owned();
    match form.action::<Do>("do")? {
        Do::Save => match save(&visit, &id).await {
            Ok(()) => Ok(redirect(&format!("{PATH}?did=saved"))),
            Err(problem) => show(&visit, form, Some(&problem.correctable()?)).await,
        },
        Do::Pause => enable(&visit, &id, false).await,
        Do::Resume => enable(&visit, &id, true).await,
        Do::Remove if form.get("confirmed").is_some() => {
            v1::remove(&visit.app, visit.caller(), &id).await?;
            Ok(redirect(&format!("{PATH}?did=removed")))
        }
        Do::Remove => {
            let question = Question {
                title: "Remove this webhook?",
                subject: html! { bdi { (id) } },
                effect: "Events that it has not delivered are not delivered any more.",
                button: "Remove the webhook",
                action: PATH,
                fields: html! { (hidden("id", &id)) (hidden("do", "remove")) },
                back: PATH,
            };
            Ok(question.page(&visit.shell))
        }
    }
}

async fn save(visit: &Visit, id: &str) -> Result<()> {
    let (app, caller, form) = (&visit.app, visit.caller(), &visit.form);
    // What the form does not show stays as it is.
    let known = v1::webhooks(app, caller).await?.into_iter().find(|webhook| webhook.id == id);
    let text = |name: &str| form.get(name).map(|text| text.trim().to_owned());
    let types = form.get("types").unwrap_or_default().split(',').map(str::trim).filter(|one| !one.is_empty());
    let put = PutWebhook {
        url: text("url").unwrap_or_default(),
        secret: form.get("secret").map(str::to_owned),
        enabled: known.as_ref().is_none_or(|webhook| webhook.enabled),
        types: types.map(str::to_owned).collect(),
        tenant: text("tenant"),
        states: known.as_ref().map(|webhook| webhook.states.clone()).unwrap_or_default(),
        events: form.all("event").map(str::to_owned).collect(),
        job_tenant: known.map(|webhook| webhook.job_tenant),
    };
    v1::write(app, caller, id, put).await?;
    Ok(())
}

async fn enable(visit: &Visit, id: &str, enabled: bool) -> Result<Response> {
    let (app, caller) = (&visit.app, visit.caller());
    let Webhook { url, types, tenant, states, events, job_tenant, .. } = v1::one(app, caller, id).await?;
    let job_tenant = Some(job_tenant);
    let put = PutWebhook { url, secret: None, enabled, types, tenant, states, events, job_tenant };
    v1::write(app, caller, id, put).await?;
    let did = if enabled { "resumed" } else { "paused" };
    Ok(redirect(&format!("{PATH}?did={did}")))
}
