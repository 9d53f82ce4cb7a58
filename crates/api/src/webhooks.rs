//! `/v1/webhooks`: events that the server sends to URLs. The server sends them.

use turnwise_identity::OPERATORS_TENANT;
use turnwise_protocol::webhooks::{
    MAX_WEBHOOK_SECRET_BYTES, MAX_WEBHOOK_URL_BYTES, MIN_WEBHOOK_SECRET_BYTES, check_webhook_id,
};
use turnwise_protocol::{Behind, PutWebhook, RemovedWebhook, Webhook, WebhookError, Webhooks, codes, names};
use turnwise_queue::DEFAULT_TENANT;
use turnwise_queue::events::Filter;
use turnwise_queue::webhooks::{self as rows, Progress, Secret};
use turnwise_web::access::{Caller, Who, shown_owner};
use url::Url;

use super::app::App;
use super::body::Json;
use super::error::{Result, V1Error};
use super::extract::{Call, Shown, check_stated, path_with_name};
use super::responses::{BadBody, Common};
use super::sight::{Waiting, waiting};
use super::stream;

path_with_name! {
    /// `/{webhook}`
    WebhookPath(check_webhook_id):
    /// The webhook's id.
    #[param(min_length = 1, max_length = 64, pattern = r"^(?!\.{1,2}$)[A-Za-z0-9_.-]+$")]
    webhook
}

fn no_webhook(id: &str) -> V1Error {
    V1Error::not_found(
        format!("there is no webhook `{id}`"),
        "GET /v1/webhooks lists those that this identity may change",
    )
}

/// Whether the caller may see and change a webhook: its own, those of its tenants, and an operator all.
fn owns(caller: &Caller, webhook: &rows::Webhook) -> bool {
    caller.operates() || is_by(caller, webhook) || !webhook.by_operator && caller.writes(&webhook.job_tenant)
}

/// Whether the webhook is this identity's own.
fn is_by(caller: &Caller, webhook: &rows::Webhook) -> bool {
    *caller.who() != Who::Nobody && webhook.by == caller.owner()
}

fn shown(webhook: rows::Webhook, progress: Progress, behind: Option<Behind>) -> Webhook {
    let Filter { types, tenant, states, events } = webhook.filter;
    Webhook {
        id: webhook.id,
        url: webhook.url,
        enabled: webhook.enabled,
        disabled_because: webhook.disabled_because,
        types,
        tenant,
        states,
        events,
        job_tenant: webhook.job_tenant,
        by: webhook.by.as_deref().map(shown_owner),
        created_us: webhook.created_us,
        changed_us: webhook.changed_us,
        delivered: progress.delivered,
        last_success_us: progress.succeeded_us,
        last_error: progress
            .failure
            .map(|failure| WebhookError { at_us: failure.at_us, reason: failure.reason }),
        gaps: progress.gaps,
        last_gap_us: progress.gap_us,
        behind,
    }
}

/// List webhooks
///
/// Those that this identity may change, by id: its own, and those of its tenants. An operator sees all.
#[utoipa::path(
    get, path = "/webhooks", tag = "events", operation_id = "list_webhooks",
    responses((status = 200, body = Webhooks, description = "The webhooks, at most 1,000."), Common),
)]
pub(super) async fn list_webhooks(Call { app, caller, .. }: Call) -> Result<Shown<Webhooks>> {
    Ok(Shown(Webhooks { webhooks: webhooks(&app, &caller).await? }))
}

/// The webhooks that a caller may change, by id.
pub async fn webhooks(app: &App, caller: &Caller) -> Result<Vec<Webhook>> {
    let all = rows::list(&app.store.begin().await?, &app.keys).await?;
    let own = all.into_iter().filter(|(webhook, _)| owns(caller, webhook));
    Ok(own.map(|(webhook, progress)| shown(webhook, progress, None)).collect())
}

/// Get a webhook
///
/// Without its secret. `behind` says how many events it must still deliver, of those that this identity may read.
#[utoipa::path(
    get, path = "/webhooks/{webhook}", tag = "events", operation_id = "get_webhook", params(WebhookPath),
    responses(
        (status = 200, body = Webhook, description = "The webhook."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such webhook."),
        Common,
    ),
)]
pub(super) async fn get_webhook(Call { app, caller, path }: Call<WebhookPath>) -> Result<Shown<Webhook>> {
    one(&app, &caller, &path.webhook).await.map(Shown)
}

/// A webhook that a caller may change.
pub async fn one(app: &App, caller: &Caller, id: &str) -> Result<Webhook> {
    let tx = app.store.begin().await?;
    let webhook = rows::get(&tx, &app.keys, id).await?.filter(|webhook| owns(caller, webhook));
    let webhook = webhook.ok_or_else(|| no_webhook(id))?;
    let progress = rows::progress(&tx, &app.keys, id).await?;
    let Waiting { events, more, since_us } =
        waiting(&tx, &app.keys, &app.identities, (&webhook, &progress), caller).await?;
    Ok(shown(webhook, progress, Some(Behind { events, more, since_us })))
}

/// Write a webhook
///
/// Creates a webhook, or changes the one with this id. A new one delivers the events from now on that its identity may read; an operator's,
/// those of all tenants. A changed one goes on at its position. A job of type `webhook` with its id delivers them, at least once and in
/// order, and repeats what fails with a backoff. 410 from the target disables the webhook, and so does revoking its identity.
#[utoipa::path(
    put, path = "/webhooks/{webhook}", tag = "events", operation_id = "put_webhook", params(WebhookPath),
    request_body = PutWebhook,
    responses(
        (status = 200, body = Webhook, description = "The webhook as it is now."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: a webhook of another tenant has this id."),
        BadBody, Common,
    ),
)]
pub(super) async fn put_webhook(
    Call { app, caller, path }: Call<WebhookPath>,
    Json(put): Json<PutWebhook>,
) -> Result<Shown<Webhook>> {
    write(&app, &caller, &path.webhook, put).await.map(Shown)
}

/// Writes a webhook, and starts the recording of events.
pub async fn write(app: &App, caller: &Caller, id: &str, put: PutWebhook) -> Result<Webhook> {
    check_webhook_id(id)?;
    let wanted = Wanted::parse(put)?;
    if wanted.enabled {
        // From here on no event is missing.
        let recording = tokio::select! {
            biased;
            () = app.stop.cancelled() => return Err(V1Error::stopping()),
            recording = app.events.begin() => recording?,
        };
        recording.ok_or_else(stream::not_recorded)?;
    }
    let (wanted, now_us) = (&wanted, app.now_us());
    app.store
        .transact(|tx| async move {
            let known = rows::get(&tx, &app.keys, id).await?;
            let webhook = wanted.applied(caller, id, known, now_us)?;
            rows::put(&tx, &app.keys, &webhook, now_us).await?;
            Ok::<_, V1Error>(())
        })
        .await?;
    one(app, caller, id).await
}

/// Remove a webhook
///
/// Removes also its job. A delivery that is under way may still arrive.
#[utoipa::path(
    delete, path = "/webhooks/{webhook}", tag = "events", operation_id = "remove_webhook", params(WebhookPath),
    responses(
        (status = 200, body = RemovedWebhook, description = "The webhook is removed."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such webhook."),
        Common,
    ),
)]
pub(super) async fn remove_webhook(
    Call { app, caller, path }: Call<WebhookPath>,
) -> Result<Shown<RemovedWebhook>> {
    Ok(Shown(RemovedWebhook { removed: remove(&app, &caller, &path.webhook).await? }))
}

/// Removes a webhook and its job.
pub async fn remove(app: &App, caller: &Caller, id: &str) -> Result<bool> {
    let removed = app.store.transact(|tx| async move {
        let known = rows::get(&tx, &app.keys, id).await?;
        if !known.is_some_and(|webhook| owns(caller, &webhook)) {
            return Err(no_webhook(id));
        }
        Ok(rows::remove(&tx, &app.keys, id).await?)
    });
    removed.await
}

/// A request, checked.
struct Wanted {
    url: String,
    secret: Option<Secret>,
    enabled: bool,
    filter: Filter,
    job_tenant: Option<String>,
}

impl Wanted {
    fn parse(put: PutWebhook) -> Result<Wanted> {
        let PutWebhook { url, secret, enabled, types, tenant, states, events, job_tenant } = put;
        if let Some(secret) = &secret
            && !(MIN_WEBHOOK_SECRET_BYTES..=MAX_WEBHOOK_SECRET_BYTES).contains(&secret.len())
        {
            let problem =
                format!("secret: {MIN_WEBHOOK_SECRET_BYTES} to {MAX_WEBHOOK_SECRET_BYTES} bytes are allowed");
            return Err(V1Error::bad(
                problem,
                "use a long random text, for example from `openssl rand -hex 32`",
            ));
        }
        check_stated(&job_tenant, |tenant| names::check_name("tenant", tenant))?;
        let filter = Filter { types, tenant, states, events };
        Ok(Wanted {
            url: checked_url(&url)?,
            secret: secret.map(Secret::new),
            enabled,
            filter: stream::checked(filter, ["types", "states", "events"])?,
            job_tenant,
        })
    }

    /// The webhook as it is after the request.
    fn applied(
        &self,
        caller: &Caller,
        id: &str,
        known: Option<rows::Webhook>,
        now_us: i64,
    ) -> Result<rows::Webhook> {
        let known = match known {
            Some(known) if !owns(caller, &known) => {
                return Err(V1Error::conflict(
                    codes::CONFLICT,
                    format!("another webhook has the id `{id}`"),
                    "choose another id",
                ));
            }
            known => known,
        };
        let Wanted { url, secret, enabled, filter, job_tenant } = self;
        let (url, filter, enabled) = (url.clone(), filter.clone(), *enabled);
        if let (None, Some(known)) = (secret, &known)
            && !is_by(caller, known)
        {
            let is_same = known.url == url
                && known.filter == filter
                && job_tenant.as_ref().is_none_or(|tenant| *tenant == known.job_tenant);
            return match is_same {
                true => {
                    Ok(rows::Webhook { enabled, disabled_because: None, changed_us: now_us, ..known.clone() })
                }
                false => Err(V1Error::forbidden(
                    "this webhook belongs to another identity",
                    "only `enabled` can be changed; with a new `secret`, the webhook becomes this identity's",
                )),
            };
        }
        let secret = secret.clone().or_else(|| known.as_ref().map(|known| known.secret.clone()));
        let secret = secret.ok_or_else(|| {
            V1Error::bad("secret: is missing", "a new webhook needs a secret, which signs what it sends")
        })?;
        if let Some(tenant) = filter.tenant.as_ref().filter(|tenant| !caller.reads(tenant)) {
            return Err(V1Error::forbidden(
                format!("this identity may not read the jobs of tenant `{tenant}`"),
                "name another tenant, or none for all that it may read",
            ));
        }
        let before = known.as_ref().map(|known| known.job_tenant.as_str());
        Ok(rows::Webhook {
            id: id.to_owned(),
            url,
            secret,
            job_tenant: tenant_of(caller, job_tenant.as_deref(), before, &filter)?,
            filter,
            by: caller.owner(),
            scopes: caller.scopes().texts(),
            by_operator: caller.operates(),
            enabled,
            disabled_because: None,
            created_us: known.map_or(now_us, |known| known.created_us),
            changed_us: now_us,
        })
    }
}

/// The tenant of a webhook's job: what clients of this tenant may read and change is the webhook as well as the job.
fn tenant_of(caller: &Caller, stated: Option<&str>, before: Option<&str>, filter: &Filter) -> Result<String> {
    if caller.operates() {
        return match stated.filter(|tenant| *tenant != OPERATORS_TENANT && Some(*tenant) != before) {
            None => Ok(OPERATORS_TENANT.to_owned()),
            Some(_) => Err(V1Error::bad(
                format!("job_tenant: the jobs of operators' webhooks have the tenant `{OPERATORS_TENANT}`"),
                "leave job_tenant out, or use an identity with `client` for the tenant",
            )),
        };
    }
    let tenant = stated
        .or(before)
        .or_else(|| filter.tenant.as_deref().filter(|tenant| caller.writes(tenant)))
        .or_else(|| caller.only_tenant())
        .unwrap_or(DEFAULT_TENANT)
        .to_owned();
    match caller.writes(&tenant) {
        true => Ok(tenant),
        false => Err(V1Error::forbidden(
            format!(
                "this identity may not add jobs for tenant `{tenant}`, and a webhook has a job{}",
                caller.own_tenants()
            ),
            "name one of its tenants with `job_tenant`",
        )),
    }
}

/// The URL in its normal form.
fn checked_url(text: &str) -> Result<String> {
    // Without the URL itself, which may hold a secret.
    let wrong = |problem: &str| {
        V1Error::bad(format!("url: {problem}"), "it is like https://example.com/hooks/turnwise")
    };
    if text.len() > MAX_WEBHOOK_URL_BYTES {
        return Err(wrong(&format!("has more than {MAX_WEBHOOK_URL_BYTES} bytes")));
    }
    let mut url = Url::parse(text).map_err(|problem| wrong(&problem.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong("must begin with http:// or https:// and a host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("must have no user and no password: the signature proves who sends"));
    }
    url.set_fragment(None);
    match url.as_str().len() {
        0..=MAX_WEBHOOK_URL_BYTES => Ok(url.into()),
        _ => Err(wrong(&format!("has more than {MAX_WEBHOOK_URL_BYTES} bytes when it is encoded"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn urls_are_absolute_and_have_no_credentials() {
        assert_eq!(checked_url("HTTPS://Example.com/ä?x#y").unwrap(), "https://example.com/%C3%A4?x");
        assert_eq!(checked_url("http://[::1]:8080").unwrap(), "http://[::1]:8080/");
        for wrong in
            ["", "x", "/x", "ftp://h/", "file:///x", "http://", "http://u:p@h/", "http://u@h/", "data:,x"]
        {
            assert!(checked_url(wrong).is_err(), "{wrong:?}");
        }
        let long = format!("http://h/{}", "ä".repeat(MAX_WEBHOOK_URL_BYTES / 3));
        assert!(long.len() <= MAX_WEBHOOK_URL_BYTES && checked_url(&long).is_err());
    }
}
