//! Requests about fleets.

use reqwest::Method;
use turnwise_protocol::{Fleet, Fleets, PutFleet, RemovedFleet};

use crate::client::{Repeat, Request};
use crate::{Client, Result};

impl Client {
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
