//! The event bus: what the parts of a replicator tell each other, and tests.
//!
//! A small broadcast within one process. An event says that something has happened and may be worth a look; what is so stands
//! in the store. So nothing depends on an event to arrive: who is late misses the oldest ones and is told how many
//! ([`Event::Missed`]), and nobody waits for who listens.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};
use turnwise_worker::Membership;

/// Events that wait for a slow listener, at most; further ones push out the oldest.
const CAPACITY: usize = 1_024;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The nodes among which work is shared out have changed, or have settled: their names.
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
        /// How.
        end: JobEnd,
    },
    /// The state of an upstream CouchDB's document was committed here.
    Mirrored {
        /// The local database.
        db: Arc<str>,
        /// The document.
        doc: Arc<str>,
    },
    /// A state was written into an upstream CouchDB's document, and that is known here.
    WrittenBack {
        /// The local database.
        db: Arc<str>,
        /// The document.
        doc: Arc<str>,
    },
    /// An upstream CouchDB's database is followed from now on; the local name.
    Followed(Arc<str>),
    /// One is not followed any more: it is gone, or another node's.
    Left(Arc<str>),
    /// Whether the upstream CouchDB answers.
    UpstreamAnswers(bool),
    /// So many events were missed by this listener.
    Missed(u64),
}

/// How a run of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// Everything is copied.
    Completed,
    /// It will never work.
    Failed,
    /// It will be tried again.
    Crashed,
    /// It was told to stop, or has nothing to do.
    Stopped,
}

/// The bus. Cheap to clone; clones are the same one.
#[derive(Debug, Clone)]
pub struct Events(broadcast::Sender<Event>);

impl Default for Events {
    fn default() -> Self {
        Events(broadcast::Sender::new(CAPACITY))
    }
}

impl Events {
    /// Tells everyone who listens now.
    pub fn tell(&self, event: Event) {
        // An error says that nobody listens.
        let _ = self.0.send(event);
    }

    /// Listens from now on.
    pub fn listen(&self) -> Listener {
        Listener(self.0.subscribe())
    }
}

/// Hears what is told after it began to listen.
#[derive(Debug)]
pub struct Listener(broadcast::Receiver<Event>);

impl Listener {
    /// The next event. Never returns once the bus is gone.
    pub async fn next(&mut self) -> Event {
        match self.0.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(missed)) => Event::Missed(missed),
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Waits for an event of a kind, and returns what `of_kind` makes of it; forgets those before it.
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
    async fn everyone_hears_what_is_told_after_they_began_to_listen() {
        let events = Events::default();
        events.tell(started("before"));
        let (mut first, mut second) = (events.listen(), events.listen());
        events.tell(started("a"));
        events.tell(Event::UpstreamAnswers(true));
        assert_eq!(first.next().await, started("a"));
        assert!(second.wait(|event| matches!(event, Event::UpstreamAnswers(true)).then_some(true)).await);
    }

    #[tokio::test]
    async fn who_is_late_is_told_how_many_events_were_missed() {
        let events = Events::default();
        let mut late = events.listen();
        for n in 0..CAPACITY + 10 {
            events.tell(started(&n.to_string()));
        }
        assert_eq!(late.next().await, Event::Missed(10));
        assert_eq!(late.next().await, started("10"));
    }
}
