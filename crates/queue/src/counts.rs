//! How many jobs are in each place, by type and tenant: exact, and read without reading the jobs.
//!
//! *Model.* Each type and tenant has a [`Sum`] with a field per [`Kind`] of place. A transaction that moves a job adds -1 to one
//! field and 1 to another, so the counts are those of the same snapshot as the jobs. Adds read nothing and conflict with
//! nothing.
//!
//! *Forces.* A transaction writes one more row for each tenant whose jobs it moves. An engine without atomic addition appends a
//! row for each such transaction. [`fold`] replaces them by one, and removes rows that count nothing, or the names of tenants
//! would accumulate.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Index};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::key::successor;
use turnwise_store::{Store, Sum, Transaction};

use crate::group_recount::{self, Members};
use crate::keyspace::{KeyRange, behind};
use crate::place::{End, Place};
use crate::reads;
use crate::rows::decode_job;
use crate::types_with_jobs::types_after;
use crate::{Job, Keyspace, Result};

/// The width of a field in bits: more jobs than any store holds.
const FIELD_BITS: usize = 40;
/// Rows per read.
const PAGE: usize = 1_000;
/// The most rows that one transaction of [`fold`] writes: few enough for every engine.
const MAX_WRITES: usize = 400;
/// The most sums that one transaction of [`rebuild`] writes: each is a cleared range and a row.
const MAX_SUMS: usize = 100;
/// The most types per read of [`rebuild`].
const TYPES: usize = 100;

/// Declares [`Kind`], each with its name, in the order of their fields in the stored sum. A new one goes to the end.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)+) => {
        /// What a job is counted as: its [`Place`], without its data.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        impl Kind {
            /// All of them.
            pub const ALL: [Kind; [$($name),+].len()] = [$(Kind::$kind),+];

            /// Its name, as in the API.
            pub fn name(self) -> &'static str {
                self.names()[0]
            }

            /// The same as a list.
            pub(crate) fn names(self) -> &'static [&'static str] {
                match self { $(Kind::$kind => &[$name],)+ }
            }
        }
    };
}

kinds! {
    /// In the queue of its tenant.
    Pending = "pending",
    /// Does not start before a time.
    Delayed = "delayed",
    /// Has crashed, and waits until its backoff is over.
    Crashing = "crashing",
    /// Has nothing to do until something outside changes.
    Parked = "parked",
    /// Waits for other jobs to end.
    Blocked = "blocked",
    /// A filter has paused it.
    Paused = "paused",
    /// Waits until a bucket has room.
    Limited = "limited",
    /// A worker has claimed it.
    Running = "running",
    /// Has ended without an error.
    Completed = "completed",
    /// Has failed permanently.
    Failed = "failed",
    /// Was cancelled.
    Cancelled = "cancelled",
}

impl Kind {
    /// What jobs in this state count as, as conditions name it.
    pub(crate) fn of_state(state: &str) -> Option<Kind> {
        let running = (state == "waiting").then_some(Kind::Running);
        running.or_else(|| Kind::ALL.into_iter().find(|kind| kind.name() == state))
    }

    /// What a job in this place counts as.
    pub fn of(place: &Place) -> Kind {
        match place {
            Place::Pending { .. } => Kind::Pending,
            Place::Delayed { .. } => Kind::Delayed,
            Place::Crashing { .. } => Kind::Crashing,
            Place::Parked { .. } => Kind::Parked,
            Place::Blocked { .. } => Kind::Blocked,
            Place::Paused { .. } => Kind::Paused,
            Place::Limited { .. } => Kind::Limited,
            Place::Active(_) => Kind::Running,
            Place::Ended(End::Completed) => Kind::Completed,
            Place::Ended(End::Failed) => Kind::Failed,
            Place::Ended(End::Cancelled) => Kind::Cancelled,
        }
    }

    /// Whether such a job has ended.
    pub fn has_ended(self) -> bool {
        matches!(self, Kind::Completed | Kind::Failed | Kind::Cancelled)
    }

    /// Whether such a job will run once what it waits for has happened.
    pub fn waits(self) -> bool {
        !self.has_ended() && self != Kind::Running
    }
}

/// Numbers of jobs by [`Kind`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts([u64; Kind::ALL.len()]);

impl Counts {
    /// From the stored sum.
    pub fn of_sum(sum: &Sum) -> Counts {
        Counts(Kind::ALL.map(|kind| sum.field(FIELD_BITS * kind as usize, FIELD_BITS)))
    }

    /// Each kind and its number.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, u64)> {
        Kind::ALL.into_iter().zip(self.0)
    }

    /// The number of all jobs.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of jobs that will run once what they wait for has happened.
    pub fn waiting(&self) -> u64 {
        self.iter().filter(|(kind, _)| kind.waits()).map(|(_, count)| count).sum()
    }

    /// The number of jobs that wait and are not between two runs: neither crashing nor parked. A job that has run and is pending again
    /// cannot be told from a new one, and counts.
    pub fn not_started(&self) -> u64 {
        self.waiting() - self[Kind::Crashing] - self[Kind::Parked]
    }
}

impl Index<Kind> for Counts {
    type Output = u64;

    fn index(&self, kind: Kind) -> &u64 {
        &self.0[kind as usize]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}

/// The sum with one job in a place.
pub(crate) fn one(place: &Place) -> Sum {
    Sum::of(1, FIELD_BITS * Kind::of(place) as usize)
}

/// Counts a job that enters a place.
pub(crate) fn enter(tx: &Transaction, keys: &Keyspace, job: &Job, to: &Place) -> Result<()> {
    Ok(tx.add(keys.counts_of(&job.job_type, &job.tenant), one(to))?)
}

/// No longer counts a job that leaves its place.
pub(crate) fn leave(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    Ok(tx.add(keys.counts_of(&job.job_type, &job.tenant), less_one(&job.place))?)
}

/// Counts a job that goes from its place to another one.
pub(crate) fn change(tx: &Transaction, keys: &Keyspace, job: &Job, to: &Place) -> Result<()> {
    if Kind::of(&job.place) == Kind::of(to) {
        return Ok(());
    }
    let mut change = one(to);
    change += less_one(&job.place);
    Ok(tx.add(keys.counts_of(&job.job_type, &job.tenant), change)?)
}

fn less_one(place: &Place) -> Sum {
    Sum::of(-1, FIELD_BITS * Kind::of(place) as usize)
}

/// The counts of a tenant's jobs of one type. Not for a transaction that has moved such a job.
#[boxed]
pub async fn of_tenant(tx: &Transaction, keys: &Keyspace, job_type: &str, tenant: &str) -> Result<Counts> {
    Ok(Counts::of_sum(&tx.sum(&keys.counts_of(job_type, tenant)).await?))
}

/// The counts of all jobs of a type. Reads a row per tenant.
#[boxed]
pub async fn of_type(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Counts> {
    let mut all = Counts::default();
    let mut rest = Some(keys.counts(job_type));
    while let Some(range) = rest {
        let page = read(tx, keys, range, PAGE).await?;
        page.found.iter().for_each(|(_, _, sum)| all += Counts::of_sum(sum));
        rest = page.rest;
    }
    Ok(all)
}

/// The counts of one tenant's jobs of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The job type.
    pub job_type: String,
    /// The tenant.
    pub tenant: String,
    /// The numbers of jobs.
    pub counts: Counts,
}

/// The counts of up to `limit` types and tenants, in the order of type and tenant, after `after` if given. Those that have no jobs
/// are left out. Fewer than `limit` mean that there are no more. Reads without conflicts.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<(&str, &str)>,
    limit: usize,
) -> Result<Vec<Counted>> {
    let (first, end) = keys.all_counts();
    let begin = after.map_or(first, |(job_type, tenant)| keys.counts_behind(job_type, tenant).1);
    list_in(tx, keys, (begin, end), limit).await
}

/// The same for the tenants of one type, after the tenant `after` if given.
#[boxed]
pub async fn list_of_type(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Counted>> {
    let (first, end) = keys.counts(job_type);
    let begin = after.map_or(first, |after| keys.counts_behind(job_type, after).1);
    list_in(tx, keys, (begin, end), limit).await
}

async fn list_in(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Vec<Counted>> {
    let mut list = Vec::new();
    let mut rest = Some(range);
    while let Some(range) = rest {
        let page = read(tx, keys, range, limit - list.len()).await?;
        let found = page.found.into_iter().filter(|(_, _, sum)| !sum.is_zero());
        list.extend(found.map(|(job_type, tenant, sum)| Counted {
            job_type,
            tenant,
            counts: Counts::of_sum(&sum),
        }));
        rest = page.rest.filter(|_| list.len() < limit);
    }
    Ok(list)
}

struct Page {
    found: Vec<(String, String, Sum)>,
    /// What was not read.
    rest: Option<KeyRange>,
}

/// The first sums of a range, up to `limit`.
async fn read(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Page> {
    let (mut begin, end) = range;
    let mut found: Vec<(String, String, Sum)> = Vec::new();
    loop {
        let rows = reads::rows(tx, (begin.clone(), end.clone()), PAGE).await?;
        let is_last = rows.len() < PAGE;
        for (key, value) in rows {
            let (job_type, tenant) = keys.parse_counts(&key)?;
            let sum = Sum::read(&value)?;
            let is_full = found.len() >= limit;
            match found.last_mut() {
                Some(last) if (&last.0, &last.1) == (&job_type, &tenant) => last.2 += sum,
                _ if is_full => return Ok(Page { found, rest: Some((key, end)) }),
                _ => found.push((job_type, tenant, sum)),
            }
            begin = successor(&key);
        }
        if is_last {
            return Ok(Page { found, rest: None });
        }
    }
}

/// Which sums [`fold`] replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Those of types and tenants.
    Jobs,
    /// Those of groups ([`crate::groups`]).
    Groups,
}

impl Family {
    fn all(self, keys: &Keyspace) -> KeyRange {
        match self {
            Family::Jobs => keys.all_counts(),
            Family::Groups => keys.all_group_counts(),
        }
    }

    fn first(self, keys: &Keyspace, of: (&str, &str)) -> Bytes {
        match self {
            Family::Jobs => keys.counts_of(of.0, of.1),
            Family::Groups => keys.group_counts(of.0, of.1),
        }
    }

    fn behind(self, keys: &Keyspace, of: (&str, &str)) -> KeyRange {
        match self {
            Family::Jobs => keys.counts_behind(of.0, of.1),
            Family::Groups => keys.group_counts_behind(of.0, of.1),
        }
    }
}

/// Where a [`fold`] continues.
pub type Cursor = Bytes;

/// What [`fold`] has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// Rows that were written or removed.
    pub rows: usize,
    /// Where the next call continues; `None` at the end.
    pub next: Option<Cursor>,
}

/// Reads up to 1,000 rows after `after`. Makes one row of each sum that has several, and removes sums that are 0, as many as the
/// transaction has room for. Conflicts with another call, and with an add to a row that it removes or replaces.
#[boxed]
pub async fn fold(
    tx: &Transaction,
    keys: &Keyspace,
    family: Family,
    after: Option<&Cursor>,
) -> Result<Folded> {
    let rows = reads::rows(tx, behind(family.all(keys), after.cloned()), PAGE).await?;
    let mut next = (rows.len() == PAGE).then(|| rows[PAGE - 1].0.clone());
    let mut written = 0;
    let mut folded: Option<(String, String)> = None;
    let mut last = None;
    for (key, value) in rows {
        let of = keys.parse_counts(&key)?;
        let wants = Sum::read(&value)?.is_zero() || key != family.first(keys, (&of.0, &of.1));
        let before = last.replace(key);
        if !wants || folded.as_ref() == Some(&of) {
            continue;
        }
        if written > 0 && !tx.has_room() {
            // Each sum is read, and the transaction proves what it reads.
            next = before;
            break;
        }
        if written == 0 {
            // Rows behind the first are written once, and removed by folds alone: so only another fold can interfere.
            let _ = tx.get(&keys.counts_guard()).await?;
            tx.set_versionstamp(keys.counts_guard())?;
        }
        let room = MAX_WRITES - written;
        let wrote = fold_one(tx, keys, family, (&of.0, &of.1), room).await?;
        written += wrote;
        if wrote >= room {
            // The rest of this sum comes next.
            next = Some(family.first(keys, (&of.0, &of.1)));
            break;
        }
        folded = Some(of);
    }
    Ok(Folded { rows: written, next })
}

/// Folds up to `most` rows of one sum. Returns how many it has written.
async fn fold_one(
    tx: &Transaction,
    keys: &Keyspace,
    family: Family,
    of: (&str, &str),
    most: usize,
) -> Result<usize> {
    let first = family.first(keys, of);
    // An engine that adds to this row makes the transaction conflict.
    let stored = tx.get(&first).await?;
    if let (Family::Groups, None) = (family, &stored) {
        // Without the first row, the removal of the group interferes: it clears all that is read here.
        let name = of.1.rsplit_once('@').map_or(of.1, |(name, _)| name);
        let _ = tx.get(&keys.group(of.0, name)).await?;
    }
    let mut sum = stored.as_deref().map_or(Ok(Sum::default()), Sum::read)?;
    let limit = most.saturating_sub(1).max(1);
    let rows = reads::rows(tx, family.behind(keys, of), limit).await?;
    for (key, value) in &rows {
        sum += Sum::read(value)?;
        tx.clear(key.clone())?;
    }
    let is_complete = rows.len() < limit;
    match (sum.is_zero() && is_complete, stored) {
        (true, None) => {}
        (true, Some(_)) => tx.clear(first)?,
        (false, _) => tx.set(first, sum.to_bytes())?,
    }
    Ok(rows.len() + 1)
}

/// Counts all jobs of a store that has wrong counts. No process may use the store meanwhile, except others that do the same. Can be
/// interrupted and begun again. Returns how many jobs there are.
///
/// # Errors
/// As the store.
#[boxed]
pub async fn rebuild(store: &Store, keys: &Keyspace) -> Result<u64> {
    let mut sums: BTreeMap<(String, String), Sum> = BTreeMap::new();
    let mut members = Members::default();
    let mut types: Vec<String> = Vec::new();
    loop {
        let tx = store.begin().await?;
        let found = types_after(&tx, keys, types.last().map(String::as_str), TYPES).await?;
        let is_last = found.len() < TYPES;
        types.extend(found);
        if is_last {
            break;
        }
    }
    for job_type in types {
        let mut rest = keys.jobs(&job_type);
        loop {
            let range = &rest;
            let rows =
                store.transact(|tx| async move { reads::rows(&tx, range.clone(), PAGE).await }).await?;
            for (_, value) in &rows {
                let job = decode_job(value)?;
                members.enter(&job);
                *sums.entry((job_type.clone(), job.tenant.clone())).or_default() += one(&job.place);
            }
            match rows.last() {
                Some((last, _)) if rows.len() == PAGE => rest = behind(rest, Some(last.clone())),
                _ => break,
            }
        }
    }
    // What an interrupted call has written, for tenants that have no jobs any more.
    let mut rest = Some(keys.all_counts());
    while let Some(range) = rest {
        let page = read(&store.begin().await?, keys, range, PAGE).await?;
        for (job_type, tenant, _) in page.found {
            sums.entry((job_type, tenant)).or_default();
        }
        rest = page.rest;
    }
    let sums: Vec<_> = sums.into_iter().collect();
    let total = sums.iter().map(|(_, sum)| Counts::of_sum(sum).total()).sum();
    for chunk in sums.chunks(MAX_SUMS) {
        store.transact(|tx| async move { write(&tx, keys, chunk) }).await?;
    }
    group_recount::rebuild(store, keys, members).await?;
    Ok(total)
}

/// Writes sums, and removes all other rows of these.
fn write(tx: &Transaction, keys: &Keyspace, sums: &[((String, String), Sum)]) -> Result<()> {
    for ((job_type, tenant), sum) in sums {
        let key = keys.counts_of(job_type, tenant);
        tx.clear_range((key.clone(), keys.counts_behind(job_type, tenant).1))?;
        if !sum.is_zero() {
            tx.set(key, sum.to_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
