//! `GET /v1/jobs/{type}/{id}/events`: a job's life as server-sent events.
//!
//! A stream reads its events from the history in the job's record. Each entry has an id, and a client that reconnects
//! with `Last-Event-ID` continues after that entry. The server keeps only the position of each stream, and reads
//! nothing ahead of a slow client. Later events are in the record when the client reads on.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::Either;
use futures::{Stream, StreamExt as _, stream};
use serde::Serialize;
use turnwise_protocol::events::names;
use turnwise_protocol::{self as api, JobEvent, Progress, Removed, ServerSentEvent};
use turnwise_queue::{Event, EventKind, Job, jobs};
use turnwise_web::access::Caller;

use super::app::App;
use super::error::Result;
use super::extract::{Call, JobPath};
use super::jobs::visible;
use super::responses::{Common, NoJob};
use super::view;

/// Without events, the server sends a comment line after this time, so that both sides detect a broken connection.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a client waits before it reconnects, in ms: the first line of a stream.
pub(super) const RETRY: &str = "retry: 1000\n\n";
pub(super) const LAST_EVENT_ID: &str = "last-event-id";

/// Follow a job
///
/// Server-sent events: `state` for each step in the job's life, oldest first; `progress` for its worker's reports; and
/// `end` with the job when it has ended, after which the stream closes. If the job is removed, `removed` is the last
/// event. A client that reconnects with the header `Last-Event-ID` receives the events that it missed.
#[utoipa::path(
    get, path = "/jobs/{type}/{id}/events", tag = "jobs", operation_id = "follow_job",
    params(JobPath, ("Last-Event-ID" = Option<String>, Header, nullable = false,
        description = "The id of the last event that the client received. The server ignores an id that it did not send.")),
    responses(
        (status = 200, content_type = "text/event-stream", body = ServerSentEvent,
            description = "The events, as they occur."),
        (status = 204, description = "The client has received the event `end`, and no event has followed it. Do not reconnect."),
        NoJob, Common,
    ),
)]
pub(super) async fn follow_job(
    Call { app, caller, path }: Call<JobPath>,
    headers: HeaderMap,
) -> Result<Response> {
    // An id that is not from this stream is ignored: the stream begins with the oldest event.
    let last = headers.get(LAST_EVENT_ID).and_then(|id| LastSeen::parse(id.to_str().ok()?));
    let tx = app.store.begin().await?;
    let job = visible(&app, &caller, &tx, &path).await?;
    drop(tx);
    let mut follower = Follower {
        about: Arc::new(About { app, caller, path }),
        last: None,
        info: None,
        ready: Ready::default(),
    };
    if let Some(LastSeen { event, end }) = last {
        follower.last = Some(event);
        if end && job.state().is_final() && follower.unseen(&job).is_empty() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
    Ok(follow(follower))
}

/// What a stream of events sends next.
#[derive(Default)]
pub(super) struct Ready {
    pieces: VecDeque<Bytes>,
    /// Whether the stream ends behind them.
    pub done: bool,
}

impl Ready {
    /// Adds an event.
    pub fn push(&mut self, name: &str, id: Option<impl ToString>, data: &impl Serialize) {
        let mut text = String::new();
        // A job's values are as they were written, and may contain line breaks between tokens. A line break would end
        // the event's line.
        let data = json(data).replace(['\r', '\n'], " ");
        push(&mut text, name, id.map(|id| id.to_string()).as_deref(), &data);
        self.pieces.push_back(text.into());
    }

    /// Adds a comment, by which both sides detect a broken connection.
    pub fn beat(&mut self) {
        self.pieces.push_back(Bytes::from_static(b":\n\n"));
    }
}

/// One client's position in what it follows.
pub(super) trait Follow: Send + 'static {
    /// What was found so far.
    fn ready(&mut self) -> &mut Ready;

    /// Adds what is new. If there is nothing, waits until there may be something.
    fn look_or_wait(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// A response with what one client follows.
pub(super) fn follow(mut follower: impl Follow) -> Response {
    follower.ready().pieces.push_back(Bytes::from_static(RETRY.as_bytes()));
    response(stream::unfold(follower, |mut follower| async move {
        let piece = next(&mut follower).await?;
        Some((piece, follower))
    }))
}

/// The next piece of a stream. Dropping this future drops its watches.
async fn next(follower: &mut impl Follow) -> Option<Bytes> {
    loop {
        if let Some(piece) = follower.ready().pieces.pop_front() {
            return Some(piece);
        }
        if follower.ready().done {
            return None;
        }
        if let Err(error) = follower.look_or_wait().await {
            // The client reconnects, and receives what it missed.
            tracing::warn!(?error, "a stream of events ended early");
            return None;
        }
    }
}

/// A response of events.
pub(super) fn response(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(pieces.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Without this header, nginx collects events until they fill a buffer.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Adds an event. Its data have no line break.
pub(super) fn push(text: &mut String, name: &str, id: Option<&str>, data: &str) {
    writeln!(text, "event: {name}").expect("a string takes all that is written");
    if let Some(id) = id {
        writeln!(text, "id: {id}").expect("as above");
    }
    writeln!(text, "data: {data}\n").expect("as above");
}

pub(super) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("answers are plain data with string keys")
}

/// The id of an event: its time, and the number of earlier events with the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EventId {
    at_us: i64,
    nth: u32,
}

/// The last event that a client has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastSeen {
    event: EventId,
    /// It was the event `end`.
    end: bool,
}

impl LastSeen {
    fn parse(text: &str) -> Option<LastSeen> {
        let (text, end) = match text.strip_suffix("-end") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (at_us, nth) = text.split_once(':')?;
        Some(LastSeen { event: EventId { at_us: at_us.parse().ok()?, nth: nth.parse().ok()? }, end })
    }
}

impl std::fmt::Display for LastSeen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LastSeen { event: EventId { at_us, nth }, end } = self;
        write!(f, "{at_us}:{nth}{}", if *end { "-end" } else { "" })
    }
}

/// A history with the ids of its events, oldest first.
fn with_ids(history: &[Event]) -> Vec<(EventId, &Event)> {
    let mut events: Vec<(EventId, &Event)> = Vec::with_capacity(history.len());
    for event in history.iter().rev() {
        let nth = match events.last() {
            Some((before, _)) if before.at_us == event.at_us => before.nth + 1,
            _ => 0,
        };
        events.push((EventId { at_us: event.at_us, nth }, event));
    }
    events
}

/// The job of a stream.
struct About {
    app: App,
    caller: Caller,
    path: JobPath,
}

/// One client's position in a job's life.
struct Follower {
    about: Arc<About>,
    /// The last event that was sent.
    last: Option<EventId>,
    /// The last progress that was sent.
    info: Option<String>,
    ready: Ready,
}

impl Follow for Follower {
    fn ready(&mut self) -> &mut Ready {
        &mut self.ready
    }

    /// Sends new events. If there are none, waits until there may be some.
    async fn look_or_wait(&mut self) -> Result<()> {
        let about = self.about.clone();
        let About { app, caller, path: JobPath { job_type, id } } = &*about;
        let (store, keys, stop) = (&app.store, &app.keys, &app.stop);
        let (key, tx) = (keys.job(job_type, id), store.begin().await?);
        let seen = tx.get(&key).await?;
        // A job that was removed may have been added again, by another tenant.
        let Some(job) = caller.sees(jobs::get(&tx, keys, job_type, id).await?) else {
            self.ready.push(names::REMOVED, None::<u64>, &Removed { removed: true });
            self.ready.done = true;
            return Ok(());
        };
        let mut report = None;
        if let (true, Some(claim)) = (job.state().is_claimed(), job.claim()) {
            let key = keys.active_entry(job_type, &claim.worker, id);
            let seen = tx.get(&key).await?;
            let info = jobs::active_report(&tx, keys, &job).await?.and_then(|active| active.info);
            report = Some((key, seen, info));
        }
        if self.push_steps(&job)
            | self.push_progress(report.as_ref().and_then(|(_, _, info)| info.as_deref()))
        {
            return Ok(());
        }
        if job.state().is_final() {
            self.push_end(job, tx).await?;
            return Ok(());
        }
        drop(tx);
        let changed = store.watch(key, seen).await?;
        let reported = match report {
            Some((key, seen, _)) => Either::Left(store.watch(key, seen).await?),
            None => Either::Right(std::future::pending()),
        };
        tokio::select! {
            biased;
            // The client reconnects to another server, or to this one after its restart.
            () = stop.cancelled() => self.ready.done = true,
            () = changed => {}
            () = reported => {}
            () = store.runtime().sleep(HEARTBEAT) => self.ready.beat(),
        }
        Ok(())
    }
}

impl Follower {
    /// The events that were not sent yet, oldest first.
    fn unseen<'a>(&self, job: &'a Job) -> Vec<(EventId, &'a Event)> {
        let mut events = with_ids(&job.history);
        let Some(last) = self.last else { return events };
        match events.iter().position(|(id, _)| *id == last) {
            Some(at) => events.split_off(at + 1),
            // The event was dropped from the history, or belongs to another job of this name.
            None => events.into_iter().filter(|(id, _)| id.at_us > last.at_us).collect(),
        }
    }

    /// Sends new steps. Returns whether there were any.
    fn push_steps(&mut self, job: &Job) -> bool {
        let unseen = self.unseen(job);
        let newest = unseen.len().saturating_sub(1);
        for (n, (event_id, event)) in unseen.iter().enumerate() {
            // An edit changes no state.
            let edited =
                unseen[..n].iter().rev().find(|(_, event)| !matches!(event.kind, EventKind::Edited { .. }));
            let state = match event.kind {
                EventKind::Edited { .. } => {
                    edited.map_or(view::state(job), |(_, before)| state_after(&before.kind))
                }
                _ => state_after(&event.kind),
            };
            let data = JobEvent {
                at_us: event.at_us,
                kind: view::event_kind(&event.kind),
                state: if n == newest { view::state(job) } else { state },
                reason: event.kind.reason().map(str::to_owned),
            };
            self.last = Some(*event_id);
            self.ready.push(names::STATE, Some(LastSeen { event: *event_id, end: false }), &data);
        }
        !unseen.is_empty()
    }

    fn push_progress(&mut self, info: Option<&serde_json::value::RawValue>) -> bool {
        let Some(info) = info.filter(|info| self.info.as_deref() != Some(info.get())) else { return false };
        self.info = Some(info.get().to_owned());
        self.ready.push(names::PROGRESS, None::<u64>, &Progress { info: info.to_owned() });
        true
    }

    async fn push_end(&mut self, job: Job, tx: turnwise_store::Transaction) -> Result<()> {
        let id = self.last.map(|event| LastSeen { event, end: true });
        let job = view::whole(&self.about.app, &self.about.caller, &tx, job).await?;
        self.ready.push(names::END, id, &job);
        self.ready.done = true;
        Ok(())
    }
}

/// A job's state after an event, if later events exist.
fn state_after(kind: &EventKind) -> api::State {
    match kind {
        EventKind::Added
        | EventKind::Stopped { .. }
        | EventKind::Edited { .. }
        | EventKind::Released { .. } => api::State::Pending,
        EventKind::Held { .. } => api::State::Paused,
        EventKind::Started => api::State::Running,
        EventKind::Crashed { .. } => api::State::Crashing,
        EventKind::Snoozed => api::State::Delayed,
        EventKind::Expired => api::State::Failed,
        EventKind::Completed => api::State::Completed,
        EventKind::Failed { .. } => api::State::Failed,
        EventKind::Cancelled => api::State::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn event_ids_round_trip() {
        for id in [(5, 0, false), (-1, 7, true), (i64::MIN, u32::MAX, true)] {
            let id = LastSeen { event: EventId { at_us: id.0, nth: id.1 }, end: id.2 };
            assert_eq!(LastSeen::parse(&id.to_string()), Some(id));
        }
        for text in ["", "5", "5:", ":", "5:x", "5:0:0", "5:0-END", "end", "99999999999999999999:0"] {
            assert_eq!(LastSeen::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn events_of_the_same_time_have_different_ids() {
        let event = |at_us| Event { at_us, kind: EventKind::Added };
        let history = [event(7), event(7), event(5)];
        let ids: Vec<_> = with_ids(&history).iter().map(|(id, _)| (id.at_us, id.nth)).collect();
        assert_eq!(ids, [(5, 0), (7, 0), (7, 1)]);
    }
}
