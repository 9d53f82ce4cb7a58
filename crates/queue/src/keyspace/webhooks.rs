//! The keys of [`crate::webhooks`]: a part of [`Keyspace`].

use turnwise_store::Result;
use turnwise_store::tuple::Element;

use super::Keyspace;

/// The last element of the keys of a webhook's other rows.
pub(super) const PROGRESS: &str = "at";
pub(super) const MORE: &str = "more";

/// What a row of a webhook is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebhookRow {
    Itself,
    Progress,
    More,
}

impl Keyspace {
    /// The id of a webhook in a key of [`Keyspace::webhooks`], and which of its rows it is.
    pub(crate) fn parse_webhook(&self, key: &[u8]) -> Result<(String, WebhookRow)> {
        if let Ok((_, id)) = self.space.unpack::<(Element<'_>, String)>(key) {
            return Ok((id, WebhookRow::Itself));
        }
        let (_, id, row): (Element<'_>, String, String) = self.read(key)?;
        match row.as_str() {
            PROGRESS => Ok((id, WebhookRow::Progress)),
            MORE => Ok((id, WebhookRow::More)),
            _ => Err(self.unreadable(key)),
        }
    }
}
