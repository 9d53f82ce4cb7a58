//! The meaning of keys: parses them by the keyspace's table, and prints them as text.

use serde_json::{Map, Value};
use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_store::tuple::{Element, unpack};

use super::JobKey;
use crate::encoding::hex;
use crate::ended::EndedKey;
use crate::index_row::IndexRow;
use crate::locks::Spot;
use crate::output;
use crate::{Keyspace, Parked};

/// A row of the keyspace, by its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// The latest time that any node has used.
    Clock,
    /// A job record.
    Job(JobKey),
    /// A piece of a job's options, and its number.
    Options(JobKey, u32),
    /// A row of a job's output, its kind and its number; -1 for the head of its log.
    Output(JobKey, String, i64),
    /// The row of a job's place.
    Index(JobKey, IndexRow),
    /// A tag of a job, and the tenant in its key.
    Tag(JobKey, String, String),
    /// The row that wakes a parked job.
    Parked(JobKey, Parked),
    /// The mark of an unwatched job.
    Unwatched(JobKey, Parked),
    /// A lock that a job holds, and how.
    Lock(JobKey, Spot, Mode),
    /// A lock that a job waits for, or has reserved, and its ticket.
    LockQueue(JobKey, Spot, i64),
    /// A running job of a bucket.
    InBucket(JobKey, Bucket),
    /// A bucket that may have room for jobs of several types, and must be marked for them.
    Unmarked(Bucket),
    /// The mark of a bucket that may have room for jobs of a type.
    Roomy(String, Bucket),
    /// The number of starts of the bucket with this name.
    StartCount(String),
    /// When the starts of a bucket up to this number were.
    Start(String, u64),
    /// A dependency: the job that waits, and the job that it waits for.
    After(JobKey, JobKey),
    /// The reverse: the job that waits, the job that it waits for, and the group.
    Dependent(JobKey, JobKey, i64),
    /// A follower of a job: the job, and the one that follows it.
    Follower(JobKey, JobKey),
    /// A group whose dependents are not all updated yet: the job that ended, and the group.
    Unsettled(JobKey, i64),
    /// A job filter, and its name.
    Filter(String),
    /// The mark that a tenant may have pending jobs: type and tenant.
    Waiting(String, String),
    /// Counts of a tenant's jobs: type and tenant.
    Counts(String, String),
    /// What a charger has charged to a tenant: type, tenant, charger.
    Usage(String, String, String),
    /// How long the jobs of the tasks of this type run.
    RunTimes(String),
    /// How far the keys of a type have been lifted.
    Boost(String),
    /// When a job fails, or its record is removed.
    Lifetime(JobKey, i64),
    /// A unique key, by its hash. Its value names the job.
    Unique(String),
    /// The end of a unique key's period, and the key's hash.
    UniqueUntil(i64, String),
    /// When servers check a job's run.
    Deadline(JobKey, i64),
    /// The key that wakes the workers of a type.
    Wake(String),
    /// A row of a worker, and its kind.
    Worker(JobKey, WorkerRow),
    /// The versionstamp of a type's membership.
    Membership(String),
    /// A schedule, and its name.
    Schedule(String),
    /// A piece of the options of a schedule's jobs, and its number.
    ScheduleOptions(String, u32),
    /// A schedule that fires at a time, and its name.
    ScheduleDue(i64, String),
    /// How the jobs of a schedule have ended.
    ScheduleEnds(String),
    /// A schedule of a tenant: tenant and name.
    TenantSchedule(String, String),
    /// A group: tenant and name.
    Group(String, String),
    /// A job with which a group calls back: tenant and name of the group, and what about.
    GroupCallback(String, String, String),
    /// Counts of a group: tenant, and name and number of the group in one text.
    GroupCounts(String, String),
    /// The mark of a group: tenant and name.
    GroupMark(String, String),
    /// When a group is removed: the time, tenant and name.
    GroupRemoval(i64, String, String),
    /// A `_replicator` database.
    Database(String),
    /// Its update sequence.
    Sequence(String),
    /// The head of a document: database and id.
    Document(String, String),
    /// A piece of a document's body, and its number.
    Body(String, String, u32),
    /// A `_local` document.
    Local(String, String),
    /// A change of a database, and its number.
    Change(String, i64),
    /// The state of a document's replication.
    Replication(String, String),
    /// A row about a database that mirrors one of an upstream CouchDB.
    Mirror(String),
    /// A document whose replication id must still be computed, and when.
    Unresolved(i64, String, String),
    /// A document whose filter function is checked again, and when.
    FilterCheck(i64, String, String),
    /// A versionstamp of which nothing else is checked.
    Stamp,
    /// A row that may hold secrets, and that no check reads.
    Secret,
    /// Another row that no check reads.
    Other,
}

/// The rows of a worker, except the active ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerRow {
    /// `("workers", …)`
    Member,
    /// `("health", …)`
    Health,
    /// `("signal", …)`
    Signal,
    /// `("claims", …)`
    Claims,
}

impl Row {
    /// The schedule to which this row belongs.
    pub fn of_schedule(&self) -> Option<&str> {
        match self {
            Row::Schedule(name)
            | Row::ScheduleOptions(name, _)
            | Row::ScheduleDue(_, name)
            | Row::ScheduleEnds(name)
            | Row::TenantSchedule(_, name) => Some(name),
            _ => None,
        }
    }

    /// The group to which this row belongs: tenant and name.
    pub fn of_group(&self) -> Option<(&str, &str)> {
        match self {
            Row::Group(tenant, name)
            | Row::GroupCallback(tenant, name, _)
            | Row::GroupMark(tenant, name)
            | Row::GroupRemoval(_, tenant, name) => Some((tenant, name)),
            _ => None,
        }
    }

    /// The meaning of a key; `None` if this release has no such row.
    pub fn parse(keys: &Keyspace, key: &[u8]) -> Option<Row> {
        let elements: Vec<Element<'_>> = keys.unpack(key)?;
        let text = |n: usize| match elements.get(n) {
            Some(Element::String(text)) => Some(text.as_ref().to_owned()),
            _ => None,
        };
        let number = |n: usize| match elements.get(n) {
            Some(Element::Int(number)) => Some(*number),
            _ => None,
        };
        let piece = |n: usize| u32::try_from(number(n)?).ok();
        let pair = |first, second| Some((text(first)?, text(second)?));
        let parked = || Some(Parked { group: text(2)?, key: text(3)? });
        let Some(Element::String(family)) = elements.first() else { return None };
        Some(match (family.as_ref(), elements.len()) {
            ("clock", 1) => Row::Clock,
            ("jobs", 3) => Row::Job(pair(1, 2)?),
            ("options", 4) => Row::Options(pair(1, 2)?, piece(3)?),
            ("logs", 3) => Row::Output(pair(1, 2)?, output::LOG.to_owned(), output::HEAD),
            ("output", 5) => Row::Output(pair(1, 2)?, text(3)?, number(4)?),
            ("pending", _) => {
                let (place, id) = keys.parse_pending(key).ok()?;
                Row::Index((text(1)?, id), IndexRow::Pending(place))
            }
            ("delayed", 4) => Row::Index(pair(1, 3)?, IndexRow::Delayed(number(2)?)),
            ("blocked", 3) => Row::Index(pair(1, 2)?, IndexRow::Blocked),
            ("paused", 4) => Row::Index(pair(1, 3)?, IndexRow::Paused(number(2)?)),
            ("limited", 9) => {
                let (job_type, place, id) = keys.parse_limited(key).ok()?;
                Row::Index((job_type, id), IndexRow::Limited(place))
            }
            ("active", 4) => Row::Index(pair(1, 3)?, IndexRow::Active(text(2)?)),
            ("ended", 5) => {
                let EndedKey { partition, ended_us, id } = keys.parse_ended(key).ok()?;
                Row::Index((text(1)?, id), IndexRow::Ended(partition, ended_us))
            }
            ("tags", 5) => Row::Tag(pair(1, 4)?, text(2)?, text(3)?),
            ("parked", 5) => Row::Parked(pair(1, 4)?, parked()?),
            ("unwatched", 5) => Row::Unwatched(pair(1, 4)?, parked()?),
            ("locks" | "lock_queue", 6) | ("rates", 5) | ("unmarked", 3) | ("roomy", 4 | 5) => {
                Row::of_limits(family, keys, key)?
            }
            ("start_counts", 2) => Row::StartCount(text(1)?),
            ("starts", 3) => Row::Start(text(1)?, u64::try_from(number(2)?).ok()?),
            ("lifetimes", 4) => Row::Lifetime(pair(2, 3)?, number(1)?),
            ("unique", 2) => Row::Unique(text(1)?),
            ("unique_until", 3) => Row::UniqueUntil(number(1)?, text(2)?),
            ("deadlines", 4) => Row::Deadline(pair(2, 3)?, number(1)?),
            ("after", 5) => Row::After(pair(1, 2)?, pair(3, 4)?),
            ("dependents", 6) => Row::Dependent(pair(4, 5)?, pair(1, 2)?, number(3)?),
            ("followers", 5) => Row::Follower(pair(1, 2)?, pair(3, 4)?),
            ("unsettled", 4) => Row::Unsettled(pair(1, 2)?, number(3)?),
            ("filters", 2) => Row::Filter(text(1)?),
            ("waiting", 3) => Row::Waiting(text(1)?, text(2)?),
            ("counts", 3..) => {
                let (job_type, tenant) = keys.parse_counts(key).ok()?;
                Row::Counts(job_type, tenant)
            }
            ("usage", 4) => Row::Usage(text(1)?, text(2)?, text(3)?),
            ("run_times", 2) => Row::RunTimes(text(1)?),
            ("boost", 2) => Row::Boost(text(1)?),
            ("wake", 2) => Row::Wake(text(1)?),
            ("workers", 3) => Row::Worker(pair(1, 2)?, WorkerRow::Member),
            ("health", 3) => Row::Worker(pair(1, 2)?, WorkerRow::Health),
            ("signal", 3) => Row::Worker(pair(1, 2)?, WorkerRow::Signal),
            ("claims", 3) => Row::Worker(pair(1, 2)?, WorkerRow::Claims),
            ("workers_vs", 2) => Row::Membership(text(1)?),
            ("schedules", 2) => Row::Schedule(text(1)?),
            ("schedule_options", 3) => Row::ScheduleOptions(text(1)?, piece(2)?),
            ("schedule_due", 3) => Row::ScheduleDue(number(1)?, text(2)?),
            ("schedule_ends", 2) => Row::ScheduleEnds(text(1)?),
            ("tenant_schedules", 3) => Row::TenantSchedule(text(1)?, text(2)?),
            ("groups", 3) => Row::Group(text(1)?, text(2)?),
            ("group_callbacks", 4) => Row::GroupCallback(text(1)?, text(2)?, text(3)?),
            ("group_counts", 3..) => {
                let (tenant, group) = keys.parse_counts(key).ok()?;
                Row::GroupCounts(tenant, group)
            }
            ("group_marks", 3) => Row::GroupMark(text(1)?, text(2)?),
            ("group_removals", 4) => Row::GroupRemoval(number(1)?, text(2)?, text(3)?),
            ("databases", 2) => Row::Database(text(1)?),
            ("sequence", 2) => Row::Sequence(text(1)?),
            ("documents", 3) => Row::Document(text(1)?, text(2)?),
            ("bodies", 4) => Row::Body(text(1)?, text(2)?, piece(3)?),
            ("local", 3) => Row::Local(text(1)?, text(2)?),
            ("changes", 3) => Row::Change(text(1)?, number(2)?),
            ("replications", 3) => Row::Replication(text(1)?, text(2)?),
            ("mirror", 2) => Row::Mirror(text(1)?),
            ("mirror", 4) if matches!(text(2)?.as_str(), "seen" | "owed") && text(3).is_some() => {
                Row::Mirror(text(1)?)
            }
            ("unresolved", 4) => Row::Unresolved(number(1)?, text(2)?, text(3)?),
            ("filter_checks", 4) => Row::FilterCheck(number(1)?, text(2)?, text(3)?),
            // What no check looks into.
            ("format" | "event_head" | "event_recording" | "after_guard", 1) => Row::Other,
            ("fleets" | "types" | "event_nodes" | "node_modes" | "token_uses", 2) if text(1).is_some() => {
                Row::Other
            }
            ("events" | "rate_guard", 2) if number(1)? >= 0 => Row::Other,
            ("server", 2) if text(1)? == "uuid" => Row::Other,
            ("config", 3) if pair(1, 2).is_some() => Row::Other,
            ("history", 4) if number(2).is_some() && text(3).is_some() => Row::Other,
            ("lock_wake" | "counts_guard" | "event_wake" | "unsettled_wake" | "bulk_wake", 1) => Row::Stamp,
            (
                "unresolved_wake" | "group_wake" | "filters_vs" | "webhooks_vs" | "schedules_vs"
                | "config_vs" | "identities_vs",
                1,
            ) => Row::Stamp,
            ("unwatched_wake", 2) if text(1).is_some() => Row::Stamp,
            ("session_key" | "unique_secret", 1) | ("event_in", 3) => Row::Secret,
            ("bulk" | "users" | "tokens", 2) if text(1).is_some() => Row::Secret,
            ("bulk_used", 3) if text(2).is_some() => Row::Secret,
            ("webhooks", 2 | 3) if keys.parse_webhook(key).is_ok() => Row::Secret,
            _ => return None,
        })
    }

    /// The meaning of a key of locks or of buckets.
    fn of_limits(family: &str, keys: &Keyspace, key: &[u8]) -> Option<Row> {
        Some(match family {
            "locks" => {
                let (spot, mode, job_type, id) = keys.parse_lock(key).ok()?;
                Row::Lock((job_type, id), spot, mode)
            }
            "lock_queue" => {
                let (spot, ticket, job_type, id) = keys.parse_lock_queue(key).ok()?;
                Row::LockQueue((job_type, id), spot, ticket)
            }
            "rates" => {
                let (bucket, job_type, id) = keys.parse_bucket_holder(key).ok()?;
                Row::InBucket((job_type, id), bucket)
            }
            "unmarked" => Row::Unmarked(keys.parse_unmarked(key).ok()?),
            "roomy" => {
                let (job_type, bucket, _) = keys.parse_roomy(key).ok()?;
                Row::Roomy(job_type, bucket)
            }
            _ => return None,
        })
    }

    /// The job to which this row belongs.
    pub fn of_job(&self) -> Option<&JobKey> {
        match self {
            Row::Job(job)
            | Row::Options(job, _)
            | Row::Output(job, ..)
            | Row::Index(job, _)
            | Row::Tag(job, ..)
            | Row::Parked(job, _)
            | Row::Unwatched(job, _)
            | Row::Lock(job, ..)
            | Row::LockQueue(job, ..)
            | Row::InBucket(job, _)
            | Row::Lifetime(job, _)
            | Row::Deadline(job, _)
            | Row::After(job, _)
            | Row::Follower(job, _)
            | Row::Dependent(job, _, _) => Some(job),
            _ => None,
        }
    }
}

/// A key as a JSON array, without the subspace that all keys share: `["jobs","replication","a"]`. Values that JSON cannot
/// express are `{"$bytes": hex}` or `{"$versionstamp": hex}`. A key that is no tuple is `{"$bytes": hex}` as a whole.
pub fn key_text(key: &[u8]) -> String {
    let Ok(elements) = unpack::<Vec<Element<'_>>>(key) else {
        return tagged("$bytes", key).to_string();
    };
    let skipped =
        usize::from(matches!(elements.first(), Some(Element::String(first)) if first == "turnwise"));
    Value::Array(elements.iter().skip(skipped).map(element).collect()).to_string()
}

fn element(element: &Element<'_>) -> Value {
    match element {
        Element::Nil => Value::Null,
        Element::Bytes(bytes) => tagged("$bytes", bytes),
        Element::String(text) => Value::from(text.as_ref()),
        Element::Tuple(elements) => Value::Array(elements.iter().map(self::element).collect()),
        Element::Int(number) => Value::from(*number),
        Element::Float(number) => Value::from(f64::from(*number)),
        Element::Double(number) => Value::from(*number),
        Element::Bool(is) => Value::from(*is),
        Element::Versionstamp(stamp) => tagged("$versionstamp", stamp.as_bytes()),
        // Only with features of the tuple crate that are disabled.
        #[allow(unreachable_patterns, reason = "the crate's features decide")]
        other => Value::from(format!("{other:?}")),
    }
}

fn tagged(tag: &str, bytes: &[u8]) -> Value {
    Value::Object(Map::from_iter([(tag.to_owned(), Value::from(hex(bytes)))]))
}
