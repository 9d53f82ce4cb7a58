//! A stream of server-sent events about a job, which goes on after lost connections.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::{Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use turnwise_protocol::Job;

use crate::backoff::Backoff;
use crate::client::{ANSWER_TIMEOUT, Request, foreign, lost, no_answer, place, refused};
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

/// What a [`Follower`] has received.
pub(crate) enum Followed {
    /// The next event of the stream.
    Event(Event),
    /// The job, from a request of its own, because its stream does not arrive.
    Job(Box<Job>),
}

/// Follows a stream about a job. If the connection is lost, it reconnects and resumes after the last event with an id.
pub(crate) struct Follower {
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

impl Follower {
    /// Follows the stream of the first request. The second one is for the job itself.
    pub fn new(client: &Client, request: Request, job: Request) -> Follower {
        Follower {
            client: client.clone(),
            request,
            job,
            parser: Parser::default(),
            ready: VecDeque::new(),
            stream: None,
            opened: Instant::now(),
            failed: 0,
            server: 0,
            backoff: client.backoff(),
            done: false,
        }
    }

    /// Receives the next event; `None` after the end. Cancel-safe: the caller may drop the future and call again.
    pub async fn next(&mut self) -> Result<Option<Followed>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(Followed::Event(event)));
            }
            if self.done {
                return Ok(None);
            }
            if let Err(error) = self.read().await
                && let Some(job) = self.go_on(error).await?
            {
                return Ok(Some(Followed::Job(job)));
            }
        }
    }

    /// Reads no more of the stream: the last event has arrived.
    pub fn end(&mut self) {
        self.done = true;
    }

    /// Reads the data of an event.
    pub fn parse<T: DeserializeOwned>(&self, event: &Event) -> Result<T> {
        serde_json::from_str(&event.data).map_err(|error| {
            foreign(self.server(), StatusCode::OK, format!("event {}: {}", event.name, place(&error)))
        })
    }

    /// Pauses after an error, before the next attempt. Returns the job if its events no longer arrive. If it has ended, so has the stream.
    async fn go_on(&mut self, error: Error) -> Result<Option<Box<Job>>> {
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
        match self.client.once::<Box<Job>>(&self.job).await {
            Ok(job) => {
                match job.state.is_final() {
                    true => self.done = true,
                    // The pauses stay long.
                    false => self.failed = 0,
                }
                Ok(Some(job))
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
}
