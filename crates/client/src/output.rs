//! What the runs of a job leave, and what they were given: its result, its log and its options.

use std::collections::VecDeque;

use bytes::Bytes;
use reqwest::Method;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use turnwise_protocol::events::names;
use turnwise_protocol::{Job, LogLine, LogPage, MAX_LIMIT};

use crate::client::{Answer, Repeat, Request, json};
use crate::follow::{Followed, Follower};
use crate::jobs::about;
use crate::servers::Server;
use crate::sse::Event;
use crate::{Client, Result};

/// The media type of a result that is JSON.
pub(crate) const JSON: &str = "application/json";

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobResult {
    /// Its media type: `application/json`, or what the job's worker stated.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// An event of a job's log.
#[derive(Debug, Clone)]
pub enum LogUpdate {
    /// A line was logged.
    Line(LogLine),
    /// The job has ended. This is the last event.
    End(Box<Job>),
    /// The job was removed. This is the last event.
    Removed,
}

/// The lines of a job's log: those so far first, then each as it is logged. If the connection is lost, the client reconnects and resumes
/// after the last line that it received. The server keeps the last 1,000 lines of a job, so that the numbers of two lines may have a gap.
pub struct LogLines {
    client: Client,
    job_type: String,
    id: String,
    follower: Follower,
    /// The number of the next line.
    from: u64,
    /// Lines of a page.
    ready: VecDeque<LogLine>,
    /// The job, which has ended while no stream arrived: pages have the rest of its log.
    ended: Option<Box<Job>>,
}

impl Client {
    /// Reads the result of a job that has completed, of any size and type.
    ///
    /// # Errors
    /// There is no such job, it has no result ([`Error::is_not_found`](crate::Error::is_not_found) in both cases), or the server does not answer.
    pub async fn result(&self, job_type: &str, id: &str) -> Result<JobResult> {
        let request = about(Method::GET, job_type, id, Some("result"))?;
        self.call_reading(&request, Repeat::Harmless, read_result).await.0
    }

    /// Reads the options of a job. `*****` stands for members that its type hides.
    ///
    /// # Errors
    /// There is no such job, this identity may not see its options, or the server does not answer.
    pub async fn options(&self, job_type: &str, id: &str) -> Result<Box<RawValue>> {
        self.call(&about(Method::GET, job_type, id, Some("options"))?, Repeat::Harmless).await
    }

    /// Reads up to `limit` lines of a job's log, at most 1,000, from the line with the number `from` on. The `next` of the page is the `from` of
    /// the next one. A page without lines is the last one.
    ///
    /// # Errors
    /// There is no such job, or the server does not answer.
    pub async fn log_page(&self, job_type: &str, id: &str, from: u64, limit: usize) -> Result<LogPage> {
        let request = logs(job_type, id, from)?.query("limit", Some(limit));
        self.call(&request, Repeat::Harmless).await
    }

    /// Follows a job's log from the line with the number `from` on, until the job ends.
    ///
    /// # Errors
    /// The type or the id is not a valid name.
    pub fn follow_log(&self, job_type: &str, id: &str, from: u64) -> Result<LogLines> {
        let request = logs(job_type, id, from)?.query("follow", Some(true));
        let follower = Follower::new(self, request, about(Method::GET, job_type, id, None)?);
        let (job_type, id) = (job_type.to_owned(), id.to_owned());
        let (client, ready, ended) = (self.clone(), VecDeque::new(), None);
        Ok(LogLines { client, job_type, id, follower, from, ready, ended })
    }
}

impl LogLines {
    /// The next line, or the end of the job; `None` after the end. Cancel-safe: the caller may drop the future and call again.
    ///
    /// # Errors
    /// The job does not exist (any more), or the server does not answer in 20 attempts. A stream that a gateway cuts is no such attempt.
    pub async fn next(&mut self) -> Result<Option<LogUpdate>> {
        loop {
            while let Some(line) = self.ready.pop_front() {
                // After a page, the stream resumes at the last line that itself has sent.
                if line.number >= self.from {
                    self.from = line.number + 1;
                    return Ok(Some(LogUpdate::Line(line)));
                }
            }
            if self.ended.is_some() {
                self.read_page().await?;
                if self.ready.is_empty() {
                    return Ok(self.ended.take().map(LogUpdate::End));
                }
                continue;
            }
            match self.follower.next().await? {
                Some(Followed::Event(event)) => {
                    if let Some(end) = self.understand(&event)? {
                        self.follower.end();
                        return Ok(Some(end));
                    }
                }
                Some(Followed::Job(job)) if job.state.is_final() => self.ended = Some(job),
                Some(Followed::Job(_)) => match self.read_page().await {
                    // The stream is tried again, and says whether the server answers.
                    Err(error) if !error.may_pass() => return Err(error),
                    Ok(()) | Err(_) => {}
                },
                None => return Ok(None),
            }
        }
    }

    /// Reads lines with a request of its own.
    async fn read_page(&mut self) -> Result<()> {
        let page = self.client.log_page(&self.job_type, &self.id, self.from, MAX_LIMIT).await?;
        self.ready.extend(page.lines);
        Ok(())
    }

    /// Makes a line ready. Returns the last event.
    fn understand(&mut self, event: &Event) -> Result<Option<LogUpdate>> {
        match event.name.as_str() {
            names::LINE => self.ready.push_back(self.follower.parse(event)?),
            names::END => return self.follower.parse(event).map(|job| Some(LogUpdate::End(job))),
            names::REMOVED => return Ok(Some(LogUpdate::Removed)),
            // An event of a newer server.
            _ => {}
        }
        Ok(None)
    }
}

fn logs(job_type: &str, id: &str, from: u64) -> Result<Request> {
    Ok(about(Method::GET, job_type, id, Some("logs"))?.query("from", Some(from)))
}

pub(crate) fn read_result(server: Server<'_>, answer: Answer) -> Result<JobResult> {
    let Answer { status, media_type, body } = answer.successful(server)?;
    if media_type == JSON {
        // HTTP does not always show that an answer ends early.
        json::<IgnoredAny>(server, status, &body)?;
    }
    Ok(JobResult { media_type, bytes: body })
}
