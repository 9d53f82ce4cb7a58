//! Results of jobs before the one that runs: [`Run::input`].

use bytes::Bytes;
use reqwest::Method;

use super::Run;
use crate::client::{Repeat, Request};
use crate::output::{JSON, JobResult, read_result};
use crate::{Error, Result};

impl Run {
    /// One of the job's inputs, by its name. Small results came with the job; others are fetched now.
    ///
    /// # Errors
    /// The job has no such input, its job has no result (its `state` in [`AcceptedJob::inputs`](crate::protocol::AcceptedJob::inputs) states why), the worker
    /// has lost its claim, or the server does not answer.
    pub async fn input(&self, name: &str) -> Result<JobResult> {
        let given = self.job.inputs.get(name);
        let given = given.ok_or_else(|| Error::Invalid(format!("this job has no input `{name}`")))?;
        if let Some(json) = &given.result {
            let bytes = Bytes::copy_from_slice(json.get().as_bytes());
            return Ok(JobResult { media_type: JSON.to_owned(), bytes });
        }
        let segments = ["workers", &self.job_type, &self.shared.id, "jobs", &self.job.id, "inputs", name];
        let request = Request::new(Method::GET, &segments).query("claim", Some(self.job.claim));
        self.shared.client.call_reading(&request, Repeat::Harmless, read_result).await.0
    }
}
