//! Results that are handed on, as a request states them and as they are shown.

use turnwise_protocol::{Input as Stated, Inputs as AllStated, names};
use turnwise_queue::{Input, Inputs};

use super::error::{Result, V1Error};

/// The inputs of a request, in the form of the queue. Names of other jobs of the request stand for their ids already.
pub(super) fn stated(inputs: &AllStated) -> Result<Inputs> {
    inputs.iter().map(|(name, input)| Ok((name.clone(), one(name, input)?))).collect()
}

fn one(name: &str, Stated { job, name: named }: &Stated) -> Result<Input> {
    let job = match (job, named) {
        (Some(job), None) => job,
        (_, Some(_)) => {
            let reason = format!("inputs.{name}.name: only a request with `whole` names its jobs");
            return Err(V1Error::bad(reason, "state `job`, as in \"extract/7\", and nothing else"));
        }
        (None, None) => {
            let reason = format!("inputs.{name}: states no job");
            return Err(V1Error::bad(reason, "state `job`, as in \"extract/7\""));
        }
    };
    let (job_type, id) = job.split_once('/').unwrap_or((job, ""));
    names::check_type(job_type)
        .and_then(|()| names::check_id(id))
        .map_err(|problem| V1Error::out_of_bounds(format!("inputs.{name}.job: {problem}")))?;
    Ok(Input { job_type: job_type.to_owned(), id: id.to_owned() })
}

/// The inputs of a job as they are shown.
pub(super) fn shown(inputs: Inputs) -> AllStated {
    let one = |(name, input): (String, Input)| (name, Stated { job: Some(path(&input)), name: None });
    inputs.into_iter().map(one).collect()
}

/// The type and the id of the job whose result is an input.
pub(super) fn path(Input { job_type, id }: &Input) -> String {
    format!("{job_type}/{id}")
}
