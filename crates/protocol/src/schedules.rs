//! Schedules: `PUT /v1/schedules/{name}` makes the server add a job again and again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::jobs::{LastSuccess, NewJob};
use crate::locks::Locks;
use crate::names::{self, JobId, Problem};
use crate::word::words;

/// Longest name of a schedule, in bytes.
pub const MAX_SCHEDULE_NAME_BYTES: usize = 128;
/// Most fires in a preview.
pub const MAX_PREVIEW: usize = 100;
/// Fires in a preview, unless the request states another number.
pub const DEFAULT_PREVIEW: usize = 10;
/// Most jobs that one request to backfill adds.
pub const MAX_BACKFILL: usize = 1_000;

/// When a schedule fires: exactly one of `cron`, `every_ms` and `dates_us`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "cron": "30 2 * * *", "zone": "Europe/Berlin" }))]
pub struct When {
    /// A cron expression: minute, hour, day of the month, month, day of the week, and optionally a second before them or a year after them. At most 256
    /// bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub cron: Option<String>,
    /// The time zone of `cron`, by its IANA name, as `Europe/Berlin`. UTC by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub zone: Option<String>,
    /// The time between two fires, in ms: 1 s to ten years. It is counted from 1970 on, and not from the last fire.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1_000, maximum = 315_619_200_000_u64)]
    pub every_ms: Option<u64>,
    /// With `every_ms`: moves every fire by this time, in ms.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 315_360_000_000_u64)]
    pub offset_ms: Option<u64>,
    /// These times alone, in µs since the Unix epoch: at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub dates_us: Vec<i64>,
    /// No fire before this time, in µs since the Unix epoch.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub from_us: Option<i64>,
    /// No fire after this time, in µs since the Unix epoch.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub until_us: Option<i64>,
}

/// A cron expression, with an IANA zone behind it if it is not in UTC: `30 2 * * * Europe/Berlin`.
impl From<&str> for When {
    fn from(text: &str) -> When {
        let (cron, zone) = match text.trim().rsplit_once(' ') {
            Some((cron, zone))
                if zone == "UTC" || zone.starts_with(char::is_alphabetic) && zone.contains('/') =>
            {
                (cron.trim(), Some(zone.to_owned()))
            }
            _ => (text.trim(), None),
        };
        When { cron: Some(cron.to_owned()), zone, ..When::default() }
    }
}

words! {
    /// What happens to fires that no server could make in time, because none ran or the store did not answer for more than a minute.
    #[derive(Default)]
    pub enum Missed {
        /// The last one is made late, and the others not.
        #[default]
        One = "one",
        /// None is made.
        Skip = "skip",
        /// The last `most_missed` of them are made. Not possible with `overlap: skip`. With `overlap: queue`, they wait for each other.
        All = "all",
    }
}

words! {
    /// What happens to a fire while the job of an earlier fire has not ended.
    #[derive(Default)]
    pub enum Overlap {
        /// No job is added, and the fire is shown as skipped.
        #[default]
        Skip = "skip",
        /// A job is added, and both may run.
        Allow = "allow",
        /// One job is added, which starts when the earlier one has ended. Further fires are skipped.
        Queue = "queue",
        /// The earlier job is cancelled, and a job is added.
        CancelRunning = "cancel_running",
    }
}

/// A schedule to be written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "when": { "cron": "30 2 * * *", "zone": "Europe/Berlin" },
    "job": { "type": "report", "options": { "of": "yesterday" } }
}))]
pub struct PutSchedule {
    /// When it fires.
    #[serde(deserialize_with = "crate::object::object")]
    pub when: When,
    /// The job that each fire adds, as in `POST /v1/jobs`, but without `id`, `delay_ms`, `not_before_us`, `after`, `count` and `if_exists`. Its tenant owns the
    /// schedule. A job of type `replication` has as its options what `POST /_replicate` takes. If `options` is left out, an existing schedule keeps
    /// those that it has.
    #[serde(deserialize_with = "crate::object::object")]
    pub job: NewJob,
    /// Each job starts up to this time later, by chance, in ms: at most a day. It may be longer than the time between two fires: jobs may then start in another
    /// order than that of their fires, and one that has not started counts for `overlap`.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 86_400_000_u64)]
    pub jitter_ms: Option<u64>,
    /// What happens to fires that were missed.
    #[serde(default)]
    #[schema(default = "one")]
    pub missed: Missed,
    /// With `missed: all`: how many of them are made at most, 1 to 100. 100 if it is left out.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub most_missed: Option<u32>,
    /// What happens while an earlier job has not ended.
    #[serde(default)]
    #[schema(default = "skip")]
    pub overlap: Overlap,
    /// The schedule pauses after this number of its jobs in a row has failed: 1 to 1,000. It does so at its next fire, which adds no job. By default it does
    /// not.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub pause_after: Option<u32>,
    /// Whether it is paused. Left out, a new schedule fires, and an existing one stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Why it exists, for people: at most 500 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 500)]
    pub note: Option<String>,
}

words! {
    /// Whether a schedule fires.
    pub enum ScheduleState {
        /// It has a next fire.
        Active = "active",
        /// It is paused.
        Paused = "paused",
        /// It has no fire any more.
        Over = "over",
    }
}

words! {
    /// Who has paused a schedule.
    pub enum PausedBy {
        /// A client of its tenant.
        Client = "client",
        /// An operator. Only an operator resumes it.
        Operator = "operator",
        /// The server, because `pause_after` jobs in a row have failed.
        Failures = "failures",
    }
}

words! {
    /// The outcome of a fire.
    pub enum FireOutcome {
        /// A job was added.
        Added = "added",
        /// No job was added, because an earlier one has not ended.
        Skipped = "skipped",
        /// No job was added, because the fire was missed.
        Missed = "missed",
        /// The job of this fire existed already.
        Exists = "exists",
        /// No job was added, because the queue refused it.
        Refused = "refused",
        /// Another job has the unique key of the job: what its `on_conflict` states happened, except that `reject` adds no job and is no error.
        Found = "found",
        /// No job was added, because the tenant has as many waiting jobs of the type as it may.
        Full = "full",
    }
}

words! {
    /// How a change of clocks moves a fire.
    pub enum Moved {
        /// Its local time does not exist on that day. It fires at the first time that does.
        Skipped = "skipped",
        /// Its local time comes twice on that day. It fires at the first one.
        Twice = "twice",
    }
}

answers! {
    /// A fire that has been.
    #[derive(PartialEq, Eq)]
    pub struct ScheduleFire {
        /// Its time by the schedule, in µs since the Unix epoch.
        pub at_us: i64,
        /// When it was made.
        pub fired_us: i64,
        /// Its outcome.
        pub outcome: FireOutcome,
        /// Why the queue refused its job.
        pub reason: Option<String>,
        /// The id of its job. With `found`, of the job that has the unique key.
        pub job: Option<String>,
    }

    /// A fire to come.
    #[derive(PartialEq, Eq)]
    pub struct PreviewedFire {
        /// Its time, in µs since the Unix epoch.
        pub at_us: i64,
        /// Its time in the zone of the schedule, with the offset from UTC.
        pub local: String,
        /// How a change of clocks moves it.
        pub moved: Option<Moved>,
    }

    /// The next fires of a schedule.
    #[derive(PartialEq, Eq)]
    pub struct SchedulePreview {
        /// The fires, in order. Fewer than were asked for if the schedule is over then.
        pub fires: Vec<PreviewedFire>,
        /// The version of the server's time zone data.
        pub zone_data: String,
    }

    /// A schedule.
    pub struct Schedule {
        /// Its name.
        pub name: String,
        /// The tenant that it belongs to, and that its jobs are charged to.
        pub tenant: String,
        /// When it fires.
        pub when: When,
        /// The job that each fire adds. Its options are shown to those who may change the schedule, up to 64 kB and without what the type hides; in lists they
        /// are left out.
        pub job: NewJob,
        /// The locks of its jobs, if the catalogue derives them from the options. Those that a client states are in `job`.
        pub derived_locks: Option<Locks>,
        /// Each job starts up to this time later, in ms.
        pub jitter_ms: u64,
        /// What happens to fires that were missed.
        pub missed: Missed,
        /// With `missed: all`: how many of them are made at most.
        pub most_missed: Option<u32>,
        /// What happens while an earlier job has not ended.
        pub overlap: Overlap,
        /// It pauses after this number of its jobs in a row has failed.
        pub pause_after: Option<u32>,
        /// Why it exists.
        pub note: Option<String>,
        /// Whether it fires.
        pub state: ScheduleState,
        /// Who has paused it.
        pub paused_by: Option<PausedBy>,
        /// When it was paused.
        pub paused_us: Option<i64>,
        /// Its next fire.
        pub next: Option<PreviewedFire>,
        /// Its last fires, the latest first: at most ten.
        pub fires: Vec<ScheduleFire>,
        /// How many of its jobs in a row have failed. Lists leave it out.
        pub failures: Option<u32>,
        /// The last job that has completed. Lists leave it out.
        pub last_success: Option<LastSuccess>,
        /// The version of the time zone data with which the next fire was determined.
        pub zone_data: String,
        /// The identity that wrote it last.
        pub by: Option<String>,
        /// When it was created, in µs since the Unix epoch.
        pub created_us: i64,
        /// When a client has changed it last.
        pub changed_us: i64,
    }

    /// A page of schedules, by name.
    pub struct Schedules {
        /// The schedules.
        pub schedules: Vec<Schedule>,
        /// There may be more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }
}

/// The result of removing a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedSchedule {
    /// It does not exist any more. Its jobs stay.
    pub removed: bool,
}

/// A preview of a schedule that is not stored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "when": { "cron": "30 2 * * *", "zone": "Europe/Berlin" }, "count": 3 }))]
pub struct PreviewSchedule {
    /// When it fires.
    #[serde(deserialize_with = "crate::object::object")]
    pub when: When,
    /// How many fires to show: 1 to 100. 10 if it is left out.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<usize>,
    /// The fires after this time, in µs since the Unix epoch. By default those after now.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub after_us: Option<i64>,
}

/// The result of a fire by a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FiredSchedule {
    /// The id of the job that was added. With `found`, of the job that has the unique key.
    #[schema(value_type = JobId)]
    pub job: String,
    /// `added`, or `found` if another job has the unique key, or `exists`.
    pub outcome: FireOutcome,
}

/// Which fires of the past to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "from_us": 1_790_000_000_000_000_i64, "to_us": 1_790_100_000_000_000_i64, "dry_run": true }))]
pub struct Backfill {
    /// The fires from this time on, in µs since the Unix epoch.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub from_us: i64,
    /// The fires before this time, which is not after now.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub to_us: i64,
    /// Whether to show the fires only.
    #[serde(default)]
    pub dry_run: bool,
}

/// The fires of a backfill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backfilled {
    /// The fires, in order.
    pub fires: Vec<PreviewedFire>,
    /// How many jobs were added: none in a dry run, and none for fires whose jobs exist, or whose unique key another job has.
    pub added: u64,
}

/// Checks the name of a schedule, which is a part of the ids of its jobs.
///
/// # Errors
/// What is wrong with it.
pub fn check_schedule_name(name: &str) -> Result<(), Problem> {
    let wrong = |problem: String| Err(Problem { field: "name", problem });
    if name.len() > MAX_SCHEDULE_NAME_BYTES {
        return wrong(format!("has {} bytes; at most {MAX_SCHEDULE_NAME_BYTES} are allowed", name.len()));
    }
    if name.contains(['@', '/']) {
        return wrong("must not have `@` and `/`".to_owned());
    }
    names::check_id(name).map_err(|problem| Problem { field: "name", ..problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_part_of_the_ids_of_jobs() {
        for right in ["nightly", "a b", "ü", &"a".repeat(MAX_SCHEDULE_NAME_BYTES)] {
            assert_eq!(check_schedule_name(right), Ok(()));
        }
        for wrong in ["", ".", "..", "a@b", "a/b", "a\n", &"a".repeat(MAX_SCHEDULE_NAME_BYTES + 1)] {
            assert!(check_schedule_name(wrong).is_err(), "{wrong:?}");
        }
    }
}
