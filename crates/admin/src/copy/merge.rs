//! Reads two stores side by side.

use std::cmp::Ordering;

use bytes::Bytes;
use turnwise_queue::Keyspace;
use turnwise_store::{Result, Store};

use crate::scan::{KeyRange, Scan, everything};

/// What the two stores have at the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub key: Bytes,
    /// The source's value; `None` if only the target has a row.
    pub value: Option<Bytes>,
    /// Whether the target has the same row.
    pub is_same: bool,
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
            let (begin, end) = &self.skipped;
            let is_skipped = |step: &Step| step.value.is_some() && *begin <= step.key && step.key < *end;
            if !step.as_ref().is_some_and(is_skipped) {
                return Ok(step);
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
        let is_same = source == target;
        Ok(match source {
            Some((key, value)) => Some(Step { key, value: Some(value), is_same }),
            None => target.map(|(key, _)| Step { key, value: None, is_same }),
        })
    }
}
