//! The examination of one subject, with all of its rows, in one transaction.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use turnwise_policy::eligibility::concurrency::{Bucket, MAX_LIMIT};
use turnwise_policy::eligibility::rate::MAX_STARTS;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_queue::check::{
    BucketTally, CountTally, Finding, GroupRows, IndexRow, JobKey, JobRows, LockTally, Row, ScheduleRows,
    UniqueTally, WorkerRow, check_awaited, check_claims, check_follows, check_group, check_job,
    check_schedule, check_stamp, check_waiting, check_worker, read_record, unique_holder,
};
use turnwise_queue::groups::GROUP_TAG;
use turnwise_queue::jobs::types_after;
use turnwise_queue::keyspace::KeyRange;
use turnwise_queue::locks::{Held, Spot};
use turnwise_queue::{Active, Job, Keyspace, MAX_AFTER};
use turnwise_replicator::JOB_TYPE;
use turnwise_replicator::check::{
    DocumentKey, DocumentRows, check_database, check_document, check_documents_job, document_of,
};
use turnwise_replicator::doc_processor;
use turnwise_replicator::documents::databases::Database;
use turnwise_replicator::documents::{Counters, Head};
use turnwise_store::key::successor;
use turnwise_store::{Error, Isolation, KeyValue, RangeRead, Result, Store, Transaction};

use crate::scan::PAGE_ROWS;

/// The maximum number of pieces that are read of a value: more than any value has.
const PIECES: usize = 2_000;
/// The maximum number of jobs that are read of a worker: the upper bound of `max_jobs`.
const ACTIVE: usize = 100_000;
/// The maximum number of held locks that are read of one level and mode.
const LOCKS: usize = 100_000;
/// The most marks with a time that are read of one type.
const MARKS: usize = 100_000;
/// The most times of removal that are read of groups.
const REMOVALS: usize = 1_000_000;
/// The number of types that one read returns.
const TYPES: usize = 100;
/// Attempts to count a database's documents in one transaction.
const COUNT_ATTEMPTS: u32 = 3;

/// What a row belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    Job(JobKey),
    /// A worker, by type and id.
    Worker(JobKey),
    Type(String),
    /// A tenant, by type and name.
    Tenant((String, String)),
    /// All locks of a level; `None` is the big lock.
    Locks(Option<String>),
    /// A bucket of jobs whose number is limited.
    Bucket(Bucket),
    /// A schedule, by name.
    Schedule(String),
    /// A group, by tenant and name.
    Group((String, String)),
    /// A unique key that has a period, by its hash.
    Unique(String),
    /// A document of a `_replicator` database.
    Document(DocumentKey),
    /// A replication job, and the document that it belongs to.
    DocumentsJob(String),
}

pub(super) struct Examiner {
    pub(super) store: Store,
    pub(super) keys: Keyspace,
}

async fn get(tx: &Transaction, key: &Bytes) -> Result<Option<Bytes>> {
    tx.get_with(key, Isolation::Snapshot).await
}

async fn range(tx: &Transaction, (begin, end): KeyRange, limit: usize) -> Result<Vec<KeyValue>> {
    tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await
}

async fn read<T: DeserializeOwned>(tx: &Transaction, key: &Bytes) -> Result<Option<T>> {
    Ok(get(tx, key).await?.and_then(|value| serde_json::from_slice(&value).ok()))
}

impl Examiner {
    /// Returns what is wrong with a subject. `seen` holds keys of its rows that cannot be derived from its other rows.
    pub(super) async fn examine(&self, subject: &Subject, seen: &BTreeSet<Bytes>) -> Result<Vec<Finding>> {
        self.store
            .transact(|tx| async move {
                let tx = &tx;
                match subject {
                    Subject::Job(job) => self.job(tx, job, seen).await,
                    Subject::Worker(worker) => self.worker(tx, worker).await,
                    Subject::Type(job_type) => self.job_type(tx, job_type).await,
                    Subject::Tenant(tenant) => self.tenant(tx, tenant).await,
                    Subject::Locks(level) => self.locks(tx, level.as_deref()).await,
                    Subject::Bucket(bucket) => self.bucket(tx, bucket).await,
                    Subject::Schedule(name) => self.schedule(tx, name, seen).await,
                    Subject::Group(group) => self.group(tx, group).await,
                    Subject::Unique(hash) => self.unique(tx, hash, seen).await,
                    Subject::Document(document) => self.document(tx, document, seen).await,
                    Subject::DocumentsJob(id) => self.documents_job(tx, id).await,
                }
            })
            .await
    }

    async fn job(&self, tx: &Transaction, key: &JobKey, seen: &BTreeSet<Bytes>) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        let mut rows = JobRows::default();
        // The pass has reported an unreadable record already, so an error here means only that the record exists.
        let _ = rows.set_record(key, get(tx, &keys.job(&key.0, &key.1)).await?.as_ref());
        for rows_of in [keys.options(&key.0, &key.1), keys.output(&key.0, &key.1)] {
            for (piece, value) in range(tx, rows_of, PIECES).await? {
                let _ = Row::parse(keys, &piece).map(|row| rows.add(row, &value));
            }
        }
        let head = keys.log_head(&key.0, &key.1);
        if let Some(value) = get(tx, &head).await? {
            let _ = Row::parse(keys, &head).map(|row| rows.add(row, &value));
        }
        let named = rows.record.as_ref().map(|job| job.index_row().key(keys, key));
        let parked = rows.record.as_ref().and_then(|job| job.parked());
        let parked = parked.map(|at| keys.parked_entry(&key.0, at, &key.1));
        let record = rows.record.as_ref();
        let held = record.into_iter().flat_map(|job| job.held().into_iter().flat_map(Held::locks));
        let held = held.map(|lock| keys.lock_holder(&lock.spot, lock.mode, &key.0, &key.1));
        let queued = record.into_iter().flat_map(Job::queued);
        let queued = queued.map(|((spot, ticket), _)| keys.lock_queue_entry(&spot, ticket, &key.0, &key.1));
        let locks = held.chain(queued);
        let buckets = record.into_iter().flat_map(|job| job.buckets());
        let buckets = buckets.map(|bucket| keys.bucket_holder(bucket, &key.0, &key.1));
        let deadlines: BTreeSet<Bytes> = rows
            .places
            .iter()
            .filter(|(place, _)| matches!(place, IndexRow::Active(_)))
            .filter_map(|(_, value)| serde_json::from_slice::<Active>(value).ok()?.deadline)
            .map(|deadline| keys.deadline(deadline.at_us, &key.0, &key.1))
            .collect();
        let due = record.and_then(|job| job.due_us).map(|at_us| keys.lifetime_entry(at_us, &key.0, &key.1));
        let tags = record.into_iter().flat_map(|job| job.tag_rows(keys));
        let unique = record.and_then(|job| job.unique_key.as_ref()).map(|unique| keys.unique(&unique.hash));
        let others = locks.chain(buckets).chain(deadlines).chain(due).chain(tags).chain(unique);
        let others: Vec<Bytes> = others.collect();
        for index in seen.iter().chain(&named).chain(&parked).chain(&others) {
            if let Some(row) = Row::parse(keys, index)
                && let Some(value) = get(tx, index).await?
            {
                match row {
                    Row::Unique(hash) if unique_holder(&value).as_ref() == Some(key) => {
                        rows.unique.insert(hash);
                    }
                    Row::Follower(on, follower) if follower == *key => {
                        rows.follows.insert(on, value.is_empty());
                    }
                    row => drop(rows.add(row, &value)),
                }
            }
        }
        for (after, value) in range(tx, keys.after(&key.0, &key.1), MAX_AFTER).await? {
            let _ = Row::parse(keys, &after).map(|row| rows.add(row, &value));
        }
        for (follower, value) in range(tx, keys.followers(&key.0, &key.1), 1).await? {
            let _ = Row::parse(keys, &follower).map(|row| rows.add(row, &value));
        }
        let mut findings = Vec::new();
        for awaited in rows.after.clone() {
            let (on, group) = &awaited;
            let back = keys.dependents_entry((&on.0, &on.1), *group, &key.0, &key.1);
            if get(tx, &back).await?.is_some() {
                rows.back.insert(awaited.clone());
            }
            let record = get(tx, &keys.job(&on.0, &on.1)).await?;
            let record = record.and_then(|value| read_record(on, &value).ok());
            let unsettled = get(tx, &keys.unsettled_entry((&on.0, &on.1), *group)).await?;
            findings.extend(check_awaited(keys, key, &awaited, record.as_ref(), unsettled.is_some()));
        }
        if let Some(job) = &rows.record {
            for input in job.inputs.values() {
                let on = (input.job_type.clone(), input.id.clone());
                let has_row = get(tx, &keys.follower((&on.0, &on.1), &key.0, &key.1)).await?.is_some();
                let other = get(tx, &keys.job(&on.0, &on.1)).await?;
                let other = other.and_then(|value| read_record(&on, &value).ok());
                findings.extend(check_follows(keys, job, input, other.as_ref(), has_row));
            }
        }
        let claim = rows.record.as_ref().and_then(|job| job.claim().cloned());
        let mut holder_rows = BTreeMap::new();
        if let Some(claim) = claim {
            holder_rows = self.worker_rows(tx, &(key.0.clone(), claim.worker)).await?;
        }
        findings.extend(check_job(keys, key, &rows, |_| !holder_rows.is_empty()));
        Ok(findings)
    }

    async fn unique(&self, tx: &Transaction, hash: &str, seen: &BTreeSet<Bytes>) -> Result<Vec<Finding>> {
        let mut tally = UniqueTally::default();
        let row = self.keys.unique(hash);
        for key in seen.iter().chain([&row]) {
            if let (Some(row), Some(value)) = (Row::parse(&self.keys, key), get(tx, key).await?) {
                // The pass has reported an unreadable row already.
                let _ = tally.enter(key, &row, &value);
            }
        }
        Ok(tally.finish(&self.keys))
    }

    async fn worker_rows(&self, tx: &Transaction, worker: &JobKey) -> Result<BTreeMap<WorkerRow, Bytes>> {
        let mut rows = BTreeMap::new();
        for row in [WorkerRow::Member, WorkerRow::Health, WorkerRow::Signal, WorkerRow::Claims] {
            if let Some(value) = get(tx, &row.key(&self.keys, worker)).await? {
                rows.insert(row, value);
            }
        }
        Ok(rows)
    }

    async fn worker(&self, tx: &Transaction, worker: &JobKey) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        let rows = self.worker_rows(tx, worker).await?;
        let mut findings = check_worker(keys, worker, &rows);
        let mut active: BTreeMap<String, Active> = BTreeMap::new();
        for (key, value) in range(tx, keys.active_of(&worker.0, &worker.1), ACTIVE).await? {
            if let (Some(Row::Index(job, IndexRow::Active(_))), Ok(report)) =
                (Row::parse(keys, &key), serde_json::from_slice(&value))
            {
                active.insert(job.1, report);
            }
        }
        let counted = rows.get(&WorkerRow::Claims).and_then(|value| serde_json::from_slice(value).ok());
        findings.extend(check_claims(keys, worker, &active, counted));
        Ok(findings)
    }

    async fn job_type(&self, tx: &Transaction, job_type: &str) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        let mut findings = Vec::new();
        for (stamp, needed_by) in [
            (keys.wake(job_type), [keys.pending(job_type), keys.delayed(job_type)]),
            (keys.workers_versionstamp(job_type), [keys.workers(job_type), keys.healths(job_type)]),
        ] {
            let value = get(tx, &stamp).await?;
            let mut is_needed = value.is_some();
            for rows in needed_by {
                is_needed = is_needed || !range(tx, rows, 1).await?.is_empty();
            }
            if is_needed {
                findings.extend(check_stamp(&stamp, value.as_ref()));
            }
        }
        Ok(findings)
    }

    async fn tenant(&self, tx: &Transaction, (job_type, tenant): &(String, String)) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        if range(tx, keys.pending_of(job_type, tenant), 1).await?.is_empty() {
            return Ok(Vec::new());
        }
        let waiting = keys.waiting_entry(job_type, tenant);
        let value = get(tx, &waiting).await?;
        Ok(check_waiting(&waiting, value.as_ref()).into_iter().collect())
    }

    /// Checks that the locks that are held of a level are compatible.
    async fn locks(&self, tx: &Transaction, level: Option<&str>) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        let (mut tally, mut findings) = (LockTally::default(), Vec::new());
        for mode in [Mode::Exclusive, Mode::Shared] {
            let held = match level {
                Some(level) => keys.lock_holders_at(level, mode),
                None => keys.lock_holders(&Spot::BIG_LOCK, mode),
            };
            for (key, value) in range(tx, held, LOCKS).await? {
                findings.extend(Row::parse(keys, &key).map(|row| tally.enter(&key, &row, &value)));
            }
        }
        findings.push(tally.finish().into_iter().collect());
        Ok(findings.into_iter().flatten().collect())
    }

    /// Checks that no more jobs of a bucket run than its limit allows, and that limited jobs that could run are marked for
    /// the servers.
    async fn bucket(&self, tx: &Transaction, bucket: &Bucket) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        let mut tally = BucketTally::default();
        let mut enter = |rows: &[KeyValue]| {
            for (key, value) in rows {
                let _ = Row::parse(keys, key).map(|row| tally.enter(&row, value));
            }
        };
        enter(&range(tx, keys.bucket_holders(bucket), MAX_LIMIT as usize + 1).await?);
        if let Bucket::Rate(name) = bucket {
            let count = keys.start_count(name);
            if let Some(value) = get(tx, &count).await? {
                enter(&[(count, value)]);
            }
            enter(&range(tx, keys.starts(name), MAX_STARTS as usize + 1).await?);
        }
        // If a job that ends finds limited jobs of several types, it leaves an entry, and the servers mark the types.
        let unmarked = keys.unmarked_entry(bucket);
        if let Some(value) = get(tx, &unmarked).await? {
            enter(&[(unmarked, value)]);
        }
        let (mut begin, end) = keys.limited_in(bucket);
        while let [(first, _)] = &*range(tx, (begin.clone(), end.clone()), 1).await? {
            let Ok((job_type, ..)) = keys.parse_limited(first) else { break };
            let (from, to) = keys.limited_of(bucket, &job_type);
            // The last entry: the limited job with the highest limit.
            let last = RangeRead { begin: from, end: to.clone(), limit: 1, reverse: true };
            enter(&tx.range_with(last, Isolation::Snapshot).await?);
            let mark = keys.roomy_entry(&job_type, bucket);
            if let Some(value) = get(tx, &mark).await? {
                enter(&[(mark, value)]);
            }
            if matches!(bucket, Bucket::Rate(_)) {
                let marks = range(tx, keys.roomy_in_time(&job_type), MARKS).await?;
                let is_of = |key: &Bytes| keys.parse_roomy(key).is_ok_and(|(_, of, _)| of == *bucket);
                enter(&marks.into_iter().filter(|(key, _)| is_of(key)).take(1).collect::<Vec<_>>());
            }
            begin = to;
        }
        Ok(tally.finish(keys))
    }

    async fn schedule(&self, tx: &Transaction, name: &str, seen: &BTreeSet<Bytes>) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        let mut rows = ScheduleRows::default();
        let add = |key: &Bytes, value: &Bytes, rows: &mut ScheduleRows| {
            let _ = Row::parse(keys, key).map(|row| rows.add(&row, value));
        };
        let own = keys.schedule(name);
        if let Some(value) = get(tx, &own).await? {
            add(&own, &value, &mut rows);
        }
        for (key, value) in range(tx, keys.schedule_options(name), PIECES).await? {
            add(&key, &value, &mut rows);
        }
        for key in rows.named(keys, name).iter().chain(seen) {
            if let Some(value) = get(tx, key).await? {
                add(key, &value, &mut rows);
            }
        }
        Ok(check_schedule(keys, name, &rows))
    }

    async fn group(&self, tx: &Transaction, (tenant, name): &(String, String)) -> Result<Vec<Finding>> {
        let keys = &self.keys;
        let mut rows = GroupRows::default();
        let add = |key: &Bytes, value: &Bytes, rows: &mut GroupRows| {
            let _ = Row::parse(keys, key).map(|row| rows.add(&row, value));
        };
        let own = [keys.group(tenant, name), keys.group_mark(tenant, name)];
        for key in own {
            if let Some(value) = get(tx, &key).await? {
                add(&key, &value, &mut rows);
            }
        }
        for (key, value) in range(tx, keys.group_callbacks(tenant, name), PIECES).await? {
            add(&key, &value, &mut rows);
        }
        // Only those of this group: its own one, and stray ones.
        for (key, value) in range(tx, keys.group_removals(), REMOVALS).await? {
            if Row::parse(keys, &key).is_some_and(|row| row.of_group() == Some((tenant, name))) {
                add(&key, &value, &mut rows);
            }
        }
        Ok(check_group(keys, (tenant, name), &rows))
    }

    async fn document(
        &self,
        tx: &Transaction,
        key: &DocumentKey,
        seen: &BTreeSet<Bytes>,
    ) -> Result<Vec<Finding>> {
        let (keys, (db, id)) = (&self.keys, key);
        let mut rows = DocumentRows::default();
        for single in [keys.document(db, id), keys.replication(db, id)] {
            if let (Some(row), Some(value)) = (Row::parse(keys, &single), get(tx, &single).await?) {
                rows.add(&row, &single, &value);
            }
        }
        for (piece, value) in range(tx, keys.body(db, id), PIECES).await? {
            if let Some(row) = Row::parse(keys, &piece) {
                rows.add(&row, &piece, &value);
            }
        }
        let change = rows.head.as_ref().map(|head| keys.change(db, head.sequence));
        let due_us = rows.replication.as_ref().and_then(|row| row.due_us);
        let due = due_us.map(|due_us| keys.unresolved_entry(due_us, db, id));
        let check_us = rows.replication.as_ref().and_then(|row| row.check_us);
        let check = check_us.map(|check_us| keys.filter_check(check_us, db, id));
        for index in seen.iter().chain(&change).chain(&due).chain(&check) {
            let Some(row @ (Row::Change(..) | Row::Unresolved(..) | Row::FilterCheck(..))) =
                Row::parse(keys, index)
            else {
                continue;
            };
            let Some(value) = get(tx, index).await? else { continue };
            let is_own = match &row {
                Row::Change(..) => serde_json::from_slice::<String>(&value).is_ok_and(|named| named == *id),
                _ => true,
            };
            if is_own {
                rows.add(&row, index, &value);
            }
        }
        let database: Option<Database> = read(tx, &keys.database(db)).await?;
        let job = match rows.replication.as_ref().and_then(|row| row.job.as_ref()) {
            Some(id) => self.replication_job(tx, id).await?,
            None => None,
        };
        Ok(check_document(keys, key, &rows, database.as_ref(), job.as_ref()))
    }

    async fn replication_job(&self, tx: &Transaction, id: &str) -> Result<Option<Job>> {
        let value = get(tx, &self.keys.job(JOB_TYPE, id)).await?;
        Ok(value.and_then(|value| read_record(&(JOB_TYPE.to_owned(), id.to_owned()), &value).ok()))
    }

    /// Checks that the document refers to its job. The converse, that the document's job exists, is checked with the document.
    async fn documents_job(&self, tx: &Transaction, id: &str) -> Result<Vec<Finding>> {
        let Some(job) = self.replication_job(tx, id).await? else { return Ok(Vec::new()) };
        let Some((db, doc)) = document_of(&job) else { return Ok(Vec::new()) };
        let row: Option<doc_processor::Row> = read(tx, &self.keys.replication(&db, &doc)).await?;
        Ok(check_documents_job(&self.keys, &job, row.as_ref()).into_iter().collect())
    }
}

/// What is counted in one transaction, to compare it with its counters.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count<'a> {
    Documents(&'a str),
    Jobs(&'a str),
    /// Of a group, by tenant and name.
    Group(&'a (String, String)),
}

impl Count<'_> {
    /// What is wrong with the counters. `None` if no transaction lives long enough to count.
    pub(super) async fn check(self, store: &Store, keys: &Keyspace) -> Result<Option<Vec<Finding>>> {
        for _ in 0..COUNT_ATTEMPTS {
            let tx = store.begin().await?;
            let counted = match self {
                Count::Documents(db) => count_documents(&tx, keys, db).await,
                Count::Jobs(job_type) => count_jobs(&tx, keys, job_type).await,
                Count::Group(group) => count_group(&tx, keys, group).await,
            };
            match counted {
                Err(Error::TooOld { .. }) => {}
                counted => return counted.map(Some),
            }
        }
        Ok(None)
    }
}

/// Shows `each` all rows of a range.
async fn for_each(
    tx: &Transaction,
    (mut begin, end): KeyRange,
    mut each: impl FnMut(&Bytes, &Bytes),
) -> Result<()> {
    loop {
        let rows = range(tx, (begin, end.clone()), PAGE_ROWS).await?;
        rows.iter().for_each(|(key, value)| each(key, value));
        match rows.last() {
            Some((last, _)) if rows.len() == PAGE_ROWS => begin = successor(last),
            _ => return Ok(()),
        }
    }
}

async fn count_documents(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<Vec<Finding>> {
    let database: Option<Database> = read(tx, &keys.database(db)).await?;
    let counters: Option<Counters> = read(tx, &keys.sequence(db)).await?;
    let mut counted = Counters::default();
    let mut any = database.is_some() || counters.is_some();
    for_each(tx, keys.documents(db), |_, value| {
        any = true;
        if let Ok(head) = serde_json::from_slice::<Head>(value) {
            counted.count(&head);
        }
    })
    .await?;
    for family in [keys.bodies(db), keys.changes(db), keys.locals(db), keys.replications(db)] {
        any = any || !range(tx, family, 1).await?.is_empty();
    }
    // Otherwise the database was deleted after the pass read it, and no rows are left.
    let finding = any.then(|| check_database(keys, db, database.as_ref(), counters.as_ref(), &counted));
    Ok(finding.flatten().into_iter().collect())
}

async fn count_jobs(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Vec<Finding>> {
    let mut tally = CountTally::default();
    for rows in [keys.jobs(job_type), keys.counts(job_type)] {
        for_each(tx, rows, |key, value| {
            if let Some(row) = Row::parse(keys, key) {
                tally.enter(&row, None, Some(value));
            }
        })
        .await?;
    }
    Ok(tally.differences(keys).into_iter().map(|(_, finding)| finding).collect())
}

/// Counts the jobs of a group, which are found by their tags, and the groups in it.
async fn count_group(tx: &Transaction, keys: &Keyspace, group: &(String, String)) -> Result<Vec<Finding>> {
    let (tenant, name) = group;
    let mut tally = CountTally::default();
    let tag = format!("{GROUP_TAG}{name}");
    let mut last: Option<String> = None;
    loop {
        let types = types_after(tx, keys, last.as_deref(), TYPES).await.map_err(of_queue)?;
        for job_type in &types {
            let mut members = Vec::new();
            for_each(tx, keys.tagged_of(job_type, &tag, tenant), |key, _| {
                members.extend(keys.parse_tagged(key).map(|(_, id)| keys.job(job_type, &id)));
            })
            .await?;
            for key in members {
                if let (Some(row), Some(value)) = (Row::parse(keys, &key), get(tx, &key).await?) {
                    tally.enter(&row, None, Some(&value));
                }
            }
        }
        match types.into_iter().next_back() {
            Some(one) => last = Some(one),
            None => break,
        }
    }
    for rows in [keys.groups_of(tenant), keys.all_group_counts()] {
        for_each(tx, rows, |key, value| {
            if let Some(row) = Row::parse(keys, key) {
                tally.enter(&row, None, Some(value));
            }
        })
        .await?;
    }
    // Other groups are not counted here.
    let own = tally.group_differences(keys).into_iter().filter(|(of, _)| of == group);
    Ok(own.map(|(_, finding)| finding).collect())
}

fn of_queue(error: turnwise_queue::Error) -> Error {
    match error {
        turnwise_queue::Error::Store(error) => error,
        error => Error::Corrupt(error.to_string()),
    }
}
