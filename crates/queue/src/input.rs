//! The results that a job gets of jobs before it, as a client names them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::encoding::encode;
use crate::error::{Error, Result};
use crate::names::check_name;

/// The most inputs of one job.
pub const MAX_INPUTS: usize = 32;
/// Longest name of an input, in bytes.
pub const MAX_INPUT_NAME_BYTES: usize = 64;
/// The most bytes of all inputs of a job in its record.
pub const MAX_INPUTS_BYTES: usize = 4 << 10;

/// The job whose result is wanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Input {
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// Its id.
    pub id: String,
}

/// What a job wants of those before it, by name.
pub type Inputs = BTreeMap<String, Input>;

/// Whether these inputs are valid, as far as the job's own fields show.
pub(crate) fn check(job_type: &str, id: &str, inputs: &Inputs) -> Result<()> {
    if inputs.is_empty() {
        return Ok(());
    }
    if inputs.len() > MAX_INPUTS {
        return Err(invalid(format!("has {} names; at most {MAX_INPUTS} are allowed", inputs.len())));
    }
    for (name, input) in inputs {
        check_name("inputs", name, MAX_INPUT_NAME_BYTES)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if !name.bytes().all(allowed) || matches!(name.as_str(), "." | "..") {
            return Err(invalid(format!("`{name}` may have letters, digits, `_`, `-` and `.` only")));
        }
        if (input.job_type.as_str(), input.id.as_str()) == (job_type, id) {
            return Err(invalid(format!("`{name}` names the job itself: leave it out")));
        }
    }
    let bytes = encode(inputs).len();
    if bytes > MAX_INPUTS_BYTES {
        return Err(invalid(format!(
            "has {bytes} bytes; at most {MAX_INPUTS_BYTES} are allowed: name fewer jobs, or give them shorter ids"
        )));
    }
    Ok(())
}

pub(crate) fn invalid(problem: String) -> Error {
    Error::Invalid { field: "inputs", problem }
}
