//! A job's events, as a stream.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;
use turnwise_protocol::events::names;
use turnwise_protocol::{Job, JobEvent, Progress};

use crate::backoff::Backoff;
use crate::client::{ANSWER_TIMEOUT, Request, foreign, lost, no_answer, place, refused};
use crate::jobs::about;
use crate::servers::Server;
use crate::sse::{Event, Parser};
use crate::{Client, Error, Result};

/// The server sends a comment every 15 s. If nothing arrives for this long, the connection is dead.
const SILENCE: Duration = Duration::from_secs(45);
/// Consecutive failed attempts to reconnect, without an answer of the server between them, before the stream ends with an error.
const MAX_ATTEMPTS: usize = 20;
/// A stream that was open for this long is an answer of the server, also without an event: a gateway has cut it.
const LASTING: Duration = Duration::from_millis(250);
/// The failed attempts after which the client asks for the job itself: a gateway that keeps answers back until they are complete lets no
/// stream pass.
const ATTEMPTS_PER_LOOK: usize = 3;

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
pub struct Events {
    client: Client,
    request: Request,
    /// The request for the job itself.
    job: Request,
    parser: Parser,
    ready: VecDeque<Event>,
    stream: Option<Response>,
    /// When the latest stream began.
    opened: Instant,
    /// The failed attempts since the server last answered.
    failed: usize,
    /// The index of the server that sends the stream, or that the client asks for it.
    server: usize,
    backoff: Backoff,
    done: bool,
}

impl Client {
    /// Follows a job's events until it ends.
    ///
    /// # Errors
    /// The type or the id is not a valid name.
    pub fn events(&self, job_type: &str, id: &str) -> Result<Events> {
        Ok(Events {
            client: self.clone(),
            request: about(Method::GET, job_type, id, Some("events"))?,
            job: about(Method::GET, job_type, id, None)?,
            parser: Parser::default(),
            ready: VecDeque::new(),
            stream: None,
            opened: Instant::now(),
            failed: 0,
            server: 0,
            backoff: self.backoff(),
            done: false,
        })
    }
}

impl Events {
    /// The next event; `None` after the end. Cancel-safe: the caller may drop the future and call again.
    ///
    /// # Errors
    /// The job does not exist (any more), or the server does not answer in 20 attempts. A stream that a gateway cuts is no such attempt.
    pub async fn next(&mut self) -> Result<Option<JobUpdate>> {
        loop {
            while let Some(event) = self.ready.pop_front() {
                if let Some(update) = self.understand(&event)? {
                    self.done |= matches!(update, JobUpdate::End(_) | JobUpdate::Removed);
                    return Ok(Some(update));
                }
            }
            if self.done {
                return Ok(None);
            }
            if let Err(error) = self.read().await
                && let Some(update) = self.go_on(error).await?
            {
                return Ok(Some(update));
            }
        }
    }

    /// Pauses after an error, before the next attempt. Returns the end of a job whose events no longer arrive.
    async fn go_on(&mut self, error: Error) -> Result<Option<JobUpdate>> {
        let lasted = self.stream.take().is_some() && self.opened.elapsed() >= LASTING;
        if error.may_pass() {
            self.client.servers.leave(self.server());
        }
        if lasted {
            self.answered();
        }
        if !error.may_pass() || self.failed >= MAX_ATTEMPTS {
            self.done = true;
            return Err(error);
        }
        self.failed += 1;
        let wanted = Duration::from_millis(self.parser.retry_ms().unwrap_or(0));
        tokio::time::sleep(self.backoff.next().max(wanted.min(SILENCE))).await;
        if !self.failed.is_multiple_of(ATTEMPTS_PER_LOOK) {
            return Ok(None);
        }
        match self.client.once::<Job>(&self.job).await {
            Ok(job) if job.state.is_final() => {
                self.done = true;
                Ok(Some(JobUpdate::End(Box::new(job))))
            }
            // The pauses stay long.
            Ok(_) => {
                self.failed = 0;
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// The server has answered: the next attempts begin anew.
    fn answered(&mut self) {
        self.failed = 0;
        self.backoff = self.client.backoff();
    }

    fn server(&self) -> Server<'_> {
        self.client.servers.at(self.server)
    }

    /// Reads a chunk of the stream, and connects first if necessary.
    async fn read(&mut self) -> Result<()> {
        if self.stream.is_none() {
            self.server = self.client.servers.current().place;
        }
        let servers = self.client.servers.clone();
        let server = servers.at(self.server);
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => match self.connect(server).await? {
                Some(stream) => {
                    self.parser.restart();
                    self.opened = Instant::now();
                    self.stream.insert(stream)
                }
                None => {
                    self.done = true;
                    return Ok(());
                }
            },
        };
        let piece = tokio::time::timeout(SILENCE, stream.chunk()).await;
        let piece = piece.map_err(|_| lost(server, "no data arrived on the stream of events"))?;
        let piece = piece.map_err(|error| no_answer(server, error))?;
        let piece = piece.ok_or_else(|| lost(server, "the stream of events ended early"))?;
        let wrong = |problem: &str| foreign(server, StatusCode::OK, problem.to_owned());
        let events = self.parser.push(&piece).map_err(wrong)?;
        if !events.is_empty() {
            self.answered();
        }
        self.ready.extend(events);
        Ok(())
    }

    /// Opens the stream. `None`: the client has already received the last event.
    async fn connect(&self, server: Server<'_>) -> Result<Option<Response>> {
        let mut headers = vec![("accept", "text/event-stream")];
        headers.extend(self.parser.last_id().map(|id| ("last-event-id", id)));
        let sending = self.client.send(server, &self.request, Duration::ZERO, &headers);
        let sent = tokio::time::timeout(ANSWER_TIMEOUT, sending).await;
        let answer = sent.map_err(|_| lost(server, "the stream of events does not begin"))??;
        match answer.status() {
            StatusCode::NO_CONTENT => Ok(None),
            StatusCode::OK => Ok(Some(answer)),
            _ => Err(refused(server, answer).await),
        }
    }

    fn understand(&self, event: &Event) -> Result<Option<JobUpdate>> {
        Ok(Some(match event.name.as_str() {
            names::STATE => JobUpdate::State(self.parse(event)?),
            names::PROGRESS => JobUpdate::Progress(self.parse::<Progress>(event)?.info),
            names::END => JobUpdate::End(self.parse(event)?),
            names::REMOVED => JobUpdate::Removed,
            // An event of a newer server.
            _ => return Ok(None),
        }))
    }

    fn parse<T: DeserializeOwned>(&self, event: &Event) -> Result<T> {
        serde_json::from_str(&event.data).map_err(|error| {
            foreign(self.server(), StatusCode::OK, format!("event {}: {}", event.name, place(&error)))
        })
    }
}
