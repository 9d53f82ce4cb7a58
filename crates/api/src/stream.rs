//! `GET /v1/events`: what happens to all jobs that the caller may read.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use serde::Deserialize;
use turnwise_identity::session::SessionKey;
use turnwise_protocol::stream::{EventPage, MAX_EVENTS, MAX_EVENTS_WAIT_MS, Opened, StreamEvent, names};
use turnwise_protocol::{Error, ServerSentEvent, codes};
use turnwise_queue::events::{Filter, JobEvent};
use turnwise_web::access::Caller;
use turnwise_web::answer;
use utoipa::IntoParams;

use super::app::App;
use super::error::{Result, V1Error};
use super::events::{HEARTBEAT, LAST_EVENT_ID, RETRY, json, push, response};
use super::extract::{Call, Params, check_stated};
use super::responses::Common;
use crate::event_log::{Known, Next, Place, us};

/// A stream ends after this time. The client reconnects, and shows its credentials again.
const LONGEST_STREAM: Duration = Duration::from_secs(3_600);
/// About how many bytes a stream sends at a time.
const PIECE_BYTES: usize = 64 << 10;
/// The most events that a request for a page looks at.
const MAX_LOOKED_AT: usize = 20_000;
/// The most values of a filter.
const MAX_VALUES: usize = 100;
/// Begins with the first event that is there.
const OLDEST: &str = "oldest";
/// What a sealed sequence number begins with.
const SEALED: &str = "sealed/";

/// The parameters of a stream of events.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamParams {
    /// The sequence number of the last event that the client has: an `id`, a `seq` or a `next` of the server. `oldest` begins with the first event
    /// that is there. By default only what happens from now on.
    #[param(nullable = false, max_length = 200)]
    since: Option<String>,
    /// Only events of jobs of these types, separated by commas.
    #[serde(rename = "type")]
    #[param(nullable = false, max_length = 4000, pattern = r"^[A-Za-z0-9_.,-]*$")]
    types: Option<String>,
    /// Only events of jobs of this tenant.
    #[param(value_type = Option<turnwise_protocol::names::Name>, nullable = false)]
    tenant: Option<String>,
    /// Only events after which the job is in one of these states, separated by commas. `removed` is one.
    #[param(nullable = false, max_length = 1000, pattern = r"^[a-z,]*$")]
    state: Option<String>,
    /// Only these events, separated by commas: `added`, `started`, `stopped`, `crashed`, `snoozed`, `completed`, `failed`, `expired`, `cancelled`, `edited`, `held`, `released`, `removed`, `group_ended`.
    #[param(nullable = false, max_length = 1000, pattern = r"^[a-z_,]*$")]
    event: Option<String>,
    /// The maximum number of events in a page. With this, or with `wait_ms`, the response is a page as JSON, and no stream.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// How long the request waits for the first event of a page.
    #[param(nullable = false, minimum = 0, maximum = 60000)]
    wait_ms: Option<u64>,
}

/// The events, in the order of a job's life.
pub const EVENTS: &[&str] = &[
    "added",
    "started",
    "stopped",
    "crashed",
    "snoozed",
    "completed",
    "failed",
    "expired",
    "cancelled",
    "edited",
    "held",
    "released",
    "removed",
    "group_ended",
];
const STATES: &[&str] =
    &["pending", "delayed", "running", "waiting", "crashing", "completed", "failed", "cancelled", "removed"];

/// Which events a client wants.
fn filter(params: &StreamParams) -> Result<Filter> {
    let types = values(params.types.as_deref());
    let (states, events) = (values(params.state.as_deref()), values(params.event.as_deref()));
    checked(Filter { types, tenant: params.tenant.clone(), states, events }, ["type", "state", "event"])
}

/// Checks a filter whose lists have these names in the request.
pub(super) fn checked(filter: Filter, [types, states, events]: [&str; 3]) -> Result<Filter> {
    for (name, values) in [(types, &filter.types), (states, &filter.states), (events, &filter.events)] {
        if values.len() > MAX_VALUES {
            return Err(V1Error::bad(
                format!("{name}: at most {MAX_VALUES} values"),
                "leave it out, and select from the events of all",
            ));
        }
    }
    filter.types.iter().try_for_each(|job_type| turnwise_protocol::names::check_type(job_type))?;
    check_stated(&filter.tenant, |tenant| turnwise_protocol::names::check_name("tenant", tenant))?;
    known(states, &filter.states, STATES)?;
    known(events, &filter.events, EVENTS)?;
    Ok(filter)
}

fn values(text: Option<&str>) -> Vec<String> {
    text.map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
}

fn known(name: &str, values: &[String], known: &[&str]) -> Result<()> {
    match values.iter().find(|value| !known.contains(&value.as_str())) {
        None => Ok(()),
        Some(_) => Err(V1Error::bad(
            format!("{name}: must be one or several of {}", known.join(", ")),
            "separate several by commas",
        )),
    }
}

/// Sequence numbers, as clients see them. A number tells how much others do. So only operators get it as text; for others it is
/// sealed, with a key that all nodes have, and all have one length.
#[derive(Clone)]
pub struct Sequence(Option<SessionKey>);

impl Sequence {
    /// With this key, or as text.
    pub fn new(key: Option<SessionKey>) -> Sequence {
        Sequence(key)
    }

    async fn of(app: &App, caller: &Caller) -> Result<Sequence> {
        Ok(Sequence(match caller.operates() {
            true => None,
            false => app.identities.session_key().await?,
        }))
    }

    /// The number as this client sees it.
    pub fn shown(&self, number: u64) -> String {
        match &self.0 {
            None => number.to_string(),
            Some(key) => format!("{SEALED}{}", key.seal(&format!("event {number:020}"))),
        }
    }

    /// An event, as clients see it.
    pub fn event(&self, number: u64, event: JobEvent) -> StreamEvent {
        let JobEvent { event, job_type, id, tenant, task, tags, state, at_us, reason, class } = event;
        StreamEvent {
            seq: self.shown(number),
            event,
            job_type,
            id,
            tenant,
            task,
            tags: tags.into_iter().collect(),
            state,
            at_us,
            reason,
            class,
        }
    }

    fn read(&self, text: &str) -> Result<u64> {
        let number = match &self.0 {
            None => text.parse().ok(),
            Some(key) => text
                .strip_prefix(SEALED)
                .and_then(|sealed| key.open(sealed)?.strip_prefix("event ")?.parse().ok()),
        };
        number.ok_or_else(unknown)
    }
}

fn unknown() -> V1Error {
    V1Error::bad(
        "since: this is no sequence number of this store for this identity",
        "use an `id`, a `seq` or a `next` of the server; leave it out to begin now",
    )
}

/// Some node does not record.
pub(super) fn not_recorded() -> V1Error {
    V1Error::unavailable(
        "not all nodes record events yet",
        "try again soon; GET /v1/nodes shows whether all run a release that knows events",
    )
}

fn gone() -> V1Error {
    V1Error::new(
        StatusCode::GONE,
        codes::EVENTS_GONE,
        "some of the events after this one are gone",
        "read the jobs that matter with GET /v1/jobs, and begin again without `since`; [events] keep and max decide how long events are kept",
    )
}

/// Follow all jobs
///
/// What happens to the jobs that this identity may read, in the order in which it happened: `job` for each event, as server-sent events. The id of an
/// event is its sequence number. A client that reconnects with the header `Last-Event-ID`, or with `since`, receives what it missed, without gaps and
/// without repetitions, from any node. With `limit` or `wait_ms`, the response is a page as JSON.
///
/// The first request begins to record events: nothing is known from before. Events are kept for `[events] keep`. For a client that comes later, they
/// are gone (410), or `gone` is the last event of the stream. A stream ends after an hour; the client reconnects.
#[utoipa::path(
    get, path = "/events", tag = "events", operation_id = "follow_jobs",
    params(StreamParams, ("Last-Event-ID" = Option<String>, Header, nullable = false,
        description = "The same as `since`, for clients that reconnect by themselves.")),
    responses(
        (status = 200, description = "The events as they occur, or a page.", content(
            (ServerSentEvent = "text/event-stream"), (EventPage = "application/json"),
        )),
        (status = 410, body = Error, description = "`events_gone`: some of the events after this sequence number are gone."),
        Common,
    ),
)]
pub(super) async fn follow_jobs(
    Call { app, caller, .. }: Call,
    Params(params): Params<StreamParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let filter = filter(&params)?;
    let limit = params.limit.unwrap_or(MAX_EVENTS);
    if !(1..=MAX_EVENTS).contains(&limit) {
        return Err(V1Error::bad(
            format!("limit: must be from 1 to {MAX_EVENTS}"),
            "get further pages with `since`",
        ));
    }
    if params.wait_ms.is_some_and(|wait_ms| wait_ms > MAX_EVENTS_WAIT_MS) {
        let reason = format!("wait_ms: must be from 0 to {MAX_EVENTS_WAIT_MS}");
        return Err(V1Error::bad(reason, "repeat the request with the `next` of the page"));
    }
    let sequence = Sequence::of(&app, &caller).await?;
    let last = headers.get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or("?"));
    let since = match last.or(params.since.as_deref()) {
        None => Since::Now,
        Some(OLDEST) => Since::Oldest,
        Some(since) => Since::After(sequence.read(since)?),
    };
    let identity = caller.owner().unwrap_or_default();
    let place = app.events.place(&identity).map_err(|streams| {
        V1Error::too_many(
            format!("there are {streams} streams of events already"),
            "close one; a page (limit, wait_ms) needs a stream only while it waits",
        )
    })?;
    let recording = tokio::select! {
        biased;
        () = app.stop.cancelled() => return Err(V1Error::stopping()),
        recording = app.events.begin() => recording?,
    };
    let recording = recording.ok_or_else(not_recorded)?;
    let next = match since {
        Since::Now => app.events.next_number().await?.max(recording.from.unwrap_or(0)),
        Since::Oldest => app.events.oldest().await?,
        Since::After(since) => since.saturating_add(1),
    };
    // What cannot be continued is refused at once.
    match app.events.from(next).await? {
        Next::Gone => return Err(gone()),
        Next::Unknown => return Err(unknown()),
        Next::Events(_) | Next::None => {}
    }
    let reader = Reader { app, caller, filter, sequence, next, _place: place };
    let is_page = params.limit.is_some() || params.wait_ms.is_some();
    match is_page {
        true => reader.page(limit, Duration::from_millis(params.wait_ms.unwrap_or(0))).await,
        false => Ok(reader.stream()),
    }
}

/// Where a client begins.
enum Since {
    Now,
    Oldest,
    After(u64),
}

/// One client's position.
struct Reader {
    app: App,
    caller: Caller,
    filter: Filter,
    sequence: Sequence,
    /// The number of the next event to look at.
    next: u64,
    _place: Place,
}

/// What a look has found.
enum Found {
    /// There were events, and `true` if there may be more.
    Some(bool),
    None,
    Gone,
}

impl Reader {
    fn admits(&self, event: &JobEvent) -> bool {
        self.filter.admits(event) && self.caller.reads(&event.tenant)
    }

    /// Looks at the next events, until `take` returns false or `most` events were looked at.
    async fn look(&mut self, most: usize, mut take: impl FnMut(&Self, &Known) -> bool) -> Result<Found> {
        let batches = match self.app.events.from(self.next).await? {
            Next::Events(batches) => batches,
            Next::None => return Ok(Found::None),
            Next::Gone | Next::Unknown => return Ok(Found::Gone),
        };
        let mut looked_at = 0;
        for event in batches.iter().flat_map(|batch| batch.iter()) {
            if event.number < self.next {
                continue;
            }
            if looked_at == most {
                return Ok(Found::Some(true));
            }
            looked_at += 1;
            self.next = event.number + 1;
            if self.admits(&event.event) && !take(self, event) {
                return Ok(Found::Some(true));
            }
        }
        Ok(if looked_at == 0 { Found::None } else { Found::Some(false) })
    }

    async fn page(mut self, limit: usize, wait: Duration) -> Result<Response> {
        let app = self.app.clone();
        let mut head = app.events.head();
        let mut over = app.store.runtime().sleep(wait);
        let (mut events, mut rest) = (Vec::new(), MAX_LOOKED_AT);
        let more = loop {
            head.mark_unchanged();
            let before = self.next;
            let found = self
                .look(rest, |reader, known| {
                    events.push(reader.shown(known));
                    events.len() < limit
                })
                .await?;
            rest = rest.saturating_sub(usize::try_from(self.next - before).unwrap_or(usize::MAX));
            let more = !matches!(found, Found::None);
            match found {
                Found::Gone => return Err(gone()),
                Found::Some(_) if events.len() < limit && rest > 0 => continue,
                Found::None if events.is_empty() && rest > 0 => {}
                _ => break more,
            }
            if wait.is_zero() {
                break more;
            }
            tokio::select! {
                biased;
                () = app.stop.cancelled() => return Err(V1Error::stopping()),
                _ = head.changed() => {}
                () = &mut over => break more,
            }
        };
        Ok(answer::ok(&EventPage { events, next: self.sequence.shown(self.next - 1), more }))
    }

    fn shown(&self, known: &Known) -> StreamEvent {
        self.sequence.event(known.number, known.event.clone())
    }

    fn stream(self) -> Response {
        let opened = Opened { since: self.sequence.shown(self.next - 1) };
        let mut first = RETRY.to_owned();
        push(&mut first, names::OPEN, Some(&opened.since), &json(&opened));
        let now_us = self.app.store.runtime().elapsed_us();
        let (ends_us, heartbeat_us) = (now_us + us(LONGEST_STREAM), now_us + us(HEARTBEAT));
        let state = Streaming { reader: self, first: Some(first.into()), ends_us, heartbeat_us, done: false };
        response(stream::unfold(state, |mut state| async move {
            let piece = state.next().await?;
            Some((piece, state))
        }))
    }
}

struct Streaming {
    reader: Reader,
    first: Option<Bytes>,
    /// When the stream ends, in µs of the elapsed time.
    ends_us: i64,
    /// When the next heartbeat is due, unless an event is sent before, in µs of the elapsed time. What happens to jobs of others does not
    /// postpone it: a gateway would cut the stream, and its position would grow old.
    heartbeat_us: i64,
    done: bool,
}

impl Streaming {
    /// The next piece of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.done {
            return None;
        }
        match self.look_or_wait().await {
            Ok(piece) => {
                self.heartbeat_us = self.reader.app.store.runtime().elapsed_us() + us(HEARTBEAT);
                piece
            }
            Err(error) => {
                // The client reconnects, and receives the events that it missed.
                tracing::warn!(?error, "a stream of events ended early");
                None
            }
        }
    }

    async fn look_or_wait(&mut self) -> Result<Option<Bytes>> {
        let app = self.reader.app.clone();
        let mut head = app.events.head();
        loop {
            if app.store.runtime().elapsed_us() >= self.ends_us {
                return Ok(None);
            }
            head.mark_unchanged();
            let mut text = String::new();
            let found = self
                .reader
                .look(MAX_LOOKED_AT, |reader, known| {
                    let seq = reader.sequence.shown(known.number);
                    // The event as it is stored, with its number.
                    let event = std::str::from_utf8(&known.json).unwrap_or("{}");
                    let data = format!("{{\"seq\":{},{}", json(&seq), event.trim_start_matches('{'));
                    push(&mut text, names::JOB, Some(&seq), &data);
                    text.len() < PIECE_BYTES
                })
                .await?;
            if !text.is_empty() {
                return Ok(Some(text.into()));
            }
            match found {
                Found::Gone => {
                    self.done = true;
                    push(&mut text, names::GONE, None, &json(&Error::from(gone())));
                    return Ok(Some(text.into()));
                }
                // Nothing of it is for this client.
                Found::Some(true) if app.store.runtime().elapsed_us() < self.heartbeat_us => continue,
                Found::Some(_) | Found::None => {}
            }
            let left_us = self.heartbeat_us.saturating_sub(app.store.runtime().elapsed_us());
            let left = Duration::from_micros(left_us.try_into().unwrap_or(0));
            tokio::select! {
                biased;
                // The client reconnects to another server, or to this one after its restart.
                () = app.stop.cancelled() => return Ok(None),
                () = app.store.runtime().sleep(left) => {
                    let position = self.reader.sequence.shown(self.reader.next - 1);
                    return Ok(Some(format!(":\nid: {position}\n\n").into()));
                }
                _ = head.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_numbers_have_one_length_and_are_read_as_they_were_shown() {
        let sequence = Sequence::new(Some(SessionKey::of_text("a")));
        let shown: Vec<String> = [0, 9, 10, u64::MAX].map(|number| sequence.shown(number)).into();
        assert!(shown.iter().all(|text| text.len() == shown[0].len()), "{shown:?}");
        assert!(matches!(sequence.read(&shown[2]), Ok(10)));
        assert!(matches!(sequence.read(&shown[3]), Ok(u64::MAX)));
    }
}
