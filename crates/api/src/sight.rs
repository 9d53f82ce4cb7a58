//! Which events a webhook is sent, and how many it has not been sent yet.

use turnwise_queue::events::{self, JobEvent, Page};
use turnwise_queue::webhooks::{Progress, Webhook};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Error as StoreError, Transaction};
use turnwise_web::access::{Caller, Identities, caller_now};

/// Rows of events that are counted to find out how far a webhook is behind.
const COUNTED_ROWS: usize = 10;

/// Which events a webhook is sent.
pub struct Sight<'a> {
    webhook: &'a Webhook,
    /// Its identity, as it is now.
    pub caller: Caller,
    /// The same, as it was when it wrote the webhook.
    before: Caller,
}

impl<'a> Sight<'a> {
    /// `None` if the identity is gone.
    pub async fn of(
        identities: &Identities,
        tx: &Transaction,
        keys: &Keyspace,
        webhook: &'a Webhook,
    ) -> Result<Option<Self>> {
        let caller = caller_now(identities, tx, keys, webhook.by.as_deref(), &webhook.scopes).await?;
        Ok(caller.map(|caller| Sight { webhook, caller, before: caller_before(webhook) }))
    }

    /// Whether it is sent the event.
    pub fn admits(&self, event: &JobEvent) -> bool {
        // Rights that the identity got since then are not those that the webhook was written with.
        self.webhook.wants(event) && self.caller.reads(&event.tenant) && self.before.reads(&event.tenant)
    }
}

/// The identity of a webhook, with what it might do when it wrote it.
pub fn caller_before(webhook: &Webhook) -> Caller {
    let scopes = turnwise_identity::Scopes::parse(&webhook.scopes).unwrap_or_default();
    Caller::token(&webhook.id, scopes)
}

/// What a webhook must still deliver.
pub struct Waiting {
    /// The number of events.
    pub events: u64,
    /// Whether there are more.
    pub more: bool,
    /// The time of the first one, in µs since 1970.
    pub since_us: Option<i64>,
}

/// Counts the events that a webhook must still deliver and that `viewer` may read, up to a bound.
pub async fn waiting(
    tx: &Transaction,
    keys: &Keyspace,
    identities: &Identities,
    (webhook, progress): (&Webhook, &Progress),
    viewer: &Caller,
) -> Result<Waiting> {
    let mut waiting = Waiting { events: 0, more: false, since_us: None };
    let Some(sight) = Sight::of(identities, tx, keys, webhook).await? else { return Ok(waiting) };
    let Page::Events(rows) = events::page(tx, keys, progress.position, COUNTED_ROWS).await? else {
        waiting.more = true;
        return Ok(waiting);
    };
    waiting.more = rows.len() == COUNTED_ROWS;
    for json in rows.iter().flat_map(|row| &row.events) {
        let event = decoded(json)?;
        if sight.admits(&event) && viewer.reads(&event.tenant) {
            waiting.events += 1;
            waiting.since_us.get_or_insert(event.at_us);
        }
    }
    Ok(waiting)
}

/// An event of a row.
pub fn decoded(json: &[u8]) -> Result<JobEvent> {
    Ok(serde_json::from_slice(json).map_err(|error| StoreError::Corrupt(format!("an event: {error}")))?)
}
