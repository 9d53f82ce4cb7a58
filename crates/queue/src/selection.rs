//! Jobs that meet a condition, found through the narrowest index that it allows.
//!
//! *Sources.* A condition states which types, tenants, states and ids a job must have. Each type is read through a list of
//! sources, which follows from the condition alone:
//!
//! | the condition names | source |
//! | --- | --- |
//! | ids | the records of these ids |
//! | `pending`, and tenants | the queue of each tenant |
//! | `pending` | all queues |
//! | `delayed`, `parked`, `crashing` | the jobs that wait for a time |
//! | `blocked`, `paused` | the rows of these jobs |
//! | `running`, `waiting` | the active rows |
//! | `completed`, `failed`, `cancelled` | the partitions of these states, and of the tenants and the reason classes |
//! | none of these, or `limited` | all records of the type |
//! | tags | the rows of these tags, and of the tenants, instead of one of the last five if they are fewer ([`Selection::narrowed`]) |
//!
//! Queues are read from their tails, everything else in the order of its keys.
//!
//! Names other than types narrow only this choice: the condition is evaluated for each job that a source has.
//!
//! A search reads snapshots, page by page. A page ends after a bounded number of reads.
//!
//! *Patterns* cost a processor's time, and the client chooses them. One job at a time is searched for them in a process ([`searching`]), so the
//! other threads keep answering; the more the patterns cost, the fewer jobs are looked at for one request ([`Selection::most_looks`]).

mod estimate;
mod members;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use turnwise_policy::eligibility::condition::{Condition, Indexed, Mistake, Standing, Subject};
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::counts::Kind;
use crate::encoding::{hex, unhex};
use crate::ended::partitions;
use crate::error::corrupt;
use crate::jobs::{PREFETCHED, peek, prefetch, types_after};
use crate::keyspace::KeyRange;
use crate::place::End;
use crate::rows::decode_job;
use crate::{Job, Keyspace, Place, Result, State, reason_class};

pub use members::{Members, TestedOptions};

/// The most ids or tenants that are looked up one by one. With more of them, an index is read from its beginning to its end.
const MAX_NAMES: usize = 100;
/// The most reads of ranges for one page.
const MAX_READS: usize = 100;
/// Patterns up to this size do not reduce the number of jobs that are looked at, in bytes. Searching a text of 16 KiB takes about a
/// millisecond then.
const CHEAP_PATTERN_BYTES: usize = 512;

/// Jobs that meet a condition.
#[derive(Debug, Clone)]
pub struct Selection {
    condition: Condition,
    /// The time from which ages are measured, in µs.
    now_us: i64,
    /// The types, sorted; `None` means all.
    types: Option<Vec<String>>,
    sources: Vec<Source>,
    /// The rows of the tags that the condition names, if it names few.
    tagged: Vec<Source>,
    /// A search reads these rows.
    by_tags: bool,
    /// The tenants whose rows of tags are read; `None` means all.
    tenants: Option<BTreeSet<String>>,
}

/// Where jobs of a type are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The record of one id.
    Record(String),
    /// All records.
    Records,
    /// The queue of one tenant.
    QueueOf(String),
    /// All queues.
    Queues,
    /// The jobs that wait for a time.
    Delayed,
    /// The jobs that wait for dependencies.
    Blocked,
    /// The jobs that filters have paused.
    Paused,
    /// The jobs that run.
    Active,
    /// The jobs in some partitions of those that have ended.
    Ended(RangeInclusive<u16>),
    /// The jobs with a tag, of one tenant if there is a name.
    Tagged(String, Option<String>),
}

/// A position of a search: after a row of a source of a type. The default is the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The type; `None` at the beginning.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    job_type: Option<String>,
    /// The number of the source.
    #[serde(default)]
    source: usize,
    /// The key of the last row of the source that was read, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// The source is one of those by tags.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_tags: bool,
}

/// A part of a search.
#[derive(Debug)]
pub struct Page {
    /// Jobs that may meet the condition, each with the position after it.
    pub jobs: Vec<(Position, Job)>,
    /// Where the search continues; `None` at its end.
    pub next: Option<Position>,
}

impl Selection {
    /// The jobs that meet a condition; an empty one selects all jobs. Ages are measured from `now_us`.
    ///
    /// # Errors
    /// What is wrong with the condition, and where.
    pub fn parse(text: &str, now_us: i64) -> Result<Selection, Mistake> {
        let condition = Condition::parse_selection(text)?;
        let names = |field| names(&condition, field);
        let few = |names: Option<Vec<String>>| names.filter(|names| names.len() <= MAX_NAMES);
        let class = match names(Indexed::ReasonClass).as_deref() {
            Some([class]) => Some(reason_class::number(class)),
            _ => None,
        };
        let (ids, tenants) = (few(names(Indexed::Id)), few(names(Indexed::Tenant)));
        let tagged = match few(names(Indexed::Tag)) {
            Some(tags) if ids.is_none() => sources_of_tags(&tags, tenants.as_deref()),
            _ => Vec::new(),
        };
        let sources = match (ids, condition.values(Indexed::State)) {
            (Some(ids), _) => ids.into_iter().map(Source::Record).collect(),
            (None, Some(states)) => {
                let sources = sources_of(&states, tenants.as_deref(), class);
                sources.unwrap_or_else(|| vec![Source::Records])
            }
            (None, None) => vec![Source::Records],
        };
        let types = names(Indexed::Type);
        let by_tags = !tagged.is_empty() && sources == [Source::Records];
        Ok(Selection { condition, now_us, types, sources, tagged, by_tags, tenants: None })
    }

    /// All jobs of these sources.
    pub(crate) fn of_sources(types: Option<Vec<String>>, sources: Vec<Source>) -> Selection {
        let (tagged, by_tags, tenants) = (Vec::new(), false, None);
        Selection { condition: Condition::always(), now_us: 0, types, sources, tagged, by_tags, tenants }
    }

    /// Whether a search that is at this position reads the rows of tags.
    fn reads_tags(&self, at: &Position) -> bool {
        if at.job_type.is_some() { at.by_tags } else { self.by_tags }
    }

    /// How many jobs to look at where it would be `most` without patterns: fewer, the more they cost.
    pub fn most_looks(&self, most: usize) -> usize {
        let times = self.condition.pattern_bytes().div_ceil(CHEAP_PATTERN_BYTES).max(1);
        (most / times).max(1)
    }

    /// The values of a field of which a job must have one; `None` if it may have any.
    pub fn values(&self, field: Indexed) -> Option<Vec<String>> {
        names(&self.condition, field)
    }

    /// The type of the jobs, if the condition names exactly one.
    pub fn only_type(&self) -> Option<&str> {
        match self.types.as_deref() {
            Some([only]) => Some(only),
            _ => None,
        }
    }

    /// Whether a job may change its place between the sources, or within one, while it meets the condition, so that a search
    /// that is at this position may miss it.
    pub fn may_miss(&self, at: &Position) -> bool {
        // What a row of a tag says stays the same while the job waits, runs and ends.
        if self.reads_tags(at) {
            return false;
        }
        let is_stable = |source: &Source| {
            !matches!(source, Source::QueueOf(_) | Source::Queues | Source::Delayed | Source::Active)
        };
        let by_id = self.sources.iter().all(|source| matches!(source, Source::Record(_)));
        // A job that has ended stays where it is until it runs again.
        let by_end = self.sources.iter().all(|source| matches!(source, Source::Ended(_)));
        !by_id && !by_end && (self.sources.len() > 1 || !self.sources.iter().all(is_stable))
    }

    /// Whether a job meets the condition. Without `may_test_options`, its options are hidden: no comparison with them holds, also none with
    /// `!=`, and none below `not`. The same is true of options that its type hides.
    pub async fn holds(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        job: &Job,
        may_test_options: bool,
    ) -> Result<bool> {
        let options = match (may_test_options, self.condition.asks_for_options()) {
            (true, true) => TestedOptions::of(tx, keys, job).await?,
            _ => TestedOptions::hidden(),
        };
        let class = job.reason_class();
        let ends_with_reason = matches!(job.state(), State::Crashing | State::Failed | State::Cancelled);
        let reasons = match job.reason().filter(|_| ends_with_reason) {
            Some(reason) => Cow::Owned(job.reasons.iter().cloned().chain([reason.to_owned()]).collect()),
            None => Cow::Borrowed(job.reasons.as_slice()),
        };
        let evaluate = || {
            let members = options.members();
            let option = |path: &[String]| members.option(path);
            self.condition.holds(&Subject {
                id: &job.id,
                job_type: &job.job_type,
                tenant: &job.tenant,
                user: job.user.as_deref(),
                task: job.task.as_deref(),
                tags: &job.tags,
                group: job.group.as_ref().map(|group| group.name.as_str()),
                reasons: &reasons,
                added_us: job.added_us,
                option: &option,
                standing: Some(Standing {
                    states: states(job),
                    priority: job.priority,
                    attempts: job.attempts,
                    crashes: job.streak(self.now_us),
                    changed_us: job.changed_us,
                    ended_us: job.state().is_final().then_some(job.changed_us),
                    reason_class: class.as_deref(),
                    now_us: self.now_us,
                }),
            })
        };
        Ok(searching(self.condition.pattern_bytes(), evaluate).await)
    }

    /// The next jobs that may meet the condition: at most `limit`. Adds no read conflict.
    pub async fn page(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        from: &Position,
        limit: usize,
    ) -> Result<Page> {
        let mut at = Position { by_tags: self.reads_tags(from), ..from.clone() };
        let sources = if at.by_tags { &self.tagged } else { &self.sources };
        let mut jobs = Vec::new();
        for _ in 0..MAX_READS {
            let job_type = match &at.job_type {
                Some(job_type) if at.source < sources.len() => job_type.clone(),
                before => match self.type_after(tx, keys, before.as_deref()).await? {
                    Some(next) => {
                        at = Position { job_type: Some(next.clone()), source: 0, after: None, ..at };
                        next
                    }
                    None => return Ok(Page { jobs, next: None }),
                },
            };
            let Some(source) = sources.get(at.source) else {
                return Ok(Page { jobs, next: None });
            };
            let (mut begin, mut end) = source.range(keys, &job_type);
            let reverse = source.is_reversed();
            if let Some(after) = at.after.as_deref() {
                let after = unhex(after).ok_or_else(|| corrupt("position", "no hexadecimal digits"))?;
                match reverse {
                    true => end = after.into(),
                    false => begin = successor(&after),
                }
            }
            let left = limit - jobs.len();
            let read = RangeRead { begin, end, limit: left, reverse };
            let mut rows = tx.range_with(read, Isolation::Snapshot).await?;
            let found = rows.len();
            if let Some((key, _)) = rows.last() {
                at.after = Some(hex(key));
            }
            if let (Source::Tagged(..), Some(tenants)) = (source, &self.tenants) {
                let of =
                    |key: &Bytes| keys.parse_tagged(key).is_ok_and(|(tenant, _)| tenants.contains(&tenant));
                rows.retain(|(key, _)| of(key));
            }
            let mut next = Vec::with_capacity(rows.len());
            source.jobs(tx, keys, &job_type, rows, &at, &mut next).await?;
            // A job with several of the tags is found by the first one.
            let is_known =
                |job: &Job| sources[..at.source].iter().any(|before| before.has_other_tag(source, job));
            jobs.extend(next.into_iter().filter(|(_, job)| !is_known(job)));
            if found == left {
                break;
            }
            at = Position { source: at.source + 1, after: None, ..at };
        }
        Ok(Page { jobs, next: Some(at) })
    }

    async fn type_after(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        after: Option<&str>,
    ) -> Result<Option<String>> {
        match &self.types {
            Some(types) => {
                Ok(types.iter().find(|next| after.is_none_or(|after| next.as_str() > after)).cloned())
            }
            None => Ok(types_after(tx, keys, after, 1).await?.pop()),
        }
    }
}

/// The values of a field of which a job that meets a condition has one.
fn names(condition: &Condition, field: Indexed) -> Option<Vec<String>> {
    Some(condition.values(field)?.into_iter().map(str::to_owned).collect())
}

/// The sources of jobs with one of these tags.
fn sources_of_tags(tags: &[String], tenants: Option<&[String]>) -> Vec<Source> {
    let tenants = tenants.filter(|tenants| tags.len() * tenants.len() <= MAX_NAMES);
    let of_tag = |tag: &String| match tenants {
        Some(tenants) => tenants.iter().map(|of| Source::Tagged(tag.clone(), Some(of.clone()))).collect(),
        None => vec![Source::Tagged(tag.clone(), None)],
    };
    tags.iter().flat_map(of_tag).collect()
}

/// The sources of jobs in these states; `None` if there is no index for one of them.
fn sources_of(
    states: &BTreeSet<&str>,
    tenants: Option<&[String]>,
    class: Option<u32>,
) -> Option<Vec<Source>> {
    let mut sources: Vec<Source> = Vec::new();
    for state in states {
        let kind = Kind::of_state(state)?;
        let source = match kind {
            Kind::Pending if let Some(tenants) = tenants => {
                sources.extend(tenants.iter().cloned().map(Source::QueueOf));
                continue;
            }
            Kind::Pending => Source::Queues,
            Kind::Delayed | Kind::Parked | Kind::Crashing => Source::Delayed,
            Kind::Blocked => Source::Blocked,
            Kind::Paused => Source::Paused,
            Kind::Limited => return None,
            Kind::Running => Source::Active,
            Kind::Completed | Kind::Failed | Kind::Cancelled => {
                let end = match kind {
                    Kind::Completed => End::Completed,
                    Kind::Failed => End::Failed,
                    _ => End::Cancelled,
                };
                sources.extend(partitions(end, tenants, class).into_iter().map(Source::Ended));
                continue;
            }
        };
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    Some(sources)
}

impl Source {
    /// Whether it is read from its end. Workers claim the heads of queues, and a transaction that changes jobs there would lose
    /// to them again and again.
    fn is_reversed(&self) -> bool {
        matches!(self, Source::QueueOf(_) | Source::Queues)
    }

    /// Whether it has the jobs with another tag than that of `source`, and the job has this tag.
    fn has_other_tag(&self, source: &Source, job: &Job) -> bool {
        match (self, source) {
            (Source::Tagged(other, _), Source::Tagged(tag, _)) => other != tag && job.has_tag(other),
            _ => false,
        }
    }

    pub(crate) fn range(&self, keys: &Keyspace, job_type: &str) -> KeyRange {
        match self {
            Source::Tagged(tag, Some(tenant)) => keys.tagged_of(job_type, tag, tenant),
            Source::Tagged(tag, None) => keys.tagged(job_type, tag),
            Source::Record(id) => {
                let key = keys.job(job_type, id);
                (key.clone(), successor(&key))
            }
            Source::Records => keys.jobs(job_type),
            Source::QueueOf(tenant) => keys.pending_of(job_type, tenant),
            Source::Queues => keys.pending(job_type),
            Source::Delayed => keys.delayed(job_type),
            Source::Blocked => keys.blocked(job_type),
            Source::Paused => keys.paused_of(job_type),
            Source::Active => keys.active(job_type),
            Source::Ended(partitions) => keys.ended_in(job_type, partitions),
        }
    }

    pub(crate) fn id(&self, keys: &Keyspace, key: &[u8]) -> Result<String> {
        Ok(match self {
            Source::Record(_) | Source::Records => keys.parse_job(key)?,
            Source::QueueOf(_) | Source::Queues => keys.parse_pending(key)?.1,
            Source::Delayed => keys.parse_delayed(key)?.1,
            Source::Blocked => keys.parse_blocked(key)?,
            Source::Paused => keys.parse_paused(key)?.2,
            Source::Active => keys.parse_active(key)?.1,
            Source::Ended(_) => keys.parse_ended(key)?.id,
            Source::Tagged(..) => keys.parse_tagged(key)?.1,
        })
    }

    /// The jobs of rows that were read, each with the position after it.
    async fn jobs(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        job_type: &str,
        rows: Vec<(Bytes, Bytes)>,
        at: &Position,
        jobs: &mut Vec<(Position, Job)>,
    ) -> Result<()> {
        let after = |key: &[u8]| Position { after: Some(hex(key)), ..at.clone() };
        let mut ids = Vec::with_capacity(rows.len());
        for (key, value) in rows {
            let id = self.id(keys, &key)?;
            if matches!(self, Source::Record(_) | Source::Records) {
                let mut job = decode_job(&value)?;
                (job.id, job.job_type) = (id, job_type.to_owned());
                jobs.push((after(&key), job));
            } else {
                ids.push((after(&key), id));
            }
        }
        for chunk in ids.chunks(PREFETCHED) {
            prefetch(tx, keys, chunk.iter().map(|(_, id)| (job_type, id.as_str()))).await?;
            for (position, id) in chunk {
                if let Some(job) = peek(tx, keys, job_type, id).await? {
                    jobs.push((position.clone(), job));
                }
            }
        }
        Ok(())
    }
}

/// The states of a job, as conditions name them.
pub(crate) fn states(job: &Job) -> &'static [&'static str] {
    match &job.place {
        Place::Parked { .. } => &["delayed", "parked"],
        Place::Active(run) if run.waits.is_some() => &["waiting"],
        place => Kind::of(place).names(),
    }
}

/// Evaluates a condition whose patterns cost this much, once no other one of this process is searching. So the patterns of all clients
/// occupy one thread at most, and each search is short.
pub async fn searching<T>(pattern_bytes: usize, evaluate: impl FnOnce() -> T) -> T {
    static SEARCHES: Semaphore = Semaphore::const_new(1);
    if pattern_bytes == 0 {
        return evaluate();
    }
    let permit = SEARCHES.acquire().await;
    let result = evaluate();
    drop(permit);
    // A task that searches job after job lets others run in between.
    tokio::task::consume_budget().await;
    result
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sources(text: &str) -> Vec<Source> {
        let Selection { sources, tagged, by_tags, .. } = Selection::parse(text, 0).unwrap();
        if by_tags { tagged } else { sources }
    }

    #[test]
    fn expensive_patterns_reduce_how_many_jobs_are_looked_at() {
        let looks = |text: &str| Selection::parse(text, 0).unwrap().most_looks(2_000);
        assert_eq!((looks("type = mail"), looks("reason ~ 'timeout'")), (2_000, 2_000));
        let most = looks("id ~ '[a-z]{150}' or reason ~ '[a-z]{150}'");
        assert!((50..200).contains(&most), "{most}");
    }

    #[test]
    fn a_condition_is_searched_through_its_narrowest_index() {
        let of = |tenant: &str| Source::QueueOf(tenant.to_owned());
        let tagged =
            |tag: &str, tenant: Option<&str>| Source::Tagged(tag.to_owned(), tenant.map(str::to_owned));
        for (text, expected) in [
            ("", vec![Source::Records]),
            ("tenant = acme", vec![Source::Records]),
            ("state = pending", vec![Source::Queues]),
            ("state = pending and tenant in (a, b)", vec![of("a"), of("b")]),
            ("state in (delayed, crashing) and age > 2d", vec![Source::Delayed]),
            (
                "state in (failed, blocked, cancelled)",
                vec![Source::Blocked, Source::Ended(64..=127), Source::Ended(128..=191)],
            ),
            ("state = failed or state = running", vec![Source::Ended(128..=191), Source::Active]),
            ("state = completed and tenant = a", vec![Source::Ended(44..=44)]),
            ("state = paused and reason = x", vec![Source::Paused]),
            ("state in (limited, pending)", vec![Source::Records]),
            ("state = failed or tenant = a", vec![Source::Records]),
            ("not state = failed", vec![Source::Records]),
            ("id = a and state = failed", vec![Source::Record("a".to_owned())]),
            ("tag in (eu, us) and age > 2d", vec![tagged("eu", None), tagged("us", None)]),
            ("tag = eu and tenant in (a, b)", vec![tagged("eu", Some("a")), tagged("eu", Some("b"))]),
            ("tag = eu and id = a", vec![Source::Record("a".to_owned())]),
            ("tag != eu", vec![Source::Records]),
            ("tag = eu or tenant = a", vec![Source::Records]),
            // `narrowed` decides.
            ("tag = eu and state = running", vec![Source::Active]),
        ] {
            assert_eq!(sources(text), expected, "{text}");
        }
        let many: Vec<String> = (0..99).map(|n| format!("t{n}")).collect();
        assert_eq!(sources(&format!("state = pending and tenant in ({})", many.join(", "))).len(), 99);
        for (text, may_miss) in [
            ("", false),
            ("state = failed", false),
            ("id in (a, b)", false),
            ("state = pending", true),
            ("state = running", true),
            ("state in (blocked, failed)", true),
            ("tag in (eu, us)", false),
        ] {
            let selection = Selection::parse(text, 0).unwrap();
            assert_eq!(selection.may_miss(&Position::default()), may_miss, "{text}");
        }
    }
}
