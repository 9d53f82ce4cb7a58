//! What a client states of a job: its [`JobSpec`], and the [`NewJob`] with which it is added.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_policy::eligibility::{concurrency, rate};
use turnwise_policy::predictive_queue::locks::{Levels, Requests};

use crate::after::{self, After};
use crate::error::{Error, Result};
use crate::input::{self, Inputs};
use crate::lifetime::Lifetime;
use crate::locks::MAX_LOCKS_BYTES;
use crate::member::{Callback, GROUP_TAG, Member, check_group_name};
use crate::names::{check_name, check_tag, check_task};
use crate::terms::{Retry, StatedTerms, Terms};
use crate::timeouts::Timeouts;
use crate::trace::TraceContext;
use crate::unique_key::{OnConflict, Unique};

/// Longest job type, in bytes.
pub const MAX_TYPE_BYTES: usize = 64;
/// Longest job id, in bytes. With a type and a worker id it is far below the store's 10 kB for a key.
pub const MAX_ID_BYTES: usize = 512;
/// Longest tenant or user name, in bytes.
pub const MAX_NAME_BYTES: usize = 512;
/// The most tags of a job, without that of its group.
pub const MAX_TAGS: usize = 16;
/// Largest options, in bytes. Large options are stored in pieces, so that no value exceeds the store's limit.
pub const MAX_OPTIONS_BYTES: usize = 4 << 20;
/// Largest summary, info or result, in bytes. A record has all three (36 kB), inline options (8 kB), tags (1 kB), and a history of 23 kB
/// that JSON's escapes may double. Together they stay below the store's 100 kB for a value.
pub const MAX_INFO_BYTES: usize = 12 << 10;
/// The priority that runs first.
pub const MIN_PRIORITY: i8 = -20;
/// The priority that runs last.
pub const MAX_PRIORITY: i8 = 19;
/// The most reasons that a job is added with.
pub const MAX_REASONS: usize = 10;
/// Longest such reason, in bytes.
const MAX_ADDED_REASON_BYTES: usize = 200;
/// The tenant of jobs that name none.
pub const DEFAULT_TENANT: &str = "default";

/// What a client states of a job and the job keeps: a new job has it, and the record of a job, under the same names
/// (`record.rs`). A job that is added again takes that of its new request.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// The account that it is charged to.
    pub tenant: String,
    /// On whose behalf it runs.
    pub user: Option<String>,
    /// What it does, within its type ([`crate::tasks`]).
    pub task: Option<String>,
    /// Words by which it is found ([`crate::tags`]): at most [`MAX_TAGS`].
    pub tags: BTreeSet<String>,
    /// It never ends by itself: it may be preempted for another job, and continues later.
    pub continuous: bool,
    /// Why it was added: filters read this, and some reasons state a limit ([`concurrency::of_reason`], [`rate::of_reason`]). At most
    /// [`MAX_REASONS`].
    pub reasons: Vec<String>,
    /// The locks that it declares; see [`NewJob::check_locks`].
    pub locks: Requests,
    /// The crash of this attempt, counted from 1, fails the job; 0 retries it forever. Its type's setting applies where there is
    /// none.
    pub max_attempts: Option<u32>,
    /// The timeouts of its runs; its type's settings apply where it has none.
    pub timeouts: Timeouts,
    /// How it is tried again; what its type states applies where there is nothing.
    pub retry: Retry,
    /// How long it may wait for its first start, and is kept; what its type states applies where there is nothing.
    pub lifetime: Lifetime,
    /// The key of which it is the only job ([`crate::unique`]).
    pub unique: Option<Unique>,
    /// The jobs whose results it gets ([`crate::followers`]). It waits for those that are also in [`NewJob::after`].
    pub inputs: Inputs,
    /// What may be shown to every user who may see the job: a JSON object that never contains a secret.
    pub summary: Box<RawValue>,
    /// Its options are cleared when it ends: they hold passwords, and a client that adds it again has them.
    pub forgets_options: bool,
    /// The span that added it, if its trace is sampled.
    pub trace: Option<TraceContext>,
    /// The schedule that added it ([`crate::schedules`]).
    pub schedule: Option<Scheduled>,
    /// The group of which it is a member ([`crate::groups`]).
    pub group: Option<Member>,
    /// The group that has added it.
    pub callback: Option<Callback>,
}

/// Which instant of which schedule a job is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduled {
    /// The schedule.
    pub name: String,
    /// The instant, in µs.
    pub at_us: i64,
    /// When the schedule has added the job, in µs.
    pub fired_us: i64,
}

impl Default for JobSpec {
    /// A job of the tenant [`DEFAULT_TENANT`] that states nothing else.
    fn default() -> Self {
        JobSpec {
            tenant: DEFAULT_TENANT.to_owned(),
            user: None,
            task: None,
            tags: BTreeSet::new(),
            continuous: false,
            reasons: Vec::new(),
            locks: Requests::default(),
            max_attempts: None,
            timeouts: Timeouts::default(),
            retry: Retry::default(),
            lifetime: Lifetime::default(),
            unique: None,
            inputs: Inputs::new(),
            summary: no_summary(),
            forgets_options: false,
            trace: None,
            schedule: None,
            group: None,
            callback: None,
        }
    }
}

impl JobSpec {
    /// The terms of a run: what the job states, and what holds for its type where it states nothing. The attempts of a continuous
    /// job have no end, unless it states one: each of them may last for months.
    #[must_use]
    pub fn run_terms(&self, of_type: &Terms) -> Terms {
        let stated = StatedTerms {
            max_attempts: self.max_attempts,
            timeouts: self.timeouts,
            retry: self.retry.clone(),
            lifetime: self.lifetime,
            final_errors: Vec::new(),
        };
        let mut terms = stated.over(of_type);
        terms.max_attempts = self.run_attempts(of_type.max_attempts);
        if self.continuous {
            terms.timeouts.run_us = None;
        }
        terms
    }

    /// The attempts of the job, if those of its type are these; `None` is without end.
    pub(crate) fn run_attempts(&self, of_type: Option<u32>) -> Option<u32> {
        self.max_attempts.or(of_type.filter(|_| !self.continuous)).filter(|most| *most > 0)
    }

    /// Its tags, and as one more of them its group.
    pub fn all_tags(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let group = self.group.as_ref().map(|group| Cow::Owned(group.tag()));
        self.tags.iter().map(|tag| Cow::Borrowed(tag.as_str())).chain(group)
    }

    /// Whether this is one of [`JobSpec::all_tags`].
    pub fn has_tag(&self, tag: &str) -> bool {
        let is_group = |group: &Member| tag.strip_prefix(GROUP_TAG) == Some(group.name.as_str());
        self.tags.contains(tag) || self.group.as_ref().is_some_and(is_group)
    }

    fn check(&self) -> Result<()> {
        check_name("tenant", &self.tenant, MAX_NAME_BYTES)?;
        if let Some(user) = &self.user {
            check_name("user", user, MAX_NAME_BYTES)?;
        }
        self.task.as_deref().map_or(Ok(()), check_task)?;
        if self.tags.len() > MAX_TAGS {
            let problem = format!("has {} words; at most {MAX_TAGS} are allowed", self.tags.len());
            return Err(Error::Invalid { field: "tags", problem });
        }
        self.tags.iter().try_for_each(|tag| check_tag("tags", tag))?;
        if self.tags.iter().any(|tag| tag.starts_with(GROUP_TAG)) {
            let problem = format!("{GROUP_TAG}NAME is the tag of a group; name the group in `group`");
            return Err(Error::Invalid { field: "tags", problem });
        }
        self.group.as_ref().map_or(Ok(()), |group| check_group_name("group", &group.name))?;
        check_size("summary", &self.summary, MAX_INFO_BYTES)?;
        if !self.locks.is_none() {
            check_requests(&self.locks)?;
        }
        // One is that of its group.
        if self.reasons.len() > MAX_REASONS + usize::from(self.group.is_some()) {
            let problem = format!("has {} texts; at most {MAX_REASONS} are allowed", self.reasons.len());
            return Err(Error::Invalid { field: "reason", problem });
        }
        let mut rates = Vec::new();
        for reason in &self.reasons {
            check_name("reason", reason, MAX_ADDED_REASON_BYTES)?;
            let invalid = |problem| Error::Invalid { field: "reason", problem };
            concurrency::of_reason(reason).map_err(invalid)?;
            let Some(limit) = rate::of_reason(reason).map_err(invalid)? else { continue };
            if rates.contains(&limit.bucket) {
                return Err(invalid(format!(
                    "`{reason}`: another reason states a rate of this name; give each its own name"
                )));
            }
            rates.push(limit.bucket);
        }
        self.timeouts.check()?;
        self.retry.check()?;
        self.unique.as_ref().map_or(Ok(()), Unique::check)?;
        self.lifetime.check()
    }
}

/// A job to be added. It has the fields of its [`JobSpec`], and what the record does not keep, or not as the client stated it.
#[derive(Clone)]
pub struct NewJob {
    /// Its type, which decides the handler.
    pub job_type: String,
    /// Its id, unique within the type.
    pub id: String,
    /// What the job keeps.
    pub spec: JobSpec,
    /// What the handler needs. May contain secrets: only its worker reads them, and large ones are in rows of their own.
    pub options: Box<RawValue>,
    /// See [`Job::priority`](crate::JobFields::priority), which an operator may change. `None` keeps the priority of a job that is added
    /// again; a new job gets 0.
    pub priority: Option<i8>,
    /// It does not start before this time, in µs.
    pub not_before_us: Option<i64>,
    /// Its order in its tenant's queue; the time of adding by default. It keeps jobs that one transaction adds in the order
    /// in which the client named them.
    pub order_us: Option<i64>,
    /// Its dependencies: at most [`MAX_AFTER`](crate::MAX_AFTER) jobs.
    pub after: Vec<After>,
}

impl Deref for NewJob {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.spec
    }
}

/// Omits the options: they may hold secrets.
impl fmt::Debug for NewJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewJob { job_type, id, spec, priority, not_before_us, order_us, after, options: _ } = self;
        f.debug_struct("NewJob")
            .field("job_type", job_type)
            .field("id", id)
            .field("spec", spec)
            .field("priority", priority)
            .field("not_before_us", not_before_us)
            .field("order_us", order_us)
            .field("after", after)
            .finish_non_exhaustive()
    }
}

impl NewJob {
    /// A job of the tenant [`DEFAULT_TENANT`], without a summary, that starts as soon as possible.
    pub fn new(job_type: &str, id: &str, options: Box<RawValue>) -> Self {
        NewJob {
            job_type: job_type.to_owned(),
            id: id.to_owned(),
            spec: JobSpec::default(),
            options,
            priority: None,
            not_before_us: None,
            order_us: None,
            after: Vec::new(),
        }
    }

    /// The job with changes to its spec.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut JobSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// Whether the declared locks are possible with the configured levels. [`jobs::add`](crate::jobs::add) does not know the
    /// levels, and checks only the size.
    ///
    /// # Errors
    /// `Invalid` with the position in the declaration, the problem, and what would be right.
    pub fn check_locks(&self, levels: &Levels) -> Result<()> {
        let invalid = |problem| Error::Invalid { field: "locks", problem };
        levels
            .check(&self.locks)
            .map_err(|refused| invalid(format!("{}: {}", refused.level, refused.problem)))
    }

    /// Whether the job could be added, as far as its own fields show: [`jobs::add`](crate::jobs::add) makes the same checks.
    ///
    /// # Errors
    /// `Invalid` with the field that is empty, too long, out of range, or holds control characters.
    pub fn check(&self) -> Result<()> {
        check_name("type", &self.job_type, MAX_TYPE_BYTES)?;
        check_name("id", &self.id, MAX_ID_BYTES)?;
        self.spec.check()?;
        check_size("options", &self.options, MAX_OPTIONS_BYTES)?;
        after::check(&self.job_type, &self.id, &self.after)?;
        input::check(&self.job_type, &self.id, &self.inputs)?;
        for input in self.inputs.values() {
            check_name("inputs.type", &input.job_type, MAX_TYPE_BYTES)?;
            check_name("inputs.id", &input.id, MAX_ID_BYTES)?;
        }
        let on_conflict = self.unique.as_ref().map(|unique| unique.on_conflict);
        if !self.after.is_empty() && matches!(on_conflict, Some(OnConflict::Replace | OnConflict::After)) {
            let problem = "a job that is found keeps its dependencies: with `after`, only `keep` and `reject` are possible";
            return Err(Error::Invalid { field: "unique.on_conflict", problem: problem.to_owned() });
        }
        self.priority.map_or(Ok(()), check_priority)
    }
}

pub(crate) fn check_priority(priority: i8) -> Result<()> {
    if (MIN_PRIORITY..=MAX_PRIORITY).contains(&priority) {
        return Ok(());
    }
    let problem = format!("must be from {MIN_PRIORITY} (first) to {MAX_PRIORITY} (last)");
    Err(Error::Invalid { field: "priority", problem })
}

/// Whether a declaration fits into a job's record.
fn check_requests(locks: &Requests) -> Result<()> {
    let bytes = crate::encoding::encode(locks).len();
    if bytes <= MAX_LOCKS_BYTES {
        return Ok(());
    }
    let problem = format!("has {bytes} bytes; at most {MAX_LOCKS_BYTES} are allowed: ask for all of a level");
    Err(Error::Invalid { field: "locks", problem })
}

pub(crate) fn check_size(field: &'static str, json: &RawValue, limit: usize) -> Result<()> {
    match json.get().len() {
        n if n > limit => {
            Err(Error::Invalid { field, problem: format!("has {n} bytes; at most {limit} are allowed") })
        }
        _ => Ok(()),
    }
}

pub(crate) fn no_summary() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("this is JSON")
}

pub(crate) fn is_no_summary(summary: &RawValue) -> bool {
    summary.get() == "{}"
}
