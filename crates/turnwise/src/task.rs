//! A function as the handler of jobs.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use turnwise_worker::{JobContext, JobHandler, Outcome, handler_fn};

use crate::{Error, Result};

/// Why a run has no result. Other errors become this one with `?`: the job is then tried again after its backoff.
#[derive(Debug)]
pub struct TaskError(Outcome);

impl TaskError {
    /// An error that will not pass: the job is not tried again.
    pub fn failed(reason: impl Into<String>) -> TaskError {
        TaskError(Outcome::Failed(reason.into()))
    }

    /// An error that may pass: the job is tried again after its backoff.
    pub fn crashed(reason: impl Into<String>) -> TaskError {
        TaskError(Outcome::Crashed(reason.into()))
    }

    /// It is too early: the job runs again after this long, which is no attempt.
    pub fn snoozed(time: Duration) -> TaskError {
        TaskError(Outcome::Snoozed(time))
    }

    /// The run has stopped, because it had to ([`JobContext::stop`]).
    pub fn stopped() -> TaskError {
        TaskError(Outcome::Stopped)
    }
}

impl<E: std::error::Error> From<E> for TaskError {
    fn from(error: E) -> TaskError {
        TaskError::crashed(error.to_string())
    }
}

pub(crate) fn handler<I, O, Running>(
    function: impl Fn(JobContext, I) -> Running + Send + Sync + 'static,
) -> impl JobHandler
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
    Running: Future<Output = Result<O, TaskError>> + Send + 'static,
{
    let function = Arc::new(function);
    handler_fn(move |job: JobContext| {
        let function = function.clone();
        async move {
            // Another attempt would get the same input.
            let input = match parsed(job.options.get()) {
                Ok(input) => input,
                Err(error) => return Outcome::Failed(error.to_string()),
            };
            match function(job, input).await {
                Ok(result) => Outcome::completed(&result),
                Err(TaskError(outcome)) => outcome,
            }
        }
    })
}

/// Reads an input or a result.
pub(crate) fn parsed<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        // The JSON itself may be a secret.
        Error::Invalid(format!("the JSON is not of the expected type: line {line}, column {column}"))
    })
}
