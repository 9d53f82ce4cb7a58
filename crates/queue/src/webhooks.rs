//! Webhooks: who is sent which events, and how far each is.
//!
//! *Model.* A webhook is two rows. The first states where its events go and which ones they are; clients write it. The second is its
//! position among the numbered events ([`crate::events`]), which the webhook's job moves. The job has the type [`JOB_TYPE`] and the
//! webhook's id. So deliveries have retries with backoff, fair share, a history and `why`, like any other job.
//!
//! *Order.* Only the job moves the position, from where it has read it ([`moved`]). A job has one claim at a time, so the deliveries
//! of a webhook follow one another. A delivery whose outcome is unknown is made again: at least once.
//!
//! *Waking.* The node that numbers events adds the job of each webhook that wants one of them ([`wake`]). A job that waits is left
//! alone: its run will read them. While it runs, the run may have read all that it will read. So a row makes the end of the run add
//! the job again ([`ended`]), unless the run has failed: then it waits for its backoff, and [`jobs::add`] would skip that. A client may
//! cancel or remove a job that waits. So its addition is noted ([`Progress::woken_us`]) until a run has moved the position, and the job is
//! added again where it is missing.

use std::fmt;

use async_recursion::async_recursion as boxed;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_store::Transaction;

use crate::error::corrupt;
use crate::events::{self, Filter, JobEvent};
use crate::keyspace::webhooks::WebhookRow;
use crate::rows::{decode, encode};
use crate::{Claim, End, Error, Job, JobSpec, Keyspace, NewJob, Place, Result, jobs, reads};

/// The type of the jobs that deliver.
pub const JOB_TYPE: &str = "webhook";
/// The most webhooks of a store.
pub const MAX_WEBHOOKS: usize = 1_000;
/// The most webhooks of a tenant. Operators may have all.
pub const MAX_WEBHOOKS_OF_TENANT: usize = 20;
/// The most bytes of an error that a webhook keeps.
pub const MAX_FAILURE_BYTES: usize = 500;
/// The most rows of a webhook.
const ROWS: usize = 3;

/// The key of the signatures. It is never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text, to sign with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("*****")
    }
}

/// A webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// Its id. In the key, not in the value.
    #[serde(skip)]
    pub id: String,
    /// Where its events go.
    pub url: String,
    /// Signs the deliveries.
    pub secret: Secret,
    /// Which events it wants.
    #[serde(default)]
    pub filter: Filter,
    /// The tenant of its job.
    pub job_tenant: String,
    /// The identity whose events it gets; `None` on a store without identities.
    pub by: Option<String>,
    /// What that identity might do when it wrote the webhook, as text.
    pub scopes: Vec<String>,
    /// Whether that identity was an operator: then it may send events to internal addresses.
    pub by_operator: bool,
    /// Whether it delivers.
    pub enabled: bool,
    /// Why it was disabled, unless a client did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_because: Option<String>,
    /// When it was created, in µs.
    pub created_us: i64,
    /// When a client has changed it last, in µs.
    pub changed_us: i64,
}

impl Webhook {
    /// Whether it wants an event, if its identity may read the tenant. What happens to deliveries is not delivered.
    pub fn wants(&self, event: &JobEvent) -> bool {
        event.job_type != JOB_TYPE && self.filter.admits(event)
    }
}

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// When, in µs.
    pub at_us: i64,
    /// Why, without secrets.
    pub reason: String,
}

/// How far a webhook is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The number of the last event that it is through with.
    pub position: u64,
    /// When the position has moved last, in µs.
    pub moved_us: i64,
    /// How many events were delivered.
    #[serde(default)]
    pub delivered: u64,
    /// When a delivery succeeded last, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded_us: Option<i64>,
    /// The last attempt that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The number of the last event that the attempt looked at which has failed: the next attempt ends there as well, so that it
    /// is the same delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_until: Option<u64>,
    /// When the job was added, or told to read again, for events that no run has looked at, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken_us: Option<i64>,
    /// How often events were gone before they were delivered.
    #[serde(default)]
    pub gaps: u64,
    /// When that happened last, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_us: Option<i64>,
}

/// A webhook, if it exists.
#[boxed]
pub async fn get(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<Option<Webhook>> {
    let webhook: Option<Webhook> = reads::value(tx, &keys.webhook(id), "webhook").await?;
    Ok(webhook.map(|webhook| Webhook { id: id.to_owned(), ..webhook }))
}

/// How far a webhook is.
#[boxed]
pub async fn progress(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<Progress> {
    Ok(reads::value(tx, &keys.webhook_progress(id), "progress of a webhook").await?.unwrap_or_default())
}

/// All webhooks, by id, each with its progress. Adds no read conflict.
#[boxed]
pub async fn list(tx: &Transaction, keys: &Keyspace) -> Result<Vec<(Webhook, Progress)>> {
    let mut webhooks: Vec<(Webhook, Progress)> = Vec::new();
    for (key, value) in reads::rows(tx, keys.webhooks(), MAX_WEBHOOKS * ROWS).await? {
        match (keys.parse_webhook(&key)?, webhooks.last_mut()) {
            ((id, WebhookRow::Itself), _) => {
                webhooks.push((Webhook { id, ..decode("webhook", &value)? }, Progress::default()));
            }
            ((id, WebhookRow::Progress), Some((webhook, progress))) if webhook.id == id => {
                *progress = decode("progress of a webhook", &value)?;
            }
            ((_, WebhookRow::More), _) => {}
            ((id, WebhookRow::Progress), _) => {
                return Err(corrupt("progress of a webhook", format!("there is no webhook {id}")));
            }
        }
    }
    Ok(webhooks)
}

/// Writes a webhook, new or in place of the one with its id. Adds its job if it is enabled, and cancels it otherwise. A new one
/// begins with the next event.
///
/// # Errors
/// `Invalid` if there are too many.
#[boxed]
pub async fn put(tx: &Transaction, keys: &Keyspace, webhook: &Webhook, now_us: i64) -> Result<()> {
    // Every change writes this row, so of two that count each other's absence, one conflicts.
    tx.get(&keys.webhooks_versionstamp()).await?;
    let known = get(tx, keys, &webhook.id).await?;
    if known.as_ref().is_none_or(|known| known.job_tenant != webhook.job_tenant) {
        check_room(tx, keys, webhook).await?;
        // Who might read the job and its errors may not read what follows.
        remove_job(tx, keys, &webhook.id).await?;
    }
    let progress = match known {
        None => Progress {
            position: events::head(tx, keys).await?.next - 1,
            moved_us: now_us,
            ..Progress::default()
        },
        // What the next attempt sends may be something else.
        Some(_) => Progress { repeat_until: None, ..progress(tx, keys, &webhook.id).await? },
    };
    let progress = Progress { woken_us: webhook.enabled.then_some(now_us), ..progress };
    tx.set(keys.webhook(&webhook.id), encode(webhook))?;
    tx.set(keys.webhook_progress(&webhook.id), encode(&progress))?;
    tx.set_versionstamp(keys.webhooks_versionstamp())?;
    if !webhook.enabled {
        return stop(tx, keys, &webhook.id, now_us).await;
    }
    if jobs::add(tx, keys, &job(webhook), now_us).await? == jobs::Added::AlreadyWaiting {
        // It need not wait for the end of its backoff: what was wrong may be right now.
        jobs::retry(tx, keys, JOB_TYPE, &webhook.id, now_us).await?;
    }
    Ok(())
}

/// Cancels the job of a webhook that delivers no longer, if it has one.
async fn stop(tx: &Transaction, keys: &Keyspace, id: &str, now_us: i64) -> Result<()> {
    if_there(jobs::cancel(tx, keys, JOB_TYPE, id, now_us).await)
}

async fn check_room(tx: &Transaction, keys: &Keyspace, webhook: &Webhook) -> Result<()> {
    let mut others = list(tx, keys).await?;
    others.retain(|(other, _)| other.id != webhook.id);
    if others.len() >= MAX_WEBHOOKS {
        let problem = format!("there are {MAX_WEBHOOKS} webhooks, which is the most: remove one");
        return Err(Error::Invalid { field: "webhook", problem });
    }
    let of_tenant = others.iter().filter(|(other, _)| other.job_tenant == webhook.job_tenant).count();
    if of_tenant >= MAX_WEBHOOKS_OF_TENANT && !webhook.by_operator {
        let problem = format!(
            "tenant `{}` has {MAX_WEBHOOKS_OF_TENANT} webhooks, which is the most: remove one, or let one get more types",
            webhook.job_tenant
        );
        return Err(Error::Invalid { field: "webhook", problem });
    }
    Ok(())
}

/// Removes a webhook, and its job. Returns whether there was one.
#[boxed]
pub async fn remove(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<bool> {
    let was_there = tx.get(&keys.webhook(id)).await?.is_some();
    if was_there {
        tx.clear(keys.webhook(id))?;
        tx.clear(keys.webhook_progress(id))?;
        tx.clear(keys.webhook_more(id))?;
        tx.set_versionstamp(keys.webhooks_versionstamp())?;
        remove_job(tx, keys, id).await?;
    }
    Ok(was_there)
}

async fn remove_job(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<()> {
    if_there(jobs::remove(tx, keys, JOB_TYPE, id).await)
}

/// Whether a change of a job failed, which may not exist.
fn if_there<T>(changed: Result<T>) -> Result<()> {
    match changed {
        Ok(_) | Err(Error::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Disables a webhook, and cancels its job, unless a client has changed it since it was read. Returns whether it did.
#[boxed]
pub async fn disable(tx: &Transaction, keys: &Keyspace, seen: &Webhook, reason: &str) -> Result<bool> {
    let Some(webhook) = get(tx, keys, &seen.id).await?.filter(|webhook| webhook == seen && webhook.enabled)
    else {
        return Ok(false);
    };
    let disabled_because = Some(bounded(reason));
    tx.set(keys.webhook(&seen.id), encode(&Webhook { enabled: false, disabled_because, ..webhook }))?;
    tx.set_versionstamp(keys.webhooks_versionstamp())?;
    stop(tx, keys, &seen.id, tx.now_us()).await?;
    Ok(true)
}

/// Changes the progress of a webhook that is as it was read. Returns whether it was: another run may have moved it, and a client may
/// have changed the webhook.
#[boxed]
pub async fn moved(
    tx: &Transaction,
    keys: &Keyspace,
    seen: (&Webhook, &Progress),
    now: Progress,
) -> Result<bool> {
    let (webhook, before) = seen;
    tx.prefetch([keys.webhook(&webhook.id), keys.webhook_progress(&webhook.id)]).await?;
    // Who disables a webhook while a delivery is under way still counts what was delivered.
    let is_same = get(tx, keys, &webhook.id).await?.is_some_and(|now| now.created_us == webhook.created_us);
    if !is_same || progress(tx, keys, &webhook.id).await?.position != before.position {
        return Ok(false);
    }
    tx.set(keys.webhook_progress(&webhook.id), encode(&Progress { woken_us: None, ..now }))?;
    Ok(true)
}

/// Takes back what [`wake`] has told the run of this claim, which reads all events that there are after this commit. Until it has moved the
/// position, or completes, they are noted: a client may cancel or remove the job meanwhile. Returns whether the run still has the claim.
#[boxed]
pub async fn reads_again(
    tx: &Transaction,
    keys: &Keyspace,
    id: &str,
    claim: Option<&Claim>,
    now_us: i64,
) -> Result<bool> {
    tx.prefetch([keys.job(JOB_TYPE, id), keys.webhook_progress(id)]).await?;
    let is_claimed = jobs::get(tx, keys, JOB_TYPE, id).await?.is_some_and(|job| job.claim() == claim);
    if is_claimed {
        tx.clear(keys.webhook_more(id))?;
        note_woken(tx, keys, id, Some(now_us)).await?;
    }
    Ok(is_claimed)
}

/// Lets the job of an enabled webhook read the events that are there now: adds it, or makes it run once more. Returns whether it had
/// to.
#[boxed]
pub async fn wake(tx: &Transaction, keys: &Keyspace, id: &str, now_us: i64) -> Result<bool> {
    let of_job = [keys.job(JOB_TYPE, id), keys.webhook_more(id)];
    tx.prefetch([keys.webhook(id), keys.webhook_progress(id)].into_iter().chain(of_job)).await?;
    let Some(webhook) = get(tx, keys, id).await?.filter(|webhook| webhook.enabled) else { return Ok(false) };
    // With a conflict: a run that ends now has not seen the row that is written here.
    match jobs::get(tx, keys, JOB_TYPE, id).await?.map(|job| job.into_fields().place) {
        None | Some(Place::Ended(_)) => {
            jobs::add(tx, keys, &job(&webhook), now_us).await?;
            note_woken(tx, keys, id, Some(now_us)).await?;
            Ok(true)
        }
        Some(Place::Active(_)) => {
            let more = keys.webhook_more(id);
            let is_new = tx.get(&more).await?.is_none();
            if is_new {
                tx.set(more, encode(&true))?;
            }
            Ok(is_new)
        }
        // Its next run starts later, and reads what is there then.
        Some(_) => Ok(false),
    }
}

/// Notes when there was an event that no run has looked at, or that there is none.
async fn note_woken(tx: &Transaction, keys: &Keyspace, id: &str, woken_us: Option<i64>) -> Result<()> {
    let before = progress(tx, keys, id).await?;
    if before.woken_us != woken_us {
        tx.set(keys.webhook_progress(id), encode(&Progress { woken_us, ..before }))?;
    }
    Ok(())
}

/// Adds the job of a webhook again at the end of a run during which events came ([`wake`]), in the transaction that ends the run.
#[boxed]
pub async fn ended(tx: &Transaction, keys: &Keyspace, job: Option<&Job>, now_us: i64) -> Result<()> {
    let Some(ended) = job else { return Ok(()) };
    let more = keys.webhook_more(&ended.id);
    tx.prefetch([more.clone(), keys.webhook(&ended.id), keys.webhook_progress(&ended.id)]).await?;
    let woken = tx.get(&more).await?.is_some();
    if woken {
        tx.clear(more)?;
    }
    let Some(webhook) = get(tx, keys, &ended.id).await?.filter(|webhook| webhook.enabled) else {
        return Ok(());
    };
    match ended.place {
        Place::Ended(_) if woken => {
            jobs::add(tx, keys, &self::job(&webhook), now_us).await?;
            note_woken(tx, keys, &webhook.id, Some(now_us)).await
        }
        // It has looked at all events.
        Place::Ended(End::Completed) => note_woken(tx, keys, &webhook.id, None).await,
        _ => Ok(()),
    }
}

fn job(webhook: &Webhook) -> NewJob {
    // Without the path and the query, which may hold a secret.
    let origin = webhook.url.match_indices('/').nth(2).map_or(&*webhook.url, |(at, _)| &webhook.url[..at]);
    let spec = JobSpec {
        tenant: webhook.job_tenant.clone(),
        user: webhook.by.clone(),
        summary: raw(&serde_json::json!({ "url": origin })),
        ..JobSpec::default()
    };
    NewJob { spec, ..NewJob::new(JOB_TYPE, &webhook.id, raw(&serde_json::json!({}))) }
}

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("plain data with string keys")
}

/// A reason within its bound.
pub fn bounded(reason: &str) -> String {
    reason[..reason.floor_char_boundary(MAX_FAILURE_BYTES)].to_owned()
}

#[cfg(test)]
#[path = "webhooks_tests.rs"]
mod tests;
