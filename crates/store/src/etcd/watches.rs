//! Watches on keys: one stream of watches for the whole process.
//!
//! ```text
//!  watch(key) ─▶ is there a watch in etcd? ── no ─▶ create it, wait until it is there
//!                       │ yes                              │
//!                       ▼                                  ▼
//!                the latest value known of it is the one seen ── no ─▶ look at the key
//!                       │ yes                                               │ the one seen
//!                       ▼                                                   ▼
//!                     wait ◀────────────────────────────────────────────────┘
//! ```
//!
//! The key is read, linearizably, after the watch exists. So a change after the read is an event of the watch, and the read sees
//! every change before it. (An earlier read, for a watch that has ended since, proves nothing about this one.) When the
//! stream ends, for any reason, all waiters wake up and read again. The events in between are lost with the stream, but nothing
//! depends on them.
//!
//! A stream counts as dead if the member sends nothing for a while although the engine requested a response, or if the
//! member reports that it has no leader.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::channel::mpsc;
use tokio::sync::{Notify, watch};

use super::api::{Event, EventType, WatchCancel, WatchCreate, WatchDo, WatchRequest, WatchResponse};
use super::failure::{Failure, Refusal};
use super::shared::Shared;
use super::space;
use crate::sync::Mutex;
use crate::{Error, Result, Watch};

const MAX_WATCHES: usize = 100_000;
/// How long a watch may take to be created: longer than the detection of a dead stream.
const CREATE_DEADLINE: Duration = Duration::from_secs(7);
const CREATE_ATTEMPTS: u32 = 3;
/// After this silence on a stream, the engine requests a response. After the same time again, the stream is dead.
const SILENCE: Duration = Duration::from_secs(3);
/// The pause after a stream that could not be opened.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// A waiter wakes up and reads again after this time even without an event. Up to half of it is added, so that not all waiters
/// read at the same moment.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(super) struct Watches {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Notified when a watch is needed, since there may be no stream.
    wanted: Notify,
}

#[derive(Default)]
struct State {
    /// By etcd's key.
    watched: BTreeMap<Bytes, Watched>,
    keys: HashMap<i64, Bytes>,
    /// For watches and for waiters. Ids are never reused, so that a late response cannot be mistaken for another one.
    next_id: i64,
    waiting: usize,
    /// Sends to the open stream.
    requests: Option<mpsc::UnboundedSender<WatchRequest>>,
    closed: bool,
}

/// A key that has a watch in etcd, or will have one.
struct Watched {
    id: i64,
    /// Changes only together with the state: receivers are dropped at any time.
    waiters: usize,
    told: watch::Sender<Told>,
}

/// What the waiters of a key receive.
enum Told {
    /// The watch does not exist yet.
    Creating,
    /// It exists. The latest value that is known, and a revision at which the key had it.
    Created(Option<(Option<Bytes>, i64)>),
    /// It does not exist any more, with the reason. Later changes are not detected.
    Lost(String),
}

impl Watched {
    /// Records a value that the key had at a revision.
    fn learn(&self, value: Option<Bytes>, revision: i64) {
        self.told.send_if_modified(|told| {
            let Told::Created(latest) = told else { return false };
            let is_news = latest.as_ref().is_none_or(|(known, at)| *at < revision && *known != value);
            if is_news {
                *latest = Some((value, revision));
            }
            is_news
        });
    }
}

impl State {
    fn send(&self, what: WatchDo) {
        if let Some(requests) = &self.requests {
            // The reader of the stream detects that it has ended.
            let _ = requests.unbounded_send(WatchRequest { what: Some(what) });
        }
    }

    fn next_id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    /// Wakes all waiters.
    fn clear(&mut self, why: &str) {
        self.requests = None;
        self.keys.clear();
        for watched in std::mem::take(&mut self.watched).into_values() {
            watched.told.send_replace(Told::Lost(why.to_owned()));
        }
    }
}

impl Watches {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Watches { shared, state: Mutex::default(), wanted: Notify::new() })
    }

    /// Returns a watch that resolves once `key`, one of etcd's, has another value than `seen`. If a stream breaks meanwhile, this
    /// tries again, because the next stream may go to a member that works.
    pub(super) async fn watch(self: &Arc<Self>, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        let mut attempt = 1;
        loop {
            match self.try_watch(&key, &seen).await {
                Err(Error::Unavailable(why)) if attempt < CREATE_ATTEMPTS && !self.state.lock().closed => {
                    tracing::debug!(why, attempt, "etcd: no watch yet");
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn try_watch(self: &Arc<Self>, key: &Bytes, seen: &Option<Bytes>) -> Result<Watch> {
        let mut registration = self.register(key)?;
        let created = registration.told.wait_for(|told| !matches!(told, Told::Creating));
        let known = match tokio::time::timeout(CREATE_DEADLINE, created).await {
            Ok(Ok(told)) => match &*told {
                Told::Lost(why) => return Err(Error::Unavailable(format!("etcd: no watch: {why}"))),
                Told::Created(latest) => latest.clone(),
                Told::Creating => None,
            },
            Ok(Err(_)) => return Err(Error::Unavailable("the store is closed".into())),
            Err(_) => return Err(Error::Unavailable("etcd: no watch in time".into())),
        };
        // From this revision on, a change is an event.
        let since = match known {
            Some((value, revision)) if value == *seen => revision,
            _ => {
                let (value, revision) = self.shared.newest(key).await?;
                // The key may have another watch by now, which did not exist when this read began.
                let same = |watched: &&Watched| watched.id == registration.watch_id;
                if let Some(watched) = self.state.lock().watched.get(key).filter(same) {
                    watched.learn(value.clone(), revision);
                }
                if value != *seen {
                    return Ok(Box::pin(std::future::ready(())));
                }
                revision
            }
        };
        let spread = u32::try_from(registration.id % 64).unwrap_or_default();
        let longest = LONGEST_WAIT + LONGEST_WAIT / 128 * spread;
        Ok(Box::pin(async move {
            let mut registration = registration;
            let is_old = |latest: &Option<(_, i64)>| latest.as_ref().is_none_or(|(_, at)| *at <= since);
            let told =
                registration.told.wait_for(|told| !matches!(told, Told::Created(latest) if is_old(latest)));
            let _ = tokio::time::timeout(longest, told).await;
        }))
    }

    /// Registers a waiter, and asks for the watch if there is none.
    fn register(self: &Arc<Self>, key: &Bytes) -> Result<Registration> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Unavailable("the store is closed".into()));
        }
        if state.waiting >= MAX_WATCHES {
            return Err(Error::Unavailable(format!("more than {MAX_WATCHES} watches")));
        }
        if !state.watched.contains_key(key) {
            let watch_id = state.next_id();
            let watched = Watched { id: watch_id, waiters: 0, told: watch::Sender::new(Told::Creating) };
            state.watched.insert(key.clone(), watched);
            state.keys.insert(watch_id, key.clone());
            // Without a stream, the request is sent when one opens.
            state.send(WatchDo::Create(WatchCreate { key: key.clone(), watch_id }));
            self.wanted.notify_one();
        }
        state.waiting += 1;
        let id = state.next_id();
        let watched = state.watched.get_mut(key).expect("it was put there if it was not");
        watched.waiters += 1;
        let (watch_id, told) = (watched.id, watched.told.subscribe());
        Ok(Registration { watches: self.clone(), key: key.clone(), id, watch_id, told })
    }

    /// Wakes all waiters and refuses new ones.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.clear("the store is closed");
    }

    /// Handles a message of a member. An error ends the stream.
    fn receive(&self, response: WatchResponse) -> Result<(), Failure> {
        let state = self.state.lock();
        let Some(key) = state.keys.get(&response.watch_id) else {
            // An unknown id: a watch could not be created, and the member does not state which.
            return match response.canceled && response.created {
                true => Err(refused(response.cancel_reason)),
                false => Ok(()),
            };
        };
        let Some(watched) = state.watched.get(key) else { return Ok(()) };
        if response.canceled {
            return Err(refused(response.cancel_reason));
        }
        if response.created {
            watched.told.send_replace(Told::Created(None));
        }
        for Event { r#type, kv } in response.events {
            let Some(row) = kv else { continue };
            let is_put = r#type == EventType::Put as i32;
            // A copy, because the event's bytes are part of a larger buffer.
            let value = is_put.then(|| Bytes::copy_from_slice(&space::value(&row)));
            watched.learn(value, row.mod_revision);
        }
        Ok(())
    }

    /// Runs one stream until it breaks.
    async fn stream(&self, member: usize) -> Failure {
        let requests = {
            let mut state = self.state.lock();
            let (send, requests) = mpsc::unbounded();
            state.requests = Some(send);
            for (key, watched) in &state.watched {
                state.send(WatchDo::Create(WatchCreate { key: key.clone(), watch_id: watched.id }));
            }
            requests
        };
        let mut responses = match self.shared.members.watch(member, requests).await {
            Ok(responses) => responses,
            Err(failure) => return failure,
        };
        let mut asked = false;
        loop {
            match tokio::time::timeout(SILENCE, responses.next()).await {
                Ok(Some(Ok(response))) => {
                    asked = false;
                    if let Err(failure) = self.receive(response) {
                        return failure;
                    }
                }
                Ok(Some(Err(status))) => return Failure::from_status(&status),
                Ok(None) => return Failure::Lost("the stream of watches has ended".into()),
                Err(_) if asked => return Failure::Lost("the stream of watches is silent".into()),
                Err(_) => {
                    asked = true;
                    self.state.lock().send(WatchDo::Progress(()));
                }
            }
        }
    }
}

fn refused(reason: String) -> Failure {
    Failure::from_status(&tonic::Status::unknown(reason))
}

/// Keeps a stream open while there are waiters.
pub(super) async fn run(watches: Arc<Watches>) {
    loop {
        if watches.state.lock().watched.is_empty() {
            watches.wanted.notified().await;
            continue;
        }
        let members = &watches.shared.members;
        let member = members.current();
        let failure = watches.stream(member).await;
        match &failure {
            Failure::Refused(Refusal::Token, _) => members.forget_token(),
            failure if failure.is_of_member() => members.turn_from(member, failure),
            _ => {}
        }
        tracing::debug!(?failure, "etcd: the stream of watches has ended");
        watches.state.lock().clear(&failure.into_error(members.user()).to_string());
        tokio::time::sleep(REOPEN_PAUSE).await;
    }
}

/// A waiter. The watch of its key ends with the last one.
struct Registration {
    watches: Arc<Watches>,
    key: Bytes,
    id: i64,
    /// The watch that the waiter belongs to.
    watch_id: i64,
    told: watch::Receiver<Told>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.watches.state.lock();
        state.waiting -= 1;
        // The key may have another watch by now.
        let same = |watched: &&mut Watched| watched.id == self.watch_id;
        let Some(watched) = state.watched.get_mut(&self.key).filter(same) else { return };
        watched.waiters -= 1;
        if watched.waiters == 0 {
            state.watched.remove(&self.key);
            state.keys.remove(&self.watch_id);
            state.send(WatchDo::Cancel(WatchCancel { watch_id: self.watch_id }));
        }
    }
}
