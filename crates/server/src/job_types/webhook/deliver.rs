//! One run of a webhook's job: it sends what is there, batch after batch, and moves the position after each.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use ring::hmac;
use serde_json::json;
use tokio::sync::Semaphore;
use turnwise_api::Sequence;
use turnwise_api::sight::{Sight, decoded};
use turnwise_outbound::{Client, Post, Posted, Secret};
use turnwise_protocol::Delivery;
use turnwise_protocol::stream::StreamEvent;
use turnwise_protocol::webhooks::{DELIVERY_HEADER, MAX_DELIVERY_EVENTS, SIGNATURE_HEADER, TIMESTAMP_HEADER};
use turnwise_queue::events::{self, JobEvent, Page, Row};
use turnwise_queue::webhooks::{self, Failure, Progress, Webhook, bounded};
use turnwise_queue::{Job, Keyspace, Result};
use turnwise_store::{Isolation, Store, Transaction};
use turnwise_web::access::Identities;
use turnwise_worker::{JobContext, JobHandler, Outcome};

use super::hosts::{Hosts, Place};
use super::{GONE, disable};

/// About how many bytes of events a delivery has at most. With each webhook of a store under way, these are 64 MB.
const MAX_DELIVERY_BYTES: usize = 64 << 10;
/// Rows of events that are read at once, until there is something to send: what others do is read and left out.
const ROWS: usize = 32;
/// The same for a webhook that is far behind, as one is whose target was down.
const ROWS_BEHIND: usize = 256;
/// Rows that one transaction reads: it must end while its snapshot can be read, on every store.
const MOST_ROWS: usize = 512;
/// Webhooks for which a node reads events at the same time. With the largest rows, they take 60 MB.
const READERS: usize = 32;
/// The same for webhooks that are far behind: another 60 MB.
const READERS_BEHIND: usize = 4;
/// How long a target has for its response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A delivery that takes longer is a slow one: before the next one, the webhook rests for as long as it took.
const SLOW: Duration = Duration::from_secs(1);
/// A run with more to send ends after this time, so that the webhooks of other tenants have their turn.
const LONGEST_RUN: Duration = Duration::from_secs(60);
/// How long a run waits for the next event, so that a webhook with many events needs no job for each.
const LINGER: Duration = Duration::from_secs(1);
/// The digits of the name of a delivery that hides its numbers.
const NAME_BYTES: usize = 16;
/// The status of a target that wants nothing more.
const GONE_STATUS: u16 = 410;

/// Runs the jobs.
pub(super) struct Deliverer {
    store: Store,
    keys: Keyspace,
    identities: Identities,
    client: Client,
    /// The deliveries under way to each host.
    hosts: Hosts,
    /// One for each webhook whose events are read now.
    readers: Semaphore,
    /// One for each of those that is far behind.
    readers_behind: Semaphore,
    /// The most runs at the same time, and one permit for each that there could be now.
    slots: usize,
    free_slots: Semaphore,
}

/// What to do next for a webhook.
enum Next {
    /// Send these events.
    Send(Box<Batch>),
    /// Go on: the position has moved, or the webhook has changed.
    Again,
    /// Nothing is left, or nothing may be sent.
    Nothing,
}

/// Events to be sent.
struct Batch {
    webhook: Webhook,
    progress: Progress,
    events: Vec<(u64, JobEvent)>,
    /// The number of the last event that was looked at.
    through: u64,
    /// How the numbers of events are shown to the target.
    sequence: Sequence,
    /// Whether the identity may know them.
    by_operator: bool,
}

#[async_trait]
impl JobHandler for Deliverer {
    /// Delivers what is there.
    async fn run(&self, job: JobContext) -> Outcome {
        let _slot = self.free_slots.try_acquire();
        let begun_us = self.store.runtime().elapsed_us();
        let longest_us = i64::try_from(LONGEST_RUN.as_micros()).unwrap_or(i64::MAX);
        let mut delivered = 0;
        let mut waited: Option<Place> = None;
        let mut is_behind = false;
        loop {
            let is_late = self.store.runtime().elapsed_us() > begun_us.saturating_add(longest_us);
            if is_late || job.stop.is_cancelled() {
                return Outcome::Stopped;
            }
            let step = async {
                match self.next(&job.job.id, &mut is_behind).await? {
                    Next::Send(batch) => {
                        let (url, tenant) = (&batch.webhook.url, &batch.webhook.job_tenant);
                        let held = waited.take().filter(|place| place.is_for(url, tenant));
                        match held.or_else(|| self.hosts.place(url, tenant).now_or_never()) {
                            Some(place) => self.send(*batch, place).await,
                            // Until there is a place, the webhook may change, and its identity may go: both are read again.
                            None => {
                                waited = Some(self.hosts.place(url, tenant).await);
                                Ok(Sent::Some { events: 0, took: Duration::ZERO })
                            }
                        }
                    }
                    Next::Again => Ok(Sent::Some { events: 0, took: Duration::ZERO }),
                    Next::Nothing => Ok(Sent::Nothing),
                }
            };
            let Some(sent) = job.stop.run_until_cancelled(step).await else { return Outcome::Stopped };
            match sent {
                Ok(Sent::Some { events, took }) => {
                    delivered += events;
                    job.report(&json!({ "delivered": delivered }));
                    if took >= SLOW {
                        job.stop.run_until_cancelled(self.store.runtime().sleep(took)).await;
                    }
                }
                Ok(Sent::Nothing) => match job.stop.run_until_cancelled(self.linger(&job.job)).await {
                    None => return Outcome::Stopped,
                    Some(Ok(true)) => {}
                    Some(Ok(false)) => return Outcome::completed(&json!({ "delivered": delivered })),
                    // All that was read is delivered. The next run reads again, without a backoff.
                    Some(Err(error)) => {
                        tracing::debug!(webhook = job.job.id, %error, "cannot wait for events");
                        return Outcome::Stopped;
                    }
                },
                Ok(Sent::Failed(reason)) => return Outcome::Crashed(reason),
                Err(error) => return Outcome::Crashed(format!("the store: {error}")),
            }
        }
    }

    async fn ended(&self, tx: &Transaction, keys: &Keyspace, job: Option<&Job>) -> Result<()> {
        webhooks::ended(tx, keys, job, self.now_us()).await
    }
}

impl Deliverer {
    pub fn new(store: Store, keys: Keyspace, identities: Identities, client: Client, slots: usize) -> Self {
        let (readers, readers_behind) = (Semaphore::new(READERS), Semaphore::new(READERS_BEHIND));
        let (hosts, free_slots) = (Hosts::default(), Semaphore::new(slots));
        Deliverer { store, keys, identities, client, hosts, readers, readers_behind, slots, free_slots }
    }

    /// Waits a little for an event that the webhook wants. Returns whether there may be one. While few slots are free, it does not wait:
    /// other webhooks may need them.
    async fn linger(&self, job: &Job) -> Result<bool> {
        if self.free_slots.available_permits() < self.slots.div_ceil(2) {
            return Ok(false);
        }
        let (keys, id) = (&self.keys, job.id.as_str());
        let more = keys.webhook_more(id);
        let seen = self.store.begin().await?.get_with(&more, Isolation::Snapshot).await?;
        if seen.is_none() {
            return Ok(tokio::select! {
                () = self.store.watch(more, None).await? => true,
                () = self.store.runtime().sleep(LINGER) => false,
            });
        }
        let now_us = self.now_us();
        let again =
            |tx: Transaction| async move { webhooks::reads_again(&tx, keys, id, job.claim(), now_us).await };
        self.store.transact(again).await
    }

    /// Looks what a webhook is to be sent. Notes whether there is more than it has read.
    async fn next(&self, id: &str, is_behind: &mut bool) -> Result<Next> {
        let keys = &self.keys;
        // Before the snapshot, which becomes too old on some stores.
        let reader = self.readers.acquire().await.expect("the semaphore is never closed");
        let tx = self.store.begin().await?;
        let of_events = [keys.event_recording(), keys.event_head()];
        tx.prefetch([keys.webhook(id), keys.webhook_progress(id)].into_iter().chain(of_events)).await?;
        let webhook = webhooks::get(&tx, keys, id).await?.filter(|webhook| webhook.enabled);
        let Some(webhook) = webhook else { return Ok(Next::Nothing) };
        let progress = webhooks::progress(&tx, keys, id).await?;
        let Some(sight) = Sight::of(&self.identities, &tx, keys, &webhook).await? else {
            drop(tx);
            disable(&self.store, keys, &webhook, GONE).await?;
            return Ok(Next::Nothing);
        };
        let by_operator = webhook.by_operator && sight.caller.operates();
        let (mut events, mut through, mut is_end) = (Vec::new(), progress.position, false);
        let (mut many, mut left) = (None, MOST_ROWS);
        while left > 0 {
            if *is_behind && many.is_none() {
                many = self.readers_behind.try_acquire().ok();
            }
            let limit = left.min(if many.is_some() { ROWS_BEHIND } else { ROWS });
            left -= limit;
            let last_gone = match events::page(&tx, keys, through, limit).await? {
                Page::Events(rows) if rows.is_empty() => {
                    is_end = true;
                    break;
                }
                Page::Events(rows) => {
                    *is_behind = rows.len() == limit;
                    (events, through) = batch(&sight, rows, progress.repeat_until)?;
                    if events.is_empty() {
                        continue;
                    }
                    break;
                }
                Page::Gone { oldest } => oldest.saturating_sub(1),
                // The store is another one.
                Page::Unknown => events::head(&tx, keys).await?.next - 1,
            };
            drop(tx);
            return self.skip(&webhook, &progress, last_gone).await;
        }
        drop((tx, reader, many, sight));
        if events.is_empty() {
            if through > progress.position {
                let moved_us = self.now_us();
                let now = Progress { position: through, moved_us, repeat_until: None, ..progress.clone() };
                self.moved(&webhook, &progress, now).await?;
            }
            let is_over = is_end && through == progress.position;
            return Ok(if is_over { Next::Nothing } else { Next::Again });
        }
        let key = match by_operator {
            true => None,
            false => self.identities.session_key().await?,
        };
        let sequence = Sequence::new(key);
        Ok(Next::Send(Box::new(Batch { webhook, progress, events, through, sequence, by_operator })))
    }

    /// Goes on after events that are gone, and notes that.
    async fn skip(&self, webhook: &Webhook, progress: &Progress, position: u64) -> Result<Next> {
        let now_us = self.now_us();
        let now = Progress {
            position,
            moved_us: now_us,
            gaps: progress.gaps + 1,
            gap_us: Some(now_us),
            repeat_until: None,
            ..progress.clone()
        };
        if self.moved(webhook, progress, now).await? {
            tracing::warn!(webhook = %webhook.id, "events were removed before they were delivered: [events] keep and max");
        }
        Ok(Next::Again)
    }

    /// Sends a batch. The place is for its host.
    async fn send(&self, batch: Batch, _place: Place) -> Result<Sent> {
        let Batch { webhook, progress, events, through, sequence, by_operator } = batch;
        let key = hmac::Key::new(hmac::HMAC_SHA256, webhook.secret.reveal().as_bytes());
        let delivery = name(&webhook.id, &key, &events, by_operator);
        let count = events.len() as u64;
        let events: Vec<StreamEvent> =
            events.into_iter().map(|(number, event)| sequence.event(number, event)).collect();
        let body = Delivery { webhook: webhook.id.clone(), delivery: delivery.clone(), events };
        let body: Bytes =
            serde_json::to_vec(&body).expect("deliveries are plain data with string keys").into();
        // The target compares it with its own clock.
        let timestamp = (self.store.runtime().machine_us() / 1_000_000).to_string();
        let post = Post {
            tenant: (!by_operator).then_some(webhook.job_tenant.as_str()),
            url: &webhook.url,
            headers: vec![
                (DELIVERY_HEADER, delivery),
                (SIGNATURE_HEADER, signature(&key, &timestamp, &body)),
                (TIMESTAMP_HEADER, timestamp),
            ],
            body,
            secrets: secrets(&webhook),
            timeout: TIMEOUT,
        };
        let begun_us = self.store.runtime().elapsed_us();
        let posted = self.client.post(post).await;
        let took_us = self.store.runtime().elapsed_us().saturating_sub(begun_us);
        let took = Duration::from_micros(took_us.try_into().unwrap_or(0));
        let now_us = self.now_us();
        let reason = match posted {
            Ok(Posted { status, .. }) if status.is_success() => {
                let now = Progress {
                    position: through,
                    moved_us: now_us,
                    delivered: progress.delivered + count,
                    succeeded_us: Some(now_us),
                    repeat_until: None,
                    ..progress.clone()
                };
                self.moved(&webhook, &progress, now).await?;
                return Ok(Sent::Some { events: count, took });
            }
            Ok(Posted { status, words }) => {
                let reason = match status.is_redirection() {
                    true => format!("{words} (redirects are not followed: write the final URL)"),
                    false => words,
                };
                if status.as_u16() == GONE_STATUS {
                    self.failed(&webhook, &progress, &reason, through).await?;
                    disable(&self.store, &self.keys, &webhook, &format!("its target answered {reason}"))
                        .await?;
                    return Ok(Sent::Nothing);
                }
                reason
            }
            Err(reason) => reason,
        };
        self.failed(&webhook, &progress, &reason, through).await?;
        Ok(Sent::Failed(reason))
    }

    /// Notes an attempt that failed.
    async fn failed(&self, webhook: &Webhook, progress: &Progress, reason: &str, through: u64) -> Result<()> {
        let failure = Some(Failure { at_us: self.now_us(), reason: bounded(reason) });
        let now = Progress { failure, repeat_until: Some(through), ..progress.clone() };
        self.moved(webhook, progress, now).await.map(drop)
    }

    async fn moved(&self, webhook: &Webhook, before: &Progress, now: Progress) -> Result<bool> {
        let (keys, now) = (&self.keys, &now);
        self.store
            .transact(|tx| async move { webhooks::moved(&tx, keys, (webhook, before), now.clone()).await })
            .await
    }

    fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }
}

/// What came of a step.
enum Sent {
    /// So many events are delivered, the target took so long, and there may be more.
    Some {
        events: u64,
        took: Duration,
    },
    Nothing,
    Failed(String),
}

/// The events of a delivery with their numbers, and the number of the last event that was looked at. A delivery that is repeated ends
/// where the last attempt ended.
fn batch(sight: &Sight<'_>, rows: Vec<Row>, until: Option<u64>) -> Result<(Vec<(u64, JobEvent)>, u64)> {
    let (mut events, mut bytes, mut through) = (Vec::new(), 0, 0);
    let numbered = rows.into_iter().flat_map(|row| (row.first..).zip(row.events));
    for (number, json) in numbered {
        let is_full = events.len() == MAX_DELIVERY_EVENTS || bytes + json.len() > MAX_DELIVERY_BYTES;
        if is_full && !events.is_empty() || until.is_some_and(|until| number > until && through > 0) {
            break;
        }
        through = number;
        let event = decoded(&json)?;
        if sight.admits(&event) {
            bytes += json.len();
            events.push((number, event));
        }
    }
    Ok((events, through))
}

/// The name of a delivery. Numbers of events tell how much others do, so only operators see them.
fn name(id: &str, key: &hmac::Key, events: &[(u64, JobEvent)], by_operator: bool) -> String {
    let number = |event: Option<&(u64, JobEvent)>| event.map_or(0, |(number, _)| *number);
    let numbers = format!("{}-{}", number(events.first()), number(events.last()));
    match by_operator {
        true => format!("{id}/{numbers}"),
        false => {
            let mac = hmac::sign(key, format!("delivery {numbers}").as_bytes());
            format!("{id}/{}", hex(&mac.as_ref()[..NAME_BYTES]))
        }
    }
}

/// `X-Turnwise-Signature`.
fn signature(key: &hmac::Key, timestamp: &str, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(key);
    context.update(timestamp.as_bytes());
    context.update(b".");
    context.update(body);
    format!("sha256={}", hex(context.sign().as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a target may repeat, and nobody else may read: the secret, and what comes after the host in the URL.
fn secrets(webhook: &Webhook) -> Vec<Secret> {
    let path = webhook.url.match_indices('/').nth(2).map_or("", |(at, _)| &webhook.url[at..]);
    let mut secrets = vec![Secret::new(webhook.secret.reveal())];
    if path.len() > 1 {
        secrets.push(Secret::new(path));
    }
    secrets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_rfc_4231() {
        // Test case 2, with the dot that is between the time and the body.
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        let expected = hex(hmac::sign(&key, b"what do ya want .for nothing?").as_ref());
        assert_eq!(signature(&key, "what do ya want ", b"for nothing?"), format!("sha256={expected}"));
        let plain = hmac::sign(&key, b"what do ya want for nothing?");
        assert_eq!(hex(plain.as_ref()), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn names_of_deliveries_hide_numbers_from_tenants() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");
        let event = |number| {
            let event = JobEvent {
                event: "added".to_owned(),
                job_type: "t".to_owned(),
                id: "a".to_owned(),
                tenant: "acme".to_owned(),
                task: None,
                tags: std::collections::BTreeSet::new(),
                state: "pending".to_owned(),
                at_us: 1,
                reason: None,
                class: None,
            };
            (number, event)
        };
        let events = [event(4711), event(4712), event(4720)];
        assert_eq!(name("w", &key, &events, true), "w/4711-4720");
        let hidden = name("w", &key, &events, false);
        assert_eq!(hidden.len(), "w/".len() + NAME_BYTES * 2);
        assert!(!hidden.contains("4711") && !hidden.contains("4720"), "{hidden}");
        assert_eq!(hidden, name("w", &key, &events, false));
        assert_ne!(hidden, name("w", &key, &events[..2], false));
    }
}
