//! The keys of filters, concurrency limits and rates: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_store::Result;
use turnwise_store::key::{children, pack};
use turnwise_store::tuple::Element;

use super::{KeyRange, Keyspace};

pub(super) const FILTER: &str = "filter";
const REASON: &str = "reason";
const TASK: &str = "task";
const RATE: &str = "rate";
/// The kind of marks that are due at a time; it sorts behind those of other marks.
pub(super) const TIMED: &str = "timed";

/// A key of [`Keyspace::limited`].
type LimitedKey<'a> = (Element<'a>, String, String, String, u32, String, i64, i64, String);

pub(super) fn bucket_kind(bucket: &Bucket) -> &'static str {
    match bucket {
        Bucket::Filter(_) => FILTER,
        Bucket::Reason(_) => REASON,
        Bucket::Task(_) => TASK,
        Bucket::Rate(_) => RATE,
    }
}

/// Where a limited job is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitedPlace {
    /// The limit that it obeys.
    pub limit: Limit,
    /// The tenant to whose queue it returns.
    pub tenant: String,
    /// Its priority.
    pub priority: i8,
    /// Its time in that queue, in µs.
    pub order_us: i64,
}

impl Keyspace {
    /// The row of a limited job.
    pub fn limited_entry(&self, job_type: &str, place: &LimitedPlace, id: &str) -> Bytes {
        let LimitedPlace { limit: Limit { bucket, most }, tenant, priority, order_us } = place;
        let (kind, priority) = (bucket_kind(bucket), i64::from(*priority));
        pack(&self.space, &("limited", kind, bucket.name(), job_type, most, tenant, priority, order_us, id))
    }

    /// Type, place and id of a key of [`Keyspace::limited`].
    pub fn parse_limited(&self, key: &[u8]) -> Result<(String, LimitedPlace, String)> {
        let (_, kind, name, job_type, most, tenant, priority, order_us, id): LimitedKey<'_> =
            self.read(key)?;
        let limit = Limit { bucket: self.bucket(&kind, name, key)?, most };
        let priority = i8::try_from(priority).map_err(|_| self.unreadable(key))?;
        Ok((job_type, LimitedPlace { limit, tenant, priority, order_us }, id))
    }

    /// Bucket, job type and id of a key of [`Keyspace::bucket_holders`].
    pub fn parse_bucket_holder(&self, key: &[u8]) -> Result<(Bucket, String, String)> {
        let (_, kind, name, job_type, id): (Element<'_>, String, String, String, String) = self.read(key)?;
        Ok((self.bucket(&kind, name, key)?, job_type, id))
    }

    /// All jobs that filters limit, and those that the rates of their reasons limit.
    pub fn limited_by_filters(&self) -> KeyRange {
        let limited = |kind: &str| children(&self.space, &("limited", kind));
        (limited(FILTER).0, limited(RATE).1)
    }

    /// Type and bucket of a key of [`Keyspace::roomy`]; of a bucket of starts also the time of its mark, in µs.
    pub fn parse_roomy(&self, key: &[u8]) -> Result<(String, Bucket, Option<i64>)> {
        if let Ok((_, job_type, kind, at_us, name)) =
            self.read::<(Element<'_>, String, String, i64, String)>(key)
            && kind == TIMED
        {
            return Ok((job_type, Bucket::Rate(name), Some(at_us)));
        }
        let (_, job_type, kind, name): (Element<'_>, String, String, String) = self.read(key)?;
        Ok((job_type, self.bucket(&kind, name, key)?, None))
    }

    /// The bucket of a key of [`Keyspace::unmarked`].
    pub fn parse_unmarked(&self, key: &[u8]) -> Result<Bucket> {
        let (_, kind, name): (Element<'_>, String, String) = self.read(key)?;
        self.bucket(&kind, name, key)
    }

    /// The bucket that a key names.
    fn bucket(&self, kind: &str, name: String, key: &[u8]) -> Result<Bucket> {
        match kind {
            FILTER => Ok(Bucket::Filter(name)),
            REASON => Ok(Bucket::Reason(name)),
            TASK => Ok(Bucket::Task(name)),
            RATE => Ok(Bucket::Rate(name)),
            _ => Err(self.unreadable(key)),
        }
    }
}
