//! The books of a pass: for each subject, what its rows state about rows elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_queue::check::{
    CountTally, Finding, Groups, IndexRow, Invariant, JobKey, PIECE_BYTES, Row, check_group, check_single,
    has_other_fields, key_text, read_record, unique_end, unique_holder,
};
use turnwise_queue::concurrency::{BucketRow, LimitedRow};
use turnwise_queue::locks::{Held, HolderRow, QueueRow};
use turnwise_queue::unique::UniqueRow;
use turnwise_queue::{Active, Claim, Keyspace};
use turnwise_replicator::JOB_TYPE;
use turnwise_replicator::check::{document_of, is_replicated, unreadable};
use turnwise_replicator::doc_processor;
use turnwise_replicator::documents::databases::Database;
use turnwise_replicator::documents::{Counters, Head};

use super::examine::Subject;

/// The maximum number of unknown families that the report distinguishes.
const UNKNOWN_FAMILIES: usize = 100;
/// The maximum number of unreadable rows that the report lists.
const UNREADABLE: usize = 1_000;

/// The books have more open subjects than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// What a pass has read so far.
pub(super) struct Books<'a> {
    keys: &'a Keyspace,
    /// Only subjects whose hash falls into this part are entered: the part's number, and the number of parts.
    part: (u64, u64),
    most: usize,
    /// For each open subject, the sum of what was promised minus the sum of what was found.
    open: HashMap<u64, u64>,
    /// Subjects that are suspected whether they are balanced or not.
    flagged: HashSet<u64>,
    /// The piece of options or of a body that was read last: its subject, its number, and its size.
    piece: Option<(u64, u32, usize)>,
    /// The subject whose row of output was read last.
    output: Option<u64>,
    /// Workers that hold jobs.
    holders: BTreeSet<JobKey>,
    /// Workers that have rows.
    workers: BTreeSet<JobKey>,
    /// Types that have jobs or workers.
    types: BTreeSet<String>,
    /// Tenants with pending jobs, by type and name.
    pending: BTreeSet<(String, String)>,
    /// Tenants with a row among the waiting tenants.
    waiting: BTreeSet<(String, String)>,
    /// Databases: their rows, and the tally of their documents.
    pub(super) databases: BTreeMap<String, (Option<Database>, Option<Counters>, Counters)>,
    /// The levels of held locks; `None` is the big lock.
    levels: BTreeSet<Option<String>>,
    /// The buckets of jobs that run or are limited.
    buckets: BTreeSet<Bucket>,
    pub(super) counts: CountTally,
    groups: Groups,
    pub(super) families: BTreeMap<String, u64>,
    pub(super) findings: Vec<Finding>,
}

/// The subject's key in the books.
pub(super) fn hash(subject: &impl Hash) -> u64 {
    // `DefaultHasher::new` has fixed keys, so every pass computes the same hash.
    let mut hasher = DefaultHasher::new();
    subject.hash(&mut hasher);
    hasher.finish()
}

/// What so many bytes of a result are worth: as much as the pieces together.
fn of_result(bytes: usize) -> u64 {
    (bytes as u64).wrapping_mul(hash(&"result") | 1)
}

fn of_job(job: &JobKey) -> u64 {
    hash(&Subject::Job(job.clone()))
}

fn of_unique(key: &str) -> u64 {
    hash(&Subject::Unique(key.to_owned()))
}

fn of_document(db: &str, id: &str) -> u64 {
    hash(&Subject::Document((db.to_owned(), id.to_owned())))
}

pub(super) fn subjects(row: &Row, value: &Bytes) -> Vec<Subject> {
    let document = |db: &String, id: &String| Subject::Document((db.clone(), id.clone()));
    if let Some(job) = row.of_job() {
        let mut subjects = vec![Subject::Job(job.clone())];
        if matches!(row, Row::Job(_)) && job.0 == JOB_TYPE {
            subjects.push(Subject::DocumentsJob(job.1.clone()));
        }
        if let Row::Follower(_, follower) = row {
            subjects.push(Subject::Job(follower.clone()));
        }
        return subjects;
    }
    if let Some(name) = row.of_schedule() {
        return vec![Subject::Schedule(name.to_owned())];
    }
    match row {
        Row::Document(db, id)
        | Row::Body(db, id, _)
        | Row::Unresolved(_, db, id)
        | Row::FilterCheck(_, db, id) => vec![document(db, id)],
        Row::Unique(key) => match unique_holder(value) {
            Some(job) => vec![Subject::Job(job)],
            None => vec![Subject::Unique(key.clone())],
        },
        Row::UniqueUntil(_, key) => vec![Subject::Unique(key.clone())],
        Row::Change(db, _) => match serde_json::from_slice(value) {
            Ok(id) => vec![document(db, &id)],
            Err(_) => Vec::new(),
        },
        Row::Replication(db, id) => {
            let mut subjects = vec![document(db, id)];
            let row: Option<doc_processor::Row> = serde_json::from_slice(value).ok();
            subjects.extend(row.and_then(|row| row.job).map(Subject::DocumentsJob));
            subjects
        }
        _ => Vec::new(),
    }
}

/// Whether the value of a place's row is what the record says about tenant and reason.
fn states_tenant(place: &IndexRow) -> bool {
    matches!(place, IndexRow::Ended(..) | IndexRow::Delayed(_) | IndexRow::Blocked)
}

/// Whether a row shows a job that is held by a worker without rows.
pub(super) fn is_of_lost(row: &Row, lost: &BTreeSet<JobKey>) -> bool {
    match row {
        Row::Index((job_type, _), IndexRow::Active(worker)) => {
            lost.contains(&(job_type.clone(), worker.clone()))
        }
        _ => false,
    }
}

/// The value of a name, which is copied only if it is new.
fn named<'m, V: Default>(values: &'m mut BTreeMap<String, V>, name: &str) -> &'m mut V {
    if !values.contains_key(name) {
        values.insert(name.to_owned(), V::default());
    }
    values.get_mut(name).expect("it is there by now")
}

impl<'a> Books<'a> {
    pub(super) fn new(keys: &'a Keyspace, part: (u64, u64), most: usize) -> Self {
        Books {
            keys,
            part,
            most,
            open: HashMap::new(),
            flagged: HashSet::new(),
            piece: None,
            output: None,
            holders: BTreeSet::new(),
            workers: BTreeSet::new(),
            types: BTreeSet::new(),
            pending: BTreeSet::new(),
            waiting: BTreeSet::new(),
            databases: BTreeMap::new(),
            levels: BTreeSet::new(),
            buckets: BTreeSet::new(),
            counts: CountTally::default(),
            groups: Groups::new(),
            families: BTreeMap::new(),
            findings: Vec::new(),
        }
    }

    /// Returns the suspected subjects, and empties the books.
    pub(super) fn take_suspects(&mut self) -> BTreeSet<u64> {
        let open = std::mem::take(&mut self.open);
        open.into_keys().chain(std::mem::take(&mut self.flagged)).collect()
    }

    /// Workers that hold jobs but have no rows.
    pub(super) fn lost_holders(&self) -> BTreeSet<JobKey> {
        self.holders.difference(&self.workers).cloned().collect()
    }

    /// The subjects that are few and always examined, and the tenants with pending jobs that no worker would see.
    pub(super) fn whole(&self) -> Vec<Subject> {
        let workers = self.workers.iter().cloned().map(Subject::Worker);
        let tenants = self.pending.difference(&self.waiting).cloned().map(Subject::Tenant);
        let levels = self.levels.iter().cloned().map(Subject::Locks);
        let buckets = self.buckets.iter().cloned().map(Subject::Bucket);
        let types = self.types.iter().cloned().map(Subject::Type);
        // The pass has read their rows, but not in one snapshot.
        let groups = self
            .groups
            .iter()
            .filter(|((tenant, name), rows)| !check_group(self.keys, (tenant, name), rows).is_empty());
        let groups = groups.map(|(group, _)| Subject::Group(group.clone()));
        workers.chain(types).chain(tenants).chain(levels).chain(buckets).chain(groups).collect()
    }

    pub(super) fn enter(&mut self, key: &Bytes, value: &Bytes) -> Result<(), Full> {
        let Some(row) = Row::parse(self.keys, key) else {
            self.enter_unknown(key);
            return Ok(());
        };
        *self.family(&self.keys.family(key).unwrap_or_default()) += 1;
        if let Some(problem) = unreadable(&row, value) {
            self.enter_unreadable(key, problem);
            self.flag_all(&row, value);
            return Ok(());
        }
        self.findings.extend(check_single(key, &row, value));
        self.counts.enter(&row, None, Some(value));
        match &row {
            Row::Job(job) => self.enter_job(job, key, value)?,
            Row::Options(job, n) => self.enter_piece(of_job(job), *n, value.len())?,
            Row::Output(job, kind, _) => self.enter_output(of_job(job), kind, value.len())?,
            Row::Tag(job, tag, tenant) => self.find(of_job(job), hash(&("tag", tag, tenant)))?,
            Row::Index(job, place) => self.enter_index(job, place, key, value)?,
            Row::Parked(job, at) => {
                let subject = of_job(job);
                if serde_json::from_slice::<String>(value).is_err() {
                    self.flag(subject);
                }
                self.find(subject, hash(&("parked", at)))?;
            }
            Row::Lock(job, spot, mode) => {
                self.levels.insert(spot.level.clone());
                let holder: Option<HolderRow> = self.read(key, value);
                let fact = holder.map_or(0, |holder| hash(&("lock", spot, mode, holder.claim)));
                self.find(of_job(job), fact)?;
            }
            Row::LockQueue(job, spot, ticket) => {
                self.read::<QueueRow>(key, value);
                self.find(of_job(job), hash(&("lock_queue", spot, ticket)))?;
            }
            Row::InBucket(job, bucket) => {
                self.enter_bucket(bucket);
                let row: Option<BucketRow> = self.read(key, value);
                let fact = row.map_or(0, |row| hash(&("rate", bucket, row.claim)));
                self.find(of_job(job), fact)?;
            }
            Row::Lifetime(job, at_us) => self.find(of_job(job), hash(&("lifetime", *at_us)))?,
            Row::Unique(unique) => match (unique_holder(value), unique_end(value)) {
                (Some(job), _) => self.find(of_job(&job), hash(&("unique", unique)))?,
                (None, Some(at_us)) => self.promise(of_unique(unique), hash(&("until", at_us)))?,
                (None, None) => drop(self.read::<UniqueRow>(key, value)),
            },
            Row::UniqueUntil(at_us, unique) => self.find(of_unique(unique), hash(&("until", *at_us)))?,
            Row::Deadline(job, at_us) => {
                let claim: Option<Claim> = self.read(key, value);
                let fact = claim.map_or(0, |claim| hash(&("deadline", *at_us, claim)));
                self.find(of_job(job), fact)?;
            }
            // Schedules are few: each is examined.
            Row::Schedule(name)
            | Row::ScheduleOptions(name, _)
            | Row::ScheduleDue(_, name)
            | Row::ScheduleEnds(name)
            | Row::TenantSchedule(_, name) => self.flag(hash(&Subject::Schedule(name.clone()))),
            Row::Group(tenant, name)
            | Row::GroupCallback(tenant, name, _)
            | Row::GroupMark(tenant, name)
            | Row::GroupRemoval(_, tenant, name) => {
                self.groups.entry((tenant.clone(), name.clone())).or_default().add(&row, value);
            }
            // These rows are few compared with jobs, or soon cleared.
            Row::After(job, _) | Row::Dependent(job, _, _) | Row::Unwatched(job, _) => self.flag(of_job(job)),
            Row::Follower(job, follower) => {
                self.flag(of_job(job));
                if value.is_empty() {
                    self.find(of_job(follower), hash(&("follows", job)))?;
                }
            }
            Row::Worker(worker, _) => {
                self.types.insert(worker.0.clone());
                self.workers.insert(worker.clone());
            }
            Row::Wake(job_type) | Row::Membership(job_type) => {
                self.types.insert(job_type.clone());
            }
            Row::Waiting(job_type, tenant) => {
                self.waiting.insert((job_type.clone(), tenant.clone()));
            }
            Row::Database(db) => self.database(db).0 = serde_json::from_slice(value).ok(),
            Row::Sequence(db) => self.database(db).1 = serde_json::from_slice(value).ok(),
            Row::Local(db, _) | Row::Mirror(db) => drop(self.database(db)),
            Row::Document(..)
            | Row::Body(..)
            | Row::Change(..)
            | Row::Replication(..)
            | Row::Unresolved(..)
            | Row::FilterCheck(..) => self.enter_document(&row, value)?,
            Row::Counts(..)
            | Row::GroupCounts(..)
            | Row::Usage(..)
            | Row::RunTimes(_)
            | Row::Boost(_)
            | Row::Clock => {}
            Row::StartCount(name) | Row::Start(name, _) => self.enter_bucket(&Bucket::Rate(name.clone())),
            Row::Filter(_) | Row::Roomy(..) | Row::Unmarked(_) | Row::Unsettled(..) => {}
            Row::Stamp | Row::Secret | Row::Other => {}
        }
        Ok(())
    }

    fn enter_index(
        &mut self,
        job: &JobKey,
        place: &IndexRow,
        key: &Bytes,
        value: &Bytes,
    ) -> Result<(), Full> {
        let subject = of_job(job);
        let fact = match place {
            IndexRow::Active(worker) => match self.read::<Active>(key, value) {
                Some(active) => {
                    self.holders.insert((job.0.clone(), worker.clone()));
                    if let Some(deadline) = active.deadline {
                        let claim = Claim { worker: worker.clone(), number: active.claim };
                        let promised = hash(&("deadline", deadline.at_us, claim));
                        self.promise(subject, promised)?;
                    }
                    hash(&(place, active.claim, active.cancel_requested))
                }
                None => 0,
            },
            _ => hash(&(place, 0_u64, false)),
        };
        if let IndexRow::Limited(place) = place {
            self.read::<LimitedRow>(key, value);
            self.enter_bucket(&place.limit.bucket);
        }
        if let IndexRow::Pending(place) = place {
            if !value.is_empty() {
                self.find(subject, hash(&("pending", value)))?;
            }
            self.enter_pending(&job.0, &place.tenant);
        }
        if states_tenant(place) {
            self.find(subject, hash(&("stated", value)))?;
        }
        self.types.insert(job.0.clone());
        self.find(subject, fact)
    }

    /// The rows of a bucket are adjacent, so a comparison with the last one suffices.
    fn enter_bucket(&mut self, bucket: &Bucket) {
        if self.buckets.last() != Some(bucket) {
            self.buckets.insert(bucket.clone());
        }
    }

    /// The rows of a tenant are adjacent, so a comparison with the last one suffices.
    fn enter_pending(&mut self, job_type: &str, tenant: &str) {
        if self.pending.last().is_none_or(|last| (last.0.as_str(), last.1.as_str()) != (job_type, tenant)) {
            self.pending.insert((job_type.to_owned(), tenant.to_owned()));
        }
    }

    fn enter_job(&mut self, key: &JobKey, row: &Bytes, value: &Bytes) -> Result<(), Full> {
        let subject = of_job(key);
        let job = match read_record(key, value) {
            Ok(job) => job,
            Err(error) => {
                self.enter_unreadable(row, error.to_string());
                self.flagged.insert(subject);
                return Ok(());
            }
        };
        self.types.insert(key.0.clone());
        let has_ended = job.claim().is_some_and(|claim| job.ended_claim.as_ref() == Some(claim));
        if has_ended
            || job.is_keyed()
            || job.wrong_key().is_some()
            || job.unmet() > 0
            || has_other_fields(value)
        {
            self.flag(subject);
        }
        let row = job.index_row();
        match job.claim() {
            Some(claim) => {
                self.holders.insert((key.0.clone(), claim.worker.clone()));
                self.promise(subject, hash(&(row, claim.number, job.cancel_requested())))?;
            }
            None => {
                if states_tenant(&row) {
                    self.promise(subject, hash(&("stated", job.row_value())))?;
                }
                self.promise(subject, hash(&(row, 0_u64, false)))?;
            }
        }
        for tag in job.all_tags() {
            self.promise(subject, hash(&("tag", tag, &job.tenant)))?;
        }
        if let Some(at) = job.parked() {
            self.promise(subject, hash(&("parked", at)))?;
        }
        // One that was removed has no row; the examination clears such a job.
        for input in job.inputs.values().collect::<BTreeSet<_>>() {
            self.promise(subject, hash(&("follows", (&input.job_type, &input.id))))?;
        }
        for lock in job.held().into_iter().flat_map(Held::locks) {
            self.promise(subject, hash(&("lock", &lock.spot, &lock.mode, job.claim())))?;
        }
        for bucket in job.buckets() {
            self.promise(subject, hash(&("rate", bucket, job.claim())))?;
        }
        for (spot, ticket) in job.queued() {
            self.promise(subject, hash(&("lock_queue", &spot, &ticket)))?;
        }
        if job.is_pending() && !job.locks.is_none() {
            self.promise(subject, hash(&("pending", job.pending_value())))?;
        }
        if let Some(at_us) = job.due_us {
            self.promise(subject, hash(&("lifetime", at_us)))?;
        }
        if let Some(unique) = job.unique_key.as_ref().filter(|unique| unique.held) {
            self.promise(subject, hash(&("unique", &unique.hash)))?;
        }
        if job.has_pieces() {
            self.promise(subject, hash(&"pieces"))?;
        }
        if job.has_output {
            self.promise(subject, hash(&"output"))?;
        }
        if let Some(result) = &job.stored_result {
            self.promise(subject, of_result(result.bytes))?;
        }
        if let Some(document) = document_of(&job) {
            self.promise(hash(&Subject::DocumentsJob(key.1.clone())), hash(&document))?;
        }
        Ok(())
    }

    fn enter_document(&mut self, row: &Row, value: &Bytes) -> Result<(), Full> {
        match row {
            Row::Document(db, id) => {
                let Ok(head) = serde_json::from_slice::<Head>(value) else { return Ok(()) };
                let (_, _, tally) = self.database(db);
                tally.count(&head);
                let subject = of_document(db, id);
                self.promise(subject, hash(&("change", head.sequence)))?;
                self.promise(subject, hash(&"pieces"))?;
                // A database that is being deleted may lack these rows; the examination clears its documents.
                if is_replicated(id, &head) {
                    self.promise(subject, hash(&("replication", head.rev.to_string())))?;
                }
            }
            Row::Change(db, sequence) => {
                let Ok(id) = serde_json::from_slice::<String>(value) else { return Ok(()) };
                self.database(db);
                self.find(of_document(db, &id), hash(&("change", *sequence)))?;
            }
            Row::Body(db, id, n) => {
                self.database(db);
                let subject = of_document(db, id);
                self.enter_piece(subject, *n, value.len())?;
                // A body in one piece is read here; the examination reads the others.
                if value.len() == PIECE_BYTES || serde_json::from_slice::<IgnoredAny>(value).is_err() {
                    self.flag(subject);
                }
            }
            Row::Replication(db, id) => {
                let Ok(row) = serde_json::from_slice::<doc_processor::Row>(value) else { return Ok(()) };
                self.database(db);
                let subject = of_document(db, id);
                self.find(subject, hash(&("replication", row.rev.to_string())))?;
                if let Some(due_us) = row.due_us {
                    self.promise(subject, hash(&("due", due_us)))?;
                }
                if let Some(check_us) = row.check_us {
                    self.promise(subject, hash(&("check", check_us)))?;
                }
                if let Some(job) = &row.job {
                    self.find(hash(&Subject::DocumentsJob(job.clone())), hash(&(db, id)))?;
                }
                if row.job.is_some() != (row.state == doc_processor::RowState::Scheduled) {
                    self.flag(subject);
                }
            }
            Row::Unresolved(due_us, db, id) => {
                self.database(db);
                self.find(of_document(db, id), hash(&("due", *due_us)))?;
            }
            Row::FilterCheck(check_us, db, id) => {
                self.database(db);
                self.find(of_document(db, id), hash(&("check", *check_us)))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that pieces are consecutive and that only the last one is short. The record promises the first piece.
    fn enter_piece(&mut self, subject: u64, n: u32, bytes: usize) -> Result<(), Full> {
        if n == 0 {
            self.find(subject, hash(&"pieces"))?;
        } else if self.piece != Some((subject, n - 1, PIECE_BYTES)) {
            self.flag(subject);
        }
        self.piece = Some((subject, n, bytes));
        Ok(())
    }

    /// The rows of one job's output follow each other: the first one stands for all, and the pieces of a result for their sizes.
    fn enter_output(&mut self, subject: u64, kind: &str, bytes: usize) -> Result<(), Full> {
        if self.output.replace(subject) != Some(subject) {
            self.find(subject, hash(&"output"))?;
        }
        match kind == "result" {
            true => self.find(subject, of_result(bytes)),
            false => Ok(()),
        }
    }

    fn promise(&mut self, subject: u64, fact: u64) -> Result<(), Full> {
        self.book(subject, fact)
    }

    fn find(&mut self, subject: u64, fact: u64) -> Result<(), Full> {
        self.book(subject, fact.wrapping_neg())
    }

    fn book(&mut self, subject: u64, amount: u64) -> Result<(), Full> {
        let (part, parts) = self.part;
        if subject % parts != part {
            return Ok(());
        }
        let balance = self.open.entry(subject).or_default();
        *balance = balance.wrapping_add(amount);
        if *balance == 0 {
            self.open.remove(&subject);
        }
        if self.open.len() > self.most { Err(Full) } else { Ok(()) }
    }

    fn flag(&mut self, subject: u64) {
        self.flagged.insert(subject);
    }

    fn flag_all(&mut self, row: &Row, value: &Bytes) {
        self.flagged.extend(subjects(row, value).iter().map(hash));
    }

    fn database(&mut self, db: &str) -> &mut (Option<Database>, Option<Counters>, Counters) {
        named(&mut self.databases, db)
    }

    fn family(&mut self, name: &str) -> &mut u64 {
        named(&mut self.families, name)
    }

    /// Counts a row of an unknown family, and reports the first row of each such family.
    fn enter_unknown(&mut self, key: &Bytes) {
        let text = key_text(key);
        let name = match serde_json::from_str::<Vec<serde_json::Value>>(&text) {
            Ok(elements) => elements.first().map_or_else(|| "[]".to_owned(), ToString::to_string),
            Err(_) => "no tuple".to_owned(),
        };
        let is_known = self.families.contains_key(&name);
        if !is_known && self.families.len() > UNKNOWN_FAMILIES {
            *self.family("other unknown") += 1;
            return;
        }
        *self.family(&name) += 1;
        if !is_known {
            self.findings.push(Finding::new(Invariant::Known, key, "no key of this release looks like this"));
        }
    }

    /// A row's value; `None` if it cannot be read, which is reported.
    fn read<T: DeserializeOwned>(&mut self, key: &Bytes, value: &Bytes) -> Option<T> {
        let read = serde_json::from_slice(value);
        read.map_err(|error| self.enter_unreadable(key, error.to_string())).ok()
    }

    fn enter_unreadable(&mut self, key: &Bytes, problem: String) {
        if self.findings.len() < UNREADABLE {
            self.findings.push(Finding::new(Invariant::Readable, key, problem));
        }
    }
}
