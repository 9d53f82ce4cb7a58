//! The event bus between the parts of a replicator; tests listen to it, too.
//!
//! A small broadcast within one process. An event only hints that something has happened; the store holds the actual
//! state. Correctness therefore never depends on the delivery of an event. A slow listener loses the oldest events and
//! learns how many ([`Event::Missed`]), and no sender waits for a listener.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};
use turnwise_worker::Membership;

/// The most events that wait for a slow listener; further events replace the oldest.
const CAPACITY: usize = 1_024;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The nodes that divide the work have changed, or are stable again: their names.
    Cluster(Membership),
    /// A run of a job begins on this node.
    JobStarted {
        /// The job: its replication id.
        id: Arc<str>,
    },
    /// A run has ended on this node, and its end is about to be recorded.
    JobEnded {
        /// The job.
        id: Arc<str>,
        /// How it ended.
        end: JobEnd,
    },
    /// The state of an upstream's document was committed here.
    Mirrored {
        /// The local database.
        db: Arc<str>,
        /// The document.
        doc: Arc<str>,
    },
    /// A state was written to an upstream's document, and this node has recorded it.
    WrittenBack {
        /// The local database.
        db: Arc<str>,
        /// The document.
        doc: Arc<str>,
    },
    /// This node follows an upstream's database from now on; the local name.
    Followed(Arc<str>),
    /// This node no longer follows a database: it was deleted, or another node owns it.
    Left(Arc<str>),
    /// Whether the upstream responds.
    UpstreamAnswers(bool),
    /// This many events were missed by this listener.
    Missed(u64),
}

/// How a run of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// The run has copied everything.
    Completed,
    /// The job can never succeed.
    Failed,
    /// The job will be retried.
    Crashed,
    /// The run was stopped, or is idle.
    Stopped,
}

/// The event bus. Clones are cheap and share the same bus.
#[derive(Debug, Clone)]
pub struct Events(broadcast::Sender<Event>);

impl Default for Events {
    fn default() -> Self {
        Events(broadcast::Sender::new(CAPACITY))
    }
}

impl Events {
    /// Sends an event to all current listeners.
    pub fn send(&self, event: Event) {
        // An error means that there are no listeners.
        let _ = self.0.send(event);
    }

    /// Returns a listener for all later events.
    pub fn listen(&self) -> Listener {
        Listener(self.0.subscribe())
    }
}

/// Receives the events that are sent after its creation.
#[derive(Debug)]
pub struct Listener(broadcast::Receiver<Event>);

impl Listener {
    /// The next event. Never returns after the bus is dropped.
    pub async fn next(&mut self) -> Event {
        match self.0.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(missed)) => Event::Missed(missed),
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Waits for the first event for which `of_kind` returns a value, and returns this value. Earlier events are discarded.
    pub async fn wait<T>(&mut self, mut of_kind: impl FnMut(&Event) -> Option<T>) -> T {
        loop {
            if let Some(found) = of_kind(&self.next().await) {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(id: &str) -> Event {
        Event::JobStarted { id: id.into() }
    }

    #[tokio::test]
    async fn a_listener_receives_all_later_events() {
        let events = Events::default();
        events.send(started("before"));
        let (mut first, mut second) = (events.listen(), events.listen());
        events.send(started("a"));
        events.send(Event::UpstreamAnswers(true));
        assert_eq!(first.next().await, started("a"));
        assert!(second.wait(|event| matches!(event, Event::UpstreamAnswers(true)).then_some(true)).await);
    }

    #[tokio::test]
    async fn a_slow_listener_learns_how_many_events_it_missed() {
        let events = Events::default();
        let mut late = events.listen();
        for n in 0..CAPACITY + 10 {
            events.send(started(&n.to_string()));
        }
        assert_eq!(late.next().await, Event::Missed(10));
        assert_eq!(late.next().await, started("10"));
    }
}
