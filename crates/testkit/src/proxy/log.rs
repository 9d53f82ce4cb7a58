//! What a proxy has seen.

use std::sync::Mutex;

use tokio::sync::watch;

use super::Fault;
use super::wire::Head;

/// So much of a request's body is kept.
const BODY_KEPT_BYTES: usize = 256 << 10;

/// A request that came through the proxy, as far as it got.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// In upper case.
    pub method: String,
    /// Path and query as they were sent.
    pub path: String,
    /// Header fields in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The start of the body, up to 256 KiB.
    pub body: Vec<u8>,
    /// How long the body was.
    pub body_bytes: u64,
    /// What was done to it, if anything.
    pub fault: Option<Fault>,
    /// The answer's status, once there is one.
    pub status: Option<u16>,
    /// How much of the answer's body was passed on so far.
    pub answer_bytes: u64,
    /// Whether the whole answer was passed on.
    pub answered: bool,
}

impl Request {
    pub(super) fn new(head: &Head) -> Self {
        let Head { method, path, headers, .. } = head;
        Self { method: method.clone(), path: path.clone(), headers: headers.clone(), ..Self::default() }
    }

    /// A header field by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The kept part of the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn add_body(&mut self, piece: &[u8]) {
        self.body_bytes += piece.len() as u64;
        let room = BODY_KEPT_BYTES.saturating_sub(self.body.len());
        self.body.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

/// The requests in the order of their arrival. Those who wait for one are woken at each change.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Mutex<Entries>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Entries {
    requests: Vec<Request>,
    /// How many were cleared away: numbers of requests are never used twice.
    cleared: usize,
}

impl Log {
    /// Adds a request and gives its number.
    pub fn add(&self, request: Request) -> usize {
        let mut entries = self.entries();
        entries.requests.push(request);
        let number = entries.cleared + entries.requests.len() - 1;
        drop(entries);
        self.changed.send_replace(());
        number
    }

    /// Changes the request of that number, if it was not cleared away.
    pub fn update(&self, number: usize, change: impl FnOnce(&mut Request)) {
        let mut entries = self.entries();
        let position = number.checked_sub(entries.cleared);
        if let Some(request) = position.and_then(|position| entries.requests.get_mut(position)) {
            change(request);
        }
        drop(entries);
        self.changed.send_replace(());
    }

    pub fn requests(&self) -> Vec<Request> {
        self.entries().requests.clone()
    }

    pub fn count(&self, condition: impl Fn(&Request) -> bool) -> usize {
        self.entries().requests.iter().filter(|request| condition(request)).count()
    }

    pub fn clear(&self) {
        let mut entries = self.entries();
        entries.cleared += entries.requests.len();
        entries.requests.clear();
    }

    /// The first request that `condition` holds for, as soon as there is one.
    pub async fn wait_for(&self, condition: impl Fn(&Request) -> bool) -> Request {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Some(request) = self.entries().requests.iter().find(|request| condition(request)) {
                return request.clone();
            }
            changed.changed().await.expect("the log outlives those who wait");
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().expect("no holder of this lock panics")
    }
}
