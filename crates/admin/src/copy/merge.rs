//! Reads two stores side by side.

use std::cmp::Ordering;

use bytes::Bytes;
use turnwise_queue::Keyspace;
use turnwise_store::{Result, Store};

use crate::scan::{KeyRange, Scan, everything};

/// What the two stores have at the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Both have the same row.
    Same(Bytes, Bytes),
    /// Only the source has the row.
    Missing(Bytes, Bytes),
    /// Both have a row, with different values. The value is the source's.
    Different(Bytes, Bytes),
    /// Only the target has a row.
    Extra(Bytes),
}

/// Source and target, in key order.
pub(super) struct Merge {
    source: Scan,
    target: Scan,
    /// Rows that exist for a moment, and whose values have a meaning only in their store: events without numbers
    /// ([`Copy::number_events`](super::Copy::number_events)).
    skipped: KeyRange,
}

impl Merge {
    pub(super) fn new(source: &Store, target: &Store) -> Self {
        let (source, target) = (Scan::new(source, everything()), Scan::new(target, everything()));
        Merge { source, target, skipped: Keyspace::default().events_in() }
    }

    /// The next key that either store has; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Step>> {
        loop {
            let step = self.step().await?;
            let is_skipped = |key: &Bytes| self.skipped.0 <= *key && *key < self.skipped.1;
            match &step {
                Some(Step::Same(key, _) | Step::Missing(key, _) | Step::Different(key, _))
                    if is_skipped(key) => {}
                _ => return Ok(step),
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Step>> {
        let (source, target) = (self.source.peek().await?, self.target.peek().await?);
        let order = match (&source, &target) {
            (None, None) => return Ok(None),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((source, _)), Some((target, _))) => source.cmp(target),
        };
        let source = if order.is_le() { self.source.next().await? } else { None };
        let target = if order.is_ge() { self.target.next().await? } else { None };
        Ok(match (source, target) {
            (Some((key, value)), None) => Some(Step::Missing(key, value)),
            (Some((key, value)), Some((_, other))) if value == other => Some(Step::Same(key, value)),
            (Some((key, value)), Some(_)) => Some(Step::Different(key, value)),
            (None, other) => other.map(|(key, _)| Step::Extra(key)),
        })
    }
}
