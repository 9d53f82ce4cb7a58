//! A schedule as a row, and what a client states of it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
pub use turnwise_calendar::job_id;
use turnwise_calendar::{Calendar, Fire};
pub use turnwise_policy::fire::Overlap;

use crate::error::{Error, Result};
use crate::names::check_name;
use crate::spec::{JobSpec, NewJob};
use crate::unique::OnConflict;

/// Longest name of a schedule, in bytes.
pub const MAX_SCHEDULE_NAME_BYTES: usize = 128;
/// Longest note, in bytes.
pub const MAX_NOTE_BYTES: usize = 500;
/// The longest jitter, in µs: a day.
pub const MAX_JITTER_US: i64 = 86_400 * 1_000_000;
/// The most fires that [`Missed::All`] makes up for.
pub const MAX_MISSED: u32 = 100;
/// The most failures in a row that a schedule may wait for before it pauses.
pub const MAX_PAUSE_AFTER: u32 = 1_000;
/// How many fires a schedule remembers.
pub const MAX_FIRES: usize = 10;
/// Longest reason of a refused fire, in bytes.
const MAX_REFUSAL_BYTES: usize = 200;

/// A schedule: when it adds a job, and which one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name. In the key, not in the value.
    #[serde(skip)]
    pub name: String,
    /// The tenant of its jobs: that of the template.
    #[serde(skip)]
    pub tenant: String,
    /// When it fires.
    pub calendar: Calendar,
    /// Its jobs start up to this much later than they are scheduled, in µs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jitter_us: i64,
    /// What it does about fires whose time came while no server ran.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missed: Missed,
    /// What it does while its last job has not ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overlap: Overlap,
    /// It pauses after so many failures of its jobs in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_after: Option<u32>,
    /// Why it does not fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// A text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Its jobs.
    pub template: Template,
    /// When it fires next, in µs; `None` while it is paused, and when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
    /// The time behind which `next` lies: all instants until then are dealt with, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dealt_us: Option<i64>,
    /// The version of the zone data with which `next` was computed.
    pub zone_data: String,
    /// When it was created, in µs.
    pub created_us: i64,
    /// When a client has changed it last, in µs.
    pub changed_us: i64,
    /// The identity that has written it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Its last fires, newest first: at most [`MAX_FIRES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fires: Vec<FireRecord>,
    /// The id of the last job that it has added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<String>,
    /// The size of the options of its jobs, which are in rows of their own.
    #[serde(default)]
    pub(crate) options_bytes: usize,
}

/// What the jobs of a schedule are made of, beside their options.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Template {
    /// Their type.
    pub job_type: String,
    /// What they keep. The schedule states `schedule` for each of them.
    #[serde(with = "crate::record::spec_alone")]
    pub spec: JobSpec,
    /// Their priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i8>,
    /// Whether a client states their locks; else the catalogue derives them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub states_locks: bool,
}

/// What a schedule does about fires that are more than a minute late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// One job for all of them, at the latest instant.
    #[default]
    One,
    /// Nothing.
    Skip,
    /// A job for each of the latest.
    All {
        /// How many of them: 1 to [`MAX_MISSED`].
        most: u32,
    },
}

/// That a schedule does not fire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Who has paused it.
    pub by: PausedBy,
    /// Since when, in µs.
    pub at_us: i64,
}

/// Who pauses and resumes schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PausedBy {
    /// A client of its tenant.
    Client,
    /// An operator: clients cannot resume the schedule.
    Operator,
    /// Its jobs have failed too often in a row.
    Failures,
}

/// What came of an instant of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FireRecord {
    /// The instant, in µs.
    pub at_us: i64,
    /// When the schedule dealt with it, in µs.
    pub fired_us: i64,
    /// What it did.
    pub outcome: Outcome,
    /// The id of the job, if there is one. With [`Outcome::Found`], that of the job that has the key, which may be of another type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// What a schedule did about an instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has added the job.
    Added,
    /// It has added none, because the last one has not ended.
    Skipped,
    /// It has added none, because no server ran in time. Stands for all instants before it that were missed as well.
    Missed,
    /// A job with this id was there already.
    Exists,
    /// The job could not be added.
    Refused(String),
    /// Another job has the unique key of the job: that happened which the job states.
    Found,
    /// It has added none, because its tenant has as many waiting jobs of the type as it may.
    Full,
}

impl Outcome {
    /// All names, in metrics and answers.
    pub const NAMES: [&str; 7] = ["added", "skipped", "missed", "exists", "refused", "found", "full"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The place of its name among all of them.
    pub fn index(&self) -> usize {
        match self {
            Outcome::Added => 0,
            Outcome::Skipped => 1,
            Outcome::Missed => 2,
            Outcome::Exists => 3,
            Outcome::Refused(_) => 4,
            Outcome::Found => 5,
            Outcome::Full => 6,
        }
    }

    pub(crate) fn refused(problem: &str) -> Outcome {
        Outcome::Refused(problem[..problem.floor_char_boundary(MAX_REFUSAL_BYTES)].to_owned())
    }
}

/// A schedule as a client states it. Not printable: its options may hold secrets.
#[derive(Clone)]
pub struct NewSchedule {
    /// Its name.
    pub name: String,
    /// When it fires.
    pub calendar: Calendar,
    /// See [`Schedule::jitter_us`].
    pub jitter_us: i64,
    /// See [`Schedule::missed`].
    pub missed: Missed,
    /// See [`Schedule::overlap`].
    pub overlap: Overlap,
    /// See [`Schedule::pause_after`].
    pub pause_after: Option<u32>,
    /// Whether it is paused; `None` leaves that as it is.
    pub paused: Option<bool>,
    /// A text for people.
    pub note: Option<String>,
    /// Its jobs.
    pub template: Template,
    /// The options of its jobs.
    pub options: Box<RawValue>,
    /// The identity that writes it.
    pub by: Option<String>,
    /// In whose name it is paused, or resumed.
    pub pauses_as: PausedBy,
    /// The most schedules of the tenant.
    pub most_of_tenant: usize,
}

impl NewSchedule {
    /// A schedule that states nothing else.
    pub fn new(name: &str, calendar: Calendar, template: Template, options: Box<RawValue>) -> Self {
        NewSchedule {
            name: name.to_owned(),
            calendar,
            jitter_us: 0,
            missed: Missed::default(),
            overlap: Overlap::default(),
            pause_after: None,
            paused: None,
            note: None,
            template,
            options,
            by: None,
            pauses_as: PausedBy::Client,
            most_of_tenant: super::MAX_SCHEDULES_OF_TENANT,
        }
    }

    /// Whether it could be stored, as far as its own fields show. The calendar is checked apart, where it is new.
    ///
    /// # Errors
    /// `Invalid` with the field that is out of bounds.
    pub fn check(&self) -> Result<()> {
        let invalid = |field, problem: String| Err(Error::Invalid { field, problem });
        check_schedule_name(&self.name)?;
        if let Some(note) = &self.note {
            check_name("note", note, MAX_NOTE_BYTES)?;
        }
        if !(0..=MAX_JITTER_US).contains(&self.jitter_us) {
            return invalid("jitter", "must be between 0 and a day".to_owned());
        }
        if let Missed::All { most } = self.missed
            && !(1..=MAX_MISSED).contains(&most)
        {
            return invalid("missed", format!("must name 1 to {MAX_MISSED} fires"));
        }
        if matches!(self.missed, Missed::All { .. }) && self.overlap == Overlap::Skip {
            let problem = "`all` is not possible with `overlap: skip`, which skips all but the first of them: choose `allow` or `queue`";
            return invalid("missed", problem.to_owned());
        }
        let on_conflict = self.template.spec.unique.as_ref().map(|unique| unique.on_conflict);
        if matches!(self.overlap, Overlap::Queue | Overlap::CancelRunning)
            && matches!(on_conflict, Some(OnConflict::Replace | OnConflict::After))
        {
            let problem = "`queue` and `cancel_running` make a job wait for the earlier one, which is not possible with `on_conflict` `replace` and `after`: choose `skip` or `allow`";
            return invalid("overlap", problem.to_owned());
        }
        if self.pause_after.is_some_and(|after| !(1..=MAX_PAUSE_AFTER).contains(&after)) {
            return invalid("pause_after", format!("must be between 1 and {MAX_PAUSE_AFTER}"));
        }
        let job = NewJob {
            spec: self.template.spec.clone(),
            priority: self.template.priority,
            ..NewJob::new(&self.template.job_type, &self.name, self.options.clone())
        };
        job.check()
    }
}

/// Whether a text may be the name of a schedule. The ids of its jobs have an `@` behind it, and pages a `/`.
///
/// # Errors
/// `Invalid` with the problem.
pub fn check_schedule_name(name: &str) -> Result<()> {
    check_name("name", name, MAX_SCHEDULE_NAME_BYTES)?;
    match name.contains(['@', '/']) {
        true => Err(Error::Invalid { field: "name", problem: "must not contain @ or /".to_owned() }),
        false => Ok(()),
    }
}

impl Schedule {
    /// Notes what came of an instant.
    pub(crate) fn note(&mut self, fire: FireRecord) {
        self.fires.insert(0, fire);
        self.fires.truncate(MAX_FIRES);
    }

    /// Fires next behind this instant, unless it is paused.
    pub(crate) fn await_next(&mut self, after_us: i64) {
        let next = self.calendar.next(after_us).filter(|_| self.paused.is_none());
        self.next = next.map(|Fire { at_us, .. }| at_us);
        self.dealt_us = Some(after_us);
        self.zone_data = turnwise_calendar::zone_data();
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
