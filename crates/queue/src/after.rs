//! The jobs that a job waits for, as a client names them.

use std::collections::BTreeSet;

use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};

use crate::error::{Error, Result};
use crate::input::{Input, Inputs};
use crate::names::check_name;
use crate::spec::{MAX_ID_BYTES, MAX_TYPE_BYTES};

/// The most dependencies of one job.
pub const MAX_AFTER: usize = 100;

/// A dependency of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// Its type.
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// The accepted end states: at least one, and never [`DependencyEnd::Removed`].
    pub accepted: Vec<DependencyEnd>,
    /// What happens if it ends in another state.
    pub otherwise: Otherwise,
}

impl After {
    /// Waits until a job has completed; cancels the dependent if it ends in another state.
    pub fn completed(job_type: &str, id: &str) -> After {
        After {
            job_type: job_type.to_owned(),
            id: id.to_owned(),
            accepted: vec![DependencyEnd::Completed],
            otherwise: Otherwise::Cancel,
        }
    }
}

/// Whether these dependencies are valid, as far as the job's own fields show.
pub(crate) fn check(job_type: &str, id: &str, after: &[After]) -> Result<()> {
    if after.len() > MAX_AFTER {
        return Err(invalid(format!(
            "has {} jobs; at most {MAX_AFTER} are allowed: let one job wait for many, and others for that one",
            after.len()
        )));
    }
    let mut named = BTreeSet::new();
    for (n, one) in after.iter().enumerate() {
        check_name("after.type", &one.job_type, MAX_TYPE_BYTES)?;
        check_name("after.id", &one.id, MAX_ID_BYTES)?;
        let told = format!("[{n}]: job `{}` of type `{}`", one.id, one.job_type);
        if one.accepted.is_empty() || one.accepted.contains(&DependencyEnd::Removed) {
            return Err(invalid(format!(
                "{told}: `accepted` must name one or more of completed, failed and cancelled"
            )));
        }
        if (one.job_type.as_str(), one.id.as_str()) == (job_type, id) {
            return Err(invalid(format!("{told} is the job itself: leave it out")));
        }
        if !named.insert((&one.job_type, &one.id)) {
            return Err(invalid(format!(
                "{told} is named twice: leave one out, and let the other accept both"
            )));
        }
    }
    Ok(())
}

/// Adds the jobs of these inputs to the dependencies of their job, unless they are there: they must complete.
pub fn await_inputs(inputs: &Inputs, after: &mut Vec<After>) {
    for Input { job_type, id } in inputs.values() {
        if !after.iter().any(|one| (&one.job_type, &one.id) == (job_type, id)) {
            after.push(After::completed(job_type, id));
        }
    }
}

pub(crate) fn invalid(problem: String) -> Error {
    Error::Invalid { field: "after", problem }
}
