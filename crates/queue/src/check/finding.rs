//! The invariants, what their violations mean, and what can be done.

use std::fmt;

/// Declares the invariants, each with what must hold, what a violation means, and what can be done.
macro_rules! invariants {
    ($($(#[doc = $doc:literal])* $name:ident: $holds:literal, $means:literal, $remedy:literal;)*) => {
        /// What must hold of the rows of a store.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Invariant {
            $($(#[doc = $doc])* $name,)*
        }

        impl Invariant {
            /// All of them.
            pub const ALL: &[Invariant] = &[$(Invariant::$name,)*];

            /// What must hold, as a sentence.
            pub fn holds(self) -> &'static str {
                match self { $(Invariant::$name => $holds,)* }
            }

            /// What a violation means.
            pub fn means(self) -> &'static str {
                match self { $(Invariant::$name => $means,)* }
            }

            /// What can be done about a violation.
            pub fn remedy(self) -> &'static str {
                match self { $(Invariant::$name => $remedy,)* }
            }
        }
    };
}

invariants! {
    /// A value matches what its key promises.
    Readable: "rows can be read",
        "whoever needs this row fails with `corrupt`; the rest of the store is not affected",
        "compare the row with `turnwise store dump`; restore it from a backup, or clear it if it can be done without";
    /// A key belongs to the keyspace.
    Known: "every row is known",
        "another program, or a newer release, has written under this store's prefix",
        "if a newer release shares the store, check with that one; otherwise give the other program a prefix of its own";
    /// The format row names this release's format.
    Format: "the store is in this release's format",
        "no server of this release starts on it",
        "an unfinished copy: run `turnwise store copy` again; another version: use the release that wrote it";
    /// The state in the record agrees with the index rows.
    OnePlace: "a job is in one place, the one that its record names",
        "a job that is nowhere never runs again; one in a second place is looked at by workers, who fail on it with `corrupt`",
        "add the job again (`POST /v1/jobs`) if it is nowhere; a stray index row is to be cleared by hand";
    /// A record states that its row has a key only if it has one.
    Keyed: "a job that is sorted by a key is pending and has one",
        "the job's row in the queue is not where its record says: claiming the job leaves the row behind",
        "remove the record and its pending row by hand and add the job again";
    /// A parked job has the row that wakes it, and such a row has its job.
    Parked: "a parked job has its row, and a parked row its job",
        "no news wake the job: it runs again when its time has come, hours later",
        "`turnwise jobs retry`, or write its document again; a stray row is cleared by hand and does no harm";
    /// A lock's rows agree with the records of the jobs that hold it, wait for it, or have reserved it.
    LockAgrees: "the locks of a job are those that its record names",
        "a lock that nobody gives back keeps others waiting for ever; one without its row keeps nobody out",
        "restart the job's worker if it runs: its claim ends, and with it its locks; a row without a job is cleared by hand";
    /// Locks exclude the jobs that they must.
    LockExcludes: "no two jobs hold what does not go together",
        "two jobs work at the same time on what only one of them may touch",
        "cancel one of the two (`turnwise locks` names them), and look at what they did";
    /// Units in use do not exceed the capacity.
    LockCapacity: "no more units are held than there are",
        "a resource is used by more jobs at once than it can take",
        "cancel one of the holders (`turnwise locks` names them)";
    /// A job's rows in buckets agree with its record.
    RateAgrees: "the places that a job has in buckets are those that its record names",
        "a place that nobody gives back keeps another job of the bucket from starting for ever",
        "restart the job's worker if it runs: its claim ends, and with it its places; a row without a job is cleared by hand";
    /// No more jobs of a bucket run than allowed.
    RateHolds: "no more jobs of a bucket run than the limit of one of them",
        "what the limit was to protect is used by more jobs at once than it can take",
        "cancel some of them (`turnwise jobs list --state running`)";
    /// Limited jobs that could run are checked by a pass.
    RateMarked: "a bucket with room that holds jobs back is marked",
        "nobody looks at these jobs until one more of the bucket ends or is held back",
        "`turnwise jobs retry` puts one of them into the queue, and its end lets the others go";
    /// A run whose timeouts servers enforce is in their index.
    DeadlineAgrees: "a run is looked at when its active row says so",
        "a run that hangs may keep its job; a stray row costs each look at deadlines a little",
        "restart the job's worker if it runs; a row without a run is cleared by hand";
    /// Rows in both directions, their number, and an end that will update the job.
    WaitsFor: "what a job waits for is in rows, both ways, and knows of it",
        "the job waits for ever, or starts before what it was to wait for has ended",
        "`turnwise jobs retry` starts the job without waiting any longer; add it again to wait anew";
    /// Workers read the queues of the tenants that wait.
    TenantWaits: "a tenant with pending jobs is among those that wait",
        "nobody looks at the tenant's queue: its jobs do not start until one more is added",
        "add any job of this type and tenant, and remove it again";
    /// A charge is a sum of times.
    Charged: "what was charged to a tenant is not negative",
        "the tenant gets more than its share, or less, until the row is forgotten",
        "clear the row by hand; the tenant is charged anew";
    /// No index row or piece of options without a record.
    Owned: "nothing belongs to no job",
        "a row was left behind by a job that is gone; in `pending`, `delayed` or `ended` a worker fails on it with `corrupt`",
        "clear the row by hand, or add a job with this type and id and remove it";
    /// A running job's worker still has rows.
    HolderKnown: "a claim's worker is known",
        "no neighbour watches a worker that has no rows, so nobody ever gives this job back",
        "remove the record and its active row by hand and add the job again";
    /// The active row carries the claim and the flags of the record.
    ActiveAgrees: "an active row agrees with its record",
        "the worker's reports are refused, or a request to cancel does not reach it",
        "restart the worker: its jobs are given back and claimed anew";
    /// Options are in the record or in consecutive pieces.
    OptionsWhole: "a job's options are whole",
        "the job cannot be started: its options cannot be read",
        "add the job again with its options";
    /// No two claims of a worker have the same number.
    ClaimUnique: "no claim is given twice",
        "two jobs run under one claim: the end of one can be taken for the end of the other",
        "restart the worker";
    /// A counted claim is not above its counter.
    ClaimCounted: "a claim's number was counted",
        "the worker may be given the same number once more",
        "restart the worker: it registers anew, and its numbers begin anew";
    /// A member can be watched.
    MemberHealthy: "a member has a health counter",
        "nobody watches the worker, and it cannot ping: it halts",
        "restart the worker; clear its row in `workers` by hand if it stays";
    /// A worker's other rows are cleared before its health row.
    Outlived: "no row of a worker outlives it",
        "nobody watches a worker without a health row, so nobody ever clears this row",
        "clear the row by hand; it does no harm";
    /// The membership row agrees with the health row.
    WorkerAgrees: "a health row agrees with its worker's",
        "neighbours judge the worker by another timeout than its own",
        "restart the worker";
    /// There is a versionstamp to watch for changes.
    Stamped: "what is watched is a versionstamp",
        "who waits for this key may miss a change; the next change sets it right",
        "nothing, or restart a worker of the type";
    /// A database's rows have a database.
    DatabaseThere: "documents belong to a database",
        "a deleted database has left rows behind; one of the same name would show them",
        "create the database and delete it again";
    /// The counters agree with the rows.
    Counted: "a database's counters agree with its documents",
        "`doc_count`, `doc_del_count` or `update_seq` are wrong; a changes feed may skip or repeat",
        "copy the documents to a new database";
    /// Every document has one change row.
    Changed: "a document is in the changes once, at its sequence",
        "changes feeds miss the document, or fail on a row that names none",
        "write the document again";
    /// All pieces of the body exist.
    BodyWhole: "a document's body is whole",
        "the document cannot be read",
        "write the document again, with its current revision";
    /// A document's replication exists, and is of its current revision.
    Scheduled: "a document has its replication, and a replication its document",
        "the document is not replicated, or `_scheduler/docs` shows one that is not there",
        "write the document again";
    /// A row that is due is in the index, and the reverse.
    Resolved: "what is to be resolved is among the unresolved",
        "the document waits for ever for its replication id",
        "write the document again; an entry without a row is cleared by the next server that looks";
    /// Document and job name each other.
    DocumentsJob: "a document's job is there, and belongs to it",
        "the replication does not run, or runs for a document that does not know it",
        "write the document again; remove a job without a document (`turnwise jobs`)";
}

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant.
    pub invariant: Invariant,
    /// The key that it concerns, as text.
    pub key: String,
    /// The problem; without secrets.
    pub problem: String,
}

impl Finding {
    /// A finding about a key.
    pub fn new(invariant: Invariant, key: &[u8], problem: impl Into<String>) -> Self {
        Finding { invariant, key: super::key_text(key), problem: problem.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.key, self.invariant.holds(), self.problem)
    }
}
