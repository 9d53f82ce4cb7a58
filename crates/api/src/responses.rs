//! The errors of groups of requests, for the description.
#![allow(dead_code, reason = "read by the description alone")]

use turnwise_protocol::Error;
use utoipa::IntoResponses;

/// Errors that every request may cause.
#[derive(IntoResponses)]
pub(super) enum Common {
    /// `bad_request`, `bad_json`: correct the request.
    #[response(status = 400)]
    Bad(Error),
    /// `unauthorized`: the request needs credentials, and has none, or wrong ones.
    #[response(status = 401)]
    Unauthorized(Error),
    /// `forbidden`: this identity may not do this; or see the description of the request.
    #[response(status = 403)]
    Forbidden(Error),
    /// The URL is longer than 65,534 bytes. There is no body, and the server closes the connection.
    #[response(status = 414)]
    LongUrl,
    /// `misdirected_request`: the header `Host` has a name that is not the server's.
    #[response(status = 421)]
    Misdirected(Error),
    /// `too_many_requests`: too many wrong passwords. The header `Retry-After` has the time in s.
    #[response(status = 429)]
    TooMany(Error),
    /// The head of the request has more than 100 headers, or is larger than 256 KiB. There is no body, and the server closes the connection.
    #[response(status = 431)]
    LargeHead,
    /// `internal_server_error`: an internal error of the server. Its log has the details.
    #[response(status = 500)]
    Internal(Error),
    /// `service_unavailable`, `unknown_outcome`: the server is stopping, or its store is unavailable. Try again.
    #[response(status = 503)]
    Unavailable(Error),
}

/// Errors of requests with a body.
#[derive(IntoResponses)]
pub(super) enum BadBody {
    /// `timeout`: the body did not arrive in time.
    #[response(status = 408)]
    Timeout(Error),
    /// `too_large`: the body is too large.
    #[response(status = 413)]
    TooLarge(Error),
    /// `bad_content_type`: the body is not declared as JSON, or has a content encoding other than gzip and identity.
    #[response(status = 415)]
    BadContentType(Error),
}

/// Errors of requests about a job.
#[derive(IntoResponses)]
pub(super) enum NoJob {
    /// `not_found`: the job does not exist.
    #[response(status = 404)]
    NotFound(Error),
}

/// Errors of requests from workers.
#[derive(IntoResponses)]
pub(super) enum NoWorker {
    /// `forbidden`: the server manages this type or this worker itself.
    #[response(status = 403)]
    Forbidden(Error),
    /// `unknown_worker`: the id does not have the form of an id that the server assigns to workers.
    #[response(status = 404)]
    UnknownWorker(Error),
}

/// Errors of requests from registered workers.
#[derive(IntoResponses)]
pub(super) enum Membership {
    /// `expired_worker`: the worker is not registered any more. It stops all its jobs, sends nothing more for them, and
    /// registers again.
    #[response(status = 410)]
    Expired(Error),
}

/// Errors of requests about a job that a worker runs.
#[derive(IntoResponses)]
pub(super) enum LostClaim {
    /// `halt`: the worker does not hold the job under this claim any more. It stops the job and sends nothing more for it.
    #[response(status = 409)]
    Halt(Error),
}
