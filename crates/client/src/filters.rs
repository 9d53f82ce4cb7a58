//! Requests about job filters.

use reqwest::Method;
use turnwise_protocol::{Filter, Filters, PutFilter, RemovedFilter};

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

    /// Removes a job filter.
    ///
    /// # Errors
    /// There is no such filter, or the server does not answer.
    pub async fn remove_filter(&self, id: &str) -> Result<()> {
        let request = Request::new(Method::DELETE, &["filters", id]);
        self.call::<RemovedFilter>(&request, Repeat::IfUnsent).await.map(drop)
    }
}
