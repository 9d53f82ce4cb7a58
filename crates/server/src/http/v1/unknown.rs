//! A job's unknown locks: the cause, and a prediction of the actual locks.

use std::collections::BTreeMap;

use turnwise_catalogue::{Because, Derived, Reason};
use turnwise_policy::predictive_queue::experience::Likely;
use turnwise_policy::predictive_queue::locks::{Mode, Requests};
use turnwise_protocol::{LikelyLocks, UnknownLocks};
use turnwise_queue::locks::{Held, Spot};
use turnwise_queue::{Job, jobs};
use turnwise_store::Transaction;

use super::error::Result;
use super::locks::{shown, shown_mode};
use crate::catalogue;
use crate::http::App;

/// The unknown parts of a job's declaration, each with its cause and its prediction.
pub(super) async fn look(
    app: &App,
    tx: &Transaction,
    job: &Job,
    mut likely: Vec<Likely>,
) -> Result<Vec<UnknownLocks>> {
    if !job.locks.has_unknown() {
        return Ok(Vec::new());
    }
    let options = jobs::options(tx, &app.keys, job).await?;
    let options = turnwise_catalogue::parse_options(options.get());
    let derived = app.catalogue.requests(&job.job_type, &options);
    let derived = derived.map(|derived| catalogue::fitting(derived, &app.store.limits()));
    // Locks that the job declared itself, or that another catalogue derived, cannot be explained by this catalogue.
    let derived = derived.filter(|derived| derived.requests == job.locks);
    let mut all = Vec::new();
    for (level, mode) in job.locks.unknown() {
        let because = derived.as_ref().and_then(|derived| because(derived, level, mode));
        let found = likely.iter().position(|likely| likely.level == level && likely.mode == mode);
        all.push(UnknownLocks {
            level: level.to_owned(),
            mode: shown_mode(mode),
            because: match because {
                Some(because) => because.reason.to_string(),
                None => "the job's declaration stated this when the job was added".to_owned(),
            },
            option: because.and_then(|because| option(&because.reason)),
            line: because.map(|because| because.line),
            step: because.and_then(|because| because.step),
            likely: found.map(|found| prediction(likely.swap_remove(found))),
        });
    }
    Ok(all)
}

fn because<'a>(derived: &'a Derived, level: &str, mode: Mode) -> Option<&'a Because> {
    let is_it =
        |because: &&Because| because.mode == mode && because.level.as_deref().is_none_or(|of| of == level);
    derived.unknown_because.iter().find(is_it)
}

fn option(reason: &Reason) -> Option<String> {
    match reason {
        Reason::Missing { option }
        | Reason::WrongType { option, .. }
        | Reason::NoSuchOperation { option }
        | Reason::Steps { option } => Some(option.clone()),
        _ => None,
    }
}

fn prediction(likely: Likely) -> LikelyLocks {
    let Likely { level, set, confidence, alike, runs, option: (option, value), mode: _ } = likely;
    let set = Requests { big_lock: false, levels: BTreeMap::from([(level, set)]) };
    let locks = Held::known(&set).map(|held| held.locks()).unwrap_or_default();
    let locks = locks.into_iter().filter(|lock| lock.spot != Spot::BIG_LOCK).map(shown).collect();
    LikelyLocks { locks, confidence, alike, runs, option, value }
}
