//! What a run has reported, in the form that all clients share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use turnwise_protocol::{MAX_INFO_BYTES, json};

/// What a run has reported: the last report, and the values of its steps, in the form that all clients share. Without steps, the report is all
/// of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Info {
    #[serde(rename = "$steps")]
    pub steps: BTreeMap<String, Box<RawValue>>,
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

/// The problem of something that is larger than the server takes.
pub(super) fn too_large(bytes: usize, most: usize) -> Option<String> {
    (bytes > most).then(|| format!("has {bytes} bytes; at most {most} are allowed"))
}
