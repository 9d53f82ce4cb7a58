//! Parts of a run whose values are remembered: [`Run::step`].

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use turnwise_protocol::{Answer, MAX_INFO_BYTES, Update, Updated, json};

use super::run::too_large;
use super::{LockError, Run};
use crate::tasks::TaskError;

/// What a run has reported: the last report, and the values of its steps, in the form that all clients share. Without steps, the report is all
/// of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Info {
    #[serde(rename = "$steps")]
    steps: BTreeMap<String, Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Box<RawValue>>,
}

impl Info {
    /// What earlier runs have reported.
    pub fn of(given: Option<&RawValue>) -> Info {
        let Some(given) = given else { return Info::default() };
        serde_json::from_str(given.get())
            .unwrap_or_else(|_| Info { steps: BTreeMap::new(), report: Some(given.to_owned()) })
    }

    /// This as the server takes it, or why it does not. It would refuse the end of the run for it.
    pub fn checked(&self) -> Result<Option<Box<RawValue>>, String> {
        let json = match self.steps.is_empty() {
            true => self.report.clone(),
            false => Some(to_raw_value(self).map_err(|error| error.to_string())?),
        };
        if let Some(json) = &json {
            if let Some(problem) = too_large(json.get().len(), MAX_INFO_BYTES) {
                return Err(format!("it {problem}, with the values of steps"));
            }
            json::check_result(json).map_err(|error| error.to_string())?;
        }
        Ok(json)
    }
}

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
            return serde_json::from_str(known.get()).map_err(|error| wrong(error.to_string()));
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
