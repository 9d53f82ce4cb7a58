//! Results that are handed on: what a job gets of jobs before it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::object::Object;

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
