//! Requests about job filters, webhooks and fleets.

use reqwest::Method;
use turnwise_protocol::{
    Filter, Filters, Fleet, Fleets, PauseRate, PausedRate, PutFilter, PutFleet, PutWebhook, RemovedFilter,
    RemovedFleet, RemovedTerms, RemovedWebhook, StatedType, StatedTypes, TypeTerms, Webhook, Webhooks,
};

use crate::client::{Repeat, Request};
use crate::{Client, Result};

impl Client {
    /// All job filters, in the order in which the server checks them.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn filters(&self) -> Result<Vec<Filter>> {
        Ok(self.read::<Filters>(&["filters"]).await?.filters)
    }

    /// Creates a job filter, or replaces the one with this name.
    ///
    /// # Errors
    /// The server refuses the filter, or does not answer.
    pub async fn put_filter(&self, id: &str, filter: &PutFilter) -> Result<Filter> {
        self.put(&["filters", id], filter).await
    }

    /// Closes the rate of a job filter for a time.
    ///
    /// # Errors
    /// The filter has no such rate, or the server does not answer.
    pub async fn pause_rate(&self, id: &str, pause: &PauseRate) -> Result<PausedRate> {
        let request = Request::new(Method::POST, &["filters", id, "pause"]).json(pause)?;
        self.call(&request, Repeat::IfUnsent).await
    }

    /// Removes a job filter.
    ///
    /// # Errors
    /// There is no such filter, or the server does not answer.
    pub async fn remove_filter(&self, id: &str) -> Result<()> {
        let request = Request::new(Method::DELETE, &["filters", id]);
        self.call::<RemovedFilter>(&request, Repeat::IfUnsent).await.map(drop)
    }

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

    /// The types of which something is stated.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn stated_types(&self) -> Result<Vec<StatedType>> {
        Ok(self.read::<StatedTypes>(&["type_terms"]).await?.types)
    }

    /// What is stated of a type.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn type_terms(&self, job_type: &str) -> Result<StatedType> {
        self.read(&["types", job_type]).await
    }

    /// States this of all jobs of a type, in place of what was stated before.
    ///
    /// # Errors
    /// The server refuses the terms, or does not answer.
    pub async fn put_type_terms(&self, job_type: &str, terms: &TypeTerms) -> Result<StatedType> {
        self.put(&["types", job_type], terms).await
    }

    /// States nothing of a type any more. Returns whether something was stated.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn remove_type_terms(&self, job_type: &str) -> Result<bool> {
        let request = Request::new(Method::DELETE, &["types", job_type]);
        Ok(self.call::<RemovedTerms>(&request, Repeat::Harmless).await?.removed)
    }

    /// The fleets that report to the servers.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn fleets(&self) -> Result<Vec<Fleet>> {
        Ok(self.read::<Fleets>(&["fleets"]).await?.fleets)
    }

    /// Reports a fleet, in place of its report before.
    ///
    /// # Errors
    /// The server refuses the report, or does not answer.
    pub async fn put_fleet(&self, name: &str, fleet: &PutFleet) -> Result<Fleet> {
        self.put(&["fleets", name], fleet).await
    }

    /// Removes the report of a fleet.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn remove_fleet(&self, name: &str) -> Result<()> {
        let request = Request::new(Method::DELETE, &["fleets", name]);
        self.call::<RemovedFleet>(&request, Repeat::Harmless).await.map(drop)
    }
}
