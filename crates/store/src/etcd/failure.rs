//! How a call to etcd fails, and what that means for the caller.
//!
//! etcd's members answer with a gRPC code and a text. Several errors share a code, so this module identifies them by the text.
//! The texts are part of etcd's Go API, and are the same in 3.4, 3.5 and 3.6. After an unknown error, the outcome of a commit is
//! unknown.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::{Error, Limits};

pub(super) const FULL: &str = "etcd is full (NOSPACE): compact its history, defragment its members and disarm the alarm, or raise --quota-backend-bytes";
const NO_LEADER: &str =
    "the etcd cluster has no leader: more than half of its members must run and reach each other";

/// Why a call has no result.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// There was no connection, so nothing was sent.
    Unsent(String),
    /// The connection broke or the deadline passed. The outcome is unknown.
    Lost(String),
    /// The member answered with an error.
    Refused(Refusal, String),
}

/// The meaning of a member's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The token is no longer valid: authenticate again. Nothing was done.
    Token,
    /// The user or the password is wrong.
    Credentials,
    Permission,
    Compacted,
    /// The member has not seen this revision yet.
    Future,
    /// This member cannot do it, or not now. Nothing was done.
    NotNow,
    /// The member has no leader. Nothing was done.
    NoLeader,
    /// The quota is reached. The one transaction that reached it may have been done.
    Full,
    /// Larger than `--max-txn-ops` or `--max-request-bytes` allow.
    Limit,
    /// Members disagree about the stored data.
    Corrupt,
    /// The request is invalid for etcd: a bug of this engine.
    Invalid,
    /// Any other error. The request may have been done.
    Unclear,
}

/// Parts of etcd's texts and their meaning; the first match counts.
const TEXTS: &[(&str, Refusal)] = &[
    ("invalid auth token", Refusal::Token),
    ("revision of auth store is old", Refusal::Token),
    ("user name is empty", Refusal::Token),
    ("authentication failed", Refusal::Credentials),
    ("permission denied", Refusal::Permission),
    ("required revision has been compacted", Refusal::Compacted),
    ("required revision is a future revision", Refusal::Future),
    ("etcdserver: no leader", Refusal::NoLeader),
    ("raft proposal dropped", Refusal::NoLeader),
    ("etcdserver: not leader", Refusal::NotNow),
    ("etcdserver: not capable", Refusal::NotNow),
    ("not supported for learner", Refusal::NotNow),
    ("too many requests", Refusal::NotNow),
    ("database space exceeded", Refusal::Full),
    ("too many operations in txn request", Refusal::Limit),
    ("request is too large", Refusal::Limit),
    ("received message larger than max", Refusal::Limit),
    ("corrupt cluster", Refusal::Corrupt),
    ("duplicate key given in txn request", Refusal::Invalid),
    ("key is not provided", Refusal::Invalid),
];

impl Failure {
    /// The failure that a call's status describes.
    pub(super) fn from_status(status: &Status) -> Self {
        let text = status.message();
        // An error from this side has a cause; an error from a member has none.
        if let Some(cause) = status.source() {
            let unsent = causes(cause).any(|cause| cause.is::<tonic::ConnectError>());
            let text = innermost(cause);
            return if unsent { Failure::Unsent(text) } else { Failure::Lost(text) };
        }
        let known = TEXTS.iter().find(|(known, _)| text.contains(known)).map(|(_, refusal)| *refusal);
        let refusal = known.unwrap_or(match status.code() {
            Code::InvalidArgument | Code::Unimplemented => Refusal::Invalid,
            Code::PermissionDenied => Refusal::Permission,
            _ => Refusal::Unclear,
        });
        Failure::Refused(refusal, text.to_owned())
    }

    /// Whether another member may succeed.
    pub(super) fn is_of_member(&self) -> bool {
        match self {
            Failure::Unsent(_) | Failure::Lost(_) => true,
            Failure::Refused(refusal, _) => {
                matches!(refusal, Refusal::NotNow | Refusal::NoLeader | Refusal::Unclear)
            }
        }
    }

    /// Whether it is certain that nothing was written.
    pub(super) fn wrote_nothing(&self) -> bool {
        match self {
            Failure::Unsent(_) => true,
            Failure::Lost(_) => false,
            Failure::Refused(refusal, _) => !matches!(refusal, Refusal::Unclear | Refusal::Full),
        }
    }

    /// The error of a read, or of any other call that writes nothing.
    pub(super) fn into_error(self, user: Option<&str>) -> Error {
        match self {
            Failure::Unsent(text) | Failure::Lost(text) => {
                Error::Unavailable(format!("no etcd member answers: {text}"))
            }
            Failure::Refused(refusal, text) => match refusal {
                Refusal::Token | Refusal::Credentials => Error::Unavailable(match user {
                    Some(user) => format!("etcd refuses user {user} or its password: {text}"),
                    None => {
                        format!("etcd asks for user and password (etcd://user:password@host:port): {text}")
                    }
                }),
                Refusal::Permission => Error::Unavailable(format!(
                    "etcd does not let {} read and write this prefix: {text}",
                    user.map_or_else(|| "this client".to_owned(), |user| format!("user {user}"))
                )),
                Refusal::Compacted => Error::TooOld { limit_ms: Limits::DEFAULT.transaction_ms },
                Refusal::NoLeader => Error::Unavailable(NO_LEADER.into()),
                Refusal::Full => Error::Unavailable(FULL.into()),
                Refusal::Limit => Error::Misuse(format!(
                    "{text}: the options max_txn_ops and max_request_bytes of the store's URL must not be larger than \
                     etcd's --max-txn-ops and --max-request-bytes"
                )),
                Refusal::Corrupt => Error::Corrupt(text),
                Refusal::Invalid => Error::Misuse(text),
                Refusal::Future | Refusal::NotNow | Refusal::Unclear => {
                    Error::Unavailable(format!("etcd cannot answer now: {text}"))
                }
            },
        }
    }

    pub(super) fn into_commit_error(self, user: Option<&str>) -> Error {
        if self.wrote_nothing() {
            return self.into_error(user);
        }
        Error::UnknownOutcome(match self {
            Failure::Refused(Refusal::Full, _) => FULL.into(),
            failure => failure.into_text(),
        })
    }

    pub(super) fn into_text(self) -> String {
        match self {
            Failure::Unsent(text) | Failure::Lost(text) | Failure::Refused(_, text) => text,
        }
    }
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The text of the last cause, which is the most specific.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests {
    //! etcd's texts, as worded by 3.4.23.

    use super::*;

    fn commit_error(code: Code, text: &str) -> Error {
        Failure::from_status(&Status::new(code, text)).into_commit_error(Some("root"))
    }

    #[test]
    fn a_commit_that_may_have_been_done_has_an_unknown_outcome() {
        for (code, text) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (Code::Unknown, "something new"),
        ] {
            let error = commit_error(code, text);
            assert!(matches!(error, Error::UnknownOutcome(_)), "{text}: {error:?}");
        }
    }

    #[test]
    fn a_refused_commit_has_no_unknown_outcome() {
        for (code, text, expected) in [
            (Code::Unavailable, "etcdserver: no leader", "no leader"),
            (Code::ResourceExhausted, "etcdserver: too many requests", "cannot answer now"),
            (Code::PermissionDenied, "etcdserver: permission denied", "user root"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                "user root",
            ),
            (Code::Unauthenticated, "etcdserver: invalid auth token", "user root"),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", "max_txn_ops"),
            (Code::InvalidArgument, "etcdserver: request is too large", "--max-request-bytes"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", "older than"),
            (Code::DataLoss, "etcdserver: corrupt cluster", "corrupt"),
        ] {
            let error = commit_error(code, text);
            assert!(!matches!(error, Error::UnknownOutcome(_)), "{text}: {error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
