//! The keys of [`crate::events`]: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// The log of events that have no number yet. Commits add rows behind this key.
    pub fn event_in(&self) -> Bytes {
        pack(&self.space, &("event_in",))
    }

    /// The rows of this log.
    pub fn events_in(&self) -> KeyRange {
        children(&self.space, &("event_in",))
    }

    /// Changes whenever a row is added to this log.
    pub fn event_wake(&self) -> Bytes {
        pack(&self.space, &("event_wake",))
    }

    /// A row of numbered events, the last of which has this number.
    pub fn events_until(&self, last: u64) -> Bytes {
        pack(&self.space, &("events", number(last)))
    }

    /// All numbered events.
    pub fn events(&self) -> KeyRange {
        children(&self.space, &("events",))
    }

    /// The rows of numbered events from this number on; the first row may begin before it.
    pub fn events_from(&self, first: u64) -> KeyRange {
        (self.events_until(first), self.events().1)
    }

    /// The number of the last event in a row of [`Keyspace::events`].
    pub fn parse_events(&self, key: &[u8]) -> Option<u64> {
        let (_, last): (String, i64) = self.space.unpack(key).ok()?;
        u64::try_from(last).ok()
    }

    /// The number of the next event.
    pub fn event_head(&self) -> Bytes {
        pack(&self.space, &("event_head",))
    }

    /// Whether events are recorded.
    pub fn event_recording(&self) -> Bytes {
        pack(&self.space, &("event_recording",))
    }

    /// Which request to record events a node follows.
    pub fn event_node(&self, node: &str) -> Bytes {
        pack(&self.space, &("event_nodes", node))
    }

    /// The same of all nodes.
    pub fn event_nodes(&self) -> KeyRange {
        children(&self.space, &("event_nodes",))
    }
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
