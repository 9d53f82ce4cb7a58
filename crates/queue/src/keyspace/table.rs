//! The keys whose elements are the arguments of a function.

use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_store::Result;
use turnwise_store::key::{children, pack};
use turnwise_store::tuple::Element;

use super::limits::{TIMED, bucket_kind};
use super::locks::mode_name;
use super::webhooks::{MORE, PROGRESS};
use super::{KeyRange, Keyspace};
use crate::locks::Spot;
use crate::parked::Parked;

/// Declares functions of [`Keyspace`]: each builds a `key` of these elements, or the `range` of all longer keys that begin with them.
macro_rules! keys {
    (@type key) => { Bytes };
    (@type range) => { KeyRange };
    (@build key, $space:expr, $elements:expr) => { pack($space, $elements) };
    (@build range, $space:expr, $elements:expr) => { children($space, $elements) };
    ($($(#[$doc:meta])* $kind:ident $name:ident($($argument:ident: $type:ty),*) = $elements:tt;)+) => {
        impl Keyspace {
            $($(#[$doc])*
            pub fn $name(&self $(, $argument: $type)*) -> keys!(@type $kind) {
                keys!(@build $kind, &self.space, &$elements)
            })+
        }
    };
}

/// Declares functions of [`Keyspace`] that read the last elements of keys. The reader knows those before them, a `_` each.
macro_rules! parsers {
    (@skipped _) => { Element<'_> };
    (@all $one:ty) => { $one };
    (@all $($many:ty),+) => { ($($many),+) };
    (@found $one:ident) => { $one };
    (@found $($many:ident),+) => { ($($many),+) };
    ($($(#[$doc:meta])* $name:ident($($skipped:tt),+; $($found:ident: $type:ty),+);)+) => {
        impl Keyspace {
            $($(#[$doc])*
            pub fn $name(&self, key: &[u8]) -> Result<parsers!(@all $($type),+)> {
                let ($($skipped,)+ $($found),+): ($(parsers!(@skipped $skipped),)+ $($type),+) = self.read(key)?;
                Ok(parsers!(@found $($found),+))
            })+
        }
    };
}

keys! {
    /// The version of the keyspace.
    key format() = ("format",);
    /// The server's UUID.
    key server_uuid() = ("server", "uuid");
    /// The latest time that any node has used.
    key clock() = ("clock",);

    /// A job record.
    key job(job_type: &str, id: &str) = ("jobs", job_type, id);
    /// All job records of a type.
    range jobs(job_type: &str) = ("jobs", job_type);
    /// All job records of all types.
    range all_jobs() = ("jobs",);
    /// The n-th piece of a job's options.
    key options_piece(job_type: &str, id: &str, n: u32) = ("options", job_type, id, n);
    /// All pieces of a job's options.
    range options(job_type: &str, id: &str) = ("options", job_type, id);
    /// A row of a job's output, of one kind.
    key output_row(job_type: &str, id: &str, kind: &str, n: i64) = ("output", job_type, id, kind, n);
    /// The rows of one kind of a job's output.
    range output_of(job_type: &str, id: &str, kind: &str) = ("output", job_type, id, kind);
    /// Which lines a job's log has.
    key log_head(job_type: &str, id: &str) = ("logs", job_type, id);
    /// The same of all jobs, by type and id.
    range log_heads() = ("logs",);
    /// All rows of a job's output, except the head of its log.
    range output(job_type: &str, id: &str) = ("output", job_type, id);

    /// The queues of all tenants of a type, by tenant.
    range pending(job_type: &str) = ("pending", job_type);
    /// The queue of one tenant, in the order in which its jobs run.
    range pending_of(job_type: &str, tenant: &str) = ("pending", job_type, tenant);
    /// The part of that queue whose jobs are of one priority and are not sorted by keys, in the order of time.
    range pending_in(job_type: &str, tenant: &str, priority: i8) = ("pending", job_type, tenant, i64::from(priority));
    /// The mark that a tenant may have pending jobs.
    key waiting_entry(job_type: &str, tenant: &str) = ("waiting", job_type, tenant);
    /// The tenants of a type that may have pending jobs, by name.
    range waiting(job_type: &str) = ("waiting", job_type);
    /// What `charger` has charged to a tenant.
    key usage_entry(job_type: &str, tenant: &str, charger: &str) = ("usage", job_type, tenant, charger);
    /// What was charged to the tenants of a type, by tenant.
    range usage(job_type: &str) = ("usage", job_type);
    /// What was charged to one tenant.
    range usage_of(job_type: &str, tenant: &str) = ("usage", job_type, tenant);
    /// How long the jobs of a type's tasks run.
    key run_times(job_type: &str) = ("run_times", job_type);
    /// How far the keys of a type have been lifted.
    key boost(job_type: &str) = ("boost", job_type);

    /// The row of a delayed job.
    key delayed_entry(job_type: &str, not_before_us: i64, id: &str) = ("delayed", job_type, not_before_us, id);
    /// The delayed jobs of a type, earliest due first.
    range delayed(job_type: &str) = ("delayed", job_type);
    /// The row of a parked job.
    key parked_entry(job_type: &str, at: &Parked, id: &str) = ("parked", job_type, &at.group, &at.key, id);
    /// The parked jobs of a type, by group.
    range parked(job_type: &str) = ("parked", job_type);
    /// The parked jobs of a group, by key.
    range parked_of(job_type: &str, group: &str) = ("parked", job_type, group);
    /// The jobs that are parked at one key.
    range parked_at(job_type: &str, group: &str, key: &str) = ("parked", job_type, group, key);
    /// The mark that no watcher has checked a job since it was parked.
    key unwatched_entry(job_type: &str, at: &Parked, id: &str) = ("unwatched", job_type, &at.group, &at.key, id);
    /// The parked jobs of a type that no watcher has checked yet, by group.
    range unwatched(job_type: &str) = ("unwatched", job_type);
    /// The same for one group.
    range unwatched_of(job_type: &str, group: &str) = ("unwatched", job_type, group);
    /// Changes whenever a row is added to [`Keyspace::unwatched`].
    key unwatched_wake(job_type: &str) = ("unwatched_wake", job_type);
    /// The row of a job that has ended.
    key ended_entry(job_type: &str, partition: u16, ended_us: i64, id: &str) =
        ("ended", job_type, i64::from(partition), ended_us, id);
    /// The jobs of a type that have ended, by partition.
    range ended(job_type: &str) = ("ended", job_type);

    /// The row of a job's tag.
    key tag_entry(job_type: &str, tag: &str, tenant: &str, id: &str) = ("tags", job_type, tag, tenant, id);
    /// The jobs of a type with a tag, by tenant.
    range tagged(job_type: &str, tag: &str) = ("tags", job_type, tag);
    /// Those of one tenant, by id.
    range tagged_of(job_type: &str, tag: &str, tenant: &str) = ("tags", job_type, tag, tenant);

    /// The row of a blocked job.
    key blocked_entry(job_type: &str, id: &str) = ("blocked", job_type, id);
    /// The blocked jobs of a type, by id.
    range blocked(job_type: &str) = ("blocked", job_type);
    /// The row of one dependency of a job.
    key after_entry(job_type: &str, id: &str, on: (&str, &str)) = ("after", job_type, id, on.0, on.1);
    /// The dependencies of a job, by type and id.
    range after(job_type: &str, id: &str) = ("after", job_type, id);
    /// The row of one dependent of a job.
    key dependents_entry(on: (&str, &str), group: i64, job_type: &str, id: &str) =
        ("dependents", on.0, on.1, group, job_type, id);
    /// The dependents of a job that are in one group.
    range dependents(on: (&str, &str), group: i64) = ("dependents", on.0, on.1, group);
    /// The row of one follower of a job.
    key follower(on: (&str, &str), job_type: &str, id: &str) = ("followers", on.0, on.1, job_type, id);
    /// The followers of a job, by type and id.
    range followers(job_type: &str, id: &str) = ("followers", job_type, id);
    /// The row of a group whose dependents are not all updated yet.
    key unsettled_entry(on: (&str, &str), group: i64) = ("unsettled", on.0, on.1, group);
    /// All groups whose dependents are not all updated yet.
    range unsettled() = ("unsettled",);
    /// The row on which adds that search for a cycle conflict.
    key after_guard() = ("after_guard",);
    /// Changes whenever a row is added to [`Keyspace::unsettled`] or [`Keyspace::unmarked`].
    key unsettled_wake() = ("unsettled_wake",);

    /// A job filter.
    key filter(id: &str) = ("filters", id);
    /// All job filters, by name.
    range filters() = ("filters",);
    /// The versionstamp of the job filters.
    key filters_versionstamp() = ("filters_vs",);
    /// The row of a job that a filter has paused.
    key paused_entry(job_type: &str, order_us: i64, id: &str) = ("paused", job_type, order_us, id);
    /// All paused jobs, by type, in the order of their queues.
    range paused() = ("paused",);
    /// The same for one type.
    range paused_of(job_type: &str) = ("paused", job_type);
    /// All jobs that buckets limit, by bucket.
    range limited() = ("limited",);
    /// All jobs that a bucket limits.
    range limited_in(bucket: &Bucket) = ("limited", bucket_kind(bucket), bucket.name());
    /// The limited jobs of one type in a bucket.
    range limited_of(bucket: &Bucket, job_type: &str) = ("limited", bucket_kind(bucket), bucket.name(), job_type);
    /// The limited jobs of one type that obey one limit.
    range limited_by(limit: &Limit, job_type: &str) =
        ("limited", bucket_kind(&limit.bucket), limit.bucket.name(), job_type, limit.most);
    /// The same for one tenant, in the order of its queue.
    range limited_for(limit: &Limit, job_type: &str, tenant: &str) =
        ("limited", bucket_kind(&limit.bucket), limit.bucket.name(), job_type, limit.most, tenant);
    /// The row of a running job of a bucket.
    key bucket_holder(bucket: &Bucket, job_type: &str, id: &str) =
        ("rates", bucket_kind(bucket), bucket.name(), job_type, id);
    /// The running jobs of a bucket.
    range bucket_holders(bucket: &Bucket) = ("rates", bucket_kind(bucket), bucket.name());
    /// The row on which claims of a bucket conflict.
    key bucket_guard(guard: u64) = ("rate_guard", guard);
    /// The mark of a bucket that may have room for its limited jobs of a type.
    key roomy_entry(job_type: &str, bucket: &Bucket) = ("roomy", job_type, bucket_kind(bucket), bucket.name());
    /// The mark of a bucket of starts that has room at this time for its limited jobs of a type.
    key roomy_at(job_type: &str, at_us: i64, name: &str) = ("roomy", job_type, TIMED, at_us, name);
    /// All marks of that kind of a type, earliest first.
    range roomy_in_time(job_type: &str) = ("roomy", job_type, TIMED);
    /// All marks of a type; those with a time are the last ones.
    range roomy(job_type: &str) = ("roomy", job_type);
    /// The number of starts of a bucket.
    key start_count(name: &str) = ("start_counts", name);
    /// The same of all buckets.
    range start_counts() = ("start_counts",);
    /// When the bucket's starts up to this number were, above the row before it.
    key start_entry(name: &str, until: u64) = ("starts", name, until);
    /// The last starts of a bucket, in their order.
    range starts(name: &str) = ("starts", name);
    /// The row of a bucket that must be marked for all types of its limited jobs.
    key unmarked_entry(bucket: &Bucket) = ("unmarked", bucket_kind(bucket), bucket.name());
    /// All buckets that must still be marked.
    range unmarked() = ("unmarked",);

    /// The row of a job that holds a lock.
    key lock_holder(spot: &Spot, mode: Mode, job_type: &str, id: &str) =
        ("locks", spot.level.as_deref(), mode_name(mode), spot.name.as_deref(), job_type, id);
    /// The holders of a lock in this mode.
    range lock_holders(spot: &Spot, mode: Mode) =
        ("locks", spot.level.as_deref(), mode_name(mode), spot.name.as_deref());
    /// The jobs of a type that hold the big lock in this mode.
    range big_lock_holders_of(mode: Mode, job_type: &str) =
        ("locks", None::<&str>, mode_name(mode), None::<&str>, job_type);
    /// The holders of any lock of a level in this mode.
    range lock_holders_at(level: &str, mode: Mode) = ("locks", Some(level), mode_name(mode));
    /// The holders of all locks: the big lock first, then by level.
    range locks() = ("locks",);
    /// The row of a job that waits for a lock, or has reserved it.
    key lock_queue_entry(spot: &Spot, ticket: i64, job_type: &str, id: &str) =
        ("lock_queue", spot.level.as_deref(), spot.name.as_deref(), ticket, job_type, id);
    /// The queue of a lock, in the order of tickets.
    range lock_queue(spot: &Spot) = ("lock_queue", spot.level.as_deref(), spot.name.as_deref());
    /// The queues of all locks of a level.
    range lock_queues_at(level: &str) = ("lock_queue", Some(level));
    /// The queues of all locks: the big lock first, then by level and name.
    range lock_queues() = ("lock_queue",);
    /// Changes whenever a job may get a lock that it could not get before.
    key lock_wake() = ("lock_wake",);

    /// The number of a worker's latest claim.
    key claim_number(job_type: &str, worker: &str) = ("claims", job_type, worker);
    /// What a worker reports about one of its jobs.
    key active_entry(job_type: &str, worker: &str, id: &str) = ("active", job_type, worker, id);
    /// The jobs of one worker.
    range active_of(job_type: &str, worker: &str) = ("active", job_type, worker);
    /// The jobs of all workers of a type.
    range active(job_type: &str) = ("active", job_type);
    /// The jobs of all workers of all types.
    range all_active() = ("active",);
    /// The row of a job that fails, or whose record is removed, at a time.
    key lifetime_entry(at_us: i64, job_type: &str, id: &str) = ("lifetimes", at_us, job_type, id);
    /// The row of a unique key, named by its hash.
    key unique(hash: &str) = ("unique", hash);
    /// The row of a key whose period ends at a time.
    key unique_until(at_us: i64, hash: &str) = ("unique_until", at_us, hash);
    /// The text that is part of all hashes of unique keys.
    key unique_secret() = ("unique_secret",);
    /// The row of a run that servers check at a time.
    key deadline(at_us: i64, job_type: &str, id: &str) = ("deadlines", at_us, job_type, id);
    /// Changes whenever there may be a job to start.
    key wake(job_type: &str) = ("wake", job_type);
    /// Changes whenever a job of this worker must stop.
    key signal(job_type: &str, worker: &str) = ("signal", job_type, worker);
    /// A registered worker.
    key worker(job_type: &str, worker: &str) = ("workers", job_type, worker);
    /// All registered workers of a type, sorted by id.
    range workers(job_type: &str) = ("workers", job_type);
    /// A worker's health counter.
    key health(job_type: &str, worker: &str) = ("health", job_type, worker);
    /// The health counters of all workers of a type, sorted by worker id.
    range healths(job_type: &str) = ("health", job_type);
    /// The health counters of all workers of all types.
    range all_healths() = ("health",);
    /// The versionstamp of the membership.
    key workers_versionstamp(job_type: &str) = ("workers_vs", job_type);
    /// The versionstamps of the memberships of all types.
    range all_memberships() = ("workers_vs",);
    /// The mode of a node, by its name.
    key node_mode(node: &str) = ("node_modes", node);
    /// The modes of all nodes that are not active, by name.
    range node_modes() = ("node_modes",);
    /// What is stated of all jobs of a type.
    key type_terms(job_type: &str) = ("types", job_type);
    /// What is stated of types, by their names.
    range all_type_terms() = ("types",);
    /// What a fleet has reported.
    key fleet(name: &str) = ("fleets", name);
    /// All fleets, by name.
    range fleets() = ("fleets",);

    /// The counts of a tenant's jobs of one type. Some engines add rows behind this key.
    key counts_of(job_type: &str, tenant: &str) = ("counts", job_type, tenant);
    /// These rows.
    range counts_behind(job_type: &str, tenant: &str) = ("counts", job_type, tenant);
    /// The counts of all tenants of a type.
    range counts(job_type: &str) = ("counts", job_type);
    /// The counts of all types and tenants.
    range all_counts() = ("counts",);
    /// The row on which transactions that fold counts conflict.
    key counts_guard() = ("counts_guard",);

    /// A bulk operation.
    key bulk(id: &str) = ("bulk", id);
    /// All bulk operations, by id.
    range bulks() = ("bulk",);
    /// The id of a bulk operation whose record is gone, and the identity that began it.
    key bulk_used(by: Option<&str>, id: &str) = ("bulk_used", by, id);
    /// All of these.
    range bulks_used() = ("bulk_used",);
    /// Changes whenever a bulk operation begins.
    key bulk_wake() = ("bulk_wake",);

    /// The log of events that have no number yet. Commits add rows behind this key.
    key event_in() = ("event_in",);
    /// The rows of this log.
    range events_in() = ("event_in",);
    /// Changes whenever a row is added to this log.
    key event_wake() = ("event_wake",);
    /// A row of numbered events, the last of which has this number.
    key events_until(last: u64) = ("events", last);
    /// All numbered events.
    range events() = ("events",);
    /// The number of the next event.
    key event_head() = ("event_head",);
    /// Whether events are recorded.
    key event_recording() = ("event_recording",);
    /// Which request to record events a node follows.
    key event_node(node: &str) = ("event_nodes", node);
    /// The same of all nodes.
    range event_nodes() = ("event_nodes",);

    /// A webhook.
    key webhook(id: &str) = ("webhooks", id);
    /// How far a webhook is. It follows the row of the webhook.
    key webhook_progress(id: &str) = ("webhooks", id, PROGRESS);
    /// That the job of a webhook must run once more after its current run.
    key webhook_more(id: &str) = ("webhooks", id, MORE);
    /// All rows of all webhooks, by id, each webhook before its other rows.
    range webhooks() = ("webhooks",);
    /// The versionstamp of the webhooks, without their progress.
    key webhooks_versionstamp() = ("webhooks_vs",);

    /// A schedule.
    key schedule(name: &str) = ("schedules", name);
    /// All schedules, by name.
    range schedules() = ("schedules",);
    /// The n-th piece of the options of a schedule's jobs.
    key schedule_options_piece(name: &str, n: u32) = ("schedule_options", name, n);
    /// All pieces of these options.
    range schedule_options(name: &str) = ("schedule_options", name);
    /// The row of a schedule that fires at a time.
    key schedule_due_entry(at_us: i64, name: &str) = ("schedule_due", at_us, name);
    /// The schedules that fire again, earliest first.
    range schedules_due() = ("schedule_due",);
    /// How the jobs of a schedule have ended.
    key schedule_ends(name: &str) = ("schedule_ends", name);
    /// The mark of a schedule of a tenant.
    key tenant_schedule(tenant: &str, name: &str) = ("tenant_schedules", tenant, name);
    /// The schedules of a tenant, by name.
    range tenant_schedules(tenant: &str) = ("tenant_schedules", tenant);
    /// The schedules of all tenants.
    range all_tenant_schedules() = ("tenant_schedules",);
    /// The versionstamp of the schedules, without their fires.
    key schedules_versionstamp() = ("schedules_vs",);

    /// A group.
    key group(tenant: &str, name: &str) = ("groups", tenant, name);
    /// All groups, by tenant and name.
    range groups() = ("groups",);
    /// The groups of a tenant, by name.
    range groups_of(tenant: &str) = ("groups", tenant);
    /// A job with which a group calls back.
    key group_callback(tenant: &str, name: &str, on: &str) = ("group_callbacks", tenant, name, on);
    /// All of these of a group.
    range group_callbacks(tenant: &str, name: &str) = ("group_callbacks", tenant, name);
    /// The counts of a group, by its name and number in one text. Some engines add rows behind this key.
    key group_counts(tenant: &str, group: &str) = ("group_counts", tenant, group);
    /// These rows.
    range group_counts_behind(tenant: &str, group: &str) = ("group_counts", tenant, group);
    /// The counts of all groups.
    range all_group_counts() = ("group_counts",);
    /// Changes whenever a job of a group ends, or the group is closed.
    key group_mark(tenant: &str, name: &str) = ("group_marks", tenant, name);
    /// The marks of all groups that have not ended.
    range group_marks() = ("group_marks",);
    /// Those of one tenant.
    range group_marks_of(tenant: &str) = ("group_marks", tenant);
    /// Changes whenever one of these marks changes.
    key group_wake() = ("group_wake",);
    /// The row of a group that is removed at a time.
    key group_removal(at_us: i64, tenant: &str, name: &str) = ("group_removals", at_us, tenant, name);
    /// The groups that are removed, earliest first.
    range group_removals() = ("group_removals",);

    /// A setting that all servers share.
    key config_entry(section: &str, key: &str) = ("config", section, key);
    /// All settings that servers share, by section.
    range config() = ("config",);
    /// The versionstamp of the settings that servers share.
    key config_versionstamp() = ("config_vs",);

    /// A user.
    key user(name: &str) = ("users", name);
    /// All users, by name.
    range users() = ("users",);
    /// A token.
    key token(id: &str) = ("tokens", id);
    /// All tokens, by id.
    range tokens() = ("tokens",);
    /// When a token was last used.
    key token_use(id: &str) = ("token_uses", id);
    /// The key that signs sessions.
    key session_key() = ("session_key",);
    /// The versionstamp of users and tokens.
    key identities_versionstamp() = ("identities_vs",);
    /// The mark of a store with sealed rows.
    key sealed() = ("sealed",);

    /// A `_replicator` database.
    key database(db: &str) = ("databases", db);
    /// All `_replicator` databases, by name.
    range databases() = ("databases",);
    /// The update sequence of a database.
    key sequence(db: &str) = ("sequence", db);
    /// The head of a document.
    key document(db: &str, id: &str) = ("documents", db, id);
    /// The heads of all documents of a database, by id.
    range documents(db: &str) = ("documents", db);
    /// The n-th piece of a document's body.
    key body_piece(db: &str, id: &str, n: u32) = ("bodies", db, id, n);
    /// All pieces of a document's body.
    range body(db: &str, id: &str) = ("bodies", db, id);
    /// The bodies of all documents of a database.
    range bodies(db: &str) = ("bodies", db);
    /// A `_local` document.
    key local(db: &str, id: &str) = ("local", db, id);
    /// All `_local` documents of a database.
    range locals(db: &str) = ("local", db);
    /// The change with this sequence number.
    key change(db: &str, sequence: i64) = ("changes", db, sequence);
    /// All changes of a database, oldest first.
    range changes(db: &str) = ("changes", db);
    /// The state of a document's replication.
    key replication(db: &str, id: &str) = ("replications", db, id);
    /// The states of the replications of one database, by document id.
    range replications(db: &str) = ("replications", db);
    /// The row of a database that mirrors one of an upstream CouchDB.
    key mirror(db: &str) = ("mirror", db);
    /// All other rows of a mirror.
    range mirror_details(db: &str) = ("mirror", db);
    /// The upstream's revision that a mirrored document has.
    key mirror_seen(db: &str, id: &str) = ("mirror", db, "seen", id);
    /// The row of a mirrored document whose state must still be written back.
    key mirror_owed(db: &str, id: &str) = ("mirror", db, "owed", id);
    /// All states of a mirror that must still be written back, by document id.
    range mirror_all_owed(db: &str) = ("mirror", db, "owed");
    /// A document whose replication id must still be computed.
    key unresolved_entry(due_us: i64, db: &str, id: &str) = ("unresolved", due_us, db, id);
    /// All documents whose replication ids must still be computed, earliest due first.
    range unresolved() = ("unresolved",);
    /// Changes whenever a row is added to [`Keyspace::unresolved`].
    key unresolved_wake() = ("unresolved_wake",);
    /// A document whose job depends on the code of a filter function.
    key filter_check(due_us: i64, db: &str, id: &str) = ("filter_checks", due_us, db, id);
    /// All documents whose filter functions are checked again, earliest due first.
    range filter_checks() = ("filter_checks",);
}

parsers! {
    /// Type and id of a key of [`Keyspace::all_jobs`].
    parse_any_job(_; job_type: String, id: String);
    /// Type and id of a key of [`Keyspace::log_heads`].
    parse_log_head(_; job_type: String, id: String);
    /// The number of a key of [`Keyspace::output_of`].
    parse_output(_, _, _, _; n: i64);
    /// Job id of a key of [`Keyspace::jobs`].
    parse_job(_, _; id: String);
    /// The number of a key of [`Keyspace::starts`].
    parse_start(_, _; until: u64);
    /// The bucket's name of a key of [`Keyspace::start_counts`].
    parse_start_count(_; name: String);
    /// The tenant of a key of [`Keyspace::waiting`].
    parse_waiting(_, _; tenant: String);
    /// Tenant and charger of a key of [`Keyspace::usage`].
    parse_usage(_, _; tenant: String, charger: String);
    /// Due time and job id of a key of [`Keyspace::delayed`].
    parse_delayed(_, _; at_us: i64, id: String);
    /// Tenant and job id of a key of [`Keyspace::tagged`].
    parse_tagged(_, _, _; tenant: String, id: String);
    /// Job id of a key of [`Keyspace::blocked`].
    parse_blocked(_, _; id: String);
    /// Type and id of the dependency that a key of [`Keyspace::after`] names.
    parse_after(_, _, _; on_type: String, on_id: String);
    /// Type and id of the dependent that a key of [`Keyspace::dependents`] names.
    parse_dependents(_, _, _, _; job_type: String, id: String);
    /// Type and id of the follower that a key of [`Keyspace::followers`] names.
    parse_follower(_, _, _; job_type: String, id: String);
    /// Type, id and group of a key of [`Keyspace::unsettled`].
    parse_unsettled(_; on_type: String, on_id: String, group: i64);
    /// The name of a key of [`Keyspace::filters`].
    parse_filter(_; name: String);
    /// Type, time in the queue, and id of a key of [`Keyspace::paused`].
    parse_paused(_; job_type: String, order_us: i64, id: String);
    /// Type, worker and job id of a key of [`Keyspace::all_active`].
    parse_all_active(_; job_type: String, worker: String, id: String);
    /// Worker and job id of a key of [`Keyspace::active`].
    parse_active(_, _; worker: String, id: String);
    /// Time, job type and id of a key of [`Keyspace::lifetimes_until`].
    parse_lifetime(_; at_us: i64, job_type: String, id: String);
    /// Time and hash of a key of [`Keyspace::unique_over`].
    parse_unique_until(_; at_us: i64, hash: String);
    /// Time, job type and id of a key of [`Keyspace::deadlines_until`].
    parse_deadline(_; at_us: i64, job_type: String, id: String);
    /// Worker id of a key of [`Keyspace::workers`].
    parse_worker(_, _; worker: String);
    /// Job type and worker id of a key of [`Keyspace::all_healths`].
    parse_health(_; job_type: String, worker: String);
    /// The name of a node in a key of [`Keyspace::node_modes`].
    parse_node_mode(_; node: String);
    /// The number of the last event in a row of [`Keyspace::events`].
    parse_events(_; last: u64);
    /// The type of a key of [`Keyspace::all_type_terms`].
    parse_type_terms(_; job_type: String);
    /// The name of a key of [`Keyspace::fleets`].
    parse_fleet(_; name: String);
    /// The id of a key of [`Keyspace::bulks`].
    parse_bulk(_; id: String);
    /// The identity and the id of a key of [`Keyspace::bulks_used`].
    parse_bulk_used(_; by: Option<String>, id: String);
    /// The name of a key of [`Keyspace::schedules`].
    parse_schedule(_; name: String);
    /// Time and name of a key of [`Keyspace::schedules_due`].
    parse_schedule_due(_; at_us: i64, name: String);
    /// Tenant and name of a key of [`Keyspace::all_tenant_schedules`].
    parse_tenant_schedule(_; tenant: String, name: String);
    /// Tenant and name of a key of [`Keyspace::groups`] or [`Keyspace::group_marks`].
    parse_group(_; tenant: String, name: String);
    /// Time, tenant and name of a key of [`Keyspace::group_removals`].
    parse_group_removal(_; at_us: i64, tenant: String, name: String);
    /// Section and name of a key of [`Keyspace::config`].
    parse_config(_; section: String, name: String);
    /// The name of a key of [`Keyspace::users`], or the id of a key of [`Keyspace::tokens`].
    parse_identity(_; name: String);
    /// Database name of a key of [`Keyspace::databases`].
    parse_database(_; db: String);
    /// Document id of a key of [`Keyspace::documents`].
    parse_document(_, _; id: String);
    /// Database and document id of a key of [`Keyspace::replications`].
    parse_replication(_; db: String, id: String);
    /// Document id of a key of [`Keyspace::mirror_all_owed`].
    parse_mirror_owed(_, _, _; id: String);
    /// Due time, database and document id of a key of [`Keyspace::unresolved`].
    parse_unresolved(_; due_us: i64, db: String, id: String);
    /// Due time, database and document id of a key of [`Keyspace::filter_checks`].
    parse_filter_check(_; due_us: i64, db: String, id: String);
}
