//! Requests about bulk operations, and counts of jobs.

use reqwest::Method;
use turnwise_protocol::{Bulk, BulkAction, Bulks, MatchingJobs, PutBulk};

use crate::client::{Repeat, Request};
use crate::jobs::{Pages, new_id};
use crate::{Client, Result};

impl Client {
    /// Begins a bulk operation under an id, which stands for this operation. It goes on without the client.
    ///
    /// # Errors
    /// The server refuses the condition, too many operations run, another operation has this id, or the server does not
    /// answer.
    pub async fn put_bulk(&self, id: &str, bulk: &PutBulk) -> Result<Bulk> {
        self.put(&["bulk", id], bulk).await
    }

    /// The same under a new id.
    ///
    /// # Errors
    /// As [`Client::put_bulk`].
    pub async fn begin_bulk(&self, bulk: &PutBulk) -> Result<Bulk> {
        self.put_bulk(&new_id(), bulk).await
    }

    /// A bulk operation as it is now.
    ///
    /// # Errors
    /// There is no such operation, or the server does not answer.
    pub async fn bulk(&self, id: &str) -> Result<Bulk> {
        self.read(&["bulk", id]).await
    }

    /// The bulk operations of this identity, by id; an operator sees all.
    pub fn bulks(&self) -> Pages<Bulks, Bulk> {
        Pages::new(self, Request::new(Method::GET, &["bulk"]), |page: Bulks| (page.bulk, page.next))
    }

    /// Stops a bulk operation, and returns it as it is now. What it has changed stays changed.
    ///
    /// # Errors
    /// There is no such operation, or the server does not answer.
    pub async fn stop_bulk(&self, id: &str) -> Result<Bulk> {
        self.call(&Request::new(Method::DELETE, &["bulk", id]), Repeat::Harmless).await
    }

    /// Counts the jobs that meet a condition, for at most 5 s. With an action, also those that it would change.
    ///
    /// # Errors
    /// The server refuses the condition, or does not answer.
    pub async fn count(
        &self,
        condition: &str,
        action: Option<BulkAction>,
        priority: Option<i32>,
    ) -> Result<MatchingJobs> {
        let request = Request::new(Method::GET, &["matching"])
            .query("where", Some(condition))
            .query("action", action.map(BulkAction::as_str))
            .query("priority", priority);
        self.call(&request, Repeat::Harmless).await
    }
}
