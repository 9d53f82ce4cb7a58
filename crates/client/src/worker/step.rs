//! Parts of a run whose values are remembered: [`Run::step`].

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::to_raw_value;
use turnwise_protocol::{Answer, Update, Updated};

use super::{LockError, Run};
use crate::client::place;
use crate::tasks::TaskError;

impl Run {
    /// Runs a part of the job once: its value is stored with the job, and the next attempts get it without running the part.
    /// Values and the last report have at most 12 kB together.
    ///
    /// ```no_run
    /// # use turnwise_client::{Run, TaskError};
    /// # async fn charge(card: &str) -> Result<String, TaskError> { Ok(String::new()) }
    /// # async fn example(run: Run) -> Result<(), TaskError> {
    /// let receipt: String = run.step("charge", charge("4000…")).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The part fails; or the value is too large or no JSON, which fails the job, so that the part does not run again; or the run must stop.
    pub async fn step<T, E>(
        &self,
        name: &str,
        part: impl Future<Output = Result<T, E>>,
    ) -> Result<T, TaskError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<TaskError>,
    {
        let wrong = |problem: String| TaskError::failed(format!("the value of the step {name}: {problem}"));
        let known = self.info().steps.get(name).cloned();
        if let Some(known) = known {
            // The value itself may be a secret, and the error goes to the job's record.
            return serde_json::from_str(known.get()).map_err(|error| wrong(place(&error)));
        }
        let value = part.await.map_err(Into::into)?;
        let json = to_raw_value(&value).map_err(|error| wrong(error.to_string()))?;
        let _turn = self.updating.lock().await;
        let info = {
            let mut info = self.info();
            info.steps.insert(name.to_owned(), json);
            match info.checked() {
                Ok(json) => json,
                Err(problem) => {
                    info.steps.remove(name);
                    return Err(wrong(problem));
                }
            }
        };
        // Without a report of its own: this one is sent here, and with the end of a run that must stop meanwhile.
        self.reports.send_if_modified(|latest| {
            *latest = info.clone();
            false
        });
        let update = Update { claim: self.job.claim, info, log: Vec::new(), rate_pause_ms: None };
        let _asking = self.asks.begin();
        let request = || self.shared.request(&["jobs", &self.job.id, "update"]).json(&update);
        match self.persist::<Updated>(&request).await?.answer {
            Answer::Continue => Ok(value),
            Answer::Cancel => {
                self.stop.cancel();
                Ok(value)
            }
            Answer::Halt => Err(LockError::Lost.into()),
        }
    }
}
