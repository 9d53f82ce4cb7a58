//! The events of a world, in order: a hash of all events, the last ones for a report, and on request all of them.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::Bytes;

use crate::rows::RowChange;
use crate::show;

/// How many events the report of a failure shows.
const TAIL: usize = 150;

/// One event.
#[derive(Debug, Clone)]
pub struct Event {
    /// When it happened, in µs since the world began.
    pub at_us: i64,
    /// Where it happened.
    pub site: Site,
    /// What happened.
    pub what: &'static str,
    /// Details.
    pub text: String,
    /// The rows that it wrote.
    pub rows: Vec<(Bytes, Option<Bytes>)>,
}

/// The site where an event happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// The world itself: phases, faults.
    World,
    /// A node, and the number of the process there.
    Node(u32, u32),
    /// A client.
    Client(u32),
    /// An external worker, and the number of its process.
    External(u32, u32),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::World => write!(f, "world"),
            Site::Node(node, life) => write!(f, "node {node}.{life}"),
            Site::Client(client) => write!(f, "client {client}"),
            Site::External(worker, life) => write!(f, "worker {worker}.{life}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, us) = (self.at_us / 1_000_000, self.at_us % 1_000_000);
        write!(f, "{s:4}.{us:06} {:<9} {} {}", self.site.to_string(), self.what, self.text)?;
        for (key, value) in &self.rows {
            write!(f, "\n                        {}", show::row(key, value.as_ref()))?;
        }
        Ok(())
    }
}

/// The trace of one world.
pub struct Trace {
    hasher: DefaultHasher,
    events: VecDeque<Event>,
    keep_all: bool,
}

impl Trace {
    /// An empty trace. It keeps every event, or only the last ones.
    pub fn new(keep_all: bool) -> Self {
        Trace { hasher: DefaultHasher::new(), events: VecDeque::new(), keep_all }
    }

    /// Notes an event.
    pub fn note(&mut self, event: Event) {
        (event.at_us, event.site, event.what, &event.text, &event.rows).hash(&mut self.hasher);
        if !self.keep_all && self.events.len() == TAIL {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// The kept events, as lines.
    pub fn lines(&self) -> Vec<String> {
        self.events.iter().map(Event::to_string).collect()
    }
}

/// The rows of a commit, as an event keeps them.
pub fn written(changes: &[RowChange]) -> Vec<(Bytes, Option<Bytes>)> {
    changes.iter().map(|change| (change.key.clone(), change.new.clone())).collect()
}
