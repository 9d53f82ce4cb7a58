//! What must hold of the rows of one job.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Finding, Invariant, JobKey, Place, Row};
use crate::pieces::PIECE_BYTES;
use crate::{Active, Job, Keyspace, State, Then};

/// What is known of one job.
#[derive(Debug, Clone, Default)]
pub struct JobRows {
    /// Its record, if it is there and can be read.
    pub record: Option<Job>,
    /// Its record as stored.
    pub raw: Option<Bytes>,
    /// Its places, each with the row's value.
    pub places: BTreeMap<Place, Bytes>,
    /// Pieces of its options: number and size in bytes.
    pub pieces: BTreeMap<u32, usize>,
}

impl JobRows {
    /// Whether no row is left.
    pub fn is_empty(&self) -> bool {
        self.raw.is_none() && self.places.is_empty() && self.pieces.is_empty()
    }

    /// Sets or clears the record.
    ///
    /// # Errors
    /// Why it cannot be read; it is known to be there, then.
    pub fn set_record(&mut self, key: &JobKey, value: Option<&Bytes>) -> Result<(), serde_json::Error> {
        self.raw = value.cloned();
        self.record = None;
        if let Some(value) = value {
            self.record = Some(read_record(key, value)?);
        }
        Ok(())
    }

    /// Adds a row, if it is one of a job's.
    ///
    /// # Errors
    /// Why its value cannot be read.
    pub fn add(&mut self, row: Row, value: &Bytes) -> Result<(), serde_json::Error> {
        match row {
            Row::Job(key) => self.set_record(&key, Some(value))?,
            Row::Options(_, n) => {
                self.pieces.insert(n, value.len());
            }
            Row::Place(_, place) => {
                self.places.insert(place, value.clone());
            }
            _ => {}
        }
        Ok(())
    }
}

/// A job record.
pub fn read_record(key: &JobKey, value: &[u8]) -> Result<Job, serde_json::Error> {
    let mut job: Job = serde_json::from_slice(value)?;
    job.job_type.clone_from(&key.0);
    job.id.clone_from(&key.1);
    Ok(job)
}

impl Job {
    /// The place that the record names; `None` if it runs without a claim.
    pub fn place(&self) -> Option<Place> {
        Some(match self.state {
            State::Pending => Place::Pending(self.order_us),
            State::Delayed | State::Crashing => Place::Delayed(self.order_us),
            State::Running => Place::Active(self.claim.as_ref()?.worker.clone()),
            State::Completed | State::Failed | State::Cancelled => Place::Ended(self.changed_us),
        })
    }

    /// Whether the options are in rows of their own.
    pub fn has_pieces(&self) -> bool {
        self.options.is_none()
    }
}

/// Checks the rows of one job, read in one snapshot. `is_known` says whether a worker has a row of its own.
pub fn check_job(
    keys: &Keyspace,
    key: &JobKey,
    rows: &JobRows,
    is_known: impl Fn(&JobKey) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let record_key = keys.job(&key.0, &key.1);
    let mut found = |invariant, key: &[u8], problem: String| {
        findings.push(Finding::new(invariant, key, problem));
    };
    let Some(job) = &rows.record else {
        if rows.raw.is_some() {
            found(Invariant::Readable, &record_key, "the record is not a job".to_owned());
        } else {
            for place in rows.places.keys() {
                found(Invariant::Owned, &place.key(keys, key), "there is no record".to_owned());
            }
            for n in rows.pieces.keys() {
                let piece = keys.options_piece(&key.0, &key.1, *n);
                found(Invariant::Owned, &piece, "there is no record".to_owned());
            }
        }
        return findings;
    };
    let state = job.state;
    let place = job.place();
    match &place {
        None => found(Invariant::Claimed, &record_key, "it runs, and its record has no claim".to_owned()),
        Some(place) if !rows.places.contains_key(place) => {
            let expected = super::key_text(&place.key(keys, key));
            found(Invariant::OnePlace, &record_key, format!("it is {state:?}, but {expected} is not there"));
        }
        Some(_) => {}
    }
    for other in rows.places.keys().filter(|found| Some(*found) != place.as_ref()) {
        let problem = format!("the record is {state:?} and names another place");
        found(Invariant::OnePlace, &other.key(keys, key), problem);
    }
    match &job.claim {
        Some(claim) if state == State::Running => {
            if !is_known(&(key.0.clone(), claim.worker.clone())) {
                found(Invariant::HolderKnown, &record_key, format!("worker {} has no rows", claim.worker));
            }
            if let Some(value) = place.as_ref().and_then(|place| rows.places.get(place)) {
                let row = keys.active_entry(&key.0, &claim.worker, &key.1);
                match serde_json::from_slice::<Active>(value) {
                    Err(error) => found(Invariant::Readable, &row, format!("no active row: {error}")),
                    Ok(active) if active.claim != claim.number => {
                        let problem =
                            format!("it has claim {}, the record claim {}", active.claim, claim.number);
                        found(Invariant::ActiveAgrees, &row, problem);
                    }
                    Ok(active) if active.cancel_requested != job.cancel_requested => {
                        let problem = "only one of row and record says that the job is to be cancelled";
                        found(Invariant::ActiveAgrees, &row, problem.to_owned());
                    }
                    Ok(_) => {}
                }
            }
            if job.ended_claim.as_ref() == Some(claim) {
                let problem = format!("claim {} has ended before", claim.number);
                found(Invariant::ClaimUnique, &record_key, problem);
            }
        }
        Some(_) => found(Invariant::Unclaimed, &record_key, format!("it is {state:?} and has a claim")),
        None => {}
    }
    if state != State::Running && (job.cancel_requested || job.then != Then::Keep) {
        let problem = format!("it is {state:?}, and something is to follow the end of its run");
        found(Invariant::Unclaimed, &record_key, problem);
    }
    if let Some((key, problem)) = wrong_pieces(keys, key, job.has_pieces(), &rows.pieces) {
        found(Invariant::OptionsWhole, &key, problem);
    }
    findings
}

/// The first thing that is wrong with the pieces of a job's options.
fn wrong_pieces(
    keys: &Keyspace,
    (job_type, id): &JobKey,
    expected: bool,
    pieces: &BTreeMap<u32, usize>,
) -> Option<(Bytes, String)> {
    let key = |n| keys.options_piece(job_type, id, n);
    match (expected, pieces.first_key_value()) {
        (false, None) => None,
        (false, Some((n, _))) => Some((key(*n), "the record has the options itself".to_owned())),
        (true, None) => {
            Some((keys.job(job_type, id), "they are neither in the record nor in pieces".to_owned()))
        }
        (true, Some(_)) => whole(pieces).err().map(|(n, problem)| (key(n), problem)),
    }
}

/// Whether pieces are consecutive, and only the last one may be short.
///
/// # Errors
/// The first that is wrong, and how.
pub fn whole(pieces: &BTreeMap<u32, usize>) -> Result<(), (u32, String)> {
    let mut before: Option<usize> = None;
    for (expected, (n, bytes)) in (0..).zip(pieces) {
        if *n != expected {
            return Err((*n, format!("piece {expected} is not there")));
        }
        if let Some(short) = before.filter(|bytes| *bytes != PIECE_BYTES) {
            return Err((*n, format!("the piece before has {short} bytes and should have been the last")));
        }
        before = Some(*bytes);
    }
    Ok(())
}
