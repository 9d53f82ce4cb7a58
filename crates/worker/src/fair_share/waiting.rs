//! The tenants with waiting jobs, in the order in which they are next.
//!
//! *Model.* Each tenant with waiting jobs has a waiting row, which holds a stamp. A job that becomes pending changes
//! its tenant's stamp and the wake key. So the rows are read only when the wake key has changed. A queue that was found
//! empty counts as empty until its stamp changes. A pass thus costs one read of the wake key, and one range read if a
//! job has become pending.
//!
//! *Forces.* Reading all waiting tenants at each wake is `O(tenants)`. If there are many, they are read less often
//! ([`STALE_US_PER_TENANT`]), as long as the known ones have enough jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use turnwise_policy::rotation::Float;
use turnwise_store::Versionstamp;

/// How old the known state may be, in µs per tenant, as long as its jobs fill the slots. Reading a row takes about 5
/// µs, so repeated reads of all rows take at most a tenth of a worker's time.
const STALE_US_PER_TENANT: i64 = 50;
/// With fewer tenants than this, the rows are read at every change: they fit into one small read.
const FEW: usize = 100;

/// What is known of a tenant with a waiting row.
#[derive(Debug, Clone, Copy)]
struct Queue {
    /// The stamp of its latest pending row, if known.
    stamp: Option<Versionstamp>,
    /// Whether the first read has found that stamp.
    first: bool,
    /// Its position in the order, where lower comes first; `None` if its queue is empty as of its stamp.
    position: Option<Float>,
    /// Since when it is known to be empty, in µs.
    empty_since_us: i64,
}

impl Queue {
    /// The position of a new queue, until it is first updated.
    const LAST: Float = Float(f64::MAX);
    const NEW: Queue = Queue { stamp: None, first: false, position: Some(Self::LAST), empty_since_us: 0 };
}

/// The tenants with waiting rows.
#[derive(Debug, Default)]
pub(super) struct WaitingTenants {
    /// The wake key's value at the first read. It counts as lower than every other value. A copied store has stamps of
    /// another engine, which may be higher than all stamps that its own engine will set.
    first: Option<Option<Bytes>>,
    /// The wake key's value in the snapshot that was read last; `None` before the first read.
    as_of: Option<Option<Bytes>>,
    read_us: i64,
    /// Whether the next pass reads the rows whatever their age, because the known jobs did not fill the slots.
    too_old: bool,
    queues: BTreeMap<Arc<str>, Queue>,
    order: BTreeSet<(Float, Arc<str>)>,
}

/// What a read of the rows has shown about a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TenantChange {
    /// The tenant has waiting jobs, perhaps since before the first read.
    Found,
    /// The tenant has waiting jobs, and had none before.
    Arrived,
    /// The tenant has no waiting jobs any more.
    Gone,
}

impl WaitingTenants {
    /// Whether the rows must be read before a pass with the wake key's value `wake`.
    pub fn must_read(&self, wake: Option<&Bytes>, now_us: i64) -> bool {
        let Some(as_of) = &self.as_of else { return true };
        if self.too_old {
            return true;
        }
        // The snapshot of a transaction that began before the last read is older than the known state.
        self.is_before(as_of.as_ref(), wake)
            && (self.queues.len() < FEW
                || now_us.saturating_sub(self.read_us) >= self.queues.len() as i64 * STALE_US_PER_TENANT)
    }

    /// Called when the known jobs do not fill the slots. Returns whether there may be more jobs; if so, the next pass
    /// reads the rows again.
    pub fn must_be_read_again(&mut self, wake: Option<&Bytes>) -> bool {
        let is_stale = self.as_of.as_ref().is_none_or(|as_of| self.is_before(as_of.as_ref(), wake));
        self.too_old |= is_stale;
        is_stale
    }

    /// Whether the value `one` of the wake key is older than the value `other`.
    fn is_before(&self, one: Option<&Bytes>, other: Option<&Bytes>) -> bool {
        let first = |wake: Option<&Bytes>| self.first.as_ref().is_some_and(|first| first.as_ref() == wake);
        one != other && !first(other) && (first(one) || one < other)
    }

    /// Applies the rows, by tenant, with the wake key's value of the same snapshot. Returns the tenants that have
    /// changed.
    pub fn read(
        &mut self,
        rows: Vec<(String, Versionstamp)>,
        wake: Option<Bytes>,
        now_us: i64,
    ) -> Vec<(Arc<str>, TenantChange)> {
        if self.as_of.as_ref().is_some_and(|as_of| self.is_before(wake.as_ref(), as_of.as_ref())) {
            // Another task has read later rows meanwhile.
            return Vec::new();
        }
        let first = self.as_of.is_none();
        if first {
            self.first = Some(wake.clone());
        }
        self.as_of = Some(wake);
        (self.read_us, self.too_old) = (now_us, false);
        let mut before = std::mem::take(&mut self.queues);
        let mut changes = Vec::new();
        for (tenant, stamp) in rows {
            let (tenant, queue) = match before.remove_entry(tenant.as_str()) {
                Some((tenant, queue)) => (tenant, Some(queue)),
                None => (Arc::from(tenant), None),
            };
            let known = queue.filter(|queue| queue.position.is_some() || queue.stamp == Some(stamp));
            if known.is_none() {
                changes
                    .push((tenant.clone(), if first { TenantChange::Found } else { TenantChange::Arrived }));
            }
            let queue = known.unwrap_or(Queue::NEW);
            if known.is_none() {
                self.order.insert((Queue::LAST, tenant.clone()));
            }
            let is_first = first || queue.first && queue.stamp == Some(stamp);
            self.queues.insert(tenant, Queue { stamp: Some(stamp), first: is_first, ..queue });
        }
        for (tenant, queue) in before {
            if let Some(position) = queue.position {
                self.order.remove(&(position, tenant.clone()));
                changes.push((tenant, TenantChange::Gone));
            }
        }
        debug_assert!(
            self.order.iter().all(|(_, tenant)| self.has(tenant)),
            "a tenant has a position without a queue"
        );
        changes
    }

    /// Notes that a job of this tenant has become pending in a transaction that may still fail. Returns whether no
    /// waiting job of the tenant was known.
    pub fn suspect(&mut self, tenant: &str) -> bool {
        if self.has(tenant) {
            return false;
        }
        let tenant: Arc<str> = tenant.into();
        self.order.insert((Queue::LAST, tenant.clone()));
        self.queues.insert(tenant, Queue::NEW);
        true
    }

    /// Notes that a tenant's queue is empty in a snapshot with the wake key's value `wake`. It may also be empty after
    /// a commit on this snapshot that made none of the tenant's jobs pending. Returns whether the queue was not known
    /// to be empty.
    pub fn found_empty(&mut self, tenant: &str, wake: Option<&Bytes>, now_us: i64) -> bool {
        let Some(queue) = self.queues.get_mut(tenant) else { return false };
        let Some(position) = queue.position else { return false };
        // A job that became pending after that snapshot may still wait.
        let is_oldest = self.first.as_ref().is_some_and(|first| first.as_ref() == wake);
        let is_later = |stamp: Versionstamp| {
            !queue.first && (is_oldest || wake.is_none_or(|wake| stamp.0.as_slice() > wake.as_ref()))
        };
        if queue.stamp.is_some_and(is_later) {
            return false;
        }
        (queue.position, queue.empty_since_us) = (None, now_us);
        self.order.remove(&(position, Arc::from(tenant)));
        true
    }

    /// Notes that the tenant's row was cleared, because its queue is empty.
    pub fn cleared(&mut self, tenant: &str) {
        if self.queues.get(tenant).is_some_and(|queue| queue.position.is_none()) {
            self.queues.remove(tenant);
        }
    }

    /// Notes that a queue that counted as empty is not empty.
    pub fn filled(&mut self, tenant: &str, now_us: i64) {
        if let Some(queue) = self.queues.get_mut(tenant) {
            queue.empty_since_us = now_us;
        }
    }

    /// Moves a tenant to its position, if it has waiting jobs.
    pub fn put(&mut self, tenant: &str, next: f64) {
        let Some((name, _)) = self.queues.get_key_value(tenant) else { return };
        let name = name.clone();
        let Some(position) = self.queues.get_mut(tenant).and_then(|queue| queue.position.as_mut()) else {
            return;
        };
        if *position != Float(next) {
            let removed = self.order.remove(&(*position, name.clone()));
            debug_assert!(removed, "{name} has a queue and no position");
            *position = Float(next);
            self.order.insert((*position, name));
        }
    }

    /// Whether a tenant has waiting jobs, as far as is known.
    pub fn has(&self, tenant: &str) -> bool {
        self.queues.get(tenant).is_some_and(|queue| queue.position.is_some())
    }

    /// The tenants with waiting jobs, in order.
    pub fn in_order(&self) -> impl Iterator<Item = (&Arc<str>, f64)> {
        self.order.iter().map(|(position, tenant)| (tenant, position.0))
    }

    /// The number of tenants with waiting jobs.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Tenants whose queues have been empty since `since_us` or longer, and whose rows still exist; up to `limit`.
    pub fn empty_since(&self, since_us: i64, limit: usize) -> Vec<Arc<str>> {
        let is_empty = |queue: &Queue| queue.position.is_none() && queue.empty_since_us <= since_us;
        self.queues
            .iter()
            .filter(|(_, queue)| is_empty(queue))
            .map(|(name, _)| name.clone())
            .take(limit)
            .collect()
    }

    /// Whether any queue is known to be empty.
    pub fn has_empty(&self) -> bool {
        self.queues.len() > self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(n: u8) -> Versionstamp {
        Versionstamp([n; 10])
    }

    fn wake(n: u8) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(&[n; 10]))
    }

    fn read(waiting: &mut WaitingTenants, rows: &[(&str, u8)], at: u8) -> Vec<(String, TenantChange)> {
        let rows = rows.iter().map(|(tenant, n)| ((*tenant).to_owned(), stamp(*n))).collect();
        let changes = waiting.read(rows, wake(at), 0);
        changes.into_iter().map(|(tenant, change)| (tenant.to_string(), change)).collect()
    }

    fn order(waiting: &WaitingTenants) -> Vec<&str> {
        waiting.in_order().map(|(tenant, _)| tenant.as_ref()).collect()
    }

    #[test]
    fn rows_are_read_again_when_a_job_has_become_pending() {
        let mut waiting = WaitingTenants::default();
        assert!(waiting.must_read(None, 0));
        assert_eq!(read(&mut waiting, &[("a", 1)], 1), [("a".to_owned(), TenantChange::Found)]);
        assert!(!waiting.must_read(wake(1).as_ref(), 0));
        assert!(waiting.must_read(wake(2).as_ref(), 0));
        assert_eq!(read(&mut waiting, &[("a", 2), ("b", 2)], 2), [("b".to_owned(), TenantChange::Arrived)]);
        assert_eq!(read(&mut waiting, &[("b", 2)], 3), [("a".to_owned(), TenantChange::Gone)]);
        assert!(read(&mut waiting, &[("a", 1)], 1).is_empty(), "an older snapshot changes nothing");
        assert_eq!(order(&waiting), ["b"]);
    }

    #[test]
    fn an_empty_queue_stays_empty_until_its_stamp_changes() {
        let mut waiting = WaitingTenants::default();
        read(&mut waiting, &[("a", 1), ("b", 1)], 1);
        assert!(waiting.found_empty("a", wake(1).as_ref(), 7));
        assert_eq!(order(&waiting), ["b"]);
        assert!(read(&mut waiting, &[("a", 1), ("b", 2)], 2).is_empty());
        assert_eq!(order(&waiting), ["b"]);
        assert_eq!(waiting.empty_since(7, 9), [Arc::from("a")]);
        assert!(waiting.empty_since(6, 9).is_empty());
        assert_eq!(read(&mut waiting, &[("a", 3), ("b", 2)], 3), [("a".to_owned(), TenantChange::Arrived)]);
        assert!(!waiting.found_empty("a", wake(2).as_ref(), 8), "that snapshot was before its job");
        assert!(waiting.has("a") && !waiting.has_empty());
    }

    #[test]
    fn stamps_of_another_engine_are_older_than_all_others() {
        let mut waiting = WaitingTenants::default();
        read(&mut waiting, &[("a", 200), ("b", 199)], 200);
        assert!(!waiting.must_read(wake(200).as_ref(), 0) && waiting.must_read(wake(3).as_ref(), 0));
        assert_eq!(
            read(&mut waiting, &[("a", 200), ("b", 199), ("c", 3)], 3),
            [("c".to_owned(), TenantChange::Arrived)]
        );
        assert!(
            read(&mut waiting, &[("a", 200), ("b", 199)], 200).is_empty(),
            "an older snapshot changes nothing"
        );
        assert!(!waiting.must_read(wake(200).as_ref(), 0) && waiting.must_read(wake(4).as_ref(), 0));
        assert!(waiting.found_empty("a", wake(3).as_ref(), 7), "its stamp is not a later one");
        assert!(!waiting.found_empty("c", wake(200).as_ref(), 7), "and this one is");
        assert_eq!(
            read(&mut waiting, &[("a", 4), ("b", 199)], 4),
            [("a".to_owned(), TenantChange::Arrived), ("c".to_owned(), TenantChange::Gone)]
        );
    }

    #[test]
    fn tenants_are_ordered_by_the_positions_that_are_set() {
        let mut waiting = WaitingTenants::default();
        read(&mut waiting, &[("a", 1), ("b", 1), ("c", 1)], 1);
        for (tenant, next) in [("a", 3.0), ("b", 1.0), ("c", 2.0), ("unknown", 0.0)] {
            waiting.put(tenant, next);
        }
        assert_eq!(order(&waiting), ["b", "c", "a"]);
        waiting.put("b", 9.0);
        waiting.found_empty("c", wake(1).as_ref(), 0);
        waiting.put("c", 0.0);
        assert_eq!((order(&waiting), waiting.len()), (vec!["a", "b"], 2));
        assert!(waiting.suspect("c") && !waiting.suspect("a"));
        assert_eq!(order(&waiting), ["a", "b", "c"]);
        waiting.cleared("c");
        assert!(waiting.has("c"), "only the row of an empty queue can be cleared");
    }

    #[test]
    fn many_tenants_are_read_less_often_as_long_as_their_jobs_fill_the_slots() {
        let mut waiting = WaitingTenants::default();
        let rows: Vec<(String, Versionstamp)> = (0..1_000).map(|n| (format!("t{n:04}"), stamp(1))).collect();
        waiting.read(rows, wake(1), 0);
        assert!(!waiting.must_read(wake(2).as_ref(), 49_999));
        assert!(waiting.must_read(wake(2).as_ref(), 50_000));
        assert!(!waiting.must_be_read_again(wake(1).as_ref()) && !waiting.must_read(wake(2).as_ref(), 0));
        assert!(waiting.must_be_read_again(wake(2).as_ref()));
        assert!(waiting.must_read(wake(2).as_ref(), 0));
    }
}
