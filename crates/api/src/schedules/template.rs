//! What a request states of a schedule, checked: when it fires, and the job that each fire adds.

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use turnwise_calendar::{Calendar, Problem, When as Stored};
use turnwise_protocol::{IfExists, Missed as Late, NewJob, Overlap as Stacked, PutSchedule, When};
use turnwise_queue::schedules::{self as rows, Missed, NewSchedule, Overlap, Template};
use turnwise_replicator::doc_processor::{Origin, new_job, request_tenant};
use turnwise_replicator::documents::redaction;
use turnwise_replicator::{JOB_TYPE as REPLICATION, Replication};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;

use crate::add::{self, check_room, check_tenant, priority_of, stated};
use crate::app::App;
use crate::builtin_types::Commands;
use crate::edit::check_hidden;
use crate::error::{Result, V1Error};
use crate::view::same;

/// The attempts of a scheduled replication, unless its template states others. Nobody waits for its first error, and the next fire needs its end.
const REPLICATION_ATTEMPTS: u32 = 10;
/// Longest jitter, in ms.
const MAX_JITTER_MS: u64 = 86_400_000;
/// Largest `most_missed`.
const MAX_MISSED: u32 = 100;
/// Largest `pause_after`.
const MAX_FAILURES: u32 = 1_000;
const IN_SCHEDULE: &str = "a schedule itself decides when its jobs start, and under which ids";

/// A request to write a schedule.
pub(super) struct Wanted<'a> {
    pub put: PutSchedule,
    calendar: Calendar,
    jitter_us: i64,
    missed: Missed,
    commands: Commands<'a>,
    now_us: i64,
}

impl Wanted<'_> {
    /// Checks what needs no rows of schedules.
    pub async fn parse(app: &App, put: PutSchedule, now_us: i64) -> Result<Wanted<'_>> {
        let calendar = calendar(&put.when)?;
        let jitter_ms = put.jitter_ms.unwrap_or(0);
        let jitter_us = match i64::try_from(jitter_ms) {
            Ok(ms) if jitter_ms <= MAX_JITTER_MS => ms * 1_000,
            _ => {
                return Err(V1Error::out_of_bounds(format!(
                    "jitter_ms: must be from 0 to {MAX_JITTER_MS} (a day)"
                )));
            }
        };
        for (name, number, most) in
            [("most_missed", put.most_missed, MAX_MISSED), ("pause_after", put.pause_after, MAX_FAILURES)]
        {
            if number.is_some_and(|number| !(1..=most).contains(&number)) {
                return Err(V1Error::out_of_bounds(format!("{name}: must be from 1 to {most}")));
            }
        }
        let missed = match put.missed {
            Late::All => Missed::All { most: put.most_missed.unwrap_or(MAX_MISSED) },
            _ if put.most_missed.is_some() => {
                return Err(V1Error::bad("most_missed: belongs to `missed: all`", "leave it out"));
            }
            Late::One => Missed::One,
            Late::Skip => Missed::Skip,
        };
        let job = &put.job;
        for (name, is_stated) in [
            ("id", job.id.is_some()),
            ("delay_ms", job.delay_ms.is_some()),
            ("not_before_us", job.not_before_us.is_some()),
            ("after", !job.after.is_empty()),
            ("count", job.count.is_some() || job.at_once.is_some()),
            ("inputs", !job.inputs.is_empty()),
            ("if_exists", job.if_exists != IfExists::Keep),
        ] {
            if is_stated {
                return Err(V1Error::bad(format!("job.{name}: belongs to no schedule"), IN_SCHEDULE));
            }
        }
        let commands = match job.job_type == turnwise_command::JOB_TYPE {
            true => Commands::find(app).await?,
            false => Commands::Nowhere,
        };
        Ok(Wanted { put, calendar, jitter_us, missed, commands, now_us })
    }

    /// The schedule that the request makes of the one with its name.
    pub async fn schedule(
        &self,
        app: &App,
        caller: &Caller,
        tx: &Transaction,
        name: &str,
        known: Option<&rows::Schedule>,
    ) -> Result<NewSchedule> {
        let put = &self.put;
        // A schedule that is over can be changed, too.
        if known.is_none_or(|known| known.calendar != self.calendar) {
            self.calendar.check(self.now_us).map_err(wrong)?;
        }
        let mut request = put.job.clone();
        let states_locks = request.locks.is_some();
        match (&request.options, known) {
            (Some(options), _) => {
                let checked = check_hidden(app, tx, &request.job_type, options).await;
                checked.map_err(|error| error.at("job."))?;
            }
            (None, Some(known)) if known.template.job_type == request.job_type => {
                request.options = Some(rows::options(tx, &app.keys, known).await?);
            }
            (None, _) => {}
        }
        let id = rows::job_id(name, self.now_us);
        let job = match request.job_type.as_str() {
            REPLICATION => replication(app, caller, request, &id, self.now_us),
            _ => {
                request.id = Some(id);
                add::prepared(app, caller, &self.commands, request, self.now_us, "job.")
            }
        };
        let turnwise_queue::NewJob { job_type, spec, options, priority, .. } = job?;
        Ok(NewSchedule {
            name: name.to_owned(),
            calendar: self.calendar.clone(),
            jitter_us: self.jitter_us,
            missed: self.missed,
            overlap: same!(put.overlap, Stacked => Overlap: Skip Allow Queue CancelRunning),
            pause_after: put.pause_after,
            paused: put.paused,
            pauses_as: super::pauser(caller),
            note: put.note.clone(),
            template: Template { job_type, spec, priority, states_locks },
            options,
            by: caller.owner(),
            most_of_tenant: app.config.get().limits.schedules,
        })
    }
}

/// The calendar of a specification.
pub(super) fn calendar(when: &When) -> Result<Calendar> {
    let When { cron, zone, every_ms, offset_ms, dates_us, from_us, until_us } = when;
    // Numbers out of bounds are refused by the check.
    let us = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    let belongs =
        |member: &str, to: &str| V1Error::bad(format!("when.{member}: belongs to `{to}`"), "leave it out");
    let stored = match (cron, every_ms, dates_us.is_empty()) {
        (Some(expression), None, true) => Stored::Cron {
            expression: expression.clone(),
            zone: zone.clone().unwrap_or_else(|| "UTC".to_owned()),
        },
        (None, Some(every_ms), true) => {
            Stored::Every { every_us: us(*every_ms), offset_us: us(offset_ms.unwrap_or(0)) }
        }
        (None, None, false) => Stored::Dates(dates_us.clone()),
        _ => {
            return Err(V1Error::bad(
                "when: must have exactly one of `cron`, `every_ms` and `dates_us`",
                "a specification is like {\"cron\": \"30 2 * * *\", \"zone\": \"Europe/Berlin\"}",
            ));
        }
    };
    if zone.is_some() && cron.is_none() {
        return Err(belongs("zone", "cron"));
    }
    if offset_ms.is_some() && every_ms.is_none() {
        return Err(belongs("offset_ms", "every_ms"));
    }
    Ok(Calendar { when: stored, from_us: *from_us, until_us: *until_us })
}

/// What is wrong with a calendar, in the words of the API.
pub(super) fn wrong(Problem { field, problem }: Problem) -> V1Error {
    let member = match field {
        "expression" => "when.cron",
        "zone" => "when.zone",
        "every_us" => "when.every_ms",
        "offset_us" => "when.offset_ms",
        "dates" => "when.dates_us",
        "from_us" => "when.from_us",
        "until_us" => "when.until_us",
        _ => "when",
    };
    let problem = problem.replace("every_us", "every_ms");
    V1Error::bad(format!("{member}: {problem}"), "docs/schedules.md describes when a schedule can fire")
}

/// The job of a replication whose options are what `POST /_replicate` takes.
fn replication(
    app: &App,
    caller: &Caller,
    request: NewJob,
    id: &str,
    now_us: i64,
) -> Result<turnwise_queue::NewJob> {
    let bad = |problem: String| V1Error::out_of_bounds(format!("job.{problem}"));
    for (name, is_stated) in [
        ("task", request.task.is_some()),
        ("user", request.user.is_some()),
        ("summary", request.summary.is_some()),
        ("locks", request.locks.is_some()),
    ] {
        if is_stated {
            return Err(bad(format!("{name}: cannot be given for a replication")));
        }
    }
    let options = request.options.as_deref().map_or("{}", RawValue::get);
    let Ok(mut body) = serde_json::from_str::<Map<String, Value>>(options) else {
        return Err(bad("options: must be an object, as POST /_replicate takes it".to_owned()));
    };
    redaction::restore(&mut body, None).map_err(|error| bad(format!("options: {error}")))?;
    let replication = Replication::parse(&body, &app.config.get().replication);
    let replication = replication.map_err(|error| bad(format!("options: {error}")))?;
    if replication.continuous {
        return Err(bad("options.continuous: a replication that is scheduled ends".to_owned()));
    }
    let tenant = request.tenant.clone().or_else(|| caller.only_tenant().map(str::to_owned));
    let tenant = tenant.unwrap_or_else(|| request_tenant(&replication));
    let replication = replication.of_tenant(&tenant);
    let new = new_job(&replication, id, Origin::Request, &body, now_us);
    let mut new = new.map_err(|error| bad(format!("options: {error}")))?;
    new.spec.tenant.clone_from(&tenant);
    new.spec.max_attempts = Some(REPLICATION_ATTEMPTS);
    new.spec = stated(&request, new.spec).map_err(|error| error.at("job."))?;
    new.priority = request.priority.map(priority_of).transpose().map_err(bad)?;
    check_tenant(caller, &new).map_err(|error| error.at("job."))?;
    check_room(app, &new, "job.")?;
    Ok(new)
}
