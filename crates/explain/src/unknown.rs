//! A job's unknown locks, and the cause.

use turnwise_catalogue::{Because, Cause, Derived};
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_protocol::UnknownLocks;
use turnwise_queue::locks::has_room;
use turnwise_queue::{Job, jobs};

use crate::shown::lock_mode;
use crate::{Reader, Result};

/// The unknown parts of a job's declaration, each with its cause.
pub(crate) async fn look(reader: &Reader<'_>, job: &Job) -> Result<Vec<UnknownLocks>> {
    if !job.locks.has_unknown() {
        return Ok(Vec::new());
    }
    let options = jobs::options(reader.tx, reader.keys, job).await?;
    let options = turnwise_catalogue::parse_options(options.get());
    let derived = reader.rules.catalogue.requests(&job.job_type, job.task.as_deref(), &options);
    let derived = derived.map(|mut derived| {
        derived.fit(|requests| has_room(requests, &reader.store.limits()));
        derived
    });
    // Locks that the job declared itself, or that another catalogue derived, cannot be explained by this catalogue.
    let derived = derived.filter(|derived| derived.requests == job.locks);
    let mut all = Vec::new();
    for (level, mode) in job.locks.unknown() {
        let because = derived.as_ref().and_then(|derived| because(derived, level, mode));
        all.push(UnknownLocks {
            level: level.to_owned(),
            mode: lock_mode(mode),
            because: match because {
                Some(because) => because.cause.to_string(),
                None => "the job's declaration stated this when the job was added".to_owned(),
            },
            option: because.and_then(|because| option(&because.cause)),
            line: because.map(|because| because.line),
            step: because.and_then(|because| because.step),
        });
    }
    Ok(all)
}

fn because<'a>(derived: &'a Derived, level: &str, mode: Mode) -> Option<&'a Because> {
    let is_it =
        |because: &&Because| because.mode == mode && because.level.as_deref().is_none_or(|of| of == level);
    derived.unknown_because.iter().find(is_it)
}

fn option(cause: &Cause) -> Option<String> {
    match cause {
        Cause::Missing { option }
        | Cause::WrongType { option, .. }
        | Cause::NoSuchTask { option }
        | Cause::Steps { option } => Some(option.clone()),
        _ => None,
    }
}
