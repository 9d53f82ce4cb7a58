//! The log of a proxy's requests.

use std::sync::Mutex;

use tokio::sync::watch;

use super::Fault;
use super::wire::Head;

/// How much of a request's body is kept, in bytes.
const BODY_KEPT_BYTES: usize = 256 << 10;

/// A request through the proxy, with its progress so far.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The method, in upper case.
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
    /// Header fields in their order, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The start of the body, up to 256 KiB.
    pub body: Vec<u8>,
    /// The full length of the body, in bytes.
    pub body_bytes: u64,
    /// The fault that was applied, if any.
    pub fault: Option<Fault>,
    /// The status of the response, once there is one.
    pub status: Option<u16>,
    /// How much of the response's body was forwarded so far, in bytes.
    pub answer_bytes: u64,
    /// Whether the whole response was forwarded.
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

/// The requests in the order of their arrival. Each change wakes the callers that wait for a request.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Mutex<Entries>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Entries {
    requests: Vec<Request>,
    /// How many requests were removed. Numbers of requests are never reused.
    cleared: usize,
}

impl Log {
    /// Adds a request, and returns its number.
    pub fn add(&self, request: Request) -> usize {
        let mut entries = self.entries();
        entries.requests.push(request);
        let number = entries.cleared + entries.requests.len() - 1;
        drop(entries);
        self.changed.send_replace(());
        number
    }

    /// Changes the request with this number, unless it was removed.
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

    /// The first request for which `condition` holds, as soon as there is one.
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
