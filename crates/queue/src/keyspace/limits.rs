//! The keys of filters and concurrency limits: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

const FILTER: &str = "filter";
const REASON: &str = "reason";

/// A key of [`Keyspace::limited_in`].
type LimitedKey = (String, String, String, String, u32, String, i64, i64, String);

fn bucket_kind(bucket: &Bucket) -> &'static str {
    match bucket {
        Bucket::Filter(_) => FILTER,
        Bucket::Reason(_) => REASON,
    }
}

fn bucket_of(kind: &str, name: String) -> Option<Bucket> {
    match kind {
        FILTER => Some(Bucket::Filter(name)),
        REASON => Some(Bucket::Reason(name)),
        _ => None,
    }
}

/// Where a limited job is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitedPlace {
    /// The limit that it obeys.
    pub limit: Limit,
    /// The tenant to whose queue it returns.
    pub tenant: String,
    /// Its priority class.
    pub class: i8,
    /// Its time in that queue, in µs.
    pub order_us: i64,
}

impl Keyspace {
    /// A job filter.
    pub fn filter(&self, id: &str) -> Bytes {
        pack(&self.space, &("filters", id))
    }

    /// All job filters, by name.
    pub fn filters(&self) -> KeyRange {
        children(&self.space, &("filters",))
    }

    /// The name of a key of [`Keyspace::filters`].
    pub fn parse_filter(&self, key: &[u8]) -> Option<String> {
        self.parse_database(key)
    }

    /// The versionstamp of the job filters.
    pub fn filters_versionstamp(&self) -> Bytes {
        pack(&self.space, &("filters_vs",))
    }

    /// The row of a job that a filter has paused.
    pub fn paused_entry(&self, job_type: &str, order_us: i64, id: &str) -> Bytes {
        pack(&self.space, &("paused", job_type, order_us, id))
    }

    /// All paused jobs, by type, in the order of their queues.
    pub fn paused(&self) -> KeyRange {
        children(&self.space, &("paused",))
    }

    /// The same for one type.
    pub fn paused_of(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("paused", job_type))
    }

    /// Type, time in the queue, and id of a key of [`Keyspace::paused`].
    pub fn parse_paused(&self, key: &[u8]) -> Option<(String, i64, String)> {
        let (_, job_type, order_us, id): (String, String, i64, String) = self.space.unpack(key).ok()?;
        Some((job_type, order_us, id))
    }

    /// The row of a limited job.
    pub fn limited_entry(&self, job_type: &str, place: &LimitedPlace, id: &str) -> Bytes {
        let LimitedPlace { limit: Limit { bucket, most }, tenant, class, order_us } = place;
        let (kind, class) = (bucket_kind(bucket), i64::from(*class));
        pack(&self.space, &("limited", kind, bucket.name(), job_type, most, tenant, class, order_us, id))
    }

    /// All jobs that a bucket limits.
    pub fn limited_in(&self, bucket: &Bucket) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name()))
    }

    /// All jobs that buckets limit, starting with the first bucket after this one.
    pub fn limited_after(&self, bucket: Option<&Bucket>) -> KeyRange {
        let (begin, end) = children(&self.space, &("limited",));
        (bucket.map_or(begin, |bucket| self.limited_in(bucket).1), end)
    }

    /// The limited jobs of one type in a bucket.
    pub fn limited_of(&self, bucket: &Bucket, job_type: &str) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name(), job_type))
    }

    /// The limited jobs of one type that obey one limit.
    pub fn limited_by(&self, Limit { bucket, most }: &Limit, job_type: &str) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name(), job_type, most))
    }

    /// The same for one tenant, in the order of its queue.
    pub fn limited_for(&self, Limit { bucket, most }: &Limit, job_type: &str, tenant: &str) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name(), job_type, most, tenant))
    }

    /// All jobs that filters limit.
    pub fn limited_by_filters(&self) -> KeyRange {
        children(&self.space, &("limited", FILTER))
    }

    /// Type, place and id of a key of [`Keyspace::limited_in`].
    pub fn parse_limited(&self, key: &[u8]) -> Option<(String, LimitedPlace, String)> {
        let (_, kind, name, job_type, most, tenant, class, order_us, id): LimitedKey =
            self.space.unpack(key).ok()?;
        let limit = Limit { bucket: bucket_of(&kind, name)?, most };
        let class = i8::try_from(class).ok()?;
        Some((job_type, LimitedPlace { limit, tenant, class, order_us }, id))
    }

    /// The row of a running job of a bucket.
    pub fn rate_holder(&self, bucket: &Bucket, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("rates", bucket_kind(bucket), bucket.name(), job_type, id))
    }

    /// The running jobs of a bucket.
    pub fn rate_holders(&self, bucket: &Bucket) -> KeyRange {
        children(&self.space, &("rates", bucket_kind(bucket), bucket.name()))
    }

    /// Bucket, job type and id of a key of [`Keyspace::rate_holders`].
    pub fn parse_rate(&self, key: &[u8]) -> Option<(Bucket, String, String)> {
        let (_, kind, name, job_type, id): (String, String, String, String, String) =
            self.space.unpack(key).ok()?;
        Some((bucket_of(&kind, name)?, job_type, id))
    }

    /// The row on which claims of a bucket conflict.
    pub fn rate_guard(&self, guard: u64) -> Bytes {
        pack(&self.space, &("rate_guard", guard))
    }

    /// The mark of a bucket that may have room for its limited jobs of a type.
    pub fn roomy_entry(&self, job_type: &str, bucket: &Bucket) -> Bytes {
        pack(&self.space, &("roomy", job_type, bucket_kind(bucket), bucket.name()))
    }

    /// All marks of a type.
    pub fn roomy(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("roomy", job_type))
    }

    /// Type and bucket of a key of [`Keyspace::roomy`].
    pub fn parse_roomy(&self, key: &[u8]) -> Option<(String, Bucket)> {
        let (_, job_type, kind, name): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some((job_type, bucket_of(&kind, name)?))
    }

    /// The row of a bucket that must be marked for all types of its limited jobs.
    pub fn unmarked_entry(&self, bucket: &Bucket) -> Bytes {
        pack(&self.space, &("unmarked", bucket_kind(bucket), bucket.name()))
    }

    /// All buckets that must still be marked.
    pub fn unmarked(&self) -> KeyRange {
        children(&self.space, &("unmarked",))
    }

    /// The bucket of a key of [`Keyspace::unmarked`].
    pub fn parse_unmarked(&self, key: &[u8]) -> Option<Bucket> {
        let (_, kind, name): (String, String, String) = self.space.unpack(key).ok()?;
        bucket_of(&kind, name)
    }
}
