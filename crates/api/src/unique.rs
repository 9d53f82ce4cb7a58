//! Unique keys in requests and answers.

use turnwise_protocol::{
    Found, FoundDid, OnConflict as ApiOnConflict, Unique as ApiUnique, UniqueMode, UniqueWithin as ApiWithin,
    codes,
};
use turnwise_queue::unique::{self, By, Did, Mode, OnConflict, Unique, Within};

use super::error::{Result, V1Error};
use super::view::same;

/// What a request states. Its bounds are checked with the job.
pub(super) fn stated(unique: &ApiUnique) -> Result<Unique> {
    let bad = |problem: &str| Err(V1Error::out_of_bounds(format!("unique.{problem}")));
    let us = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    let mode = match (unique.mode, unique.period_ms) {
        (UniqueMode::Period, Some(ms)) => Mode::Period(us(ms)),
        (UniqueMode::Period, None) => return bad("period_ms: must be given with this mode"),
        (_, Some(_)) => return bad("period_ms: is only possible with the mode `period`"),
        (UniqueMode::WhileWaiting, None) => Mode::WhileWaiting,
        (UniqueMode::UntilEnd, None) => Mode::UntilEnd,
    };
    let by = match (&unique.key, &unique.of[..]) {
        (Some(_), [_, ..]) => return bad("of: is not possible with a `key`"),
        (Some(key), []) => By::Key(key.clone()),
        (None, []) => By::Options,
        (None, of) => By::Of(of.to_vec()),
    };
    let within = same!(unique.within, ApiWithin => Within: Type Task Tenant);
    let on_conflict = same!(unique.on_conflict, ApiOnConflict => OnConflict: Keep Replace Reject After);
    Ok(Unique { mode, by, within, on_conflict })
}

/// What a job states.
pub(super) fn shown(unique: Unique) -> ApiUnique {
    let period_ms = match unique.mode {
        Mode::Period(us) => Some(us.unsigned_abs().div_ceil(1_000)),
        _ => None,
    };
    let (key, of) = match unique.by {
        By::Key(key) => (Some(key), Vec::new()),
        By::Of(of) => (None, of),
        By::Options => (None, Vec::new()),
    };
    let within = same!(unique.within, Within => ApiWithin: Type Task Tenant);
    let on_conflict = same!(unique.on_conflict, OnConflict => ApiOnConflict: Keep Replace Reject After);
    ApiUnique { mode: mode(unique.mode), period_ms, key, of, within, on_conflict }
}

fn mode(mode: Mode) -> UniqueMode {
    match mode {
        Mode::WhileWaiting => UniqueMode::WhileWaiting,
        Mode::UntilEnd => UniqueMode::UntilEnd,
        Mode::Period(_) => UniqueMode::Period,
    }
}

/// What happened to the job that has a key.
///
/// # Errors
/// The request is to be refused.
pub(super) fn found(found: &unique::Found) -> Result<Found> {
    let did = match found.did {
        Did::Kept => FoundDid::Kept,
        Did::Replaced => FoundDid::Replaced,
        Did::RunsAgain => FoundDid::RunsAgain,
        Did::Rejected => {
            return Err(V1Error::conflict(
                codes::CONFLICT,
                format!("unique: job `{}` of type `{}` has this key", found.id, found.job_type),
                "wait until it has given the key up, or state another `on_conflict`",
            ));
        }
    };
    Ok(Found { mode: mode(found.mode), until_us: found.until_us, did })
}
