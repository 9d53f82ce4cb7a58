//! The one shape of every error response.

use crate::answer::answers;
use crate::workers::Answer;

answers! {
    /// The body of every response with a status of 400 or more.
    #[derive(PartialEq, Eq)]
    #[schema(example = json!({
        "error": "not_found",
        "reason": "there is no job `mail-17` of type `mail`",
        "hint": "it was never added, was removed, or ended longer ago than jobs are kept"
    }))]
    pub struct Error {
        /// The error as a stable code, on which programs decide. See [`codes`].
        #[schema(example = "not_found")]
        pub error: String,
        /// What went wrong, for people.
        pub reason: String,
        /// What the caller can do about it.
        pub hint: String,
        /// `halt` when a worker has lost its claim: it stops the job and sends nothing more for it.
        pub answer: Option<Answer>,
    }
}

/// The values of [`Error::error`].
pub mod codes {
    /// 400: a parameter, a member or a name is invalid.
    pub const BAD_REQUEST: &str = "bad_request";
    /// 400: the body is not JSON, or is nested too deep.
    pub const BAD_JSON: &str = "bad_json";
    /// 401: the request needs credentials, and has none, or wrong ones.
    pub const UNAUTHORIZED: &str = "unauthorized";
    /// 403: the identity may not do this, or the server manages this job or this type itself.
    pub const FORBIDDEN: &str = "forbidden";
    /// 404: the path or the job does not exist.
    pub const NOT_FOUND: &str = "not_found";
    /// 404: the id does not have the form of an id that the server assigns to workers.
    pub const UNKNOWN_WORKER: &str = "unknown_worker";
    /// 405: the path does not support this method; the header `Allow` lists the supported ones.
    pub const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
    /// 408: the body did not arrive in time.
    pub const TIMEOUT: &str = "timeout";
    /// 409: the id is taken, the identity cannot be removed, or the job's state does not allow the change.
    pub const CONFLICT: &str = "conflict";
    /// 412: the job has changed since the version that `If-Match` names.
    pub const STALE: &str = "stale";
    /// 409: the worker does not hold the job under this claim any more. It stops the job and sends nothing more for it.
    pub const HALT: &str = "halt";
    /// 409: a lock is not free, and the job may not wait for it, because it holds a lock that is later in the order.
    pub const OUT_OF_ORDER: &str = "out_of_order";
    /// 409: the job did not declare that it may request this lock.
    pub const NOT_DECLARED: &str = "not_declared";
    /// 409: no such level of locks exists.
    pub const UNKNOWN_LEVEL: &str = "unknown_level";
    /// 409: the job already waits for another lock.
    pub const WAITS_ALREADY: &str = "waits_already";
    /// 409: a later `accept` of the same worker replaced this one.
    pub const SUPERSEDED: &str = "superseded";
    /// 410: the worker is no longer registered. It stops all its jobs, sends nothing more for them, and registers again.
    pub const EXPIRED_WORKER: &str = "expired_worker";
    /// 410: some of the events after the given one are gone.
    pub const EVENTS_GONE: &str = "events_gone";
    /// 413: the body, or a part of it, is too large.
    pub const TOO_LARGE: &str = "too_large";
    /// 415: the body is not declared as JSON.
    pub const BAD_CONTENT_TYPE: &str = "bad_content_type";
    /// 421: the header `Host` is not a name of this server.
    pub const MISDIRECTED: &str = "misdirected_request";
    /// 429: too many requests; the header `Retry-After` has the time in s.
    pub const TOO_MANY_REQUESTS: &str = "too_many_requests";
    /// 503: the server is stopping, or its store is unavailable. Nothing was changed.
    pub const UNAVAILABLE: &str = "service_unavailable";
    /// 503: it is unknown whether the request took effect. If a repetition is harmless, repeat the request; otherwise check its effect first.
    pub const UNKNOWN_OUTCOME: &str = "unknown_outcome";
    /// 500: an internal error of the server. Its log has the details.
    pub const INTERNAL: &str = "internal_server_error";
}
