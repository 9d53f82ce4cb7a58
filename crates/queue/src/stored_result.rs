//! What the record of a job states of a result that has rows of its own.

use serde::{Deserialize, Serialize};

/// A result in rows of its own, as the record names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResult {
    /// Its size in bytes.
    pub bytes: usize,
    /// Its media type; `None` for JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
}
