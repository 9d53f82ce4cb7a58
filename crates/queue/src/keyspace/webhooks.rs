//! The keys of [`crate::webhooks`]: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

/// The last element of the keys of a webhook's other rows.
const PROGRESS: &str = "at";
const MORE: &str = "more";

/// What a row of a webhook is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebhookRow {
    Itself,
    Progress,
    More,
}

impl Keyspace {
    /// A webhook.
    pub fn webhook(&self, id: &str) -> Bytes {
        pack(&self.space, &("webhooks", id))
    }

    /// How far a webhook is. It follows the row of the webhook.
    pub fn webhook_progress(&self, id: &str) -> Bytes {
        pack(&self.space, &("webhooks", id, PROGRESS))
    }

    /// That the job of a webhook must run once more after its current run.
    pub fn webhook_more(&self, id: &str) -> Bytes {
        pack(&self.space, &("webhooks", id, MORE))
    }

    /// All rows of all webhooks, by id, each webhook before its other rows.
    pub fn webhooks(&self) -> KeyRange {
        children(&self.space, &("webhooks",))
    }

    /// The id of a webhook in a key of [`Keyspace::webhooks`], and which of its rows it is.
    pub(crate) fn parse_webhook(&self, key: &[u8]) -> Option<(String, WebhookRow)> {
        if let Ok((_, id)) = self.space.unpack::<(String, String)>(key) {
            return Some((id, WebhookRow::Itself));
        }
        let (_, id, row): (String, String, String) = self.space.unpack(key).ok()?;
        match row.as_str() {
            PROGRESS => Some((id, WebhookRow::Progress)),
            MORE => Some((id, WebhookRow::More)),
            _ => None,
        }
    }

    /// The versionstamp of the webhooks, without their progress.
    pub fn webhooks_versionstamp(&self) -> Bytes {
        pack(&self.space, &("webhooks_vs",))
    }
}
