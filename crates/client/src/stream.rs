//! Requests about the events of all jobs.

use std::time::Duration;

use reqwest::Method;
use tokio::time::Instant;
use turnwise_protocol::stream::{EventPage, MAX_EVENTS_WAIT_MS};

use crate::client::{Repeat, Request};
use crate::jobs::SHORTEST_WAIT;
use crate::{Client, Result};

/// Which events to get.
#[derive(Debug, Clone, Default)]
pub struct EventsOfJobs {
    /// Only those of jobs of these types, separated by commas.
    pub job_type: Option<String>,
    /// Only those of jobs of this tenant.
    pub tenant: Option<String>,
    /// Only those after which the job is in one of these states, separated by commas.
    pub state: Option<String>,
    /// Only these, separated by commas, such as `failed`.
    pub event: Option<String>,
    /// The sequence number of the last event that the caller has, or `oldest`. Without one, what happens from now on.
    pub since: Option<String>,
}

impl Client {
    /// A page of events. Waits for the first one, for at most a minute, or as long as gateways let requests wait; then the page is empty. The `next` of the page is the
    /// [`EventsOfJobs::since`] of the next one.
    ///
    /// # Errors
    /// Events after this sequence number are gone, a filter is wrong, or the server does not answer.
    pub async fn events_of_jobs(&self, wanted: &EventsOfJobs, wait: Duration) -> Result<EventPage> {
        let EventsOfJobs { job_type, tenant, state, event, since } = wanted;
        let wait = wait.min(Duration::from_millis(MAX_EVENTS_WAIT_MS));
        let request = Request::new(Method::GET, &["events"])
            .query("type", job_type.as_deref())
            .query("tenant", tenant.as_deref())
            .query("state", state.as_deref())
            .query("event", event.as_deref())
            .query("since", since.as_deref())
            .waiting_up_to(wait, "wait_ms");
        let asked = Instant::now();
        let page: EventPage = self.call(&request, Repeat::Harmless).await?;
        if page.events.is_empty() && !page.more {
            tokio::time::sleep_until(asked + SHORTEST_WAIT.min(wait)).await;
        }
        Ok(page)
    }
}
