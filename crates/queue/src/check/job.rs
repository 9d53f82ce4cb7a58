//! Invariants of the rows of one job.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_policy::predictive_queue::locks::Mode;

use super::lock::{check_locks, held};
use super::{Finding, IndexRow, Invariant, JobKey, Row, key_text};
use crate::concurrency::{BucketRow, LimitedRow};
use crate::dependencies::AfterRow;
use crate::locks::{HolderRow, QueueRow, Spot};
use crate::pieces::PIECE_BYTES;
use crate::record::ReadRecord;
use crate::{Active, Claim, Input, Job, Keyspace, Parked, Then, output, unique_key as unique};

/// All rows of one job.
#[derive(Debug, Clone, Default)]
pub struct JobRows {
    /// Its record, if it exists and can be read.
    pub record: Option<Job>,
    /// Its record as stored.
    pub raw: Option<Bytes>,
    /// Its index rows, each with its value.
    pub places: BTreeMap<IndexRow, Bytes>,
    /// Pieces of its options: number and size in bytes.
    pub pieces: BTreeMap<u32, usize>,
    /// The rows of its output: kind and number, and size in bytes.
    pub output: BTreeMap<(String, i64), usize>,
    /// Its rows `("tags", …)`: tag and tenant.
    pub tags: BTreeSet<(String, String)>,
    /// Its rows `("parked", …)`: what would wake it.
    pub parked: BTreeSet<Parked>,
    /// Its rows `("unwatched", …)`.
    pub unwatched: BTreeSet<Parked>,
    /// The locks that it holds.
    pub locks: BTreeMap<(Spot, Mode), HolderRow>,
    /// The locks that it waits for, or has reserved, each with its ticket.
    pub queued: BTreeMap<(Spot, i64), QueueRow>,
    /// The buckets that it has a place in.
    pub buckets: BTreeMap<Bucket, BucketRow>,
    /// When it fails, or is removed.
    pub lifetimes: BTreeSet<i64>,
    /// The hashes of the unique keys whose rows say that it holds them.
    pub unique: BTreeSet<String>,
    /// When servers check its run, and under which claim.
    pub deadlines: BTreeMap<i64, Claim>,
    /// Its dependencies, each with the group that it is in there.
    pub after: BTreeSet<(JobKey, i64)>,
    /// The reverse rows of its dependencies.
    pub back: BTreeSet<(JobKey, i64)>,
    /// Its followers.
    pub followers: BTreeSet<JobKey>,
    /// The jobs that it follows, and whether only for their results.
    pub follows: BTreeMap<JobKey, bool>,
}

impl JobRows {
    /// Whether no row is left.
    pub fn is_empty(&self) -> bool {
        let of_place = self.places.len() + self.tags.len() + self.parked.len() + self.unwatched.len();
        let of_values = self.pieces.len() + self.output.len();
        let of_run = self.locks.len() + self.queued.len() + self.buckets.len() + self.deadlines.len();
        let of_place = of_place + self.lifetimes.len() + self.unique.len() + self.followers.len();
        let of_place = of_place + self.follows.len();
        self.raw.is_none() && of_place + of_values + of_run + self.after.len() + self.back.len() == 0
    }

    /// Sets or clears the record.
    ///
    /// # Errors
    /// Why it cannot be read; the record still counts as existing.
    pub fn set_record(&mut self, key: &JobKey, value: Option<&Bytes>) -> Result<(), serde_json::Error> {
        self.raw = value.cloned();
        self.record = None;
        if let Some(value) = value {
            self.record = Some(read_record(key, value)?);
        }
        Ok(())
    }

    /// Adds a row, if it belongs to a job.
    ///
    /// # Errors
    /// Why its value cannot be read.
    pub fn add(&mut self, row: Row, value: &Bytes) -> Result<(), serde_json::Error> {
        match row {
            Row::Job(key) => self.set_record(&key, Some(value))?,
            Row::Options(_, n) => {
                self.pieces.insert(n, value.len());
            }
            Row::Output(_, kind, n) => {
                self.output.insert((kind, n), value.len());
            }
            Row::Index(_, place) => {
                if matches!(place, IndexRow::Limited(_)) {
                    let _: LimitedRow = serde_json::from_slice(value)?;
                }
                self.places.insert(place, value.clone());
            }
            Row::Tag(_, tag, tenant) => drop(self.tags.insert((tag, tenant))),
            Row::Parked(_, at) => {
                let _: String = serde_json::from_slice(value)?;
                self.parked.insert(at);
            }
            Row::Unwatched(_, at) => drop(self.unwatched.insert(at)),
            Row::Lock(_, spot, mode) => {
                self.locks.insert((spot, mode), serde_json::from_slice(value)?);
            }
            Row::LockQueue(_, spot, ticket) => {
                self.queued.insert((spot, ticket), serde_json::from_slice(value)?);
            }
            Row::InBucket(_, bucket) => drop(self.buckets.insert(bucket, serde_json::from_slice(value)?)),
            Row::Lifetime(_, at_us) => drop(self.lifetimes.insert(at_us)),
            Row::Deadline(_, at_us) => {
                self.deadlines.insert(at_us, serde_json::from_slice(value)?);
            }
            Row::After(_, on) => {
                let row: AfterRow = serde_json::from_slice(value)?;
                self.after.insert((on, row.group));
            }
            Row::Dependent(_, on, group) => drop(self.back.insert((on, group))),
            Row::Follower(_, follower) => drop(self.followers.insert(follower)),
            _ => {}
        }
        Ok(())
    }
}

/// A job record.
pub fn read_record(key: &JobKey, value: &[u8]) -> Result<Job, serde_json::Error> {
    let mut job: Job = serde_json::from_slice(value)?;
    job.job_type.clone_from(&key.0);
    job.id.clone_from(&key.1);
    Ok(job)
}

/// Whether a stored record has fields of another place than its own, which readers ignore.
pub fn has_other_fields(value: &[u8]) -> bool {
    serde_json::from_slice::<ReadRecord>(value).is_ok_and(|record| record.contradicts_itself())
}

impl Job {
    /// Whether the options are in separate rows.
    pub fn has_pieces(&self) -> bool {
        self.options.is_none()
    }

    /// Why it does not hold its unique key, or holds it, when it should not.
    pub fn wrong_key(&self) -> Option<&'static str> {
        let (unique, key) = match (&self.unique, &self.unique_key) {
            (None, None) => return None,
            (Some(unique), Some(key)) => (unique, key),
            _ => return Some("only one of a unique key and its statement is there"),
        };
        let has_ended = self.state().is_final();
        let waits = !has_ended && self.run().is_none_or(|run| run.then == Then::Again);
        match unique.mode {
            unique::Mode::WhileWaiting if key.held && !waits => {
                Some("it does not wait, and holds its unique key")
            }
            unique::Mode::UntilEnd if key.held == has_ended => {
                Some("it holds its unique key after its end, or not before")
            }
            unique::Mode::Period(_) if key.held || key.until_us.is_none() => {
                Some("its unique key has no period")
            }
            _ => None,
        }
    }
}

/// Checks the rows of one job, read in one snapshot. `is_known` returns whether a worker has a row.
pub fn check_job(
    keys: &Keyspace,
    key: &JobKey,
    rows: &JobRows,
    is_known: impl Fn(&JobKey) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let record_key = keys.job(&key.0, &key.1);
    let mut found = |invariant, key: &[u8], problem: String| {
        findings.push(Finding::new(invariant, key, problem));
    };
    let Some(job) = &rows.record else {
        match rows.raw {
            Some(_) => found(Invariant::Readable, &record_key, "the record is not a job".to_owned()),
            None => check_orphans(keys, key, rows, &mut found),
        }
        return findings;
    };
    let state = job.state();
    let index = job.index_row();
    if rows.places.get(&index).is_some_and(|value| !job.may_have(value)) {
        let problem = "it names another tenant or reason than the record".to_owned();
        found(Invariant::RowAgrees, &index.key(keys, key), problem);
    }
    if rows.raw.as_ref().is_some_and(|raw| has_other_fields(raw)) {
        let problem = format!("it is read as {state:?}, and also has fields of another state");
        found(Invariant::OnePlace, &record_key, problem);
    }
    let (named, present) = (named(keys, key, job, rows), present(keys, key, rows));
    for (invariant, row) in named.difference(&present) {
        let problem = format!("it is {state:?}, and the row {} is missing", key_text(row));
        found(*invariant, &record_key, problem);
    }
    for (invariant, row) in present.difference(&named) {
        found(*invariant, row, format!("the record is {state:?} and names no such row"));
    }
    check_run(keys, key, (job, rows), &is_known, &mut found);
    let unmet = rows.after.len();
    if job.unmet() as usize != unmet {
        let problem = format!("it states that it waits for {} jobs, and has {unmet} rows", job.unmet());
        found(Invariant::WaitsFor, &record_key, problem);
    }
    for ((on_type, on_id), group) in rows.after.symmetric_difference(&rows.back) {
        let back = keys.dependents_entry((on_type, on_id), *group, &key.0, &key.1);
        found(Invariant::WaitsFor, &back, "only one of the two rows of this dependency exists".to_owned());
    }
    for (bucket, _) in rows.buckets.iter().filter(|(_, place)| job.claim() != Some(&place.claim)) {
        if job.buckets().contains(bucket) {
            let row = keys.bucket_holder(bucket, &key.0, &key.1);
            found(Invariant::BucketAgrees, &row, "it has another claim than the record".to_owned());
        }
    }
    if state.is_final() && job.awaited.is_some() {
        let problem = format!("it is {state:?}, and still names a group of dependents");
        found(Invariant::WaitsFor, &record_key, problem);
    }
    if let Some(follower) = rows.followers.first().filter(|_| !job.followed) {
        let row = keys.follower((&key.0, &key.1), &follower.0, &follower.1);
        found(Invariant::FollowerKnown, &row, "the record states that it has no followers".to_owned());
    }
    let gets = |on: &JobKey| job.inputs.values().any(|of| (&of.job_type, &of.id) == (&on.0, &on.1));
    for row in unread(keys, key, rows, gets) {
        found(Invariant::FollowerKnown, &row, "its follower does not name the result".to_owned());
    }
    if let Some(problem) = job.wrong_key() {
        found(Invariant::UniqueAgrees, &record_key, problem.to_owned());
    }
    if job.is_keyed() && !job.sort_key.is_some_and(f64::is_finite) {
        let problem = format!("it is {state:?} with the priority {:?}", job.sort_key);
        found(Invariant::Keyed, &record_key, problem);
    }
    if let Some((key, problem)) = wrong_pieces(keys, key, job.has_pieces(), &rows.pieces) {
        found(Invariant::OptionsWhole, &key, problem);
    }
    if let Some((key, problem)) = wrong_output(keys, key, job, rows) {
        found(Invariant::OutputWhole, &key, problem);
    }
    check_locks(keys, key, job, rows, &mut |row: &[u8], problem: String| {
        found(Invariant::LockAgrees, row, problem)
    });
    findings
}

/// Keys of rows, each with the invariant that is violated where only one of the record and the rows has it.
type Named = BTreeSet<(Invariant, Bytes)>;

/// The rows that a job's record names, and those of its other rows that it admits.
fn named(keys: &Keyspace, key: &JobKey, job: &Job, rows: &JobRows) -> Named {
    let (job_type, id) = (key.0.as_str(), key.1.as_str());
    let mut named = Named::from([(Invariant::OnePlace, job.index_row().key(keys, key))]);
    named.extend(job.tag_rows(keys).into_iter().map(|row| (Invariant::TagAgrees, row)));
    if let Some(at) = job.parked() {
        named.insert((Invariant::Parked, keys.parked_entry(job_type, at, id)));
        let unwatched = rows.unwatched.get(at).map(|at| keys.unwatched_entry(job_type, at, id));
        named.extend(unwatched.map(|row| (Invariant::Parked, row)));
    }
    let locks = held(job).into_iter().map(|(spot, mode)| keys.lock_holder(&spot, mode, job_type, id));
    let queued = job.queued().into_keys();
    let queued = queued.map(|(spot, ticket)| keys.lock_queue_entry(&spot, ticket, job_type, id));
    named.extend(locks.chain(queued).map(|row| (Invariant::LockAgrees, row)));
    let buckets = job.buckets().iter().map(|bucket| keys.bucket_holder(bucket, job_type, id));
    named.extend(buckets.map(|row| (Invariant::BucketAgrees, row)));
    let lifetime = job.due_us.map(|at_us| keys.lifetime_entry(at_us, job_type, id));
    named.extend(lifetime.map(|row| (Invariant::LifetimeAgrees, row)));
    let unique = job.unique_key.iter().filter(|key| key.held).map(|key| keys.unique(&key.hash));
    named.extend(unique.map(|row| (Invariant::UniqueAgrees, row)));
    // Those of a run are compared with its active row.
    let deadlines = rows.deadlines.keys().filter(|_| job.state().is_claimed());
    let deadlines = deadlines.map(|at_us| keys.deadline(*at_us, job_type, id));
    named.extend(deadlines.map(|row| (Invariant::DeadlineAgrees, row)));
    named
}

/// The rows that a job has, except those that have no other record than their own.
fn present(keys: &Keyspace, key: &JobKey, rows: &JobRows) -> Named {
    let (job_type, id) = (key.0.as_str(), key.1.as_str());
    let places = rows.places.keys().map(|place| (Invariant::OnePlace, place.key(keys, key)));
    let tags = rows.tags.iter().map(|(tag, tenant)| keys.tag_entry(job_type, tag, tenant, id));
    let parked = rows.parked.iter().map(|at| keys.parked_entry(job_type, at, id));
    let parked = parked.chain(rows.unwatched.iter().map(|at| keys.unwatched_entry(job_type, at, id)));
    let locks = rows.locks.keys().map(|(spot, mode)| keys.lock_holder(spot, *mode, job_type, id));
    let queued = rows.queued.keys();
    let queued = queued.map(|(spot, ticket)| keys.lock_queue_entry(spot, *ticket, job_type, id));
    let buckets = rows.buckets.keys().map(|bucket| keys.bucket_holder(bucket, job_type, id));
    let deadlines = rows.deadlines.keys().map(|at_us| keys.deadline(*at_us, job_type, id));
    let lifetimes = rows.lifetimes.iter().map(|at_us| keys.lifetime_entry(*at_us, job_type, id));
    let unique = rows.unique.iter().map(|hash| keys.unique(hash));
    places
        .chain(tags.map(|row| (Invariant::TagAgrees, row)))
        .chain(parked.map(|row| (Invariant::Parked, row)))
        .chain(locks.chain(queued).map(|row| (Invariant::LockAgrees, row)))
        .chain(buckets.map(|row| (Invariant::BucketAgrees, row)))
        .chain(deadlines.map(|row| (Invariant::DeadlineAgrees, row)))
        .chain(lifetimes.map(|row| (Invariant::LifetimeAgrees, row)))
        .chain(unique.map(|row| (Invariant::UniqueAgrees, row)))
        .collect()
}

/// Reports the rows of a job without a record.
fn check_orphans(
    keys: &Keyspace,
    key: &JobKey,
    rows: &JobRows,
    found: &mut impl FnMut(Invariant, &[u8], String),
) {
    let pieces = rows.pieces.keys().map(|n| (Invariant::Owned, keys.options_piece(&key.0, &key.1, *n)));
    let output = rows.output.keys().map(|(kind, n)| (Invariant::Owned, output_row(keys, key, kind, *n)));
    let dependencies = dependency_rows(keys, key, rows).into_iter().map(|row| (Invariant::WaitsFor, row));
    let followers = rows.followers.iter();
    let followers = followers.map(|one| keys.follower((&key.0, &key.1), &one.0, &one.1));
    let followers = followers.chain(unread(keys, key, rows, |_| false));
    let dependencies = dependencies.chain(followers.map(|row| (Invariant::FollowerKnown, row)));
    for (invariant, row) in
        present(keys, key, rows).into_iter().chain(pieces).chain(output).chain(dependencies)
    {
        let is_owned = matches!(invariant, Invariant::OnePlace | Invariant::TagAgrees);
        let invariant = if is_owned { Invariant::Owned } else { invariant };
        found(invariant, &row, "there is no record".to_owned());
    }
}

/// The key of a row of output, or of the head of a log.
fn output_row(keys: &Keyspace, (job_type, id): &JobKey, kind: &str, n: i64) -> Bytes {
    match (kind, n) {
        (output::LOG, output::HEAD) => keys.log_head(job_type, id),
        _ => keys.output_row(job_type, id, kind, n),
    }
}

/// Checks the rows of a run. `is_known` returns whether a worker has a row.
fn check_run(
    keys: &Keyspace,
    key: &JobKey,
    (job, rows): (&Job, &JobRows),
    is_known: &impl Fn(&JobKey) -> bool,
    found: &mut impl FnMut(Invariant, &[u8], String),
) {
    let record_key = keys.job(&key.0, &key.1);
    let Some(run) = job.run() else { return };
    let claim = &run.claim;
    if !is_known(&(key.0.clone(), claim.worker.clone())) {
        found(Invariant::HolderKnown, &record_key, format!("worker {} has no rows", claim.worker));
    }
    if let Some(value) = rows.places.get(&job.index_row()) {
        let row = keys.active_entry(&key.0, &claim.worker, &key.1);
        match serde_json::from_slice::<Active>(value) {
            Err(error) => found(Invariant::Readable, &row, format!("it is not an active row: {error}")),
            Ok(active) if active.claim != claim.number => {
                let problem =
                    format!("it has claim {}, and the record has claim {}", active.claim, claim.number);
                found(Invariant::ActiveAgrees, &row, problem);
            }
            Ok(active) if !is_looked_at(&active, rows, claim) => {
                let problem =
                    format!("it names {:?}, and the index has {:?}", active.deadline, rows.deadlines);
                found(Invariant::DeadlineAgrees, &row, problem);
            }
            Ok(active) if active.cancel_requested != run.cancel_requested => {
                let problem = "only one of this row and the record has a request to cancel the job";
                found(Invariant::ActiveAgrees, &row, problem.to_owned());
            }
            Ok(_) => {}
        }
    }
    if job.ended_claim.as_ref() == Some(claim) {
        let problem = format!("claim {} has already ended", claim.number);
        found(Invariant::ClaimUnique, &record_key, problem);
    }
    if run.next.unmet > 0 && run.then != Then::Again {
        found(Invariant::WaitsFor, &record_key, format!("it is {:?}, and waits for other jobs", job.state()));
    }
}

/// Whether the index of deadlines agrees with the active row of a run.
fn is_looked_at(active: &Active, rows: &JobRows, claim: &Claim) -> bool {
    let named = active.deadline.map(|deadline| (deadline.at_us, claim.clone()));
    rows.deadlines == named.into_iter().collect()
}

/// The keys of the rows of a job's dependencies.
fn dependency_rows(keys: &Keyspace, (job_type, id): &JobKey, rows: &JobRows) -> Vec<Bytes> {
    let after = rows.after.iter().map(|(on, _)| keys.after_entry(job_type, id, (&on.0, &on.1)));
    let back = rows.back.iter();
    let back = back.map(|(on, group)| keys.dependents_entry((&on.0, &on.1), *group, job_type, id));
    after.chain(back).collect()
}

/// Checks that a job will be updated when its dependency ends: `on` has the group in its record, or an unsettled row exists.
pub fn check_awaited(
    keys: &Keyspace,
    (job_type, id): &JobKey,
    (on, group): &(JobKey, i64),
    record: Option<&Job>,
    is_unsettled: bool,
) -> Option<Finding> {
    if is_unsettled || record.is_some_and(|job| job.awaited == Some(*group)) {
        return None;
    }
    let row = keys.after_entry(job_type, id, (&on.0, &on.1));
    Some(Finding::new(
        Invariant::WaitsFor,
        &row,
        "the record of the dependency does not name this group of dependents",
    ))
}

/// The rows of a job at others whose results it does not get. A row with what a cancelled job waited for stays as long as the record of the other one.
fn unread(keys: &Keyspace, key: &JobKey, rows: &JobRows, gets: impl Fn(&JobKey) -> bool) -> Vec<Bytes> {
    let unread = rows.follows.iter().filter(|(on, only_result)| **only_result && !gets(on));
    unread.map(|(on, _)| keys.follower((&on.0, &on.1), &key.0, &key.1)).collect()
}

/// Checks that the record of an input stays until a job has ended, if it was there when the job was added.
pub fn check_follows(
    keys: &Keyspace,
    job: &Job,
    input: &Input,
    record: Option<&Job>,
    has_row: bool,
) -> Option<Finding> {
    let is_needed =
        |other: &Job| other.tenant == job.tenant && other.added_us <= job.added_us && !job.state().is_final();
    if has_row || !record.is_some_and(is_needed) {
        return None;
    }
    let row = keys.follower((&input.job_type, &input.id), &job.job_type, &job.id);
    Some(Finding::new(Invariant::FollowerKnown, &row, "a job names the result, and the row is missing"))
}

/// The first problem with the rows of a job's output.
fn wrong_output(keys: &Keyspace, key: &JobKey, job: &Job, rows: &JobRows) -> Option<(Bytes, String)> {
    if !job.has_output
        && let Some((kind, n)) = rows.output.keys().next()
    {
        let problem = "the record states that the job has no output".to_owned();
        return Some((output_row(keys, key, kind, *n), problem));
    }
    let of_result = rows.output.iter().filter(|((kind, _), _)| kind == output::RESULT);
    let bytes: usize = of_result.map(|(_, bytes)| bytes).sum();
    let expected = job.stored_result.as_ref().map_or(0, |result| result.bytes);
    let problem = || format!("the result has {bytes} bytes, and the record states {expected}");
    (bytes != expected).then(|| (output_row(keys, key, output::RESULT, 0), problem()))
}

/// The first problem with the pieces of a job's options.
fn wrong_pieces(
    keys: &Keyspace,
    (job_type, id): &JobKey,
    expected: bool,
    pieces: &BTreeMap<u32, usize>,
) -> Option<(Bytes, String)> {
    let key = |n| keys.options_piece(job_type, id, n);
    match (expected, pieces.first_key_value()) {
        (false, None) => None,
        (false, Some((n, _))) => Some((key(*n), "the record has the options itself".to_owned())),
        (true, None) => {
            Some((keys.job(job_type, id), "they are neither in the record nor in pieces".to_owned()))
        }
        (true, Some(_)) => whole(pieces).err().map(|(n, problem)| (key(n), problem)),
    }
}

/// Whether pieces are consecutive, and all except the last are full.
///
/// # Errors
/// The first piece that is wrong, and the problem.
pub fn whole(pieces: &BTreeMap<u32, usize>) -> Result<(), (u32, String)> {
    let mut before: Option<usize> = None;
    for (expected, (n, bytes)) in (0..).zip(pieces) {
        if *n != expected {
            return Err((*n, format!("piece {expected} is not there")));
        }
        if let Some(short) = before.filter(|bytes| *bytes != PIECE_BYTES) {
            return Err((*n, format!("the piece before has {short} bytes and should have been the last")));
        }
        before = Some(*bytes);
    }
    Ok(())
}
