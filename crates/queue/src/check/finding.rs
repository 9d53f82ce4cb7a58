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
            /// All invariants.
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
        "every operation that needs this row fails with `corrupt`; the rest of the store is not affected",
        "compare the row with `turnwise store dump`; restore it from a backup, or clear it if nothing needs it";
    /// A key belongs to the keyspace.
    Known: "this release knows the key of every row",
        "another program, or a newer release, has written under this store's prefix",
        "if a newer release shares the store, run its `turnwise store check`; otherwise give the other program its own prefix";
    /// The format row names this release's format.
    Format: "the store is in this release's format",
        "no server of this release starts on it",
        "for an unfinished copy, run `turnwise store copy` again; for another version, use the release that wrote it";
    /// The state in the record agrees with the index rows.
    OnePlace: "a job is in one place, the one that its record names",
        "a job without the row of its place never runs again; workers fail with `corrupt` on a row of another place",
        "add the job again (`POST /v1/jobs`) if its row is missing; clear a row of another place by hand";
    /// What a row says about its job is what the record says.
    RowAgrees: "the row of a job's place agrees with the record about tenant and reason",
        "lists and counts by tenant or by reason leave the job out, or show it in the wrong place; it runs as usual",
        "retry the job or add it again; for an ended job, remove it (`turnwise jobs remove`)";
    /// The rows of a job's tags are those of its record.
    TagAgrees: "a job's rows of tags are those that its record names",
        "lists and conditions by tag leave the job out, or read a row in vain; it runs as usual",
        "add the job again with other tags, and then with its own; clear a row that its record does not name by hand";
    /// A record states that its row has a key only if it has one.
    Keyed: "a pending job that is sorted by a key has a key",
        "the job's row in the queue is not where its record says: a claim of the job leaves the row behind",
        "clear the record and its pending row by hand, and add the job again";
    /// A parked job has the row that wakes it, and such a row has its job.
    Parked: "a parked job has a `parked` row, and each such row has its job",
        "a change does not wake the job: it runs again when its time has come, hours later",
        "retry the job (`turnwise jobs retry`), or write its document again; a row without a job does no harm: clear it by hand";
    /// A lock's rows agree with the records of the jobs that hold it, wait for it, or have reserved it.
    LockAgrees: "the rows of a job's locks are those that its record names",
        "a lock that no claim releases blocks other jobs for ever; a lock without its row excludes no job",
        "if the job runs, restart its worker: the claim ends, which releases its locks; clear a row without a job by hand";
    /// Locks exclude the jobs that they must.
    LockExcludes: "no two jobs hold locks that exclude each other",
        "two jobs use a resource at the same time that only one of them may use",
        "cancel one of the two (`turnwise locks` names them), and check the work of both";
    /// Units in use do not exceed the capacity.
    LockCapacity: "no more units of a resource are held than exist",
        "more jobs use a resource at the same time than it can serve",
        "cancel one of the holders (`turnwise locks` names them)";
    /// A job's rows in buckets agree with its record.
    BucketAgrees: "a job's places in buckets are those that its record names",
        "a place that no claim releases keeps another job of the bucket from starting for ever",
        "if the job runs, restart its worker: the claim ends, which releases its places; clear a row without a job by hand";
    /// No more jobs of a bucket run than allowed.
    BucketHolds: "no more jobs of a bucket run than the highest of their limits",
        "more jobs run at the same time than the limit allows for the resource that it protects",
        "cancel some of them (`turnwise jobs list --state running`)";
    /// Limited jobs that could run are checked by a pass.
    BucketMarked: "a bucket with room and limited jobs is marked",
        "no worker checks these jobs until another job of the bucket ends or becomes limited",
        "retry one of them (`turnwise jobs retry`): it returns to the queue, and its end lets the others start";
    /// The rows of a bucket's starts agree with their number.
    StartsCounted: "the starts of a bucket are numbered in the order of their times, up to their count",
        "more or fewer jobs than its rate allows start in the current period",
        "clear the rows of the bucket in `starts` and `start_counts` by hand: its periods begin anew";
    /// A job that fails, or is removed, at a time, is in the index of these times.
    LifetimeAgrees: "the time at which a job fails, or is removed, is the one that its record states",
        "the job waits, or its record stays, for longer than it states; a row without a job costs each check a little",
        "add the job again, or remove it; clear a row without a job by hand";
    /// A key is held by a job that says so, or until a time.
    UniqueAgrees: "a unique key has the job whose record names it, or a time at which it is free",
        "a key without its job keeps other jobs from being added; a job without its key does not, so there may be several",
        "clear a row without a job, or without a time, by hand; a job without its key has one again when it is added again";
    /// A run whose timeouts servers enforce is in their index.
    DeadlineAgrees: "the deadline of a run is the one that its active row names",
        "no server ends the run if it hangs; a row without a run costs each check of deadlines a little",
        "restart the job's worker if it runs; clear a row without a run by hand";
    /// A dependency has rows in both directions, the record counts them, and the end of the dependency will update the job.
    WaitsFor: "a dependency has two rows, and its end will update the job",
        "the job waits for ever, or starts before its dependencies have ended",
        "retry the job (`turnwise jobs retry`) to start it without waiting any longer; add it again to wait again";
    /// A record states whether it has followers, and each job that is to get a result is one.
    FollowerKnown: "a job that is to get a result has a row at the job before it, whose record says so",
        "the result of the job may be removed before a job that is to get it has ended, or a row stays for ever",
        "add the jobs again that get the result; clear a row without a record, or without a follower, by hand";
    /// Workers read the queues of the tenants that wait.
    TenantWaits: "a tenant with pending jobs has a `waiting` row",
        "no worker reads the tenant's queue: its jobs do not start until another one is added",
        "add any job of this type and tenant, and remove it again";
    /// The counts of a type and tenant are those of its jobs.
    JobsCounted: "the counts of jobs are those of the jobs",
        "`turnwise jobs count`, `top`, metrics and the limit of waiting jobs are wrong for this tenant; jobs run as usual",
        "stop all nodes, and run `turnwise store recount`";
    /// The rows of a schedule are those that its own row names.
    ScheduleAgrees: "a schedule has the rows that its own row names, and no others",
        "a schedule without its row among the due ones never fires; its jobs cannot be made without all pieces of their options",
        "write the schedule again (`turnwise schedules add`); clear a row without a schedule by hand";
    /// The counts of a group are those of its jobs.
    GroupCounted: "the counts of a group are those of its jobs",
        "the group ends before its last job has ended, or never; its jobs run as usual",
        "stop all nodes, and run `turnwise store recount`";
    /// The rows of a group are those that its own row names.
    GroupAgrees: "a group has the rows that its own row names, and no others",
        "a group without its mark does not end, and calls no job; one without its time of removal is kept for ever",
        "close the group again (`turnwise groups close`), or remove it; clear a row without a group by hand";
    /// A charge is a sum of times.
    Charged: "what was charged to a tenant is not negative",
        "the tenant gets more or less than its share until the row is cleared",
        "clear the row by hand; the tenant is then charged from zero";
    /// No index row, piece of options or row of output without a record.
    Owned: "every row of a job has a record",
        "a job that was removed has left a row behind; in `pending`, `delayed` or `ended` a worker fails on it with `corrupt`",
        "clear the row by hand, or add a job with this type and id and remove it";
    /// A running job's worker still has rows.
    HolderKnown: "the worker of every claim has rows",
        "no neighbour watches a worker that has no rows, so no process ever takes this job back",
        "clear the record and its active row by hand, and add the job again";
    /// The active row carries the claim and the flags of the record.
    ActiveAgrees: "an active row agrees with its record",
        "the worker's reports are refused, or a request to cancel does not reach it",
        "restart the worker: its jobs are given back and claimed again";
    /// Options are in the record or in consecutive pieces.
    OptionsWhole: "a job's options are complete",
        "the job cannot start, because its options cannot be read",
        "add the job again with its options";
    /// A record states whether there is output, and how large the result is.
    OutputWhole: "a job's output is complete",
        "a result cannot be read, or rows stay when the job is removed",
        "remove the job, or add it again";
    /// No two claims of a worker have the same number.
    ClaimUnique: "a worker uses the number of a claim once",
        "two jobs run under one claim: the end of one can be taken for the end of the other",
        "restart the worker";
    /// A counted claim is not above its counter.
    ClaimCounted: "the number of a claim is not above its worker's counter",
        "the worker may get the same number again",
        "restart the worker: it registers under a new id, and its numbers start again";
    /// A member can be watched.
    MemberHealthy: "a member has a health counter",
        "no neighbour watches the worker, and its heartbeats fail: it halts",
        "restart the worker; clear its row in `workers` by hand if it stays";
    /// A worker's other rows are cleared before its health row.
    Outlived: "the health row of a worker is its last row",
        "no neighbour watches a worker without a health row, so no process ever clears this row",
        "clear the row by hand; it does no harm";
    /// The membership row agrees with the health row.
    WorkerAgrees: "a health row agrees with the row of its worker",
        "neighbours use another timeout for the worker than its own",
        "restart the worker";
    /// There is a versionstamp to watch for changes.
    Stamped: "a watched key holds a versionstamp",
        "a process that watches this key may miss a change; the next change corrects the row",
        "nothing, or restart a worker of the type";
    /// A database's rows have a database.
    DatabaseThere: "documents belong to a database that exists",
        "a deleted database has left rows behind; a new one of the same name would show them",
        "create the database and delete it again";
    /// The counters agree with the rows.
    Counted: "a database's counters agree with its documents",
        "`doc_count`, `doc_del_count` or `update_seq` are wrong; a changes feed may skip or repeat changes",
        "copy the documents to a new database";
    /// Every document has one change row.
    Changed: "a document has one change row, at its sequence",
        "changes feeds miss the document, or fail on a row whose document does not exist",
        "write the document again";
    /// All pieces of the body exist.
    BodyWhole: "a document's body is complete",
        "the document cannot be read",
        "write the document again, with its current revision";
    /// A document's replication exists, and is of its current revision.
    Scheduled: "a document has its replication, and a replication its document",
        "the document is not replicated, or `_scheduler/docs` shows a document that does not exist",
        "write the document again";
    /// A row that is due is in the index, and the reverse.
    Resolved: "a document that waits for its replication id, or for a check of its filter, is in the index",
        "the document waits for ever for its replication id",
        "write the document again; the next server that reads an entry without a row clears it";
    /// Document and job name each other.
    DocumentsJob: "a document's job exists, and belongs to it",
        "the replication does not run, or runs for a document that does not name it",
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
