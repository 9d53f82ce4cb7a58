//! The one shape of every error answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::workers::Answer;

/// Every answer with a status of 400 or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "error": "not_found",
    "reason": "there is no job `mail-17` of type `mail`",
    "hint": "it was never added, was removed, or ended longer ago than jobs are kept"
}))]
pub struct Error {
    /// What went wrong, as a word that does not change: programs decide by it. See [`codes`].
    #[schema(example = "not_found")]
    pub error: String,
    /// What went wrong, for people.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
    /// `halt` when a worker has lost its claim: it stops the job and writes nothing more for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub answer: Option<Answer>,
}

/// The values of [`Error::error`].
pub mod codes {
    /// 400: a parameter, a member or a name is not what it must be.
    pub const BAD_REQUEST: &str = "bad_request";
    /// 400: the body is not JSON, or is nested too deep.
    pub const BAD_JSON: &str = "bad_json";
    /// 403: the job or the type belongs to the server.
    pub const FORBIDDEN: &str = "forbidden";
    /// 404: there is no such path or job.
    pub const NOT_FOUND: &str = "not_found";
    /// 404: this id is not one that the server gives to workers.
    pub const UNKNOWN_WORKER: &str = "unknown_worker";
    /// 405: the path knows other methods; the header `Allow` has them.
    pub const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
    /// 408: the body did not come in time.
    pub const TIMEOUT: &str = "timeout";
    /// 409: the worker does not hold the job under this claim (any more): it stops it and writes nothing more for it.
    pub const HALT: &str = "halt";
    /// 409: a lock is not free, and the job must not wait for it: it holds what comes after it.
    pub const OUT_OF_ORDER: &str = "out_of_order";
    /// 409: the job did not declare that it may want this lock.
    pub const NOT_DECLARED: &str = "not_declared";
    /// 409: there is no such level of locks.
    pub const UNKNOWN_LEVEL: &str = "unknown_level";
    /// 409: the job waits for another lock.
    pub const WAITS_ALREADY: &str = "waits_already";
    /// 409: a later `accept` of the same worker took this one's place.
    pub const SUPERSEDED: &str = "superseded";
    /// 410: the worker is no member any more: it stops all its jobs, writes nothing more, and registers anew.
    pub const EXPIRED_WORKER: &str = "expired_worker";
    /// 413: the body, or a part of it, is too large.
    pub const TOO_LARGE: &str = "too_large";
    /// 415: the body is not declared as JSON.
    pub const BAD_CONTENT_TYPE: &str = "bad_content_type";
    /// 503: the server stops, or its store cannot answer now. Nothing was changed.
    pub const UNAVAILABLE: &str = "service_unavailable";
    /// 503: it is unknown whether the request took effect. Repeat it if that is harmless, look first if not.
    pub const UNKNOWN_OUTCOME: &str = "unknown_outcome";
    /// 500: a fault of the server; its log tells more.
    pub const INTERNAL: &str = "internal_server_error";
}
