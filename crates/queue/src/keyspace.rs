//! Every key of the system.
//!
//! All under one subspace; keys are tuples, so that a range read of a prefix gives its rows in order.
//! Values are JSON unless the table says otherwise. Times are microseconds since the Unix epoch.
//!
//! | key | value | written by |
//! | --- | --- | --- |
//! | `("format")` | version of this table, or that a copy is under way ([`crate::Format`]) | whoever creates the store |
//! | `("server", "uuid")` | the server's UUID, part of every replication id | whoever creates the store |
//! | `("clock")` | the latest time that a node has gone by, in µs ([`crate::clock`]) | whichever node is first |
//! | `("jobs", type, id)` | the job record ([`crate::Job`]) | everyone, fenced by the claim while it runs |
//! | `("options", type, id, n)` | n-th piece of options too large for the record (bytes) | with the record |
//! | `("pending", type, tenant, class, order, id)` | empty, or what locks the job wants (JSON); of one tenant, the lowest `class` (-20 to 19) runs first, and in it the lowest `order` (a time) | with the record |
//! | `("pending", type, tenant, key, class, order, id)` | the same, sorted by `key` (a floating-point number) first. Rows without a key come before | who orders by keys |
//! | `("waiting", type, tenant)` | versionstamp (10 bytes), new with every pending row: the tenant may have some | with the pending row |
//! | `("delayed", type, not_before, id)` | empty; not to be started before that time | with the record |
//! | `("parked", type, group, key, id)` | what the job compared its source with ([`crate::parking`]); the job is delayed, and news of `key` wake it | with the record |
//! | `("unwatched", type, group, key, id)` | empty; a parked job that nobody has compared with its source since | with the parked row |
//! | `("unwatched_wake", type)` | versionstamp (10 bytes), new whenever one is added | with them |
//! | `("blocked", type, id)` | empty; a job that waits for the end of others ([`crate::dependencies`]) | with the record |
//! | `("after", type, id, on_type, on_id)` | one of those, and which of its ends are accepted (JSON) | with the record |
//! | `("dependents", on_type, on_id, group, type, id)` | empty; the way back from it | with the row above |
//! | `("unsettled", on_type, on_id, group)` | how it ended (JSON): some of that group have not been told | whoever ended it |
//! | `("after_guard")` | the job for which a circle was searched last (JSON): adds that search collide here | with what it waits for |
//! | `("unsettled_wake")` | versionstamp (10 bytes), new whenever one is added, or a row `("unmarked", …)` | with them |
//! | `("filters", id)` | a job filter ([`crate::filters`]) | whoever changes it |
//! | `("filters_vs")` | versionstamp (10 bytes) of the filters | with them |
//! | `("paused", type, order, id)` | which filter has paused the job, as of which stamp of the filters (JSON) | with the record |
//! | `("limited", kind, bucket, type, limit, tenant, class, order, id)` | a job that is held back until its bucket has room; as of which stamp of the filters (JSON) ([`crate::rate_limits`]) | with the record |
//! | `("rates", kind, bucket, type, id)` | that a job of the bucket runs, under which claim (JSON); the kind is `filter` or `reason` | the claim's holder |
//! | `("rate_guard", n)` | a claim of some bucket (JSON): claims of one collide here | with the claim |
//! | `("roomy", type, kind, bucket)` | versionstamp (10 bytes): the bucket may have room for jobs of the type that are held back | whoever gives a place back, or holds a job back |
//! | `("unmarked", kind, bucket)` | up to which type it is marked (JSON): the bucket may have room for jobs of several types | whoever gives a place back |
//! | `("ended", type, ended, id)` | empty; jobs that have ended, the oldest end first | with the record |
//! | `("active", type, worker, id)` | what the worker reports ([`crate::Active`]) | the claim's holder |
//! | `("deadlines", at, type, id)` | claim (JSON): servers look at that time whether the run is over its own ([`crate::deadlines`]) | with the active row |
//! | `("wake", type)` | versionstamp (10 bytes), new whenever a job becomes pending or delayed | whoever adds |
//! | `("usage", type, tenant, charger)` | what this one has charged to the tenant ([`crate::usage::Charged`]) | that charger |
//! | `("boost", type)` | how far keys have been lifted ([`crate::usage::Boost`]) | who orders by keys |
//! | `("signal", type, worker)` | versionstamp (10 bytes), new whenever one of its jobs shall stop | whoever cancels |
//! | `("claims", type, worker)` | number of the latest claim of a worker that does not count them itself | with its claims |
//! | `("workers", type, worker)` | what is known of the worker ([`crate::Worker`]); nodes are workers of type `@nodes` | that worker |
//! | `("health", type, worker)` | counter, alive while it moves ([`crate::Health`]); stays until a removal is done | that worker |
//! | `("workers_vs", type)` | versionstamp (10 bytes) of the membership | whoever joins or leaves |
//! | `("databases", db)` | a `_replicator` database ([`replicator::documents`]) | whoever creates it |
//! | `("sequence", db)` | its update sequence, and how many documents it has | whoever writes a document |
//! | `("documents", db, id)` | head of a document, without its body | with the sequence |
//! | `("bodies", db, id, n)` | n-th piece of its body (bytes) | with the head |
//! | `("local", db, id)` | a `_local` document of that database, whole | whoever writes it |
//! | `("changes", db, sequence)` | id of the document that changed | with the head |
//! | `("replications", db, id)` | the state of the document's replication, and its job | with the job |
//! | `("mirror", db)` | that the database mirrors one of an upstream CouchDB, and how far ([`replicator::upstream`]) | who follows that one |
//! | `("mirror", db, "seen", id)` | the upstream's revision that the document is of (JSON) | with the document |
//! | `("mirror", db, "owed", id)` | that the document's state is still to be written back | with the state |
//! | `("unresolved", due, db, id)` | empty; its replication id is still to be found, not before `due` | with the state |
//! | `("filter_checks", due, db, id)` | empty; the code of its filter function is looked at again at `due` | with the state |
//! | `("unresolved_wake")` | versionstamp (10 bytes), new whenever one is added | with the state |
//! | `("config", section, key)` | a setting that all servers share, as it would stand in their files | whoever changes it |
//! | `("config_vs")` | versionstamp (10 bytes) of the settings | with them |
//! | `("locks", level, mode, name, type, id)` | who holds that lock and since when ([`crate::locks`]); without a name all of the level, without a level the big lock | the claim's holder |
//! | `("lock_queue", level, name, ticket, type, id)` | who waits for it, or has reserved it, and how | the claim's holder; who looks for work |
//! | `("learnt", slot)` | what runs with one value of an option locked ([`crate::learnt`]) | with the end of such a run |
//! | `("lock_wake")` | versionstamp (10 bytes), new whenever one of these rows goes | with them |
//!
//! [`replicator::documents`]: https://docs.rs/turnwise-replicator
//! [`replicator::upstream`]: https://docs.rs/turnwise-replicator

use bytes::Bytes;
use turnwise_policy::eligibility::rate_limits::{Bucket, Limit};
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_store::key::{children, pack};
use turnwise_store::tuple::{Element, Subspace};

use crate::job::Parked;
use crate::locks::Spot;
use crate::rate_limits::LimitedPlace;

pub use crate::queue_place::{QueuePlace, SortKey};

/// The version of the table above. A store with another one is not opened.
pub const FORMAT_VERSION: u32 = 5;

const EXCLUSIVE: &str = "exclusive";
const SHARED: &str = "shared";

/// Of [`Keyspace::locks`].
type LockKey = (String, Option<String>, String, Option<String>, String, String);
/// Of [`Keyspace::lock_queues`].
type QueueKey = (String, Option<String>, Option<String>, i64, String, String);

const FILTER: &str = "filter";
const REASON: &str = "reason";

/// Of [`Keyspace::limited_in`].
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

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => EXCLUSIVE,
        Mode::Shared => SHARED,
    }
}

/// A range of keys, `[begin, end)`.
pub type KeyRange = (Bytes, Bytes);

/// Builds every key, under one subspace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keyspace {
    space: Subspace,
}

impl Default for Keyspace {
    fn default() -> Self {
        Keyspace { space: Subspace::from(("turnwise",)) }
    }
}

impl Keyspace {
    /// The elements of a key, without the subspace; `None` if it is not in it.
    pub(crate) fn unpack<'a>(&self, key: &'a [u8]) -> Option<Vec<Element<'a>>> {
        self.space.unpack(key).ok()
    }

    /// Whether this is a key of this keyspace, of any version of it.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.space.is_start_of(key)
    }

    /// The version of the keyspace.
    pub fn format(&self) -> Bytes {
        pack(&self.space, &("format",))
    }

    /// The server's UUID.
    pub fn server_uuid(&self) -> Bytes {
        pack(&self.space, &("server", "uuid"))
    }

    /// The latest time that a node has gone by.
    pub fn clock(&self) -> Bytes {
        pack(&self.space, &("clock",))
    }

    /// A job record.
    pub fn job(&self, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("jobs", job_type, id))
    }

    /// All job records of a type.
    pub fn jobs(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("jobs", job_type))
    }

    /// All job records of the types that come after `job_type`, or of all types.
    pub fn jobs_of_types_after(&self, job_type: Option<&str>) -> KeyRange {
        let (begin, end) = children(&self.space, &("jobs",));
        match job_type {
            Some(job_type) => (self.jobs(job_type).1, end),
            None => (begin, end),
        }
    }

    /// Job type of a key of [`Keyspace::jobs_of_types_after`].
    pub fn parse_job_type(&self, key: &[u8]) -> Option<String> {
        let (_, job_type, _): (String, String, String) = self.space.unpack(key).ok()?;
        Some(job_type)
    }

    /// The job records of a type whose id comes after `id`.
    pub fn jobs_after(&self, job_type: &str, id: &str) -> KeyRange {
        let (_, end) = self.jobs(job_type);
        (turnwise_store::key::successor(&self.job(job_type, id)), end)
    }

    /// Job id of a key of [`Keyspace::jobs`].
    pub fn parse_job(&self, key: &[u8]) -> Option<String> {
        let (_, _, id): (String, String, String) = self.space.unpack(key).ok()?;
        Some(id)
    }

    /// The n-th piece of a job's options.
    pub fn options_piece(&self, job_type: &str, id: &str, n: u32) -> Bytes {
        pack(&self.space, &("options", job_type, id, n))
    }

    /// All pieces of a job's options.
    pub fn options(&self, job_type: &str, id: &str) -> KeyRange {
        children(&self.space, &("options", job_type, id))
    }

    /// A job's place in the queue of its tenant.
    pub fn pending_entry(&self, job_type: &str, place: &QueuePlace, id: &str) -> Bytes {
        let QueuePlace { tenant, key, class, order_us } = place;
        let class = i64::from(*class);
        match key {
            None => pack(&self.space, &("pending", job_type, tenant, class, order_us, id)),
            Some(key) => pack(&self.space, &("pending", job_type, tenant, key.get(), class, order_us, id)),
        }
    }

    /// The queues of all tenants of a type, one after the other.
    pub fn pending(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("pending", job_type))
    }

    /// The queue of one tenant, first to run first.
    pub fn pending_of(&self, job_type: &str, tenant: &str) -> KeyRange {
        children(&self.space, &("pending", job_type, tenant))
    }

    /// That part of a tenant's queue whose jobs are sorted by keys, lowest first.
    pub fn keyed_of(&self, job_type: &str, tenant: &str) -> KeyRange {
        let (_, end) = self.pending_of(job_type, tenant);
        // The lowest number that is finite.
        (pack(&self.space, &("pending", job_type, tenant, f64::MIN)), end)
    }

    /// Place and job id of a key of [`Keyspace::pending`].
    pub fn parse_pending(&self, key: &[u8]) -> Option<(QueuePlace, String)> {
        let elements = self.unpack(key)?;
        let (place, id) = QueuePlace::of_elements(elements.get(2..)?)?;
        Some((place, id))
    }

    /// The sign that a tenant may have pending jobs.
    pub fn waiting_entry(&self, job_type: &str, tenant: &str) -> Bytes {
        pack(&self.space, &("waiting", job_type, tenant))
    }

    /// The tenants of a type that may have pending jobs, by name.
    pub fn waiting(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("waiting", job_type))
    }

    /// The tenant of a key of [`Keyspace::waiting`].
    pub fn parse_waiting(&self, key: &[u8]) -> Option<String> {
        self.parse_job(key)
    }

    /// What `charger` has charged to a tenant.
    pub fn usage_entry(&self, job_type: &str, tenant: &str, charger: &str) -> Bytes {
        pack(&self.space, &("usage", job_type, tenant, charger))
    }

    /// What was charged to the tenants of a type, by tenant.
    pub fn usage(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("usage", job_type))
    }

    /// What was charged to one tenant.
    pub fn usage_of(&self, job_type: &str, tenant: &str) -> KeyRange {
        children(&self.space, &("usage", job_type, tenant))
    }

    /// Tenant and charger of a key of [`Keyspace::usage`].
    pub fn parse_usage(&self, key: &[u8]) -> Option<(String, String)> {
        self.parse_active(key)
    }

    /// How far the keys of a type have been lifted.
    pub fn boost(&self, job_type: &str) -> Bytes {
        pack(&self.space, &("boost", job_type))
    }

    /// A place among the delayed jobs.
    pub fn delayed_entry(&self, job_type: &str, not_before_us: i64, id: &str) -> Bytes {
        pack(&self.space, &("delayed", job_type, not_before_us, id))
    }

    /// The delayed jobs of a type, first due first.
    pub fn delayed(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("delayed", job_type))
    }

    /// Due time and job id of a key of [`Keyspace::delayed`].
    pub fn parse_delayed(&self, key: &[u8]) -> Option<(i64, String)> {
        let (_, _, at_us, id): (String, String, i64, String) = self.space.unpack(key).ok()?;
        Some((at_us, id))
    }

    /// The row of a parked job.
    pub fn parked_entry(&self, job_type: &str, at: &Parked, id: &str) -> Bytes {
        pack(&self.space, &("parked", job_type, &at.group, &at.key, id))
    }

    /// The parked jobs of a type, by group.
    pub fn parked(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("parked", job_type))
    }

    /// The parked jobs of a group, by key.
    pub fn parked_of(&self, job_type: &str, group: &str) -> KeyRange {
        children(&self.space, &("parked", job_type, group))
    }

    /// The jobs that are parked at one key.
    pub fn parked_at(&self, job_type: &str, group: &str, key: &str) -> KeyRange {
        children(&self.space, &("parked", job_type, group, key))
    }

    /// That nobody has looked at a parked job since it was parked.
    pub fn unwatched_entry(&self, job_type: &str, at: &Parked, id: &str) -> Bytes {
        pack(&self.space, &("unwatched", job_type, &at.group, &at.key, id))
    }

    /// The parked jobs of a type that nobody has looked at since, by group.
    pub fn unwatched(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("unwatched", job_type))
    }

    /// Those of one group.
    pub fn unwatched_of(&self, job_type: &str, group: &str) -> KeyRange {
        children(&self.space, &("unwatched", job_type, group))
    }

    /// Where and job id of a key of [`Keyspace::parked`] or [`Keyspace::unwatched`].
    pub fn parse_parked(&self, key: &[u8]) -> Option<(Parked, String)> {
        let (_, _, group, key, id): (String, String, String, String, String) = self.space.unpack(key).ok()?;
        Some((Parked { group, key }, id))
    }

    /// Changes whenever there is one more of [`Keyspace::unwatched`].
    pub fn unwatched_wake(&self, job_type: &str) -> Bytes {
        pack(&self.space, &("unwatched_wake", job_type))
    }

    /// A place among the jobs that wait for the end of others.
    pub fn blocked_entry(&self, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("blocked", job_type, id))
    }

    /// The jobs of a type that wait for the end of others, by id.
    pub fn blocked(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("blocked", job_type))
    }

    /// Job id of a key of [`Keyspace::blocked`].
    pub fn parse_blocked(&self, key: &[u8]) -> Option<String> {
        let (_, _, id): (String, String, String) = self.space.unpack(key).ok()?;
        Some(id)
    }

    /// That a job waits for the end of another one.
    pub fn after_entry(&self, job_type: &str, id: &str, on: (&str, &str)) -> Bytes {
        pack(&self.space, &("after", job_type, id, on.0, on.1))
    }

    /// What a job waits for, by type and id.
    pub fn after(&self, job_type: &str, id: &str) -> KeyRange {
        children(&self.space, &("after", job_type, id))
    }

    /// Type and id of the job that a key of [`Keyspace::after`] names.
    pub fn parse_after(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, _, _, on_type, on_id): (String, String, String, String, String) =
            self.space.unpack(key).ok()?;
        Some((on_type, on_id))
    }

    /// That a job is waited for by another one.
    pub fn dependents_entry(&self, on: (&str, &str), group: i64, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("dependents", on.0, on.1, group, job_type, id))
    }

    /// The jobs of one group that wait for a job.
    pub fn dependents(&self, on: (&str, &str), group: i64) -> KeyRange {
        children(&self.space, &("dependents", on.0, on.1, group))
    }

    /// Type and id of the job that waits, of a key of [`Keyspace::dependents`].
    pub fn parse_dependents(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, _, _, _, job_type, id): (String, String, String, i64, String, String) =
            self.space.unpack(key).ok()?;
        Some((job_type, id))
    }

    /// That some of a group have not been told of the end.
    pub fn unsettled_entry(&self, on: (&str, &str), group: i64) -> Bytes {
        pack(&self.space, &("unsettled", on.0, on.1, group))
    }

    /// All groups of which some have not been told.
    pub fn unsettled(&self) -> KeyRange {
        children(&self.space, &("unsettled",))
    }

    /// Type, id and group of a key of [`Keyspace::unsettled`].
    pub fn parse_unsettled(&self, key: &[u8]) -> Option<(String, String, i64)> {
        let (_, on_type, on_id, group): (String, String, String, i64) = self.space.unpack(key).ok()?;
        Some((on_type, on_id, group))
    }

    /// What adds that search for a circle collide on.
    pub fn after_guard(&self) -> Bytes {
        pack(&self.space, &("after_guard",))
    }

    /// Changes whenever there is one more of [`Keyspace::unsettled`] or [`Keyspace::unmarked`].
    pub fn unsettled_wake(&self) -> Bytes {
        pack(&self.space, &("unsettled_wake",))
    }

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

    /// A place among the jobs that filters have paused.
    pub fn paused_entry(&self, job_type: &str, order_us: i64, id: &str) -> Bytes {
        pack(&self.space, &("paused", job_type, order_us, id))
    }

    /// All jobs that filters have paused, by type, in the order of their queues.
    pub fn paused(&self) -> KeyRange {
        children(&self.space, &("paused",))
    }

    /// Those of one type.
    pub fn paused_of(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("paused", job_type))
    }

    /// Type, place and id of a key of [`Keyspace::paused`].
    pub fn parse_paused(&self, key: &[u8]) -> Option<(String, i64, String)> {
        let (_, job_type, order_us, id): (String, String, i64, String) = self.space.unpack(key).ok()?;
        Some((job_type, order_us, id))
    }

    /// A place among the jobs that are held back.
    pub fn limited_entry(&self, job_type: &str, place: &LimitedPlace, id: &str) -> Bytes {
        let LimitedPlace { limit: Limit { bucket, most }, tenant, class, order_us } = place;
        let (kind, class) = (bucket_kind(bucket), i64::from(*class));
        pack(&self.space, &("limited", kind, bucket.name(), job_type, most, tenant, class, order_us, id))
    }

    /// All jobs that a bucket holds back.
    pub fn limited_in(&self, bucket: &Bucket) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name()))
    }

    /// All jobs that buckets hold back, from the first bucket after this one on.
    pub fn limited_after(&self, bucket: Option<&Bucket>) -> KeyRange {
        let (begin, end) = children(&self.space, &("limited",));
        (bucket.map_or(begin, |bucket| self.limited_in(bucket).1), end)
    }

    /// Those of one type.
    pub fn limited_of(&self, bucket: &Bucket, job_type: &str) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name(), job_type))
    }

    /// Those of them that obey one limit.
    pub fn limited_by(&self, Limit { bucket, most }: &Limit, job_type: &str) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name(), job_type, most))
    }

    /// Those of them that are one tenant's, in the order of its queue.
    pub fn limited_for(&self, Limit { bucket, most }: &Limit, job_type: &str, tenant: &str) -> KeyRange {
        children(&self.space, &("limited", bucket_kind(bucket), bucket.name(), job_type, most, tenant))
    }

    /// All jobs that filters hold back.
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

    /// That a job of a bucket runs.
    pub fn rate_holder(&self, bucket: &Bucket, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("rates", bucket_kind(bucket), bucket.name(), job_type, id))
    }

    /// The jobs of a bucket that run.
    pub fn rate_holders(&self, bucket: &Bucket) -> KeyRange {
        children(&self.space, &("rates", bucket_kind(bucket), bucket.name()))
    }

    /// Bucket, job type and id of a key of [`Keyspace::rate_holders`].
    pub fn parse_rate(&self, key: &[u8]) -> Option<(Bucket, String, String)> {
        let (_, kind, name, job_type, id): (String, String, String, String, String) =
            self.space.unpack(key).ok()?;
        Some((bucket_of(&kind, name)?, job_type, id))
    }

    /// What claims of a bucket collide on.
    pub fn rate_guard(&self, guard: u64) -> Bytes {
        pack(&self.space, &("rate_guard", guard))
    }

    /// The mark of a bucket that may have room for jobs of a type that it holds back.
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

    /// That a bucket is to be marked for all types of which it holds jobs back.
    pub fn unmarked_entry(&self, bucket: &Bucket) -> Bytes {
        pack(&self.space, &("unmarked", bucket_kind(bucket), bucket.name()))
    }

    /// All buckets that are to be marked.
    pub fn unmarked(&self) -> KeyRange {
        children(&self.space, &("unmarked",))
    }

    /// The bucket of a key of [`Keyspace::unmarked`].
    pub fn parse_unmarked(&self, key: &[u8]) -> Option<Bucket> {
        let (_, kind, name): (String, String, String) = self.space.unpack(key).ok()?;
        bucket_of(&kind, name)
    }

    /// A place among the jobs that have ended.
    pub fn ended_entry(&self, job_type: &str, ended_us: i64, id: &str) -> Bytes {
        pack(&self.space, &("ended", job_type, ended_us, id))
    }

    /// The jobs of a type that ended before `before_us`, the oldest end first.
    pub fn ended_before(&self, job_type: &str, before_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("ended", job_type));
        (begin, pack(&self.space, &("ended", job_type, before_us)))
    }

    /// When it ended and job id of a key of [`Keyspace::ended_before`].
    pub fn parse_ended(&self, key: &[u8]) -> Option<(i64, String)> {
        self.parse_delayed(key)
    }

    /// The number of a worker's latest claim.
    pub fn claim_number(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("claims", job_type, worker))
    }

    /// What a worker reports of one of its jobs.
    pub fn active_entry(&self, job_type: &str, worker: &str, id: &str) -> Bytes {
        pack(&self.space, &("active", job_type, worker, id))
    }

    /// The jobs of one worker.
    pub fn active_of(&self, job_type: &str, worker: &str) -> KeyRange {
        children(&self.space, &("active", job_type, worker))
    }

    /// The jobs of all workers of a type.
    pub fn active(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("active", job_type))
    }

    /// The jobs of all workers of all types.
    pub fn all_active(&self) -> KeyRange {
        children(&self.space, &("active",))
    }

    /// Type, worker and job id of a key of [`Keyspace::all_active`].
    pub fn parse_all_active(&self, key: &[u8]) -> Option<(String, String, String)> {
        let (_, job_type, worker, id): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some((job_type, worker, id))
    }

    /// Worker and job id of a key of [`Keyspace::active`].
    pub fn parse_active(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, _, worker, id): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some((worker, id))
    }

    /// When servers look at a run.
    pub fn deadline(&self, at_us: i64, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("deadlines", at_us, job_type, id))
    }

    /// The runs that are to be looked at up to `until_us`, the first due first.
    pub fn deadlines_until(&self, until_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("deadlines",));
        (begin, children(&self.space, &("deadlines", until_us)).1)
    }

    /// Time, job type and id of a key of [`Keyspace::deadlines_until`].
    pub fn parse_deadline(&self, key: &[u8]) -> Option<(i64, String, String)> {
        let (_, at_us, job_type, id): (String, i64, String, String) = self.space.unpack(key).ok()?;
        Some((at_us, job_type, id))
    }

    /// Changes whenever there may be something to start.
    pub fn wake(&self, job_type: &str) -> Bytes {
        pack(&self.space, &("wake", job_type))
    }

    /// Changes whenever a job of this worker shall stop.
    pub fn signal(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("signal", job_type, worker))
    }

    /// A registered worker.
    pub fn worker(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("workers", job_type, worker))
    }

    /// All registered workers of a type, sorted by id.
    pub fn workers(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("workers", job_type))
    }

    /// Worker id of a key of [`Keyspace::workers`].
    pub fn parse_worker(&self, key: &[u8]) -> Option<String> {
        self.parse_job(key)
    }

    /// A worker's health counter.
    pub fn health(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("health", job_type, worker))
    }

    /// The health counters of all workers of a type, sorted by worker id.
    pub fn healths(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("health", job_type))
    }

    /// The health counters of all workers of all types.
    pub fn all_healths(&self) -> KeyRange {
        children(&self.space, &("health",))
    }

    /// Job type and worker id of a key of [`Keyspace::healths`].
    pub fn parse_health(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, job_type, worker): (String, String, String) = self.space.unpack(key).ok()?;
        Some((job_type, worker))
    }

    /// The versionstamp of the membership.
    pub fn workers_versionstamp(&self, job_type: &str) -> Bytes {
        pack(&self.space, &("workers_vs", job_type))
    }

    /// The versionstamps of the memberships of all types.
    pub fn all_memberships(&self) -> KeyRange {
        children(&self.space, &("workers_vs",))
    }

    /// That a job holds a lock.
    pub fn lock_holder(&self, spot: &Spot, mode: Mode, job_type: &str, id: &str) -> Bytes {
        let Spot { level, name } = spot;
        pack(&self.space, &("locks", level.as_deref(), mode_name(mode), name.as_deref(), job_type, id))
    }

    /// Who holds a lock in this mode.
    pub fn lock_holders(&self, spot: &Spot, mode: Mode) -> KeyRange {
        let Spot { level, name } = spot;
        children(&self.space, &("locks", level.as_deref(), mode_name(mode), name.as_deref()))
    }

    /// Which jobs of a type hold the big lock in this mode.
    pub fn big_lock_holders_of(&self, mode: Mode, job_type: &str) -> KeyRange {
        let none = None::<&str>;
        children(&self.space, &("locks", none, mode_name(mode), none, job_type))
    }

    /// Who holds any lock of a level in this mode.
    pub fn lock_holders_at(&self, level: &str, mode: Mode) -> KeyRange {
        children(&self.space, &("locks", Some(level), mode_name(mode)))
    }

    /// Who holds any lock: the big one first, then by level.
    pub fn locks(&self) -> KeyRange {
        children(&self.space, &("locks",))
    }

    /// Lock, mode, job type and id of a key of [`Keyspace::locks`].
    pub fn parse_lock(&self, key: &[u8]) -> Option<(Spot, Mode, String, String)> {
        let (_, level, mode, name, job_type, id): LockKey = self.space.unpack(key).ok()?;
        let mode = match mode.as_str() {
            EXCLUSIVE => Mode::Exclusive,
            SHARED => Mode::Shared,
            _ => return None,
        };
        Some((Spot::new(level, name)?, mode, job_type, id))
    }

    /// That a job waits for a lock, or has reserved it.
    pub fn lock_queue_entry(&self, spot: &Spot, ticket: i64, job_type: &str, id: &str) -> Bytes {
        let Spot { level, name } = spot;
        pack(&self.space, &("lock_queue", level.as_deref(), name.as_deref(), ticket, job_type, id))
    }

    /// Who waits for a lock, first come first.
    pub fn lock_queue(&self, spot: &Spot) -> KeyRange {
        let Spot { level, name } = spot;
        children(&self.space, &("lock_queue", level.as_deref(), name.as_deref()))
    }

    /// Who waits for any lock of a level.
    pub fn lock_queues_at(&self, level: &str) -> KeyRange {
        children(&self.space, &("lock_queue", Some(level)))
    }

    /// Who waits for any lock: the big one first, then by level and name.
    pub fn lock_queues(&self) -> KeyRange {
        children(&self.space, &("lock_queue",))
    }

    /// Lock, ticket, job type and id of a key of [`Keyspace::lock_queues`].
    pub fn parse_lock_queue(&self, key: &[u8]) -> Option<(Spot, i64, String, String)> {
        let (_, level, name, ticket, job_type, id): QueueKey = self.space.unpack(key).ok()?;
        Some((Spot::new(level, name)?, ticket, job_type, id))
    }

    /// One of the [`SLOTS`](crate::learnt::SLOTS) rows of what runs locked.
    pub fn learnt(&self, slot: u64) -> Bytes {
        pack(&self.space, &("learnt", slot))
    }

    /// All of them.
    pub fn all_learnt(&self) -> KeyRange {
        children(&self.space, &("learnt",))
    }

    /// Changes whenever somebody may get a lock who did not before.
    pub fn lock_wake(&self) -> Bytes {
        pack(&self.space, &("lock_wake",))
    }

    /// A `_replicator` database.
    pub fn database(&self, db: &str) -> Bytes {
        pack(&self.space, &("databases", db))
    }

    /// All `_replicator` databases, by name.
    pub fn databases(&self) -> KeyRange {
        children(&self.space, &("databases",))
    }

    /// The update sequence of a database.
    pub fn sequence(&self, db: &str) -> Bytes {
        pack(&self.space, &("sequence", db))
    }

    /// The head of a document.
    pub fn document(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("documents", db, id))
    }

    /// The heads of all documents of a database, by id.
    pub fn documents(&self, db: &str) -> KeyRange {
        children(&self.space, &("documents", db))
    }

    /// The n-th piece of a document's body.
    pub fn body_piece(&self, db: &str, id: &str, n: u32) -> Bytes {
        pack(&self.space, &("bodies", db, id, n))
    }

    /// All pieces of a document's body.
    pub fn body(&self, db: &str, id: &str) -> KeyRange {
        children(&self.space, &("bodies", db, id))
    }

    /// The bodies of all documents of a database.
    pub fn bodies(&self, db: &str) -> KeyRange {
        children(&self.space, &("bodies", db))
    }

    /// A `_local` document.
    pub fn local(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("local", db, id))
    }

    /// All `_local` documents of a database.
    pub fn locals(&self, db: &str) -> KeyRange {
        children(&self.space, &("local", db))
    }

    /// The change with this sequence number.
    pub fn change(&self, db: &str, sequence: i64) -> Bytes {
        pack(&self.space, &("changes", db, sequence))
    }

    /// All changes of a database, oldest first.
    pub fn changes(&self, db: &str) -> KeyRange {
        children(&self.space, &("changes", db))
    }

    /// The state of a document's replication.
    pub fn replication(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("replications", db, id))
    }

    /// The states of the replications of one database, by document id.
    pub fn replications(&self, db: &str) -> KeyRange {
        children(&self.space, &("replications", db))
    }

    /// Database and document id of a key of [`Keyspace::replications`].
    pub fn parse_replication(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, db, id): (String, String, String) = self.space.unpack(key).ok()?;
        Some((db, id))
    }

    /// That a database mirrors one of an upstream CouchDB.
    pub fn mirror(&self, db: &str) -> Bytes {
        pack(&self.space, &("mirror", db))
    }

    /// Everything else that is kept about a mirror.
    pub fn mirror_details(&self, db: &str) -> KeyRange {
        children(&self.space, &("mirror", db))
    }

    /// The upstream's revision that a mirrored document is of.
    pub fn mirror_seen(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("mirror", db, "seen", id))
    }

    /// That a mirrored document's state is still to be written back.
    pub fn mirror_owed(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("mirror", db, "owed", id))
    }

    /// All states of a mirror that are still to be written back, by document id.
    pub fn mirror_all_owed(&self, db: &str) -> KeyRange {
        children(&self.space, &("mirror", db, "owed"))
    }

    /// Document id of a key of [`Keyspace::mirror_all_owed`].
    pub fn parse_mirror_owed(&self, key: &[u8]) -> Option<String> {
        let (_, _, _, id): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some(id)
    }

    /// A document whose replication id is still to be found.
    pub fn unresolved_entry(&self, due_us: i64, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("unresolved", due_us, db, id))
    }

    /// All documents whose replication ids are still to be found, first due first.
    pub fn unresolved(&self) -> KeyRange {
        children(&self.space, &("unresolved",))
    }

    /// Due time, database and document id of a key of [`Keyspace::unresolved`].
    pub fn parse_unresolved(&self, key: &[u8]) -> Option<(i64, String, String)> {
        let (_, due_us, db, id): (String, i64, String, String) = self.space.unpack(key).ok()?;
        Some((due_us, db, id))
    }

    /// Changes whenever there is one more of [`Keyspace::unresolved`].
    pub fn unresolved_wake(&self) -> Bytes {
        pack(&self.space, &("unresolved_wake",))
    }

    /// A document whose job depends on the code of a filter function.
    pub fn filter_check(&self, due_us: i64, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("filter_checks", due_us, db, id))
    }

    /// All documents whose filter functions are looked at again, first due first.
    pub fn filter_checks(&self) -> KeyRange {
        children(&self.space, &("filter_checks",))
    }

    /// Due time, database and document id of a key of [`Keyspace::filter_checks`].
    pub fn parse_filter_check(&self, key: &[u8]) -> Option<(i64, String, String)> {
        let (_, due_us, db, id): (String, i64, String, String) = self.space.unpack(key).ok()?;
        Some((due_us, db, id))
    }

    /// A setting that all servers share.
    pub fn config_entry(&self, section: &str, key: &str) -> Bytes {
        pack(&self.space, &("config", section, key))
    }

    /// All settings that servers share, by section.
    pub fn config(&self) -> KeyRange {
        children(&self.space, &("config",))
    }

    /// Section and name of a key of [`Keyspace::config`].
    pub fn parse_config(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, section, key): (String, String, String) = self.space.unpack(key).ok()?;
        Some((section, key))
    }

    /// The versionstamp of the settings that servers share.
    pub fn config_versionstamp(&self) -> Bytes {
        pack(&self.space, &("config_vs",))
    }

    /// Document id of a key of [`Keyspace::documents`].
    pub fn parse_document(&self, key: &[u8]) -> Option<String> {
        self.parse_job(key)
    }

    /// Database name of a key of [`Keyspace::databases`].
    pub fn parse_database(&self, key: &[u8]) -> Option<String> {
        let (_, db): (String, String) = self.space.unpack(key).ok()?;
        Some(db)
    }
}
