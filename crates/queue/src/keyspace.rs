//! Every key of the system.
//!
//! All under one subspace; keys are tuples, so that a range read of a prefix gives its rows in order.
//! Values are JSON unless the table says otherwise. Times are microseconds since the Unix epoch.
//!
//! | key | value | written by |
//! | --- | --- | --- |
//! | `("format")` | version of this table, or that a copy is under way ([`crate::Format`]) | whoever creates the store |
//! | `("server", "uuid")` | the server's UUID, part of every replication id | whoever creates the store |
//! | `("jobs", type, id)` | the job record ([`crate::Job`]) | everyone, fenced by the claim while it runs |
//! | `("options", type, id, n)` | n-th piece of options too large for the record (bytes) | with the record |
//! | `("pending", type, order, id)` | empty; `order` sorts who runs first | with the record |
//! | `("delayed", type, not_before, id)` | empty; not to be started before that time | with the record |
//! | `("ended", type, ended, id)` | empty; jobs that have ended, the oldest end first | with the record |
//! | `("active", type, worker, id)` | what the worker reports ([`crate::Active`]) | the claim's holder |
//! | `("wake", type)` | versionstamp (10 bytes), new whenever a job becomes pending or delayed | whoever adds |
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
//! | `("unresolved", due, db, id)` | empty; its replication id is still to be found, not before `due` | with the state |
//! | `("unresolved_wake")` | versionstamp (10 bytes), new whenever one is added | with the state |
//! | `("config", section, key)` | a setting that all servers share, as it would stand in their files | whoever changes it |
//! | `("config_vs")` | versionstamp (10 bytes) of the settings | with them |
//!
//! Kept free for what comes: `("usage", type, tenant, worker)`, `("locks", level, resource, …)`.
//!
//! [`replicator::documents`]: https://docs.rs/turnwise-replicator

use bytes::Bytes;
use turnwise_store::key::{children, pack};
use turnwise_store::tuple::{Element, Subspace};

/// The version of the table above. A store with another one is not opened.
pub const FORMAT_VERSION: u32 = 2;

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

    /// A place in the pending queue.
    pub fn pending_entry(&self, job_type: &str, order_us: i64, id: &str) -> Bytes {
        pack(&self.space, &("pending", job_type, order_us, id))
    }

    /// The pending queue of a type, first to run first.
    pub fn pending(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("pending", job_type))
    }

    /// Order and job id of a key of [`Keyspace::pending`].
    pub fn parse_pending(&self, key: &[u8]) -> Option<(i64, String)> {
        let (_, _, order_us, id): (String, String, i64, String) = self.space.unpack(key).ok()?;
        Some((order_us, id))
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
        self.parse_pending(key)
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
        self.parse_pending(key)
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

    /// Worker and job id of a key of [`Keyspace::active`].
    pub fn parse_active(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, _, worker, id): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some((worker, id))
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
