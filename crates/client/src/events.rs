//! A job's events, as a stream.

use reqwest::Method;
use serde_json::value::RawValue;
use turnwise_protocol::events::names;
use turnwise_protocol::{Job, JobEvent, Progress};

use crate::follow::{Followed, Follower};
use crate::jobs::about;
use crate::sse::Event;
use crate::{Client, Result};

/// An event of a job.
#[derive(Debug, Clone)]
pub enum JobUpdate {
    /// The job's state has changed.
    State(JobEvent),
    /// Its worker has reported this progress. The server may skip reports.
    Progress(Box<RawValue>),
    /// The job has ended. This is the last event.
    End(Box<Job>),
    /// The job was removed. This is the last event.
    Removed,
}

/// The events of a job: those so far first, then each as it happens. If the connection is lost, the client reconnects and
/// resumes after the last event that it received.
pub struct Events(Follower);

impl Client {
    /// Follows a job's events until it ends.
    ///
    /// # Errors
    /// The type or the id is not a valid name.
    pub fn events(&self, job_type: &str, id: &str) -> Result<Events> {
        let request = about(Method::GET, job_type, id, Some("events"))?;
        Ok(Events(Follower::new(self, request, about(Method::GET, job_type, id, None)?)))
    }
}

impl Events {
    /// The next event; `None` after the end. Cancel-safe: the caller may drop the future and call again.
    ///
    /// # Errors
    /// The job does not exist (any more), or the server does not answer in 20 attempts. A stream that a gateway cuts is no such attempt.
    pub async fn next(&mut self) -> Result<Option<JobUpdate>> {
        while let Some(followed) = self.0.next().await? {
            let update = match followed {
                Followed::Event(event) => self.understand(&event)?,
                Followed::Job(job) => job.state.is_final().then_some(JobUpdate::End(job)),
            };
            let Some(update) = update else { continue };
            if let JobUpdate::End(_) | JobUpdate::Removed = update {
                self.0.end();
            }
            return Ok(Some(update));
        }
        Ok(None)
    }

    fn understand(&self, event: &Event) -> Result<Option<JobUpdate>> {
        Ok(Some(match event.name.as_str() {
            names::STATE => JobUpdate::State(self.0.parse(event)?),
            names::PROGRESS => JobUpdate::Progress(self.0.parse::<Progress>(event)?.info),
            names::END => JobUpdate::End(self.0.parse(event)?),
            names::REMOVED => JobUpdate::Removed,
            // An event of a newer server.
            _ => return Ok(None),
        }))
    }
}
