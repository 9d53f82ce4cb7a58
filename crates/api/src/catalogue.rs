//! The catalogue, which derives the locks of jobs that declare none.

use std::path::Path;

use turnwise_catalogue::{Catalogue, Derived, MAX_FILE_BYTES};
use turnwise_policy::predictive_queue::locks::{AtLevel, Request, Requests};
use turnwise_protocol::{LockNames, LockWord, Locks, LocksAtLevel, names};
use turnwise_queue::NewJob;
use turnwise_queue::locks::has_room;
use turnwise_store::Limits;

/// Reads `[queue] catalogue`. Without a file, the catalogue is empty.
///
/// # Errors
/// One line: the file and the line, the problem, and a valid form.
pub fn read(path: Option<&Path>) -> Result<Catalogue, String> {
    let Some(path) = path else { return Ok(Catalogue::default()) };
    let file = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        format!("{file}: {error}; [queue] catalogue must name a file that the server may read")
    };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > MAX_FILE_BYTES as u64 {
        return Err(format!("{file}: has {bytes} bytes; at most {MAX_FILE_BYTES} are read"));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let catalogue = Catalogue::parse(&text, &file).map_err(|wrong| wrong.to_string())?;
    for job_type in catalogue.types() {
        let refused = |problem: &str| {
            let line = catalogue.line(job_type).unwrap_or_default();
            format!("{file}:{line}: jobs.{job_type}: {problem}")
        };
        names::check_type(job_type).map_err(|problem| refused(&problem.to_string()))?;
        if job_type == turnwise_replicator::JOB_TYPE {
            return Err(refused("replications lock nothing; leave the type out"));
        }
    }
    Ok(catalogue)
}

/// The locks that a job declares, in the form in which the store keeps them.
///
/// # Errors
/// The member, from `locks` on, and the problem.
pub fn stated(locks: Locks, catalogue: &Catalogue) -> Result<Requests, String> {
    let mut requests = Requests { big_lock: locks.big_lock, ..Requests::default() };
    for (level, LocksAtLevel { shared, exclusive }) in locks.levels {
        let wrong = |problem: String| format!("locks.{}: {problem}", shown(&level));
        let shared = shared.map_or(Request::None, |names| match names {
            LockNames::Word(LockWord::All) => Request::AllShared,
            LockNames::Word(LockWord::Unknown) => Request::UnknownShared,
            LockNames::Names(names) => Request::Shared(names.into_iter().map(|name| (name, 1)).collect()),
            LockNames::Units(units) => Request::Shared(units),
        });
        let exclusive = match exclusive {
            None => Request::None,
            Some(LockNames::Word(LockWord::All)) => Request::AllExclusive,
            Some(LockNames::Word(LockWord::Unknown)) => Request::UnknownExclusive,
            Some(LockNames::Names(names)) => Request::Exclusive(names.into_iter().collect()),
            Some(LockNames::Units(_)) => {
                let problem =
                    "has units of an exclusive lock, which takes all of them: write a list of names";
                return Err(wrong(problem.to_owned()));
            }
        };
        let at = AtLevel::new([shared, exclusive]).map_err(wrong)?;
        if at.is_none() {
            return Err(wrong("locks nothing: leave the level out".to_owned()));
        }
        requests.levels.insert(level, at);
    }
    let levels = catalogue.levels();
    match levels.check(&requests) {
        Ok(()) => Ok(requests),
        Err(refused) => Err(format!("locks.{}: {}", shown(&refused.level), refused.problem)),
    }
}

/// The locks that the catalogue derives for a job that declares none. They always fit into the job: if a level has too
/// many names, the job locks the whole level.
pub fn derived(job: &NewJob, catalogue: &Catalogue, limits: &Limits) -> Requests {
    if catalogue.line(&job.job_type).is_none() {
        return Requests::default();
    }
    // The request's parser has already checked that they are JSON.
    let options = turnwise_catalogue::parse_options(job.options.get());
    let Some(mut derived) = catalogue.requests(&job.job_type, job.task.as_deref(), &options) else {
        return Requests::default();
    };
    derived.fit(|requests| has_room(requests, limits));
    log_faults(job, &derived);
    derived.requests
}

/// Logs what users should correct in the options or in the catalogue.
fn log_faults(job: &NewJob, derived: &Derived) {
    let faults = derived.unknown_because.iter().filter(|because| because.cause.is_fault());
    for because in faults.chain(&derived.warnings) {
        tracing::warn!(
            job_type = job.job_type,
            id = job.id,
            line = because.line,
            "locks from the catalogue: {because}"
        );
    }
}

/// A level's name, shortened for a response.
fn shown(level: &str) -> String {
    level.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
