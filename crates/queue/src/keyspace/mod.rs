//! All keys of the store. `table.rs` has the functions that build and parse them; those that do more are in a file per family.
//!
//! All keys are in one subspace. They are tuples, so that a range read of a prefix returns its rows in order. Values are
//! JSON unless the table states otherwise. Times are microseconds since the Unix epoch.
//!
//! | key | value | written by |
//! | --- | --- | --- |
//! | `("format")` | version of this table, or that a copy is in progress ([`crate::Format`]) | the creator of the store |
//! | `("server", "uuid")` | the server's UUID, part of every replication id | the creator of the store |
//! | `("clock")` | the latest time that any node has used, in µs ([`crate::clock`]) | the first node whose clock is ahead |
//! | `("jobs", type, id)` | the job record ([`crate::Job`]) | every writer, fenced by the claim while the job runs |
//! | `("options", type, id, n)` | n-th piece of options too large for the record (bytes) | with the record |
//! | `("output", type, id, "error", n)` | the n-th error that the job has kept (JSON) ([`crate::output`]) | with the record |
//! | `("output", type, id, "log", n)` | lines of its log, the first of which has this number (an array, compressed) | its worker |
//! | `("logs", type, id)` | which lines its log has, their size, and the tenant (JSON) | with these lines |
//! | `("output", type, id, "result", n)` | n-th piece of a result too large for the record (bytes) | with the record |
//! | `("tags", type, tag, tenant, id)` | empty; a tag of the job ([`crate::tags`]) | with the record |
//! | `("pending", type, tenant, priority, order, id)` | empty, or its locks (JSON); lowest priority (-20 to 19) first, then order (a time) | with it |
//! | `("pending", type, tenant, key, priority, order, id)` | the same, sorted by `key` (a float); after all rows without a key | a worker |
//! | `("waiting", type, tenant)` | versionstamp (10 bytes), set when a job becomes pending: the tenant may have some | with the pending row |
//! | `("delayed", type, not_before, id)` | as in `ended`; the job does not start before that time | with the record |
//! | `("parked", type, group, key, id)` | the token that the job compared ([`crate::parking`]); a change of `key` wakes the job | with the record |
//! | `("unwatched", type, group, key, id)` | empty; a parked job that no watcher has compared with its source yet | with the parked row |
//! | `("unwatched_wake", type)` | versionstamp (10 bytes), set whenever such a row is added | with that row |
//! | `("blocked", type, id)` | tenant and time (JSON); a job that waits for its dependencies ([`crate::dependencies`]) | with the record |
//! | `("after", type, id, on_type, on_id)` | one dependency, and which of its end states are accepted (JSON) | with the record |
//! | `("dependents", on_type, on_id, group, type, id)` | empty; the reverse of the row above | with the row above |
//! | `("unsettled", on_type, on_id, group)` | how it ended (JSON); some dependents of the group are not updated yet | the transaction that ends it |
//! | `("followers", on_type, on_id, type, id)` | empty, or what the job waited for (JSON): it gets the other's result, or was cancelled because of its end ([`crate::followers`]) | with the record, or an end |
//! | `("after_guard")` | the job whose dependencies were last searched for a cycle (JSON): these adds conflict here | with the dependencies |
//! | `("unsettled_wake")` | versionstamp (10 bytes), set whenever such a row or a row `("unmarked", …)` is added | with that row |
//! | `("bulk", id)` | one change to all jobs that meet a condition, and how far it is ([`crate::bulk`]) | the node that makes it |
//! | `("bulk_used", by, id)` | when the operation ended whose record made room for others; `by` is null on a store without identities | who begins another one |
//! | `("bulk_wake")` | versionstamp (10 bytes), set whenever such a row is added | with that row |
//! | `("filters", id)` | a job filter ([`crate::filters`]) | a change of the filter |
//! | `("filters_vs")` | versionstamp (10 bytes) of the filters | with the filters |
//! | `("paused", type, order, id)` | the filter that paused the job, and the version of the filters then (JSON) | with the record |
//! | `("limited", kind, bucket, type, limit, tenant, priority, order, id)` | a limited job ([`crate::concurrency`]); the filters' version | with it |
//! | `("rates", kind, bucket, type, id)` | a running job of the bucket, and its claim (JSON): a concurrency limit; the kind is `filter` or `reason` | the claim's holder |
//! | `("rate_guard", n)` | a claim of some bucket (JSON): claims of one bucket with a concurrency limit conflict here | with the claim |
//! | `("roomy", type, kind, bucket)` | versionstamp (10 bytes): the bucket may have room for jobs of the type | a release, or a limited job |
//! | `("roomy", type, "timed", at, bucket)` | the period of the bucket's rate, in µs (JSON): it has room for jobs of the type then ([`crate::rates`]) | a limited job, or a pass |
//! | `("start_counts", bucket)` | how many jobs of the bucket have started (JSON): claims of one bucket conflict here | with the claim |
//! | `("starts", bucket, n)` | when its n-th start was, and those before it after the last such row, in µs (JSON) | with the claim |
//! | `("unmarked", kind, bucket)` | the last type that is marked (JSON): the bucket may have room for jobs of several types | a release |
//! | `("counts", type, tenant)` | numbers of jobs by place ([`crate::counts`]): 64 bytes, 40 bits each, lowest first | each transaction that moves a job |
//! | `("counts", type, tenant, …)` | the same for one commit, on an engine that cannot add to a row; the sum counts | with the job |
//! | `("counts_guard")` | versionstamp (10 bytes): transactions that replace such rows by one conflict here | these transactions |
//! | `("event_in", process, n)` | the commit's versionstamp (10 bytes), and its events (a line of JSON each) ([`crate::events`]) | each transaction that changes jobs, while events are recorded |
//! | `("event_wake")` | versionstamp (10 bytes), set whenever such a row is added | with that row |
//! | `("events", last)` | events in order, the last of which has this number (an array) | the node that numbers them |
//! | `("event_head")` | the next number, and the node that numbers events | with these events |
//! | `("event_recording")` | whether events are recorded, until when, and since which number | a client that asks for events |
//! | `("event_nodes", node)` | the recording that the node follows (a number) | that node |
//! | `("webhooks", id)` | a webhook, with its secret ([`crate::webhooks`]) | a client |
//! | `("webhooks", id, "at")` | how far the webhook is | its job |
//! | `("webhooks", id, "more")` | `true`: its job runs once more after its current run | the node that numbers events |
//! | `("webhooks_vs")` | versionstamp (10 bytes) of the webhooks | a change of a webhook, not of how far it is |
//! | `("schedules", name)` | a schedule, without the options of its jobs ([`crate::schedules`]) | a client, and each fire |
//! | `("schedule_options", name, n)` | n-th piece of these options (bytes) | a client |
//! | `("schedule_due", at, name)` | empty; the schedule fires then | with the schedule |
//! | `("schedule_ends", name)` | failures in a row, and the last success of its jobs (JSON) | the transaction that ends one of them |
//! | `("tenant_schedules", tenant, name)` | empty, or `true` while the schedule is paused | with the schedule |
//! | `("schedules_vs")` | versionstamp (10 bytes) of the schedules | a change of a schedule, not a fire |
//! | `("groups", tenant, name)` | a group, without its counts ([`crate::groups`]) | a client, and the end of the group |
//! | `("group_callbacks", tenant, name, on)` | a job that the group adds, with its options | with the group |
//! | `("group_counts", tenant, name@number)` | numbers of its jobs by their ends: 64 bytes, 40 bits each, lowest first | each transaction that moves one of them |
//! | `("group_counts", tenant, name@number, …)` | the same for one commit, on an engine that cannot add to a row; the sum counts | with the job |
//! | `("group_marks", tenant, name)` | the group has not ended; versionstamp (10 bytes): a job of it has ended then; before, a number | with the end of the job |
//! | `("group_wake")` | versionstamp (10 bytes), set with each of these marks | with the mark |
//! | `("group_removals", at, tenant, name)` | empty: at that time, the group is removed | the end of the group |
//! | `("history", seconds, interval, node)` | a sample of a node; without a name, of the store, or of all together ([`crate::history`]) | that node |
//! | `("ended", type, partition, ended, id)` | tenant, and the numbers of the class of its reason and of its task (JSON); by [`crate::ended`] | with the record |
//! | `("active", type, worker, id)` | what the worker reports ([`crate::Active`]) | the claim's holder |
//! | `("deadlines", at, type, id)` | claim (JSON): at that time, servers check the run's timeouts ([`crate::deadlines`]) | with the active row |
//! | `("lifetimes", at, type, id)` | empty: at that time, the job fails, or its record is removed ([`crate::lifetimes`]) | with the record |
//! | `("unique", hash)` | the job that has the key, and until when, for a period ([`crate::unique`]) | with the record |
//! | `("unique_until", at, hash)` | empty: at that time, the period of the key is over | with the row above |
//! | `("unique_secret")` | a random text that is part of all these hashes (a string) | the first job with a key |
//! | `("wake", type)` | versionstamp (10 bytes), set whenever a job becomes pending or delayed | with the record |
//! | `("usage", type, tenant, charger)` | what this charger has charged to the tenant ([`crate::usage::Charged`]) | that charger |
//! | `("run_times", type)` | how long the jobs of its tasks run, as learnt (JSON, µs by task; [`crate::usage::run_times`]) | chargers whose estimates have changed |
//! | `("boost", type)` | how far keys have been lifted ([`crate::usage::Boost`]) | workers that sort by keys |
//! | `("signal", type, worker)` | versionstamp (10 bytes), set whenever one of its jobs must stop | a request to stop a job |
//! | `("claims", type, worker)` | number of the latest claim of a worker that does not count them itself | with its claims |
//! | `("workers", type, worker)` | the registered worker ([`crate::Worker`]); nodes are workers of type `@nodes` | that worker |
//! | `("health", type, worker)` | the heartbeat counter ([`crate::Health`]); stays until the worker's removal is complete | that worker |
//! | `("node_modes", node)` | that the workers of a node take no new jobs ([`crate::modes`]) | an operator |
//! | `("workers_vs", type)` | versionstamp (10 bytes) of the membership | a worker that joins, leaves or is removed |
//! | `("types", type)` | what is stated of all jobs of a type ([`crate::types`]) | a server, for an operator |
//! | `("fleets", name)` | what a supervisor of workers has reported last ([`crate::fleets`]) | a server, for the fleet |
//! | `("databases", db)` | a `_replicator` database ([`replicator::documents`]) | its creation |
//! | `("sequence", db)` | its update sequence, and its number of documents | a write of a document |
//! | `("documents", db, id)` | head of a document, without its body | with the sequence |
//! | `("bodies", db, id, n)` | n-th piece of its body (bytes) | with the head |
//! | `("local", db, id)` | a `_local` document of that database, whole | a write of that document |
//! | `("changes", db, sequence)` | id of the document that changed | with the head |
//! | `("replications", db, id)` | the state of the document's replication, and its job | with the job |
//! | `("mirror", db)` | that the database mirrors one of an upstream CouchDB, and how far ([`replicator::upstream`]) | the upstream's follower |
//! | `("mirror", db, "seen", id)` | the upstream's revision that the document has (JSON) | with the document |
//! | `("mirror", db, "owed", id)` | that the document's state must still be written back | with the state |
//! | `("unresolved", due, db, id)` | empty; its replication id must still be computed, not before `due` | with the state |
//! | `("filter_checks", due, db, id)` | empty; the code of its filter function is checked again at `due` | with the state |
//! | `("unresolved_wake")` | versionstamp (10 bytes), set whenever a row `("unresolved", …)` is added | with the state |
//! | `("config", section, key)` | a setting that all servers share, in the form of their configuration files | a change of the setting |
//! | `("config_vs")` | versionstamp (10 bytes) of the settings | with the settings |
//! | `("users", name)` | a user: the hash of the password, and the scopes ([`identity`]) | a change of the user |
//! | `("tokens", id)` | a token: the hash of its secret, and its scopes | a change of the token |
//! | `("token_uses", id)` | when the token was last used, in µs, to within an hour | a server that was sent the token |
//! | `("session_key")` | the key that signs sessions (a string); where it exists, every request needs an identity | the first identity |
//! | `("sealed")` | `true`: rows with secrets are encrypted, and so is this one, which is not visible ([`crate::sealing`]) | the first open with keys |
//! | `("identities_vs")` | versionstamp (10 bytes) of users and tokens | with them |
//! | `("locks", level, mode, name, type, id)` | a holder ([`crate::locks`]); no name: the whole level; no level: the big lock | the claim's holder |
//! | `("lock_queue", level, name, ticket, type, id)` | a job that waits for the lock or has reserved it, and its mode | the claim's holder, or a pass |
//! | `("lock_wake")` | versionstamp (10 bytes), set whenever one of these rows is removed | with the removal |
//!
//! [`identity`]: https://docs.rs/turnwise-identity
//! [`replicator::documents`]: https://docs.rs/turnwise-replicator
//! [`replicator::upstream`]: https://docs.rs/turnwise-replicator

pub(crate) mod elements;
mod limits;
mod locks;
mod queue_place;
mod table;
pub(crate) mod webhooks;

use std::borrow::Cow;

use bytes::Bytes;
use turnwise_store::key::{children, pack, successor};
use turnwise_store::tuple::{Element, Subspace, TupleUnpack};
use turnwise_store::{Error, Result};

use crate::parked::Parked;

pub use limits::LimitedPlace;
pub use queue_place::{QueuePlace, SortKey};

/// The version of the table above. turnwise does not open a store with a later one.
pub const FORMAT_VERSION: u32 = 1;

/// A range of keys, `[begin, end)`.
pub type KeyRange = (Bytes, Bytes);

/// Builds every key, under one subspace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keyspace {
    pub(crate) space: Subspace,
}

impl Default for Keyspace {
    fn default() -> Self {
        Keyspace { space: Subspace::from(("turnwise",)) }
    }
}

impl Keyspace {
    /// The elements of a key, without the subspace. `None` if the key is not in the subspace.
    pub(crate) fn unpack<'a>(&self, key: &'a [u8]) -> Option<Vec<Element<'a>>> {
        self.space.unpack(key).ok()
    }

    /// The elements of a key of which a reader knows the family.
    pub(crate) fn read<'a, T: TupleUnpack<'a>>(&self, key: &'a [u8]) -> Result<T> {
        self.space.unpack(key).map_err(|_| self.unreadable(key))
    }

    /// The error of a reader that meets another key than one of its index.
    pub(crate) fn unreadable(&self, key: &[u8]) -> Error {
        Error::Corrupt(format!("{} key: not of its index", self.family(key).unwrap_or_default()))
    }

    /// The first element of a key: the family of its row.
    pub fn family<'a>(&self, key: &'a [u8]) -> Option<Cow<'a, str>> {
        match self.unpack(key)?.into_iter().next()? {
            Element::String(family) => Some(family),
            _ => None,
        }
    }

    /// All rows of a family.
    pub fn family_range(&self, family: &str) -> KeyRange {
        let (begin, end) = children(&self.space, &(family,));
        // A family may be one row, whose key has no further elements.
        (pack(&self.space, &(family,)).min(begin), end)
    }

    /// Whether this is a key of this keyspace, of any version.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.space.is_start_of(key)
    }

    /// The jobs that fail, and the records that are removed, up to `until_us`, earliest first.
    pub fn lifetimes_until(&self, until_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("lifetimes",));
        (begin, children(&self.space, &("lifetimes", until_us)).1)
    }

    /// The schedules that fire up to `until_us`, earliest first.
    pub fn schedules_due_until(&self, until_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("schedule_due",));
        (begin, children(&self.space, &("schedule_due", until_us)).1)
    }

    /// The groups that are removed up to `until_us`, earliest first.
    pub fn group_removals_until(&self, until_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("group_removals",));
        (begin, children(&self.space, &("group_removals", until_us)).1)
    }

    /// The keys whose periods are over at `until_us`, earliest first.
    pub fn unique_over(&self, until_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("unique_until",));
        (begin, children(&self.space, &("unique_until", until_us)).1)
    }

    /// The runs that servers must check up to `until_us`, earliest first.
    pub fn deadlines_until(&self, until_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("deadlines",));
        (begin, children(&self.space, &("deadlines", until_us)).1)
    }

    /// The rows of numbered events from this number on; the first row may begin before it.
    pub fn events_from(&self, first: u64) -> KeyRange {
        (self.events_until(first), self.events().1)
    }

    /// Group, key and job id of a key of [`Keyspace::parked`] or [`Keyspace::unwatched`].
    pub fn parse_parked(&self, key: &[u8]) -> Result<(Parked, String)> {
        let (_, _, group, key, id): (Element<'_>, Element<'_>, String, String, String) = self.read(key)?;
        Ok((Parked { group, key }, id))
    }

    /// Type and tenant of a key of [`Keyspace::counts`], or tenant and group of one of [`Keyspace::all_group_counts`].
    pub fn parse_counts(&self, key: &[u8]) -> Result<(String, String)> {
        let elements = self.unpack(key).unwrap_or_default();
        match elements.get(1..3) {
            Some([Element::String(job_type), Element::String(tenant)]) => {
                Ok((job_type.as_ref().to_owned(), tenant.as_ref().to_owned()))
            }
            _ => Err(self.unreadable(key)),
        }
    }
}

/// The rows of a range behind this row, if there is one.
pub(crate) fn behind((begin, end): KeyRange, row: Option<Bytes>) -> KeyRange {
    (row.map_or(begin, |row| successor(&row)), end)
}
