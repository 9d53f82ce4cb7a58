//! Requests about webhooks.

use reqwest::Method;
use turnwise_protocol::{PutWebhook, RemovedWebhook, Webhook, Webhooks};

use crate::client::{Repeat, Request};
use crate::{Client, Result};

impl Client {
    /// The webhooks that this identity may change, by id.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>> {
        Ok(self.read::<Webhooks>(&["webhooks"]).await?.webhooks)
    }

    /// A webhook, and how far it is behind.
    ///
    /// # Errors
    /// There is no such webhook, or the server does not answer.
    pub async fn webhook(&self, id: &str) -> Result<Webhook> {
        self.read(&["webhooks", id]).await
    }

    /// Creates a webhook, or changes the one with this id.
    ///
    /// # Errors
    /// The server refuses the webhook, or does not answer.
    pub async fn put_webhook(&self, id: &str, webhook: &PutWebhook) -> Result<Webhook> {
        self.put(&["webhooks", id], webhook).await
    }

    /// Removes a webhook.
    ///
    /// # Errors
    /// There is no such webhook, or the server does not answer.
    pub async fn remove_webhook(&self, id: &str) -> Result<()> {
        let request = Request::new(Method::DELETE, &["webhooks", id]);
        self.call::<RemovedWebhook>(&request, Repeat::IfUnsent).await.map(drop)
    }
}
