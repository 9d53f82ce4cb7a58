//! Results that are handed on: what a job gets of jobs before it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::answer::answers;
use crate::object::Object;
use crate::workers::EndState;

/// Maximum number of inputs of one job.
pub const MAX_INPUTS: usize = 32;
/// The results that a worker gets with a job have at most so many bytes together. It fetches those beyond.
pub const MAX_INLINE_INPUT_BYTES: usize = 64 << 10;

/// The job whose result is wanted: `job`, or, in a request with `whole`, `name`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "job": "extract/7" }))]
pub struct Input {
    /// Its type and id, as in `extract/7`. It is of the same tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 577)]
    pub job: Option<String>,
    /// The `name` of another job of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64)]
    pub name: Option<String>,
}

/// What a job wants, by the names that its handler uses.
pub type Inputs = BTreeMap<String, Input>;

pub(crate) fn inputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Inputs, D::Error> {
    let objects = BTreeMap::<String, Object<Input>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|(name, Object(input))| (name, input)).collect())
}

answers! {
    /// An input of a job that a worker has claimed: the result, or where it is.
    #[schema(example = json!({ "job": "extract/7", "state": "completed", "result": [1, 2] }))]
    pub struct GivenInput {
        /// The type and the id of the job before it.
        pub job: String,
        /// The state of that job. If it is not `completed`, there is no result: it failed and that was accepted, or it runs again, or was removed.
        pub state: EndState,
        /// The result, if it is JSON, and fits: the inputs of a job have at most 64 kB together, the smallest first.
        #[schema(value_type = serde_json::Value)]
        pub result: Option<Box<RawValue>>,
        /// Otherwise: its size in bytes.
        pub bytes: Option<u64>,
        /// Its media type.
        pub media_type: Option<String>,
        /// The path under which this worker gets it while it holds the claim.
        pub url: Option<String>,
    }
}
