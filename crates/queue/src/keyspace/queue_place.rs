//! The sort order of a tenant's pending jobs.

use bytes::Bytes;
use turnwise_store::Result;
use turnwise_store::key::pack;

use super::elements::{Elements, FLOAT};
use super::{KeyRange, Keyspace};

/// Where a pending job is in its tenant's queue.
///
/// Rows without a key come before those with one: a tuple sorts whole numbers before floating-point ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePlace {
    /// The tenant whose queue it is.
    pub tenant: String,
    /// A key that sorts the job before its priority, if there is one.
    pub key: Option<SortKey>,
    /// Its priority: lower ones run first.
    pub priority: i8,
    /// When it was last started, or added, in µs.
    pub order_us: i64,
}

impl QueuePlace {
    /// A place that only its time decides, in the default priority.
    pub fn by_time(tenant: &str, order_us: i64) -> Self {
        QueuePlace { tenant: tenant.to_owned(), key: None, priority: 0, order_us }
    }

    /// Reads the elements of a pending row's key after its type, which are the last ones.
    fn read(elements: &mut Elements<'_>) -> Option<(QueuePlace, String)> {
        let tenant = elements.text()?.into_owned();
        let key = match elements.peek()? {
            FLOAT => {
                let key = elements.float()?;
                Some(SortKey::new(key).filter(|sorted| sorted.get().to_bits() == key.to_bits())?)
            }
            _ => None,
        };
        let priority = i8::try_from(elements.int()?).ok()?;
        let order_us = elements.int()?;
        let id = elements.text()?.into_owned();
        let is_whole = elements.peek().is_none();
        is_whole.then_some((QueuePlace { tenant, key, priority, order_us }, id))
    }
}

impl Keyspace {
    /// A job's place in the queue of its tenant.
    pub fn pending_entry(&self, job_type: &str, place: &QueuePlace, id: &str) -> Bytes {
        let QueuePlace { tenant, key, priority, order_us } = place;
        let priority = i64::from(*priority);
        match key {
            None => pack(&self.space, &("pending", job_type, tenant, priority, order_us, id)),
            Some(key) => pack(&self.space, &("pending", job_type, tenant, key.get(), priority, order_us, id)),
        }
    }

    /// The part of a tenant's queue whose jobs are sorted by keys, lowest first.
    pub fn keyed_of(&self, job_type: &str, tenant: &str) -> KeyRange {
        let (_, end) = self.pending_of(job_type, tenant);
        // The lowest finite number.
        (pack(&self.space, &("pending", job_type, tenant, f64::MIN)), end)
    }

    /// Place and job id of a key of [`Keyspace::pending`].
    pub fn parse_pending(&self, key: &[u8]) -> Result<(QueuePlace, String)> {
        let read = || {
            let mut elements = Elements::at(key, self.space.bytes().len());
            let _family = self.contains(key).then(|| elements.text())??;
            let _type = elements.text()?;
            QueuePlace::read(&mut elements)
        };
        read().ok_or_else(|| self.unreadable(key))
    }
}

/// A finite number that rows are sorted by. Zero has no sign, so that equal numbers are equal keys.
#[derive(Debug, Clone, Copy)]
pub struct SortKey(f64);

impl SortKey {
    /// `None` if it is not finite.
    pub fn new(number: f64) -> Option<Self> {
        // This turns the negative zero into the positive one.
        number.is_finite().then_some(SortKey(number + 0.0))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SortKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SortKey {}

impl std::hash::Hash for SortKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
