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
        let request = Request::new(Method::GET, &["filters"]);
        Ok(self.call::<Filters>(&request, Repeat::Harmless).await?.filters)
    }

    /// Creates a job filter, or replaces the one with this name.
    ///
    /// # Errors
    /// The server refuses the filter, or does not answer.
    pub async fn put_filter(&self, id: &str, filter: &PutFilter) -> Result<Filter> {
        let request = Request::new(Method::PUT, &["filters", id]).json(filter)?;
        self.call(&request, Repeat::Harmless).await
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
