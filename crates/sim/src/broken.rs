//! The report of an invariant that does not hold.

use turnwise_queue::check::Finding;
use turnwise_queue::{Job, JobFields};

/// An invariant that does not hold, and why.
pub(crate) type Broken = (&'static str, String);

pub(crate) fn ensure(
    holds: bool,
    invariant: &'static str,
    story: impl FnOnce() -> String,
) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err((invariant, story())) }
}

/// Turns the first finding into an error.
pub(crate) fn none(findings: Vec<Finding>) -> Result<(), Broken> {
    match findings.into_iter().next() {
        Some(finding) => Err((finding.invariant.holds(), format!("{}: {}", finding.key, finding.problem))),
        None => Ok(()),
    }
}

/// Whether a filter or a concurrency limit keeps a job out of the queue.
pub(crate) fn is_kept(job: &Job) -> bool {
    job.paused().is_some() || job.limited().is_some()
}

/// The fields of a record that the invariants are about.
pub fn in_words(job: Option<&Job>) -> String {
    let Some(job) = job else { return "not there".to_owned() };
    let JobFields { attempts, crashes, priority, .. } = &**job;
    let (state, then, cancel_requested) = (job.state(), job.then(), job.cancel_requested());
    let (order_us, unmet) = (job.order_us(), job.unmet());
    let locks = match (job.locks.is_none(), job.reserved(), job.waits()) {
        (true, ..) => String::new(),
        (_, reserved, waits) => format!(" locks {:?} reserved {reserved:?} waits {waits:?}", job.locks),
    };
    let kept = match (job.paused(), job.limited()) {
        (None, None) => String::new(),
        kept => format!(" kept {kept:?}"),
    };
    let claim = job.claim().map(|claim| format!("{}/{}", claim.worker, claim.number));
    let history: Vec<_> = job.history.iter().take(4).map(|event| &event.kind).collect();
    format!(
        "{state:?} claim {claim:?} then {then:?} cancel {cancel_requested} order {order_us} attempts {attempts} \
         crashes {crashes} unmet {unmet} priority {priority} {history:?}{locks}{kept}"
    )
}
